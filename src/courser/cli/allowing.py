"""Permissions by name: ``shop/orders:read``; and whether the permissions of a user are enough for an action.

Both use the same words, for a topic, a stream or everywhere (``*``): ``read``, ``poll``, ``send`` and ``manage``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import click
import msgspec

from courser.api.replies import UserDetails
from courser.broker.access import verdicts
from courser.broker.access.verdicts import Subject, Verdict
from courser.cli.explaining import explain_missing
from courser.cli.naming import TopicPath, identifier
from courser.cli.permission_words import Level, parse_level
from courser.client.client import Client
from courser.errors import NotFound
from courser.model.permissions import Action, GlobalPermissions, Permissions, StreamPermissions, TopicPermissions

_EVERYWHERE = "*"
_NOUNS: Mapping[type, str] = {GlobalPermissions: "streams", StreamPermissions: "stream", TopicPermissions: "topic"}
ACTIONS: dict[str, tuple[Action, Action | None, Action | None]] = {
    "send": (Action.SEND_MESSAGES, Action.SEND_MESSAGES, Action.SEND_MESSAGES),
    "poll": (Action.POLL_MESSAGES, Action.POLL_MESSAGES, Action.POLL_MESSAGES),
    "read": (Action.LIST_STREAMS, Action.GET_STREAM, Action.READ_TOPIC),
    "manage": (Action.MANAGE_STREAM, Action.MANAGE_STREAM, Action.MANAGE_TOPIC),
    "create": (Action.CREATE_STREAM, Action.CREATE_TOPIC, None),
    "read-users": (Action.READ_USERS, None, None),
    "manage-users": (Action.MANAGE_USERS, None, None),
    "read-server": (Action.READ_SERVER, None, None),
}
"""What a user may want to do: everywhere, in a stream, with a topic. None: this makes no sense there."""


@dataclass(frozen=True, slots=True)
class Allowance:
    """Permissions for a topic, for a stream or everywhere."""

    place: TopicPath | None
    level: GlobalPermissions | StreamPermissions | TopicPermissions


def parse_allowances(texts: Sequence[str]) -> list[Allowance]:
    """Parse ``shop/orders:read,send``, ``shop:manage`` and ``*:poll``.

    Raises:
        click.UsageError: a text has another form, or a word is not a permission.
    """
    allowances = []
    for text in texts:
        where, colon, words = text.rpartition(":")
        if not colon or not where or not words:
            form = "STREAM/TOPIC:WORDS, STREAM:WORDS or *:WORDS"
            raise _wrong(f'--allow must have the form {form}, not "{text[:60]}"')
        stream, slash, topic = where.partition("/")
        if slash and not (stream and topic):
            raise _wrong(f'--allow needs a stream and a topic, not "{where[:60]}"')
        if where == _EVERYWHERE:
            allowances.append(Allowance(None, _parse(GlobalPermissions, words)))
        elif slash:
            place = TopicPath(identifier(stream), identifier(topic))
            allowances.append(Allowance(place, _parse(TopicPermissions, words)))
        else:
            allowances.append(Allowance(TopicPath(identifier(stream)), _parse(StreamPermissions, words)))
    return allowances


def _wrong(problem: str) -> click.UsageError:
    return click.UsageError(problem, click.get_current_context(silent=True))


def _parse(kind: type[Level], words: str) -> Level:
    noun = _NOUNS[kind]
    known = {
        "read": f"read_{noun}",
        "poll": "poll_messages",
        "send": "send_messages",
        "manage": f"manage_{noun}",
    }
    names = ",".join(known.get(word.strip(), word) for word in words.split(","))
    return parse_level(kind, names, known)


async def with_allowances(
    client: Client, allowances: Sequence[Allowance], permissions: Permissions | None
) -> Permissions | None:
    """The permissions with those that are given by name added. Raises ``Failure`` if a name does not exist."""
    for allowance in allowances:
        permissions = permissions or Permissions()
        stream_id, topic_id = await find_ids(client, allowance.place)
        level = allowance.level
        if isinstance(level, GlobalPermissions):
            permissions = msgspec.structs.replace(permissions, everywhere=_union(permissions.everywhere, level))
            continue
        assert stream_id is not None, "permissions for everywhere were added above"
        stream = permissions.streams.get(stream_id, StreamPermissions())
        if isinstance(level, TopicPermissions):
            assert topic_id is not None, "the place is a topic"
            topic = _union(stream.topics.get(topic_id, TopicPermissions()), level)
            stream = msgspec.structs.replace(stream, topics={**stream.topics, topic_id: topic})
        else:
            stream = _union(stream, level)
        permissions = msgspec.structs.replace(permissions, streams={**permissions.streams, stream_id: stream})
    return permissions


def _union(first: Level, second: Level) -> Level:
    added = {name: True for name in second.__struct_fields__ if getattr(second, name) is True}
    return msgspec.structs.replace(first, **added)


async def find_ids(client: Client, place: TopicPath | None) -> tuple[int | None, int | None]:
    """The ids of a stream and a topic, as the server stores them in permissions. Raises ``Failure``."""
    if place is None:
        return None, None
    try:
        stream = await client.get_stream(place.stream)
        if place.topic is None:
            return stream.stream.stream_id, None
        topic = await client.get_topic(*place.names)
    except NotFound as error:
        raise await explain_missing(client, error, place, {}) from error
    return stream.stream.stream_id, topic.topic.topic_id


# --- whether they are enough ---


def judge(user: UserDetails, word: str, stream_id: int | None, topic_id: int | None) -> Verdict:
    """Answer as the server does.

    Raises:
        click.UsageError: the action makes no sense there.
    """
    action = ACTIONS[word][0 if stream_id is None else 1 if topic_id is None else 2]
    if action is None:
        where = "stream" if topic_id is None else "topic"
        raise _wrong(f'"{word}" does not apply to a {where}')
    subject = Subject(user.user.user_id, user.user.is_active, user.permissions)
    return verdicts.judge(subject, action, stream_id, topic_id)
