"""From a topic to a DataFrame and back, cell by cell.

Open it in an editor that knows ``# %%`` cells, or run it as it is: ``python examples/notebook.py``. It talks to the
server that any client would find (``courser dev`` starts one) and works in the topics ``notebook/orders``,
``notebook/totals`` and ``notebook/lines``, which it makes anew.
"""

# %% [markdown]
# ## Some orders in a topic

# %%
import os
import tempfile
from pathlib import Path

import courser

client = courser.connect_sync()
if "notebook" in [stream.name for stream in client.get_streams()]:
    client.delete_stream("notebook")
client.create_stream("notebook")
client.create_topic("notebook/orders", partitions_count=2)

customers = ["ada", "bob", "cleo", "dora"]
with client.producer("notebook/orders") as producer:
    for number in range(1000):
        customer = customers[number % 4]
        producer.send({"number": number, "customer": customer, "amount": number % 90}, key=customer)

# %% [markdown]
# ## Spark, set up for Courser

# %%
from courser.spark.session import spark_session

scratch = Path(tempfile.mkdtemp(prefix="courser-notebook-"))
spark = spark_session("notebook", os.environ.get("NOTEBOOK_MASTER", "local[2]"), log=scratch / "spark.log")

# %% [markdown]
# ## The topic as a DataFrame
# Columns of a message: stream, topic, partition, offset, timestamp, origin_timestamp, id, key, payload.

# %%
messages = spark.read.format("courser").option("stream", "notebook").option("topic", "orders").load()
messages.selectExpr("partition", "offset", "CAST(key AS STRING) AS key", "CAST(payload AS STRING) AS payload").show(5)

# %% [markdown]
# A schema with fewer columns reads less: here no payload is fetched.

# %%
counts = (
    spark.read.format("courser")
    .options(stream="notebook", topic="orders")
    .schema("partition INT, offset BIGINT")
    .load()
    .groupBy("partition")
    .count()
)
counts.orderBy("partition").show()

# %% [markdown]
# ## SQL over payloads

# %%
schema = "number INT, customer STRING, amount INT"
messages.selectExpr(f"from_json(CAST(payload AS STRING), '{schema}') AS o").selectExpr("o.*").createOrReplaceTempView(
    "orders"
)
totals = spark.sql("SELECT customer, count(*) AS orders, sum(amount) AS total FROM orders GROUP BY customer")
totals.orderBy("customer").show()

# %% [markdown]
# ## Back into a topic, all or nothing
# Rows are staged on the server and appear together when the job is done.

# %%
(
    totals.selectExpr("customer AS key", "to_json(struct(*)) AS payload")
    .write.format("courser")
    .options(stream="notebook", topic="totals", createTopic="1")
    .mode("append")
    .save()
)
for message in client.poll_messages("notebook/totals", partition_id=0, count=10):
    print(message.key, message.json())

# %% [markdown]
# ## A stream that goes on where it stopped
# Each order becomes a line of text, exactly once. Run the cell again after sending more: it takes only the new ones.


# %%
def copy_lines() -> int:
    """Copy what is new; return how many lines there are now."""
    (
        spark.readStream.format("courser")
        .options(stream="notebook", topic="orders", startingOffsets="earliest")
        .load()
        .selectExpr("key", "concat('line ', CAST(offset AS STRING)) AS payload")
        .writeStream.format("courser")
        .options(stream="notebook", topic="lines", createTopic="1")
        .option("checkpointLocation", str(scratch / "lines"))
        .trigger(availableNow=True)
        .start()
        .awaitTermination()
    )
    return client.get_topic("notebook/lines").topic.message_count


print("lines:", copy_lines())
client.send_messages("notebook/orders", messages=[{"number": 1000, "customer": "ada", "amount": 1}])
print("lines after one more order:", copy_lines())

# %% [markdown]
# ## Into a lake

# %%
spark.table("orders").write.partitionBy("customer").parquet(str(scratch / "lake"))
print(sorted(path.name for path in (scratch / "lake").iterdir() if path.is_dir()))

# %%
spark.stop()
client.close()
