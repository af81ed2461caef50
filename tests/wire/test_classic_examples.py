"""Requests as the Python SDKs of the releases 0.5 to 0.8 really sent them, byte for byte, and replies they accepted."""

import struct

import pytest

from courser.api import commands as c
from courser.api import replies as r
from courser.errors import CommandRejected, ErrorCode
from courser.model.identifiers import Consumer, ConsumerKind
from courser.model.messaging import PollingKind, ToPartition
from courser.model.quantities import NEVER
from courser.model.topic_options import TopicOptions
from courser.records.batch import encode_batch
from courser.records.classic import Dialect
from courser.records.frames import iterate_frames
from courser.wire.classic import ClassicCodec
from courser.wire.codec import Incoming
from tests.wire.classic_client import parse_polled

G5, G6, G7, G8 = Dialect.SDK_0_5, Dialect.SDK_0_6, Dialect.SDK_0_7, Dialect.SDK_0_8

LOGINS = {
    G5: "1b000000 26000000 04 69676779 04 69676779 05000000 302e372e30 00000000",
    G6: "1b000000 26000000 04 69676779 04 69676779 05000000 302e382e30 00000000",
    G7: "1b000000 26000000 04 69676779 04 69676779 05000000 302e392e30 00000000",
    G8: "1c000000 26000000 04 69676779 04 69676779 06000000 302e31302e30 00000000",
}
STREAM, TOPIC, GROUP = "02 05 7374722d31", "02 05 746f702d31", "02 05 6772702d31"
MEMBER = Consumer(ConsumerKind.GROUP, "grp-1")


def create_topic(message_expiry: int | None) -> c.CreateTopic:
    return c.CreateTopic("str-1", "top-1", 3, TopicOptions(compression=1, message_expiry=message_expiry))


def poll(consumer: Consumer, partition_id: int | None, kind: PollingKind) -> c.PollMessages:
    return c.PollMessages(consumer, "str-1", "top-1", partition_id, kind, 0, 10, auto_commit=False)


def single(number: int) -> Consumer:
    return Consumer(ConsumerKind.CONSUMER, number)


REQUESTS: list[tuple[str, list[Dialect], str, c.Command]] = [
    ("ping", [G5, G6, G7, G8], "04000000 01000000", c.Ping()),
    ("cluster metadata", [G6, G7, G8], "04000000 0c000000", c.GetClusterMetadata()),
    ("create stream", [G5], "0e000000 ca000000 00000000 05 7374722d31", c.CreateStream("str-1")),
    ("create stream", [G6, G7, G8], "0a000000 ca000000 05 7374722d31", c.CreateStream("str-1")),
    ("get stream by name", [G5, G6, G7, G8], f"0b000000 c8000000 {STREAM}", c.GetStream("str-1")),
    ("get stream by id", [G6, G7, G8], "0a000000 c8000000 01 04 00000000", c.GetStream(0)),
    ("get stream by id", [G5], "0a000000 c8000000 01 04 01000000", c.GetStream(0)),
    (
        "create topic",
        [G5],
        f"2b000000 2e010000 {STREAM} 00000000 03000000 01 ffffffffffffffff 0000000000000000 00 05 746f702d31",
        create_topic(NEVER),
    ),
    (
        "create topic",
        [G6],
        f"27000000 2e010000 {STREAM} 03000000 01 ffffffffffffffff 0000000000000000 00 05 746f702d31",
        create_topic(NEVER),
    ),
    (
        "create topic",
        [G7, G8],
        f"27000000 2e010000 {STREAM} 03000000 01 0000000000000000 0000000000000000 00 05 746f702d31",
        create_topic(None),
    ),
    (
        "create topic with all options",
        [G8],
        f"27000000 2e010000 {STREAM} 02000000 02 8096980000000000 00e40b5402000000 01 05 746f702d32",
        c.CreateTopic(
            "str-1",
            "top-2",
            2,
            TopicOptions(compression=2, message_expiry=10_000_000, max_topic_size=10**10, replication_factor=1),
        ),
    ),
    ("get topic", [G5, G6, G7, G8], f"12000000 2c010000 {STREAM} {TOPIC}", c.GetTopic("str-1", "top-1")),
    (
        "poll first",
        [G6, G7, G8],
        f"2c000000 64000000 01 01 04 00000000 {STREAM} {TOPIC} 01 00000000 03 0000000000000000 0a000000 00",
        poll(single(0), 0, PollingKind.FIRST),
    ),
    (
        "poll first",
        [G5],
        f"2b000000 64000000 01 01 04 01000000 {STREAM} {TOPIC} 01000000 03 0000000000000000 0a000000 00",
        poll(single(1), 0, PollingKind.FIRST),
    ),
    (
        "get group",
        [G5, G6, G7, G8],
        f"19000000 58020000 {STREAM} {TOPIC} {GROUP}",
        c.GetConsumerGroup("str-1", "top-1", "grp-1"),
    ),
    (
        "create group",
        [G6, G7, G8],
        f"18000000 5a020000 {STREAM} {TOPIC} 05 6772702d31",
        c.CreateConsumerGroup("str-1", "top-1", "grp-1"),
    ),
    (
        "create group",
        [G5],
        f"1c000000 5a020000 {STREAM} {TOPIC} 00000000 05 6772702d31",
        c.CreateConsumerGroup("str-1", "top-1", "grp-1"),
    ),
    (
        "join",
        [G5, G6, G7, G8],
        f"19000000 5c020000 {STREAM} {TOPIC} {GROUP}",
        c.JoinConsumerGroup("str-1", "top-1", "grp-1"),
    ),
    (
        "poll as a member",
        [G6, G7, G8],
        f"2d000000 64000000 02 {GROUP} {STREAM} {TOPIC} 00 00000000 05 0000000000000000 0a000000 00",
        poll(MEMBER, None, PollingKind.NEXT),
    ),
    (
        "poll as a member",
        [G5],
        f"2c000000 64000000 02 {GROUP} {STREAM} {TOPIC} 00000000 05 0000000000000000 0a000000 00",
        poll(MEMBER, None, PollingKind.NEXT),
    ),
    (
        "store offset",
        [G6, G7, G8],
        f"27000000 79000000 02 {GROUP} {STREAM} {TOPIC} 01 00000000 0100000000000000",
        c.StoreConsumerOffset(MEMBER, "str-1", "top-1", 0, 1),
    ),
    (
        "store offset",
        [G5],
        f"26000000 79000000 02 {GROUP} {STREAM} {TOPIC} 01000000 0100000000000000",
        c.StoreConsumerOffset(MEMBER, "str-1", "top-1", 0, 1),
    ),
    (
        "delete offset",
        [G6, G7, G8],
        f"1f000000 7a000000 02 {GROUP} {STREAM} {TOPIC} 01 00000000",
        c.DeleteConsumerOffset(MEMBER, "str-1", "top-1", 0),
    ),
    (
        "delete offset",
        [G5],
        f"1e000000 7a000000 02 {GROUP} {STREAM} {TOPIC} 01000000",
        c.DeleteConsumerOffset(MEMBER, "str-1", "top-1", 0),
    ),
]


def logged_in(dialect: Dialect) -> ClassicCodec:
    codec = ClassicCodec(None, lambda count: b"\5" * 16 * count)
    incoming = codec.decode(memoryview(bytes.fromhex(LOGINS[dialect])), is_logged_in=False)
    assert isinstance(incoming.command, c.LoginUser)
    assert (incoming.command.name, incoming.command.password) == ("iggy", "iggy")
    return codec


@pytest.mark.parametrize("dialect", LOGINS)
def test_the_version_string_tells_the_python_releases_apart(dialect: Dialect) -> None:
    assert logged_in(dialect).dialect is dialect


@pytest.mark.parametrize(
    ("dialect", "data", "command"),
    [
        pytest.param(dialect, data, command, id=f"{name} of {dialect.value}")
        for name, dialects, data, command in REQUESTS
        for dialect in dialects
    ],
)
@pytest.mark.parametrize("has_version", [True, False])
def test_a_request_is_understood(dialect: Dialect, data: str, command: c.Command, has_version: bool) -> None:
    codec = logged_in(dialect) if has_version else ClassicCodec(None, bytes)
    if not has_version and data.startswith("0a000000 c8000000 01 04 01"):
        return  # Nothing in it says that ids are counted from 1.
    # As SDKs of the Rust family do when they connect.
    codec.decode(memoryview(bytes.fromhex("04000000 01000000")), is_logged_in=True)
    request = memoryview(bytes.fromhex(data))
    assert codec.frame_size(request) == len(request)
    assert codec.decode(request, is_logged_in=True).command == command


UNSET = "00" * 40
"""Checksum, id, offset and timestamp: the client leaves them to the server."""
SENT_LONG = f"""cd000000 65000000 18000000 {STREAM} {TOPIC} 02 04 00000000 02000000
    00000000 45000000 0000000000000000  00000000 8d000000 0000000000000000
    {UNSET} 7e9399e64a600600 00000000 05000000 0000000000000000 68656c6c6f
    {UNSET} 889399e64a600600 00000000 08000000 0000000000000000 77c3b6726c642d32"""
SENT_SHORT = f"""bd000000 65000000 18000000 {STREAM} {TOPIC} 02 04 PARTITION 02000000
    00000000 3d000000 0000000000000000  00000000 7d000000 0000000000000000
    {UNSET} 7e9399e64a600600 00000000 05000000 68656c6c6f
    {UNSET} 889399e64a600600 00000000 08000000 77c3b6726c642d32"""
SENDS = {
    G5: SENT_SHORT.replace("PARTITION", "01000000"),
    G6: SENT_SHORT.replace("PARTITION", "00000000"),
    G7: SENT_LONG,
    G8: SENT_LONG,
}


@pytest.mark.parametrize("dialect", SENDS)
def test_sent_messages_come_back_in_the_same_form(dialect: Dialect) -> None:
    codec = logged_in(dialect)
    incoming = codec.decode(memoryview(bytes.fromhex(SENDS[dialect])), is_logged_in=True)
    command = incoming.command
    assert isinstance(command, c.SendMessages)
    assert (command.stream, command.topic, command.partitioning) == ("str-1", "top-1", ToPartition(0))
    (batch,) = command.batches
    frames = list(iterate_frames(batch.body, batch.count))
    assert [bytes(one.payload) for one in frames] == [b"hello", "wörld-2".encode()]
    assert [one.message_id for one in frames] == [int.from_bytes(b"\5" * 16, "little")] * 2
    assert codec.encode_reply(incoming, r.Sent(0, 0, 0, 0)) == (bytes(8),)

    record = memoryview(encode_batch(batch, base_offset=0, base_timestamp=number("7a9499e64a600600")))
    (data,) = codec.encode_reply(
        Incoming(poll(MEMBER, None, PollingKind.NEXT)), r.Polled(0, 1, 2, (record,), len(record))
    )
    assert len(data) == 8 + (157 if dialect.has_long_header else 141)
    read = parse_polled(bytes(data[8:]), dialect)
    assert (read.partition_id, read.current_offset) == (0, 1)
    assert bytes(data[8:12]) == struct.pack("<I", 1 if dialect is G5 else 0)
    assert [one.timestamp for one in read.messages] == [number("7a9499e64a600600")] * 2
    assert [one.origin for one in read.messages] == [number("7e9399e64a600600"), number("889399e64a600600")]
    assert [one.offset for one in read.messages] == [0, 1]


def number(data: str) -> int:
    return int.from_bytes(bytes.fromhex(data), "little")


@pytest.mark.parametrize("dialect", LOGINS)
def test_a_poll_that_finds_nothing(dialect: Dialect) -> None:
    codec = logged_in(dialect)
    (data,) = codec.encode_reply(Incoming(poll(MEMBER, None, PollingKind.NEXT)), r.Polled(0, 1, 0, (), 0))
    partition = "01000000" if dialect is G5 else "00000000"
    assert data == bytes.fromhex(f"00000000 10000000 {partition} 0100000000000000 00000000")


def test_a_partition_that_is_not_there() -> None:
    codec = logged_in(G8)
    incoming = codec.decode(memoryview(bytes.fromhex(SENDS[G8])), is_logged_in=True)
    error = CommandRejected(ErrorCode.PARTITION_NOT_FOUND, "partition 99")
    assert codec.encode_failure(incoming, error) == (bytes.fromhex("bf0b0000 00000000"),)


def test_a_stream_that_was_created() -> None:
    reply = r.StreamInfo(0, number("528399e64a600600"), 0, 0, 0, "str-1")
    tail = f"528399e64a600600 {'00' * 20} 05 7374722d31"
    for dialect, stream_id in ((G5, "01000000"), (G8, "00000000")):
        codec = logged_in(dialect)
        incoming = codec.decode(memoryview(bytes.fromhex("04000000 01000000")), is_logged_in=True)
        assert codec.encode_reply(incoming, reply) == (bytes.fromhex(f"00000000 26000000 {stream_id} {tail}"),)
