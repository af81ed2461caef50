"""Verdicts: who may do what, where and why, in words. The rules are those of ``access``."""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec

from courser.api.operating_replies import AccessReport, ActionInfo, Grant, PermissionInfo, UserAccess, UserVerdict
from courser.broker.access.access import DEEDS, granted, sufficient
from courser.catalog.entities import User
from courser.catalog.rules import ROOT_USER_ID
from courser.model.permissions import Action, GlobalPermissions, Permissions, StreamPermissions, TopicPermissions

_STEP_COUNT = 50
"""Users that are judged without a pause."""
_LEVELS: dict[str, type[msgspec.Struct]] = {
    "everywhere": GlobalPermissions,
    "stream": StreamPermissions,
    "topic": TopicPermissions,
}
_MEANINGS = {
    "manage_servers": "see the log and end sessions, and all of read_servers",
    "read_servers": "see statistics, sessions, configuration and diagnosis",
    "manage_users": "create, change and delete users",
    "read_users": "see other users",
    "manage_streams": "create, change and delete streams, and everything in them",
    "read_streams": "see all streams and topics, and read their messages",
    "manage_stream": "change and delete the stream, and everything in it",
    "read_stream": "see the stream and its topics, and read their messages",
    "manage_topics": "create, change and delete topics, send and read messages",
    "read_topics": "see topics and groups, and read messages",
    "manage_topic": "change and delete the topic, send and read messages",
    "read_topic": "see the topic and its groups, and read messages",
    "poll_messages": "read messages",
    "send_messages": "send messages",
}


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a user may do something, and why."""

    is_allowed: bool
    reason: str
    granted_by: list[Grant]
    sufficient: list[Grant]


@dataclass(frozen=True, slots=True)
class Subject:
    """The user who is judged."""

    user_id: int
    is_active: bool
    permissions: Permissions | None


def judge(subject: Subject, action: Action, stream_id: int | None, topic_id: int | None) -> Verdict:
    """Whether a user may do something with a topic, with a stream, or everywhere."""
    enough = sufficient(action, has_stream=stream_id is not None, has_topic=topic_id is not None)
    if not subject.is_active:
        return Verdict(False, "the user is inactive", [], enough)
    if subject.user_id == ROOT_USER_ID:
        return Verdict(True, "the root user may do everything", [], enough)
    held = granted(subject.permissions, stream_id, topic_id)
    helping = [grant for grant in held if grant in enough]
    if helping:
        return Verdict(True, f"granted by {', '.join(texts(helping))}", helping, enough)
    has = f"it has {', '.join(texts(held))}" if held else "it has no permission here"
    # The last one allows the least.
    reason = f"{has}; needed: {texts(enough)[-1]}, or a permission that includes it"
    return Verdict(False, reason, [], enough)


def texts(grants: Sequence[Grant]) -> list[str]:
    """Such as ``send_messages (topic)``."""
    return [f"{grant.name} ({grant.level})" for grant in grants]


async def report(users: Iterable[User], stream_id: int | None, topic_id: int | None) -> AccessReport:
    """What these users may do in one place, with pauses in which others have their turn."""
    rows = []
    for number, user in enumerate(users, start=1):
        rows.append(_judge_user(user, stream_id, topic_id))
        if number % _STEP_COUNT == 0:
            await asyncio.sleep(0)
    place = {"has_stream": stream_id is not None, "has_topic": topic_id is not None}
    actions = [ActionInfo(name_of(action), deed, sufficient(action, **place)) for action, deed in DEEDS.items()]
    permissions = [
        PermissionInfo(level, name, _MEANINGS[name])
        for level, kind in _LEVELS.items()
        for name in kind.__struct_fields__
        if name in _MEANINGS
    ]
    return AccessReport(actions, permissions, rows)


def _judge_user(user: User, stream_id: int | None, topic_id: int | None) -> UserAccess:
    subject = Subject(user.user_id, user.is_active, user.permissions)
    verdicts = []
    for action in DEEDS:
        found = judge(subject, action, stream_id, topic_id)
        verdicts.append(UserVerdict(name_of(action), found.is_allowed, found.reason, found.granted_by))
    return UserAccess(user.user_id, user.name, user.is_active, user.user_id == ROOT_USER_ID, verdicts)


def name_of(action: Action) -> str:
    """What programs call an action: ``send_messages``."""
    return action.name.lower()
