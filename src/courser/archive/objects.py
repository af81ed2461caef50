"""The small objects of the archive: seals, catalogs, manifests and roots, as bytes (docs/formats/archive.md).

Each has a header of 256 bytes with checksums, its own key, the cluster, the epoch and the nonce of the process that
wrote it, and a body in MessagePack. Nothing in them belongs to one machine: no path, no host name.

An object is believed only under its own key: the content of another one, however intact, is damage there. An object of
a later version is not damage but ``ArchiveTooNew``: what is older may not take its place.
"""

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated, TypeVar

import msgspec
import xxhash

from courser.archive.errors import ArchiveDamaged, ArchiveTooNew
from courser.archive.keys import ArchiveKeys, number_of_manifest, number_of_root, number_of_seal, op_of_metadata
from courser.records.stored_header import PartitionIdentity
from courser.storage.ledger import SegmentFacts

HEADER_SIZE = 256
_HEADER = struct.Struct(
    "<"
    "16s"  # checksum: XXH3-128 of the rest of the header
    "16s"  # body_checksum: XXH3-128 of the body; of a part of the log, of its directory
    "4s"  # magic
    "H"  # format_version
    "H"  # kind
    "16s"  # cluster
    "I"  # shard, 0
    "I"  # entry_count: of a part of the log; 0 in all others
    "Q"  # epoch
    "Q"  # number
    "16s"  # nonce of the process that wrote it
    "16s"  # parent: checksum of the object before it, or zero
    "Q"  # time in microseconds
    "Q"  # op of the catalog
    "Q"  # body_size
    "16s"  # key_digest: XXH3-128 of the key; 0 in objects of the first form
    "104x"
)
assert _HEADER.size == HEADER_SIZE
_MAGIC = b"CRSW"
_VERSION = 1
_CHECKSUM_SIZE = 16
NO_PARENT = bytes(16)
_NO_KEY = bytes(16)

_WORD = "[A-Za-z0-9_-][A-Za-z0-9._-]*"
RelativeKey = Annotated[str, msgspec.Meta(pattern=rf"\A({_WORD}(/{_WORD})*)?\Z")]
"""A key without the prefix of the cluster, or nothing. In a directory, keys are paths: none leads out of it."""


class ObjectKind(IntEnum):
    """What an object is."""

    LOG = 1
    """Entries of the replicated log (``replication/log_objects``)."""
    SEAL = 2
    MANIFEST = 3
    ROOT = 4
    METADATA = 5
    CLUSTER = 6
    BEGIN = 7
    """The first object of an epoch of the log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Who wrote an object, and when."""

    cluster: bytes
    epoch: int
    nonce: bytes
    number: int = 0
    time: int = 0
    op: int = 0


class Seal(msgspec.Struct, array_like=True, frozen=True):
    """Ends an epoch. Who creates it has the next one."""

    reason: str
    version: str
    sealed_slot: int = 0
    """In slot 0, where an epoch ends before it has begun: the slot of the seal of the epoch before."""


class Begin(msgspec.Struct, array_like=True, frozen=True):
    """Slot 0 of an epoch with a log: says which seal of the epoch before is the true one."""

    sealed_slot: int
    version: str
    fingerprint: bytes
    """Of what a server must have in common with the writer in order to lead."""


class Piece(msgspec.Struct, array_like=True, frozen=True, kw_only=True):
    """An object with batches: a sealed segment, or a part of one that was still written."""

    base_offset: int
    """The first offset of the segment."""
    first_offset: int
    end_offset: int
    position: int
    """Where its bytes are in the segment."""
    size: int
    key: RelativeKey
    digest: bytes
    """XXH3-128 of its bytes."""
    first_timestamp: int
    """A lower bound, in a part that does not begin its segment."""
    last_timestamp: int
    message_count: int
    batch_count: int
    is_whole: bool
    """Whether it is a sealed segment."""
    index_key: RelativeKey = ""
    """Empty: its index is not archived."""
    index_size: int = 0
    index_digest: bytes = b""

    def has_position(self, position: int) -> bool:
        """Whether it has the byte at a position of the segment."""
        return self.position <= position < self.position + self.size

    def is_copy_of(self, facts: SegmentFacts) -> bool:
        """Whether it is this segment, as far as its numbers show."""
        numbers = (self.base_offset, self.end_offset, self.size, self.message_count)
        return self.is_whole and numbers == (facts.base_offset, facts.end_offset, facts.size, facts.message_count)


class Manifest(msgspec.Struct, array_like=True, frozen=True):
    """The objects that are a partition's log: complete, not a difference to the manifest before."""

    topic_uuid: bytes
    partition_id: int
    incarnation: int
    purge_count: int
    pieces: tuple[Piece, ...]
    """In the order of their offsets."""
    gaps: tuple[tuple[int, int, bool], ...] = ()
    """Offsets without messages: first, end, whether messages were lost."""
    damages: tuple[tuple[int, int, int, int, int], ...] = ()
    """Segment, position, end position, first offset, end offset."""
    corrections: tuple[tuple[int, int], ...] = ()
    """Segment, and microseconds to add to the times of its messages."""
    retired: tuple[RelativeKey, ...] = ()
    """Objects with the offsets of a piece, but older bytes: no later manifest names them again."""

    @property
    def identity(self) -> PartitionIdentity:
        return PartitionIdentity(self.topic_uuid, self.partition_id, self.incarnation)


class PartitionRoot(msgspec.Struct, array_like=True, frozen=True, kw_only=True):
    """What a root says about a partition."""

    topic_uuid: bytes
    partition_id: int
    incarnation: int
    manifest_key: RelativeKey
    """Empty: nothing of it is archived."""
    start_offset: int
    """Of the messages that the server still had."""
    next_offset: int
    reserved_end: int
    last_timestamp: int
    purge_count: int
    offsets: tuple[tuple[int, bytes, int], ...]
    """Stored offsets: kind and identifier of the consumer, offset."""
    manifest_checksum: bytes = b""
    """See ``checksum_of``; empty in roots of the first form."""

    @property
    def identity(self) -> PartitionIdentity:
        return PartitionIdentity(self.topic_uuid, self.partition_id, self.incarnation)


class Root(msgspec.Struct, array_like=True, frozen=True, kw_only=True):
    """What one run of the archiver leaves: all that a restore needs begins here."""

    time: int
    is_final: bool
    """Whether the server stopped cleanly, and everything that it had confirmed is in the archive."""
    metadata_key: RelativeKey
    partitions: tuple[PartitionRoot, ...]
    metadata_checksum: bytes = b""
    """See ``checksum_of``; empty in roots of the first form."""


Body = TypeVar("Body", Seal, Begin, Manifest, Root)
_KINDS: dict[type, ObjectKind] = {
    Seal: ObjectKind.SEAL,
    Begin: ObjectKind.BEGIN,
    Manifest: ObjectKind.MANIFEST,
    Root: ObjectKind.ROOT,
}
_encode = msgspec.msgpack.Encoder().encode


def encode_object(kind: ObjectKind, key: str, origin: Origin, body: bytes, parent: bytes = NO_PARENT) -> bytes:
    """The bytes of an object. ``key`` is its whole key."""
    return encode_header(kind, key, origin, body, body_size=len(body), parent=parent) + body


def encode_header(
    kind: ObjectKind,
    key: str,
    origin: Origin,
    proof: bytes,
    *,
    body_size: int,
    entry_count: int = 0,
    parent: bytes = NO_PARENT,
) -> bytes:
    """The header of an object. ``proof`` is the part of its body that proves the rest, or all of it."""
    rest = _HEADER.pack(
        bytes(_CHECKSUM_SIZE),
        xxhash.xxh3_128_digest(proof),
        _MAGIC,
        _VERSION,
        kind,
        origin.cluster,
        0,
        entry_count,
        origin.epoch,
        origin.number,
        origin.nonce,
        parent,
        origin.time,
        origin.op,
        body_size,
        _digest_of(key),
    )[_CHECKSUM_SIZE:]
    return xxhash.xxh3_128_digest(rest) + rest


def encode_body(body: Seal | Begin | Manifest | Root, key: str, origin: Origin, parent: bytes = NO_PARENT) -> bytes:
    """The bytes of an object with such a body."""
    return encode_object(_KINDS[type(body)], key, origin, _encode(body), parent)


def checksum_of(data: bytes) -> bytes:
    """What who names an object says about it: the checksum of its header, which has the checksum of its body."""
    return data[:_CHECKSUM_SIZE]


@dataclass(frozen=True, slots=True)
class Header:
    """What the header of an object says."""

    kind: ObjectKind
    origin: Origin
    body_size: int
    body_checksum: bytes
    entry_count: int
    parent: bytes


def decode_header(data: bytes, key: str, *kinds: ObjectKind) -> Header:
    """Check the header of an object of one of these kinds. ``key`` is the whole key that it was read from.

    Raises:
        ArchiveDamaged: it is not what was stored there.
        ArchiveTooNew: a later version wrote it.
    """
    if len(data) < HEADER_SIZE:
        raise ArchiveDamaged(key, f"{len(data)} bytes are too few for a header")
    fields = _HEADER.unpack_from(data)
    checksum, body_checksum, magic, version, found, cluster, _, count, epoch, number, nonce, parent, *rest = fields
    time, op, size, named = rest
    if magic != _MAGIC or xxhash.xxh3_128_digest(memoryview(data)[_CHECKSUM_SIZE:HEADER_SIZE]) != checksum:
        raise ArchiveDamaged(key, "the checksum of the header does not match")
    if version != _VERSION:
        raise ArchiveTooNew(key, f"format {version}", f"format {_VERSION}")
    if found not in list(ObjectKind):
        raise ArchiveTooNew(key, f"an object of kind {found}", f"kinds {min(ObjectKind)} to {max(ObjectKind)}")
    origin = Origin(cluster=cluster, epoch=epoch, nonce=nonce, number=number, time=time, op=op)
    kind = ObjectKind(found)
    is_own = named == _digest_of(key) if named != _NO_KEY else _is_of(kind, key, origin)
    if kind not in kinds or not is_own:
        raise ArchiveDamaged(key, f"it has the content of another object ({kind.name.lower()})")
    return Header(kind, origin, size, body_checksum, count, parent)


def decode_object(data: bytes, key: str, kind: ObjectKind) -> tuple[Origin, bytes]:
    """Take an object apart and check it. Raises as ``decode_header`` does."""
    header, body = decode_header(data, key, kind), data[HEADER_SIZE:]
    if len(body) != header.body_size or xxhash.xxh3_128_digest(body) != header.body_checksum:
        raise ArchiveDamaged(key, "the checksum of the body does not match")
    return header.origin, body


def _digest_of(key: str) -> bytes:
    return xxhash.xxh3_128_digest(key.encode())


def _is_of(kind: ObjectKind, key: str, origin: Origin) -> bool:
    """Whether an object of the first form, which does not say which key it has, has the numbers in a key."""
    if not key.startswith(ArchiveKeys(origin.cluster).base):
        return False
    match kind:
        case ObjectKind.SEAL:
            return number_of_seal(key) == (origin.epoch, 0)
        case ObjectKind.MANIFEST:
            return number_of_manifest(key) == (origin.epoch, origin.number)
        case ObjectKind.ROOT:
            return number_of_root(key) == (origin.epoch, origin.number)
        case ObjectKind.METADATA:
            return op_of_metadata(key) == (origin.op, origin.epoch)
        case ObjectKind.CLUSTER:
            return True
        case ObjectKind.LOG | ObjectKind.BEGIN:
            return False


def decode_body(data: bytes, key: str, kind: type[Body]) -> tuple[Origin, Body]:
    """Take an object with a body of this type apart. Raises as ``decode_header`` does."""
    origin, body = decode_object(data, key, _KINDS[kind])
    try:
        return origin, msgspec.msgpack.decode(body, type=kind)
    except msgspec.MsgspecError as error:
        raise ArchiveDamaged(key, str(error)) from error
