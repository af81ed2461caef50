"""The partitions that are open: found by stream, topic and number, on the path of every send and poll.

The catalog says what exists; a topic is found here from the moment its directories are there and its logs are open,
until the moment its deletion is durable. Nothing outside ``broker`` keeps a partition.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Container, Iterator, Sequence
from concurrent.futures import Executor
from functools import lru_cache, partial
from pathlib import Path

from courser.api.replies import Deletion
from courser.broker.partition.lost_partitions import lost_partition_log, offline_partition_log
from courser.broker.partition.partition import Partition
from courser.broker.partition.partition_figures import PartitionCounters, counters_of, sums_of
from courser.broker.partition.partition_metrics import PartitionMetrics
from courser.broker.partition.partition_reader import LARGE_READ_COUNT_MAX, Past
from courser.broker.partition.peers import Owns, owns_all
from courser.broker.partition.segment_verification import SegmentVerification
from courser.broker.partition.topic_settings import effective_options, log_settings, persists_offsets, size_limit
from courser.broker.settings import BrokerSettings
from courser.catalog import entities
from courser.catalog.directories import Directories, identity_of
from courser.catalog.entities import Stream, Topic
from courser.catalog.partitions import open_partition_log
from courser.catalog.state import CatalogState
from courser.errors import CommandRejected, CourserError, ErrorCode
from courser.model.clock import Clock
from courser.model.identifiers import TopicAddress
from courser.model.metrics import Registry
from courser.model.topic_options import TopicOptions
from courser.records.stored_header import PartitionIdentity
from courser.storage.files import FileSystem
from courser.storage.identity_search import ForeignPartition
from courser.storage.partition_log import PartitionLog
from courser.storage.recovery_cases import StopKind
from courser.storage.segment import Segment

_log = logging.getLogger(__name__)

_KNOWN_COUNT_MAX = 1000
"""Sets of options whose settings are remembered."""
DELETION_COUNT_MAX = 100
"""Deletions that a topic remembers. Older ones are in the log."""
_OPENED_AT_ONCE = 32
"""Partitions that one turn of a pool thread opens: few enough to share the work, many enough to be worth the hop."""

Place = tuple[Stream, Topic, entities.Partition]


class OpenTopic:
    """The open partitions of one topic, and what sends and polls need to know about it."""

    __slots__ = (
        "deletions",
        "effective",
        "partitions",
        "persists_offsets",
        "room",
        "size_limit",
        "stream_id",
        "topic_id",
        "turn",
    )

    def __init__(self, stream_id: int, topic_id: int, effective: TopicOptions) -> None:
        self.stream_id = stream_id
        self.topic_id = topic_id
        self.partitions: list[Partition] = []
        """By number, from 0 on without a gap."""
        self.turn = 0
        """Which partition the next balanced send goes to."""
        self.deletions: deque[Deletion] = deque(maxlen=DELETION_COUNT_MAX)
        """The last deletions of messages since the topic was opened, oldest first."""
        self.use(effective)

    def use(self, effective: TopicOptions) -> None:
        """Let these options hold for sends and polls from now on."""
        self.effective = effective
        """What holds for the topic. None: an option without a default is not set."""
        self.persists_offsets = persists_offsets(effective)
        self.size_limit = size_limit(effective)
        """Bytes over all partitions; None if there is no limit."""
        self.room = 0
        """Bytes that surely still fit below the limit; looked at again when they are used up."""

    def partition(self, partition_id: int) -> Partition:
        """A partition by its number. Raises 3007."""
        if 0 <= partition_id < len(self.partitions):
            return self.partitions[partition_id]
        reason = f"the topic has {len(self.partitions)} partitions, and none with number {partition_id}"
        raise CommandRejected(ErrorCode.PARTITION_NOT_FOUND, reason)

    @property
    def size(self) -> int:
        """Bytes of all batches on disk."""
        return sum(partition.log.size for partition in self.partitions)


def check_incarnation(partition: Partition, incarnation: int) -> None:
    """Raise 87 if a client means another partition, which had the same number before. 0: the client does not say."""
    current = partition.log.identity.incarnation
    if incarnation not in (0, current):
        reason = f"the request is for incarnation {incarnation} of the partition, and the current one is {current}"
        raise CommandRejected(ErrorCode.HISTORY_UNAVAILABLE, reason)


class PartitionRegistry:
    """All open topics. Used from the event loop alone; opening and closing happens in the pool."""

    def __init__(
        self,
        file_system: FileSystem,
        directories: Directories,
        pool: Executor,
        *,
        clock: Clock,
        settings: BrokerSettings,
        state: CatalogState,
        metrics: PartitionMetrics | None = None,
        owns: Owns = owns_all,
    ) -> None:
        """``owns`` says which topics this process opens."""
        self._file_system = file_system
        self._directories = directories
        self._pool = pool
        self._clock = clock
        self._settings = settings
        self._log_settings = lru_cache(_KNOWN_COUNT_MAX)(partial(log_settings, settings=settings))
        """By options and number of partitions: most topics of a server have the same ones."""
        self._metrics = metrics or PartitionMetrics(Registry(), clock)
        self._large_reads = asyncio.Semaphore(LARGE_READ_COUNT_MAX)
        self._state = state
        self.owns = owns
        self.past: Past = None
        """Reads what only the archive still has. Set before the first partition is opened."""
        self.topics: dict[tuple[int, int], OpenTopic] = {}
        """By stream and topic id."""
        self.removed = PartitionCounters()
        """What the partitions counted that are deleted: the sums must not decrease."""
        self._lost: Container[Path] = ()
        """Directories that were gone at the start."""
        self._unopened: Container[PartitionIdentity] = ()
        """Partitions that the last session did not open."""
        self._homes: dict[PartitionIdentity, Path] = {}
        """Where each partition of the catalog belongs; only while all are being opened."""

    def note_deletion(self, topic: OpenTopic, partition: Partition, gone: Sequence[Segment], reason: str) -> None:
        """Remember that segments of a partition were deleted."""
        row = Deletion(
            self._clock.now(),
            reason,
            partition.log.identity.partition_id,
            gone[0].base_offset,
            gone[-1].end_offset,
            len(gone),
            sum(segment.message_count for segment in gone),
            sum(segment.size for segment in gone),
        )
        topic.deletions.append(row)

    def at(self, address: TopicAddress) -> OpenTopic:
        """The topic at an address. Raises 2010 if it was deleted since the address was found.

        So it does for a topic of another process: whoever sent the command here meant one that has been deleted since
        then, and one with the same name has been created.
        """
        topic = self.topics.get(address)
        if topic is None:
            raise CommandRejected(ErrorCode.TOPIC_NOT_FOUND, "the topic was deleted in the meantime")
        return topic

    def __iter__(self) -> Iterator[OpenTopic]:
        return iter(self.topics.values())

    # --- opening ---

    async def open_all(
        self,
        streams: Sequence[Stream],
        stop: StopKind,
        *,
        lost: Container[Path] = (),
        unopened: Container[PartitionIdentity] = (),
        owns: Owns | None = None,
    ) -> None:
        """Open every partition of the catalog. If one cannot be opened, none is.

        One whose directory is another partition's is offline. ``lost`` are the directories that are gone, ``unopened``
        the partitions that the last session did not open. ``owns`` replaces the topics of this process.
        """
        owns = owns or self.owns
        places = [
            (stream, topic, partition)
            for stream in streams
            for topic in stream.topics.values()
            if owns(stream.stream_id, topic.topic_id)
            for partition in topic.partitions
        ]
        self._lost, self._unopened = lost, unopened
        self._homes = {
            identity_of(topic, partition): self._directories.partition_path(stream, topic, partition)
            for stream, topic, partition in places
        }
        logs = await self._open_logs(places, stop)
        self._homes = {}
        for stream in streams:
            for topic in stream.topics.values():
                if owns(stream.stream_id, topic.topic_id):
                    self._topic_of(stream, topic)
        for (stream, topic, _), log in zip(places, logs, strict=True):
            verification = SegmentVerification(log) if self._settings.validate_checksum else None
            self._add(self.topics[stream.stream_id, topic.topic_id], log, verification)

    async def open_new(self, stream: Stream, topic: Topic, *, are_created: bool = False) -> OpenTopic:
        """Open the partitions of a topic that are not open yet. May be repeated.

        ``are_created``: this process has just made all of them durable. Then nothing is read from the disk.
        """
        known = self.topics.get((stream.stream_id, topic.topic_id))
        missing = topic.partitions[len(known.partitions) if known is not None else 0 :]
        if are_created:
            settings = self._log_settings(topic.options, len(topic.partitions))
            logs = [
                PartitionLog.new(
                    self._file_system,
                    self._directories.partition_path(stream, topic, partition),
                    identity_of(topic, partition),
                    settings=settings,
                    clock=self._clock,
                    epoch=topic.purge_count,
                )
                for partition in missing
            ]
        else:
            # Whatever happened to the others, these are new: they have nothing to recover.
            logs = await self._open_logs([(stream, topic, partition) for partition in missing], StopKind.CLEAN)
        opened = self._topic_of(stream, topic)
        for log in logs:
            self._add(opened, log)
        if known is not None:
            # A limited topic with more partitions has smaller segments.
            await self.apply_options(stream, topic)
        return opened

    async def apply_options(self, stream: Stream, topic: Topic) -> None:
        """Let the options of a topic hold for its open partitions.

        A partition whose data cannot be synced keeps the stricter durability until a restart.
        """
        opened = self.topics[stream.stream_id, topic.topic_id]
        opened.use(effective_options(topic.options, self._settings.topic_defaults))
        wanted = self._log_settings(topic.options, len(topic.partitions))
        changed = [partition for partition in opened.partitions if partition.log.settings != wanted]
        for partition, result in zip(
            changed,
            await asyncio.gather(*(partition.change_settings(wanted) for partition in changed), return_exceptions=True),
            strict=True,
        ):
            if isinstance(result, CourserError):
                _log.warning("could not change the settings partition=%s reason=%s", partition.log.directory, result)
            elif result is not None:
                raise result

    def _topic_of(self, stream: Stream, topic: Topic) -> OpenTopic:
        key = (stream.stream_id, topic.topic_id)
        opened = self.topics.get(key)
        if opened is None:
            effective = effective_options(topic.options, self._settings.topic_defaults)
            opened = self.topics[key] = OpenTopic(*key, effective)
        return opened

    def _add(self, opened: OpenTopic, log: PartitionLog, verification: SegmentVerification | None = None) -> None:
        partition = Partition(
            log,
            self._pool,
            self._clock,
            limits=self._settings.limits,
            verification=verification,
            metrics=self._metrics,
            past=self.past,
            large_reads=self._large_reads,
        )
        opened.partitions.append(partition)
        partition.find_room()

    async def _open_logs(self, places: list[Place], stop: StopKind) -> list[PartitionLog]:
        loop = asyncio.get_running_loop()
        shares = [places[start : start + _OPENED_AT_ONCE] for start in range(0, len(places), _OPENED_AT_ONCE)]
        running = [loop.run_in_executor(self._pool, self._open_some, share, stop) for share in shares]
        results = await asyncio.gather(*running, return_exceptions=True)
        errors = [result for result in results if isinstance(result, BaseException)]
        logs = [log for result in results if not isinstance(result, BaseException) for log in result]
        if errors:
            for log in logs:
                log.release_files()
            raise errors[0]
        return logs

    def _open_some(self, places: list[Place], stop: StopKind) -> list[PartitionLog]:
        logs: list[PartitionLog] = []
        try:
            # Those before a failure are in the list.
            logs.extend(self._open(*place, stop) for place in places)
        except CourserError:
            for log in logs:
                log.release_files()
            raise
        return logs

    def _open(self, stream: Stream, topic: Topic, partition: entities.Partition, stop: StopKind) -> PartitionLog:
        settings = self._log_settings(topic.options, len(topic.partitions))
        directory = self._directories.partition_path(stream, topic, partition)
        identity = identity_of(topic, partition)
        if directory in self._lost:
            return lost_partition_log(self._file_system, directory, identity, settings=settings, clock=self._clock)
        try:
            return open_partition_log(
                self._file_system,
                self._directories,
                stream,
                topic,
                partition,
                settings=settings,
                clock=self._clock,
                # Its files were somewhere else during the last session: how that ended says nothing about them.
                stop=StopKind.CRASHED if identity in self._unopened else stop,
                purge_end=self._state.purge_end(topic, partition.partition_id),
            )
        except ForeignPartition as found:
            home = self._homes.get(found.found)
            return offline_partition_log(
                self._file_system, directory, found, home=home, settings=settings, clock=self._clock
            )

    @property
    def unopened(self) -> frozenset[PartitionIdentity]:
        """Partitions that have files elsewhere, or nowhere: if those come back, this session has not opened them."""
        logs = [partition.log for opened in self.topics.values() for partition in opened.partitions]
        return frozenset(log.identity for log in logs if log.is_incomplete)

    # --- closing ---

    def remove_stream(self, stream_id: int) -> list[Partition]:
        """Forget a stream that was deleted. Return its partitions, which take nothing more, to be closed."""
        gone: list[Partition] = []
        for key in [key for key in self.topics if key[0] == stream_id]:
            gone += self.remove_topic(*key)
        return gone

    def remove_topic(self, stream_id: int, topic_id: int) -> list[Partition]:
        """Forget a topic that was deleted. Return its partitions, which take nothing more, to be closed."""
        opened = self.topics.pop((stream_id, topic_id), None)
        return self._retire(opened.partitions) if opened is not None else []

    def remove_partitions(self, stream_id: int, topic_id: int, kept_count: int) -> list[Partition]:
        """Forget the last partitions of a topic. Return them, which take nothing more, to be closed."""
        opened = self.topics.get((stream_id, topic_id))
        if opened is None:
            return []
        gone = self._retire(opened.partitions[kept_count:])
        del opened.partitions[kept_count:]
        return gone

    def _retire(self, partitions: list[Partition]) -> list[Partition]:
        for partition in partitions:
            partition.mark_deleted()
            dropped = PartitionCounters(segment_dropped_count=len(partition.log.segments))
            self.removed = sums_of(PartitionCounters, (self.removed, counters_of(partition), dropped))
        return partitions

    def has_files(self, partition: Partition) -> bool:
        """Whether a partition has its directory: it is not missing, and not another partition's."""
        return partition.log.directory not in self._lost and not partition.log.is_offline

    async def close(self) -> bool:
        """Sync and close everything. Return whether every partition stopped cleanly."""
        partitions = [
            partition
            for opened in self.topics.values()
            for partition in opened.partitions
            # There is nothing about these that a next start would have to be careful with.
            if self.has_files(partition)
        ]
        self.topics = {}
        results = await asyncio.gather(*(partition.close() for partition in partitions), return_exceptions=True)
        for partition, result in zip(partitions, results, strict=True):
            if isinstance(result, BaseException):
                _log.error("closing failed partition=%s", partition.log.directory, exc_info=result)
            elif not result:
                _log.error(
                    "partition did not stop cleanly partition=%s reason=%s",
                    partition.log.directory,
                    partition.log.failure,
                )
        return all(result is True for result in results)

    def abandon(self) -> None:
        """Let go of all files, as they are: the start failed."""
        for opened in self.topics.values():
            for partition in opened.partitions:
                partition.log.release_files()
        self.topics = {}
