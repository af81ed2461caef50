"""The options of a write as typed values. Pickled to every task."""

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
"""The columns that a write accepts, and their types."""
_OF_THE_SERVER = {
    "offset": "the server assigns offsets",
    "timestamp": "the server sets the append time; put a creation time into origin_timestamp",
    "timestampType": "the server has only one kind of timestamp",
}
"""Columns that a read returns but a write does not accept."""

_OF_SPARK = frozenset({"checkpointlocation", "queryname"})
"""Options of Spark itself, which it passes on to the data source."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """The options of a write."""

    target: Target
    stream: str | None
    """For rows that do not name a stream in a column."""
    topic: str | None
    partitioning: str
    """``key``, ``column`` or ``balanced``."""
    is_exactly_once: bool
    create_partitions: int | None
    """Partitions to create missing topics with; None: a missing topic is an error."""
    job_id: str | None
    batch_size: int
    """Approximate bytes of a batch of messages."""
    retries: int


def write_options(
    given: Mapping[str, str], schema: StructType, environment: Mapping[str, str] = os.environ
) -> WriteOptions:
    """Parse the options of a write of rows with this schema.

    Raises:
        OptionRefused: an option is missing, unknown, or in conflict with another.
        RowRefused: a column cannot be written, or a required one is missing.
    """
    values = parse_options({name: text for name, text in given.items() if name.lower() not in _OF_SPARK}, Use.WRITE)
    check_columns(schema)
    names = schema.names
    for name in ("stream", "topic"):
        if values[name] is None and name not in names:
            raise OptionRefused(f'option "{name}" is required unless there is a column "{name}"')
    partitioning = values["partitioning"] or _usual_partitioning(names)
    needed = {"key": "key", "column": "partition"}.get(partitioning)
    if needed is not None and needed not in names:
        raise OptionRefused(f'option "partitioning" is {partitioning}, but there is no column "{needed}"')
    target = target_of(values, environment)
    if target.encryption_key is not None:
        raise OptionRefused(
            "the target has an encryption key, but writes from Spark are not encrypted; encrypt the payloads yourself"
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
            raise RowRefused(f'column "{field.name}" must be {expected}, not {field.dataType.simpleString()}')
    payloads = [name for name in PAYLOAD_NAMES if name in schema.names]
    if len(payloads) != 1:
        reason = "the rows have both" if payloads else f"the rows have {', '.join(schema.names)}"
        raise RowRefused(f'a write needs exactly one column "payload" or "value" with the message; {reason}')
    if len(set(schema.names)) != len(schema.names):
        raise RowRefused("two columns have the same name")


def _unknown(name: str) -> str:
    if name in _OF_THE_SERVER:
        return f'column "{name}" cannot be written because {_OF_THE_SERVER[name]}; drop the column'
    alike = closest(name, list(_COLUMNS))
    hint = f'did you mean "{alike}"?' if alike else "drop it, or put it into the payload"
    return f'messages have no column "{name}"; {hint}'


NOT_FOUND = frozenset({ErrorCode.STREAM_NOT_FOUND, ErrorCode.TOPIC_NOT_FOUND, ErrorCode.RESOURCE_NOT_FOUND})
"""Error codes for missing streams and topics."""
