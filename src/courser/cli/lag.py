"""``courser lag``: how far consumer groups are behind, for people and for scripts.

Lag is messages that are stored but not committed yet, and the age of the oldest of them.
"""

import asyncio

import click

from courser.api.replies import PartitionBounds
from courser.cli.connecting import ask_server
from courser.cli.failures import Failure
from courser.cli.fields import Field, Record, fields
from courser.cli.naming import TopicPath, any_place_argument, identifier, sought
from courser.cli.options import option
from courser.cli.output import emit_list
from courser.cli.quantity_words import DURATION
from courser.cli.server_options import server_command
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
    """The lag of the group that is furthest behind, without partitions that are offline; None without groups."""
    lags = await asyncio.gather(*(group_lags(client, place, group) for group in groups))
    return max((total_lag(of_group)[0] for of_group in lags), default=None)


# --- the command ---

_PLACE_FIELDS = fields("stream, topic, group")
_LAG_FIELDS = fields("lag#, lag_seconds=behind#", lag_seconds=as_age)
_GROUP_FIELDS = (*_PLACE_FIELDS, Field("members", is_number=True), *_LAG_FIELDS)
_PARTITION_FIELDS = (
    *_PLACE_FIELDS,
    *fields("partition_id=partition#, stored_offset=stored#/2, next_offset=next#/1"),
    *_LAG_FIELDS,
)


@server_command(
    "lag",
    "courser lag",
    "courser lag demo/orders --group billing --partitions",
    "courser lag demo --max 1000 --max-age 5m || echo behind",
    "courser lag -o jsonl",
)
@any_place_argument()
@option("-g, --group GROUP", "Only this consumer group.")
@option("--partitions", "Show each partition.", "with_partitions")
@option("--max COUNT", "Fail if a group is more messages behind.", "count_max", type=click.IntRange(min=0))
@option("--max-age DURATION", "Fail if a group is behind for longer.", "age_max", type=DURATION)
def lag_command(
    *,
    place: TopicPath | None,
    group: str | None,
    with_partitions: bool,
    count_max: int | None,
    age_max: int | None,
    output: str,
) -> None:
    """Show how far consumer groups are behind: of all topics, of a STREAM, or of a STREAM/TOPIC.

    Lag is the number of messages that a group has not committed yet, and the age of the oldest of them. With --max or
    --max-age, the exit code is 1 if a group exceeds the limit.
    """
    wanted = None if group is None else identifier(group)
    records = ask_server(lambda client: _groups(client, place, wanted), place, sought(group=wanted))
    rows = [row for record in records for row in _partition_rows(record)] if with_partitions else records
    fields = _PARTITION_FIELDS if with_partitions else _GROUP_FIELDS
    shown = [{field.key: row[field.key] for field in fields} for row in rows]
    emit_list(fields, shown, output, empty="no consumer groups")
    _check(records, count_max, age_max)


async def _groups(client: Client, place: TopicPath | None, wanted: Identifier | None) -> list[Record]:
    records: list[Record] = []
    for topic in await _topics(client, place):
        groups = await client.get_consumer_groups(*topic.names)
        if wanted is not None and place is not None and place.topic is not None:
            # If it is missing, the server says so.
            groups = [(await client.get_consumer_group(*topic.names, wanted)).group]
        for group in groups:
            if wanted in (None, group.name, group.group_id):
                lags = await group_lags(client, topic, group.group_id)
                count, age = total_lag(lags)
                names = {"stream": topic.stream, "topic": topic.topic, "group": group.name}
                facts = {"members": group.member_count, "lag": count, "lag_seconds": age, "partitions": lags}
                records.append({**names, **facts})
    return records


async def _topics(client: Client, place: TopicPath | None) -> list[TopicPath]:
    if place is not None and place.topic is not None:
        return [place]
    streams = await client.get_streams() if place is None else [(await client.get_stream(place.stream)).stream]
    return [
        TopicPath(stream.name, topic.name) for stream in streams for topic in await client.get_topics(stream.stream_id)
    ]


def _partition_rows(record: Record) -> list[Record]:
    lags = record["partitions"]
    assert isinstance(lags, list)
    return [{**record, **lag} for lag in lags]


def _check(records: list[Record], count_max: int | None, age_max: int | None) -> None:
    for record in records:
        name = f'group "{record["group"]}" of "{record["stream"]}/{record["topic"]}"'
        count, age = record["lag"], record["lag_seconds"]
        assert isinstance(count, int)
        assert isinstance(age, float)
        hint = "add consumers, or look for a handler that fails: courser lag --partitions"
        if count_max is not None and count > count_max:
            raise Failure(f"{name} is {count} messages behind, more than {count_max}", hint)
        if age_max is not None and age * _SECOND > age_max:
            raise Failure(f"{name} is {as_age(age)} behind, more than {format_duration(age_max)}", hint)
