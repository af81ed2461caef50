"""Requests of SDKs 0.5 to 0.8, except sends and polls: payloads to commands.

A frame is ``length u32 | code u32 | payload``; the functions here get whole frames and start after the code.
"""

from collections.abc import Callable

from courser.api import commands as c
from courser.api.table import SDK_0_10
from courser.errors import ErrorCode
from courser.model.identifiers import Consumer, Identifier
from courser.model.topic_options import TopicOptions
from courser.wire.classic_dialect import DialectEvidence
from courser.wire.layouts import layout_of
from courser.wire.reading import Malformed, Reader

HEADER_SIZE = 8
"""Length and code before a payload."""

_COMPRESSIONS = frozenset((1, 2))
_TOKEN_NAME_SIZE_MIN, _TOKEN_NAME_SIZE_MAX = 3, 30
"""In bytes, for SDKs up to 0.8; since 0.9 a token may have any name."""

_ID_SIZE = 4
"""The leading id in requests of SDK 0.5 that create something: the requested id, or 0 for any."""
_TOPIC_COMPRESSION_POSITION = 4
_TOPIC_NAME_POSITION = 22
"""After the stream of a request that creates a topic."""
_GET_OFFSET_TAIL_SIZE, _STORE_OFFSET_TAIL_SIZE = 4, 12
"""After the identifiers, in SDK 0.5."""


# --- layouts that differ ------------------------------------------------------------------------------


def behind_identifiers(frame: memoryview, position: int, count: int) -> int | None:
    """The position after ``count`` identifiers of any kind; None if the frame ends before that."""
    for _ in range(count):
        if position + 2 > len(frame):
            return None
        position += 2 + frame[position + 1]
    return position if position <= len(frame) else None


def _is_name(rest: memoryview, position: int) -> bool:
    """Whether a name starts there and ends at the end of the frame."""
    return len(rest) > position + 1 and rest[position] == len(rest) - position - 1


def _observe_named(frame: memoryview, position: int | None, evidence: DialectEvidence) -> None:
    """Learn from a request that ends with a name, with or without an id before it."""
    if position is not None and not evidence.is_numbering_proven:
        rest = frame[position:]
        evidence.note_create(fits_from_one=_is_name(rest, _ID_SIZE), fits_from_zero=_is_name(rest, 0))


def _observe_topic(frame: memoryview, evidence: DialectEvidence) -> None:
    """Learn from a request that creates a topic."""
    position = behind_identifiers(frame, HEADER_SIZE, 1)
    if position is not None and not evidence.is_numbering_proven:
        rest = frame[position:]
        evidence.note_create(
            fits_from_one=_is_topic(rest[_ID_SIZE:]),
            fits_from_zero=_is_topic(rest),
        )


def _is_topic(rest: memoryview) -> bool:
    return _is_name(rest, _TOPIC_NAME_POSITION) and rest[_TOPIC_COMPRESSION_POSITION] in _COMPRESSIONS


def observe_tail(frame: memoryview, evidence: DialectEvidence, *, from_one: int) -> None:
    """Learn from the number of bytes after the consumer, stream and topic of a request."""
    position = behind_identifiers(frame, HEADER_SIZE + 1, 3)
    if position is not None:
        evidence.note_tail(len(frame) - position, from_one=from_one)


def _reader(frame: memoryview, evidence: DialectEvidence) -> Reader:
    return Reader(frame, HEADER_SIZE, first_id=evidence.first_id)


def _wanted_id(reader: Reader, evidence: DialectEvidence) -> int | None:
    """The id that a client chooses for a new stream, topic or group."""
    wanted = reader.u32() if evidence.first_id else 0
    return wanted - evidence.first_id if wanted else None


def _create_stream(frame: memoryview, evidence: DialectEvidence) -> c.Command:
    _observe_named(frame, HEADER_SIZE, evidence)
    reader = _reader(frame, evidence)
    stream_id = _wanted_id(reader, evidence)
    return c.CreateStream(reader.name(), stream_id)


def _create_topic(frame: memoryview, evidence: DialectEvidence) -> c.Command:
    _observe_topic(frame, evidence)
    reader = _reader(frame, evidence)
    stream = reader.identifier()
    topic_id = _wanted_id(reader, evidence)
    partition_count = reader.u32()
    options = _topic_options(reader)
    return c.CreateTopic(stream, reader.name(), partition_count, options, topic_id)


def _create_consumer_group(frame: memoryview, evidence: DialectEvidence) -> c.Command:
    _observe_named(frame, behind_identifiers(frame, HEADER_SIZE, 2), evidence)
    reader = _reader(frame, evidence)
    stream, topic = reader.identifier(), reader.identifier()
    group_id = _wanted_id(reader, evidence)
    return c.CreateConsumerGroup(stream, topic, reader.name(), group_id)


def _get_consumer_offset(frame: memoryview, evidence: DialectEvidence) -> c.Command:
    return c.GetConsumerOffset(*_consumer_place(_reader_of_offset(frame, evidence, _GET_OFFSET_TAIL_SIZE), evidence))


def _delete_consumer_offset(frame: memoryview, evidence: DialectEvidence) -> c.Command:
    return c.DeleteConsumerOffset(*_consumer_place(_reader_of_offset(frame, evidence, _GET_OFFSET_TAIL_SIZE), evidence))


def _store_consumer_offset(frame: memoryview, evidence: DialectEvidence) -> c.Command:
    reader = _reader_of_offset(frame, evidence, _STORE_OFFSET_TAIL_SIZE)
    place = _consumer_place(reader, evidence)
    return c.StoreConsumerOffset(*place, reader.u64())


def _reader_of_offset(frame: memoryview, evidence: DialectEvidence, tail_size: int) -> Reader:
    if not evidence.is_numbering_proven:
        observe_tail(frame, evidence, from_one=tail_size)
    return _reader(frame, evidence)


def _consumer_place(reader: Reader, evidence: DialectEvidence) -> tuple[Consumer, Identifier, Identifier, int | None]:
    consumer, stream, topic = reader.consumer(), reader.identifier(), reader.identifier()
    partition_id = _wanted_id(reader, evidence) if evidence.first_id else reader.optional_partition()
    return consumer, stream, topic, partition_id


def _login_user(frame: memoryview, evidence: DialectEvidence) -> c.Command:
    reader = _reader(frame, evidence)
    command = c.LoginUser(reader.name(), reader.text8(), reader.text32(), reader.text32())
    evidence.note_version(command.version, command.context)
    return command


def _get_cluster_metadata(_frame: memoryview, evidence: DialectEvidence) -> c.Command:
    evidence.note_cluster_metadata()
    return c.GetClusterMetadata()


# --- shared layouts -----------------------------------------------------------------------------------


def _topic_options(reader: Reader) -> TopicOptions:
    compression = reader.u8()
    if compression not in _COMPRESSIONS:
        raise Malformed(f"unknown compression algorithm {compression}")
    # In all three fields that follow, 0 is the server's default.
    return TopicOptions(
        compression=compression,
        message_expiry=reader.u64() or None,
        max_topic_size=reader.u64() or None,
        replication_factor=reader.u8() or None,
    )


def _update_topic(reader: Reader) -> c.Command:
    stream, topic, options = reader.identifier(), reader.identifier(), _topic_options(reader)
    return c.UpdateTopic(stream, topic, reader.name(), options, is_patch=False)


def _create_token(reader: Reader) -> c.Command:
    name, expiry = reader.name(), reader.u64()
    if not _TOKEN_NAME_SIZE_MIN <= len(name.encode()) <= _TOKEN_NAME_SIZE_MAX:
        bounds = f"{_TOKEN_NAME_SIZE_MIN} to {_TOKEN_NAME_SIZE_MAX}"
        raise Malformed(f"the name of a token must have {bounds} bytes", ErrorCode.INVALID_TOKEN_NAME)
    return c.CreateToken(name, expiry)


_DIALECT_DECODERS: dict[type[c.Command], Callable[[memoryview, DialectEvidence], c.Command]] = {
    c.GetClusterMetadata: _get_cluster_metadata,
    c.LoginUser: _login_user,
    c.GetConsumerOffset: _get_consumer_offset,
    c.StoreConsumerOffset: _store_consumer_offset,
    c.DeleteConsumerOffset: _delete_consumer_offset,
    c.CreateStream: _create_stream,
    c.CreateTopic: _create_topic,
    c.CreateConsumerGroup: _create_consumer_group,
}
DIALECT_DECODERS = {kind.row.code: decoder for kind, decoder in _DIALECT_DECODERS.items()}
"""By code: requests whose layout reveals the dialect or depends on it."""

_READ_BY_HAND: dict[type[c.Command], Callable[[Reader], c.Command]] = {
    c.UpdateTopic: _update_topic,
    c.CreateToken: _create_token,
}
_DECODERS: dict[int, tuple[Callable[[Reader], c.Command], bool]] = {
    row.code: (_READ_BY_HAND.get(row.kind) or layout_of(row.kind).read, row.is_private)
    for row in c.COMMANDS
    if row.kind not in _DIALECT_DECODERS and row.kind not in (c.SendMessages, c.PollMessages) and row.since < SDK_0_10
}
"""By code: requests with the same layout in all dialects, and whether their ids always count from 0."""


def decode_request(code: int, frame: memoryview, evidence: DialectEvidence) -> c.Command:
    """The command of a request with the same layout in all dialects.

    Raises:
        Malformed: the payload is invalid, or no command has this code.
    """
    decoder = _DECODERS.get(code)
    if decoder is None:
        raise Malformed(f"unknown command code {code}")
    read, is_private = decoder
    return read(Reader(frame, HEADER_SIZE) if is_private else _reader(frame, evidence))
