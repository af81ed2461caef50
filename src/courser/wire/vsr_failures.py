"""How failures are sent in SDK 0.9 and later: as a status, a result, an eviction, or a reply that says "not found".

Handlers always raise the most specific number. These tables convert it to the reply of the original server.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import TypeAlias

from courser.api import commands as c
from courser.errors import ErrorCode as E
from courser.model.identifiers import Consumer, ConsumerKind
from courser.wire.vsr_headers import LOGOUT, NON_REPLICATED, REGISTER, EvictionReason


class FailurePlace(Enum):
    """The place of a failure in a reply."""

    STATUS = auto()
    """In the header; there is no body."""
    RESULT = auto()
    """At the start of the body, instead of the payload."""
    EVICTION = auto()
    """A frame of its own; the number is a reason."""
    NOTHING = auto()
    """No failure: the header only, and the SDK returns None."""
    EMPTY_LIST = auto()
    """No failure: a count of 0."""
    NOT_OWNED = auto()
    """No failure: the poll that makes a member request its partitions again."""


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
"""Reasons to refuse a change to metadata before it is carried out. Other refusals are results."""
_OWN_CODE_MIN = 20_000
"""Courser's own numbers for a disk that refused. Nothing was carried out, so no reply is remembered."""

Misses: TypeAlias = Mapping[type[c.Command], frozenset[int]]

_MISSES: Misses = {
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
    # A user who may not read the topic is not a member either.
    c.SyncConsumerGroup: frozenset(
        {E.STREAM_NOT_FOUND, E.TOPIC_NOT_FOUND, E.GROUP_NOT_FOUND, E.GROUP_MEMBER_NOT_FOUND, E.UNAUTHORIZED}
    ),
}
"""Reads that find nothing."""
_MISSES_SINCE_0_10: Misses = {
    **_MISSES,
    # The client has looked for the partition before: what is missing was there, or the member lost it.
    c.GetConsumerOffset: frozenset({E.RESOURCE_NOT_FOUND, E.CONSUMER_OFFSET_NOT_FOUND, E.GROUP_NOT_FOUND}),
}

_NOT_OWNED = frozenset({E.GROUP_NOT_FOUND, E.GROUP_MEMBER_NOT_FOUND, E.PARTITION_NOT_OWNED, E.PARTITION_NOT_FOUND})
"""Failures of a group's poll that make the member request its partitions again."""

_WRITE_CODES: Mapping[E, E] = {
    E.STREAM_NOT_FOUND: E.RESOURCE_NOT_FOUND,
    E.TOPIC_NOT_FOUND: E.RESOURCE_NOT_FOUND,
    E.PARTITION_NOT_FOUND: E.RESOURCE_NOT_FOUND,
    E.NO_PARTITIONS: E.RESOURCE_NOT_FOUND,
    E.GROUP_NOT_FOUND: E.RESOURCE_NOT_FOUND,
    E.PARTITION_NOT_OWNED: E.CONSUMER_NOT_RESOLVED,
    E.GROUP_MEMBER_NOT_FOUND: E.CONSUMER_NOT_RESOLVED,
}
"""Sends and stored offsets: the reply does not say what is missing, and only its owner may commit for a partition."""

_NOTHING_COMMITTED = frozenset(
    {
        E.FEATURE_UNAVAILABLE,
        E.INVALID_IDENTIFIER,
        E.NOT_ACCEPTED,
        E.READ_TOO_LARGE,
        E.HISTORY_UNAVAILABLE,
        E.TOO_MANY_WAITING_READS,
        E.STREAM_NOT_FOUND,
        E.TOPIC_NOT_FOUND,
        E.PARTITION_NOT_FOUND,
        E.INVALID_OFFSET,
        E.PARTITION_NOT_OWNED,
    }
)
"""Failures of a poll with auto-commit after which SDK 0.10 knows that nothing was committed.

After any other number it refuses to use the partition until the program says how to go on.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureTable:
    """What releases report differently."""

    misses: Misses
    writes: Mapping[E, E]
    """Numbers of sends and stored offsets that are reported as others."""
    malformed_write: E
    """The number of sends and stored offsets that cannot be decoded."""
    has_empty_poll: bool
    """Whether a poll for a partition that is not the member's gets an empty reply, instead of a failure."""
    distrusts_commits: bool
    """Whether a poll with auto-commit may only fail with the numbers of ``_NOTHING_COMMITTED``."""


SDK_0_9 = FailureTable(
    misses=_MISSES,
    writes=_WRITE_CODES,
    malformed_write=E.RESOURCE_NOT_FOUND,
    has_empty_poll=True,
    distrusts_commits=False,
)
SDK_0_10 = FailureTable(
    misses=_MISSES_SINCE_0_10,
    writes={},
    malformed_write=E.INVALID_COMMAND,
    has_empty_poll=False,
    distrusts_commits=True,
)

WRITES = frozenset(kind.row.operation for kind in (c.SendMessages, c.StoreConsumerOffset, c.DeleteConsumerOffset))

_BAD_LOGIN = frozenset(
    {E.INVALID_CREDENTIALS, E.INVALID_USERNAME, E.INVALID_PASSWORD, E.USER_INACTIVE, E.RESOURCE_NOT_FOUND}
)
_BAD_TOKEN = frozenset({E.INVALID_TOKEN, E.TOKEN_EXPIRED})

FAREWELLS = {
    E.STALE_CLIENT: EvictionReason.STALE_CLIENT,
    E.UNAUTHENTICATED: EvictionReason.SESSION_ERROR,
    E.USER_INACTIVE: EvictionReason.SESSION_ERROR,
    E.INVALID_CREDENTIALS: EvictionReason.SESSION_ERROR,
    E.INVALID_TOKEN: EvictionReason.SESSION_ERROR,
    E.CLIENT_NOT_FOUND: EvictionReason.SESSION_ERROR,
}
"""Reasons that a client gets when the server ends its session. In other cases the connection is just closed."""


def judge(table: FailureTable, operation: int, command: c.Command, code: E) -> tuple[FailurePlace, int]:
    """The reply to a failed command: the channel and the number in it."""
    if code is E.STALE_CLIENT:
        return FailurePlace.EVICTION, EvictionReason.STALE_CLIENT
    if operation == NON_REPLICATED:
        return _judge_read(table, command, code)
    if code is E.UNAUTHENTICATED:
        return FailurePlace.EVICTION, EvictionReason.NO_SESSION
    if operation == REGISTER:
        return _judge_login(command, code)
    if operation in WRITES:
        return FailurePlace.STATUS, table.writes.get(code, code)
    if operation == LOGOUT or code in _BY_STATUS or code >= _OWN_CODE_MIN:
        return FailurePlace.STATUS, code
    return FailurePlace.RESULT, code


def _judge_read(table: FailureTable, command: c.Command, code: E) -> tuple[FailurePlace, int]:
    if code in table.misses.get(type(command), ()):
        return FailurePlace.NOTHING, 0
    if isinstance(command, c.GetTopics) and code is E.STREAM_NOT_FOUND:
        return FailurePlace.EMPTY_LIST, 0
    if isinstance(command, c.AwaitMessages | c.ReadMessages | c.FetchMessages) and code is E.SERVER_BUSY:
        code = E.TOO_MANY_WAITING_READS
    if isinstance(command, c.ReadMessages):
        command = command.poll
    if isinstance(command, c.PollMessages | c.FetchMessages):
        return _judge_poll(table, command.consumer, code, commits=command.auto_commit)
    return FailurePlace.STATUS, code


def _judge_poll(table: FailureTable, consumer: Consumer, code: E, *, commits: bool) -> tuple[FailurePlace, int]:
    if consumer.kind is ConsumerKind.GROUP and code in _NOT_OWNED:
        return (FailurePlace.NOT_OWNED, 0) if table.has_empty_poll else (FailurePlace.STATUS, E.PARTITION_NOT_OWNED)
    if table.distrusts_commits and commits and code not in _NOTHING_COMMITTED:
        return FailurePlace.STATUS, E.FEATURE_UNAVAILABLE
    return FailurePlace.STATUS, code


def _judge_login(command: c.Command, code: E) -> tuple[FailurePlace, int]:
    if code in _BAD_TOKEN or (code in _BAD_LOGIN and isinstance(command, c.LoginWithToken)):
        return FailurePlace.EVICTION, EvictionReason.INVALID_TOKEN
    if code in _BAD_LOGIN:
        return FailurePlace.EVICTION, EvictionReason.INVALID_CREDENTIALS
    return FailurePlace.STATUS, code
