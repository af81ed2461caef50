"""Permissions of users: global, for a stream, for a topic. What is not granted is denied."""

from enum import IntEnum, auto

import msgspec


class Action(IntEnum):
    """What a user wants to do; each has one rule. Numbers, because they are hashed for every send."""

    GET_STREAM = auto()
    LIST_STREAMS = auto()
    CREATE_STREAM = auto()
    MANAGE_STREAM = auto()
    """Rename, delete, purge."""
    READ_TOPIC = auto()
    """A topic, its segments, its consumer groups: all group commands, including create, join and delete."""
    LIST_TOPICS = auto()
    CREATE_TOPIC = auto()
    MANAGE_TOPIC = auto()
    """Change, delete, purge; its partitions and segments."""
    POLL_MESSAGES = auto()
    """Also consumer offsets: get, store, delete."""
    SEND_MESSAGES = auto()
    """Also flush."""
    READ_USERS = auto()
    MANAGE_USERS = auto()
    READ_SERVER = auto()
    """Statistics, other clients, the diagnosis archive."""
    MANAGE_SERVER = auto()
    """Log lines; ending the sessions of others."""


class TopicPermissions(msgspec.Struct, frozen=True, array_like=True):
    """Permissions of a user for one topic."""

    manage_topic: bool = False
    read_topic: bool = False
    poll_messages: bool = False
    send_messages: bool = False


class StreamPermissions(msgspec.Struct, frozen=True, array_like=True):
    """Permissions of a user for one stream."""

    manage_stream: bool = False
    read_stream: bool = False
    manage_topics: bool = False
    read_topics: bool = False
    poll_messages: bool = False
    send_messages: bool = False
    topics: dict[int, TopicPermissions] = {}


class GlobalPermissions(msgspec.Struct, frozen=True, array_like=True):
    """Global permissions of a user."""

    manage_servers: bool = False
    read_servers: bool = False
    manage_users: bool = False
    read_users: bool = False
    manage_streams: bool = False
    read_streams: bool = False
    manage_topics: bool = False
    read_topics: bool = False
    poll_messages: bool = False
    send_messages: bool = False


class Permissions(msgspec.Struct, frozen=True, array_like=True):
    """All permissions of a user. What is not granted is denied.

    Example:
        from courser.model.permissions import GlobalPermissions, Permissions, StreamPermissions, TopicPermissions

        sends_orders = StreamPermissions(topics={0: TopicPermissions(send_messages=True)})
        permissions = Permissions(GlobalPermissions(read_servers=True), streams={0: sends_orders})
        await client.create_user("clerk", "secret-of-the-clerk", permissions=permissions)
    """

    everywhere: GlobalPermissions = GlobalPermissions()
    streams: dict[int, StreamPermissions] = {}


ALL_PERMISSIONS = Permissions(GlobalPermissions(*[True] * len(GlobalPermissions.__struct_fields__)))
"""The permissions of the root user."""
