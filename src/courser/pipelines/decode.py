"""Decodes payloads into columns. A payload that cannot be decoded is marked with a reason; it never becomes nulls.

``decode`` returns a wide DataFrame: the message's own columns with an underscore, the decoded columns, and ``_bad``
with the reason. ``good_rows`` and ``bad_rows`` split it.
"""

from typing import TYPE_CHECKING

from courser.lake.table_mismatch import SchemaRefused
from courser.pipelines.definition import Decoding

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

PARTITION, OFFSET, TIMESTAMP, KEY, HEADERS = "_partition", "_offset", "_timestamp", "_key", "_headers"
PAYLOAD, BAD = "_payload", "_bad"
METADATA = (PARTITION, OFFSET, TIMESTAMP, KEY, HEADERS)
OBSERVED = "courser"
"""The name of Spark's observation that counts rows and bad rows."""

_PARSED, _CORRUPT = "_parsed", "_corrupt_record"
_RENAMED = {
    "partition": PARTITION,
    "offset": OFFSET,
    "timestamp": TIMESTAMP,
    "key": KEY,
    "headers": HEADERS,
    "payload": PAYLOAD,
}


def decode(messages: "DataFrame", decoding: Decoding) -> "DataFrame":
    """The wide rows of a topic's messages. Not for ``raw``, which needs no decoding."""
    kept = {name: new for name, new in _RENAMED.items() if name in messages.columns}
    renamed = messages.select(*(messages[name].alias(new) for name, new in kept.items()))
    if decoding.format == "avro":
        wide = _decode_avro(renamed, decoding)
    elif decoding.format == "text":
        wide = _decode_text(renamed)
    else:
        wide = _decode_with_schema(renamed, decoding)
    return _observed(wide)


def good_rows(wide: "DataFrame", decoding: Decoding) -> "DataFrame":
    """The decoded rows; ``on_bad_row`` decides whether bad rows fail. Metadata columns come last."""
    from pyspark.sql import functions as f  # noqa: PLC0415 -- optional

    is_good: Column = f.col(BAD).isNull()
    if decoding.on_bad_row == "fail":
        told = f.concat(
            f.lit("partition "),
            f.col(PARTITION).cast("string"),
            f.lit(", offset "),
            f.col(OFFSET).cast("string"),
            f.lit(": "),
            f.col(BAD),
            f.lit('; to continue without it, set source.on_bad_row to "drop" or "quarantine"'),
        )
        is_good = f.when(is_good, f.lit(True)).otherwise(f.raise_error(told).cast("boolean"))
    columns = [name for name in wide.columns if name not in (BAD, PAYLOAD, *METADATA)]
    metadata = [name for name in wide.columns if name in METADATA]
    return wide.where(is_good).select(*columns, *metadata)


def bad_rows(wide: "DataFrame") -> "DataFrame":
    """The rows that could not be decoded, unchanged, with the reason."""
    from pyspark.sql import functions as f  # noqa: PLC0415

    metadata = [name for name in wide.columns if name in METADATA]
    return wide.where(f.col(BAD).isNotNull()).select(*metadata, PAYLOAD, f.col(BAD).alias("_error"))


def _observed(wide: "DataFrame") -> "DataFrame":
    from pyspark.sql import functions as f  # noqa: PLC0415

    bad = f.count(f.col(BAD)).alias("bad")
    return wide.observe(OBSERVED, f.count(f.lit(1)).alias("rows"), bad)


# --- formats ---


def _decode_text(renamed: "DataFrame") -> "DataFrame":
    from pyspark.sql import functions as f  # noqa: PLC0415

    text = f.col(PAYLOAD).cast("string")
    is_text = f.is_valid_utf8(text)
    bad = f.when(~is_text, f.lit("the payload is not UTF-8 text"))
    return renamed.select("*", f.when(is_text, text).alias("text"), bad.alias(BAD))


def _decode_with_schema(renamed: "DataFrame", decoding: Decoding) -> "DataFrame":
    """JSON and CSV, by Spark's own parsers: a field of the wrong type makes the whole row bad."""
    from pyspark.sql import functions as f  # noqa: PLC0415
    from pyspark.sql.types import StringType, StructType  # noqa: PLC0415

    schema = parse_schema(decoding.schema or "")
    with_corrupt = StructType([*schema.fields]).add(_CORRUPT, StringType())
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
    text = f.col(PAYLOAD).cast("string")
    if decoding.format == "json":
        parsed = f.from_json(text, with_corrupt, options)
    else:
        # This function accepts the schema only as text.
        parsed = f.from_csv(text, with_corrupt.toDDL(), options | {"sep": decoding.delimiter})
    wide = renamed.withColumn(_PARSED, f.when(f.is_valid_utf8(text), parsed))
    is_bad = f.col(_PARSED).isNull() | f.col(f"{_PARSED}.{_CORRUPT}").isNotNull()
    reason = f"the payload is not {decoding.format.upper()} that matches the schema"
    fields = [f.col(f"{_PARSED}.`{name}`").alias(name) for name in schema.fieldNames()]
    return wide.select(*renamed.columns, *fields, f.when(is_bad, f.lit(reason)).alias(BAD))


def parse_schema(text: str) -> "StructType":
    """Parse columns in SQL syntax. Raises ``SchemaRefused``."""
    from pyspark.errors import PySparkException  # noqa: PLC0415
    from pyspark.sql.types import StructType  # noqa: PLC0415

    try:
        schema = StructType.fromDDL(text)
        # "BIGINT" alone parses too, but is not a list of columns.
        assert isinstance(schema, StructType)
    except (PySparkException, AssertionError) as error:
        said = str(error).strip().split("\n", 1)[0]
        raise SchemaRefused(f"source.schema is not a list of columns: {said}") from error
    refuse_taken_names(schema.fieldNames())
    return schema


def refuse_taken_names(names: list[str]) -> None:
    """Check that no column has the name of a metadata column. Raises ``SchemaRefused``."""
    taken = {*METADATA, PAYLOAD, BAD, _PARSED, _CORRUPT} & set(names)
    if taken:
        raise SchemaRefused(f"the column name {min(taken)} is reserved")


def _decode_avro(renamed: "DataFrame", decoding: Decoding) -> "DataFrame":
    from pyspark.sql.types import StringType, StructType  # noqa: PLC0415

    from courser.lake.avro_format import read_avro_schema  # noqa: PLC0415 -- these import pyarrow, which is optional
    from courser.pipelines.avro import AvroDecoder, spark_columns  # noqa: PLC0415

    assert decoding.avro_schema is not None, "the definition was checked"
    schema = read_avro_schema(decoding.avro_schema)
    columns = spark_columns(schema)
    refuse_taken_names([column.name for column in columns])
    wide = StructType([*renamed.schema.fields, *columns]).add(BAD, StringType())
    return renamed.mapInArrow(AvroDecoder(schema, wide.json()), wide)
