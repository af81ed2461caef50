"""The protocol of SDK 0.8, encoded by hand."""

import struct
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from courser.bench.line import Line
from courser.bench.samples import CLASSIC_ORIGIN_POSITION, SampleBatch
from courser.bench.wires import (
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
from courser.errors import AuthenticationFailed, ErrorCode, InvalidRequest, NotFound
from courser.wire.vsr_facts import read_failure

_LOGIN, _LOGIN_WITH_TOKEN, _POLL, _SEND = 38, 44, 100, 101
_CREATE_STREAM, _DELETE_STREAM, _GET_TOPIC, _CREATE_TOPIC = 202, 203, 300, 302
_CREATE_GROUP, _JOIN_GROUP = 602, 604

_SDK_VERSION = "0.10.0"
"""The version that SDK 0.8 reports. Message headers then have 64 bytes."""
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_HEAD = struct.Struct("<II")
"""In a request: size and code. In a reply: status and size."""
_POLL_PREFIX = struct.Struct("<IQI")
_MESSAGE = struct.Struct("<Q16sQQQ")
"""checksum, id, offset, time, origin time"""
_MESSAGE_SIZE = 64
_MESSAGES_POSITION = _HEAD.size + _POLL_PREFIX.size


def _frame(code: int, payload: bytes) -> bytes:
    """Encode a request."""
    return _HEAD.pack(4 + len(payload), code) + payload


@dataclass(slots=True)
class ClassicSend(SendRequest):
    """A send, and the positions of the creation times of its messages."""

    times: npt.NDArray[np.int64]
    """The positions of the bytes, one row per message."""


class ClassicWire:
    """A connection with the protocol of SDK 0.8."""

    def __init__(self, target: Target) -> None:
        """Connect and log in."""
        self._line = Line(target)
        try:
            self._log_in(target)
        except BaseException:
            self._line.close()
            raise

    def _log_in(self, target: Target) -> None:
        if target.token is not None:
            try:
                self._call(_LOGIN_WITH_TOKEN, text8(target.token))
            except NotFound as error:
                # This protocol has no specific error for a bad token.
                raise AuthenticationFailed(ErrorCode.INVALID_TOKEN, "unknown or expired token") from error
        else:
            login = text8(target.username or "") + text8(target.password or "")
            self._call(_LOGIN, login + _U32.pack(len(_SDK_VERSION)) + _SDK_VERSION.encode() + bytes(4))

    # --- metadata ---

    def create_stream(self, name: str) -> None:
        """As in ``Wire``."""
        self._call(_CREATE_STREAM, text8(name))

    def delete_stream(self, name: str) -> None:
        """As in ``Wire``."""
        self._call(_DELETE_STREAM, name_of(name))

    def create_topic(self, place: TopicName, partition_count: int, *, is_synced: bool = False) -> None:
        """As in ``Wire``."""
        if is_synced:
            reason = "the 0.8 protocol cannot set a durability"
            raise InvalidRequest(ErrorCode.UNSUPPORTED_OPTION_KEY, reason)
        settings = struct.pack("<IBQQB", partition_count, 1, 0, 0, 0)
        self._call(_CREATE_TOPIC, name_of(place.stream) + settings + text8(place.topic))

    def topic_figures(self, place: TopicName) -> tuple[int, int]:
        """As in ``Wire``."""
        reply = self._call(_GET_TOPIC, topic_of(place))
        if not reply:
            raise read_failure(ErrorCode.TOPIC_NOT_FOUND, b"")
        return _U32.unpack_from(reply, 12)[0], _U64.unpack_from(reply, 42)[0]

    def create_group(self, place: TopicName, name: str) -> None:
        """As in ``Wire``."""
        self._call(_CREATE_GROUP, topic_of(place) + text8(name))

    def join_group(self, place: TopicName, name: str) -> None:
        """As in ``Wire``."""
        self._call(_JOIN_GROUP, topic_of(place) + name_of(name))

    def assigned(self, place: TopicName, name: str) -> list[int] | None:
        """As in ``Wire``: the server chooses."""
        del place, name
        return None

    # --- messages ---

    def make_send(self, place: TopicName, partition_id: int | None, sample: SampleBatch) -> SendRequest:
        """As in ``Wire``."""
        index, messages, starts = sample.classic()
        head = send_target(place, partition_id, sample.count) + index
        frame = bytearray(_frame(_SEND, head + messages))
        first = len(frame) - len(messages) + CLASSIC_ORIGIN_POSITION
        times = np.array(starts, np.int64)[:, np.newaxis] + np.arange(first, first + _U64.size)
        return ClassicSend(frame, sample.count, sample.payload_size, times)

    def stamp(self, request: SendRequest, microseconds: int) -> None:
        """As in ``Wire``: each message has its own time."""
        assert isinstance(request, ClassicSend)
        np.frombuffer(request.frame, np.uint8)[request.times] = np.frombuffer(_U64.pack(microseconds), np.uint8)

    def send(self, request: SendRequest) -> None:
        """As in ``Wire``."""
        self._line.send(request.frame)
        self._receive()

    def make_poll(
        self, place: TopicName, partition_id: int | None, *, group: str | None = None, auto_commit: bool = False
    ) -> PollRequest:
        """As in ``Wire``."""
        body = poll_body(place, partition_id, group, auto_commit=auto_commit)
        return PollRequest(bytearray(_frame(_POLL, body)))

    def poll(self, request: PollRequest, kind: int, value: int, count: int) -> PollResult:
        """As in ``Wire``."""
        aim(request, kind, value, count)
        self._line.send(request.frame)
        size = self._receive()
        buffer = self._line.buffer
        _, _, message_count = _POLL_PREFIX.unpack_from(buffer, _HEAD.size)
        if not message_count:
            return PollResult(0, size)
        _, _, offset, _, origin = _MESSAGE.unpack_from(buffer, _MESSAGES_POSITION)
        return PollResult(message_count, size, offset, origin)

    def payload_size(self, polled: PollResult) -> int:
        """As in ``Wire``."""
        return polled.size - _MESSAGES_POSITION - _MESSAGE_SIZE * polled.message_count

    def close(self) -> None:
        """As in ``Wire``."""
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
