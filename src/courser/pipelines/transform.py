"""The SQL in the middle, and the shape that a topic wants its rows in."""

from typing import TYPE_CHECKING

from courser.errors import ClientFailure
from courser.pipelines.definition import Sink, Transform

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

VIEW = "source"
"""What the query calls the rows."""
_MESSAGE_COLUMNS = ("payload", "key", "headers", "partition", "id")
"""What a topic takes beside each other."""


class TransformRefused(ClientFailure):
    """A query or a sink that the rows do not have the columns for."""


def apply_transform(spark: "SparkSession", rows: "DataFrame", transform: Transform) -> "DataFrame":
    """The rows that come out of the query. ``spark`` is this pipeline's own session: names of views are its own too."""
    if transform.sql is None:
        return rows
    if transform.watermark is not None:
        column, delay = transform.watermark
        if column not in rows.columns:
            raise TransformRefused(
                f"transform.watermark names the column {column}, and there are {', '.join(rows.columns)}"
            )
        rows = rows.withWatermark(column, delay)
    rows.createOrReplaceTempView(VIEW)
    return spark.sql(transform.sql)


def as_messages(rows: "DataFrame", sink: Sink) -> "DataFrame":
    """Rows as a topic takes them: a column ``payload`` as it is, else the whole row as JSON."""
    from pyspark.sql import functions as f  # noqa: PLC0415 -- optional

    if sink.key is not None and sink.key not in rows.columns:
        raise TransformRefused(f"sink.key names the column {sink.key}, and there are {', '.join(rows.columns)}")
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
