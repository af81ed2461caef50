"""Where the schema of a topic comes from, and the decoder of its payloads."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal, get_args

from courser.lake.avro_format import AvroFormat, avro_columns
from courser.lake.csv_format import CsvFormat
from courser.lake.inference import infer_schema
from courser.lake.json_format import JsonFormat
from courser.lake.payloads import PayloadFormat, RawFormat, TextFormat
from courser.lake.schemas import parse_schema, refuse_names
from courser.lake.table_mismatch import SchemaRefused

FormatName = Literal["raw", "text", "json", "csv", "avro"]
FORMATS: tuple[FormatName, ...] = get_args(FormatName)


@dataclass(frozen=True, slots=True, kw_only=True)
class PayloadsOf:
    """What is said about the payloads of a topic."""

    format: FormatName
    schema: str | None = None
    """Columns in SQL syntax. JSON without it: inferred from a sample."""
    avro_schema: str | None = None
    """For Avro, as ``read_avro_schema`` returns it."""
    delimiter: str = ","


def schema_of(payloads: PayloadsOf, sample: Callable[[], Iterable[bytes]]) -> Any:
    """The Arrow schema of a topic that has none yet: to be kept with the position, and not asked for again.

    ``sample`` gives payloads of the topic, if they are needed. Raises ``SchemaRefused`` or ``AvroRefused``.
    """
    if payloads.format in ("raw", "text"):
        return RawFormat.schema if payloads.format == "raw" else TextFormat.schema
    if payloads.format == "avro":
        columns = avro_columns(payloads.avro_schema or "")
        refuse_names(columns)
        return columns
    if payloads.schema is not None:
        return parse_schema(payloads.schema)
    if payloads.format == "csv":
        raise SchemaRefused("CSV has no names of columns; declare a schema")
    return infer_schema(sample())


def format_of(payloads: PayloadsOf, schema: Any) -> PayloadFormat:
    """The decoder for payloads with this schema. Raises ``SchemaRefused``."""
    match payloads.format:
        case "raw":
            return RawFormat()
        case "text":
            return TextFormat()
        case "json":
            return JsonFormat(schema)
        case "csv":
            return CsvFormat(schema, payloads.delimiter)
        case "avro":
            return AvroFormat(payloads.avro_schema or "")
