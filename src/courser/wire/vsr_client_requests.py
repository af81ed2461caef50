"""Commands into the bodies of SDK 0.9 requests: the way back of ``vsr_requests``, for our own client."""

from collections.abc import Callable
from struct import Struct
from typing import Any, TypeAlias

from courser.api import commands as c
from courser.wire.private_commands import PRIVATE_WRITERS
from courser.wire.vsr_facts import OWN_SDK_NAME
from courser.wire.vsr_headers import PROTOCOL_VERSION, Operation
from courser.wire.vsr_options import write_wanted_options
from courser.wire.writing import (
    consumer,
    identifier,
    optional_partition,
    optional_permissions_of_request,
    partitioning,
    text8,
    write_poll,
)

Writer: TypeAlias = Callable[[Any], bytes]

_U32 = Struct("<I")
_U64 = Struct("<Q")
_TWO_U32 = Struct("<II")
_FLUSH = Struct("<I?")
_ACKNOWLEDGED = b"\x01"
_NO_CONTEXT = bytes(4)


# --- logins -------------------------------------------------------------------------------------------


def _client_version(version: str) -> bytes:
    return _U32.pack(PROTOCOL_VERSION) + text8(OWN_SDK_NAME) + text8(version or "0")


def _login_user(command: c.LoginUser) -> bytes:
    context = command.context.encode()
    credentials = text8(command.name) + text8(command.password) + _U32.pack(len(context)) + context
    return _client_version(command.version) + credentials


def _login_with_token(command: c.LoginWithToken) -> bytes:
    return _client_version(command.version) + text8(command.token) + _NO_CONTEXT


# --- messages -----------------------------------------------------------------------------------------


def send_target(command: c.SendMessages, count: int) -> bytes:
    """Where a send goes, with its length in front: what stands before the batch."""
    target = b"".join(
        (
            identifier(command.stream),
            identifier(command.topic),
            partitioning(command.partitioning),
            _U32.pack(count),
        )
    )
    return _U32.pack(len(target)) + target


def _flush_messages(command: c.FlushMessages) -> bytes:
    return _topic(command) + _FLUSH.pack(command.partition_id, command.fsync)


def _offset_place(command: c.GetConsumerOffset | c.StoreConsumerOffset | c.DeleteConsumerOffset) -> bytes:
    return consumer(command.consumer) + _topic(command) + optional_partition(command.partition_id)


def _store_consumer_offset(command: c.StoreConsumerOffset) -> bytes:
    return _offset_place(command) + _U64.pack(command.offset) + _ACKNOWLEDGED


def _delete_consumer_offset(command: c.DeleteConsumerOffset) -> bytes:
    return _offset_place(command) + _ACKNOWLEDGED


# --- everything else ----------------------------------------------------------------------------------


def _nothing(_: c.Command) -> bytes:
    return b""


def _stream(command: Any) -> bytes:
    return identifier(command.stream)


def _topic(command: Any) -> bytes:
    return identifier(command.stream) + identifier(command.topic)


def _group(command: Any) -> bytes:
    return _topic(command) + identifier(command.group)


def _user(command: Any) -> bytes:
    return identifier(command.user)


def _get_snapshot(command: c.GetSnapshot) -> bytes:
    return bytes((command.compression, len(command.kinds), *command.kinds))


def _create_user(command: c.CreateUser) -> bytes:
    status = b"\x01" if command.is_active else b"\x02"
    permissions = optional_permissions_of_request(command.permissions)
    return text8(command.name) + text8(command.password) + status + permissions


def _update_user(command: c.UpdateUser) -> bytes:
    name = b"\x00" if command.name is None else b"\x01" + text8(command.name)
    status = b"\x00" if command.is_active is None else b"\x01\x01" if command.is_active else b"\x01\x02"
    return identifier(command.user) + name + status


def _change_password(command: c.ChangePassword) -> bytes:
    return identifier(command.user) + text8(command.current_password) + text8(command.new_password)


def _update_permissions(command: c.UpdatePermissions) -> bytes:
    return identifier(command.user) + optional_permissions_of_request(command.permissions)


def _create_topic(command: c.CreateTopic) -> bytes:
    count = _U32.pack(command.partition_count)
    return identifier(command.stream) + count + text8(command.name) + write_wanted_options(command.options)


def _update_topic(command: c.UpdateTopic) -> bytes:
    return _topic(command) + text8(command.name) + write_wanted_options(command.options)


def _partition_count(command: c.CreatePartitions | c.DeletePartitions) -> bytes:
    return _topic(command) + _U32.pack(command.count)


def _delete_segments(command: c.DeleteSegments) -> bytes:
    return _topic(command) + _TWO_U32.pack(command.partition_id, command.count)


# --- the tables ---------------------------------------------------------------------------------------

OPERATIONS: dict[type[c.Command], tuple[Operation, Writer]] = {
    c.LoginUser: (Operation.REGISTER, _login_user),
    c.LoginWithToken: (Operation.REGISTER, _login_with_token),
    c.LogoutUser: (Operation.LOGOUT, _nothing),
    c.CreateStream: (Operation.CREATE_STREAM, lambda command: text8(command.name)),
    c.UpdateStream: (Operation.UPDATE_STREAM, lambda command: _stream(command) + text8(command.name)),
    c.DeleteStream: (Operation.DELETE_STREAM, _stream),
    c.PurgeStream: (Operation.PURGE_STREAM, _stream),
    c.CreateTopic: (Operation.CREATE_TOPIC, _create_topic),
    c.UpdateTopic: (Operation.UPDATE_TOPIC, _update_topic),
    c.DeleteTopic: (Operation.DELETE_TOPIC, _topic),
    c.PurgeTopic: (Operation.PURGE_TOPIC, _topic),
    c.CreatePartitions: (Operation.CREATE_PARTITIONS, _partition_count),
    c.DeletePartitions: (Operation.DELETE_PARTITIONS, _partition_count),
    c.DeleteSegments: (Operation.DELETE_SEGMENTS, _delete_segments),
    c.CreateConsumerGroup: (
        Operation.CREATE_CONSUMER_GROUP,
        lambda command: _topic(command) + text8(command.name),
    ),
    c.DeleteConsumerGroup: (Operation.DELETE_CONSUMER_GROUP, _group),
    c.JoinConsumerGroup: (Operation.JOIN_CONSUMER_GROUP, _group),
    c.LeaveConsumerGroup: (Operation.LEAVE_CONSUMER_GROUP, _group),
    c.CreateUser: (Operation.CREATE_USER, _create_user),
    c.UpdateUser: (Operation.UPDATE_USER, _update_user),
    c.DeleteUser: (Operation.DELETE_USER, _user),
    c.ChangePassword: (Operation.CHANGE_PASSWORD, _change_password),
    c.UpdatePermissions: (Operation.UPDATE_PERMISSIONS, _update_permissions),
    c.CreateToken: (Operation.CREATE_TOKEN, lambda command: text8(command.name) + _U64.pack(command.expiry)),
    c.DeleteToken: (Operation.DELETE_TOKEN, lambda command: text8(command.name)),
    c.StoreConsumerOffset: (Operation.STORE_CONSUMER_OFFSET, _store_consumer_offset),
    c.DeleteConsumerOffset: (Operation.DELETE_CONSUMER_OFFSET, _delete_consumer_offset),
}
"""What changes something, but for sends, which have a way of their own."""

READS: dict[type[c.Command], Writer] = {
    c.Ping: _nothing,
    c.GetStats: _nothing,
    c.GetSnapshot: _get_snapshot,
    c.GetClusterMetadata: _nothing,
    c.DescribeOptions: lambda command: bytes((command.scope,)),
    c.GetMe: _nothing,
    c.GetClient: lambda command: _U32.pack(command.client_id),
    c.GetClients: _nothing,
    c.GetUser: _user,
    c.GetUsers: _nothing,
    c.GetTokens: _nothing,
    c.PollMessages: write_poll,
    c.FlushMessages: _flush_messages,
    c.GetConsumerOffset: _offset_place,
    c.GetStream: _stream,
    c.GetStreams: _nothing,
    c.GetTopic: _topic,
    c.GetTopics: _stream,
    c.GetConsumerGroup: _group,
    c.GetConsumerGroups: _topic,
    c.SyncConsumerGroup: _group,
    **PRIVATE_WRITERS,
}
"""What travels under its number."""
