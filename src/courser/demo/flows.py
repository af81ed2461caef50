"""The Spark jobs of the demo: revenue by window to a topic, and all orders to a lake."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from courser.demo.orders import LATE_MAX, ORDER_SCHEMA

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from courser.jobs.export import ExportReport

STREAM = "shop"
ORDERS = "orders"
REVENUE = "revenue"
WINDOW = "10 minutes"
WATERMARK = f"{int(LATE_MAX.total_seconds())} seconds"
"""How long a window waits for late orders: the maximum lateness, so that none is dropped."""

_TRIGGER_SHARE = 2
"""Number of micro-batches in which the history is read, to show more than one."""


@dataclass(frozen=True, slots=True)
class ProductSales:
    """Sales of one product."""

    product: str
    city: str
    """Where most of it was sold."""
    order_count: int
    revenue: str


def aggregate(spark: "SparkSession", connection: Mapping[str, str], checkpoint: Path, order_count: int) -> int:
    """Revenue by window and category, from topic to topic, exactly once. Returns the number of micro-batches."""
    orders = (
        spark.readStream.format("courser")
        .options(**connection)
        .option("topic", ORDERS)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", max(order_count // _TRIGGER_SHARE, 1))
        .option("consumer", "demo-revenue")
        .load()
    )
    revenue = (
        decoded(orders)
        .withWatermark("at", WATERMARK)
        .selectExpr(f"window(at, '{WINDOW}') AS span", "category", "total")
        .groupBy("span", "category")
        .agg({"total": "sum", "*": "count"})
        .withColumnsRenamed({"sum(total)": "revenue", "count(1)": "orders"})
    )
    query = (
        revenue.selectExpr(
            "category AS key",
            "to_json(struct(span.start AS start, category, orders, CAST(revenue AS STRING) AS revenue)) AS payload",
        )
        .writeStream.format("courser")
        .options(**connection)
        .option("topic", REVENUE)
        .option("checkpointLocation", str(checkpoint))
        .outputMode("append")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    last = query.lastProgress
    return 0 if last is None else last.batchId + 1


def export_orders(spark: "SparkSession", connection: Mapping[str, str], lake: Path) -> "ExportReport":
    """All orders to Parquet files, as ``courser export`` does it."""
    from courser.jobs.export import export  # noqa: PLC0415 -- needs pyspark, which may not be installed yet

    return export(spark, {**connection, "topic": ORDERS}, lake)


def best_sellers(spark: "SparkSession", folder: Path, count: int) -> list[ProductSales]:
    """The best-selling products, from the files alone, without the server."""
    decoded(spark.read.parquet(str(folder))).createOrReplaceTempView("lake_orders")
    rows = spark.sql(
        "SELECT product, mode(city) AS city, count(*) AS orders, CAST(sum(total) AS STRING) AS revenue "
        "FROM lake_orders GROUP BY product ORDER BY sum(total) DESC, product LIMIT {count}",
        count=count,
    )
    return [ProductSales(row.product, row.city, row.orders, row.revenue) for row in rows.collect()]


def decoded(messages: "DataFrame") -> "DataFrame":
    return messages.selectExpr(f"from_json(CAST(payload AS STRING), '{ORDER_SCHEMA}') AS one").selectExpr("one.*")
