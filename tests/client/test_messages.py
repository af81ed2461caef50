"""Single sends and polls: payloads, headers, keys, places to begin, whole batches."""

from array import array
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pytest
import xxhash

from courser.client.arrow import table_of
from courser.client.batch_view import BatchView
from courser.client.messages import (
    Message,
    Partitioning,
    PollingStrategy,
    SendMessage,
    microseconds,
)
from courser.client.payload_encryption import Encryptor
from courser.errors import DecryptionFailed, ErrorCode, InvalidBatch, OffsetsUnavailable, TargetRefused
from courser.model.identifiers import Consumer, ConsumerKind
from courser.model.quantities import CALENDAR_END
from courser.records.batch import NewMessage, build_batch, encode_batch
from courser.records.user_headers import HeaderKind, HeaderValue, UserHeader, read_value
from tests.client.twins import Twins

PLACE = "demo/orders"
FIRST = PollingStrategy.First()
NOW = microseconds(datetime.now(UTC))
KEY = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="


EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LAST = datetime.max.replace(tzinfo=UTC)


async def read(
    client: Any, partition_id: int = 0, strategy: PollingStrategy = FIRST, count: int = 100
) -> list[Message]:
    messages: list[Message] = await client.poll_messages(PLACE, None, partition_id, strategy, count, auto_commit=False)
    return messages


@dataclass
class Order:
    number: int
    note: str = ""


async def test_payloads_are_bytes_text_or_json(client: Any) -> None:
    payloads = [b"\x00\xff", bytearray(b"array"), memoryview(b"view"), "Größe", {"n": 1}, [1, 2], 7, None, Order(3)]
    await client.send_messages(PLACE, partitioning=0, messages=payloads)
    messages = await read(client)
    assert [message.payload for message in messages[:4]] == [b"\x00\xff", b"array", b"view", "Größe".encode()]
    assert messages[3].text() == "Größe"
    assert [message.json() for message in messages[4:8]] == [{"n": 1}, [1, 2], 7, None]
    assert messages[8].json(Order) == Order(3)
    with pytest.raises(msgspec.ValidationError):
        messages[4].json(Order)
    assert [message.offset for message in messages] == list(range(9))


async def test_a_view_of_anything_is_its_bytes_in_order(client: Any) -> None:
    views = [memoryview(b"g.a.p.s.")[::2], memoryview(array("I", [1, 2]))]
    await client.send_messages(PLACE, partitioning=0, messages=views)
    assert [message.payload for message in await read(client)] == [b"gaps", bytes((1, 0, 0, 0, 2, 0, 0, 0))]


async def test_one_message_needs_no_list(client: Any) -> None:
    for one in ("text", b"bytes", {"json": True}, SendMessage([1])):
        await client.send_messages(PLACE, partitioning=0, messages=one)
    assert [message.payload for message in await read(client)] == [b"text", b"bytes", b'{"json":true}', b"[1]"]


async def test_what_json_has_no_word_for_is_refused(client: Any) -> None:
    with pytest.raises(TypeError, match="a payload must be bytes, text, or a value for JSON, which object is not"):
        await client.send_messages(PLACE, messages=[object()])
    with pytest.raises(InvalidBatch, match="no messages"):
        await client.send_messages(PLACE, messages=[])


async def test_one_batch_spans_71_minutes_at_most(client: Any) -> None:
    with pytest.raises(InvalidBatch, match="71 minutes"):
        await client.send_messages(PLACE, messages=[SendMessage("x", timestamp=7), "y"])
    await client.send_messages(PLACE, partitioning=0, messages=[SendMessage("x", timestamp=7)])
    assert [message.origin_timestamp for message in await read(client)] == [7]


@pytest.mark.parametrize("timestamp", [0, 253_402_300_799_999_999, 253_402_300_800_000_000, 2**63, 2**64 - 1])
async def test_every_time_of_64_bits_can_be_sent_and_read(client: Any, timestamp: int) -> None:
    await client.send_messages(PLACE, partitioning=0, messages=[SendMessage("a", timestamp=timestamp)])
    (message,) = await read(client)
    assert message.origin_timestamp == timestamp
    polled = await client.poll_batches(PLACE, partition_id=0, polling_strategy=PollingStrategy.First())
    (row,) = polled.to_arrow().to_pylist()
    assert row["origin_timestamp"] == min(EPOCH + timedelta(microseconds=min(timestamp, CALENDAR_END)), LAST)


@pytest.mark.parametrize("timestamp", [-1, 2**64, 2**200])
async def test_a_time_of_more_than_64_bits_is_refused_with_a_reason(client: Any, timestamp: int) -> None:
    with pytest.raises(InvalidBatch, match="must be 0 to 18446744073709551615 microseconds since 1970"):
        await client.send_messages(PLACE, partitioning=0, messages=[SendMessage("a", timestamp=timestamp)])
    assert await read(client) == []


@pytest.mark.parametrize("message_id", [-1, 2**128])
async def test_an_id_of_more_than_128_bits_is_refused_with_a_reason(client: Any, message_id: int) -> None:
    with pytest.raises(InvalidBatch, match="128-bit"):
        await client.send_messages(PLACE, partitioning=0, messages=[SendMessage("a", id=message_id)])


@pytest.mark.parametrize("timestamp", [0, 1_700_000_000_123_457, CALENDAR_END, CALENDAR_END + 1, 2**63, 2**64 - 1])
def test_a_time_beyond_the_calendar_is_its_end(timestamp: int) -> None:
    message = Message(b"", 0, 0, timestamp, timestamp, 0)
    assert message.time == EPOCH + timedelta(microseconds=min(timestamp, CALENDAR_END))
    assert (message.time == LAST) == (timestamp >= CALENDAR_END)


def test_times_of_a_batch_around_the_end_of_the_calendar_and_of_the_numbers() -> None:
    for origin in (CALENDAR_END - 1, 2**63 - 1, 2**64 - 2):
        rows = [NewMessage(b"x", origin_timestamp=time) for time in (origin, origin + 1)]
        # The server's time is not one that a client chooses; what travels may say anything.
        record = memoryview(encode_batch(build_batch(rows), base_timestamp=2**64 - 1))
        table = table_of([BatchView(record)])
        assert table.column("timestamp").to_pylist() == [LAST, LAST]
        expected = [EPOCH + timedelta(microseconds=min(time, CALENDAR_END)) for time in (origin, origin + 1)]
        assert table.column("origin_timestamp").to_pylist() == expected


async def test_a_message_has_an_id_times_and_headers(client: Any) -> None:
    before = microseconds(datetime.now(UTC))
    headers: dict[str, HeaderValue] = {
        "text": "ü",
        "raw": b"\x01",
        "yes": True,
        "small": -5,
        "large": 2**100,
        "half": 0.5,
    }
    await client.send_messages(
        PLACE, partitioning=0, messages=[SendMessage("x", id=2**128 - 1, headers=headers, timestamp=before - 42), "y"]
    )
    first, second = await read(client)
    assert (first.id, first.origin_timestamp, first.headers, first.key) == (2**128 - 1, before - 42, headers, None)
    assert first.timestamp == second.timestamp >= before
    assert second.origin_timestamp >= before
    assert first.time == datetime.fromtimestamp(first.timestamp / 1_000_000, UTC)
    assert second.id not in (0, first.id)
    assert (second.headers, second.raw_headers) == ({}, b"")


async def test_a_header_can_have_any_kind(client: Any) -> None:
    entry = UserHeader(b"narrow", b"\x07\x00", HeaderKind.STRING, HeaderKind.UINT16)
    number = UserHeader(b"\x01\x00\x00\x00", b"v", HeaderKind.UINT32, HeaderKind.STRING)
    await client.send_messages(PLACE, partitioning=0, messages=[SendMessage("x", headers={"a": entry, "b": number})])
    (message,) = await read(client)
    assert message.headers == {"narrow": 7, "1": "v"}
    assert list(message.header_entries()) == [entry, number]


@pytest.mark.parametrize(
    ("kind", "data", "value"),
    [
        (HeaderKind.RAW, b"\xff", b"\xff"),
        (HeaderKind.STRING, b"a", "a"),
        (HeaderKind.BOOL, b"\x01", True),
        (HeaderKind.INT8, b"\xff", -1),
        (HeaderKind.UINT8, b"\xff", 255),
        (HeaderKind.INT128, b"\xff" * 16, -1),
        (HeaderKind.UINT128, b"\xff" * 16, 2**128 - 1),
        (HeaderKind.FLOAT32, b"\x00\x00\x80\x3f", 1.0),
        (HeaderKind.INT32, b"\x01", b"\x01"),
    ],
)
def test_header_values_become_those_of_python(kind: HeaderKind, data: bytes, value: object) -> None:
    assert read_value(kind, data) == value


async def test_headers_that_cannot_be_are_refused(client: Any) -> None:
    for headers in ({"": "x"}, {"k": ""}, {"k": "x" * 256}):
        with pytest.raises(InvalidBatch):
            await client.send_messages(PLACE, messages=[SendMessage("x", headers=headers)])


async def test_a_key_chooses_the_partition_and_stays_with_the_message(client: Any) -> None:
    sent = await client.send_messages(PLACE, None, Partitioning.key("customer-1"), ["a", "b"])
    assert sent.partition_id == xxhash.xxh32_intdigest(b"customer-1") % 3
    messages = await read(client, sent.partition_id)
    assert [(message.text(), message.key, message.headers) for message in messages] == [
        ("a", b"customer-1", {}),
        ("b", b"customer-1", {}),
    ]


async def test_partitions_in_turn(client: Any) -> None:
    sent = [await client.send_messages(PLACE, messages=["x"]) for _ in range(6)]
    assert sorted(place.partition_id for place in sent) == [0, 0, 1, 1, 2, 2]
    named = await client.send_messages(PLACE, partitioning=Partitioning.PartitionId(2), messages=["x", "y"])
    assert (named.partition_id, named.base_offset) == (2, 2)


async def test_where_a_poll_begins(client: Any) -> None:
    for text in "abcde":
        await client.send_messages(PLACE, partitioning=0, messages=[text])
    times = [message.timestamp for message in await read(client)]

    async def texts(strategy: PollingStrategy, count: int = 2) -> str:
        return "".join(message.text() for message in await read(client, 0, strategy, count))

    assert await texts(PollingStrategy.First()) == "ab"
    assert await texts(PollingStrategy.Last()) == "de"
    assert await texts(PollingStrategy.Offset(3)) == "de"
    assert await texts(PollingStrategy.Offset(9)) == ""
    assert await texts(PollingStrategy.Timestamp(times[2])) in {"cd", "bc"[:2]}
    assert await texts(PollingStrategy.Timestamp(datetime.fromtimestamp(0, UTC)), 5) == "abcde"
    assert await texts(PollingStrategy.Next(), 5) == "abcde"


async def test_the_stored_offset_moves_with_auto_commit(client: Any) -> None:
    await client.send_messages(PLACE, partitioning=0, messages=list("abcd"))
    single = {"partition_id": 0, "count": 2}
    assert len(await client.poll_messages(PLACE, **single, auto_commit=False)) == 2
    assert [m.text() for m in await client.poll_messages(PLACE, **single)] == ["a", "b"]
    assert [m.text() for m in await client.poll_messages(PLACE, **single)] == ["c", "d"]
    assert await client.poll_messages(PLACE, **single) == []
    assert len(await client.poll_messages(PLACE, **single, consumer="other")) == 2
    numbered = Consumer(ConsumerKind.CONSUMER, 5)
    assert len(await client.poll_messages(PLACE, **single, consumer=numbered)) == 2


async def test_a_poll_can_wait_and_has_a_byte_limit(client: Any) -> None:
    assert await client.poll_messages(PLACE, partition_id=0, wait=0.01) == []
    await client.send_messages(PLACE, partitioning=0, messages=["x" * 100] * 10)
    assert len(await client.poll_messages(PLACE, partition_id=0, count=10, size_max=1, wait=1)) == 1


async def test_offsets_that_are_gone_are_named_or_passed_over(client: Any) -> None:
    await client.send_messages(PLACE, partitioning=0, messages=list("abc"))
    await client.purge_topic(PLACE)
    await client.send_messages(PLACE, partitioning=0, messages=["d"])
    with pytest.raises(OffsetsUnavailable) as gap:
        await read(client, 0, PollingStrategy.Offset(1))
    assert (gap.value.code, gap.value.first_offset, gap.value.end_offset) == (ErrorCode.OFFSET_GONE, 1, 3)
    for wait in (0, 0.01):
        passed = await client.poll_messages(PLACE, None, 0, PollingStrategy.Offset(1), skip_missing=True, wait=wait)
        assert [(message.offset, message.text()) for message in passed] == [(3, "d")]


# --- whole batches ------------------------------------------------------------------------------------


async def test_batches_come_as_buffers(client: Any) -> None:
    await client.send_messages(PLACE, partitioning=1, messages=["same", "size"])
    await client.send_messages(PLACE, partitioning=1, messages=[SendMessage("x", key="k", timestamp=NOW), "longer"])
    polled = await client.poll_batches(PLACE, partition_id=1)
    assert (polled.partition_id, polled.message_count, polled.current_offset, polled.next_offset) == (1, 4, 3, 4)
    first, second = polled
    assert (first.base_offset, first.count, first.first_offset, first.next_offset) == (0, 2, 0, 2)
    assert len(first.body) == 2 * (48 + 4)
    assert first.frames.frame_size == 52
    assert bytes(first.payloads()[1]) == b"samesize"
    assert second.offsets().tolist() == [2, 3]
    ends, data = second.payloads()
    assert (ends.tolist(), bytes(data)) == ([0, 1, 7], b"xlonger")
    assert second.origin_timestamps()[0] == NOW
    assert second.header_lengths().tolist()[1] == 0
    assert [message.text() for message in polled.messages()] == ["same", "size", "x", "longer"]
    ids = [message.id for message in polled.messages()]
    assert [int.from_bytes(bytes(number), "little") for number in first.ids()] == ids[:2]


async def test_a_batch_that_was_cut_knows_its_offsets(client: Any) -> None:
    await client.send_messages(PLACE, partitioning=1, messages=["a", "bb", "ccc", "d"])
    polled = await client.poll_batches(PLACE, None, 1, PollingStrategy.Offset(1), 2)
    (view,) = polled
    assert (view.first_offset, view.next_offset, view.count) == (1, 3, 2)
    assert view.offsets().tolist() == [1, 2]
    assert bytes(view.payloads()[1]) == b"bbccc"
    assert len(polled) == 1


async def test_nothing_is_no_batch(client: Any) -> None:
    polled = await client.poll_batches(PLACE, partition_id=0)
    assert (len(polled), polled.next_offset, polled.to_arrow().num_rows) == (0, None, 0)


async def test_batches_become_an_arrow_table(client: Any) -> None:
    await client.send_messages(PLACE, partitioning=0, messages=["same", "size"])
    rich = [SendMessage("", headers={"n": 1}, id=5, timestamp=NOW), SendMessage("xyz", key="k"), "plain"]
    await client.send_messages(PLACE, partitioning=0, messages=rich)
    polled = await client.poll_batches(PLACE, partition_id=0)
    table = polled.to_arrow(headers=True)
    table.validate(full=True)
    assert table.column_names == [
        "partition", "offset", "timestamp", "origin_timestamp", "id", "key", "payload", "headers",
    ]  # fmt: skip
    assert table["offset"].to_pylist() == [0, 1, 2, 3, 4]
    assert table["payload"].to_pylist() == [b"same", b"size", b"", b"xyz", b"plain"]
    assert table["key"].to_pylist() == [None, None, None, b"k", None]
    assert table["id"].to_pylist()[2] == (5).to_bytes(16, "little")
    assert table["origin_timestamp"].cast(pa.int64()).to_pylist()[2] == NOW
    assert table["timestamp"].cast(pa.int64()).to_pylist() == [m.timestamp for m in polled.messages()]
    headers = table["headers"].to_pylist()
    assert headers[0] is None
    assert headers[2] == [("n", (1).to_bytes(8, "little"))]
    assert headers[3] == [("courser.key", b"k")]
    assert polled.to_arrow().column_names == table.column_names[:-1]
    assert isinstance(polled.views[0].offsets(), np.ndarray)


# --- encryption ---------------------------------------------------------------------------------------


async def test_encrypted_payloads_are_read_with_the_key_only(scene: Twins, client: Any) -> None:
    secret = await scene.connect(encryption_key=KEY)
    message = SendMessage({"n": 1}, headers={"h": "v"}, key="k")
    await secret.send_messages(PLACE, partitioning=0, messages=[message, "plain"])
    decrypted = await read(secret)
    assert (decrypted[0].json(), decrypted[0].headers, decrypted[0].key) == ({"n": 1}, {"h": "v"}, b"k")
    assert decrypted[1].text() == "plain"
    raw = await read(client)
    assert all(len(message.payload) >= 12 + 16 for message in raw)
    assert raw[0].headers == {}
    assert raw[0].key is None
    assert Encryptor(KEY).decrypt(raw[1].payload) == b"plain"
    other = await scene.connect(encryption_key=bytes(32))
    with pytest.raises(DecryptionFailed):
        await read(other)
    assert (await other.poll_batches(PLACE, partition_id=0)).message_count == 2


async def test_headers_that_older_sdks_left_readable_are_read(scene: Twins, client: Any) -> None:
    payload = Encryptor(KEY).encrypt(b"secret")
    await client.send_messages(PLACE, partitioning=0, messages=[SendMessage(payload, headers={"open": 1})])
    secret = await scene.connect(encryption_key=KEY)
    (message,) = await read(secret)
    assert (message.text(), message.headers) == ("secret", {"open": 1})


def test_the_form_of_encrypted_bytes_is_that_of_the_other_sdks() -> None:
    """Nonce, ciphertext, tag: test case 14 of the paper that proposed GCM."""
    vector = bytes.fromhex("000000000000000000000000cea7403d4d606b6e074ec5d3baf39d18d0d1c8a799996bf0265b98b5d48ab919")
    assert Encryptor(bytes(32)).decrypt(vector) == bytes(16)


@pytest.mark.parametrize("key", ["short", "AAAA", b"x" * 31, "not base64 at all!"])
def test_a_key_has_32_bytes(key: str | bytes) -> None:
    with pytest.raises(TargetRefused, match="32 bytes"):
        Encryptor(key)


@pytest.mark.parametrize("data", [b"", b"x", bytes(12), bytes(40)])
def test_what_was_not_encrypted_cannot_be_decrypted(data: bytes) -> None:
    with pytest.raises(DecryptionFailed):
        Encryptor(KEY).decrypt(data)
