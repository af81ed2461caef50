"""A table and the messages that are not in it yet, as one DataFrame: no gap, no overlap."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa  # type: ignore[import-untyped]  # it has no stubs
import pytest
from pyspark.sql import SparkSession

from courser.client.messages import PollingStrategy, SendMessage
from courser.client.sync import SyncClient
from courser.jobs.source_topic import open_topic
from courser.jobs.table_reading import TableMissing, TableRows, read_with_tail
from courser.lake.json_format import JsonFormat
from courser.lake.message_columns import KEY, OFFSET, PARTITION
from courser.lake.payloads import decode, rows_with_messages
from courser.lake.schemas import MESSAGE_FIELDS
from courser.lake.table_files import open_table_store, write_files
from courser.lake.table_opening import open_table
from courser.lake.table_place import TablePlace, table_place
from courser.lake.tables import Commit, MessageRange, PartitionPosition, TableLayout, TopicPosition
from courser.lake.topic_schemas import PayloadsOf
from courser.lake.upserts import apply_changes, decode_changes, upsert, write_changes
from tests.servers import RunningServer
from tests.spark.topics import STREAM, client_of, make_topic, options_of

COLUMNS = pa.schema([("id", pa.int64()), ("name", pa.string()), ("tags", pa.list_(pa.string()))])
JSON = PayloadsOf(format="json")
Payload = Mapping[str, object] | None
"""None: an empty payload."""


@dataclass
class Filled:
    """A topic, and the table that is filled from it."""

    client: SyncClient
    options: Mapping[str, str]
    place: TablePlace
    position: TopicPosition | None = None

    def __post_init__(self) -> None:
        layout = TableLayout(columns=pa.schema([*COLUMNS, *MESSAGE_FIELDS]))
        self.table = open_table(self.place, layout, environment={})
        self.uuid = open_topic(self.options).facts.uuid.hex()

    @property
    def name(self) -> str:
        return f"{STREAM}/{self.options['topic']}"

    def send(self, partition: int, payloads: Sequence[Payload], key: str | None = None) -> None:
        texts = [b"" if payload is None else json.dumps(payload).encode() for payload in payloads]
        messages = [SendMessage(text, key=key) for text in texts]
        self.client.send_messages(STREAM, self.options["topic"], partition, messages)

    def fill(self, partition: int, key: tuple[str, ...] = ()) -> None:
        """Commit what the table lacks of a partition, as a pipeline does."""
        known = {each.partition: each for each in self.position.partitions} if self.position else {}
        first = known[partition].next_offset if partition in known else 0
        at = PollingStrategy.Offset(first)
        found = self.client.poll_messages(STREAM, self.options["topic"], partition, at, count=1000, consumer=0)
        last = found[-1].offset
        arrays = [
            [self.name] * len(found),
            [partition] * len(found),
            [message.offset for message in found],
            [message.timestamp for message in found],
            [message.key for message in found],
        ]
        columns = [pa.array(values, kind.type) for values, kind in zip(arrays, MESSAGE_FIELDS, strict=True)]
        messages = pa.Table.from_arrays(columns, schema=MESSAGE_FIELDS)
        payloads = pa.array([message.payload for message in found], pa.binary())
        source = MessageRange(
            topic=self.uuid,
            partition=partition,
            incarnation=0,
            first_offset=first,
            last_offset=last,
            attempt=uuid4().hex,
        )
        stop = TopicPosition(
            topic=self.uuid,
            partitions=tuple(
                sorted(
                    [
                        *(each for each in known.values() if each.partition != partition),
                        PartitionPosition(partition, 0, last + 1),
                    ],
                    key=lambda each: each.partition,
                )
            ),
        )
        description, access = self.table.describe(), self.table.access()
        store = open_table_store(access)
        commit = Commit(start=self.position, stop=stop, token=uuid4().hex, files=(), description=description)
        decoder = JsonFormat(COLUMNS)
        if key:
            changes = decode_changes(decoder, payloads, messages, key, with_messages=True)
            written = write_changes(description, key, changes, source, store)
            upsert(
                self.table,
                key,
                written,
                commit,
                lambda works: [apply_changes(work, uuid4().hex, access, store) for work in works],
            )
        else:
            rows = rows_with_messages(decode(decoder, payloads), messages)
            files = write_files(description, rows, source, store)
            self.table.commit(
                Commit(start=self.position, stop=stop, token=uuid4().hex, files=files, description=description)
            )
        self.position = stop


@pytest.fixture(params=["iceberg", "delta"])
def filled(request: pytest.FixtureRequest, server: RunningServer, tmp_path: Path) -> Iterator[Filled]:
    topic = f"{request.node.originalname}"[:40] + request.param
    place = table_place(request.param, path=str(tmp_path / "table"), table="" if request.param == "delta" else "a.b")
    with client_of(server) as client:
        make_topic(client, topic, partitions=2)
        yield Filled(client, options_of(server, topic), place)


def _numbered(first: int, count: int) -> list[Payload]:
    return [{"id": number, "name": f"name {number}", "tags": ["a", None]} for number in range(first, first + count)]


def _rows(frame: Any) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in frame.select("id", "name", PARTITION, OFFSET).collect())


def test_every_message_is_there_once_whatever_is_committed_meanwhile(spark: SparkSession, filled: Filled) -> None:
    filled.send(0, _numbered(0, 30))
    filled.fill(0)
    filled.send(0, [*_numbered(30, 5), {"id": "no number"}, *_numbered(35, 5)])
    filled.send(1, _numbered(100, 7))
    frame = read_with_tail(spark, filled.place, filled.options, TableRows(topic=filled.name, payloads=JSON))
    offsets = [*range(35), *range(36, 41)]
    expected = [(number, f"name {number}", 0, offset) for number, offset in zip(range(40), offsets, strict=True)]
    expected += [(100 + number, f"name {100 + number}", 1, number) for number in range(7)]
    assert _rows(frame) == expected
    assert {tuple(row.tags) for row in frame.collect()} == {("a", None)}
    # The same query again, after its tail became a part of the table, and with newer messages in the topic.
    filled.fill(0)
    filled.send(1, _numbered(107, 3))
    assert _rows(frame) == expected
    again = read_with_tail(spark, filled.place, filled.options, TableRows(topic=filled.name, payloads=JSON))
    more = [(number, f"name {number}", 1, number - 100) for number in range(107, 110)]
    assert _rows(again) == sorted([*expected, *more])


def test_newer_messages_replace_and_delete_rows_of_their_key(spark: SparkSession, filled: Filled) -> None:
    for key in "abc":
        filled.send(0, [{"id": 1, "name": f"old {key}"}], key)
    filled.fill(0, (KEY,))
    filled.send(0, [{"id": 2, "name": "newer a"}, {"id": 3, "name": "newest a"}], "a")
    filled.send(0, [None], "b")
    filled.send(0, [None, {"id": 4, "name": "first d"}], "d")
    rows = TableRows(topic=filled.name, payloads=JSON, key=(KEY,))
    frame = read_with_tail(spark, filled.place, filled.options, rows)
    expected = [(1, "old c", 0, 2), (3, "newest a", 0, 4), (4, "first d", 0, 7)]
    assert _rows(frame) == expected
    filled.fill(0, (KEY,))
    assert _rows(frame) == expected
    assert _rows(read_with_tail(spark, filled.place, filled.options, rows)) == expected


def test_a_table_that_is_not_there_is_named(spark: SparkSession, server: RunningServer, tmp_path: Path) -> None:
    place = table_place("delta", path=str(tmp_path / "nothing"))
    rows = TableRows(topic="shop/any", payloads=JSON)
    with pytest.raises(TableMissing, match=r"there is no table .*nothing; start the pipeline"):
        read_with_tail(spark, place, options_of(server, "any"), rows)
    assert not (tmp_path / "nothing").exists()
