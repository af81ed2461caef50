"""Replies to failed commands on the classic wire, where they are not simply the number of the error."""

from courser.api import commands as c
from courser.errors import ErrorCode
from courser.records.classic import Dialect

_NO_STREAM = ErrorCode.STREAM_NOT_FOUND
_NO_TOPIC = ErrorCode.TOPIC_NOT_FOUND
_NO_GROUP = ErrorCode.GROUP_NOT_FOUND
_NOT_OWNED = ErrorCode.PARTITION_NOT_OWNED

_MISSES: dict[type[c.Command], frozenset[ErrorCode]] = {
    c.GetStream: frozenset({_NO_STREAM}),
    c.GetTopic: frozenset({_NO_STREAM, _NO_TOPIC}),
    c.GetConsumerGroup: frozenset({_NO_STREAM, _NO_TOPIC, _NO_GROUP}),
    c.GetUser: frozenset({ErrorCode.RESOURCE_NOT_FOUND}),
    c.GetClient: frozenset({ErrorCode.CLIENT_NOT_FOUND, ErrorCode.RESOURCE_NOT_FOUND}),
    c.GetConsumerOffset: frozenset(
        {
            _NO_STREAM,
            _NO_TOPIC,
            _NO_GROUP,
            _NOT_OWNED,
            ErrorCode.PARTITION_NOT_FOUND,
            ErrorCode.CONSUMER_OFFSET_NOT_FOUND,
            ErrorCode.CONSUMER_NOT_RESOLVED,
            ErrorCode.GROUP_MEMBER_NOT_FOUND,
        }
    ),
}
"""Reads of something that does not exist: the reply is empty, and the client returns None."""

_MISSES_SINCE_0_7: dict[type[c.Command], frozenset[ErrorCode]] = {
    c.GetTopics: frozenset({_NO_STREAM}),
    c.GetConsumerGroups: frozenset({_NO_STREAM, _NO_TOPIC}),
}
"""Lists of something that does not exist: empty for 0.7 and later, errors before."""

_OTHER_STATUS: dict[tuple[type[c.Command], ErrorCode], ErrorCode] = {
    (c.StoreConsumerOffset, _NOT_OWNED): ErrorCode.CONSUMER_NOT_RESOLVED,
    (c.DeleteConsumerOffset, _NOT_OWNED): ErrorCode.CONSUMER_NOT_RESOLVED,
    (c.LoginWithToken, ErrorCode.INVALID_TOKEN): ErrorCode.RESOURCE_NOT_FOUND,
    (c.LoginWithToken, ErrorCode.INVALID_CREDENTIALS): ErrorCode.RESOURCE_NOT_FOUND,
}

_ENDS = frozenset({ErrorCode.DISCONNECTED, ErrorCode.STALE_CLIENT, ErrorCode.CLIENT_NOT_FOUND})
"""The session has ended: the connection is closed."""


def is_miss(command: type[c.Command], code: ErrorCode, dialect: Dialect) -> bool:
    """Whether the reply to this failure is an empty OK."""
    if code in _MISSES.get(command, ()):
        return True
    return dialect.has_long_header and code in _MISSES_SINCE_0_7.get(command, ())


def is_empty_poll(command: type[c.Command], code: ErrorCode) -> bool:
    """Whether the reply to this failure is an empty poll."""
    return command is c.PollMessages and code is _NOT_OWNED


def status_of(command: type[c.Command], code: ErrorCode, dialect: Dialect) -> int:
    if command is c.SendMessages and code is ErrorCode.NO_PARTITIONS and dialect is not Dialect.SDK_0_5:
        return _NO_TOPIC
    return _OTHER_STATUS.get((command, code), code)


def ends_connection(code: ErrorCode) -> bool:
    """Whether the connection is closed after this status."""
    return code in _ENDS
