"""The protocol of SDKs 0.5 to 0.8: one codec for all of them, which detects the release of the client.

Request: ``length u32 | code u32 | payload``, the length counting code and payload. Reply: ``status u32 | length u32 |
payload``, status 0 or the number of an error; an error has no payload. Replies are sent in the order of the requests.
"""

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from courser.api.commands import Command, Ping, PollMessages, SendMessages, WaitForMessages
from courser.api.replies import Polled, Reply, Sent
from courser.errors import CourserError, ErrorCode, Rejection
from courser.model.buffers import Buffer
from courser.model.messaging import PollingKind
from courser.records.classic import ClassicLimits, Dialect
from courser.wire.classic_dialect import DialectEvidence
from courser.wire.classic_failures import ends_connection, is_empty_poll, is_miss, status_of
from courser.wire.classic_messages import (
    NOTHING_POLLED,
    decode_poll,
    decode_send,
    decode_usual_send,
    encode_polled,
    promised_count,
)
from courser.wire.classic_replies import encode_payload
from courser.wire.classic_requests import DIALECT_DECODERS, HEADER_SIZE, decode_request
from courser.wire.codec import QUICK_SIZE_MAX, FrameRefused, Incoming
from courser.wire.reading import Malformed

_HEAD = struct.Struct("<II")
"""length and code, or status and length"""
_LENGTH_SIZE = 4
_CODE_SIZE = 4
_unpack_head = _HEAD.unpack_from
_SEND_CODE = SendMessages.row.code
_POLL_CODE = PollMessages.row.code
_PING_CODE = Ping.row.code
_PAST_EVERY_OFFSET = 2**64 - 1
_RECORDS_HEAD = struct.Struct("<IIIQI")
"""status and length; partition_id, current_offset, messages_count"""

_QUICK_COUNT_MAX = 4096
"""Messages that can be converted in about 10 ms."""
_QUICK_MESSAGES_SIZE_MAX = 4 * 1024 * 1024
"""Bytes of messages that can be copied and hashed in about 10 ms. Converting the user headers of SDKs 0.5 and 0.6 takes
thirty times as long."""

_DONE: Sequence[Buffer] = (bytes(8),)
"""Status 0 without a payload."""


@dataclass(frozen=True, slots=True)
class ClassicWireLimits:
    """How large requests may be, in bytes."""

    payload_size_max: int = 10 * 1024 * 1024
    """Any request except a send."""
    send_size_max: int = 65 * 1024 * 1024
    """A send: 64 MiB of messages, and room for their index and the metadata."""
    messages: ClassicLimits = field(default_factory=ClassicLimits)
    """The parts of a message."""


USUAL_LIMITS = ClassicWireLimits()


def _poll_of_nothing(poll: PollMessages) -> PollMessages:
    """A poll that is checked like this one, but reads and commits nothing."""
    return msgspec.structs.replace(poll, kind=PollingKind.OFFSET, value=_PAST_EVERY_OFFSET, auto_commit=False)


def _status(code: int) -> bytes:
    return _HEAD.pack(code, 0)


def _records(reply: Polled) -> Sequence[Buffer]:
    """Polled messages in stored form, for private commands: nothing is copied."""
    size = _RECORDS_HEAD.size - _HEAD.size + reply.size
    head = _RECORDS_HEAD.pack(0, size, reply.partition_id, reply.current_offset, reply.message_count)
    return (head, *reply.pieces)


class ClassicCodec:
    """One connection of an SDK from 0.5 to 0.8.

    Args:
        dialect_hint: the assumed dialect of a client that does not reveal its release; None is the newest.
        ids: returns a number of random message ids of 16 bytes each.
        limits: of requests.
        age: returns the age of the connection in microseconds.
    """

    __slots__ = ("_age", "_evidence", "_header_size", "_ids", "_limits", "_usual_length_max")

    def __init__(
        self,
        dialect_hint: Dialect | None,
        ids: Callable[[int], bytes],
        limits: ClassicWireLimits = USUAL_LIMITS,
        age: Callable[[], int] = lambda: 0,
    ) -> None:
        self._age = age
        self._evidence = DialectEvidence(dialect_hint)
        self._ids = ids
        self._limits = limits
        self._usual_length_max = _CODE_SIZE + min(limits.payload_size_max, limits.send_size_max)
        """The length that any request may have."""
        self._header_size = 0
        """Bytes of the header of a message that the client sends, once they are proven. Then they never change."""

    @property
    def dialect(self) -> Dialect:
        """The dialect that the client probably uses."""
        return self._evidence.dialect

    def assume(self, dialect: Dialect) -> None:
        """Use the configured dialect of the user that logged in, unless there is stronger evidence."""
        self._evidence.note_setting(dialect)

    def learned(self) -> None:
        """Called when a request shows more about the client than was known. For subclasses."""

    # --- requests -------------------------------------------------------------------------------------

    def frame_size(self, head: memoryview) -> int | None:
        """A length below 4 is invalid and counts as a frame of 8 bytes."""
        if len(head) < HEADER_SIZE:
            return None
        length: int
        code: int
        length, code = _unpack_head(head)
        if _CODE_SIZE <= length <= self._usual_length_max:
            return _LENGTH_SIZE + length
        payload_size = max(length - _CODE_SIZE, 0)
        if code == _SEND_CODE:
            size_max, refusal = self._limits.send_size_max, ErrorCode.INVALID_MESSAGES_SIZE
        else:
            size_max, refusal = self._limits.payload_size_max, ErrorCode.INVALID_COMMAND
        if payload_size > size_max:
            reason = f"a request with code {code} has {payload_size} bytes, but at most {size_max} are allowed"
            raise FrameRefused(reason, _status(refusal), HEADER_SIZE + payload_size)
        return HEADER_SIZE + payload_size

    def is_slow(self, frame: memoryview) -> bool:
        """Only sends are slow: other large requests are refused."""
        if _unpack_head(frame)[1] != _SEND_CODE:
            return False
        evidence = self._evidence
        if not evidence.is_header_proven or not evidence.dialect.has_long_header:
            return len(frame) > QUICK_SIZE_MAX
        return len(frame) > _QUICK_MESSAGES_SIZE_MAX or promised_count(frame) > _QUICK_COUNT_MAX

    def decode(self, frame: memoryview, is_logged_in: bool) -> Incoming:  # noqa: ARG002 - part of ``Codec``
        """A missing login is checked later: an invalid payload is refused first."""
        try:
            if self._header_size and frame[_LENGTH_SIZE] == _SEND_CODE:
                send = decode_usual_send(
                    frame, self._header_size, self._evidence.first_id, self._ids, self._limits.messages
                )
                if send is not None:
                    return Incoming(send)
            return Incoming(self._command(frame))
        except Rejection as rejection:
            return Incoming(None, answer=(_status(rejection.code),), reason=str(rejection))
        except struct.error:
            return Incoming(None, answer=(_status(ErrorCode.INVALID_COMMAND),), reason="it is too short")

    def _command(self, frame: memoryview) -> Command:
        length, code = _unpack_head(frame)
        if length < _CODE_SIZE:
            raise Malformed(f"its length of {length} bytes is too short for a command code")
        evidence = self._evidence
        if code == _SEND_CODE and evidence.is_header_proven:
            self._header_size = evidence.dialect.header_size
            return decode_send(frame, evidence, self._ids, self._limits.messages)
        if code == _POLL_CODE and evidence.has_polled and evidence.is_numbering_proven:
            return decode_poll(frame, evidence)
        if code == _PING_CODE:
            evidence.note_ping(self._age())
        if code != _SEND_CODE and code != _POLL_CODE and code not in DIALECT_DECODERS:
            return decode_request(code, frame, evidence)
        # Evidence from a request counts only if the whole request can be decoded that way.
        evidence = evidence.copy()
        command: Command
        if code == _SEND_CODE:
            command = decode_send(frame, evidence, self._ids, self._limits.messages)
        elif code == _POLL_CODE:
            poll = decode_poll(frame, evidence)
            is_too_early = not evidence.has_polled and evidence.awaits_ping(self._age())
            evidence.note_poll()
            command = _poll_of_nothing(poll) if is_too_early else poll
        else:
            command = DIALECT_DECODERS[code](frame, evidence)
        self._evidence = evidence
        self.learned()
        return command

    # --- replies --------------------------------------------------------------------------------------

    def encodes_slowly(self, reply: Polled) -> bool:
        size_max = _QUICK_MESSAGES_SIZE_MAX if self._evidence.dialect.has_long_header else QUICK_SIZE_MAX
        return reply.message_count > _QUICK_COUNT_MAX or reply.size > size_max

    def encode_reply(self, incoming: Incoming, reply: Reply | None) -> Sequence[Buffer]:
        kind = type(reply)
        if reply is None or kind is Sent:
            return _DONE
        if isinstance(reply, Polled):
            if type(incoming.command) is WaitForMessages:
                return _records(reply)
            incoming.is_copied = True
            return (encode_polled(reply, self._evidence),)
        payload = encode_payload(reply, self._evidence.first_id)
        return (_HEAD.pack(0, len(payload)) + payload,)

    def encode_failure(self, incoming: Incoming, error: CourserError) -> Sequence[Buffer]:
        assert incoming.command is not None, "only commands can fail"
        command = type(incoming.command)
        code, dialect = error.code, self._evidence.dialect
        if is_miss(command, code, dialect):
            return _DONE
        if is_empty_poll(command, code):
            return (NOTHING_POLLED,)
        incoming.closes = ends_connection(code)
        return (_status(status_of(command, code, dialect)),)

    def farewell(self, error: CourserError) -> bytes:
        """Clients take it for the reply to their next request, and reconnect on 8 and 30."""
        return _status(error.code)
