"""The client side of the protocol of SDK 0.9: commands to request frames, reply frames to replies.

One codec per connection; it numbers the requests. Replies are received in the order of the requests.
"""

from collections.abc import Sequence
from struct import Struct

from courser.api import commands as c
from courser.api.replies import LoggedIn, Reply
from courser.errors import AuthenticationFailed, CourserError, ErrorCode, InvalidRequest, NotFound, RequestFailed
from courser.model.buffers import Buffer
from courser.records.batch import sent_header
from courser.records.checksum import xxh3
from courser.wire import vsr_headers as headers
from courser.wire.layouts import layout_of
from courser.wire.reading import Malformed, Reader
from courser.wire.vsr_facts import read_failure
from courser.wire.vsr_headers import HEADER_SIZE, LOGOUT, NON_REPLICATED, REGISTER, SEND_MESSAGES, EvictionReason
from courser.wire.vsr_replies import MAY_BE_EMPTY, READERS
from courser.wire.vsr_requests import WRITERS, write_send_target

_UNFRAMED = frozenset({NON_REPLICATED, LOGOUT, SEND_MESSAGES, c.DeleteSegments.row.operation})
"""Operations whose replies have no result before the payload."""
_write_stage_head = layout_of(c.StageMessages).before("batch").write

_REJECTION = Struct("<II")
"""index, code"""

_REASONS = {
    EvictionReason.NO_SESSION: (ErrorCode.UNAUTHENTICATED, "this connection is not logged in"),
    EvictionReason.INVALID_CREDENTIALS: (ErrorCode.INVALID_CREDENTIALS, "unknown user or wrong password"),
    EvictionReason.INVALID_TOKEN: (ErrorCode.INVALID_TOKEN, "unknown or expired token"),
    EvictionReason.SESSION_ERROR: (ErrorCode.UNAUTHENTICATED, "the server ended this session"),
    EvictionReason.STALE_CLIENT: (
        ErrorCode.STALE_CLIENT,
        "the server received nothing for too long and ended this session",
    ),
    EvictionReason.MALFORMED_LOGIN: (ErrorCode.INVALID_FORMAT, "the server did not understand the login"),
    EvictionReason.INTERNAL_OPERATION: (ErrorCode.INVALID_COMMAND, "clients cannot use this operation"),
}


class SessionEnded(Exception):
    """The server ended the session: this connection cannot be used any more."""

    def __init__(self, error: CourserError) -> None:
        super().__init__(error)
        self.error = error

    def __str__(self) -> str:
        return str(self.error)


class VsrClientCodec:
    """One connection to a server, from the client's side."""

    __slots__ = ("_client", "_request", "frame_size_max", "session")

    def __init__(self, client: bytes) -> None:
        """``client`` is the client id: 16 random bytes, new for every connection."""
        self._client = client
        self._request = 0
        self.session = 0
        """From the reply to the login."""
        self.frame_size_max = headers.FRAME_SIZE_MAX
        """Maximum bytes of a request: the protocol's, or less if the server says so after a login."""

    # --- requests -------------------------------------------------------------------------------------

    def encode(self, command: c.Command) -> Sequence[Buffer]:
        """The request as pieces to send one after another. They may refer to the memory of the command."""
        if isinstance(command, c.SendMessages):
            return self._encode_send(command)
        if isinstance(command, c.StageMessages):
            return self._encode_stage(command)
        body = WRITERS[type(command)](command)
        row = command.row
        if not row.operation:
            return (self._header(NON_REPLICATED, len(body), code=row.code) + body,)
        if row.operation == REGISTER:
            # A login has no number and starts a new session.
            self._request = self.session = 0
            header = headers.request_header(self._client, 0, REGISTER, 0, body_size=len(body), checksum=xxh3(body))
            return (header + body,)
        return (self._header(row.operation, len(body), checksum=xxh3(body)) + body,)

    def _encode_send(self, command: c.SendMessages) -> Sequence[Buffer]:
        (batch,) = command.batches
        target, header = write_send_target(command, batch.count), sent_header(batch)
        return self._header(SEND_MESSAGES, len(target) + batch.size) + target + header, batch.body

    def _encode_stage(self, command: c.StageMessages) -> Sequence[Buffer]:
        batch, head = command.batch, _write_stage_head(command)
        header = sent_header(batch)
        return self._header(NON_REPLICATED, len(head) + batch.size, code=command.row.code) + head + header, batch.body

    def _header(self, operation: int, body_size: int, *, code: int = 0, checksum: int = 0) -> bytes:
        self._request += 1
        return headers.request_header(
            self._client,
            self._request,
            operation,
            self.session,
            code=code,
            body_size=body_size,
            checksum=checksum,
        )

    # --- replies --------------------------------------------------------------------------------------

    def frame_size(self, head: memoryview) -> int | None:
        """The size of the first frame in bytes; None if more bytes are needed to tell.

        Raises:
            Malformed: the server does not use this protocol.
        """
        if len(head) < HEADER_SIZE:
            return None
        size = headers.frame_size_of(head)
        if size < HEADER_SIZE or head[headers.COMMAND_POSITION] not in (
            headers.COMMAND_REPLY,
            headers.COMMAND_EVICTION,
        ):
            raise Malformed("the reply is not in this protocol; is this a Courser or Iggy 0.9 server?")
        return size

    def decode(self, command: c.Command, frame: memoryview) -> Reply | None:
        """Decode the reply to a command. It may refer to the memory of the frame.

        Raises:
            CourserError: the server refused it, or failed.
            SessionEnded: the server ended the session.
            Malformed: the reply cannot be decoded.
        """
        kind, _, operation, status = headers.unpack_reply(frame)
        if kind == headers.COMMAND_EVICTION:
            raise _eviction(command, frame)
        body = frame[HEADER_SIZE:]
        if status:
            raise read_failure(status, body)
        reader = Reader(body)
        if operation not in _UNFRAMED:
            _check_result(reader)
        expected = command.row.reply
        if expected is None:
            return None
        if not reader.remaining and expected not in MAY_BE_EMPTY:
            raise NotFound(ErrorCode.RESOURCE_NOT_FOUND, "not found")
        reply: Reply = READERS[expected](reader)
        if isinstance(reply, LoggedIn):
            self.session = reply.session
            self.frame_size_max = min(reply.frame_size_max or headers.FRAME_SIZE_MAX, headers.FRAME_SIZE_MAX)
        return reply

    def farewell(self, frame: memoryview) -> str:
        """Why the server ends the session, from an unsolicited frame."""
        kind, _, _, _ = headers.unpack_reply(frame)
        if kind != headers.COMMAND_EVICTION:
            return "the server sent a reply without a request"
        return str(_eviction(c.Ping(), frame))


def _check_result(reader: Reader) -> None:
    """Read the result before a payload. Raises if it is a rejection."""
    if reader.u32():
        _, code = _REJECTION.unpack(reader.take(_REJECTION.size))
        raise read_failure(code, b"")


def _eviction(command: c.Command, frame: memoryview) -> Exception:
    reason, version_max, version_min = headers.unpack_eviction(frame)
    if reason == EvictionReason.INCOMPATIBLE_PROTOCOL:
        return InvalidRequest(
            ErrorCode.INVALID_FORMAT,
            f"the server supports protocol {_version(version_min)} to {_version(version_max)}, this client uses "
            f"{_version(headers.PROTOCOL_VERSION)}",
        )
    code, sentence = _REASONS.get(reason, (ErrorCode.ERROR, f"the server ended this session (reason {reason})"))  # type: ignore[call-overload]  # EvictionReason is an int
    kind = AuthenticationFailed if code is not ErrorCode.ERROR else RequestFailed
    error = kind(code, sentence)
    if isinstance(command, c.LoginUser | c.LoginWithToken):
        return error
    return SessionEnded(error)


def _version(number: int) -> str:
    return f"{number >> 20}.{number >> 10 & 1023}.{number & 1023}"
