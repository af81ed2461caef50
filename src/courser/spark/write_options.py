"""The options of writes, as values with types. Pickled to every task."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampType,
)

from courser.client.targets import Target
from courser.errors import ErrorCode
from courser.spark.errors import RowRefused
from courser.spark.options import OptionRefused, Use, closest, one_topic, parse_options, target_of

PAYLOAD_NAMES = ("payload", "value")
_BYTES = (BinaryType, StringType)
_COLUMNS: dict[str, tuple[type[DataType], ...]] = {
    "payload": _BYTES,
    "value": _BYTES,
    "key": _BYTES,
    "headers": (MapType, ArrayType),
    "partition": (IntegerType, LongType),
    "id": (BinaryType,),
    "origin_timestamp": (TimestampType,),
    "stream": (StringType,),
    "topic": (StringType,),
}
"""The columns that a write takes, and their types."""
_OF_THE_SERVER = {
    "offset": "the server numbers messages itself",
    "timestamp": "the server stamps the time of the append itself; a creation time goes into origin_timestamp",
    "timestampType": "the server has one kind of time",
}
"""Columns that a read gives and a write cannot take."""

_OF_SPARK = frozenset({"checkpointlocation", "queryname"})
"""Options that Spark takes itself, and hands on all the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """What a write was asked for."""

    target: Target
    stream: str | None
    """For rows without a column ``stream``."""
    topic: str | None
    partitioning: str
    """``key``, ``column`` or ``balanced``."""
    is_exactly_once: bool
    create_partitions: int | None
    """Partitions of topics that do not exist and are made; None: such topics are errors."""
    job_id: str | None
    batch_size: int
    """Bytes of a batch of messages, about."""
    retries: int


def write_options(
    given: Mapping[str, str], schema: StructType, environment: Mapping[str, str] = os.environ
) -> WriteOptions:
    """Understand the options of a write of rows with this schema.

    Raises:
        OptionRefused: something is missing, unknown, or contradicts something else.
        RowRefused: a column that cannot be written, or none that must be there.
    """
    values = parse_options({name: text for name, text in given.items() if name.lower() not in _OF_SPARK}, Use.WRITE)
    check_columns(schema)
    names = schema.names
    for name in ("stream", "topic"):
        if values[name] is None and name not in names:
            raise OptionRefused(f'option "{name}" is required, or a column of that name')
    partitioning = values["partitioning"] or _usual_partitioning(names)
    needed = {"key": "key", "column": "partition"}.get(partitioning)
    if needed is not None and needed not in names:
        raise OptionRefused(f'option "partitioning" is {partitioning}, but there is no column "{needed}"')
    target = target_of(values, environment)
    if target.encryption_key is not None:
        raise OptionRefused(
            "the target has an encryption key, and a write by Spark would not encrypt: encrypt the payloads"
        )
    return WriteOptions(
        target=target,
        stream=values["stream"],
        topic=next(iter(one_topic(values)), None),
        partitioning=partitioning,
        is_exactly_once=values["delivery"] == "exactly-once",
        create_partitions=values["createTopic"],
        job_id=values["jobId"],
        batch_size=values["batchBytes"],
        retries=values["retries"],
    )


def _usual_partitioning(names: Sequence[str]) -> str:
    if "partition" in names:
        return "column"
    return "key" if "key" in names else "balanced"


def check_columns(schema: StructType) -> None:
    """Check the columns of a write. Raises ``RowRefused``."""
    for field in schema.fields:
        kinds = _COLUMNS.get(field.name)
        if kinds is None:
            raise RowRefused(_unknown(field.name))
        if not isinstance(field.dataType, kinds):
            expected = " or ".join(kind.typeName() for kind in kinds)
            raise RowRefused(f'column "{field.name}" has type {field.dataType.simpleString()}, not {expected}')
    payloads = [name for name in PAYLOAD_NAMES if name in schema.names]
    if len(payloads) != 1:
        reason = "both are there" if payloads else f"there are {', '.join(schema.names)}"
        raise RowRefused(f'a write needs a column "payload", or "value" instead, with the message: {reason}')
    if len(set(schema.names)) != len(schema.names):
        raise RowRefused("two columns have the same name")


def _unknown(name: str) -> str:
    if name in _OF_THE_SERVER:
        return f'column "{name}" cannot be written, because {_OF_THE_SERVER[name]}: drop it'
    alike = closest(name, list(_COLUMNS))
    hint = f'the closest is "{alike}"' if alike else f"there are {', '.join(_COLUMNS)}"
    return f'column "{name}" is none that a message has: {hint}; drop it, or put it into the payload'


NOT_FOUND = frozenset({ErrorCode.STREAM_NOT_FOUND, ErrorCode.TOPIC_NOT_FOUND, ErrorCode.RESOURCE_NOT_FOUND})
"""What the server says of streams and topics that are not there."""
