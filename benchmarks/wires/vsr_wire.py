"""The protocol of SDK 0.9, encoded by hand."""

import os
import struct

from benchmarks.samples import SampleBatch
from benchmarks.wires.line import Line
from benchmarks.wires.requests import (
    PollRequest,
    PollResult,
    SendRequest,
    TopicName,
    aim,
    name_of,
    poll_body,
    send_target,
    text8,
    topic_of,
)
from courser.client.targets import Target
from courser.errors import CourserError, ErrorCode, RequestFailed
from courser.wire.vsr_facts import OWN_SDK_NAME, read_failure

_HEADER_SIZE = 256
_SIZE_POSITION, _COMMAND_POSITION, _STATUS_POSITION, _REASON_POSITION = 48, 60, 216, 255
_REQUEST_POSITION = 168
_REQUEST, _REPLY = 5, 8
_PROTOCOL = bytes.fromhex("002c0000")

REGISTER, READ, _CREATE_STREAM, _DELETE_STREAM, _CREATE_TOPIC, _SEND = 1, 2, 128, 130, 132, 160
_POLL, _GET_TOPIC = 100, 300
_FRAMED = frozenset({REGISTER, _CREATE_STREAM, _DELETE_STREAM, _CREATE_TOPIC})
"""Operations whose replies start with a result."""

U32 = struct.Struct("<I")
U64 = struct.Struct("<Q")
_POLL_PREFIX = struct.Struct("<IQI")


class VsrWire:
    """A connection with the protocol of SDK 0.9."""

    def __init__(self, target: Target) -> None:
        """Connect and log in."""
        self._line = Line(target.host, target.port)
        self._client = os.urandom(16)
        self._session = 0
        self._number = 0
        try:
            self._log_in(target)
        except BaseException:
            self._line.close()
            raise

    def _log_in(self, target: Target) -> None:
        login = text8(target.username or "") + text8(target.password or "")
        names = text8(OWN_SDK_NAME) + text8("bench")
        reply = self._call(REGISTER, _PROTOCOL + names + login + bytes(4))
        self._session = U64.unpack_from(reply, 4)[0]

    # --- metadata ---

    def create_stream(self, name: str) -> None:
        self._call(_CREATE_STREAM, text8(name))

    def delete_stream(self, name: str) -> None:
        self._call(_DELETE_STREAM, name_of(name))

    def create_topic(self, place: TopicName, partition_count: int, *, is_synced: bool = False) -> None:
        options = b""
        if is_synced:
            options = b"".join(b"\x02" + U32.pack(len(text)) + text for text in (b"durability", b"persisted"))
        body = name_of(place.stream) + U32.pack(partition_count) + text8(place.topic) + options
        self._call(_CREATE_TOPIC, body)

    def topic_figures(self, place: TopicName) -> tuple[int, int]:
        reply = self._call(READ, topic_of(place), _GET_TOPIC)
        if not reply:
            raise read_failure(ErrorCode.TOPIC_NOT_FOUND, b"")
        return U32.unpack_from(reply, 12)[0], U64.unpack_from(reply, 41)[0]

    # --- messages ---

    def make_send(self, place: TopicName, partition_id: int, sample: SampleBatch) -> SendRequest:
        body = send_target(place, partition_id, sample.count) + sample.encoded_batch()
        return SendRequest(self._header(_SEND, len(body)) + body, sample.count)

    def send(self, request: SendRequest) -> None:
        self._number += 1
        U64.pack_into(request.frame, _REQUEST_POSITION, self._number)
        self._line.send(request.frame)
        self._receive()

    def make_poll(self, place: TopicName, partition_id: int) -> PollRequest:
        body = poll_body(place, partition_id)
        return PollRequest(self._header(READ, len(body), _POLL) + body)

    def poll(self, request: PollRequest, kind: int, value: int, count: int) -> PollResult:
        aim(request, kind, value, count)
        self._line.send(request.frame)
        size = self._receive()
        _, _, message_count = _POLL_PREFIX.unpack_from(self._line.buffer, _HEADER_SIZE)
        return PollResult(message_count, size)

    def close(self) -> None:
        self._line.close()

    # --- frames ---

    def _header(self, operation: int, body_size: int, code: int = 0) -> bytearray:
        header = bytearray(_HEADER_SIZE)
        U32.pack_into(header, _SIZE_POSITION, _HEADER_SIZE + body_size)
        header[_COMMAND_POSITION] = _REQUEST
        header[128:144] = self._client
        U64.pack_into(header, _REQUEST_POSITION, self._number)
        header[176] = operation
        U64.pack_into(header, 184, self._session)
        U32.pack_into(header, 196, code)
        return header

    def _call(self, operation: int, body: bytes, code: int = 0) -> bytes:
        if operation != REGISTER:
            self._number += 1
        self._line.send(self._header(operation, len(body), code) + body)
        size = self._receive()
        reply = bytes(self._line.buffer[_HEADER_SIZE:size])
        if operation not in _FRAMED:
            return reply
        if U32.unpack_from(reply)[0]:
            raise read_failure(U32.unpack_from(reply, 8)[0], b"")
        return reply[4:]

    def _receive(self) -> int:
        """Receive one reply into the buffer, and return its size."""
        line = self._line
        line.receive(0, _HEADER_SIZE)
        size: int = U32.unpack_from(line.buffer, _SIZE_POSITION)[0]
        line.receive(_HEADER_SIZE, size)
        buffer = line.buffer
        status = U32.unpack_from(buffer, _STATUS_POSITION)[0]
        if buffer[_COMMAND_POSITION] != _REPLY or status:
            raise _refusal(buffer[:size], status)
        return size


def _refusal(frame: memoryview, status: int) -> CourserError:
    if frame[_COMMAND_POSITION] == _REPLY:
        return read_failure(status, bytes(frame[_HEADER_SIZE:]))
    return RequestFailed(ErrorCode.ERROR, f"the server ended the session (reason {frame[_REASON_POSITION]})")
