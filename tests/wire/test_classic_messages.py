"""Messages of one release, read by another: what is sent is what is polled."""

import zlib
from collections.abc import Callable
from dataclasses import replace
from itertools import product

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from courser.api import commands as c
from courser.api import replies as r
from courser.errors import ErrorCode, Rejection
from courser.model.identifiers import Consumer, ConsumerKind
from courser.model.messaging import Balanced, ByKey, PollingKind
from courser.records.batch import encode_batch
from courser.records.classic import ClassicLimits, Dialect
from courser.records.frame_walk import is_compiled
from courser.wire.classic import ClassicCodec, ClassicWireLimits
from courser.wire.classic_dialect import DialectEvidence
from courser.wire.classic_messages import decode_send, decode_usual_send
from courser.wire.codec import Incoming
from tests.records.classic_messages import random_ids
from tests.wire.classic_client import VERSIONS, Message, PolledMessages, frame, parse_polled, request, send_payload

SEND = c.SendMessages("orders", "new", Balanced(), [])
POLL = c.PollMessages(Consumer(ConsumerKind.CONSUMER, 0), 0, 0, 0, PollingKind.FIRST, 0, 10, auto_commit=False)
TYPED = bytes.fromhex("02010000006b020100000076")
UNTYPED = bytes.fromhex("010000006b020100000076")
NO_ID = bytes(16)
TIME = 1_700_000_000_000_000


def codec_of(dialect: Dialect) -> ClassicCodec:
    codec = ClassicCodec(None, lambda count: b"".join((number + 1).to_bytes(16, "little") for number in range(count)))
    codec.decode(memoryview(request(c.LoginUser("iggy", "iggy", VERSIONS[dialect]), dialect)), is_logged_in=False)
    return codec


def sent(messages: list[Message], dialect: Dialect) -> c.SendMessages:
    command = codec_of(dialect).decode(memoryview(request(SEND, dialect, messages)), is_logged_in=True).command
    assert isinstance(command, c.SendMessages)
    assert (command.stream, command.topic, command.partitioning) == ("orders", "new", Balanced())
    return command


def stored(commands: list[c.SendMessages], *, first_offset: int) -> r.Polled:
    """What a poll finds if these sends came one after another: all in one piece, but for the first."""
    records, offset = [], first_offset
    for number, batch in enumerate(batch for command in commands for batch in command.batches):
        records.append(encode_batch(batch, partition_id=2, base_offset=offset, base_timestamp=TIME + number))
        offset += batch.count
    pieces = [memoryview(piece) for piece in (records[0], b"".join(records[1:])) if piece]
    size = sum(map(len, pieces))
    return r.Polled(2, offset - 1, offset - first_offset, tuple(pieces), size)


def read(polled: r.Polled, dialect: Dialect, codec: ClassicCodec | None = None) -> PolledMessages:
    (data,) = (codec or codec_of(dialect)).encode_reply(Incoming(POLL), polled)
    assert bytes(data[:8]) == bytes(4) + (len(data) - 8).to_bytes(4, "little")
    result = parse_polled(bytes(data[8:]), dialect)
    for message in result.messages:
        covered = message.encoded(dialect)[8:]
        is_old = dialect is Dialect.SDK_0_5
        assert message.checksum == (zlib.crc32(covered) if is_old else xxhash.xxh3_64_intdigest(covered))
    return result


def user_headers_of(dialect: Dialect) -> bytes:
    return TYPED if dialect.has_long_header else UNTYPED


@pytest.mark.parametrize(("writer", "reader"), list(product(Dialect, Dialect)), ids=lambda dialect: dialect.value)
@pytest.mark.parametrize("count", [1, 2, 50])
def test_every_release_reads_what_every_release_sent(writer: Dialect, reader: Dialect, count: int) -> None:
    messages = [
        Message(
            payload=b"x" * (1 + number % 3),
            message_id=(number + 9).to_bytes(16, "little"),
            origin=TIME - 1_000 + number,
            user_headers=user_headers_of(writer) if number % 2 else b"",
        )
        for number in range(count)
    ]
    result = read(stored([sent(messages, writer)], first_offset=70), reader)
    assert (result.partition_id, result.current_offset) == (2, 70 + count - 1)
    assert [replace(message, checksum=0) for message in result.messages] == [
        replace(
            message,
            offset=70 + number,
            timestamp=TIME,
            user_headers=user_headers_of(reader) if message.user_headers else b"",
        )
        for number, message in enumerate(messages)
    ]


@pytest.mark.parametrize("reader", list(Dialect), ids=lambda dialect: dialect.value)
def test_one_reply_holds_the_messages_of_many_sends(reader: Dialect) -> None:
    sizes = [1, 3, 1, 1, 200, 1]
    sends = [sent([Message(bytes([size])) for _ in range(size)], Dialect.SDK_0_8) for size in sizes]
    result = read(stored(sends, first_offset=0), reader)
    assert [message.offset for message in result.messages] == list(range(sum(sizes)))
    assert [message.payload[0] for message in result.messages] == [size for size in sizes for _ in range(size)]
    times = [TIME + number for number, size in enumerate(sizes) for _ in range(size)]
    assert [message.timestamp for message in result.messages] == times


sent_messages = st.lists(
    st.builds(
        Message,
        payload=st.binary(max_size=300),
        message_id=st.sampled_from((NO_ID, NO_ID, b"\7" * 16)),
        origin=st.sampled_from((TIME, TIME + 9, TIME - 2**31)),
        user_headers=st.sampled_from((b"", b"", TYPED)),
    ),
    min_size=1,
    max_size=6,
)


def outcome(decode: Callable[[], c.SendMessages | None]) -> object:
    """The command, with its memory copied; or the error; or None if it has to be decoded in another way."""
    try:
        command = decode()
    except Rejection as rejection:
        return rejection.code
    if command is None:
        return None
    batches = [(batch, bytes(batch.body)) for batch in command.batches]
    return command.stream, command.topic, command.partitioning, batches


@pytest.mark.parametrize("dialect", [Dialect.SDK_0_6, Dialect.SDK_0_8], ids=lambda dialect: dialect.value)
@pytest.mark.parametrize("is_writable", [True, False])
@given(messages=sent_messages, data=st.data())
def test_a_send_in_one_step_changes_nothing(
    dialect: Dialect, is_writable: bool, messages: list[Message], data: st.DataObject
) -> None:
    damaged = bytearray(request(SEND, dialect, messages))
    for _ in range(data.draw(st.integers(0, 2))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    frame = bytes(damaged)
    evidence = DialectEvidence(dialect)
    evidence.note_header(dialect.header_size)
    limits = ClassicLimits(payload_size_max=290)
    slow = outcome(lambda: decode_send(memoryview(frame), evidence, random_ids, limits))
    given_frame = memoryview(damaged if is_writable else frame)
    quick = outcome(lambda: decode_usual_send(given_frame, dialect.header_size, 0, random_ids, limits))
    assert quick in (slow, None)
    assert is_writable or given_frame == frame


def test_a_usual_send_is_decoded_in_one_step_and_in_place() -> None:
    received = bytearray(request(SEND, Dialect.SDK_0_8, [Message(b"one"), Message(b"another", message_id=NO_ID)]))
    command = decode_usual_send(memoryview(received), 64, 0, random_ids, ClassicLimits())
    assert (command is None) == (not is_compiled)
    if command is not None:
        assert command.batches[0].body.obj is received


def java_before_0_7(dialect: Dialect) -> ClassicCodec:
    codec = ClassicCodec(None, lambda count: bytes(16 * count))
    login = request(c.LoginUser("iggy", "iggy", "0.6.30", "java-sdk"), dialect)
    codec.decode(memoryview(login), is_logged_in=False)
    codec.decode(memoryview(request(POLL, dialect)), is_logged_in=True)
    assert codec.dialect is dialect
    return codec


@pytest.mark.parametrize("reader", [Dialect.SDK_0_5, Dialect.SDK_0_6])
@pytest.mark.parametrize("in_one_batch", [True, False])
def test_java_before_0_7_gets_no_user_headers_because_it_does_not_step_over_them(
    reader: Dialect, in_one_batch: bool
) -> None:
    messages = [
        Message(b"first", user_headers=TYPED),
        Message(b"second"),
        Message(b"the third", user_headers=TYPED),
    ]
    sends = [messages] if in_one_batch else [[message] for message in messages]
    polled = stored([sent(send, Dialect.SDK_0_8) for send in sends], first_offset=5)

    result = read(polled, reader, java_before_0_7(reader))

    assert [message.payload for message in result.messages] == [b"first", b"second", b"the third"]
    assert [message.offset for message in result.messages] == [5, 6, 7]
    assert not any(message.user_headers for message in result.messages)


def test_messages_without_an_id_get_one_and_others_keep_theirs() -> None:
    messages = [Message(message_id=NO_ID), Message(), Message(message_id=NO_ID)]
    result = read(stored([sent(messages, Dialect.SDK_0_6)], first_offset=0), Dialect.SDK_0_8)
    assert [message.message_id[0] for message in result.messages] == [1, 7, 2]


def test_creation_times_far_apart_make_several_batches_in_order() -> None:
    messages = [Message(b"old", origin=0), Message(b"new", origin=TIME), Message(b"newer", origin=TIME + 1)]
    command = sent(messages, Dialect.SDK_0_8)
    assert [batch.count for batch in command.batches] == [1, 2]
    result = read(stored([command], first_offset=0), Dialect.SDK_0_7)
    assert [message.payload for message in result.messages] == [b"old", b"new", b"newer"]
    assert [message.origin for message in result.messages] == [0, TIME, TIME + 1]


def test_a_key_may_be_of_any_length() -> None:
    for key in (b"", b"k", b"\xff" * 255):
        send = c.SendMessages(0, 0, ByKey(key), [])
        codec = codec_of(Dialect.SDK_0_8)
        command = codec.decode(memoryview(request(send, messages=[Message()])), is_logged_in=True).command
        assert isinstance(command, c.SendMessages)
        assert command.partitioning == ByKey(key)


def test_limits_of_messages_are_settings() -> None:
    limits = ClassicWireLimits(messages=ClassicLimits(payload_size_max=5, user_headers_size_max=12))
    codec = ClassicCodec(None, bytes, limits)
    for message, status in (
        (Message(b"12345", user_headers=TYPED), None),
        (Message(b"123456"), ErrorCode.TOO_BIG_MESSAGE_PAYLOAD),
        (Message(b"1", user_headers=TYPED + b"x"), ErrorCode.TOO_BIG_USER_HEADERS),
    ):
        incoming = codec.decode(memoryview(request(SEND, messages=[message])), is_logged_in=True)
        answer = None if status is None else (status.to_bytes(4, "little") + bytes(4),)
        assert incoming.answer == answer


@pytest.mark.parametrize(
    ("metadata_size", "status"),
    [(0, 6), (2, 6), (5, 6), (12, 3), (14, 3), (17, 3), (10_000, 3), (2**32 - 1, 3)],
)
def test_metadata_of_a_wrong_size(metadata_size: int, status: int) -> None:
    # stream 3 bytes, topic 3, partitioning 8, count 4: together 18
    send = c.SendMessages("s", "t", ByKey(b"123456"), [])
    payload = send_payload(send, [Message()], Dialect.SDK_0_8)
    assert payload[:4] == (18).to_bytes(4, "little")
    damaged = frame(101, metadata_size.to_bytes(4, "little") + payload[4:])
    incoming = codec_of(Dialect.SDK_0_8).decode(memoryview(damaged), is_logged_in=True)
    assert incoming.answer == (status.to_bytes(4, "little") + bytes(4),)


messages_of_any_kind = st.builds(
    Message,
    payload=st.binary(max_size=40),
    message_id=st.binary(min_size=16, max_size=16),
    origin=st.one_of(st.integers(TIME, TIME + 10_000), st.integers(0, 2**64 - 1)),
)


@given(
    sends=st.lists(st.lists(messages_of_any_kind, min_size=1, max_size=20), min_size=1, max_size=4),
    writer=st.sampled_from(Dialect),
    reader=st.sampled_from(Dialect),
)
def test_any_messages_come_back(sends: list[list[Message]], writer: Dialect, reader: Dialect) -> None:
    result = read(stored([sent(messages, writer) for messages in sends], first_offset=0), reader)
    everything = [message for messages in sends for message in messages]
    assert [(message.payload, message.origin) for message in result.messages] == [
        (message.payload, message.origin) for message in everything
    ]
    for polled, original in zip(result.messages, everything, strict=True):
        assert original.message_id in (polled.message_id, NO_ID)
