"""Encode the elements that both protocol generations share: the counterpart of ``reading``.

``first_id`` is the number of the first stream, topic, partition, group or user on the other side.
"""

from struct import Struct

from courser.api.commands import PollMessages
from courser.model.identifiers import Consumer, ConsumerKind, Identifier
from courser.model.messaging import Balanced, Partitioning, ToPartition
from courser.model.permissions import Permissions
from courser.wire.reading import ID_MASK

_IDENTIFIER = Struct("<BBI")
_U32 = Struct("<I")

u8 = Struct("<B").pack
u32 = _U32.pack
u64 = Struct("<Q").pack
"""Encoders of numbers, by size in bits."""

_PARTITION = Struct("<BI")
_POLL_END = Struct("<BQI?")
"""kind, value, count, auto_commit"""
_NO_PARTITION = bytes(5)
_NO_PERMISSIONS = bytes(4)


def text8(text: str) -> bytes:
    """A text after its length in one byte.

    Raises:
        ValueError: it has more than 255 bytes.
    """
    data = text.encode()
    return bytes((len(data),)) + data


def text32(text: str) -> bytes:
    """A text after its length in four bytes."""
    data = text.encode()
    return _U32.pack(len(data)) + data


def shifted(identity: int, first_id: int) -> int:
    """An id as the other side numbers it."""
    return (identity + first_id) & ID_MASK


def identifier(value: Identifier, first_id: int = 0) -> bytes:
    """A number or a name."""
    if isinstance(value, str):
        return b"\x02" + text8(value)
    return _IDENTIFIER.pack(1, 4, shifted(value, first_id))


def consumer(value: Consumer, first_id: int = 0) -> bytes:
    """A single consumer or a group; only groups have ids."""
    shift = first_id if value.kind is ConsumerKind.GROUP else 0
    return bytes((value.kind,)) + identifier(value.identifier, shift)


def partitioning(value: Partitioning, first_id: int = 0) -> bytes:
    """How a send chooses its partition."""
    if isinstance(value, Balanced):
        return b"\x01\x00"
    if isinstance(value, ToPartition):
        return _IDENTIFIER.pack(2, 4, shifted(value.partition_id, first_id))
    return bytes((3, len(value.key))) + value.key


def optional_partition(partition_id: int | None) -> bytes:
    """A byte that says whether a partition is named, and four bytes for it in any case (SDK 0.6 and later)."""
    return _NO_PARTITION if partition_id is None else _PARTITION.pack(1, partition_id)


def poll(command: PollMessages) -> bytes:
    """The request of a poll, as SDKs from 0.6 on write it."""
    return b"".join(
        (
            consumer(command.consumer),
            identifier(command.stream),
            identifier(command.topic),
            optional_partition(command.partition_id),
            _POLL_END.pack(command.kind, command.value, command.count, command.auto_commit),
        )
    )


def permissions(value: Permissions, first_id: int = 0) -> bytes:
    """Global permissions, then those of streams and their topics: the bytes that ``Reader.permissions`` reads."""
    everywhere = value.everywhere
    parts = [bytes(getattr(everywhere, field) for field in everywhere.__struct_fields__)]
    for stream_id, stream in sorted(value.streams.items()):
        flags = [getattr(stream, field) for field in stream.__struct_fields__ if field != "topics"]
        parts.append(b"\x01" + _U32.pack(shifted(stream_id, first_id)) + bytes(flags))
        for topic_id, topic in sorted(stream.topics.items()):
            flags = [getattr(topic, field) for field in topic.__struct_fields__]
            parts.append(b"\x01" + _U32.pack(shifted(topic_id, first_id)) + bytes(flags))
        parts.append(b"\x00")
    # A byte before every stream and topic says that it follows; the byte after the last one says that none follows.
    parts.append(b"\x00")
    return b"".join(parts)


def optional_permissions_of_request(value: Permissions | None, first_id: int = 0) -> bytes:
    if value is None:
        return b"\x00"
    data = permissions(value, first_id)
    return b"\x01" + _U32.pack(len(data)) + data


def optional_permissions_of_reply(value: Permissions | None, first_id: int = 0) -> bytes:
    """Permissions in a reply: four bytes if there are none."""
    return _NO_PERMISSIONS if value is None else optional_permissions_of_request(value, first_id)
