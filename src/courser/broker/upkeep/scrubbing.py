"""The scrubber: reads all sealed segments again from time to time, slowly, to find damage before a consumer does.

A round reads every sealed segment once, in the order of streams, topics, partitions and offsets. How far it got is
kept in a small file, so that a server that is restarted often reaches the end too. A damaged segment is replaced by an
intact copy, if there is one.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple, Protocol

import msgspec

from courser.api.operating_replies import VerifiedSegment
from courser.broker.partition.partition import Partition
from courser.broker.partition.partition_registry import PartitionRegistry
from courser.broker.partition.segment_verification import SegmentCheck, damage_of, note_damages
from courser.broker.settings import BrokerSettings
from courser.errors import CommandRejected, CourserError, ErrorCode, StorageFailure
from courser.model import metric_table as m
from courser.model.clock import Clock
from courser.model.identifiers import TopicAddress
from courser.model.metrics import Registry
from courser.storage.durable_files import read_if_there, replace_file, unlink_if_there
from courser.storage.files import FileSystem
from courser.storage.ledger import DamagedRange
from courser.storage.partition_log import PartitionLog
from courser.storage.paths import SCRUBBER, TEMPORARY_SUFFIX, log_path
from courser.storage.segment import Segment, SegmentState
from courser.storage.upkeep import plan_replacement

_log = logging.getLogger(__name__)

_STEP_SIZE = 1024 * 1024
"""Bytes that are read before a pause: few enough not to delay polls that wait for the disk."""
_SEGMENT_SIZE_MIN = 64 * 1024
"""Bytes that a segment counts as at least: opening thousands of small files is work too."""
_SAVE_INTERVAL = 60_000_000
"""Microseconds between two writes of the file: as much of a round may be repeated after a restart."""
_VERIFY_RATE = 256 * 1024 * 1024
"""Bytes per second when somebody waits for the result: a disk that reads faster has time for polls."""
_CHECK_INTERVAL = 60.0
"""Seconds between two checks whether the next round is due: the clock may be set."""
_SECOND = 1_000_000


class GoodCopies(Protocol):
    """Where intact copies of segments may be: the archive."""

    async def fetch(self, log: PartitionLog, segment: Segment, target: Path) -> bool:
        """Write the copy of a sealed segment to a new file. Returns False if there is none.

        The copy need not be synced, and is verified before it is used.

        Raises:
            CourserError: it cannot be had now.
        """


class ScrubPosition(NamedTuple):
    """Which segment. Places compare in the order of a round."""

    stream_id: int
    topic_id: int
    partition_id: int
    base_offset: int


class ScrubProgress(msgspec.Struct, frozen=True):
    """How far the scrubber got, as its file has it."""

    started_at: int = 0
    """When the round began, by the wall clock; 0 if there was none."""
    next_place: ScrubPosition | None = None
    """Where the round continues. None: it is complete."""


@dataclass(slots=True)
class ScrubCounters:
    """What the scrubber did since the start of the server."""

    segment_count: int = 0
    size: int = 0
    damage_count: int = 0
    """Damaged ranges that nobody knew before."""
    unreadable_count: int = 0
    """Segments that the disk could not read."""
    repair_count: int = 0
    round_count: int = 0


class Scrubber:
    """Reads segments again. ``run`` is the background task; ``scrub`` may be called instead."""

    def __init__(
        self,
        registry: PartitionRegistry,
        file_system: FileSystem,
        data_directory: Path,
        pool: Executor,
        clock: Clock,
        settings: BrokerSettings,
        *,
        share: str = "",
        copies: GoodCopies | None = None,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """``share`` names the topics of this process, if it does not have all. ``pause`` waits for so many seconds."""
        self._registry = registry
        self._file_system = file_system
        # How far one process got says nothing about the topics of another.
        self._path = data_directory / f"{SCRUBBER}{share}"
        self._pool = pool
        self._clock = clock
        self._rate = settings.scrub_rate
        self._interval = settings.scrub_interval
        self._pause = pause
        self._saved_at: int | None = None
        self._progress: ScrubProgress | None = None
        self._verifying = asyncio.Lock()
        self.counters = ScrubCounters()
        self.copies = copies
        """Where damaged segments are repaired from; None: they stay as they are."""

    def register(self, registry: Registry) -> None:
        """Name what is counted."""
        counters = self.counters
        registry.value_of(m.SCRUBBED_SEGMENTS, lambda: counters.segment_count)
        registry.value_of(m.SCRUBBED_BYTES, lambda: counters.size)
        registry.value_of(m.SCRUB_DAMAGES, lambda: counters.damage_count)
        registry.value_of(m.SCRUB_UNREADABLE, lambda: counters.unreadable_count)
        registry.value_of(m.SCRUB_REPAIRS, lambda: counters.repair_count)
        registry.value_of(m.SCRUB_ROUNDS, lambda: counters.round_count)

    # --- rounds ---

    async def run(self) -> None:
        """Scrub until cancelled: one round per interval, and first the rest of one that a stop interrupted."""
        while True:
            # Also at first: after a start, clients need the disk more.
            await self._pause(_CHECK_INTERVAL)
            progress = await self._load()
            if progress.next_place is not None or self._is_due(progress.started_at):
                await self.scrub()

    def _is_due(self, started_at: int) -> bool:
        # A round of the future: the clock was set back.
        return not started_at <= self._clock.now() < started_at + self._interval

    async def scrub(self) -> None:
        """Complete the interrupted round, or do a whole one."""
        progress = await self._load()
        place, started_at = progress.next_place, progress.started_at
        if place is None:
            place, started_at = ScrubPosition(0, 0, 0, 0), self._clock.now()
            await self._save(ScrubProgress(started_at, place))
        before = self.counters.segment_count, self.counters.size, self.counters.damage_count
        for next_place, partition, segment in self._segments_from(place):
            if self._saved_at is None or self._clock.monotonic() - self._saved_at >= _SAVE_INTERVAL:
                await self._save(ScrubProgress(started_at, next_place))
            await self._check(partition, segment)
        await self._save(ScrubProgress(started_at, None))
        counters = self.counters
        counters.round_count += 1
        after = counters.segment_count, counters.size, counters.damage_count
        _log.info(
            "scrubbed all sealed segments segments=%d size=%d new_damages=%d",
            *(now - then for now, then in zip(after, before, strict=True)),
        )

    def _segments_from(self, first: ScrubPosition) -> Iterator[tuple[ScrubPosition, Partition, Segment]]:
        """The sealed segments from a place on. What is deleted while the round goes on is left out."""
        for key in sorted(self._registry.topics):
            topic = self._registry.topics.get(key) if key >= first[:2] else None
            for partition in list(topic.partitions) if topic is not None else ():
                if (*key, partition.log.identity.partition_id) < first[:3]:
                    continue
                for segment in partition.log.segments:
                    place = ScrubPosition(*key, partition.log.identity.partition_id, segment.base_offset)
                    if place >= first and segment.state is SegmentState.SEALED and _is_there(partition, segment):
                        yield place, partition, segment

    # --- one segment ---

    async def verify_segment(self, address: TopicAddress, partition_id: int, first_offset: int) -> VerifiedSegment:
        """Check a sealed segment now, because somebody asks, and repair it if it is damaged and there is a copy.

        One after another, and faster than a round.

        Raises:
            CommandRejected: 3007, or 20 if there is no such segment.
            StorageFailure: the disk cannot be read.
        """
        partition = self._registry.at(address).partition(partition_id)
        segment = _sealed_segment(partition, first_offset)
        async with self._verifying:
            is_repaired = await self._read_all(partition, segment, max(self._rate, _VERIFY_RATE))
        damages = [damage_of(partition.log, damage) for damage in segment.damages]
        return VerifiedSegment(segment.base_offset, segment.end_offset, segment.size, is_repaired, damages)

    async def _check(self, partition: Partition, segment: Segment) -> None:
        await self._wait_for(max(_SEGMENT_SIZE_MIN - segment.size, 0), self._clock.monotonic(), self._rate)
        # What the disk cannot read is logged and counted.
        with contextlib.suppress(StorageFailure):
            await self._read_all(partition, segment, self._rate)

    async def _read_all(self, partition: Partition, segment: Segment, rate: int) -> bool:
        """Read a segment and note what is damaged. Returns whether damage was repaired."""
        check = SegmentCheck(partition.log, segment)
        try:
            began = self._clock.monotonic()
            while _is_there(partition, segment) and (size := await partition.reader.advance_check(check, _STEP_SIZE)):
                self.counters.size += size
                await self._wait_for(size, began, rate)
                began = self._clock.monotonic()
        except StorageFailure as failure:
            if _is_there(partition, segment):
                self.counters.unreadable_count += 1
                _log.error("the scrubber could not read a sealed segment: %s", failure)
            raise
        if not _is_there(partition, segment):
            return False
        self.counters.segment_count += 1
        if not check.damages:
            return False
        await self.repair(partition, segment, check.damages)
        return not segment.damages

    async def repair(self, partition: Partition, segment: Segment, damages: Sequence[DamagedRange]) -> None:
        """Report damage in a segment, and repair it if there is an intact copy."""
        self.counters.damage_count += note_damages(partition.log, segment, damages)
        if segment.state is SegmentState.SEALED:
            await self._repair(partition, segment)

    async def _wait_for(self, size: int, began: int, rate: int) -> None:
        """Pause until so many bytes have had their time, at so many bytes per second."""
        passed = (self._clock.monotonic() - began) / _SECOND
        await self._pause(max(size / rate - passed, 0))

    async def _repair(self, partition: Partition, segment: Segment) -> None:
        """Replace a damaged segment by an intact copy, if there is one."""
        if self.copies is None:
            return
        log = partition.log
        path = log_path(log.directory, segment.base_offset)
        copy = path.with_name(path.name + TEMPORARY_SUFFIX)
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(self._pool, _discard, log.file_system, copy)
            if not await self.copies.fetch(log, segment, copy):
                _log.error("no copy of a damaged segment was found path=%s", path)
                return
            if not await loop.run_in_executor(self._pool, _is_intact, log, segment, copy):
                _log.error("the copy of a damaged segment is not intact path=%s", path)
                return
            await partition.do_upkeep(partial(plan_replacement, partition.log, segment, copy))
        except CourserError as error:
            _log.error("could not repair a damaged segment path=%s reason=%s", path, error)
            return
        finally:
            await loop.run_in_executor(self._pool, _discard, log.file_system, copy)
        if not segment.damages:
            self.counters.repair_count += 1
            _log.warning("replaced a damaged segment by an intact copy; the damaged one is in quarantine path=%s", path)

    # --- the file ---

    async def _load(self) -> ScrubProgress:
        if self._progress is None:
            self._progress = await asyncio.get_running_loop().run_in_executor(self._pool, self._read)
        return self._progress

    def _read(self) -> ScrubProgress:
        try:
            data = read_if_there(self._file_system, self._path)
            return msgspec.json.decode(data, type=ScrubProgress) if data else ScrubProgress()
        except (StorageFailure, msgspec.DecodeError) as error:
            _log.warning("cannot read %s; the scrubber starts a new round: %s", self._path, error)
            return ScrubProgress()

    async def _save(self, progress: ScrubProgress) -> None:
        self._progress, self._saved_at = progress, self._clock.monotonic()
        write = partial(replace_file, self._file_system, self._path, msgspec.json.encode(progress))
        try:
            await asyncio.get_running_loop().run_in_executor(self._pool, write)
        except StorageFailure as failure:
            _log.warning("cannot write %s; after a restart the scrubber repeats a part: %s", self._path, failure)


def _sealed_segment(partition: Partition, first_offset: int) -> Segment:
    """A segment that is not written any more."""
    for segment in partition.log.segments:
        if segment.base_offset == first_offset and segment.state is SegmentState.SEALED:
            return segment
    reason = f"partition {partition.log.identity.partition_id} has no sealed segment {first_offset} on its disk"
    raise CommandRejected(ErrorCode.RESOURCE_NOT_FOUND, reason)


def _is_there(partition: Partition, segment: Segment) -> bool:
    return not partition.is_deleted and segment in partition.log.segments


def _is_intact(log: PartitionLog, segment: Segment, copy: Path) -> bool:
    check = SegmentCheck(log, segment, copy)
    while check.advance(segment.size):
        pass
    return not check.damages and check.end_offset == segment.end_offset


def _discard(file_system: FileSystem, copy: Path) -> None:
    # A start removes temporary files too.
    with contextlib.suppress(OSError):
        unlink_if_there(file_system, copy)
