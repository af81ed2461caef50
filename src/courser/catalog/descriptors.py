"""Descriptors: a stream's or topic's metadata next to its data, so that it can be rebuilt without the journal.

A descriptor is a small file in the directory of each stream and topic (``docs/formats/descriptor.md``). It is derived
from the state and replaced whenever that part of the state changes. A start compares it with the state (``reconcile``),
``rebuild`` reads it, and a deletion checks the UUID in it.
"""

import struct
from contextlib import closing
from pathlib import Path

import msgspec
import xxhash

from courser.catalog.entities import Stream, Topic, UsedIds, topic_as_written
from courser.errors import DamagedData
from courser.storage.files import FileSystem, read_exactly
from courser.storage.paths import DESCRIPTOR

_HEADER = struct.Struct(
    "<"
    "16s"  # checksum: XXH3-128 of the rest of the file
    "4s"  # magic
    "H"  # format_version
    "H"  # kind: 1 stream, 2 topic
    "I"  # body_size
    "4x"
)
_MAGIC = b"CRSD"
_VERSION = 1
_CHECKSUM_SIZE = 16
_SIZE_MAX = 64 * 1024 * 1024
"""In bytes; enough for a topic with a million partitions."""


class StreamDescriptor(msgspec.Struct, array_like=True):
    """A stream without its topics, which have their own descriptors."""

    stream_id: int
    uuid: bytes
    name: str
    created_at: int
    topic_ids: UsedIds


class TopicDescriptor(msgspec.Struct, array_like=True):
    """A topic, with its groups and partitions."""

    stream_id: int
    stream_uuid: bytes
    topic: Topic


_KINDS: dict[type, int] = {StreamDescriptor: 1, TopicDescriptor: 2}
_encode = msgspec.msgpack.Encoder().encode
_stream_decoder = msgspec.msgpack.Decoder(StreamDescriptor)
_topic_decoder = msgspec.msgpack.Decoder(TopicDescriptor)


def descriptor_of(stream: Stream, topic: Topic | None = None) -> StreamDescriptor | TopicDescriptor:
    """The descriptor of a topic, or of the stream itself."""
    if topic is not None:
        return TopicDescriptor(stream.stream_id, stream.uuid, topic)
    return StreamDescriptor(stream.stream_id, stream.uuid, stream.name, stream.created_at, stream.topic_ids)


def encode_descriptor(descriptor: StreamDescriptor | TopicDescriptor) -> bytes:
    written: msgspec.Struct = descriptor
    if isinstance(descriptor, TopicDescriptor):
        written = msgspec.structs.replace(descriptor, topic=topic_as_written(descriptor.topic))
    body = _encode(written)
    rest = _HEADER.pack(bytes(_CHECKSUM_SIZE), _MAGIC, _VERSION, _KINDS[type(descriptor)], len(body))[_CHECKSUM_SIZE:]
    return b"".join((xxhash.xxh3_128_digest(rest + body), rest, body))


def decode_descriptor(data: bytes, path: Path) -> StreamDescriptor | TopicDescriptor:
    """Decode a descriptor file. Raises ``DamagedData``."""
    if len(data) < _HEADER.size:
        raise DamagedData(path, 0, f"{len(data)} bytes are too few for a descriptor")
    checksum, magic, version, kind, body_size = _HEADER.unpack_from(data)
    is_known = magic == _MAGIC and version == _VERSION and kind in _KINDS.values()
    if not is_known or len(data) != _HEADER.size + body_size:
        raise DamagedData(path, 0, "its format is not supported by this version")
    if xxhash.xxh3_128_digest(data[_CHECKSUM_SIZE:]) != checksum:
        raise DamagedData(path, 0, "the checksum does not match")
    decoder: msgspec.msgpack.Decoder[StreamDescriptor] | msgspec.msgpack.Decoder[TopicDescriptor]
    decoder = _stream_decoder if kind == _KINDS[StreamDescriptor] else _topic_decoder
    try:
        return decoder.decode(data[_HEADER.size :])
    except msgspec.MsgspecError as error:
        raise DamagedData(path, _HEADER.size, str(error)) from error


def read_descriptor(file_system: FileSystem, directory: Path) -> StreamDescriptor | TopicDescriptor | None:
    """The descriptor of a directory, or None if it has none. Raises ``DamagedData``."""
    path = directory / DESCRIPTOR
    try:
        file = file_system.open(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    with closing(file):
        data = read_exactly(file, 0, min(file.size(), _SIZE_MAX))
    return decode_descriptor(bytes(data or b""), path)
