"""The columns of a read: their names and types in both styles, and the selection that a user's schema makes.

Spark does not tell a data source which columns a query uses, so a smaller schema is the way to read less.
"""

from collections.abc import Sequence

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from courser.spark.options import OptionRefused, closest

HEADERS = "headers"
_NATIVE = StructType(
    [
        StructField("stream", StringType(), nullable=False),
        StructField("topic", StringType(), nullable=False),
        StructField("partition", IntegerType(), nullable=False),
        StructField("offset", LongType(), nullable=False),
        StructField("timestamp", TimestampType(), nullable=False),
        StructField("origin_timestamp", TimestampType(), nullable=False),
        StructField("id", BinaryType(), nullable=False),
        StructField("key", BinaryType()),
        StructField("payload", BinaryType(), nullable=False),
        StructField(HEADERS, MapType(StringType(), BinaryType())),
    ]
)
_KAFKA = StructType(
    [
        StructField("key", BinaryType()),
        StructField("value", BinaryType(), nullable=False),
        StructField("topic", StringType(), nullable=False),
        StructField("partition", IntegerType(), nullable=False),
        StructField("offset", LongType(), nullable=False),
        StructField("timestamp", TimestampType(), nullable=False),
        StructField("timestampType", IntegerType(), nullable=False),
        StructField(
            HEADERS, ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))
        ),
    ]
)
_STYLES = {"native": _NATIVE, "kafka": _KAFKA}


def default_schema(style: str, *, include_headers: bool, columns: Sequence[str] | None = None) -> StructType:
    """The schema of a read if the user gives none.

    Raises:
        OptionRefused: a column does not exist.
    """
    known = _STYLES[style]
    if columns is not None:
        return StructType([_field(known, name) for name in columns])
    return StructType([field for field in known.fields if include_headers or field.name != HEADERS])


def check_schema(schema: StructType, style: str) -> None:
    """Check a schema that a user gave.

    Raises:
        OptionRefused: a column does not exist, or has a different type.
    """
    known = _STYLES[style]
    for field in schema.fields:
        wanted = _field(known, field.name).dataType
        # Of both, whether they can be null does not matter.
        given, known_type = field.dataType.simpleString(), wanted.simpleString()
        if given != known_type:
            raise OptionRefused(f'column "{field.name}" is {known_type}, not {given}')


def _field(known: StructType, name: str) -> StructField:
    names = known.fieldNames()
    if name not in names:
        alike = closest(name, names)
        hint = f'; did you mean "{alike}"?' if alike else f"; the columns are {', '.join(names)}"
        raise OptionRefused(f'unknown column "{name}"{hint}')
    return known[name]
