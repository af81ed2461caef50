"""The protocol of SDK 0.8, encoded by hand."""

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
from courser.errors import ErrorCode
from courser.wire.vsr_facts import read_failure

_LOGIN, _POLL, _SEND = 38, 100, 101
_CREATE_STREAM, _DELETE_STREAM, _GET_TOPIC, _CREATE_TOPIC = 202, 203, 300, 302

_SDK_VERSION = "0.10.0"
"""The version that SDK 0.8 reports. Message headers then have 64 bytes."""
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_HEAD = struct.Struct("<II")
"""In a request: size and code. In a reply: status and size."""
_POLL_PREFIX = struct.Struct("<IQI")


def _frame(code: int, payload: bytes) -> bytes:
    """Encode a request."""
    return _HEAD.pack(4 + len(payload), code) + payload


class ClassicWire:
    """A connection with the protocol of SDK 0.8."""

    def __init__(self, target: Target) -> None:
        """Connect and log in."""
        self._line = Line(target.host, target.port)
        try:
            self._log_in(target)
        except BaseException:
            self._line.close()
            raise

    def _log_in(self, target: Target) -> None:
        login = text8(target.username or "") + text8(target.password or "")
        self._call(_LOGIN, login + _U32.pack(len(_SDK_VERSION)) + _SDK_VERSION.encode() + bytes(4))

    # --- metadata ---

    def create_stream(self, name: str) -> None:
        self._call(_CREATE_STREAM, text8(name))

    def delete_stream(self, name: str) -> None:
        self._call(_DELETE_STREAM, name_of(name))

    def create_topic(self, place: TopicName, partition_count: int) -> None:
        settings = struct.pack("<IBQQB", partition_count, 1, 0, 0, 0)
        self._call(_CREATE_TOPIC, name_of(place.stream) + settings + text8(place.topic))

    def topic_figures(self, place: TopicName) -> tuple[int, int]:
        reply = self._call(_GET_TOPIC, topic_of(place))
        if not reply:
            raise read_failure(ErrorCode.TOPIC_NOT_FOUND, b"")
        return _U32.unpack_from(reply, 12)[0], _U64.unpack_from(reply, 42)[0]

    # --- messages ---

    def make_send(self, place: TopicName, partition_id: int, sample: SampleBatch) -> SendRequest:
        index, messages = sample.classic()
        head = send_target(place, partition_id, sample.count) + index
        return SendRequest(bytearray(_frame(_SEND, head + messages)), sample.count)

    def send(self, request: SendRequest) -> None:
        self._line.send(request.frame)
        self._receive()

    def make_poll(self, place: TopicName, partition_id: int) -> PollRequest:
        body = poll_body(place, partition_id)
        return PollRequest(bytearray(_frame(_POLL, body)))

    def poll(self, request: PollRequest, kind: int, value: int, count: int) -> PollResult:
        aim(request, kind, value, count)
        self._line.send(request.frame)
        size = self._receive()
        _, _, message_count = _POLL_PREFIX.unpack_from(self._line.buffer, _HEAD.size)
        return PollResult(message_count, size)

    def close(self) -> None:
        self._line.close()

    # --- frames ---

    def _call(self, code: int, payload: bytes) -> bytes:
        self._line.send(_frame(code, payload))
        size = self._receive()
        return bytes(self._line.buffer[_HEAD.size : size])

    def _receive(self) -> int:
        """Receive one reply into the buffer, and return its size."""
        line = self._line
        line.receive(0, _HEAD.size)
        status, length = _HEAD.unpack_from(line.buffer)
        if status:
            raise read_failure(status, b"")
        line.receive(_HEAD.size, _HEAD.size + length)
        return int(_HEAD.size + length)
