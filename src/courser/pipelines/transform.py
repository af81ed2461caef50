"""Applies the SQL query of a pipeline, and shapes rows as messages for a topic."""

from typing import TYPE_CHECKING

from courser.errors import ClientFailure
from courser.pipelines.definition import VIEW, Definition, LookupTable, SinkDefinition
from courser.spark.connectors import check_readable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_MESSAGE_COLUMNS = ("payload", "key", "headers", "partition", "id")
"""The columns that a topic accepts."""


class TransformRefused(ClientFailure):
    """A query or sink needs a column that the rows do not have."""


def apply_transform(spark: "SparkSession", rows: "DataFrame", definition: Definition) -> "DataFrame":
    """The output of the query. ``spark`` is the pipeline's own session, so its views are private too."""
    transform = definition.transform
    if transform.sql is None:
        return rows
    if transform.watermark is not None:
        column, delay = transform.watermark
        if column not in rows.columns:
            raise TransformRefused(
                f"transform.watermark names the unknown column {column}; the columns are {', '.join(rows.columns)}"
            )
        rows = rows.withWatermark(column, delay)
    rows.createOrReplaceTempView(VIEW)
    for name, table in definition.tables.items():
        _read_lookup(spark, table).createOrReplaceTempView(name)
    return spark.sql(transform.sql)


def _read_lookup(spark: "SparkSession", table: LookupTable) -> "DataFrame":
    check_readable(spark, table.path)
    reader = spark.read.format(table.format)
    if table.schema is not None:
        reader = reader.schema(table.schema)
    if table.format == "csv":
        reader = reader.option("header", "true").option("inferSchema", table.schema is None)
    return reader.load(table.path)


def as_messages(rows: "DataFrame", sink: SinkDefinition) -> "DataFrame":
    """Rows as messages: the column ``payload`` unchanged if there is one, else the whole row as JSON."""
    from pyspark.sql import functions as f  # noqa: PLC0415 -- optional

    if sink.key is not None and sink.key not in rows.columns:
        raise TransformRefused(
            f"sink.key names the unknown column {sink.key}; the columns are {', '.join(rows.columns)}"
        )
    if "payload" in rows.columns:
        kept = [f.col(name) for name in _MESSAGE_COLUMNS if name in rows.columns and name != "key"]
        if sink.partitioning != "column":
            kept = [f.col(name) for name in ("payload", "headers") if name in rows.columns]
        key = sink.key or ("key" if "key" in rows.columns else None)
    else:
        kept = [f.to_json(f.struct(*(f.col(f"`{name}`") for name in rows.columns))).alias("payload")]
        key = sink.key
    if key is not None:
        kept.append(f.col(f"`{key}`").cast("string").cast("binary").alias("key"))
    return rows.select(*kept)
