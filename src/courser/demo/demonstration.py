"""Runs the demo: a server, orders, Spark, results. Reports its progress through a callback; prints nothing."""

import json
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from courser.bench.private_server import PrivateServer, private_server
from courser.client.sync import SyncClient, connect_sync
from courser.demo import flows
from courser.demo.flows import ORDERS, REVENUE, STREAM, ProductSales
from courser.demo.orders import make_orders
from courser.spark.failures import is_slow_start
from courser.spark.session import spark_session

Result = TypeVar("Result")

ORDER_COUNT = 20_000
"""Enough for a meaningful chart, and sent within two seconds."""
SEED = 7

_PARTITION_COUNT = 2
_BEST_COUNT = 5
_ATTEMPT_COUNT = 3
_PASSWORD = "iggy"
"""Password of a server whose data is kept. The data is made up, and the server listens on loopback only."""


@dataclass(frozen=True, slots=True)
class WindowSales:
    """A message of the topic with the revenue: one category in one window."""

    start: str
    category: str
    orders: int
    revenue_cents: int


@dataclass(frozen=True, slots=True)
class DemoResult:
    """The results of the demo."""

    order_count: int
    order_cents: int
    """The total of all orders."""
    windows: tuple[WindowSales, ...]
    """The messages of the revenue topic, by time and category."""
    batch_count: int
    """Micro-batches of the aggregation."""
    lake_count: int
    """Orders in the lake."""
    file_count: int
    best: tuple[ProductSales, ...]
    """The best-selling products, from the lake."""
    seconds: dict[str, float]
    """How long each part took."""

    @property
    def open_count(self) -> int:
        """Orders in windows that are still open, because later orders may arrive for them."""
        return self.order_count - sum(window.orders for window in self.windows)


def run_demo(
    say: Callable[[str], None], *, order_count: int = ORDER_COUNT, seed: int = SEED, keep: Path | None = None
) -> DemoResult:
    """Run everything in a temporary directory that is removed afterwards, or in ``keep``.

    Raises:
        CourserError: the server or Spark did not start.
    """
    seconds: dict[str, float] = {}
    with ExitStack() as stack:
        place = keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="courser-demo-")))
        place.mkdir(parents=True, exist_ok=True)
        server = stack.enter_context(_server(place, is_kept=keep is not None))
        say(f"started a server on {server.target.host}:{server.target.port} with its data in {server.data}")
        client = stack.enter_context(connect_sync(server.target))
        with _timed(seconds, "orders"):
            order_cents = _send_orders(client, order_count, seed)
        say(f"sent {order_count:,} orders to the topic {STREAM}/{ORDERS}; starting Spark, which takes a few seconds")
        with _timed(seconds, "Spark's start"):
            log = place / "spark.log"
            spark = spark_session("courser demo", "local[2]", _settings(place), log=log, keep_interrupts=True)
        stack.callback(spark.stop)
        connection = {
            "address": f"{server.target.host}:{server.target.port}",
            "username": server.target.username or "",
            "password": server.target.password or "",
            "stream": STREAM,
        }
        say("Spark is summing up the revenue of every ten minutes")
        with _timed(seconds, "aggregation"):
            batch_count = _with_retries(lambda: flows.aggregate(spark, connection, place / "checkpoint", order_count))
        windows = _windows(client)
        say(f"wrote the revenue to the topic {STREAM}/{REVENUE}: {len(windows)} messages, exactly once; exporting now")
        with _timed(seconds, "export"):
            lake = _with_retries(lambda: flows.export_orders(spark, connection, place / "lake"))
        say(f"exported all orders to the lake: {lake.row_count:,} rows in {lake.file_count} Parquet files")
        with _timed(seconds, "question to the lake"):
            best = flows.best_sellers(spark, lake.folder, _BEST_COUNT)
        return DemoResult(
            order_count, order_cents, windows, batch_count, lake.row_count, lake.file_count, tuple(best), seconds
        )


@contextmanager
def _server(place: Path, *, is_kept: bool) -> Iterator[PrivateServer]:
    kept, password = (place / "server", _PASSWORD) if is_kept else (None, None)
    with private_server(place, keep=kept, password=password) as server:
        yield server


def _settings(place: Path) -> dict[str, str]:
    return {
        # The session lives for half a minute: fully optimized machine code would come too late.
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.local.dir": str(place / "spark"),
        "spark.sql.warehouse.dir": str(place / "warehouse"),
        # Two tasks run at a time, and the data is small.
        "spark.sql.shuffle.partitions": "2",
    }


def _send_orders(client: SyncClient, count: int, seed: int) -> int:
    """Send the orders. Returns their total in cents."""
    client.create_stream(STREAM)
    client.create_topic(STREAM, ORDERS, _PARTITION_COUNT)
    client.create_topic(STREAM, REVENUE, 1)
    total = 0
    with client.producer(STREAM, ORDERS) as producer:
        for order in make_orders(count, seed):
            producer.send(order.document(), key=order.customer)
            total += order.total_cents
    return total


def _windows(client: SyncClient) -> tuple[WindowSales, ...]:
    found = []
    with client.consumer(STREAM, REVENUE, start="earliest", stop_at_end=True) as consumer:
        for message in consumer:
            row = json.loads(message.payload)
            cents = int(row["revenue"].replace(".", ""))
            found.append(WindowSales(row["start"], row["category"], row["orders"], cents))
    return tuple(sorted(found, key=lambda window: (window.start, window.category)))


def _with_retries(work: Callable[[], Result]) -> Result:
    """Retry if the machine was too busy to start a process in time. Nothing is written twice."""
    for _ in range(_ATTEMPT_COUNT - 1):
        try:
            return work()
        except Exception as error:
            if not is_slow_start(error):
                raise
    return work()


@contextmanager
def _timed(seconds: dict[str, float], part: str) -> Iterator[None]:
    begin = time.perf_counter()
    yield
    seconds[part] = time.perf_counter() - begin
