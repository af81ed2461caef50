"""What tests of running pipelines share: a folder with definitions, topics of their own, and runs in this session."""

import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb

from courser.client.messages import PollingStrategy, SendMessage
from courser.client.sync import SyncClient, connect_sync
from courser.pipelines.definition import Definition
from courser.pipelines.definition_file import load_definition
from courser.pipelines.running import Runner
from courser.pipelines.state_folder import Status
from courser.storage.watched_clock import SystemClock
from tests.servers import RunningServer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PATIENCE = 600.0
"""Seconds that a run may take before a test gives up."""
STREAM = "shop"


@dataclass
class Scene:
    """A folder, a server, and a session."""

    folder: Path
    server: RunningServer
    spark: "SparkSession | None" = None
    shown: list[str] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"iggy://iggy:iggy@{self.server.address}"

    @property
    def home(self) -> Path:
        return self.folder / "state"

    @contextmanager
    def client(self) -> Iterator[SyncClient]:
        with connect_sync(self.url) as client:
            yield client

    # --- topics ---

    def make_topic(self, topic: str, partitions: int = 2) -> None:
        with self.client() as client:
            if STREAM not in [stream.name for stream in client.get_streams()]:
                client.create_stream(STREAM)
            client.create_topic(STREAM, topic, partitions)

    def send(self, topic: str, payloads: Sequence[bytes], partition: int = 0) -> None:
        with self.client() as client:
            client.send_messages(STREAM, topic, partition, [SendMessage(payload) for payload in payloads])

    def send_orders(self, topic: str, numbers: range, partitions: int = 2) -> None:
        """Orders with rising numbers, over all partitions in turn."""
        for partition in range(partitions):
            mine = [number for number in numbers if number % partitions == partition]
            for start in range(0, len(mine), 1000):
                self.send(topic, [order(number) for number in mine[start : start + 1000]], partition)

    def payloads(self, topic: str, partitions: int = 2) -> list[bytes]:
        """All messages, as a client reads them."""
        found: list[bytes] = []
        with self.client() as client:
            for partition in range(partitions):
                following = 0
                while batch := client.poll_messages(
                    STREAM, topic, partition, PollingStrategy.Offset(following), 10_000, auto_commit=False
                ):
                    found += [bytes(message.payload) for message in batch]
                    following = batch[-1].offset + 1
        return found

    # --- pipelines ---

    def define(self, name: str, text: str) -> Path:
        """Write a definition; ``[pipeline]`` and ``[server]`` are added.

        On a machine that is very busy the Python processes of Spark are late, and a start fails: hence the restarts.
        """
        path = self.folder / f"{name}.toml"
        head = f'[pipeline]\nname = "{name}"\nmode = "once"\nrestart_delay = "50ms"\nrestarts = 20\n'
        path.write_text(f'{head}[server]\nurl = "{self.url}"\n{text}')
        return path

    def run(self, *paths: Path, once: bool | None = None) -> list[Status]:
        """Run pipelines to their end, in the session of the tests."""
        with self.running(*paths, once=once) as runner:
            assert runner.wait(PATIENCE), "the pipelines do not end"
        return runner.statuses

    @contextmanager
    def running(self, *paths: Path, once: bool | None = None) -> Iterator[Runner]:
        """Run pipelines while the block lasts."""
        definitions: list[Definition] = [load_definition(path) for path in paths]
        environment = {"PATH": os.environ["PATH"]}
        with Runner(
            definitions,
            home=self.home,
            clock=SystemClock(),
            once=once,
            session=self.spark,
            environment=environment,
            show=lambda name, batch, text: self.shown.append(text),
        ) as runner:
            yield runner

    def count(self, path: str, column: str) -> Counter[object]:
        """How often each value of a column is in a Parquet folder, as duckdb sees it."""
        files = f"read_parquet('{self.folder / path}/**/*.parquet')"
        found = duckdb.sql(f"SELECT {column}, count(*) FROM {files} GROUP BY 1")
        assert found is not None
        return Counter(dict(found.fetchall()))


def order(number: int) -> bytes:
    """One order; the time is a second later for each."""
    at = f"2026-11-15T10:{number // 60 % 60:02d}:{number % 60:02d}Z"
    return json.dumps({"id": number, "customer": f"c{number % 5}", "amount": number / 2, "at": at}).encode()


SCHEMA = "id BIGINT, customer STRING, amount DOUBLE, at TIMESTAMP"


def orders_source(topic: str, more: str = "") -> str:
    return f'[source]\nstream = "{STREAM}"\ntopic = "{topic}"\ndecode = "json"\nschema = "{SCHEMA}"\n{more}\n'
