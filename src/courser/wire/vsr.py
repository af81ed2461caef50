"""The server side of the protocol of SDK 0.9 and later. One codec per connection.

A request is a 256-byte header and a body; so is a reply. Changes have their own operations, and request numbers that
distinguish repeats from new requests. Everything else is *non-replicated* and has its command code in the header.

What the releases do differently is in a table (``vsr_dialect``), which the version in the login selects.
"""

from collections.abc import Callable, Sequence
from struct import Struct

import msgspec

from courser.api import commands as c
from courser.api.replies import Fetched, LoggedIn, Polled, Reply, Sent
from courser.errors import CourserError, ErrorCode, InvalidBatch
from courser.model.buffers import Buffer
from courser.records.checksum import xxh3
from courser.records.frame_walk import is_compiled, take_vsr_send
from courser.wire import vsr_headers as headers
from courser.wire.codec import Cancellation, Deferral, FrameRefused, Incoming
from courser.wire.reading import Malformed, Reader
from courser.wire.vsr_dialect import SDK_0_9, SUPPORTED, VERSION_MAX, VERSION_MIN, dialect_of
from courser.wire.vsr_duplicates import DuplicateTable, DuplicateVerdict
from courser.wire.vsr_facts import OWN_SDK_NAME, write_facts, write_reason
from courser.wire.vsr_failures import FAREWELLS, WRITES, FailurePlace, judge
from courser.wire.vsr_headers import (
    HEADER_SIZE,
    INTERNAL_OPERATIONS,
    LOGOUT,
    NO_CHECKSUM,
    NO_CLIENT,
    NON_REPLICATED,
    OPERATION_OF_REPLY,
    PROTOCOL_VERSION,
    REGISTER,
    SEND_MESSAGES,
    EvictionReason,
)
from courser.wire.vsr_login import read_login, sdk_name_of, sdk_of, version_of, version_text
from courser.wire.vsr_replies import write_logged_in
from courser.wire.vsr_requests import (
    NothingThere,
    PollOfNothing,
    read_offset_content,
    read_poll,
    read_send,
    read_send_head,
    read_usual_send,
)
from courser.wire.vsr_waiting import fetched_head

_UNFRAMED = frozenset({NON_REPLICATED, LOGOUT, SEND_MESSAGES})
"""Operations whose replies have no result before the payload."""
_PING = c.Ping.row.code
_BIND_SESSION = 15
"""The code with which SDK 0.10 would go on with the session of a lost connection."""
_POLL_MESSAGES = c.PollMessages.row.code
_STAGE_MESSAGES = c.StageMessages.row.code
_CLASSIC_LOGINS = frozenset({c.LoginUser.row.code, c.LoginWithToken.row.code})
_SESSION_CODES = frozenset({c.LogoutUser.row.code, 40, 45})
"""Logout, and logins with their operation numbers as codes: accepted, without effect."""
_HAVE_INCARNATIONS = frozenset(row.kind for row in c.COMMANDS if "incarnation" in row.kind.__struct_fields__)
"""Requests for a partition: what their header says about it belongs to the command."""
_FIND_NOTHING_IF_MALFORMED = frozenset(
    kind.row.code for kind in (c.GetClient, c.GetConsumerOffset, c.SyncConsumerGroup)
)
"""Reads that the original server answers with "not found" if it cannot decode the identifier."""
_NO_REJECTION = bytes(4)
"""The result of a successful command: no rejections."""
_REJECTION = Struct("<III")
"""count: one; index: 0; code"""
_SIZE_MAX = Struct("<Q")
"""After a login, for Courser's own client: maximum bytes of a request."""
_NOT_OWNED_PARTITION = 2**32 - 1
_REPEATED = "the request was already carried out"


class VsrIncoming(Incoming, eq=False, gc=False):
    """A request, and the header fields that its reply repeats."""

    client: bytes = NO_CLIENT
    checksum: bytes = NO_CHECKSUM
    request: int = 0
    """The request number."""
    operation: int = NON_REPLICATED
    content: bytes = b""
    """What identifies a send or a stored offset among others."""


class _Refusal(Exception):
    """A request that is not carried out. Without an answer of its own, it gets its number as the status."""

    def __init__(
        self, answer: Sequence[Buffer] | None, reason: str, code: ErrorCode = ErrorCode.INVALID_COMMAND
    ) -> None:
        super().__init__(reason)
        self.answer = answer
        self.code = code


def _to_nobody(_: str) -> None:
    """For those who have no log."""


class VsrCodec:
    """One connection of a client of SDK 0.9 or later, or of Courser's own client, which gets details about failures.

    Args:
        verify_frames: whether to verify the checksum of each message that is sent.
        frame_size_max: maximum bytes of a request.
        warn: told of clients that speak a protocol which this release does not know.
    """

    __slots__ = (
        "_client",
        "_dialect",
        "_duplicates",
        "_frame_size_max",
        "_is_first",
        "_is_own",
        "_verify_frames",
        "_version",
        "_warn",
    )

    def __init__(
        self,
        *,
        verify_frames: bool = False,
        frame_size_max: int = headers.FRAME_SIZE_MAX,
        warn: Callable[[str], None] = _to_nobody,
    ) -> None:
        self._warn = warn
        self._dialect = SDK_0_9
        """Until the login, when the client says which it is, nothing depends on it."""
        self._version = PROTOCOL_VERSION
        self._verify_frames = verify_frames
        self._frame_size_max = min(frame_size_max, headers.FRAME_SIZE_MAX)
        self._duplicates = DuplicateTable()
        self._client = NO_CLIENT
        """The client id in the last request."""
        self._is_first = True
        self._is_own = False
        """Whether it is Courser's own client: failures keep their number and have details."""

    @property
    def facts(self) -> tuple[int, DuplicateTable, bytes, bool, bool]:
        """What it knows about its client."""
        return self._version, self._duplicates, self._client, self._is_first, self._is_own

    @facts.setter
    def facts(self, facts: tuple[int, DuplicateTable, bytes, bool, bool]) -> None:
        self._version, self._duplicates, self._client, self._is_first, self._is_own = facts
        self._dialect = dialect_of(self._version) or SDK_0_9

    # --- frames ---------------------------------------------------------------------------------------

    def frame_size(self, head: memoryview) -> int | None:
        """An invalid frame ends the connection: where the next frame starts is unknown."""
        length = len(head)
        if length > headers.COMMAND_POSITION and not self._is_first:
            size, command = headers.unpack_size_and_command(head)
            if HEADER_SIZE <= size <= self._frame_size_max and command == headers.COMMAND_REQUEST:
                return size
        return self._unusual_size(head, length)

    def _unusual_size(self, head: memoryview, length: int) -> int | None:
        """The size of a frame that is the first one, or has not come far enough to tell, or is refused."""
        if self._is_first and any(head[: headers.SIZE_POSITION]):
            raise FrameRefused("the first frame does not start with 48 zero bytes")
        if length < headers.SIZE_POSITION + 4:
            return None
        size = headers.frame_size_of(head)
        if size < HEADER_SIZE:
            raise FrameRefused(f"a frame must have at least {HEADER_SIZE} bytes, not {size}")
        if length <= headers.COMMAND_POSITION:
            return None
        if head[headers.COMMAND_POSITION] != headers.COMMAND_REQUEST:
            raise FrameRefused(f"a frame of kind {head[headers.COMMAND_POSITION]} is not a request")
        if size <= self._frame_size_max:
            return size
        if length < HEADER_SIZE:
            # The answer repeats fields of the header.
            return None
        raise self._too_large(head)

    def _too_large(self, head: memoryview) -> FrameRefused:
        size, _, client, checksum, request, operation, _, code = headers.unpack_request(head)
        incoming = VsrIncoming(None, None, "", False, False, client, checksum, request, operation)
        is_send = operation == SEND_MESSAGES or (operation == NON_REPLICATED and code == _STAGE_MESSAGES)
        number = ErrorCode.INVALID_MESSAGES_SIZE if is_send else ErrorCode.INVALID_COMMAND
        reason = f"a request has {size} bytes, but at most {self._frame_size_max} are allowed"
        return FrameRefused(reason, b"".join(self._refuse(incoming, number, reason)), size)

    # --- requests -------------------------------------------------------------------------------------

    def is_slow(self, frame: memoryview) -> bool:
        """Decoding a batch is fast, unless each message is hashed or walked over."""
        del frame
        return self._verify_frames or not is_compiled

    def decode(self, frame: memoryview, is_logged_in: bool) -> Incoming:
        self._is_first = False
        if len(frame) < HEADER_SIZE:
            return _hang_up(VsrIncoming(None), "a frame without a complete header")
        if frame[headers.OPERATION_POSITION] == SEND_MESSAGES and is_logged_in and not self._verify_frames:
            usual = self._usual_send(frame)
            if usual is not None:
                return usual
        size, command, client, checksum, request, operation, session, code = headers.unpack_request(frame)
        incoming = VsrIncoming(None, None, "", False, False, client, checksum, request, operation)
        if command != headers.COMMAND_REQUEST or size != len(frame):
            return _hang_up(incoming, f"a frame of kind {command} that claims to have {size} bytes")
        self._client = client
        body, dialect = frame[HEADER_SIZE:], self._dialect
        try:
            if code == _POLL_MESSAGES and operation == NON_REPLICATED and is_logged_in:
                if client == NO_CLIENT or checksum != NO_CHECKSUM:
                    _check_client(incoming)
                    self._check_body(incoming, body)
                incoming.command = read_poll(body, headers.incarnation_of(frame) if dialect.has_incarnations else 0)
                return incoming
            return self._decode_other(incoming, frame, session, code, body, is_logged_in=is_logged_in)
        except (_Refusal, Malformed, InvalidBatch, PollOfNothing) as error:
            self._refuse_invalid(incoming, error)
        return incoming

    def _decode_other(
        self, incoming: VsrIncoming, frame: memoryview, session: int, code: int, body: memoryview, *, is_logged_in: bool
    ) -> Incoming:
        operation = incoming.operation
        if operation == NON_REPLICATED:
            if code in self._dialect.deferred:
                return self._read_deferred(incoming, frame, code, body, is_logged_in=is_logged_in)
            incoming.command = self._read_non_replicated(incoming, frame, code, body, is_logged_in=is_logged_in)
        elif operation == SEND_MESSAGES:
            _check_change_is_allowed(incoming, session, is_logged_in)
            self._read_send(incoming, frame, body)
        elif operation in self._dialect.changes:
            _check_change_is_allowed(incoming, session, is_logged_in)
            self._check_body(incoming, body)
            if operation in WRITES:
                self._read_offset_change(incoming, frame, body)
            else:
                self._read_change(incoming, body)
        else:
            self._read_session_request(incoming, session, body, is_logged_in=is_logged_in)
        return incoming

    def _refuse_invalid(self, incoming: VsrIncoming, error: Exception) -> None:
        """Answer a request that is not carried out."""
        incoming.reason = str(error)
        if isinstance(error, _Refusal):
            incoming.answer = error.answer if error.answer is not None else (self._status(incoming, error.code),)
        elif isinstance(error, PollOfNothing):
            incoming.answer = (self._empty_poll(incoming, 0),)
        else:
            assert isinstance(error, Malformed | InvalidBatch)
            code = error.code if self._is_own else self._code_of_malformed(incoming.operation, error)
            incoming.answer = self._refuse(incoming, code, incoming.reason)

    @property
    def _may_be_idempotent(self) -> bool:
        """Whether the client may number the messages of its producers."""
        return self._is_own or self._dialect.has_producers

    def _code_of_malformed(self, operation: int, error: Malformed | InvalidBatch) -> ErrorCode:
        if isinstance(error, InvalidBatch):
            return error.code
        if operation in WRITES:
            return self._dialect.failures.malformed_write
        return error.code if error.code in self._dialect.codes_of_values else ErrorCode.INVALID_COMMAND

    def _usual_send(self, frame: memoryview) -> VsrIncoming | None:
        """A send in one compiled step; None if anything about it is unusual or wrong, or if it is repeated."""
        taken = take_vsr_send(frame)
        if taken is None:
            return None
        incarnation = headers.incarnation_of(frame) if self._dialect.has_incarnations else 0
        command = read_usual_send(taken, incarnation)
        if command is None:
            return None
        if command.batches[0].producer is not None and not self._may_be_idempotent:
            return None
        client, checksum, request, content = taken[:4]
        if request == self._duplicates.last_write[0]:
            return None
        self._client = client
        return VsrIncoming(command, None, "", False, False, client, checksum, request, SEND_MESSAGES, content)

    def _refuse(self, incoming: VsrIncoming, code: int, reason: str) -> Sequence[Buffer]:
        return (self._status(incoming, code, write_reason(reason) if self._is_own else b""),)

    def _check_body(self, incoming: VsrIncoming, body: memoryview) -> None:
        """Compare the body with the checksum in the header, if there is one."""
        checksum = incoming.checksum
        if checksum == NO_CHECKSUM or not self._dialect.has_request_checksums:
            return
        if int.from_bytes(checksum, "little") != xxh3(body):
            raise _refused(ErrorCode.INVALID_FORMAT, "the checksum of the request does not match")

    def _read_non_replicated(
        self, incoming: VsrIncoming, frame: memoryview, code: int, body: memoryview, *, is_logged_in: bool
    ) -> c.Command:
        dialect = self._dialect
        _check_client(incoming)
        _check_read_is_allowed(incoming, code, is_logged_in)
        self._check_body(incoming, body)
        incarnation = headers.incarnation_of(frame) if dialect.has_incarnations else 0
        reader = dialect.reads.get(code)
        if reader is not None:
            try:
                return _with_incarnation(reader(Reader(body)), incarnation)
            except NothingThere as error:
                raise _Refusal((_reply(incoming, b""),), str(error)) from None
            except Malformed as error:
                if code in _FIND_NOTHING_IF_MALFORMED:
                    raise _Refusal((_reply(incoming, b""),), str(error)) from None
                raise
        if code in _SESSION_CODES:
            raise _Refusal((_reply(incoming, b""),), f"command {code} has no effect")
        if code in dialect.codes_of_changes:
            raise _refused(ErrorCode.FEATURE_UNAVAILABLE, f"command {code} has an operation of its own")
        raise _refused(ErrorCode.INVALID_COMMAND, f"unknown command {code}")

    def _read_deferred(
        self, incoming: VsrIncoming, frame: memoryview, code: int, body: memoryview, *, is_logged_in: bool
    ) -> Incoming:
        """A read that may wait, or its cancellation, which has its number."""
        _check_client(incoming)
        _check_read_is_allowed(incoming, code, is_logged_in)
        reader = self._dialect.deferred[code]
        if reader is None:
            return Cancellation(None, number=incoming.request)
        try:
            wait, read = reader(body, headers.incarnation_of(frame))
        except Malformed as error:
            raise _refused(error.code, str(error)) from None
        incoming.command = read or wait
        return incoming if wait is None else Deferral(None, number=incoming.request, wait=wait, request=incoming)

    def _read_send(self, incoming: VsrIncoming, frame: memoryview, body: memoryview) -> None:
        if incoming.checksum != NO_CHECKSUM:
            self._check_body(incoming, body)
        incoming.content = head = read_send_head(body)
        answer = self._duplicates.recall_write(incoming.request, SEND_MESSAGES, head)
        if answer is not None:
            raise _Refusal((answer,), _REPEATED)
        incarnation = headers.incarnation_of(frame) if self._dialect.has_incarnations else 0
        incoming.command = read_send(head, body, self._verify_frames, incarnation, self._may_be_idempotent)

    def _read_offset_change(self, incoming: VsrIncoming, frame: memoryview, body: memoryview) -> None:
        incoming.content = read_offset_content(body)
        answer = self._duplicates.recall_write(incoming.request, incoming.operation, incoming.content)
        if answer is not None:
            raise _Refusal((answer,), _REPEATED)
        incarnation = headers.incarnation_of(frame) if self._dialect.has_incarnations else 0
        command = self._dialect.changes[incoming.operation](Reader(body))
        incoming.command = _with_incarnation(command, incarnation)

    def _read_change(self, incoming: VsrIncoming, body: memoryview) -> None:
        recalled = self._duplicates.recall_change(incoming.request, incoming.operation, incoming.checksum)
        if isinstance(recalled, bytes):
            raise _Refusal((recalled,), _REPEATED)
        if recalled is DuplicateVerdict.FORGOTTEN:
            answer = _result(incoming, ErrorCode.REQUEST_ALREADY_APPLIED)
            raise _Refusal(
                (answer,),
                "a request with a higher number was already carried out, and the reply to this one is not known",
            )
        if recalled is DuplicateVerdict.CONFLICT:
            raise _refused(ErrorCode.INVALID_COMMAND, "its request number was already used for another request")
        incoming.command = self._dialect.changes[incoming.operation](Reader(body))

    def _read_session_request(
        self, incoming: VsrIncoming, session: int, body: memoryview, *, is_logged_in: bool
    ) -> None:
        """Login, logout, and operations that clients may not use."""
        operation = incoming.operation
        _check_client(incoming)
        if operation == REGISTER:
            if session or incoming.request:
                raise _refused(ErrorCode.INVALID_COMMAND, "a login with a session or a request number")
            incoming.command = self._read_login(incoming, body)
        elif operation == LOGOUT:
            if not is_logged_in:
                raise _Refusal((_reply(incoming, b""),), "not logged in")
            self._check_body(incoming, body)
            incoming.command = c.LogoutUser()
        elif operation in INTERNAL_OPERATIONS:
            reason = EvictionReason.INTERNAL_OPERATION if is_logged_in else EvictionReason.NO_SESSION
            raise _Refusal((headers.eviction(incoming.client, reason),), f"clients cannot use operation {operation}")
        else:
            raise _refused(ErrorCode.INVALID_COMMAND, f"unknown operation {operation}")

    def _read_login(self, incoming: VsrIncoming, body: memoryview) -> c.Command:
        """The login; from here on the client is answered as its version expects."""
        try:
            version = version_of(body)
            dialect = dialect_of(version)
            if dialect is None:
                reason = f"{_speaker(body, version)}, which is not supported; supported are {SUPPORTED}"
                self._warn(reason)
                refused = EvictionReason.INCOMPATIBLE_PROTOCOL
                window = headers.eviction(incoming.client, refused, version_max=VERSION_MAX, version_min=VERSION_MIN)
                raise _Refusal((window,), reason)
            self._dialect, self._version = dialect, version
            self._check_body(incoming, body)
            self._is_own = sdk_name_of(body) == OWN_SDK_NAME
            command = read_login(body, dialect.secret_size)
        except Malformed as error:
            raise _Refusal((headers.eviction(incoming.client, EvictionReason.MALFORMED_LOGIN),), str(error)) from None
        if version > VERSION_MAX:
            latest = version_text(VERSION_MAX)
            self._warn(f"{_speaker(body, version)}, which is served as {latest}, the last one that is known")
        return command

    # --- replies --------------------------------------------------------------------------------------

    def encodes_slowly(self, reply: Polled) -> bool:
        """Messages are sent as they are stored."""
        del reply
        return False

    def encode_reply(self, incoming: Incoming, reply: Reply | None) -> Sequence[Buffer]:
        assert isinstance(incoming, VsrIncoming)
        if type(reply) is Sent:
            # fmt: off
            answer = headers.pack_sent(
                headers.SENT_SIZE, headers.COMMAND_REPLY, incoming.checksum, incoming.client, 0, 0, incoming.request,
                SEND_MESSAGES, 0, 1, reply.stream_id, reply.topic_id, reply.partition_id, reply.base_offset,
            )
            # fmt: on
            self._duplicates.last_write = incoming.request, SEND_MESSAGES, incoming.content, answer
            return (answer,)
        if type(reply) is Polled:
            dialect = self._dialect
            context = (reply.incarnation, 0, reply.incarnation) if dialect.has_incarnations else ()
            # fmt: off
            head = dialect.pack_polled(
                dialect.polled_size + reply.size, headers.COMMAND_REPLY, incoming.checksum, incoming.client, 0, 0,
                incoming.request, NON_REPLICATED, 0, reply.partition_id, reply.current_offset, reply.message_count,
                *context,
            )
            # fmt: on
            return (head, *reply.pieces)
        return self._encode_other(incoming, reply)

    def _encode_other(self, incoming: VsrIncoming, reply: Reply | None) -> Sequence[Buffer]:
        command = incoming.command
        assert command is not None
        if isinstance(reply, Fetched):
            return self._fetched(incoming, reply)
        if isinstance(reply, LoggedIn):
            return (self._logged_in(incoming, reply),)
        payload = b""
        if reply is not None:
            write_both = self._dialect.writers_of_commands.get(type(command))
            payload = self._dialect.writers[type(reply)](reply) if write_both is None else write_both(command, reply)
        answer = _reply(incoming, payload)
        self._remember(incoming, answer)
        return (answer,)

    def _fetched(self, incoming: VsrIncoming, reply: Fetched) -> Sequence[Buffer]:
        assert isinstance(incoming.command, c.FetchMessages), "no other command has this reply"
        incoming.is_copied = reply.is_copied
        head = fetched_head(reply, commits=incoming.command.auto_commit)
        header = headers.reply_header(
            incoming.client,
            incoming.checksum,
            incoming.request,
            NON_REPLICATED,
            body_size=len(head) + reply.size,
        )
        return (header + head, *reply.pieces)

    def _logged_in(self, incoming: VsrIncoming, reply: LoggedIn) -> bytes:
        self._duplicates.reset()
        dialect = self._dialect
        version = self._version if dialect.repeats_version else PROTOCOL_VERSION
        payload = write_logged_in(reply, version, dialect.release)
        if self._is_own:
            payload += _SIZE_MAX.pack(self._frame_size_max)
        # Later releases compare it with the context of partitions, which has nothing to do with sessions.
        return _reply(incoming, payload, commit=0 if dialect.has_incarnations else reply.session)

    def encode_failure(self, incoming: Incoming, error: CourserError) -> Sequence[Buffer]:
        assert isinstance(incoming, VsrIncoming)
        assert incoming.command is not None
        channel, number = judge(self._dialect.failures, incoming.operation, incoming.command, error.code)
        if self._is_own:
            answer = self._status(incoming, error.code, write_facts(error))
            if channel is FailurePlace.RESULT:
                self._remember(incoming, answer)
            return (answer,)
        match channel:
            case FailurePlace.STATUS:
                return (self._status(incoming, number),)
            case FailurePlace.RESULT:
                answer = _result(incoming, number)
                self._remember(incoming, answer)
                return (answer,)
            case FailurePlace.EVICTION:
                return (headers.eviction(incoming.client, EvictionReason(number)),)
            case FailurePlace.NOTHING:
                return (_reply(incoming, b""),)
            case FailurePlace.EMPTY_LIST:
                return (_reply(incoming, bytes(4)),)
            case FailurePlace.NOT_OWNED:
                return (self._empty_poll(incoming, _NOT_OWNED_PARTITION),)

    def _status(self, incoming: VsrIncoming, code: int, body: bytes = b"") -> bytes:
        operation = self._dialect.operation_in_reply(incoming.operation)
        header = headers.reply_header(
            incoming.client, incoming.checksum, incoming.request, operation, status=code, body_size=len(body)
        )
        return header + body

    def _empty_poll(self, incoming: VsrIncoming, partition_id: int) -> bytes:
        return b"".join(self.encode_reply(incoming, Polled(partition_id, 0, 0, (), 0)))

    def _remember(self, incoming: VsrIncoming, answer: bytes) -> None:
        """Keep the reply to a command that was carried out, in case the request is repeated."""
        operation = incoming.operation
        if operation in WRITES:
            self._duplicates.last_write = incoming.request, operation, incoming.content, answer
        elif operation in self._dialect.changes:
            self._duplicates.remember_change(incoming.request, operation, incoming.checksum, answer)

    def farewell(self, error: CourserError) -> bytes:
        """The SDK takes it for the reply to its next request, and logs in again."""
        reason = FAREWELLS.get(error.code)
        return b"" if reason is None else headers.eviction(self._client, reason)


# --- checks -------------------------------------------------------------------------------------------


def _check_client(incoming: VsrIncoming) -> None:
    if incoming.client == NO_CLIENT:
        raise _refused(ErrorCode.INVALID_COMMAND, "a client id cannot be 0")


def _check_read_is_allowed(incoming: VsrIncoming, code: int, is_logged_in: bool) -> None:
    if code in _CLASSIC_LOGINS:
        answer = headers.eviction(incoming.client, EvictionReason.MALFORMED_LOGIN)
        raise _Refusal((answer,), f"command {code} is not a login of this protocol")
    if code == _BIND_SESSION:
        raise _refused(ErrorCode.UNAUTHENTICATED, "sessions end with their connections; log in again")
    if not is_logged_in and code != _PING:
        raise _refused(ErrorCode.UNAUTHENTICATED, f"command {code} needs a login first")


def _check_change_is_allowed(incoming: VsrIncoming, session: int, is_logged_in: bool) -> None:
    if incoming.client == NO_CLIENT:
        _check_client(incoming)
    if not is_logged_in:
        answer = headers.eviction(incoming.client, EvictionReason.NO_SESSION)
        raise _Refusal((answer,), f"operation {incoming.operation} needs a login first")
    if not session or not incoming.request:
        raise _refused(ErrorCode.INVALID_COMMAND, "a change without a session or a request number")


# --- bodies -------------------------------------------------------------------------------------------


def _with_incarnation(command: c.Command, incarnation: int) -> c.Command:
    if incarnation and type(command) in _HAVE_INCARNATIONS:
        return msgspec.structs.replace(command, incarnation=incarnation)
    return command


def _speaker(body: memoryview, version: int) -> str:
    return f"the client ({sdk_of(body)!a}) speaks protocol {version_text(version)}"


# --- reply frames -------------------------------------------------------------------------------------


def _hang_up(incoming: VsrIncoming, reason: str) -> VsrIncoming:
    incoming.answer = ()
    incoming.reason = reason
    incoming.closes = True
    return incoming


def _refused(code: ErrorCode, reason: str) -> _Refusal:
    return _Refusal(None, reason, code)


def _result(incoming: VsrIncoming, code: int) -> bytes:
    """The reply to a change that the state does not allow."""
    return _body(incoming, _REJECTION.pack(1, 0, code))


def _reply(incoming: VsrIncoming, payload: bytes, *, commit: int = 0) -> bytes:
    """The reply to a command that was carried out."""
    if incoming.operation not in _UNFRAMED:
        payload = _NO_REJECTION + payload
    return _body(incoming, payload, commit=commit)


def _body(incoming: VsrIncoming, body: bytes, *, commit: int = 0) -> bytes:
    operation = OPERATION_OF_REPLY.get(incoming.operation, incoming.operation)
    header = headers.reply_header(
        incoming.client, incoming.checksum, incoming.request, operation, body_size=len(body), commit=commit
    )
    return header + body
