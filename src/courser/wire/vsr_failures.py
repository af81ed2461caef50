"""How failures travel in SDK 0.9: by status, by result, as an eviction, or as an answer that says "nothing there".

The dispatcher always raises the most specific number. These tables turn it into what the original server says.
"""

from enum import Enum, auto

from courser.api import commands as c
from courser.errors import ErrorCode as E
from courser.model.consumers import ConsumerKind
from courser.wire.vsr_headers import LOGOUT, NON_REPLICATED, REGISTER, Reason


class Channel(Enum):
    """Where a failure is written."""

    STATUS = auto()
    """In the header; there is no body."""
    RESULT = auto()
    """At the front of the body, in place of the payload."""
    EVICTION = auto()
    """A frame of its own; the number is a reason."""
    NOTHING = auto()
    """No failure: the header only, and the SDK returns None."""
    EMPTY_LIST = auto()
    """No failure: a count of 0."""
    NOT_OWNED = auto()
    """No failure: the poll that tells a member to ask again which partitions are its own."""


_BY_STATUS = frozenset(
    {
        E.ERROR,
        E.INVALID_COMMAND,
        E.INVALID_FORMAT,
        E.FEATURE_UNAVAILABLE,
        E.DISCONNECTED,
        E.TOO_MANY_TOKENS,
        E.INVALID_TOPIC_SIZE,
        E.TOO_MANY_PARTITIONS,
        E.UNSUPPORTED_OPTION_KEY,
        E.INVALID_OPTION_VALUE,
    }
)
"""What a change of metadata is refused with before it is carried out. All else that the state decides is a result."""
_OWN_CODE_MIN = 20_000
"""Courser's own numbers: the disk said no. Nothing was carried out, so nothing is remembered as done."""

_MISSES: dict[type[c.Command], frozenset[int]] = {
    c.GetStream: frozenset({E.STREAM_NOT_FOUND}),
    c.GetTopic: frozenset({E.STREAM_NOT_FOUND, E.TOPIC_NOT_FOUND}),
    c.GetUser: frozenset({E.RESOURCE_NOT_FOUND}),
    c.GetClient: frozenset({E.RESOURCE_NOT_FOUND, E.CLIENT_NOT_FOUND, E.INVALID_CLIENT_ID}),
    c.GetConsumerGroup: frozenset({E.GROUP_NOT_FOUND}),
    c.GetConsumerOffset: frozenset(
        {
            E.RESOURCE_NOT_FOUND,
            E.STREAM_NOT_FOUND,
            E.TOPIC_NOT_FOUND,
            E.CONSUMER_OFFSET_NOT_FOUND,
            E.CONSUMER_NOT_RESOLVED,
            E.GROUP_NOT_FOUND,
            E.GROUP_MEMBER_NOT_FOUND,
            E.PARTITION_NOT_OWNED,
        }
    ),
    # Who may not even look is no member either.
    c.SyncConsumerGroup: frozenset(
        {E.STREAM_NOT_FOUND, E.TOPIC_NOT_FOUND, E.GROUP_NOT_FOUND, E.GROUP_MEMBER_NOT_FOUND, E.UNAUTHORIZED}
    ),
}
"""Reads that find nothing."""

_NOT_OWNED = frozenset({E.GROUP_NOT_FOUND, E.GROUP_MEMBER_NOT_FOUND, E.PARTITION_NOT_OWNED, E.PARTITION_NOT_FOUND})
"""Why a group's poll is answered with "ask again which partitions are yours"."""

_WRITE_CODES = {
    E.STREAM_NOT_FOUND: E.RESOURCE_NOT_FOUND,
    E.TOPIC_NOT_FOUND: E.RESOURCE_NOT_FOUND,
    E.PARTITION_NOT_FOUND: E.RESOURCE_NOT_FOUND,
    E.NO_PARTITIONS: E.RESOURCE_NOT_FOUND,
    E.GROUP_NOT_FOUND: E.RESOURCE_NOT_FOUND,
    E.PARTITION_NOT_OWNED: E.CONSUMER_NOT_RESOLVED,
    E.GROUP_MEMBER_NOT_FOUND: E.CONSUMER_NOT_RESOLVED,
}
"""Sends and stored offsets: what is missing is not named, and only its owner may commit for a partition."""

WRITES = frozenset(kind.row.operation for kind in (c.SendMessages, c.StoreConsumerOffset, c.DeleteConsumerOffset))

_BAD_LOGIN = frozenset(
    {E.INVALID_CREDENTIALS, E.INVALID_USERNAME, E.INVALID_PASSWORD, E.USER_INACTIVE, E.RESOURCE_NOT_FOUND}
)
_BAD_TOKEN = frozenset({E.INVALID_TOKEN, E.TOKEN_EXPIRED})

FAREWELLS = {
    E.STALE_CLIENT: Reason.STALE_CLIENT,
    E.UNAUTHENTICATED: Reason.SESSION_ERROR,
    E.USER_INACTIVE: Reason.SESSION_ERROR,
    E.INVALID_CREDENTIALS: Reason.SESSION_ERROR,
    E.INVALID_TOKEN: Reason.SESSION_ERROR,
    E.CLIENT_NOT_FOUND: Reason.SESSION_ERROR,
}
"""What a client is told whose session the server ends. For all else the end of the connection says enough."""


def judge(operation: int, command: c.Command, code: E) -> tuple[Channel, int]:
    """How a failure of a command is answered: the channel, and the number that travels in it."""
    if code is E.STALE_CLIENT:
        return Channel.EVICTION, Reason.STALE_CLIENT
    if operation == NON_REPLICATED:
        return _judge_read(command, code)
    if code is E.UNAUTHENTICATED:
        return Channel.EVICTION, Reason.NO_SESSION
    if operation == REGISTER:
        return _judge_login(command, code)
    if operation in WRITES:
        return Channel.STATUS, _WRITE_CODES.get(code, code)
    if operation == LOGOUT or code in _BY_STATUS or code >= _OWN_CODE_MIN:
        return Channel.STATUS, code
    return Channel.RESULT, code


def _judge_read(command: c.Command, code: E) -> tuple[Channel, int]:
    if code in _MISSES.get(type(command), ()):
        return Channel.NOTHING, 0
    if isinstance(command, c.GetTopics) and code is E.STREAM_NOT_FOUND:
        return Channel.EMPTY_LIST, 0
    if isinstance(command, c.PollMessages) and command.consumer.kind is ConsumerKind.GROUP and code in _NOT_OWNED:
        return Channel.NOT_OWNED, 0
    return Channel.STATUS, code


def _judge_login(command: c.Command, code: E) -> tuple[Channel, int]:
    if code in _BAD_TOKEN or (code in _BAD_LOGIN and isinstance(command, c.LoginWithToken)):
        return Channel.EVICTION, Reason.INVALID_TOKEN
    if code in _BAD_LOGIN:
        return Channel.EVICTION, Reason.INVALID_CREDENTIALS
    return Channel.STATUS, code
