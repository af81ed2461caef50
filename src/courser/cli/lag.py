"""How far behind consumer groups are: messages that are there and not committed yet."""

import asyncio

from courser.cli.naming import Place
from courser.cli.records import Field, Record
from courser.client.client import Client
from courser.errors import NotFound
from courser.model.identifiers import Identifier

GROUP_LAG_FIELDS = (
    Field("partition_id", "partition", is_number=True),
    Field("stored_offset", "stored", is_number=True),
    Field("next_offset", "next", is_number=True),
    Field("lag", is_number=True),
)


async def group_lags(client: Client, place: Place, group: Identifier) -> list[Record]:
    """For each partition: what the group has committed, where the partition ends, and what lies between."""
    bounds = await client.get_partition_bounds(*place.names)
    stored = await asyncio.gather(
        *(_stored_offset(client, place, group, partition.partition_id) for partition in bounds.partitions)
    )
    return [
        {
            "partition_id": partition.partition_id,
            "stored_offset": offset,
            "next_offset": partition.next_offset,
            "lag": partition.next_offset - _position(offset, partition.first_offset),
        }
        for partition, offset in zip(bounds.partitions, stored, strict=True)
    ]


def _position(stored_offset: int | None, first_offset: int) -> int:
    """Where reading would go on. What retention has deleted is no lag."""
    return first_offset if stored_offset is None else max(stored_offset + 1, first_offset)


async def _stored_offset(client: Client, place: Place, group: Identifier, partition_id: int) -> int | None:
    try:
        return (await client.get_consumer_offset(*place.names, partition_id, group=group)).stored_offset
    except NotFound:
        return None


async def max_lag(client: Client, place: Place, groups: list[int]) -> int | None:
    """Of the group that is furthest behind, over all partitions; None if there are no groups."""
    lags = await asyncio.gather(*(group_lags(client, place, group) for group in groups))
    totals = [sum(int(str(record["lag"])) for record in of_group) for of_group in lags]
    return max(totals, default=None)
