"""Arrow columns to batches: every message as it was given, in frames that any client reads."""

import datetime
from collections import Counter
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from courser.client.targets import Target
from courser.records.batch import Batch, encode_batch, parse_batch
from courser.records.frames import Frame, iterate_frames
from courser.records.user_headers import UserHeader, iterate_user_headers
from courser.spark.errors import RowRefused
from courser.spark.routing import Destination, RowRouter
from courser.spark.row_encoding import key_partitions, make_batches
from courser.spark.write_options import WriteOptions

BYTES = st.binary(max_size=40)
FIELD = st.binary(min_size=1, max_size=12)
HEADERS = st.dictionaries(st.text(min_size=1, max_size=5).filter(str.isascii), FIELD, max_size=3)
DAY = 24 * 3600 * 1_000_000


def options(partitioning: str = "balanced", batch_size: int = 200) -> WriteOptions:
    return WriteOptions(
        target=Target(),
        stream="s",
        topic="t",
        partitioning=partitioning,
        is_exactly_once=True,
        create_partitions=None,
        job_id=None,
        batch_size=batch_size,
        retries=0,
    )


def routed(batches: list[Any], chosen: WriteOptions, partition_count: int = 3) -> list[tuple[Destination, Batch]]:
    """What a task would hand to the server, each batch checked as the server checks it."""
    router = RowRouter(chosen, lambda _stream, _topic: partition_count, first_turn=0)
    ready = [ready for batch in batches for ready in router.add(batch)] + list(router.rest())
    found = [(destination, batch) for destination, rows in ready for batch in make_batches(rows)]
    return [(destination, parse_batch(encode_batch(batch), verify_frames=True)) for destination, batch in found]


def frames(batches: list[tuple[Destination, Batch]]) -> list[tuple[int, Batch, Frame]]:
    return [
        (destination.partition, batch, frame)
        for destination, batch in batches
        for frame in iterate_frames(batch.body, batch.count)
    ]


def headers_of(frame: Frame) -> dict[bytes, bytes]:
    return {header.key: header.value for header in iterate_user_headers(frame.user_headers)}


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.lists(
            st.tuples(BYTES, st.none() | FIELD, st.none() | HEADERS, st.none() | st.binary(min_size=16, max_size=16)),
            max_size=12,
        ),
        max_size=4,
    )
)
def test_every_row_becomes_one_message(
    pieces: list[list[tuple[bytes, bytes | None, dict[str, bytes] | None, bytes]]],
) -> None:
    schema = pa.schema(
        [
            ("payload", pa.binary()),
            ("key", pa.binary()),
            ("headers", pa.map_(pa.string(), pa.binary())),
            ("id", pa.binary()),
        ]
    )
    batches = []
    for rows in pieces:
        columns = [list(column) for column in zip(*rows, strict=True)] or [[], [], [], []]
        columns[2] = [None if headers is None else list(headers.items()) for headers in columns[2]]
        arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
        # A slice of a larger batch, as Arrow hands them out too.
        batches.append(pa.RecordBatch.from_arrays(arrays, schema=schema))
    found = frames(routed(batches, options("key")))
    expected: Counter[Any] = Counter()
    for payload, key, headers, identity in (row for rows in pieces for row in rows):
        entries = {name.encode(): value for name, value in (headers or {}).items()}
        if key is not None:
            entries[b"courser.key"] = key
        expected[payload, tuple(entries.items()), identity] += 1
    given_ids = {identity for *_, identity in expected}
    seen: Counter[Any] = Counter()
    for partition, _, frame in found:
        entries = headers_of(frame)
        drawn = frame.message_id.to_bytes(16, "little")
        seen[bytes(frame.payload), tuple(entries.items()), drawn if drawn in given_ids else None] += 1
        if b"courser.key" in entries:
            assert key_partitions(pa.array([entries[b"courser.key"]], pa.binary()), 3).tolist() == [partition]
    assert seen == expected


def test_rows_of_a_partition_keep_their_order() -> None:
    numbers = list(range(300))
    table = pa.RecordBatch.from_pydict(
        {"value": [str(number) for number in numbers], "partition": [number % 3 for number in numbers]}
    )
    found = frames(routed([table.slice(0, 110), table.slice(110, 190)], options("column")))
    for partition in range(3):
        order = [int(bytes(frame.payload)) for number, _, frame in found if number == partition]
        assert order == numbers[partition::3]


def test_batches_have_the_size_that_was_asked_for() -> None:
    batch = pa.RecordBatch.from_pydict({"value": ["x" * 100] * 100})
    found = routed([batch.slice(start, 10) for start in range(0, 100, 10)], options(batch_size=5000))
    assert sum(part.count for _, part in found) == 100
    assert all(part.size <= 256 + 5000 for _, part in found)
    assert {destination.partition for destination, _ in found} == {0, 1, 2}


def test_record_batches_of_about_the_size_are_neither_cut_nor_joined() -> None:
    batch = pa.RecordBatch.from_pydict({"value": ["x" * 100] * 100})
    found = routed([batch.slice(0, count) for count in (32, 37, 33, 39)], options(batch_size=5000))
    # 148 bytes each: up to an eighth more or less than asked for. The last one is larger.
    assert [part.count for _, part in found] == [32, 37, 33, 33, 6]


def test_a_record_batch_of_any_size_is_cut_into_batches() -> None:
    sizes = [10, 3000, 20, 30, 9000, 40]
    batch = pa.RecordBatch.from_pydict({"value": ["x" * size for size in sizes]})
    found = routed([batch], options(batch_size=4000), partition_count=1)
    assert [part.count for _, part in found] == [4, 1, 1]
    assert [len(frame.payload) for _, _, frame in frames(found)] == sizes


def test_times_far_apart_are_in_batches_of_their_own() -> None:
    times = [0, DAY, DAY + 5, 3 * DAY, 3 * DAY - 1, 0]
    batch = pa.RecordBatch.from_arrays(
        [pa.array(["x"] * 6), pa.array(times, pa.timestamp("us", tz="UTC"))], ["value", "origin_timestamp"]
    )
    found = routed([batch], options(batch_size=10_000))
    stored = [part.origin_timestamp + frame.timestamp_delta for _, part, frame in frames(found)]
    assert stored == times
    assert [part.count for _, part in found] == [1, 2, 2, 1]


def test_headers_of_kafkas_shape_are_taken() -> None:
    pair = pa.struct([("key", pa.string()), ("value", pa.binary())])
    rows = [[{"key": "a", "value": b"1"}, {"key": "b", "value": b"2"}], None]
    batch = pa.RecordBatch.from_arrays([pa.array(["x", "y"]), pa.array(rows, pa.list_(pair))], ["value", "headers"])
    first, second = (frame for _, _, frame in frames(routed([batch], options())))
    assert headers_of(first) == {b"a": b"1", b"b": b"2"}
    assert bytes(second.user_headers) == b""


def test_text_headers_are_text() -> None:
    kind = pa.map_(pa.string(), pa.string())
    batch = pa.RecordBatch.from_arrays([pa.array(["x"]), pa.array([[("a", "b")]], kind)], ["value", "headers"])
    ((_, _, frame),) = frames(routed([batch], options()))
    assert list(iterate_user_headers(frame.user_headers)) == [UserHeader.of_text("a", "b")]


def test_a_key_among_the_headers_is_not_added_twice() -> None:
    kind = pa.map_(pa.string(), pa.binary())
    headers = pa.array([[("courser.key", b"k")], [("a", b"1")]], kind)
    batch = pa.RecordBatch.from_arrays(
        [pa.array(["x", "y"]), pa.array(["k", "k"]), headers], ["value", "key", "headers"]
    )
    first, second = (frame for _, _, frame in frames(routed([batch], options("key"))))
    assert len(list(iterate_user_headers(first.user_headers))) == 1
    assert headers_of(second) == {b"a": b"1", b"courser.key": b"k"}


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"value": [None]}, 'column "value" is null in row 0'),
        ({"value": ["x"], "id": [b"short"]}, "an id must have 16"),
        ({"value": ["x"], "headers": [[("", b"x")]]}, "a key has 0 bytes"),
        ({"value": ["x"], "headers": [[("a", b"x" * 256)]]}, "a value has 256 bytes"),
        ({"value": ["x"], "key": ["k" * 256]}, "the maximum is 255"),
        ({"value": ["x"], "origin_timestamp": [datetime.datetime(1969, 1, 1, tzinfo=datetime.UTC)]}, "before 1970"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_no_message_can_be_is_refused(columns: dict[str, list[Any]], message: str) -> None:
    kinds = {"headers": pa.map_(pa.string(), pa.binary()), "id": pa.binary(), "key": pa.string(), "value": pa.string()}
    kinds["origin_timestamp"] = pa.timestamp("us", tz="UTC")
    arrays = [pa.array(values, kinds[name]) for name, values in columns.items()]
    with pytest.raises(RowRefused, match=message):
        routed([pa.RecordBatch.from_arrays(arrays, list(columns))], options())
