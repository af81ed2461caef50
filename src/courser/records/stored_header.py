"""The header of a batch on disk: stamp it, check it, clear it for the wire.

The extension after the wire fields contains what the file system cannot tell: the partition of the batch, how its body
is stored, and two hashes. ``header_checksum`` covers every other byte of the header, ``body_hash`` every byte of the
stored body, so every flipped bit is detected. Both are checked on every read.
"""

from dataclasses import dataclass
from typing import NamedTuple

from courser.errors import InvalidBatch
from courser.model.buffers import Buffer
from courser.records import layout
from courser.records.batch import Batch, wire_header
from courser.records.checksum import xxh3
from courser.records.frame_walk import stamp_header
from courser.records.frame_walk_pure import batch_checksum
from courser.records.frames import FrameLayout, survey_frames, uniform_layout
from courser.records.layout import ProducerKind
from courser.records.producers import BatchProducer, stored_producer

NO_PRODUCER = bytes(16)


class BadBatch(Exception):
    """Bytes that are not a valid stored batch. The caller knows their position."""


@dataclass(frozen=True, slots=True)
class PartitionIdentity:
    """The partition of a batch. A batch with another identity was written to the wrong place."""

    topic_uuid: bytes
    partition_id: int
    incarnation: int
    """The journal op that created the partition: ids are reused after a deletion, this number is not."""

    def __str__(self) -> str:
        """As logs, error messages and tools spell it: ``<topic uuid>:<partition>-<incarnation>``."""
        return f"{self.topic_uuid.hex()}:{self.partition_id}-{self.incarnation}"


class StoredHeader(NamedTuple):
    """The fields of ``layout.STORED_HEADER``, in order."""

    partition_id: int
    base_offset: int
    base_timestamp: int
    origin_timestamp: int
    batch_length: int
    batch_checksum: int
    message_count: int
    magic: bytes
    format_version: int
    codec: int
    flags: int
    frame_size: int
    encryption_key_id: int
    removed_count: int
    stored_length: int
    topic_uuid: bytes
    incarnation: int
    producer: bytes
    sequence: int
    producer_kind: int
    body_hash: int
    header_checksum: int

    @property
    def end_offset(self) -> int:
        """The offset after the last message."""
        return self.base_offset + self.message_count

    @property
    def previous_end_offset(self) -> int:
        """Where the previous batch ended. Messages between it and this one were removed by ``condensing``."""
        return self.base_offset - self.removed_count

    @property
    def batch_producer(self) -> BatchProducer | None:
        """The idempotent producer that sent the batch, if any."""
        return stored_producer(self.producer_kind, self.producer, self.sequence)


_NO_CODEC = int(layout.Compression.NONE)
_CODECS = frozenset(map(int, layout.Compression))
_unpack_from = layout.STORED_HEADER.unpack_from
_new_header = tuple.__new__
"""``StoredHeader._make`` without its overhead: one is created per batch that is read."""


def blank_header(
    identity: PartitionIdentity, producer: bytes = NO_PRODUCER, sequence: int = 0, removed_count: int = 0
) -> bytes:
    """The fields that all headers of a partition's batches share; all other bytes are zero.

    ``producer`` and ``sequence`` are those of a publish.
    """
    owner = identity.topic_uuid, identity.incarnation
    encoding = layout.MAGIC, layout.FORMAT_VERSION, _NO_CODEC, 0, 0, 0
    extension = *encoding, removed_count, 0, *owner, producer, sequence, ProducerKind.PUBLISH, 0, 0
    return layout.STORED_HEADER.pack(identity.partition_id, 0, 0, 0, 0, 0, 0, *extension)


def stamp(batch: Batch, blank: bytes, base_offset: int, base_timestamp: int) -> bytearray:
    """The 256 bytes before ``batch.body`` on disk, from the ``blank_header`` of its partition."""
    return stamp_header(
        blank,
        batch.checksums,
        batch.body,
        base_offset,
        base_timestamp,
        batch.origin_timestamp,
        batch.count,
        batch.frames.frame_size,
    )


def with_removed_count(stored_header: Buffer, removed_count: int) -> bytearray:
    """A stored header, not of an encrypted batch, that says how many messages were removed before its batch."""
    header = bytearray(stored_header)
    header[layout.REMOVED_COUNT_POSITION : layout.STORED_LENGTH_POSITION] = removed_count.to_bytes(4, "little")
    header[layout.HEADER_CHECKSUM_POSITION :] = xxh3(header[: layout.HEADER_CHECKSUM_POSITION]).to_bytes(8, "little")
    return header


def read_header(data: memoryview, position: int, identity: PartitionIdentity) -> StoredHeader:
    """Decode the header at ``position``. Raises ``BadBatch``: not a header, damaged, or of another partition."""
    fields = _unpack_from(data, position)
    # fmt: off
    (partition_id, _, _, _, batch_length, _, count,
     magic, version, codec, flags, _, key_id, _, stored_length, topic_uuid, incarnation, _, _, _, _, checksum) = fields
    # fmt: on
    if magic != layout.MAGIC:
        raise BadBatch("no batch starts here")
    if xxh3(data[position : position + layout.HEADER_CHECKSUM_POSITION]) != checksum:
        raise BadBatch("the header checksum does not match")
    if version != layout.FORMAT_VERSION:
        raise BadBatch(f"batch format {version} is not supported, only {layout.FORMAT_VERSION}")
    if (
        topic_uuid != identity.topic_uuid
        or partition_id != identity.partition_id
        or incarnation != identity.incarnation
    ):
        raise BadBatch(f"the batch belongs to partition {PartitionIdentity(topic_uuid, partition_id, incarnation)}")
    # The checksum proves that the bytes are unchanged, not that they are valid: check the lengths.
    if not layout.BATCH_HEADER_SIZE < stored_length <= layout.STORED_SIZE_MAX or count < 1:
        raise BadBatch(f"a batch cannot have {stored_length} bytes and {count} messages")
    if flags:
        _check_encoding(flags, codec, key_id, batch_length, count)
    elif codec or key_id or stored_length != batch_length:
        raise BadBatch(f"the body should not be encoded, but has codec {codec} and key {key_id}")
    return _new_header(StoredHeader, fields)


def _check_encoding(flags: int, codec: int, key_id: int, batch_length: int, count: int) -> None:
    """Check what is said of a body that is compressed or encrypted. The lengths bound what decoding may produce."""
    if flags != layout.ENCODED or codec not in _CODECS or not (codec or key_id):
        raise BadBatch(f"this version does not support codec {codec} with flags {flags}")
    if not layout.BATCH_HEADER_SIZE + count * layout.FRAME_HEADER_SIZE <= batch_length <= layout.BATCH_SIZE_MAX:
        raise BadBatch(f"{count} messages cannot have {batch_length} bytes")


def check_body(header: StoredHeader, body: Buffer) -> None:
    """Raise ``BadBatch`` if the stored body does not match its hash."""
    if xxh3(body) != header.body_hash:
        raise BadBatch("the body hash does not match")


def stored_frames(header: StoredHeader, body: memoryview) -> FrameLayout:
    """Where the index finds something in a body that passed ``check_body``: its frames; encoded, only all of it.

    Raises ``BadBatch`` as ``frames_of`` does.
    """
    return uniform_layout(1, len(body)) if header.flags else frames_of(header, body)


def frames_of(header: StoredHeader, body: memoryview) -> FrameLayout:
    """Where the frames of a body start that passed ``check_body``, or was decoded.

    Raises:
        BadBatch: the frames contradict the header, although the hash is right: it was written this way.
    """
    try:
        frames, _, _, is_numbered = survey_frames(body, header.message_count)
    except InvalidBatch as error:
        raise BadBatch(error.reason) from error
    if frames.frame_size != header.frame_size and header.frame_size:
        raise BadBatch(f"the frames do not have {header.frame_size} bytes each")
    if not is_numbered:
        raise BadBatch("the offsets in the batch are not consecutive")
    return frames


def blank_extension(data: memoryview, position: int) -> None:
    """Convert a stored header to a wire header, in place."""
    start = position + layout.EXTENSION_POSITION
    data[start : position + layout.BATCH_HEADER_SIZE] = layout.NO_EXTENSION


def trimmed_header(header: StoredHeader, body: memoryview, count: int) -> bytearray:
    """The wire header for ``count`` frames of the batch; ``body`` is exactly those frames.

    The base offset is unchanged: the first remaining frame has its own delta.
    """
    return wire_header(
        header.partition_id,
        header.base_offset,
        header.base_timestamp,
        header.origin_timestamp,
        layout.BATCH_HEADER_SIZE + len(body),
        count,
        survey_frames(body, count)[1],
    )


def has_valid_batch_checksum(data: memoryview, header: StoredHeader, checksums: bytes) -> bool:
    """Whether the wire checksum of a whole batch is right: for ``verify``; reads check the stored hashes instead."""
    return batch_checksum(data, checksums) == header.batch_checksum
