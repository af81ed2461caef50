"""Records of topics and partitions, shared by several commands."""

import asyncio
from collections.abc import Mapping

from msgspec.structs import asdict

from courser.api.replies import (
    Damage,
    Deletion,
    PartitionBounds,
    PartitionInfo,
    TopicDurability,
    TopicInfo,
    TopicMaintenance,
)
from courser.cli.columns import columns_of
from courser.cli.fields import Field, Record, fields, plain
from courser.cli.naming import TopicPath
from courser.cli.output import Section
from courser.client.client import Client
from courser.errors import ErrorCode, NotFound, ServerFailure
from courser.model.durability import Durability
from courser.model.quantities import NEVER, format_byte_size, format_duration
from courser.model.topic_options import TOPIC_OPTIONS


def as_expiry(value: object) -> str:
    """How long messages are kept."""
    return format_duration(value) if isinstance(value, int) else "never"


def as_limit(value: object) -> str:
    """How large a topic may get."""
    return format_byte_size(value) if isinstance(value, int) else "unlimited"


def as_first_offset(value: object) -> str:
    """Only of a partition that is offline nothing is known."""
    return "offline" if value is None else str(value)


_REQUESTED = ("durability", "consumer_offset_durability")
"""Options of which a topic shows both what was requested and what the server does."""
_AS_TEXT = {"duration": as_expiry, "size": as_limit}

TOPIC_FIELDS = fields(
    "topic_id=id#, name, partition_count=partitions#, message_count=messages#, size#, message_expiry=expiry/2, "
    "max_topic_size=limit/3, created_at=created/4",
    message_expiry=as_expiry,
    max_topic_size=as_limit,
)
SETTING_FIELDS = (
    *(
        Field(option.name, text=_AS_TEXT.get(option.kind.name, plain))
        for option in TOPIC_OPTIONS.values()
        if option.has_effect and option.name not in (*_REQUESTED, *(field.key for field in TOPIC_FIELDS))
    ),
    *fields("durability, power_cut_loses, consumer_offset_durability"),
    *(Field(f"requested_{name}") for name in _REQUESTED),
)
PARTITION_FIELDS = fields(
    "partition_id=partition#, first_offset=first#, next_offset=next#, message_count=messages#, size#, "
    "segment_count=segments#/1, created_at=created/2",
    first_offset=as_first_offset,
)

MAINTENANCE_SECTIONS = (Section("deletions", columns_of(Deletion)), Section("damages", columns_of(Damage)))


def maintenance_record(maintenance: TopicMaintenance, partition_id: int | None = None) -> Record:
    """What was deleted and what is damaged, in a topic or in one of its partitions."""
    rows = {
        "deletions": map(asdict, maintenance.deletions),
        "damages": map(asdict, maintenance.damages),
    }
    return {
        name: [row for row in found if partition_id is None or row["partition_id"] == partition_id]
        for name, found in rows.items()
    }


def topic_record(topic: TopicInfo) -> Record:
    """A topic with its effective settings; no expiry and no limit are None.

    What a client requested as durability is in Iggy's words, and need not be what this server does.
    """
    settings: dict[str, object] = {"replication_factor": topic.effective.replication_factor}
    for option in TOPIC_OPTIONS.values():
        if option.name in _REQUESTED:
            settings[f"requested_{option.name}"] = getattr(topic.options, option.field)
        else:
            value = getattr(topic.effective, option.field)
            word = option.kind.text(value) if option.kind.words and value is not None else value
            settings[option.name] = None if value == NEVER else word
    own = {
        "topic_id": topic.topic_id,
        "name": topic.name,
        "created_at": topic.created_at,
        "partition_count": topic.partition_count,
        "message_count": topic.message_count,
        "size": topic.size,
    }
    return {**own, **settings, "set_for_this_topic": _set_names(topic)}


def durability_record(durability: TopicDurability) -> Record:
    """The durability in effect, in Courser's words."""
    return {
        "durability": durability.level,
        "power_cut_loses": _loss(durability),
        "consumer_offset_durability": durability.offset_level,
    }


def _loss(durability: TopicDurability) -> str:
    if durability.level != Durability.BOUNDED.value:
        return "nothing" if durability.level == Durability.SYNCED.value else "what the kernel had not written back"
    count, size, interval = durability.message_count_max, durability.size_max, durability.interval
    bounds = [
        *([] if count is None else [f"{count} messages"]),
        *([] if size is None else [format_byte_size(size)]),
        *([] if interval is None else [f"what was sent in {format_duration(2 * interval)}"]),
    ]
    return f"per partition at most {' or '.join(bounds)}"


def _set_names(topic: TopicInfo) -> list[str]:
    return [name for name, value in asdict(topic.options).items() if value is not None]


def partition_records(partitions: list[PartitionInfo], bounds: Mapping[int, PartitionBounds | None]) -> list[Record]:
    """Partitions with the offsets that they hold now: ``[first_offset, next_offset)``. Of an offline one, None."""
    records: list[Record] = []
    for partition in partitions:
        if partition.partition_id not in bounds:
            # Made between the two questions.
            continue
        held = bounds[partition.partition_id]
        record = {
            "partition_id": partition.partition_id,
            "first_offset": None if held is None else held.first_offset,
            "next_offset": None if held is None else held.next_offset,
            "message_count": None if held is None else partition.message_count,
            "size": None if held is None else partition.size,
            "segment_count": None if held is None else partition.segment_count,
            "created_at": partition.created_at,
            "is_offline": held is None,
        }
        records.append(record)
    return records


# --- what partitions hold ------------------------------------------------------------------------------

_NOBODY = "courser-cli"
"""A consumer that stores nothing: to ask for its offset tells whether a partition can be read."""


async def bounds_by_partition(client: Client, place: TopicPath) -> dict[int, PartitionBounds | None]:
    """The bounds of every partition, by number; None for one that is offline.

    The server answers for all partitions of a topic or for none, so that no reader passes over one that is offline.
    Who only looks wants to see the others: they are then asked for one by one.
    """
    try:
        bounds = (await client.get_partition_bounds(*place.names)).partitions
    except ServerFailure as failure:
        if failure.code is not ErrorCode.PARTITION_OFFLINE:
            raise
    else:
        return {entry.partition_id: entry for entry in bounds}
    partitions = (await client.get_topic(*place.names)).partitions
    found = await asyncio.gather(*(_bounds(client, place, partition) for partition in partitions))
    return {partition.partition_id: entry for partition, entry in zip(partitions, found, strict=True)}


async def _bounds(client: Client, place: TopicPath, partition: PartitionInfo) -> PartitionBounds | None:
    try:
        await client.get_consumer_offset(*place.names, partition.partition_id, consumer=_NOBODY)
    except NotFound:
        pass
    except ServerFailure as failure:
        if failure.code is not ErrorCode.PARTITION_OFFLINE:
            raise
        return None
    segments = (await client.get_segments(*place.names, partition.partition_id)).segments
    if segments:
        first, end = segments[0].first_offset, segments[-1].next_offset
    else:
        # Offset 0 is also what the server tells of a partition that never had a message.
        first = end = partition.current_offset + 1 if partition.current_offset else 0
    return PartitionBounds(partition.partition_id, first, end, partition.size, partition.message_count)
