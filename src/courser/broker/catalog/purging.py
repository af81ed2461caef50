"""Purge topics: a purge is journaled with the offset at which each partition ends, then every partition carries it out.

Whether a partition carries out the purge now or after a restart, it deletes only the messages below that offset. Sends
wait while the purge is journaled and carried out. If the disk refuses it, the partition accepts messages again, in a
new segment that the purge does not touch (``catalog/partitions.py``).
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager

from courser.broker.partition.partition import Partition
from courser.broker.partition.partition_registry import OpenTopic, PartitionRegistry
from courser.broker.partition.peers import Peers
from courser.catalog import changes
from courser.catalog.entities import PurgedTopic, Stream, Topic
from courser.catalog.partitions import is_behind, leave_behind
from courser.catalog.state import CatalogState
from courser.errors import CommandRejected, CourserError, ErrorCode, PartitionReadOnly, StorageFailure
from courser.storage.partition_log import PartitionLog

_log = logging.getLogger(__name__)

AnyPurge = changes.TopicPurge | changes.StreamPurge


@asynccontextmanager
async def prepared_purge(
    registry: PartitionRegistry,
    state: CatalogState,
    change: AnyPurge,
    end_of: Callable[[PartitionLog], int],
    peers: Peers | None = None,
) -> AsyncIterator[AnyPurge]:
    """Hold the writes of all partitions of a purge, and yield the change with their ends.

    They are those that the change names, if it names any; otherwise ``end_of`` knows them. Partitions that still miss
    the purge at the end of the block are prepared to accept messages before it runs.

    Raises:
        CommandRejected: a partition does not reach up to its end for ``end_of``, or another process is away.
    """
    topics = purged_topics(state, change)
    opened = [(topic, registry.topics.get((change.stream_id, topic.topic_id))) for topic in topics]
    async with AsyncExitStack() as stack:
        for _, found in opened:
            for partition in found.partitions if found is not None else ():
                await stack.enter_async_context(partition.held_writes())
        held = {} if peers is None else await stack.enter_async_context(peers.held_writes(change))
        rows = [held.get(topic.topic_id) or _row(state, change, topic, found, end_of) for topic, found in opened]
        try:
            if isinstance(change, changes.TopicPurge):
                yield changes.TopicPurge(
                    change.stream_id, change.topic_id, *((rows[0].count, rows[0].ends) if rows else ())
                )
            else:
                yield changes.StreamPurge(change.stream_id, tuple(rows))
        finally:
            for (topic, found), row in zip(opened, rows, strict=True):
                for partition, end in zip(found.partitions if found is not None else (), row.ends, strict=False):
                    if partition.log.failure is None and is_behind(partition.log, topic):
                        leave_behind(partition.log, end)


def purged_topics(state: CatalogState, change: AnyPurge) -> list[Topic]:
    """The topics that a purge concerns."""
    stream = state.streams.get(change.stream_id)
    topics = stream.topics if stream is not None else {}
    if isinstance(change, changes.StreamPurge):
        return list(topics.values())
    return [topics[change.topic_id]] if change.topic_id in topics else []


def _row(
    state: CatalogState,
    change: AnyPurge,
    topic: Topic,
    opened: OpenTopic | None,
    end_of: Callable[[PartitionLog], int],
) -> PurgedTopic:
    logs = [partition.log for partition in opened.partitions] if opened is not None else []
    # Rebuilt metadata may not know how often a topic was purged, but its partitions do.
    count = max([topic.purge_count, *(log.epoch for log in logs)]) + 1
    ends = tuple(map(end_of, logs))
    if wanted := _wanted_ends(change, topic.topic_id):
        if any(end < wanted_end for end, wanted_end in zip(ends, wanted, strict=False)):
            raise CommandRejected(ErrorCode.NOT_ARCHIVED, "what is to be purged is not archived any more")
        # They were found out some time ago, and a purge that was journaled since may have been refused by the disk.
        ends = tuple(max(end, state.purge_end(topic, number)) for number, end in enumerate(wanted))
    return PurgedTopic(topic.topic_id, count, ends)


def _wanted_ends(change: AnyPurge, topic_id: int) -> tuple[int, ...]:
    if isinstance(change, changes.TopicPurge):
        return change.ends
    return next((row.ends for row in change.topics if row.topic_id == topic_id), ())


async def purge_topics(
    registry: PartitionRegistry, state: CatalogState, places: Iterable[tuple[Stream, Topic]], *, is_held: bool = False
) -> None:
    """Purge every partition that missed the last purge of its topic. May be repeated.

    ``is_held``: called inside ``prepared_purge``, which holds the writes.

    Raises:
        StorageFailure: a partition could not be purged now and stays behind. The others are purged.
        PartitionReadOnly: a partition could not be purged and is read-only until a restart. The others are purged.
    """
    purges = []
    for stream, topic in places:
        opened = registry.topics.get((stream.stream_id, topic.topic_id))
        if opened is not None:
            opened.room = 0
            purges += [
                _purge(registry, opened, partition, topic.purge_count, state.purge_end(topic, number), is_held=is_held)
                for number, partition in enumerate(opened.partitions)
                if is_behind(partition.log, topic)
            ]
    results = await asyncio.gather(*purges, return_exceptions=True)
    errors = [result for result in results if result is not None]
    if errors:
        # A failure that can be retried is raised before others.
        raise next((error for error in errors if isinstance(error, StorageFailure)), errors[0])


async def _purge(
    registry: PartitionRegistry, topic: OpenTopic, partition: Partition, epoch: int, end_offset: int, *, is_held: bool
) -> None:
    log = partition.log
    before = log.segments
    try:
        await (partition.purge_held if is_held else partition.purge)(epoch, end_offset)
    except CourserError as error:
        _log.error("purge failed partition=%s reason=%s", log.directory, error)
        if log.failure is None:
            raise
        raise PartitionReadOnly(log.directory, log.failure) from error
    if gone := [segment for segment in before if segment not in log.segments and segment.message_count]:
        registry.note_deletion(topic, partition, gone, "purged")
