"""The lag of consumer groups: messages that are stored but not committed yet."""

import asyncio

from courser.api.replies import PartitionBounds
from courser.cli.naming import TopicPath
from courser.cli.records import Field, Record
from courser.client.client import Client
from courser.errors import NotAllowed, NotFound
from courser.model.identifiers import Identifier

GROUP_LAG_FIELDS = (
    Field("partition_id", "partition", is_number=True),
    Field("stored_offset", "stored", is_number=True),
    Field("next_offset", "next", is_number=True),
    Field("lag", is_number=True),
)


async def group_lags(client: Client, place: TopicPath, group: Identifier) -> list[Record]:
    """For each partition: the committed offset of the group, the end of the partition, and the lag."""
    bounds = await client.get_partition_bounds(*place.names)
    stored = await asyncio.gather(
        *(_stored_offset(client, place, group, partition.partition_id) for partition in bounds.partitions)
    )
    lags = await asyncio.gather(
        *(lag_of(client, place, partition, offset) for partition, offset in zip(bounds.partitions, stored, strict=True))
    )
    return [
        {
            "partition_id": partition.partition_id,
            "stored_offset": offset,
            "next_offset": partition.next_offset,
            "lag": lag,
        }
        for partition, offset, lag in zip(bounds.partitions, stored, lags, strict=True)
    ]


async def lag_of(client: Client, place: TopicPath, bounds: PartitionBounds, stored_offset: int | None) -> int:
    """The number of messages of a partition after the stored offset.

    Messages that retention deleted are not lag, nor are offsets that were never used: a power cut or a restored backup
    leaves a gap in the offsets, and a group that has read everything would seem to lag forever.
    """
    first, end = bounds.first_offset, bounds.next_offset
    position = first if stored_offset is None else max(stored_offset + 1, first)
    if end - first == bounds.message_count:
        return end - position
    try:
        segments = (await client.get_segments(*place.names, bounds.partition_id)).segments
    except NotAllowed:  # a user who may only poll gets the upper bound
        return end - position
    return sum(max(0, min(row.next_offset, end) - max(row.first_offset, position)) for row in segments)


async def _stored_offset(client: Client, place: TopicPath, group: Identifier, partition_id: int) -> int | None:
    try:
        return (await client.get_consumer_offset(*place.names, partition_id, group=group)).stored_offset
    except NotFound:
        return None


async def max_lag(client: Client, place: TopicPath, groups: list[int]) -> int | None:
    """The largest lag of any group, over all partitions; None if there are no groups."""
    lags = await asyncio.gather(*(group_lags(client, place, group) for group in groups))
    totals = [sum(int(str(record["lag"])) for record in of_group) for of_group in lags]
    return max(totals, default=None)
