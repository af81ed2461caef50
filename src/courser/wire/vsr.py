"""The server side of the protocol of SDK 0.9. One codec per connection.

A request is a 256-byte header and a body; so is a reply. Changes have their own operations, and request numbers that
distinguish repeats from new requests. Everything else is *non-replicated* and has its command code in the header.
"""

from collections.abc import Sequence
from struct import Struct

from courser.api import commands as c
from courser.api.replies import LoggedIn, Polled, Reply, Sent, TopicDetails
from courser.errors import CourserError, ErrorCode, InvalidBatch
from courser.model.buffers import Buffer
from courser.records.checksum import xxh3
from courser.records.frame_walk import is_compiled, take_vsr_send
from courser.wire import vsr_headers as headers
from courser.wire.codec import FrameRefused, Incoming
from courser.wire.reading import Malformed, Reader
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
    OPERATIONS,
    REGISTER,
    SEND_MESSAGES,
    EvictionReason,
)
from courser.wire.vsr_login import PROTOCOL_VERSION_MAX, PROTOCOL_VERSION_MIN, VersionRefused, read_login, sdk_name_of
from courser.wire.vsr_replies import WRITERS, write_new_topic
from courser.wire.vsr_requests import (
    READERS_OF_CODES,
    READERS_OF_OPERATIONS,
    NothingThere,
    read_offset_content,
    read_poll,
    read_send,
    read_send_head,
    read_usual_send,
)

_UNFRAMED = frozenset({NON_REPLICATED, LOGOUT, SEND_MESSAGES})
"""Operations whose replies have no result before the payload."""
_REPLICATED_MIN = 128
"""Operations from here on change something."""

_PING = c.Ping.row.code
_POLL_MESSAGES = c.PollMessages.row.code
_STAGE_MESSAGES = c.StageMessages.row.code
_CLASSIC_LOGINS = frozenset({c.LoginUser.row.code, c.LoginWithToken.row.code})
_SESSION_CODES = frozenset({c.LogoutUser.row.code, 40, 45})
"""Logout, and logins with their operation numbers as codes: accepted, without effect."""
_REPLICATED_CODES = frozenset(row.code for row in c.COMMANDS if row.operation >= _REPLICATED_MIN)
"""Commands with an operation, which are not accepted with their classic code."""
_FIND_NOTHING_IF_MALFORMED = frozenset(
    kind.row.code for kind in (c.GetClient, c.GetConsumerOffset, c.SyncConsumerGroup)
)
"""Reads that the original server answers with "not found" if it cannot decode the identifier."""
_CODES_OF_VALUES = frozenset(
    {ErrorCode.UNSUPPORTED_OPTION_KEY, ErrorCode.INVALID_OPTION_VALUE, ErrorCode.TOO_MANY_PARTITIONS}
)
"""Errors in a body that can be decoded; for all others the client gets only "malformed"."""

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
    """A request that is not carried out."""

    def __init__(self, answer: Sequence[Buffer], reason: str) -> None:
        super().__init__(reason)
        self.answer = answer


class VsrCodec:
    """One connection of an SDK 0.9 client, or of Courser's own client, which gets more details about failures."""

    __slots__ = ("_client", "_duplicates", "_frame_size_max", "_is_first", "_is_own", "_verify_frames")

    def __init__(self, *, verify_frames: bool = False, frame_size_max: int = headers.FRAME_SIZE_MAX) -> None:
        self._verify_frames = verify_frames
        self._frame_size_max = min(frame_size_max, headers.FRAME_SIZE_MAX)
        self._duplicates = DuplicateTable()
        self._client = NO_CLIENT
        """The client id in the last request."""
        self._is_first = True
        self._is_own = False
        """Whether it is Courser's own client: failures keep their number and have details."""

    # --- frames ---------------------------------------------------------------------------------------

    def frame_size(self, head: memoryview) -> int | None:
        """An invalid frame ends the connection: where the next frame starts is unknown."""
        length = len(head)
        if length > headers.COMMAND_POSITION and not self._is_first:
            size, command = headers.unpack_size_and_command(head)
            if HEADER_SIZE <= size <= self._frame_size_max and command == headers.COMMAND_REQUEST:
                return size
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
        body = frame[HEADER_SIZE:]
        try:
            if operation == NON_REPLICATED:
                incoming.command = _read_non_replicated(incoming, code, body, is_logged_in=is_logged_in)
            elif operation == SEND_MESSAGES:
                _check_change_is_allowed(incoming, session, is_logged_in)
                self._read_send(incoming, body)
            elif operation in WRITES or operation in READERS_OF_OPERATIONS:
                _check_change_is_allowed(incoming, session, is_logged_in)
                _check_body(incoming, body)
                if operation in WRITES:
                    self._read_offset_change(incoming, body)
                else:
                    self._read_change(incoming, body)
            else:
                self._read_session_request(incoming, session, body, is_logged_in=is_logged_in)
        except _Refusal as refusal:
            incoming.answer, incoming.reason = refusal.answer, str(refusal)
        except Malformed as error:
            code = error.code if self._is_own else _code_of_malformed(operation, error)
            incoming.answer, incoming.reason = self._refuse(incoming, code, str(error)), str(error)
        except InvalidBatch as error:
            incoming.answer, incoming.reason = self._refuse(incoming, error.code, str(error)), str(error)
        return incoming

    def _usual_send(self, frame: memoryview) -> VsrIncoming | None:
        """A send in one compiled step; None if anything about it is unusual or wrong, or if it is repeated."""
        taken = take_vsr_send(frame)
        command = None if taken is None else read_usual_send(taken)
        if taken is None or command is None:
            return None
        client, checksum, request, content = taken[:4]
        if self._duplicates.recall_write(request, SEND_MESSAGES, content) is not None:
            return None
        self._client = client
        return VsrIncoming(command, None, "", False, False, client, checksum, request, SEND_MESSAGES, content)

    def _refuse(self, incoming: VsrIncoming, code: int, reason: str) -> Sequence[Buffer]:
        return (_status(incoming, code, write_reason(reason) if self._is_own else b""),)

    def _read_send(self, incoming: VsrIncoming, body: memoryview) -> None:
        if incoming.checksum != NO_CHECKSUM:
            _check_body(incoming, body)
        incoming.content = head = read_send_head(body)
        answer = self._duplicates.recall_write(incoming.request, SEND_MESSAGES, head)
        if answer is not None:
            raise _Refusal((answer,), _REPEATED)
        incoming.command = read_send(head, body, self._verify_frames)

    def _read_offset_change(self, incoming: VsrIncoming, body: memoryview) -> None:
        incoming.content = read_offset_content(body)
        answer = self._duplicates.recall_write(incoming.request, incoming.operation, incoming.content)
        if answer is not None:
            raise _Refusal((answer,), _REPEATED)
        incoming.command = READERS_OF_OPERATIONS[incoming.operation](Reader(body))

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
            answer = _status(incoming, ErrorCode.INVALID_COMMAND)
            raise _Refusal((answer,), "its request number was already used for another request")
        incoming.command = READERS_OF_OPERATIONS[incoming.operation](Reader(body))

    def _read_session_request(
        self, incoming: VsrIncoming, session: int, body: memoryview, *, is_logged_in: bool
    ) -> None:
        """Login, logout, and operations that clients may not use."""
        operation = incoming.operation
        _check_client(incoming)
        if operation == REGISTER:
            if session or incoming.request:
                raise _refused(incoming, ErrorCode.INVALID_COMMAND, "a login with a session or a request number")
            _check_body(incoming, body)
            self._is_own = sdk_name_of(body) == OWN_SDK_NAME
            incoming.command = _read_login(incoming, body)
        elif operation == LOGOUT:
            _check_body(incoming, body)
            if not is_logged_in:
                raise _Refusal((_reply(incoming, b""),), "not logged in")
            incoming.command = c.LogoutUser()
        elif operation in INTERNAL_OPERATIONS:
            reason = EvictionReason.INTERNAL_OPERATION if is_logged_in else EvictionReason.NO_SESSION
            raise _Refusal((headers.eviction(incoming.client, reason),), f"clients cannot use operation {operation}")
        else:
            raise _refused(incoming, ErrorCode.INVALID_COMMAND, f"unknown operation {operation}")

    # --- replies --------------------------------------------------------------------------------------

    def encodes_slowly(self, reply: Reply) -> bool:
        """Messages are sent as they are stored."""
        del reply
        return False

    def encode_reply(self, incoming: Incoming, reply: Reply | None) -> Sequence[Buffer]:
        assert isinstance(incoming, VsrIncoming)
        if type(reply) is Sent:
            answer = headers.sent_reply(
                incoming.client,
                incoming.checksum,
                incoming.request,
                reply.stream_id,
                reply.topic_id,
                reply.partition_id,
                reply.base_offset,
            )
            self._duplicates.remember_write(incoming.request, SEND_MESSAGES, incoming.content, answer)
            return (answer,)
        if type(reply) is Polled:
            return (
                headers.polled_head(
                    incoming.client,
                    incoming.checksum,
                    incoming.request,
                    reply.partition_id,
                    reply.current_offset,
                    reply.message_count,
                    reply.size,
                ),
                *reply.pieces,
            )
        command = incoming.command
        assert command is not None
        payload = b"" if reply is None else _payload(command, reply)
        if isinstance(reply, LoggedIn):
            self._duplicates.reset()
            if self._is_own:
                payload += _SIZE_MAX.pack(self._frame_size_max)
            return (_reply(incoming, payload, commit=reply.session),)
        answer = _reply(incoming, payload)
        self._remember(incoming, answer)
        return (answer,)

    def encode_failure(self, incoming: Incoming, error: CourserError) -> Sequence[Buffer]:
        assert isinstance(incoming, VsrIncoming)
        assert incoming.command is not None
        channel, number = judge(incoming.operation, incoming.command, error.code)
        if self._is_own:
            answer = _status(incoming, error.code, write_facts(error))
            if channel is FailurePlace.RESULT:
                self._remember(incoming, answer)
            return (answer,)
        match channel:
            case FailurePlace.STATUS:
                return (_status(incoming, number),)
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
                return (_empty_poll(incoming, _NOT_OWNED_PARTITION),)

    def _remember(self, incoming: VsrIncoming, answer: bytes) -> None:
        """Keep the reply to a command that was carried out, in case the request is repeated."""
        operation = incoming.operation
        if operation in WRITES:
            self._duplicates.remember_write(incoming.request, operation, incoming.content, answer)
        elif operation in READERS_OF_OPERATIONS:
            self._duplicates.remember_change(incoming.request, operation, incoming.checksum, answer)

    def farewell(self, error: CourserError) -> bytes:
        """The SDK takes it for the reply to its next request, and logs in again."""
        reason = FAREWELLS.get(error.code)
        return b"" if reason is None else headers.eviction(self._client, reason)


# --- checks -------------------------------------------------------------------------------------------


def _check_client(incoming: VsrIncoming) -> None:
    if incoming.client == NO_CLIENT:
        raise _refused(incoming, ErrorCode.INVALID_COMMAND, "a client id cannot be 0")


def _check_read_is_allowed(incoming: VsrIncoming, code: int, is_logged_in: bool) -> None:
    if code in _CLASSIC_LOGINS:
        answer = headers.eviction(incoming.client, EvictionReason.MALFORMED_LOGIN)
        raise _Refusal((answer,), f"command {code} is not a login of this protocol")
    if not is_logged_in and code != _PING:
        raise _refused(incoming, ErrorCode.UNAUTHENTICATED, f"command {code} needs a login first")


def _check_change_is_allowed(incoming: VsrIncoming, session: int, is_logged_in: bool) -> None:
    if incoming.client == NO_CLIENT:
        _check_client(incoming)
    if not is_logged_in:
        answer = headers.eviction(incoming.client, EvictionReason.NO_SESSION)
        raise _Refusal((answer,), f"operation {incoming.operation} needs a login first")
    if not session or not incoming.request:
        raise _refused(incoming, ErrorCode.INVALID_COMMAND, "a change without a session or a request number")


def _check_body(incoming: VsrIncoming, body: memoryview) -> None:
    """Compare the body with the checksum in the header, if there is one."""
    checksum = incoming.checksum
    if checksum != NO_CHECKSUM and int.from_bytes(checksum, "little") != xxh3(body):
        raise _refused(incoming, ErrorCode.INVALID_FORMAT, "the checksum of the request does not match")


# --- bodies -------------------------------------------------------------------------------------------


def _read_login(incoming: VsrIncoming, body: memoryview) -> c.Command:
    try:
        return read_login(body)
    except VersionRefused as error:
        answer = headers.eviction(
            incoming.client,
            EvictionReason.INCOMPATIBLE_PROTOCOL,
            version_max=PROTOCOL_VERSION_MAX,
            version_min=PROTOCOL_VERSION_MIN,
        )
        raise _Refusal((answer,), str(error)) from None
    except Malformed as error:
        raise _Refusal((headers.eviction(incoming.client, EvictionReason.MALFORMED_LOGIN),), str(error)) from None


def _read_non_replicated(incoming: VsrIncoming, code: int, body: memoryview, *, is_logged_in: bool) -> c.Command:
    is_poll = code == _POLL_MESSAGES
    # A poll as usual passes all checks.
    if not is_poll or not is_logged_in or incoming.client == NO_CLIENT or incoming.checksum != NO_CHECKSUM:
        _check_client(incoming)
        _check_read_is_allowed(incoming, code, is_logged_in)
        _check_body(incoming, body)
    if is_poll:
        poll = read_poll(body)
        if poll.partition_id is None:
            # Members of a group know their partitions and name one.
            raise _Refusal((_empty_poll(incoming, 0),), "a poll for a consumer group cannot name a partition")
        return poll
    reader = READERS_OF_CODES.get(code)
    if reader is not None:
        try:
            return reader(Reader(body))
        except NothingThere as error:
            raise _Refusal((_reply(incoming, b""),), str(error)) from None
        except Malformed as error:
            if code in _FIND_NOTHING_IF_MALFORMED:
                raise _Refusal((_reply(incoming, b""),), str(error)) from None
            raise
    if code in _SESSION_CODES:
        raise _Refusal((_reply(incoming, b""),), f"command {code} has no effect")
    if code in _REPLICATED_CODES:
        raise _refused(incoming, ErrorCode.FEATURE_UNAVAILABLE, f"command {code} has an operation of its own")
    raise _refused(incoming, ErrorCode.INVALID_COMMAND, f"unknown command {code}")


def _code_of_malformed(operation: int, error: Malformed) -> ErrorCode:
    if operation in WRITES:
        return ErrorCode.RESOURCE_NOT_FOUND
    return error.code if error.code in _CODES_OF_VALUES else ErrorCode.INVALID_COMMAND


def _payload(command: c.Command, reply: Reply) -> bytes:
    if type(command) is c.CreateTopic:
        assert isinstance(reply, TopicDetails)
        return write_new_topic(reply)
    return WRITERS[type(reply)](reply)


# --- reply frames -------------------------------------------------------------------------------------


def _hang_up(incoming: VsrIncoming, reason: str) -> VsrIncoming:
    incoming.answer = ()
    incoming.reason = reason
    incoming.closes = True
    return incoming


def _refused(incoming: VsrIncoming, code: ErrorCode, reason: str) -> _Refusal:
    return _Refusal((_status(incoming, code),), reason)


def _status(incoming: VsrIncoming, code: int, body: bytes = b"") -> bytes:
    # A reply cannot repeat an unknown operation: the client would not accept the header.
    operation = incoming.operation if incoming.operation in OPERATIONS else NON_REPLICATED
    header = headers.reply_header(
        incoming.client, incoming.checksum, incoming.request, operation, status=code, body_size=len(body)
    )
    return header + body


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


def _empty_poll(incoming: VsrIncoming, partition_id: int) -> bytes:
    return headers.polled_head(incoming.client, incoming.checksum, incoming.request, partition_id, 0, 0)
