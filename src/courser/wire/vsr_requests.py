"""Bodies of SDK 0.9 requests into commands: one small function each, and the tables that choose them."""

from collections.abc import Callable
from functools import lru_cache
from struct import Struct
from typing import TypeAlias

from courser.api import commands as c
from courser.errors import ErrorCode, InvalidBatch
from courser.model.consumers import ConsumerKind
from courser.model.identifiers import Consumer, Identifier
from courser.model.messaging import ByKey, Partitioning
from courser.records.batch import parse_batch
from courser.records.layout import EXTENSION_POSITION
from courser.wire.reading import POLLING_KINDS, Malformed, Reader, consumer_at, identifier_at, partitioning_at
from courser.wire.vsr_headers import Operation
from courser.wire.vsr_options import read_no_options, read_topic_options

Decoder: TypeAlias = Callable[[Reader], c.Command]
_U32 = Struct("<I")
_U32_SIZE = _U32.size
_unpack_u32 = _U32.unpack_from
_POLL_TAIL = Struct("<BIBQIB")
"""has_partition, partition_id, strategy kind, strategy value, count, auto_commit"""
_unpack_poll_tail = _POLL_TAIL.unpack_from

_IDENTIFIER_SIZE_MAX = 2 + 255
_ROUTE_COUNT_MAX = 1024
"""Places that are remembered: clients name the same few over and over, and reading names is half of reading a poll."""
_POLL_HEAD_SIZE_MAX = 1 + 3 * _IDENTIFIER_SIZE_MAX
"""Bytes before what a poll asks for: consumer, stream, topic."""
_SEND_HEAD_SIZE_MAX = 4 + 3 * _IDENTIFIER_SIZE_MAX + 4
"""Bytes before a batch: length, stream, topic, partitioning, number of messages."""
_OFFSET_BODY_SIZE_MAX = 1 + 3 * _IDENTIFIER_SIZE_MAX + 5 + 8 + 1
"""Bytes of a stored offset: consumer, stream, topic, partition, offset, level of acknowledgement."""

_PARTITION_COUNT_MAX = 1000
"""Partitions that one request may delete."""
_SNAPSHOT_COMPRESSIONS = range(1, 7)
_SNAPSHOT_KINDS = frozenset({1, 2, 3, 4, 5, 6})
_SNAPSHOT_ALL = 100
_SCOPES = range(1, 4)
_ACKNOWLEDGEMENTS = (0, 1)


class NothingThere(Exception):
    """A request that the original answers without a look at its state: there is nothing."""


# --- messages -----------------------------------------------------------------------------------------


@lru_cache(maxsize=_ROUTE_COUNT_MAX)
def _route_of_send(metadata: bytes) -> tuple[Identifier, Identifier, Partitioning, int]:
    """Stream, topic, partitioning, number of messages."""
    view = memoryview(metadata)
    stream, position = identifier_at(view, 0)
    topic, position = identifier_at(view, position)
    partitioning, position = partitioning_at(view, position)
    if isinstance(partitioning, ByKey) and not partitioning.key:
        raise Malformed("a send by key has an empty key")
    if position + _U32.size != len(metadata):
        raise Malformed(f"the metadata of a send has {len(metadata)} bytes instead of {position + _U32.size}")
    return stream, topic, partitioning, _unpack_u32(view, position)[0]


@lru_cache(maxsize=_ROUTE_COUNT_MAX)
def _route_of_poll(head: bytes) -> tuple[Consumer, Identifier, Identifier, int]:
    """Consumer, stream, topic, and where they end."""
    view = memoryview(head)
    consumer, position = consumer_at(view, 0)
    stream, position = identifier_at(view, position)
    topic, position = identifier_at(view, position)
    return consumer, stream, topic, position


def read_send_head(body: memoryview) -> bytes:
    """What stands before the messages of a send: where it goes, and the batch's lengths and checksum.

    It tells a send from another with the same number.

    Raises:
        Malformed: it is not all there.
    """
    if len(body) < _U32_SIZE:
        raise Malformed("a send is cut before its metadata")
    size: int = _U32_SIZE + _unpack_u32(body)[0]
    if size > len(body) or size > _SEND_HEAD_SIZE_MAX:
        raise Malformed(f"a send of {len(body)} bytes has {size} bytes of metadata")
    return body[: size + EXTENSION_POSITION].tobytes()


def read_send(head: bytes, body: memoryview, verify_frames: bool) -> c.SendMessages:
    """A send. The batch stays where it is.

    Raises:
        Malformed: where it goes cannot be understood.
        InvalidBatch: the messages are not as they should be.
    """
    batch_start = _U32_SIZE + _unpack_u32(head)[0]
    stream, topic, partitioning, count = _route_of_send(head[_U32_SIZE:batch_start])
    batch = parse_batch(body[batch_start:], verify_frames)
    if count != batch.count:
        raise InvalidBatch(
            ErrorCode.INVALID_MESSAGES_COUNT, f"{count} messages are announced, but the batch has {batch.count}"
        )
    return c.SendMessages(stream, topic, partitioning, [batch])


def read_offset_content(body: memoryview) -> bytes:
    """What tells a stored or deleted offset from another: all of it, without what somebody may have put behind."""
    return bytes(body[:_OFFSET_BODY_SIZE_MAX])


def read_poll(body: memoryview) -> c.PollMessages:
    """A poll. A single consumer that names no partition means the first."""
    head_size = min(len(body) - _POLL_TAIL.size, _POLL_HEAD_SIZE_MAX)
    if head_size < 0:
        raise Malformed("a poll is cut")
    consumer, stream, topic, position = _route_of_poll(bytes(body[:head_size]))
    has_partition, partition_id, kind_number, value, count, auto_commit = _unpack_poll_tail(body, position)
    kind = POLLING_KINDS.get(kind_number)
    if kind is None:
        raise Malformed(f"a polling strategy has the unknown kind {kind_number}")
    partition = partition_id if has_partition == 1 else _unnamed_partition(consumer)
    return c.PollMessages(consumer, stream, topic, partition, kind, value, count, auto_commit != 0)


def _unnamed_partition(consumer: Consumer) -> int | None:
    return 0 if consumer.kind is ConsumerKind.CONSUMER else None


def _flush_messages(reader: Reader) -> c.Command:
    return c.FlushMessages(reader.identifier(), reader.identifier(), reader.u32(), reader.flag())


def _get_consumer_offset(reader: Reader) -> c.Command:
    consumer, stream, topic = reader.consumer(), reader.identifier(), reader.identifier()
    partition_id = reader.optional_partition()
    if partition_id is None:
        partition_id = _unnamed_partition(consumer)
        if partition_id is None:
            raise NothingThere("the offset of a group is asked for without a partition")
    return c.GetConsumerOffset(consumer, stream, topic, partition_id)


def _named_partition(reader: Reader) -> int:
    partition_id = reader.optional_partition()
    if partition_id is None:
        raise Malformed("an offset is stored or deleted without a partition")
    return partition_id


def _check_acknowledgement(reader: Reader) -> None:
    level = reader.u8()
    if level not in _ACKNOWLEDGEMENTS:
        raise Malformed(f"there is no acknowledgement level {level}")


def _store_consumer_offset(reader: Reader) -> c.Command:
    command = c.StoreConsumerOffset(
        reader.consumer(), reader.identifier(), reader.identifier(), _named_partition(reader), reader.u64()
    )
    _check_acknowledgement(reader)
    return command


def _delete_consumer_offset(reader: Reader) -> c.Command:
    command = c.DeleteConsumerOffset(
        reader.consumer(), reader.identifier(), reader.identifier(), _named_partition(reader)
    )
    _check_acknowledgement(reader)
    return command


# --- system -------------------------------------------------------------------------------------------


def _get_snapshot(reader: Reader) -> c.Command:
    compression = reader.u8()
    kinds = tuple(reader.take(reader.u8()))
    if compression not in _SNAPSHOT_COMPRESSIONS:
        raise Malformed(f"a snapshot cannot have compression {compression}")
    if kinds != (_SNAPSHOT_ALL,) and not _SNAPSHOT_KINDS.issuperset(kinds):
        raise Malformed(f"a snapshot cannot hold {kinds}")
    return c.GetSnapshot(compression, kinds)


def _describe_options(reader: Reader) -> c.Command:
    scope = reader.u8()
    if scope not in _SCOPES:
        raise Malformed(f"options have no scope {scope}")
    return c.DescribeOptions(scope)


def _get_client(reader: Reader) -> c.Command:
    return c.GetClient(reader.u32())


# --- users and tokens ---------------------------------------------------------------------------------


def _get_user(reader: Reader) -> c.Command:
    return c.GetUser(reader.identifier())


def _create_user(reader: Reader) -> c.Command:
    command = c.CreateUser(reader.name(), reader.text8(), reader.is_active(), reader.optional_permissions())
    read_no_options(reader)
    return command


def _update_user(reader: Reader) -> c.Command:
    user = reader.identifier()
    name = reader.name() if reader.is_present() else None
    is_active = reader.is_active() if reader.is_present() else None
    read_no_options(reader)
    return c.UpdateUser(user, name, is_active)


def _delete_user(reader: Reader) -> c.Command:
    return c.DeleteUser(reader.identifier())


def _change_password(reader: Reader) -> c.Command:
    return c.ChangePassword(reader.identifier(), reader.text8(), reader.text8())


def _update_permissions(reader: Reader) -> c.Command:
    return c.UpdatePermissions(reader.identifier(), reader.optional_permissions())


def _create_token(reader: Reader) -> c.Command:
    return c.CreateToken(reader.name(), reader.u64())


def _delete_token(reader: Reader) -> c.Command:
    return c.DeleteToken(reader.name())


# --- streams, topics, partitions ----------------------------------------------------------------------


def _get_stream(reader: Reader) -> c.Command:
    return c.GetStream(reader.identifier())


def _create_stream(reader: Reader) -> c.Command:
    command = c.CreateStream(reader.name())
    read_no_options(reader)
    return command


def _update_stream(reader: Reader) -> c.Command:
    command = c.UpdateStream(reader.identifier(), reader.name())
    read_no_options(reader)
    return command


def _delete_stream(reader: Reader) -> c.Command:
    return c.DeleteStream(reader.identifier())


def _purge_stream(reader: Reader) -> c.Command:
    return c.PurgeStream(reader.identifier())


def _get_topic(reader: Reader) -> c.Command:
    return c.GetTopic(reader.identifier(), reader.identifier())


def _get_topics(reader: Reader) -> c.Command:
    return c.GetTopics(reader.identifier())


def _create_topic(reader: Reader) -> c.Command:
    stream, partition_count, name = reader.identifier(), reader.u32(), reader.name()
    return c.CreateTopic(stream, name, partition_count, read_topic_options(reader))


def _update_topic(reader: Reader) -> c.Command:
    stream, topic, name = reader.identifier(), reader.identifier(), reader.name()
    options = read_topic_options(reader, is_update=True)
    return c.UpdateTopic(stream, topic, name, options, is_patch=True)


def _delete_topic(reader: Reader) -> c.Command:
    return c.DeleteTopic(reader.identifier(), reader.identifier())


def _purge_topic(reader: Reader) -> c.Command:
    return c.PurgeTopic(reader.identifier(), reader.identifier())


def _create_partitions(reader: Reader) -> c.Command:
    return c.CreatePartitions(reader.identifier(), reader.identifier(), reader.u32())


def _delete_partitions(reader: Reader) -> c.Command:
    stream, topic, count = reader.identifier(), reader.identifier(), reader.u32()
    if count > _PARTITION_COUNT_MAX:
        # The classic server looks at how many there are first; this one does not.
        raise Malformed(f"{count} partitions are more than can be deleted at a time", ErrorCode.TOO_MANY_PARTITIONS)
    return c.DeletePartitions(stream, topic, count)


def _delete_segments(reader: Reader) -> c.Command:
    return c.DeleteSegments(reader.identifier(), reader.identifier(), reader.u32(), reader.u32())


# --- consumer groups ----------------------------------------------------------------------------------


def _get_consumer_group(reader: Reader) -> c.Command:
    return c.GetConsumerGroup(reader.identifier(), reader.identifier(), reader.identifier())


def _get_consumer_groups(reader: Reader) -> c.Command:
    return c.GetConsumerGroups(reader.identifier(), reader.identifier())


def _create_consumer_group(reader: Reader) -> c.Command:
    return c.CreateConsumerGroup(reader.identifier(), reader.identifier(), reader.name())


def _delete_consumer_group(reader: Reader) -> c.Command:
    return c.DeleteConsumerGroup(reader.identifier(), reader.identifier(), reader.identifier())


def _join_consumer_group(reader: Reader) -> c.Command:
    return c.JoinConsumerGroup(reader.identifier(), reader.identifier(), reader.identifier())


def _leave_consumer_group(reader: Reader) -> c.Command:
    return c.LeaveConsumerGroup(reader.identifier(), reader.identifier(), reader.identifier())


def _sync_consumer_group(reader: Reader) -> c.Command:
    return c.SyncConsumerGroup(reader.identifier(), reader.identifier(), reader.identifier())


# --- the tables ---------------------------------------------------------------------------------------

READERS_OF_OPERATIONS: dict[int, Decoder] = {
    Operation.CREATE_STREAM: _create_stream,
    Operation.UPDATE_STREAM: _update_stream,
    Operation.DELETE_STREAM: _delete_stream,
    Operation.PURGE_STREAM: _purge_stream,
    Operation.CREATE_TOPIC: _create_topic,
    Operation.UPDATE_TOPIC: _update_topic,
    Operation.DELETE_TOPIC: _delete_topic,
    Operation.PURGE_TOPIC: _purge_topic,
    Operation.CREATE_PARTITIONS: _create_partitions,
    Operation.DELETE_PARTITIONS: _delete_partitions,
    Operation.DELETE_SEGMENTS: _delete_segments,
    Operation.CREATE_CONSUMER_GROUP: _create_consumer_group,
    Operation.DELETE_CONSUMER_GROUP: _delete_consumer_group,
    Operation.CREATE_USER: _create_user,
    Operation.UPDATE_USER: _update_user,
    Operation.DELETE_USER: _delete_user,
    Operation.CHANGE_PASSWORD: _change_password,
    Operation.UPDATE_PERMISSIONS: _update_permissions,
    Operation.CREATE_TOKEN: _create_token,
    Operation.DELETE_TOKEN: _delete_token,
    Operation.JOIN_CONSUMER_GROUP: _join_consumer_group,
    Operation.LEAVE_CONSUMER_GROUP: _leave_consumer_group,
    Operation.STORE_CONSUMER_OFFSET: _store_consumer_offset,
    Operation.DELETE_CONSUMER_OFFSET: _delete_consumer_offset,
}

READERS_OF_CODES: dict[int, Decoder] = {
    1: lambda _: c.Ping(),
    10: lambda _: c.GetStats(),
    11: _get_snapshot,
    12: lambda _: c.GetClusterMetadata(),
    13: _describe_options,
    20: lambda _: c.GetMe(),
    21: _get_client,
    22: lambda _: c.GetClients(),
    31: _get_user,
    32: lambda _: c.GetUsers(),
    41: lambda _: c.GetTokens(),
    102: _flush_messages,
    120: _get_consumer_offset,
    200: _get_stream,
    201: lambda _: c.GetStreams(),
    300: _get_topic,
    301: _get_topics,
    600: _get_consumer_group,
    601: _get_consumer_groups,
    606: _sync_consumer_group,
}
"""Of NON_REPLICATED requests; polls have a way of their own."""
