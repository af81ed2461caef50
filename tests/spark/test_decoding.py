"""Stored bytes into record batches: every field of every message, whatever the batches look like."""

import random
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pyarrow as pa  # type: ignore[import-untyped]  # it has no stubs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from courser.api.replies import Polled
from courser.client.batches import messages_of
from courser.records.batch import NewMessage, build_batch, encode_batch
from courser.records.message_keys import KEY_HEADER
from courser.records.user_headers import HeaderKind, UserHeader, build_user_headers
from courser.spark.decoding import ROW_COUNT_MAX, Decoder
from courser.spark.errors import ReadFailed
from courser.spark.releases import arrow_schema
from courser.spark.schema import default_schema

EVERYTHING = arrow_schema(default_schema("native", include_headers=True))
KAFKA = arrow_schema(default_schema("kafka", include_headers=True))
BASE_TIME = 1_700_000_000_000_000


def stored(batches: Sequence[Sequence[NewMessage]], partition: int = 3, offset: int = 100) -> memoryview:
    """Batches behind one another, as a poll gives them."""
    records = []
    for number, messages in enumerate(batches):
        batch = build_batch(messages)
        records.append(
            encode_batch(batch, partition_id=partition, base_offset=offset, base_timestamp=BASE_TIME + number)
        )
        offset += batch.count
    return memoryview(b"".join(records))


def decoded(records: memoryview, start: int = 0, end: int = 2**63, **options: int) -> "pa.Table":
    decoder = Decoder(EVERYTHING, stream="shop", topic="orders", size_max=options.get("size_max", 2**21))
    return pa.Table.from_batches(list(decoder.decode(records, start, end)), EVERYTHING)


def time_of(microseconds: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=microseconds)


def message(number: int, payload: bytes = b"payload", headers: bytes = b"") -> NewMessage:
    return NewMessage(payload, number, BASE_TIME - 1_000_000 + number * 7, headers)


header_blocks = st.lists(
    st.builds(
        UserHeader,
        st.text(min_size=1, max_size=8).map(str.encode) | st.just(KEY_HEADER),
        st.binary(min_size=1, max_size=20),
    ),
    max_size=4,
).map(build_user_headers)
any_messages = st.lists(
    st.builds(
        NewMessage,
        st.binary(max_size=40),
        st.integers(0, 2**128 - 1),
        st.integers(BASE_TIME, BASE_TIME + 1000),
        header_blocks | st.binary(max_size=30),
    ),
    min_size=1,
    max_size=8,
)


@settings(max_examples=200, deadline=None)
@given(st.lists(any_messages, min_size=1, max_size=4), st.integers(95, 130), st.integers(0, 30))
def test_every_field_comes_out_as_the_client_reads_it(batches: list[list[NewMessage]], start: int, count: int) -> None:
    records = stored(batches)
    total = sum(len(messages) for messages in batches)
    expected = [
        one for one in messages_of(Polled(3, 0, total, (records,), len(records))) if start <= one.offset < start + count
    ]
    rows = decoded(records, start, start + count).to_pylist()
    assert [row["offset"] for row in rows] == [one.offset for one in expected]
    for row, one in zip(rows, expected, strict=True):
        assert (row["stream"], row["topic"], row["partition"]) == ("shop", "orders", 3)
        assert row["payload"] == one.payload
        assert int.from_bytes(row["id"], "little") == one.id
        assert (row["timestamp"], row["origin_timestamp"]) == (time_of(one.timestamp), time_of(one.origin_timestamp))
        assert row["key"] == one.key
        pairs = [
            (entry.key.decode(errors="replace"), entry.value)
            for entry in one.header_entries()
            if entry.key != KEY_HEADER
        ]
        assert row["headers"] == (pairs or None)


def test_frames_of_one_size_and_mixed_sizes_are_cut_into_record_batches_of_about_the_wanted_size() -> None:
    mixed = random.Random(7)
    batches = [
        [message(number, bytes(100)) for number in range(1000)],
        [message(number, mixed.randbytes(mixed.randrange(200))) for number in range(1000)],
    ]
    decoder = Decoder(EVERYTHING, stream="shop", topic="orders", size_max=50_000)
    parts = list(decoder.decode(stored(batches), 0, 2**63))
    assert sum(len(part) for part in parts) == 2000
    assert all(len(part) * 48 < 60_000 for part in parts)
    assert len(parts) > 3
    table = pa.Table.from_batches(parts)
    assert table["payload"].to_pylist() == [one.payload for messages in batches for one in messages]
    assert table["offset"].to_pylist() == list(range(100, 2100))


def test_a_record_batch_has_no_more_rows_than_spark_likes() -> None:
    parts = list(
        Decoder(EVERYTHING, stream="a", topic="b", size_max=2**30).decode(
            stored([[message(number, b"") for number in range(ROW_COUNT_MAX + 1)]]), 0, 2**63
        )
    )
    assert [len(part) for part in parts] == [ROW_COUNT_MAX, 1]


def test_headers_whose_names_are_no_text_are_readable_all_the_same() -> None:
    headers = build_user_headers([UserHeader(b"\xff\xfe\x00\x01", b"x", HeaderKind.INT32, HeaderKind.RAW)])
    rows = decoded(stored([[message(0, headers=headers)]])).to_pylist()
    assert rows[0]["headers"] == [("\ufffd\ufffd\x00\x01", b"x")]


def test_kafka_style_has_the_columns_that_its_users_know() -> None:
    headers = build_user_headers([UserHeader.of_text("trace", "1"), UserHeader(KEY_HEADER, b"k")])
    decoder = Decoder(KAFKA, stream="shop", topic="orders", size_max=2**21)
    (batch,) = decoder.decode(stored([[message(0, b"value", headers), message(1, b"")]]), 0, 2**63)
    first, second = batch.to_pylist()
    assert (first["key"], first["value"], first["topic"], first["timestampType"]) == (b"k", b"value", "orders", 1)
    assert first["headers"] == [{"key": "trace", "value": b"1"}]
    assert (second["key"], second["headers"]) == (None, None)


def test_times_beyond_the_calendar_are_its_end() -> None:
    """As the client has it: producers choose them, and Spark knows no year 10000."""
    times = (253_402_300_799_999_998, 253_402_300_799_999_999, 2**63 - 1, 2**63, 2**64 - 1)
    table = decoded(stored([[NewMessage(b"x", origin_timestamp=time)] for time in times]))
    last = datetime.max.replace(tzinfo=UTC)
    assert table.column("origin_timestamp").to_pylist() == [last.replace(microsecond=999_998), *[last] * 4]


def test_an_offset_of_more_than_63_bits_is_refused() -> None:
    with pytest.raises(ReadFailed, match="does not fit Spark's BIGINT"):
        decoded(stored([[message(0)]], offset=2**63))


def test_lengths_that_contradict_each_other_are_refused() -> None:
    records = bytearray(stored([[message(0), message(1)]]))
    records[256 + 36] ^= 0xFF
    with pytest.raises(ReadFailed, match="could not decode the batch at offset 100"):
        decoded(memoryview(records))


def test_a_task_does_not_load_pandas() -> None:
    """It takes half a second, in every new worker; so it is looked at in a process of its own."""
    code = """
import sys
from courser.records.batch import NewMessage, build_batch, encode_batch
from courser.spark.decoding import Decoder
from courser.spark.releases import arrow_schema
from courser.spark.schema import default_schema
for sizes in ([10, 10], [10, 20]):
    batch = build_batch([NewMessage(bytes(size)) for size in sizes])
    records = memoryview(encode_batch(batch, partition_id=0, base_offset=0, base_timestamp=1))
    schema = arrow_schema(default_schema("native", include_headers=False))
    (rows,) = Decoder(schema, stream="shop", topic="orders", size_max=2**21).decode(records, 0, 9)
    assert rows.num_rows == 2
print("pandas" in sys.modules)
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert result.stdout.split() == ["False"]
