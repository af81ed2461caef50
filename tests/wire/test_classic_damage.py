"""Requests that are cut, changed or made up: each gets a command or a status, and the next one is understood."""

import struct
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from courser.api import commands as c
from courser.errors import ErrorCode
from courser.records.classic import Dialect
from courser.wire.classic import ClassicCodec
from courser.wire.codec import FrameRefused
from tests.wire.classic_client import VERSIONS, Message, frame, request
from tests.wire.classic_samples import COMMANDS, WITH_OWN_IDS

MESSAGES = (Message(b"hello"), Message(b"longer", user_headers=bytes.fromhex("02010000006b020100000076")))
ONE_MESSAGE = MESSAGES[1:]

REFUSALS = {
    ErrorCode.INVALID_COMMAND,
    ErrorCode.INVALID_FORMAT,
    ErrorCode.INVALID_IDENTIFIER,
    ErrorCode.INVALID_TOKEN_NAME,
    ErrorCode.INVALID_MESSAGES_COUNT,
    ErrorCode.TOO_BIG_USER_HEADERS,
    ErrorCode.TOO_BIG_MESSAGE_PAYLOAD,
    ErrorCode.NON_ZERO_OFFSET,
    ErrorCode.NON_ZERO_TIMESTAMP,
    ErrorCode.MISSING_INDEX,
    ErrorCode.INVALID_MESSAGES_SIZE,
    ErrorCode.INVALID_OFFSET,
    ErrorCode.INVALID_RESERVED_FIELD,
    # Of staged messages, which are batches.
    ErrorCode.INVALID_BATCH_CHECKSUM,
}
"""All that a request may be refused with before anybody tries to carry it out."""

every_dialect = pytest.mark.parametrize("dialect", list(Dialect), ids=lambda dialect: dialect.value)


def ids(count: int) -> bytes:
    return b"\5" * 16 * count


def codec_of(dialect: Dialect | None, *, is_proven: bool) -> ClassicCodec:
    codec = ClassicCodec(None, ids)
    if dialect is not None:
        judge(codec, request(c.LoginUser("iggy", "iggy", VERSIONS[dialect]), dialect))
        if is_proven:
            judge(codec, request(c.CreateStream("orders"), dialect))
            judge(codec, request(SEND, dialect, MESSAGES))
        assert codec.dialect is dialect
    return codec


SEND = next(command for command in COMMANDS if isinstance(command, c.SendMessages))


def judge(codec: ClassicCodec, data: bytes) -> c.Command | None:
    """What a session does with a frame. It must have a size, and then a command or a declared status."""
    view = memoryview(data)
    try:
        size = codec.frame_size(view)
    except FrameRefused as refusal:
        assert_refused(refusal.answer)
        return None
    if size is None or size > len(data):
        return None
    incoming = codec.decode(view[:size], is_logged_in=True)
    if incoming.command is None:
        assert incoming.answer is not None
        assert_refused(b"".join(incoming.answer))
        assert incoming.reason
    else:
        assert incoming.answer is None
    return incoming.command


def assert_refused(answer: bytes) -> None:
    status, size = struct.unpack("<II", answer)
    assert status in REFUSALS
    assert size == 0


def requests(dialect: Dialect) -> Iterator[bytes]:
    for command in COMMANDS + (WITH_OWN_IDS if dialect is Dialect.SDK_0_5 else ()):
        if not isinstance(command, c.SendMessages):
            yield request(command, dialect)
    yield request(SEND, dialect, MESSAGES)
    yield request(SEND, dialect, ONE_MESSAGE)


def cuts(data: bytes) -> Iterator[bytes]:
    """The request cut behind every byte; the length says so, as if the client had meant it."""
    for size in range(8, len(data)):
        yield frame(int.from_bytes(data[4:8], "little"), data[8:size])


def changes(data: bytes) -> Iterator[bytes]:
    """The request with every byte changed: each bit, all zeros, all ones."""
    for position, byte in enumerate(data):
        for changed in {0, 255, *(byte ^ 1 << bit for bit in range(8))} - {byte}:
            yield data[:position] + bytes((changed,)) + data[position + 1 :]


@every_dialect
@pytest.mark.parametrize("is_proven", [True, False])
def test_a_request_cut_at_any_byte(dialect: Dialect, is_proven: bool) -> None:
    codec = codec_of(dialect, is_proven=is_proven)
    for data in requests(dialect):
        for cut in cuts(data):
            judge(codec, cut)
            if not is_proven:
                codec = codec_of(dialect, is_proven=False)
        assert judge(codec, data) is not None, "a bad request leaves nothing behind"


@every_dialect
@pytest.mark.parametrize("is_proven", [True, False])
def test_a_request_with_any_byte_changed(dialect: Dialect, is_proven: bool) -> None:
    codec = codec_of(dialect, is_proven=is_proven)
    for data in requests(dialect):
        for changed in changes(data):
            judge(codec, changed)
            if not is_proven:
                codec = codec_of(dialect, is_proven=False)
        assert judge(codec, data) is not None


@every_dialect
def test_what_is_proven_survives_all_damage(dialect: Dialect) -> None:
    codec = codec_of(dialect, is_proven=True)
    for data in requests(dialect):
        for damaged in (*cuts(data), *changes(data)):
            judge(codec, damaged)
    assert codec.dialect is dialect


def test_a_client_of_which_nothing_is_known_may_send_anything_damaged() -> None:
    for dialect in (Dialect.SDK_0_5, Dialect.SDK_0_8):
        for data in requests(dialect):
            for damaged in cuts(data):
                judge(ClassicCodec(None, ids), damaged)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: type(command).__name__)
def test_no_request_is_understood_before_it_is_whole(command: c.Command) -> None:
    codec = codec_of(Dialect.SDK_0_8, is_proven=True)
    data = request(command, Dialect.SDK_0_8, ONE_MESSAGE)
    for cut in cuts(data):
        assert judge(codec, cut) is None


codes = st.one_of(
    st.sampled_from([int.from_bytes(request(command)[4:8], "little") for command in COMMANDS]),
    st.integers(0, 2**32 - 1),
)


@given(dialect=st.one_of(st.none(), st.sampled_from(Dialect)), code=codes, payload=st.binary(max_size=200))
def test_made_up_payloads(dialect: Dialect | None, code: int, payload: bytes) -> None:
    codec = codec_of(dialect, is_proven=False)
    judge(codec, frame(code, payload))


@given(
    dialect=st.sampled_from(Dialect),
    command=st.sampled_from([*COMMANDS, SEND, SEND]),
    damage=st.lists(st.tuples(st.integers(0, 10_000), st.binary(max_size=4), st.integers(0, 4)), max_size=4),
)
def test_requests_with_pieces_replaced(
    dialect: Dialect, command: c.Command, damage: list[tuple[int, bytes, int]]
) -> None:
    payload = request(command, dialect, MESSAGES)[8:]
    for position, piece, removed in damage:
        position %= len(payload) + 1
        payload = payload[:position] + piece + payload[position + removed :]
    judge(codec_of(dialect, is_proven=False), frame(int.from_bytes(request(command)[4:8], "little"), payload))


@given(data=st.binary(max_size=300))
def test_a_stream_of_noise(data: bytes) -> None:
    codec = ClassicCodec(None, ids)
    while data:
        try:
            size = codec.frame_size(memoryview(data))
        except FrameRefused as refusal:
            assert_refused(refusal.answer)
            return
        if size is None or size > len(data):
            return
        judge(codec, data[:size])
        data = data[size:]
