"""Reset a consumer group: choose where it continues to read, and show what that means before it is done."""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from courser.api import commands as c
from courser.api import replies as r
from courser.client.administration import Administration
from courser.client.asking import place_of
from courser.client.messages import PollingStrategy
from courser.client.messaging import Messaging
from courser.client.starting_point import Start, StartingPoint
from courser.errors import ErrorCode, NotAllowed, NotFound
from courser.model.identifiers import Identifier
from courser.model.messaging import PollingKind


@dataclass(frozen=True, slots=True)
class PartitionReset:
    """What a reset changes in one partition.

    Example:
        await client.create_consumer_group("shop/orders", name="audit", if_not_exists=True)
        plan = await client.reset_consumer_group("shop/orders", consumer_group="audit", to="latest", dry_run=True)
        for partition in plan.partitions:
            print(partition.partition_id, partition.stored_offset, partition.next_offset)
    """

    partition_id: int
    """The number of the partition."""
    stored_offset: int | None
    """The offset that the group had stored; None if it had none, and would start at the first message."""
    next_offset: int
    """Where the group continues to read."""
    reread_count: int
    """Messages that are read again."""
    skipped_count: int
    """Messages that are not read any more."""


@dataclass(frozen=True, slots=True)
class GroupReset:
    """What a reset changes, partition by partition.

    Example:
        await client.create_consumer_group("shop/orders", name="audit", if_not_exists=True)
        plan = await client.reset_consumer_group("shop/orders", consumer_group="audit", to=0, dry_run=True)
        print(plan.reread_count, plan.skipped_count, plan.member_count)
    """

    partitions: tuple[PartitionReset, ...]
    """By number."""
    member_count: int
    """Active members of the group when it was looked at."""
    is_dry_run: bool
    """Whether nothing was changed."""

    @property
    def reread_count(self) -> int:
        """Messages that are read again, over all partitions."""
        return sum(partition.reread_count for partition in self.partitions)

    @property
    def skipped_count(self) -> int:
        """Messages that are not read any more, over all partitions."""
        return sum(partition.skipped_count for partition in self.partitions)


class GroupResets(Administration, Messaging):
    """Resets of consumer groups."""

    async def reset_consumer_group(
        self,
        stream: Identifier,
        topic: Identifier | None = None,
        consumer_group: Identifier = "",
        *,
        to: Start,
        partition_id: int | None = None,
        dry_run: bool = False,
        force: bool = False,
    ) -> GroupReset:
        """Set where a group continues to read, in all partitions at once. Returns what changes in each.

        An offset outside a partition becomes its first or next one. A partition that is reset to offset 0 has no stored
        offset any more: its next reader starts where it would start in a new group, by default at the first message.

        Args:
            stream: Its name or number, or ``"stream/topic"``.
            topic: Its name or number.
            consumer_group: Its name or number.
            to: ``earliest``, ``latest``, an offset, a time (``datetime``), how long ago (``timedelta``), or offsets by
                partition. Partitions that such a mapping leaves out are not changed.
            partition_id: Only this partition; by default all.
            dry_run: Only return what would change.
            force: Remove active members first. Consumers of this client that are still running join again and follow
                the reset. Other SDKs may continue at their own offsets and commit them: restart them.

        Raises:
            InvalidRequest: the group has active members (code ``GROUP_HAS_MEMBERS``), and ``force`` is not set.
            ValueError: ``to`` is an unknown word, or negative.
            TypeError: ``to`` has another type.

        Example:
            await client.create_consumer_group("shop/orders", name="billing", if_not_exists=True)
            plan = await client.reset_consumer_group("shop/orders", consumer_group="billing", to="latest", dry_run=True)
            print(plan.reread_count, plan.skipped_count)
        """
        place = place_of(stream, topic)
        if to == "next" or (isinstance(to, PollingStrategy) and to.kind is PollingKind.NEXT):
            raise ValueError('a group cannot be reset to "next": that is where it already is')
        starting = StartingPoint(self._link, *place, None, to, patient=False)
        details = await self.get_consumer_group(*place, consumer_group)
        bounds = await starting.bounds()
        wanted: Iterable[int] = to if isinstance(to, Mapping) else bounds
        wanted = wanted if partition_id is None else (partition_id,)
        for wanted_id in wanted:
            if wanted_id not in bounds:
                raise NotFound(ErrorCode.PARTITION_NOT_FOUND, f"the topic has no partition {wanted_id}")
        offsets = await starting.offsets(wanted)
        rows = await asyncio.gather(
            *(self._partition_reset(place, consumer_group, bounds[row], offset) for row, offset in offsets.items())
        )
        if not dry_run:
            pairs = tuple((row.partition_id, row.next_offset) for row in rows)
            for begin in range(0, len(pairs), c.POSITION_COUNT_MAX):
                some = pairs[begin : begin + c.POSITION_COUNT_MAX]
                await self._tell(c.ResetGroupOffsets(*place, consumer_group, force, some))
        return GroupReset(tuple(rows), details.group.member_count, dry_run)

    async def _partition_reset(
        self, place: tuple[Identifier, Identifier], group: Identifier, bounds: r.PartitionBounds, offset: int
    ) -> PartitionReset:
        try:
            stored = (await self.get_consumer_offset(*place, bounds.partition_id, group=group)).stored_offset
        except NotFound:
            stored = None
        first, end = bounds.first_offset, bounds.next_offset
        old = first if stored is None else min(max(stored + 1, first), end)
        new = min(max(offset, first), end)
        return PartitionReset(
            bounds.partition_id,
            stored,
            new,
            await count_messages(self, place, bounds, new, old),
            await count_messages(self, place, bounds, old, new),
        )


async def count_messages(
    client: Administration, place: tuple[Identifier, Identifier], bounds: r.PartitionBounds, begin: int, end: int
) -> int:
    """The number of messages of a partition from offset ``begin`` up to but not including ``end``.

    Offsets that were never used do not count: a power cut or a restored backup leaves a gap in the offsets. A user who
    may not list segments gets the upper bound.
    """
    if begin >= end or bounds.next_offset - bounds.first_offset == bounds.message_count:
        return max(end - begin, 0)
    try:
        segments = (await client.get_segments(*place, bounds.partition_id)).segments
    except NotAllowed:
        return end - begin
    return sum(max(0, min(row.next_offset, end) - max(row.first_offset, begin)) for row in segments)
