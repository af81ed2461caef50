"""Bodies of SDK 0.9 requests, decoded by the server and encoded by Courser's own client.

Most are derived from the fields of their command (``layouts``). By hand: sends and polls, which are frequent, logins,
options, and requests with additional fields or checks in this generation.
"""

from collections.abc import Callable
from functools import lru_cache
from struct import Struct
from typing import Any, TypeAlias

from courser.api import commands as c
from courser.api.table import SDK_0_10
from courser.errors import ErrorCode, InvalidBatch
from courser.model.identifiers import Consumer, ConsumerKind, Identifier
from courser.model.messaging import ByKey, Partitioning
from courser.records.batch import Batch, parse_batch
from courser.records.frame_walk import TakenSend
from courser.records.frames import FrameLayout
from courser.records.layout import EXTENSION_POSITION
from courser.records.producers import read_section
from courser.wire import writing
from courser.wire.layouts import layout_of
from courser.wire.reading import (
    IDENTIFIER_SIZE_MAX,
    POLL_HEAD_SIZE_MAX,
    POLLING_KINDS,
    ROUTE_COUNT_MAX,
    ROUTE_SIZE_MAX,
    Malformed,
    Reader,
    identifier_at,
    partitioning_at,
    route_of_poll,
)
from courser.wire.vsr_facts import OWN_SDK_NAME
from courser.wire.vsr_headers import PROTOCOL_VERSION
from courser.wire.vsr_options import read_no_options, read_topic_options, write_wanted_options

RequestReader: TypeAlias = Callable[[Reader], c.Command]
RequestWriter: TypeAlias = Callable[[Any], bytes]
_U32 = Struct("<I")
_U32_SIZE = _U32.size
_unpack_u32 = _U32.unpack_from
_POLL_TAIL = Struct("<BIBQIB")
"""has_partition, partition_id, strategy kind, strategy value, count, auto_commit"""
_unpack_poll_tail = _POLL_TAIL.unpack_from

_SEND_HEAD_SIZE_MAX = 4 + ROUTE_SIZE_MAX
"""Maximum bytes before a batch: the length of the destination, and the destination."""
_OFFSET_BODY_SIZE_MAX = 1 + 3 * IDENTIFIER_SIZE_MAX + 5 + 8 + 1
"""Maximum bytes of a stored offset: consumer, stream, topic, partition, offset, acknowledgement level."""

_PARTITION_COUNT_MAX = 1000
"""Partitions that one request may delete."""
_SCOPES = range(1, 4)
_ACKNOWLEDGEMENTS = (0, 1)


_WAIT = Struct("<QI")
"""wait, size_max"""
_ACKNOWLEDGED = b"\x01"
_NO_CONTEXT = bytes(4)


class NothingThere(Exception):
    """A request that the original server answers with "not found" without checking its state."""


class PollOfNothing(Exception):
    """A poll for a consumer group that names no partition: it gets no messages."""


# --- messages -----------------------------------------------------------------------------------------


@lru_cache(maxsize=ROUTE_COUNT_MAX)
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


def read_send_head(body: memoryview) -> bytes:
    """The bytes before the messages of a send: its destination, and the batch's lengths and checksum.

    They distinguish a send from another one with the same number.

    Raises:
        Malformed: the send is truncated.
    """
    if len(body) < _U32_SIZE:
        raise Malformed("a send is truncated before its metadata")
    size: int = _U32_SIZE + _unpack_u32(body)[0]
    if size > len(body) or size > _SEND_HEAD_SIZE_MAX:
        raise Malformed(f"a send of {len(body)} bytes has {size} bytes of metadata")
    return body[: size + EXTENSION_POSITION].tobytes()


def read_send(
    head: bytes, body: memoryview, verify_frames: bool, incarnation: int = 0, may_be_idempotent: bool = False
) -> c.SendMessages:
    """Decode a send. The batch is not copied. ``may_be_idempotent``: its header may name an idempotent producer.

    Raises:
        Malformed: the destination cannot be decoded.
        InvalidBatch: the messages are invalid.
    """
    batch_start = _U32_SIZE + _unpack_u32(head)[0]
    stream, topic, partitioning, count = _route_of_send(head[_U32_SIZE:batch_start])
    batch = parse_batch(body[batch_start:], verify_frames, may_be_idempotent)
    if count != batch.count:
        raise InvalidBatch(
            ErrorCode.INVALID_MESSAGES_COUNT, f"the request says {count} messages, but the batch has {batch.count}"
        )
    return c.SendMessages(stream, topic, partitioning, [batch], incarnation)


def read_usual_send(taken: TakenSend, incarnation: int = 0) -> c.SendMessages | None:
    """The send that ``take_vsr_send`` found; None if its destination is invalid, or promises other messages."""
    _, _, _, _, metadata, origin_timestamp, count, body, frame_size, starts, checksums, *section = taken
    try:
        stream, topic, partitioning, promised_count = _route_of_send(metadata)
    except Malformed:
        return None
    if promised_count != count:
        return None
    frames = FrameLayout(count, frame_size, starts, len(body))
    producer = read_section(section[0], count) if section else None
    batch = Batch(origin_timestamp, count, body, frames, checksums, producer)
    return c.SendMessages(stream, topic, partitioning, [batch], incarnation)


def read_offset_content(body: memoryview) -> bytes:
    """What identifies a stored or deleted offset: the whole request, without trailing bytes."""
    return bytes(body[:_OFFSET_BODY_SIZE_MAX])


def read_poll(body: memoryview, incarnation: int = 0) -> c.PollMessages:
    """Decode a poll. A single consumer that names no partition reads the first one; members of a group name theirs."""
    head_size = min(len(body) - _POLL_TAIL.size, POLL_HEAD_SIZE_MAX)
    if head_size < 0:
        raise Malformed("a poll is truncated")
    consumer, stream, topic, position = route_of_poll(body[:head_size].tobytes(), 0)
    has_partition, partition_id, kind_number, value, count, auto_commit = _unpack_poll_tail(body, position)
    kind = POLLING_KINDS.get(kind_number)
    if kind is None:
        raise Malformed(f"unknown polling strategy {kind_number}")
    if has_partition != 1:
        partition_id = _first_partition(consumer)
    return c.PollMessages(consumer, stream, topic, partition_id, kind, value, count, auto_commit != 0, incarnation)


def _first_partition(consumer: Consumer) -> int:
    if consumer.kind is not ConsumerKind.CONSUMER:
        raise PollOfNothing("a poll for a consumer group must name a partition")
    return 0


def _unnamed_partition(consumer: Consumer) -> int | None:
    return 0 if consumer.kind is ConsumerKind.CONSUMER else None


def _get_consumer_offset(reader: Reader) -> c.Command:
    consumer, stream, topic = reader.consumer(), reader.identifier(), reader.identifier()
    partition_id = reader.optional_partition()
    if partition_id is None:
        partition_id = _unnamed_partition(consumer)
        if partition_id is None:
            raise NothingThere("a request for the offset of a group must name a partition")
    return c.GetConsumerOffset(consumer, stream, topic, partition_id)


def _named_partition(reader: Reader) -> int:
    partition_id = reader.optional_partition()
    if partition_id is None:
        raise Malformed("a request to store or delete an offset must name a partition")
    return partition_id


def _check_acknowledgement(reader: Reader) -> None:
    level = reader.u8()
    if level not in _ACKNOWLEDGEMENTS:
        raise Malformed(f"unknown acknowledgement level {level}")


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


# --- other requests decoded by hand -------------------------------------------------------------------


def _describe_options(reader: Reader) -> c.Command:
    scope = reader.u8()
    if scope not in _SCOPES:
        raise Malformed(f"unknown option scope {scope}")
    return c.DescribeOptions(scope)


def _create_topic(reader: Reader) -> c.Command:
    stream, partition_count, name = reader.identifier(), reader.u32(), reader.name()
    return c.CreateTopic(stream, name, partition_count, read_topic_options(reader))


def _update_topic(reader: Reader) -> c.Command:
    stream, topic, name = reader.identifier(), reader.identifier(), reader.name()
    options = read_topic_options(reader, is_update=True)
    return c.UpdateTopic(stream, topic, name, options, is_patch=True)


_delete_partitions_layout = layout_of(c.DeletePartitions)


def _delete_partitions(reader: Reader) -> c.Command:
    command = _delete_partitions_layout.read(reader)
    if command.count > _PARTITION_COUNT_MAX:
        # The classic server checks the count first; this one does not.
        reason = f"{command.count} partitions are too many to delete at a time"
        raise Malformed(reason, ErrorCode.TOO_MANY_PARTITIONS)
    return command


def _without_options(kind: type[c.Command]) -> RequestReader:
    """The fields, followed by options, of which streams and users have none."""
    read = layout_of(kind).read

    def read_all(reader: Reader) -> c.Command:
        command = read(reader)
        read_no_options(reader)
        return command

    return read_all


# --- encoded by hand, for Courser's own client --------------------------------------------------------


def _client_version(version: str) -> bytes:
    return writing.u32(PROTOCOL_VERSION) + writing.text8(OWN_SDK_NAME) + writing.text8(version or "0")


def _write_login(command: c.LoginUser) -> bytes:
    credentials = writing.text8(command.name) + writing.text8(command.password) + writing.text32(command.context)
    return _client_version(command.version) + credentials


def _write_login_with_token(command: c.LoginWithToken) -> bytes:
    return _client_version(command.version) + writing.text8(command.token) + _NO_CONTEXT


def write_send_target(command: c.SendMessages, count: int) -> bytes:
    """The bytes before the batch of a send: the length and the destination."""
    target = b"".join(
        (
            writing.identifier(command.stream),
            writing.identifier(command.topic),
            writing.partitioning(command.partitioning),
            writing.u32(count),
        )
    )
    return writing.u32(len(target)) + target


def _write_wait(command: c.WaitForMessages) -> bytes:
    return writing.poll(command.poll) + _WAIT.pack(command.wait, command.size_max)


def _write_acknowledged(command: c.StoreConsumerOffset | c.DeleteConsumerOffset) -> bytes:
    place = writing.consumer(command.consumer) + writing.identifier(command.stream) + writing.identifier(command.topic)
    partition = writing.optional_partition(command.partition_id)
    offset = writing.u64(command.offset) if isinstance(command, c.StoreConsumerOffset) else b""
    return place + partition + offset + _ACKNOWLEDGED


def _write_create_topic(command: c.CreateTopic) -> bytes:
    head = writing.identifier(command.stream) + writing.u32(command.partition_count) + writing.text8(command.name)
    return head + write_wanted_options(command.options)


def _write_update_topic(command: c.UpdateTopic) -> bytes:
    head = writing.identifier(command.stream) + writing.identifier(command.topic) + writing.text8(command.name)
    return head + write_wanted_options(command.options)


# --- the tables ---------------------------------------------------------------------------------------

_READ_BY_HAND: dict[type[c.Command], RequestReader] = {
    c.DescribeOptions: _describe_options,
    c.GetConsumerOffset: _get_consumer_offset,
    c.StoreConsumerOffset: _store_consumer_offset,
    c.DeleteConsumerOffset: _delete_consumer_offset,
    c.CreateTopic: _create_topic,
    c.UpdateTopic: _update_topic,
    c.DeletePartitions: _delete_partitions,
    **{kind: _without_options(kind) for kind in (c.CreateStream, c.UpdateStream, c.CreateUser, c.UpdateUser)},
}
_READ_ELSEWHERE = frozenset({c.SendMessages, c.PollMessages, c.LoginUser, c.LoginWithToken, c.LogoutUser})
"""Sends and polls have their own functions; logins share one operation."""

_READERS: dict[type[c.Command], RequestReader] = {
    row.kind: _READ_BY_HAND.get(row.kind) or layout_of(row.kind).read
    for row in c.COMMANDS
    if row.kind not in _READ_ELSEWHERE and row.since < SDK_0_10
}
READERS_OF_OPERATIONS: dict[int, RequestReader] = {
    kind.row.operation: read for kind, read in _READERS.items() if kind.row.operation
}
READERS_OF_CODES: dict[int, RequestReader] = {
    kind.row.code: read for kind, read in _READERS.items() if not kind.row.operation
}
"""Of NON_REPLICATED requests; polls have their own function."""

_WRITTEN_BY_HAND: dict[type[c.Command], RequestWriter] = {
    c.LoginUser: _write_login,
    c.LoginWithToken: _write_login_with_token,
    c.PollMessages: writing.poll,
    c.WaitForMessages: _write_wait,
    c.StoreConsumerOffset: _write_acknowledged,
    c.DeleteConsumerOffset: _write_acknowledged,
    c.CreateTopic: _write_create_topic,
    c.UpdateTopic: _write_update_topic,
}
WRITERS: dict[type[c.Command], RequestWriter] = {
    row.kind: _WRITTEN_BY_HAND.get(row.kind) or layout_of(row.kind).write
    for row in c.COMMANDS
    if row.kind is not c.SendMessages and row.since < SDK_0_10
}
"""For the client: the bodies of all requests except sends."""
