"""What the cleaner will delete by a time: the same plan, with the facts of now and the clock of then."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from courser.api.operating_replies import PlannedDeletion
from courser.broker.partition.partition import Partition
from courser.broker.partition.partition_registry import OpenTopic, PartitionRegistry
from courser.broker.partition.waiting import Steps
from courser.broker.upkeep.retention import (
    DeletionReason,
    Limits,
    RetainedSegment,
    Retention,
    Roll,
    Trim,
    plan,
    retained_segments,
)


class Foreseen(NamedTuple):
    """Segments of a partition that will be deleted for one reason, oldest first."""

    partition_id: int
    reason: DeletionReason
    segments: tuple[RetainedSegment, ...]
    due_at: int
    """When the first of them is due."""


def foresee(
    partitions: Sequence[Sequence[RetainedSegment]], limits: Limits, now: int, until: int
) -> Iterator[Foreseen]:
    """What ``plan`` deletes until a time, if no messages are added. Times are as ``plan`` has them."""
    kept = [list(segments) for segments in partitions]
    while True:
        steps = plan(kept, limits, until)
        for step in steps:
            segments = kept[step.partition_id]
            if isinstance(step, Roll):
                segments[-1] = segments[-1]._replace(is_sealed=True)
                continue
            gone = tuple(segment for segment in segments if segment.end_offset <= step.before_offset)
            del segments[: len(gone)]
            if gone:
                yield Foreseen(step.partition_id, step.reason, gone, _due_at(step, gone[0], limits, now))
        if not any(isinstance(step, Roll) for step in steps):
            return


def _due_at(step: Trim, first: RetainedSegment, limits: Limits, now: int) -> int:
    """Segments above a size are due now; others when their newest message expires."""
    expiry = {DeletionReason.EXPIRED: limits.expiry, DeletionReason.LOCAL: limits.local_expiry}.get(step.reason)
    return now if expiry is None else max(first.last_timestamp + expiry, now)


async def planned_deletions(
    retention: Retention, registry: PartitionRegistry, until: int, is_wanted: Callable[[int, int], bool]
) -> list[PlannedDeletion]:
    """What will be deleted from the topics that are wanted, which are asked for by stream and topic id."""
    rows: list[PlannedDeletion] = []
    topics = [topic for key, topic in sorted(registry.topics.items()) if is_wanted(*key)]
    walk = Steps()
    for topic in topics:
        await walk.take()
        limits, now = retention.limits_of(topic), retention.expiry_time()
        if limits != Limits():
            partitions = tuple(topic.partitions)
            facts = await retained_segments(partitions, now, walk)
            merged: dict[tuple[int, DeletionReason], list[Foreseen]] = {}
            for found in foresee(facts, limits, now, max(until, now)):
                merged.setdefault((found.partition_id, found.reason), []).append(found)
            found_rows = (
                _row(retention, topic, partitions[partition_id], reason, parts)
                for (partition_id, reason), parts in sorted(merged.items(), key=lambda item: item[0][0])
            )
            rows += [row for row in found_rows if row is not None]
    return rows


def _row(
    retention: Retention, topic: OpenTopic, partition: Partition, reason: DeletionReason, parts: Sequence[Foreseen]
) -> PlannedDeletion | None:
    """None if these segments were deleted since they were looked at."""
    ends = {segment.end_offset for part in parts for segment in part.segments}
    log, guard = partition.log, retention.guard
    segments = [segment for segment in log.segments if segment.message_count and segment.end_offset in ends]
    if not segments:
        return None
    return PlannedDeletion(
        topic.stream_id,
        topic.topic_id,
        log.identity.partition_id,
        reason.value,
        segments[0].base_offset,
        segments[-1].end_offset,
        len(segments),
        sum(segment.message_count for segment in segments),
        sum(segment.size for segment in segments),
        min(part.due_at for part in parts),
        guard is not None and all(guard.is_archived(log, segment) for segment in segments),
    )
