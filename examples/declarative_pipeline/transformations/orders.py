"""Orders from a topic, and what is striking about them back into another."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

spark = SparkSession.active()

SCHEMA = "order_id BIGINT, category STRING, total DECIMAL(11,2)"


@dp.table
def orders() -> DataFrame:
    """Every order once, with its place in the topic: each run goes on where the last one ended."""
    messages = (
        spark.readStream.format("courser")
        .option("stream", "shop")
        .option("topic", "orders")
        .option("startingOffsets", "earliest")
        .load()
    )
    columns = messages.selectExpr(
        "partition", "offset", "timestamp", f"from_json(CAST(payload AS STRING), '{SCHEMA}') AS one"
    )
    return columns.selectExpr("partition", "offset", "timestamp", "one.*")


@dp.materialized_view
def revenue_by_category() -> DataFrame:
    """What was sold, as a whole."""
    orders = spark.read.table("orders")
    return orders.groupBy("category").agg({"total": "sum", "*": "count"}).toDF("category", "revenue", "order_count")


dp.create_sink("large_orders", "courser", {"stream": "shop", "topic": "large-orders", "createTopic": "1"})


@dp.append_flow(target="large_orders")
def find_large_orders() -> DataFrame:
    """Orders that somebody should look at, exactly once in a topic of their own."""
    return (
        spark.readStream.table("orders")
        .where("total >= 100")
        .selectExpr("category AS key", "to_json(struct(order_id, category, total)) AS payload")
    )
