"""Tables as the sinks of pipelines: where they are, how they are partitioned, which columns they have."""

import re
from dataclasses import replace
from typing import Any, get_args

from courser.lake.table_place import PlaceRefused, TablePlace, table_place
from courser.lake.tables import PartitionField, Transform
from courser.pipelines.definition import INFER, Decoding, SinkDefinition

BAD = "__bad"
"""What the name of a table for bad rows ends with."""
_TRANSFORMS: tuple[Transform, ...] = get_args(Transform)
_FIELD = re.compile(r"(?P<transform>[a-z]+)\(\s*(?:(?P<argument>[0-9]{1,9})\s*,\s*)?(?P<source>[^\s,()]+)\s*\)")


def place_of(sink: SinkDefinition) -> TablePlace:
    """Where the table is. Raises ``PlaceRefused``."""
    return table_place(
        sink.type,
        path=sink.path or "",
        table=sink.table or "",
        catalog=sink.catalog or "",
        endpoint=sink.endpoint or "",
        region=sink.region or "",
    )


def bad_place(place: TablePlace) -> TablePlace:
    """Where the bad rows of a table go."""
    if place.format == "delta":
        return replace(place, location=place.location + BAD)
    return replace(place, table=place.table + BAD)


def partition_fields(sink: SinkDefinition) -> tuple[PartitionField, ...] | None:
    """What divides the files of a new table; None: nothing. Raises ``PlaceRefused``."""
    return tuple(map(_partition_field, sink.partition_by)) or None


def _partition_field(text: str) -> PartitionField:
    if "(" not in text:
        return PartitionField(source=text)
    found = _FIELD.fullmatch(text.strip())
    transform = next((name for name in _TRANSFORMS if found is not None and name == found["transform"]), None)
    if found is None or transform is None or (transform in ("bucket", "truncate")) != (found["argument"] is not None):
        known = "a column, or day(at), hour(at), month(at), year(at), bucket(16, customer), truncate(4, sku) of one"
        raise PlaceRefused("sink.partition_by", f"{text} is not understood; write {known}")
    argument = found["argument"]
    return PartitionField(source=found["source"], transform=transform, argument=int(argument) if argument else None)


def payloads_of(decoding: Decoding) -> Any:
    """What is said about the payloads (``PayloadsOf``). Raises ``AvroRefused``."""
    from courser.lake.avro_format import read_avro_schema  # noqa: PLC0415 -- these need pyarrow, which is optional
    from courser.lake.topic_schemas import PayloadsOf  # noqa: PLC0415

    return PayloadsOf(
        format=decoding.format,  # type: ignore[arg-type]  # its kind has the same words
        schema=None if decoding.schema == INFER else decoding.schema,
        avro_schema=None if decoding.avro_schema is None else read_avro_schema(decoding.avro_schema),
        delimiter=decoding.delimiter,
    )
