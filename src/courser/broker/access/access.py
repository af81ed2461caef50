"""Access control: who may do what, where. What is not granted is denied.

The rules are one table, ``RULES``. They look at the catalog at every request, so a change acts on open connections at
once. Whether a thing exists is looked up before: these rules are asked with its ids.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import msgspec

from courser.api.operating_replies import Grant
from courser.broker.access.sessions import Session
from courser.catalog.entities import User
from courser.catalog.rules import ROOT_USER_ID
from courser.catalog.state import CatalogState
from courser.errors import CommandRejected, ErrorCode
from courser.model.permissions import Action, GlobalPermissions, Permissions, StreamPermissions, TopicPermissions


@dataclass(frozen=True, slots=True)
class Rule:
    """The permissions of which one is enough, at each level."""

    everywhere: tuple[str, ...]
    stream: tuple[str, ...] = ()
    topic: tuple[str, ...] = ()


_MANAGE_TOPICS = Rule(("manage_streams", "manage_topics"), ("manage_stream", "manage_topics"))
_READ_TOPICS = Rule(
    (*_MANAGE_TOPICS.everywhere, "read_streams", "read_topics"),
    (*_MANAGE_TOPICS.stream, "read_stream", "read_topics"),
)
_READ_TOPIC = Rule(_READ_TOPICS.everywhere, _READ_TOPICS.stream, ("manage_topic", "read_topic"))
_MANAGE_TOPIC = Rule(_MANAGE_TOPICS.everywhere, _MANAGE_TOPICS.stream, ("manage_topic",))


def _or(rule: Rule, permission: str) -> Rule:
    """A rule that one more permission satisfies, at whichever level it is granted."""
    return Rule(*((*names, permission) for names in (rule.everywhere, rule.stream, rule.topic)))


RULES: dict[Action, Rule] = {
    Action.GET_STREAM: Rule(("manage_streams", "read_streams"), ("manage_stream", "read_stream")),
    Action.LIST_STREAMS: Rule(("manage_streams", "read_streams")),
    Action.CREATE_STREAM: Rule(("manage_streams",)),
    Action.MANAGE_STREAM: Rule(("manage_streams",), ("manage_stream",)),
    Action.READ_TOPIC: _READ_TOPIC,
    Action.LIST_TOPICS: _READ_TOPICS,
    Action.CREATE_TOPIC: _MANAGE_TOPICS,
    Action.MANAGE_TOPIC: _MANAGE_TOPIC,
    Action.POLL_MESSAGES: _or(_READ_TOPIC, "poll_messages"),
    Action.SEND_MESSAGES: _or(_MANAGE_TOPIC, "send_messages"),
    Action.READ_USERS: Rule(("manage_users", "read_users")),
    Action.MANAGE_USERS: Rule(("manage_users",)),
    Action.READ_SERVER: Rule(("manage_servers", "read_servers")),
    Action.MANAGE_SERVER: Rule(("manage_servers",)),
}
DEEDS = {
    Action.GET_STREAM: "view the stream",
    Action.LIST_STREAMS: "list all streams",
    Action.CREATE_STREAM: "create streams",
    Action.MANAGE_STREAM: "change the stream",
    Action.READ_TOPIC: "view the topic and its consumer groups",
    Action.LIST_TOPICS: "list the topics of the stream",
    Action.CREATE_TOPIC: "create topics in the stream",
    Action.MANAGE_TOPIC: "change the topic",
    Action.POLL_MESSAGES: "poll messages of the topic",
    Action.SEND_MESSAGES: "send messages to the topic",
    Action.READ_USERS: "view other users",
    Action.MANAGE_USERS: "manage users",
    Action.READ_SERVER: "view statistics, clients and snapshots of the server",
    Action.MANAGE_SERVER: "view the log of the server and end sessions",
}
"""The actions as they are called in the table of docs/users.md."""


def sufficient(action: Action, *, has_stream: bool = False, has_topic: bool = False) -> list[Grant]:
    """The permissions of which one is enough for an action on a topic, on a stream, or on neither."""
    rule = RULES[action]
    levels = {"everywhere": rule.everywhere}
    if has_stream:
        levels["stream"] = rule.stream
    if has_topic:
        levels["topic"] = rule.topic
    return [Grant(level, name) for level, names in levels.items() for name in names]


def granted(permissions: Permissions | None, stream_id: int | None, topic_id: int | None) -> list[Grant]:
    """All permissions that a user has for a topic, for a stream, or without either."""
    if permissions is None:
        return []
    stream = permissions.streams.get(stream_id) if stream_id is not None else None
    topic = stream.topics.get(topic_id) if stream is not None and topic_id is not None else None
    levels = (("everywhere", permissions.everywhere), ("stream", stream), ("topic", topic))
    return [
        Grant(level, name)
        for level, held in levels
        if held is not None
        for name in held.__struct_fields__
        if getattr(held, name) is True
    ]


_Values = Callable[[Any], tuple[bool, ...]]


@dataclass(frozen=True, slots=True)
class _Tests:
    """A rule, ready to be asked for every message sent: what to look at, at each level."""

    everywhere: _Values
    stream: _Values
    topic: _Values


def _values(names: tuple[str, ...], kind: type[msgspec.Struct]) -> _Values:
    unknown = set(names) - set(kind.__struct_fields__)
    assert not unknown, f"{kind.__name__} has no {unknown}"
    if not names:
        return lambda _: ()
    # One name is asked for twice: an attrgetter of one gives no tuple.
    return attrgetter(*names, names[0])


class AccessControl:
    """Answers from the state as it is now."""

    def __init__(self, state: CatalogState) -> None:
        self.users = state.users
        self._tests = {
            action: _Tests(
                _values(rule.everywhere, GlobalPermissions),
                _values(rule.stream, StreamPermissions),
                _values(rule.topic, TopicPermissions),
            )
            for action, rule in RULES.items()
        }

    def user(self, session: Session) -> User:
        """Who is logged in. Raises ``CommandRejected``: nobody (40), or an inactive user (47)."""
        user_id = session.user_id
        user = None if user_id is None else self.users.get(user_id)
        if user is None:
            raise CommandRejected(ErrorCode.UNAUTHENTICATED, "nobody is logged in on this connection")
        if not user.is_active:
            raise CommandRejected(ErrorCode.USER_INACTIVE, f"user {user.name!r} is inactive")
        return user

    def user_of_own_login(self, session: Session) -> User:
        """Who is logged in, and may create credentials. Raises as ``user`` does, and 41 for a trusted issuer's token.

        Such a token may be valid for seconds, and the issuer decides who gets another one.
        """
        user = self.user(session)
        if session.access is not None and session.access.is_foreign:
            reason = "an access token of a trusted issuer may not create credentials: they would outlive it"
            raise CommandRejected(ErrorCode.UNAUTHORIZED, reason)
        return user

    def require(
        self, session: Session, action: Action, stream_id: int | None = None, topic_id: int | None = None
    ) -> None:
        """Let pass who may do this. Raises ``CommandRejected``: 40, 47, or 41 for one who may not."""
        user = self.user(session)
        if user.user_id != ROOT_USER_ID and not self.allows(user.permissions, action, stream_id, topic_id):
            grants = sufficient(action, has_stream=stream_id is not None, has_topic=topic_id is not None)
            names = ", ".join(dict.fromkeys(grant.name for grant in grants))
            raise CommandRejected(
                ErrorCode.UNAUTHORIZED,
                f"user {user.name!r} lacks the permission to {DEEDS[action]}; one of these is enough: {names}",
            )

    def require_any(
        self,
        session: Session,
        actions: Sequence[Action],
        stream_id: int | None = None,
        topic_id: int | None = None,
    ) -> None:
        """Let pass who may do one of these. Raises as ``require`` does, of the first."""
        user = self.user(session)
        if not any(self.allows(user.permissions, action, stream_id, topic_id) for action in actions):
            self.require(session, actions[0], stream_id, topic_id)

    def allows(
        self,
        permissions: Permissions | None,
        action: Action,
        stream_id: int | None = None,
        topic_id: int | None = None,
    ) -> bool:
        """Whether these permissions are enough."""
        if permissions is None:
            return False
        tests = self._tests[action]
        if True in tests.everywhere(permissions.everywhere):
            return True
        if stream_id is None:
            return False
        stream = permissions.streams.get(stream_id)
        if stream is None:
            return False
        if True in tests.stream(stream):
            return True
        topic = None if topic_id is None else stream.topics.get(topic_id)
        return topic is not None and True in tests.topic(topic)
