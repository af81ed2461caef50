"""How much a micro-batch takes: limits in messages and bytes, shared out in proportion to what waits in a partition."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from courser.spark.errors import DataLost, beyond_the_head, partition_gone, retention_overtook
from courser.spark.offsets import Progress
from courser.spark.topics import Bounds, TopicFacts


@dataclass(frozen=True, slots=True)
class Limits:
    """None: no limit."""

    count: int | None = None
    size: int | None = None


@dataclass(frozen=True, slots=True)
class Reconciled:
    """Progress made to fit what is there now, and what was lost thereby."""

    progress: Progress
    losses: tuple[DataLost, ...]


def reconcile(progress: Progress, facts: TopicFacts, topic: str) -> Reconciled:
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


def admit(progress: Progress, heads: Mapping[int, int], bounds: Mapping[int, Bounds], limits: Limits) -> Progress:
    """How far the next micro-batch goes: to the heads, or as far as the limits allow.

    Each partition gets a share of the limit as large as its share of what waits; one that has something gets a message
    at least, so that none starves and a message larger than the limit does not stop the query.
    """
    waiting = {partition: max(heads.get(partition, 0) - start, 0) for partition, start in progress.next.items()}
    sizes = {partition: count * bounds[partition].message_size for partition, count in waiting.items() if count}
    share = 1.0
    if limits.count is not None and (total := sum(waiting.values())) > limits.count:
        share = limits.count / total
    if limits.size is not None and (size := sum(sizes.values())) > limits.size:
        share = min(share, limits.size / size)
    following = {partition: start + _part(waiting[partition], share) for partition, start in progress.next.items()}
    if limits.count is not None:
        following = _not_over(progress.next, following, limits.count)
    return replace(progress, next=following)


def _part(count: int, share: float) -> int:
    return count if share >= 1.0 else min(max(int(count * share), 1), count)


def _not_over(start: Mapping[int, int], end: dict[int, int], limit: int) -> dict[int, int]:
    """The minimum of one message each may pass the limit: then the last partitions wait for the next micro-batch."""
    left = limit
    for partition in sorted(end, key=lambda partition: start[partition] - end[partition]):
        end[partition] = start[partition] + min(end[partition] - start[partition], left)
        left -= end[partition] - start[partition]
    return end
