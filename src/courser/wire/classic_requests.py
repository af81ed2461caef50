"""Requests of SDKs 0.5 to 0.8, all but sends and polls: payloads to commands.

A frame is ``length u32 | code u32 | payload``; the functions here get whole frames and begin behind the code.
"""

from collections.abc import Callable
from typing import TypeAlias

from courser.api import commands as c
from courser.errors import ErrorCode
from courser.model.identifiers import Consumer, Identifier
from courser.model.topic_options import TopicOptions
from courser.wire.classic_dialect import DialectEvidence
from courser.wire.private_commands import PRIVATE_DECODERS
from courser.wire.reading import Malformed, Reader

HEADER_SIZE = 8
"""Length and code in front of a payload."""

_SNAPSHOT_COMPRESSIONS = frozenset(range(1, 7))
_SNAPSHOT_ALL = 100
_SNAPSHOT_KINDS = frozenset((*range(1, 7), _SNAPSHOT_ALL))
_COMPRESSIONS = frozenset((1, 2))
_TOKEN_NAME_SIZE_MIN, _TOKEN_NAME_SIZE_MAX = 3, 30
"""Bytes, up to 0.8; since 0.9 a token may have any name."""

_ID_SIZE = 4
"""What SDK 0.5 puts in front when it creates something: the id it wants, 0 for any."""
_TOPIC_COMPRESSION_POSITION = 4
_TOPIC_NAME_POSITION = 22
"""Behind the stream of a request that creates a topic."""
_GET_OFFSET_TAIL_SIZE, _STORE_OFFSET_TAIL_SIZE = 4, 12
"""Behind the identifiers, in SDK 0.5."""


# --- layouts that differ ------------------------------------------------------------------------------


def behind_identifiers(frame: memoryview, position: int, count: int) -> int | None:
    """The position behind so many identifiers, whatever they are; None if the frame ends before that."""
    for _ in range(count):
        if position + 2 > len(frame):
            return None
        position += 2 + frame[position + 1]
    return position if position <= len(frame) else None


def _is_name(rest: memoryview, position: int) -> bool:
    """Whether a name begins there and ends where everything ends."""
    return len(rest) > position + 1 and rest[position] == len(rest) - position - 1


def _observe_named(frame: memoryview, position: int | None, evidence: DialectEvidence) -> None:
    """Learn from a request that ends in a name, with or without an id in front of it."""
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
    """Learn from a request that begins with a consumer, a stream and a topic: how much is behind them?"""
    position = behind_identifiers(frame, HEADER_SIZE + 1, 3)
    if position is not None:
        evidence.note_tail(len(frame) - position, from_one=from_one)


def _reader(frame: memoryview, evidence: DialectEvidence) -> Reader:
    return Reader(frame, HEADER_SIZE, first_id=evidence.first_id)


def _wanted_id(reader: Reader, evidence: DialectEvidence) -> int | None:
    """The id that a client chooses for what it creates."""
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


# --- layouts that all share ---------------------------------------------------------------------------


def _topic_options(reader: Reader) -> TopicOptions:
    compression = reader.u8()
    if compression not in _COMPRESSIONS:
        raise Malformed(f"the compression algorithm {compression} does not exist")
    # In all three that follow 0 is "the server's default".
    return TopicOptions(
        compression=compression,
        message_expiry=reader.u64() or None,
        max_topic_size=reader.u64() or None,
        replication_factor=reader.u8() or None,
    )


def _update_topic(reader: Reader) -> c.Command:
    stream, topic, options = reader.identifier(), reader.identifier(), _topic_options(reader)
    return c.UpdateTopic(stream, topic, reader.name(), options, is_patch=False)


def _get_snapshot(reader: Reader) -> c.Command:
    compression = reader.u8()
    kinds = tuple(reader.take(reader.u8()))
    if compression not in _SNAPSHOT_COMPRESSIONS or not _SNAPSHOT_KINDS.issuperset(kinds):
        raise Malformed(f"a snapshot of the kinds {kinds} with the compression {compression} does not exist")
    if _SNAPSHOT_ALL in kinds and len(kinds) > 1:
        raise Malformed("a snapshot of everything has no further kinds")
    return c.GetSnapshot(compression, kinds)


def _update_user(reader: Reader) -> c.Command:
    user = reader.identifier()
    name = reader.name() if reader.is_present() else None
    is_active = reader.is_active() if reader.is_present() else None
    return c.UpdateUser(user, name, is_active)


def _create_token(reader: Reader) -> c.Command:
    name, expiry = reader.name(), reader.u64()
    if not _TOKEN_NAME_SIZE_MIN <= len(name.encode()) <= _TOKEN_NAME_SIZE_MAX:
        bounds = f"{_TOKEN_NAME_SIZE_MIN} to {_TOKEN_NAME_SIZE_MAX}"
        raise Malformed(f"the name of a token has {bounds} bytes", ErrorCode.INVALID_TOKEN_NAME)
    return c.CreateToken(name, expiry)


Layout: TypeAlias = Callable[[Reader], c.Command]

DIALECT_DECODERS: dict[int, Callable[[memoryview, DialectEvidence], c.Command]] = {
    12: _get_cluster_metadata,
    38: _login_user,
    120: _get_consumer_offset,
    121: _store_consumer_offset,
    122: _delete_consumer_offset,
    202: _create_stream,
    302: _create_topic,
    602: _create_consumer_group,
}
"""By code: requests whose layout tells the dialect or depends on it."""

DECODERS: dict[int, Layout] = {
    1: lambda _: c.Ping(),
    10: lambda _: c.GetStats(),
    11: _get_snapshot,
    13: lambda reader: c.DescribeOptions(reader.u8()),
    20: lambda _: c.GetMe(),
    21: lambda reader: c.GetClient(reader.u32()),
    22: lambda _: c.GetClients(),
    31: lambda reader: c.GetUser(reader.identifier()),
    32: lambda _: c.GetUsers(),
    33: lambda reader: c.CreateUser(reader.name(), reader.text8(), reader.is_active(), reader.optional_permissions()),
    34: lambda reader: c.DeleteUser(reader.identifier()),
    35: _update_user,
    36: lambda reader: c.UpdatePermissions(reader.identifier(), reader.optional_permissions()),
    37: lambda reader: c.ChangePassword(reader.identifier(), reader.text8(), reader.text8()),
    39: lambda _: c.LogoutUser(),
    41: lambda _: c.GetTokens(),
    42: _create_token,
    43: lambda reader: c.DeleteToken(reader.name()),
    44: lambda reader: c.LoginWithToken(reader.name()),
    102: lambda reader: c.FlushMessages(reader.identifier(), reader.identifier(), reader.id(), reader.flag()),
    200: lambda reader: c.GetStream(reader.identifier()),
    201: lambda _: c.GetStreams(),
    203: lambda reader: c.DeleteStream(reader.identifier()),
    204: lambda reader: c.UpdateStream(reader.identifier(), reader.name()),
    205: lambda reader: c.PurgeStream(reader.identifier()),
    300: lambda reader: c.GetTopic(reader.identifier(), reader.identifier()),
    301: lambda reader: c.GetTopics(reader.identifier()),
    303: lambda reader: c.DeleteTopic(reader.identifier(), reader.identifier()),
    304: _update_topic,
    305: lambda reader: c.PurgeTopic(reader.identifier(), reader.identifier()),
    402: lambda reader: c.CreatePartitions(reader.identifier(), reader.identifier(), reader.u32()),
    403: lambda reader: c.DeletePartitions(reader.identifier(), reader.identifier(), reader.u32()),
    503: lambda reader: c.DeleteSegments(reader.identifier(), reader.identifier(), reader.id(), reader.u32()),
    600: lambda reader: c.GetConsumerGroup(reader.identifier(), reader.identifier(), reader.identifier()),
    601: lambda reader: c.GetConsumerGroups(reader.identifier(), reader.identifier()),
    603: lambda reader: c.DeleteConsumerGroup(reader.identifier(), reader.identifier(), reader.identifier()),
    604: lambda reader: c.JoinConsumerGroup(reader.identifier(), reader.identifier(), reader.identifier()),
    605: lambda reader: c.LeaveConsumerGroup(reader.identifier(), reader.identifier(), reader.identifier()),
    606: lambda reader: c.SyncConsumerGroup(reader.identifier(), reader.identifier(), reader.identifier()),
}
"""By code: requests that look the same in all dialects, but for the numbering of ids. Arguments are read in order."""


def decode_request(code: int, frame: memoryview, evidence: DialectEvidence) -> c.Command:
    """The command of a request that looks the same in all dialects.

    Raises:
        Malformed: the payload makes no sense, or no command has this code.
    """
    if decoder := DECODERS.get(code):
        return decoder(_reader(frame, evidence))
    if private_decoder := PRIVATE_DECODERS.get(code):
        return private_decoder(Reader(frame, HEADER_SIZE))
    raise Malformed(f"no command has the code {code}")
