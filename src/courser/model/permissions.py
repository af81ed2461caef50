"""What users may do: everywhere, in a stream, in a topic. What is not granted is denied."""

import msgspec


class TopicPermissions(msgspec.Struct, frozen=True, array_like=True):
    """What a user may do with one topic."""

    manage_topic: bool = False
    read_topic: bool = False
    poll_messages: bool = False
    send_messages: bool = False


class StreamPermissions(msgspec.Struct, frozen=True, array_like=True):
    """What a user may do with one stream."""

    manage_stream: bool = False
    read_stream: bool = False
    manage_topics: bool = False
    read_topics: bool = False
    poll_messages: bool = False
    send_messages: bool = False
    topics: dict[int, TopicPermissions] = {}


class GlobalPermissions(msgspec.Struct, frozen=True, array_like=True):
    """What a user may do everywhere."""

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
    """Everything that a user may do. What is not granted is denied."""

    everywhere: GlobalPermissions = GlobalPermissions()
    streams: dict[int, StreamPermissions] = {}


ALL_PERMISSIONS = Permissions(GlobalPermissions(*[True] * len(GlobalPermissions.__struct_fields__)))
"""What root has."""
