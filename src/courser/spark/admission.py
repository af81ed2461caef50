"""Decides how much a micro-batch reads: limits in messages and bytes, shared in proportion to partition backlogs."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from courser.spark.errors import DataLost, beyond_the_head, partition_gone, retention_overtook
from courser.spark.offsets import QueryOffsets, TopicOffsets
from courser.spark.topic_metadata import Bounds, TopicFacts


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """Limits of a micro-batch over all topics. None: no limit."""

    count: int | None = None
    size: int | None = None


@dataclass(frozen=True, slots=True)
class Reconciled:
    """Offsets adjusted to what exists now, and the losses that this revealed."""

    progress: TopicOffsets
    losses: tuple[DataLost, ...]


def reconcile(progress: TopicOffsets, facts: TopicFacts, topic: str) -> Reconciled:
    """Compare the offsets of a query with what exists. New partitions start at 0, never at their end."""
    following: dict[int, int] = {}
    lost = dict(progress.lost)
    losses: list[DataLost] = []
    for partition, bounds in facts.partitions.items():
        wanted = progress.next.get(partition, 0)
        following[partition] = wanted
        if wanted < bounds.first:
            losses.append(retention_overtook(topic, partition, wanted, bounds.first))
        elif wanted > bounds.next:
            losses.append(beyond_the_head(topic, partition, wanted, bounds.next))
        else:
            continue
        following[partition] = losses[-1].earliest
        lost[partition] = lost.get(partition, 0) + losses[-1].lost
    for partition, wanted in progress.next.items():
        if partition not in facts.partitions:
            losses.append(partition_gone(topic, partition, wanted))
    return Reconciled(replace(progress, next=following, lost=lost), tuple(losses))


TopicPartition = tuple[str, int]
"""Topic name and partition number."""


def waiting_messages(progress: QueryOffsets, heads: Mapping[str, TopicFacts]) -> dict[TopicPartition, int]:
    """The backlog of each partition in messages. ``heads``: how far the query may read."""
    return {
        (topic, partition): heads[topic]
        .partitions[partition]
        .count_between(start, heads[topic].partitions[partition].next)
        if partition in heads[topic].partitions
        else 0
        for topic, reached in progress.items()
        for partition, start in reached.next.items()
    }


def admit(
    progress: QueryOffsets, heads: Mapping[str, TopicFacts], facts: Mapping[str, TopicFacts], limits: BatchLimits
) -> QueryOffsets:
    """Where the next micro-batch ends: at the heads, or as far as the limits allow.

    Each partition gets a share of the limit in proportion to its backlog. A partition with any backlog gets at least
    one message, so that none starves and a message larger than the limit does not block the query. Gaps in the
    numbering are passed at once: they have no messages, and may be longer than what any limit allows.
    """
    waiting = waiting_messages(progress, heads)
    share = 1.0
    if limits.count is not None and (total := sum(waiting.values())) > limits.count:
        share = limits.count / total
    if limits.size is not None and (size := _size(waiting, facts)) > limits.size:
        share = min(share, limits.size / size)
    taken = {place: _part(count, share) for place, count in waiting.items()}
    if limits.count is not None:
        taken = _not_over(taken, limits.count, sum(sum(reached.next.values()) for reached in progress.values()))
    ends = {
        topic: {
            partition: _end(start, heads[topic].partitions.get(partition), taken[topic, partition])
            for partition, start in reached.next.items()
        }
        for topic, reached in progress.items()
    }
    return {topic: replace(reached, next=ends[topic]) for topic, reached in progress.items()}


def _end(start: int, head: Bounds | None, count: int) -> int:
    """Where so many messages of a partition end."""
    if head is None or start >= head.next:
        return start
    if count == head.count_between(start, head.next):
        # Also the offsets behind its last message.
        return head.next
    return head.end_of(start, count) if count else start


def _size(waiting: Mapping[TopicPartition, int], facts: Mapping[str, TopicFacts]) -> float:
    return sum(
        facts[topic].partitions[partition].size_of(count) for (topic, partition), count in waiting.items() if count
    )


def _part(count: int, share: float) -> int:
    return count if share >= 1.0 else min(max(int(count * share), 1), count)


def _not_over(taken: dict[TopicPartition, int], limit: int, read_count: int) -> dict[TopicPartition, int]:
    """Cut the largest shares if the minimum of one message per partition exceeds the limit.

    If the limit is below one message per partition, partitions take turns; the number of messages read so far decides
    whose turn it is.
    """
    over = sum(taken.values()) - limit
    if over <= 0:
        return taken
    busy = [place for place, count in taken.items() if count]
    if len(busy) > limit:
        first = read_count % len(busy)
        chosen = set((busy[first:] + busy[:first])[:limit])
        return {place: int(place in chosen) for place in taken}
    allowed = dict(taken)
    for place in sorted(busy, key=lambda place: -taken[place]):
        cut = min(over, taken[place] - 1)
        allowed[place] -= cut
        over -= cut
    return allowed
