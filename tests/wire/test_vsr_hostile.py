"""Requests of SDK 0.9 that are cut, changed or made up: always a command or an answer, never an exception."""

import struct
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from courser.api.commands import COMMANDS as TABLE
from courser.api.commands import SendMessages
from courser.api.table import PRIVATE_CODE_MIN
from courser.errors import CommandRejected, ErrorCode
from courser.records.batch import NewMessage, build_batch, encode_batch
from courser.records.classic import Dialect
from courser.records.frame_walk import is_compiled, take_vsr_send
from courser.wire import vsr
from courser.wire.codec import FrameRefused, Incoming
from courser.wire.vsr import VsrCodec, VsrIncoming
from courser.wire.vsr_headers import HEADER_SIZE, SESSION_OPERATIONS, EvictionReason
from courser.wire.vsr_requests import READERS_OF_CODES
from tests.wire.classic_client import payload_of
from tests.wire.classic_samples import COMMANDS
from tests.wire.vsr_captures import channel_of, exchanges, frame

KNOWN_OPERATIONS = SESSION_OPERATIONS | {row.operation for row in TABLE if row.operation}
SIZE_MAX = 700
"""Bytes of the requests that are cut and changed: the longer ones have nothing that these have not."""
PING, REGISTER, LOGOUT = 1, 1, 3
STALE = CommandRejected(ErrorCode.STALE_CLIENT, "too late")
NUMBERS = {
    "ok": {0},
    "status": {int(code) for code in ErrorCode},
    "result": {int(ErrorCode.REQUEST_ALREADY_APPLIED)},
    "evict": {int(reason) for reason in EvictionReason},
}


def samples() -> list[bytes]:
    """One request for each body that was recorded; without checksum, or every change would be found by it."""
    found: dict[tuple[int, int, bytes], bytes] = {}
    for exchange in exchanges():
        if exchange.channel != "none" and len(exchange.request) <= SIZE_MAX and exchange.request[60] == 5:
            key = (exchange.operation, exchange.code, exchange.body)
            number = 0 if exchange.operation == REGISTER else 1
            found.setdefault(
                key, frame(exchange.operation, exchange.body, code=exchange.code, request=number, session=number)
            )
    return list(found.values())


def private_samples() -> list[bytes]:
    """Courser's own commands, which nobody recorded: their payloads are the same in both generations."""
    return [
        frame(2, payload_of(command, Dialect.SDK_0_8), code=command.row.code)
        for command in COMMANDS
        if command.row.is_private
    ]


def check(request: bytes, *, is_logged_in: bool = True) -> Incoming:
    """Whatever the request is, it is understood or answered, and the answer is one that the SDK can read."""
    codec = VsrCodec(verify_frames=True)
    incoming = codec.decode(memoryview(request), is_logged_in=is_logged_in)
    if incoming.command is not None:
        assert incoming.answer is None
        return incoming
    assert incoming.answer is not None
    assert incoming.reason
    if incoming.answer:
        assert not incoming.closes
        channel, number = channel_of(b"".join(incoming.answer))
        assert number in NUMBERS[channel]
    else:
        assert incoming.closes
    return incoming


def with_body(request: bytes, body: bytes) -> bytes:
    return request[:48] + (HEADER_SIZE + len(body)).to_bytes(4, "little") + request[52:HEADER_SIZE] + body


def test_there_is_a_sample_of_every_request() -> None:
    requests = samples()
    operations = {request[176] for request in requests}
    codes = {int.from_bytes(request[196:200], "little") for request in requests if request[176] == 2}
    assert operations >= KNOWN_OPERATIONS
    assert codes >= {100, *(code for code in READERS_OF_CODES if code < PRIVATE_CODE_MIN)}
    own = {int.from_bytes(request[196:200], "little") for request in private_samples()}
    assert own == {row.code for row in TABLE if row.is_private}


def test_the_samples_of_our_own_commands_are_understood() -> None:
    assert all(check(request).command is not None for request in private_samples())


def test_every_request_cut_at_every_byte_of_its_body() -> None:
    for request in samples() + private_samples():
        for length in range(len(request) - HEADER_SIZE):
            check(with_body(request, request[HEADER_SIZE : HEADER_SIZE + length]))


def test_every_request_with_every_byte_of_its_body_changed() -> None:
    for request in samples() + private_samples():
        for position in range(HEADER_SIZE, len(request)):
            for change in (0x01, 0x80, 0xFF):
                changed = bytearray(request)
                changed[position] ^= change
                check(bytes(changed))


def one_of_each() -> Iterator[bytes]:
    seen = set()
    for request in samples() + private_samples():
        key = (request[176], request[196:200])
        if key not in seen:
            seen.add(key)
            yield request


@pytest.mark.parametrize("is_logged_in", [True, False])
def test_every_request_with_every_byte_of_its_header_changed(*, is_logged_in: bool) -> None:
    for request in one_of_each():
        for position in range(HEADER_SIZE):
            for value in {0, 1, 2, 5, 64, 128, 200, 255, request[position] ^ 1}:
                changed = bytearray(request)
                changed[position] = value
                check(bytes(changed), is_logged_in=is_logged_in)


def test_a_frame_that_is_not_whole_ends_the_connection() -> None:
    for request in one_of_each():
        for length in range(len(request)):
            incoming = check(request[:length])
            assert incoming.closes


def test_nobody_gets_anything_before_a_login() -> None:
    for request in samples() + private_samples():
        operation, code = request[176], int.from_bytes(request[196:200], "little")
        incoming = check(request, is_logged_in=False)
        if operation == REGISTER:
            continue
        if operation == 2 and code == PING:
            assert incoming.command is not None
            continue
        assert incoming.answer is not None
        outcome = channel_of(b"".join(incoming.answer))
        if operation == LOGOUT:
            assert outcome == ("ok", 0)
        elif operation == 2:
            assert outcome == (("evict", 15) if code in (38, 44) else ("status", 40))
        elif operation in KNOWN_OPERATIONS | set(range(64, 69)):
            assert outcome == ("evict", 1)
        else:
            assert outcome == ("status", 3)


def test_what_no_number_of_a_command_means_is_an_answer() -> None:
    for code in (*range(700), 9_999, 59_999, *range(60_000, 60_020), 2**32 - 1):
        check(frame(2, b"", code=code))


def test_what_no_operation_means_is_an_answer() -> None:
    for operation in range(256):
        check(frame(operation, b""))
        check(frame(operation, b"\x01" * 40), is_logged_in=False)


@given(
    st.sampled_from(sorted(KNOWN_OPERATIONS)),
    st.one_of(st.sampled_from([*READERS_OF_CODES, 100, 60001, 60002, 60003, 60004]), st.integers(0, 2**32 - 1)),
    st.binary(max_size=400),
    st.booleans(),
)
def test_any_body(operation: int, code: int, body: bytes, is_logged_in: bool) -> None:
    check(frame(operation, body, code=code), is_logged_in=is_logged_in)
    check(frame(operation, body, code=code, checksum=None), is_logged_in=is_logged_in)


@given(st.binary(max_size=600), st.booleans())
def test_any_bytes(data: bytes, is_logged_in: bool) -> None:
    check(data, is_logged_in=is_logged_in)
    padded = bytearray(data.ljust(HEADER_SIZE, b"\x00"))
    padded[48:52] = len(padded).to_bytes(4, "little")
    padded[60] = 5
    check(bytes(padded), is_logged_in=is_logged_in)


@given(st.data())
def test_recorded_requests_mixed(data: st.DataObject) -> None:
    first, second = (data.draw(st.sampled_from(samples())) for _ in range(2))
    cut = data.draw(st.integers(0, len(first) - HEADER_SIZE))
    check(with_body(first, first[HEADER_SIZE : HEADER_SIZE + cut] + second[HEADER_SIZE:]))


# --- where frames begin and end -----------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 255])
def test_impossible_sizes_are_refused_as_soon_as_they_are_seen(size: int) -> None:
    request = bytearray(frame(2, code=PING))
    request[48:52] = size.to_bytes(4, "little")
    codec = VsrCodec()
    assert codec.frame_size(memoryview(request)[:51]) is None
    with pytest.raises(FrameRefused, match=f"a frame must have at least 256 bytes, not {size}"):
        codec.frame_size(memoryview(request)[:52])


@pytest.mark.parametrize("size", [64 * 1024 * 1024 + 1, 2**31 - 1, 2**32 - 1])
@pytest.mark.parametrize(("operation", "code", "status"), [(2, PING, 3), (160, 0, 4036), (2, 60005, 4036)])
def test_frames_that_are_too_large_are_answered_when_their_header_is_there(
    size: int, operation: int, code: int, status: int
) -> None:
    request = bytearray(frame(operation, code=code))
    request[48:52] = size.to_bytes(4, "little")
    codec = VsrCodec()
    assert codec.frame_size(memoryview(request)[:255]) is None
    with pytest.raises(FrameRefused, match=f"has {size} bytes, but at most 67108864 are allowed") as refused:
        codec.frame_size(memoryview(request)[:256])
    assert refused.value.size == size
    assert channel_of(refused.value.answer) == ("status", status)


def test_an_operator_may_allow_smaller_frames() -> None:
    request = bytearray(frame(2, code=PING))
    codec = VsrCodec(frame_size_max=1000)
    for size in (1000, 1001):
        request[48:52] = size.to_bytes(4, "little")
        if size == 1000:
            assert codec.frame_size(memoryview(request)) == size
            continue
        with pytest.raises(FrameRefused, match="at most 1000 are allowed"):
            codec.frame_size(memoryview(request))


@pytest.mark.parametrize("size", [256, 257, 64 * 1024 * 1024])
def test_possible_sizes(size: int) -> None:
    request = bytearray(frame(2, code=PING))
    request[48:52] = size.to_bytes(4, "little")
    codec = VsrCodec()
    for length in range(61):
        assert codec.frame_size(memoryview(request)[:length]) is None
    assert codec.frame_size(memoryview(request)[:61]) == size


@pytest.mark.parametrize("command", [number for number in range(256) if number != 5])
def test_only_requests_are_read(command: int) -> None:
    request = bytearray(frame(2, code=PING))
    request[60] = command
    with pytest.raises(FrameRefused, match="is not a request"):
        VsrCodec().frame_size(memoryview(request))


def test_the_first_frame_begins_with_zeros() -> None:
    for position in range(48):
        request = bytearray(frame(2, code=PING))
        request[position] = 7
        with pytest.raises(FrameRefused, match="48 zero bytes"):
            VsrCodec().frame_size(memoryview(request)[: position + 1])


def test_later_frames_may_have_checksums_there() -> None:
    codec = VsrCodec()
    codec.decode(memoryview(frame(2, code=PING)), is_logged_in=True)
    request = bytearray(frame(2, code=PING))
    request[0:48] = bytes([7]) * 48
    assert codec.frame_size(memoryview(request)) == HEADER_SIZE
    assert codec.decode(memoryview(request), is_logged_in=True).command is not None


# --- sends in one step --------------------------------------------------------------------------------


def outcome(codec: VsrCodec, request: bytes) -> object:
    """What a request is decoded to, with its memory copied."""
    incoming = codec.decode(memoryview(request), is_logged_in=True)
    assert isinstance(incoming, VsrIncoming)
    command = incoming.command
    if not isinstance(command, SendMessages):
        return incoming.answer, incoming.reason, incoming.closes
    batches = [(batch, bytes(batch.body)) for batch in command.batches]
    where = command.stream, command.topic, command.partitioning
    return where, batches, incoming.client, incoming.checksum, incoming.request, incoming.content, codec.farewell(STALE)


def sends(promised_count: int = 2) -> list[bytes]:
    batch = encode_batch(build_batch([NewMessage(b"one", 1), NewMessage(b"and another", 2)]))
    to_topic = bytes((1, 4, 7, 0, 0, 0, 2, 1, 65, 2, 4, 3, 0, 0, 0))
    body = struct.pack("<I", len(to_topic) + 4) + to_topic + struct.pack("<I", promised_count) + batch
    return [frame(160, body, request=5, session=6, checksum=checksum) for checksum in (0, None)]


@pytest.mark.parametrize("number", [0, 1], ids=["without checksum", "with checksum"])
@given(data=st.data())
def test_a_send_in_one_step_changes_nothing(number: int, data: st.DataObject) -> None:
    request = bytearray(sends()[number])
    for _ in range(data.draw(st.integers(0, 2))):
        request[data.draw(st.integers(0, len(request) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vsr, "take_vsr_send", lambda _: None)
        slow = outcome(VsrCodec(), bytes(request))
    assert outcome(VsrCodec(), bytes(request)) == slow


def test_a_usual_send_is_decoded_in_one_step() -> None:
    assert (take_vsr_send(memoryview(sends()[0])) is not None) == is_compiled


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_send_that_promises_other_messages_is_refused(count: int) -> None:
    (answer,) = VsrCodec().decode(memoryview(sends(count)[0]), is_logged_in=True).answer or pytest.fail(
        "it was understood"
    )
    assert channel_of(bytes(answer)) == ("status", ErrorCode.INVALID_MESSAGES_COUNT)
