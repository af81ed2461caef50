"""How much a micro-batch takes: limits in messages and bytes, shared out in proportion to what waits in a partition."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from courser.spark.errors import DataLost, beyond_the_head, partition_gone, retention_overtook
from courser.spark.offsets import Progress, TopicProgress
from courser.spark.topics import TopicFacts


@dataclass(frozen=True, slots=True)
class Limits:
    """Of all topics together. None: no limit."""

    count: int | None = None
    size: int | None = None


@dataclass(frozen=True, slots=True)
class Reconciled:
    """Progress made to fit what is there now, and what was lost thereby."""

    progress: TopicProgress
    losses: tuple[DataLost, ...]


def reconcile(progress: TopicProgress, facts: TopicFacts, topic: str) -> Reconciled:
    """Compare how far a query got with what is there. New partitions begin at 0, never at their end."""
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
"""A topic and a partition."""


def waiting_messages(progress: Progress, heads: Mapping[str, TopicFacts]) -> dict[TopicPartition, int]:
    """How many messages wait in each partition. ``heads``: where reading may go to."""
    return {
        (topic, partition): max(heads[topic].partitions[partition].next - start, 0)
        if partition in heads[topic].partitions
        else 0
        for topic, reached in progress.items()
        for partition, start in reached.next.items()
    }


def admit(
    progress: Progress, heads: Mapping[str, TopicFacts], facts: Mapping[str, TopicFacts], limits: Limits
) -> Progress:
    """How far the next micro-batch goes: to the heads, or as far as the limits allow.

    Each partition gets a share of the limit as large as its share of what waits in all topics; one that has something
    gets a message at least, so that none starves and a message larger than the limit does not stop the query.
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
    return {
        topic: replace(reached, next={part: start + taken[topic, part] for part, start in reached.next.items()})
        for topic, reached in progress.items()
    }


def _size(waiting: Mapping[TopicPartition, int], facts: Mapping[str, TopicFacts]) -> float:
    return sum(
        count * facts[topic].partitions[partition].message_size
        for (topic, partition), count in waiting.items()
        if count
    )


def _part(count: int, share: float) -> int:
    return count if share >= 1.0 else min(max(int(count * share), 1), count)


def _not_over(taken: dict[TopicPartition, int], limit: int, read_count: int) -> dict[TopicPartition, int]:
    """The minimum of one message each may pass the limit: then the largest shares are cut.

    If not even a message each is possible, partitions take turns: what was read so far says whose turn it is.
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
