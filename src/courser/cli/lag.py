"""The lag of consumer groups: messages that are stored but not committed yet."""

import asyncio

from courser.api.replies import PartitionBounds
from courser.cli.bounds import bounds_by_partition
from courser.cli.naming import TopicPath
from courser.cli.records import Field, Record
from courser.client.client import Client
from courser.client.group_reset import count_messages
from courser.errors import NotFound
from courser.model.identifiers import Identifier

GROUP_LAG_FIELDS = (
    Field("partition_id", "partition", is_number=True),
    Field("stored_offset", "stored", is_number=True),
    Field("next_offset", "next", is_number=True),
    Field("lag", is_number=True),
)


async def group_lags(client: Client, place: TopicPath, group: Identifier) -> list[Record]:
    """For each partition: what the group has committed, where the partition ends, and what lies between."""
    bounds = await bounds_by_partition(client, place)
    return await asyncio.gather(*(_lag_record(client, place, group, *partition) for partition in bounds.items()))


async def _lag_record(
    client: Client, place: TopicPath, group: Identifier, partition_id: int, bounds: PartitionBounds | None
) -> Record:
    """Of one partition; nothing is known of one that is offline."""
    stored = await _stored_offset(client, place, group, partition_id) if bounds is not None else None
    return {
        "partition_id": partition_id,
        "stored_offset": stored,
        "next_offset": bounds.next_offset if bounds is not None else None,
        "lag": await lag_of(client, place, bounds, stored) if bounds is not None else None,
    }


async def lag_of(client: Client, place: TopicPath, bounds: PartitionBounds, stored_offset: int | None) -> int:
    """The number of messages of a partition after the stored offset.

    Messages that retention deleted are not lag, nor are offsets that were never used: a power cut or a restored backup
    leaves a gap in the offsets, and a group that has read everything would seem to lag forever.
    """
    first, end = bounds.first_offset, bounds.next_offset
    position = first if stored_offset is None else max(stored_offset + 1, first)
    return await count_messages(client, place.names, bounds, position, end)


async def _stored_offset(client: Client, place: TopicPath, group: Identifier, partition_id: int) -> int | None:
    try:
        return (await client.get_consumer_offset(*place.names, partition_id, group=group)).stored_offset
    except NotFound:
        return None


async def max_lag(client: Client, place: TopicPath, groups: list[int]) -> int | None:
    """Of the group that is furthest behind, over all partitions that are not offline; None if there are no groups."""
    lags = await asyncio.gather(*(group_lags(client, place, group) for group in groups))
    totals = [sum(lag for record in of_group if isinstance(lag := record["lag"], int)) for of_group in lags]
    return max(totals, default=None)
