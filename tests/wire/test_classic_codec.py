"""The codec of SDKs 0.5 to 0.8: frames, and every command and reply in every dialect."""

import struct
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from courser.api import commands as c
from courser.api import replies as r
from courser.api.commands import COMMANDS as TABLE
from courser.api.table import SDK_0_10
from courser.errors import CommandRejected, ErrorCode
from courser.model.messaging import Balanced
from courser.records.batch import encode_batch
from courser.records.classic import Dialect
from courser.wire.classic import ClassicCodec, ClassicWireLimits
from courser.wire.codec import FrameRefused
from tests.wire.classic_client import VERSIONS, Message, frame, parse_reply, request
from tests.wire.classic_samples import COMMANDS, MESSAGES, REPLIES, WITH_OWN_IDS

every_dialect = pytest.mark.parametrize("dialect", list(Dialect), ids=lambda dialect: dialect.value)

MEBIBYTE = 1024 * 1024
SEND = c.SendMessages("orders", 0, Balanced(), [])


def ids(count: int) -> bytes:
    return bytes(range(1, 17)) * count


def codec_of(dialect: Dialect | None) -> ClassicCodec:
    """The codec of a client that has logged in as this release does."""
    codec = ClassicCodec(None, ids)
    if dialect is not None:
        login = c.LoginUser("iggy", "iggy", VERSIONS[dialect])
        assert codec.decode(memoryview(request(login, dialect)), is_logged_in=False).command == login
        assert codec.dialect is dialect
    return codec


def decoded(codec: ClassicCodec, data: bytes) -> c.Command | int:
    """The command, or the status."""
    incoming = codec.decode(memoryview(data), is_logged_in=True)
    if incoming.command is not None:
        return incoming.command
    assert incoming.answer is not None
    return int.from_bytes(bytes(incoming.answer[0])[:4], "little")


# --- commands and replies -----------------------------------------------------------------------------


def test_the_samples_have_every_command() -> None:
    assert {type(command) for command in COMMANDS} == {entry.kind for entry in TABLE if entry.since < SDK_0_10}


def test_the_samples_have_every_reply() -> None:
    assert {type(reply) for _, reply in REPLIES} | {r.Polled, r.Sent, None} == {
        entry.reply for entry in TABLE if entry.since < SDK_0_10
    }


@every_dialect
def test_every_command_is_understood(dialect: Dialect) -> None:
    codec = codec_of(dialect)
    for command in COMMANDS + (WITH_OWN_IDS if dialect is Dialect.SDK_0_5 else ()):
        if dialect is Dialect.SDK_0_5 and isinstance(command, c.GetClusterMetadata):
            continue  # It does not know this one, and whoever does is not 0.5.
        understood = decoded(codec, request(command, dialect, MESSAGES))
        if isinstance(understood, c.SendMessages):
            assert [batch.count for batch in understood.batches] == [len(MESSAGES)]
            understood = c.SendMessages(understood.stream, understood.topic, understood.partitioning, [])
        assert understood == command
        assert codec.dialect is dialect


@every_dialect
@pytest.mark.parametrize(("command", "reply"), REPLIES, ids=lambda value: type(value).__name__)
def test_every_reply_says_what_it_should(command: c.Command, reply: r.Reply, dialect: Dialect) -> None:
    codec = codec_of(dialect)
    incoming = codec.decode(memoryview(request(command, dialect)), is_logged_in=True)
    data = b"".join(codec.encode_reply(incoming, reply))
    status, size = struct.unpack_from("<II", data)
    assert (status, size) == (0, len(data) - 8)
    code = next(entry.code for entry in TABLE if entry.kind is type(command))
    assert parse_reply(code, data[8:], dialect) == reply


@every_dialect
def test_commands_without_an_answer_are_told_that_they_were_done(dialect: Dialect) -> None:
    codec = codec_of(dialect)
    ping = codec.decode(memoryview(frame(1)), is_logged_in=False)
    assert codec.encode_reply(ping, None) == (bytes(8),)
    send = codec.decode(memoryview(request(SEND, dialect, MESSAGES)), is_logged_in=True)
    assert codec.encode_reply(send, r.Sent(0, 0, 0, 7)) == (bytes(8),)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: type(command).__name__)
def test_bytes_behind_a_complete_request_are_ignored(command: c.Command) -> None:
    if isinstance(command, c.SendMessages):
        return  # All that follows the index are messages.
    codec = codec_of(Dialect.SDK_0_8)
    payload = request(command)[8:]
    code = int.from_bytes(request(command)[4:8], "little")
    assert decoded(codec, frame(code, payload + b"junk")) == command


def test_a_client_that_waits_for_messages_gets_batches_as_they_are_stored() -> None:
    codec = codec_of(Dialect.SDK_0_5)
    send = decoded(codec, request(SEND, Dialect.SDK_0_5, MESSAGES))
    assert isinstance(send, c.SendMessages)
    record = memoryview(encode_batch(send.batches[0], base_offset=5))
    wait = next(command for command in COMMANDS if isinstance(command, c.WaitForMessages))
    incoming = codec.decode(memoryview(request(wait, Dialect.SDK_0_5)), is_logged_in=True)
    parts = codec.encode_reply(incoming, r.Polled(3, 6, 2, (record,), len(record)))
    assert b"".join(parts) == struct.pack("<IIIQI", 0, 16 + len(record), 3, 6, 2) + record
    assert parts[-1] is record


# --- frames -------------------------------------------------------------------------------------------


def test_the_size_of_a_frame_is_known_from_its_eighth_byte_on() -> None:
    codec = ClassicCodec(None, ids)
    data = memoryview(request(COMMANDS[1]) + request(c.GetStream("orders")))
    first = 8
    for count in range(len(data) + 1):
        assert codec.frame_size(data[:count]) == (None if count < 8 else first)


@given(cuts=st.lists(st.integers(0, 5_000), max_size=30))
def test_frames_may_come_in_any_pieces(cuts: list[int]) -> None:
    commands = [command for command in COMMANDS if not isinstance(command, c.SendMessages)]
    data = b"".join(request(command) for command in commands)
    edges = sorted({0, len(data), *(cut % len(data) for cut in cuts)})
    codec, received, understood = codec_of(Dialect.SDK_0_8), b"", []
    for start, end in pairwise(edges):
        received += data[start:end]
        while (size := codec.frame_size(memoryview(received))) is not None and size <= len(received):
            understood.append(decoded(codec, received[:size]))
            received = received[size:]
    assert (understood, received) == (commands, b"")


@pytest.mark.parametrize("length", [0, 1, 2, 3])
def test_a_length_that_leaves_no_room_for_a_code_is_refused_and_the_next_frame_is_fine(length: int) -> None:
    codec = ClassicCodec(None, ids)
    data = struct.pack("<II", length, 1)
    assert codec.frame_size(memoryview(data + frame(1))) == len(data)
    assert decoded(codec, data) == ErrorCode.INVALID_COMMAND
    assert decoded(codec, frame(1)) == c.Ping()


@pytest.mark.parametrize("code", [0, 2, 9, 14, 40, 607, 9999, 60_000, 60_004, 2**32 - 1])
def test_a_code_that_no_command_has_is_refused(code: int) -> None:
    assert decoded(ClassicCodec(None, ids), frame(code, b"hello")) == ErrorCode.INVALID_COMMAND


@pytest.mark.parametrize(
    ("code", "size", "status"),
    [(202, 10 * MEBIBYTE, 3), (1, 10 * MEBIBYTE, 3), (9999, 10 * MEBIBYTE, 3), (101, 65 * MEBIBYTE, 4036)],
)
def test_a_frame_that_is_too_large_is_answered_and_not_read(code: int, size: int, status: int) -> None:
    codec = ClassicCodec(None, ids)
    assert codec.frame_size(memoryview(struct.pack("<II", 4 + size, code))) == 8 + size
    with pytest.raises(FrameRefused) as refusal:
        codec.frame_size(memoryview(struct.pack("<II", 4 + size + 1, code)))
    assert refusal.value.answer == struct.pack("<II", status, 0)
    with pytest.raises(FrameRefused):
        codec.frame_size(memoryview(struct.pack("<II", 2**32 - 1, code)))


def test_limits_are_settings() -> None:
    codec = ClassicCodec(None, ids, ClassicWireLimits(payload_size_max=10, send_size_max=20))
    assert codec.frame_size(memoryview(struct.pack("<II", 14, 1))) == 18
    assert codec.frame_size(memoryview(struct.pack("<II", 24, 101))) == 28
    for length, code in ((15, 1), (25, 101)):
        with pytest.raises(FrameRefused):
            codec.frame_size(memoryview(struct.pack("<II", length, code)))


@pytest.mark.parametrize("code", [ErrorCode.DISCONNECTED, ErrorCode.STALE_CLIENT, ErrorCode.CLIENT_NOT_FOUND])
def test_a_client_is_told_why_the_server_closes(code: ErrorCode) -> None:
    codec = ClassicCodec(None, ids)
    assert codec.farewell(CommandRejected(code, "because")) == struct.pack("<II", code, 0)


# --- what takes long ----------------------------------------------------------------------------------


def proven(dialect: Dialect) -> ClassicCodec:
    """The codec of a client that has sent something already."""
    codec = codec_of(dialect)
    decoded(codec, request(SEND, dialect, MESSAGES))
    return codec


def is_slow(codec: ClassicCodec, dialect: Dialect, count: int, size: int) -> bool:
    return codec.is_slow(memoryview(request(SEND, dialect, [Message(bytes(size))] * count)))


def test_many_messages_and_large_ones_take_long_to_decode() -> None:
    codec = proven(Dialect.SDK_0_8)
    assert not is_slow(codec, Dialect.SDK_0_8, 1_000, 1_000)
    assert not is_slow(codec, Dialect.SDK_0_8, 4_096, 10)
    assert is_slow(codec, Dialect.SDK_0_8, 4_097, 10)
    assert is_slow(codec, Dialect.SDK_0_8, 1, 5 * MEBIBYTE)


@pytest.mark.parametrize("dialect", [Dialect.SDK_0_5, Dialect.SDK_0_6])
def test_old_user_headers_may_take_long_to_decode(dialect: Dialect) -> None:
    assert not is_slow(proven(dialect), dialect, 100, 1_000)
    assert is_slow(proven(dialect), dialect, 300, 1_000)


def test_whoever_may_have_old_user_headers_may_take_long() -> None:
    assert is_slow(codec_of(None), Dialect.SDK_0_8, 300, 1_000)


def test_other_requests_never_take_long() -> None:
    codec = proven(Dialect.SDK_0_8)
    for command in COMMANDS:
        if not isinstance(command, c.SendMessages):
            assert not codec.is_slow(memoryview(request(command)))


@pytest.mark.parametrize("metadata_size", [0, 3, 2**20, 2**32 - 1])
def test_a_malformed_send_does_not_take_long(metadata_size: int) -> None:
    data = frame(101, struct.pack("<I", metadata_size) + bytes(100))
    assert not proven(Dialect.SDK_0_8).is_slow(memoryview(data))


@every_dialect
def test_long_replies_take_long_to_encode(dialect: Dialect) -> None:
    codec = proven(dialect)
    long = 5 * MEBIBYTE if dialect.has_long_header else 300_000

    def encodes_slowly(count: int, size: int) -> bool:
        return codec.encodes_slowly(r.Polled(0, 0, count, (), size))

    assert not encodes_slowly(4_096, long // 2)
    assert encodes_slowly(4_097, 100)
    assert encodes_slowly(1, long)
