"""The lag of consumer groups: messages that are stored but not committed yet, and the age of the oldest of them."""

import asyncio

from courser.api.replies import PartitionBounds
from courser.cli.fields import Record, fields
from courser.cli.naming import TopicPath
from courser.client.client import Client
from courser.client.group_reset import count_messages
from courser.model.identifiers import Identifier
from courser.model.quantities import format_duration

_SECOND = 1_000_000


def as_age(value: object) -> str:
    """Seconds as a duration, to the second."""
    if not isinstance(value, int | float):
        return "-"
    return format_duration(int(value) * _SECOND) if value >= 1 or not value else f"{value:.3f}s"


GROUP_LAG_FIELDS = fields(
    "partition_id=partition#, stored_offset=stored#, next_offset=next#, lag#, lag_seconds=behind#/1", lag_seconds=as_age
)


async def group_lags(client: Client, place: TopicPath, group: Identifier) -> list[Record]:
    """For each partition: what the group has committed, where the partition ends, and what lies between."""
    return [
        {
            "partition_id": lag.partition_id,
            "stored_offset": lag.stored_offset,
            "next_offset": lag.next_offset,
            "lag": lag.message_count,
            "lag_seconds": None if lag.age is None else lag.age / _SECOND,
        }
        for lag in await client.get_consumer_group_lag(*place.names, group)
    ]


async def lag_of(client: Client, place: TopicPath, bounds: PartitionBounds, stored_offset: int | None) -> int:
    """The number of messages of a partition after the stored offset of a single consumer.

    Messages that retention deleted are not lag, nor are offsets that were never used: a power cut or a restored backup
    leaves a gap in the offsets, and a consumer that has read everything would seem to lag forever.
    """
    first, end = bounds.first_offset, bounds.next_offset
    position = first if stored_offset is None else max(stored_offset + 1, first)
    return await count_messages(client, place.names, bounds, position, end)


def total_lag(lags: list[Record]) -> tuple[int, float]:
    """Messages and seconds over all partitions that are not offline: the sum, and the largest age."""
    counts = [lag for record in lags if isinstance(lag := record["lag"], int)]
    ages = [age for record in lags if isinstance(age := record["lag_seconds"], float)]
    return sum(counts), max(ages, default=0.0)


async def max_lag(client: Client, place: TopicPath, groups: list[int]) -> int | None:
    """Of the group that is furthest behind, over all partitions that are not offline; None if there are no groups."""
    lags = await asyncio.gather(*(group_lags(client, place, group) for group in groups))
    return max((total_lag(of_group)[0] for of_group in lags), default=None)
