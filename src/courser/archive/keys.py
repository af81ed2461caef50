"""The keys of objects: the only place where one is put together or taken apart (docs/formats/archive.md).

Every key that is written contains the epoch of its writer, and either a number that only one writer can take or a
nonce. So no key is ever written twice.
"""

from dataclasses import dataclass

from xxhash import xxh3_64_hexdigest

from courser.records.stored_header import PartitionIdentity
from courser.storage.paths import INDEX_SUFFIX, LOG_SUFFIX

VERSION = "v1"
_UUID_DIGITS = 32


@dataclass(frozen=True, slots=True)
class SegmentName:
    """The last part of the key of a segment, or of a piece of one."""

    first_offset: int
    end_offset: int
    epoch: int
    nonce: str
    suffix: str


@dataclass(frozen=True, slots=True)
class ArchiveKeys:
    """The keys of one cluster. A cluster is what one server, or several, write to one archive."""

    cluster: bytes

    @property
    def base(self) -> str:
        """The prefix of all keys."""
        return f"{VERSION}/{self.cluster.hex()}/"

    @property
    def marker(self) -> str:
        """The object that says that there is such a cluster."""
        return f"{self.base}cluster"

    def probe(self, nonce: str) -> str:
        """An object that exists only for a moment."""
        return f"{self.base}probe/{nonce}"

    @property
    def seals(self) -> str:
        """The prefix of all seals, and of the log."""
        return f"{self.base}s/0000/wal/"

    def seal(self, epoch: int) -> str:
        """The object that ends an epoch without a log: its creator has the next one."""
        return self.slot(epoch, 0)

    def log(self, epoch: int) -> str:
        """The prefix of the log of an epoch."""
        return f"{self.seals}{epoch:08x}/"

    def slot(self, epoch: int, slot: int) -> str:
        """An object of the log; the last one of an epoch is its seal."""
        return f"{self.log(epoch)}{slot:012x}"

    @property
    def roots(self) -> str:
        """The prefix of all roots."""
        return f"{self.base}root/"

    def root(self, epoch: int, number: int) -> str:
        """What one run of the archiver leaves."""
        return f"{self.roots}{epoch:08x}/{number:012x}"

    def metadata(self, op: int, epoch: int, nonce: str) -> str:
        """The catalog after a change."""
        return f"{self.base}meta/{op:016x}-{epoch:08x}-{nonce}"

    @property
    def metadata_prefix(self) -> str:
        """The prefix of all catalogs."""
        return f"{self.base}meta/"

    def manifests(self, identity: PartitionIdentity) -> str:
        """The prefix of the manifests of a partition."""
        return f"{self.base}man/{_partition(identity)}/"

    def manifest(self, identity: PartitionIdentity, epoch: int, number: int) -> str:
        """A list of the objects that are a partition's log."""
        return f"{self.manifests(identity)}{epoch:08x}-{number:012x}"

    @property
    def all_manifests(self) -> str:
        """The prefix of the manifests of all partitions."""
        return f"{self.base}man/"

    def segments(self, identity: PartitionIdentity) -> str:
        """The prefix of the segments of a partition."""
        return f"{self.base}seg/{_partition(identity)}/"

    @property
    def all_segments(self) -> str:
        """The prefix of the segments of all partitions."""
        return f"{self.base}seg/"

    def segment(
        self, identity: PartitionIdentity, first_offset: int, end_offset: int, epoch: int, nonce: str, suffix: str
    ) -> str:
        """A segment, a piece of one, or an index."""
        return f"{self.segments(identity)}{first_offset:020d}-{end_offset:020d}-{epoch:08x}-{nonce}{suffix}"


class Nonces:
    """What makes the keys and objects of one process its own."""

    def __init__(self, own: bytes) -> None:
        self.own = own
        """16 random bytes: no other process has them."""
        self._count = 0

    def new(self) -> str:
        """One for a key, different from all others."""
        self._count += 1
        return xxh3_64_hexdigest(self.own + self._count.to_bytes(8, "little"))


def _partition(identity: PartitionIdentity) -> str:
    return f"{identity.topic_uuid.hex()}/{identity.partition_id}-{identity.incarnation}"


def segment_name(key: str) -> SegmentName | None:
    """Take the last part of a segment's key apart; None if it is another key."""
    name = key.rpartition("/")[2]
    stem, dot, suffix = name.partition(".")
    parts = stem.split("-")
    if len(parts) != 4 or dot + suffix not in (LOG_SUFFIX, INDEX_SUFFIX):
        return None
    first, end, epoch, nonce = parts
    if not (first.isdigit() and end.isdigit() and _is_hex(epoch)):
        return None
    return SegmentName(int(first), int(end), int(epoch, 16), nonce, dot + suffix)


def number_of_seal(key: str) -> tuple[int, int] | None:
    """The epoch and the slot of a seal, or of another object of the log."""
    return _two_numbers(key.split("/")[-2:])


def number_of_root(key: str) -> tuple[int, int] | None:
    """Epoch and number of a root."""
    return _two_numbers(key.split("/")[-2:])


def number_of_manifest(key: str) -> tuple[int, int] | None:
    """Epoch and number of a manifest."""
    return _two_numbers(key.rpartition("/")[2].split("-"))


def op_of_metadata(key: str) -> tuple[int, int] | None:
    """The op of a catalog, and the epoch of its writer."""
    parts = key.rpartition("/")[2].split("-")
    return _two_numbers(parts[:2]) if len(parts) == 3 else None


def cluster_of(name: str) -> bytes | None:
    """The cluster that a directory below the version belongs to."""
    return bytes.fromhex(name) if len(name) == _UUID_DIGITS and _is_hex(name) else None


def _two_numbers(parts: list[str]) -> tuple[int, int] | None:
    return (int(parts[0], 16), int(parts[1], 16)) if len(parts) == 2 and all(map(_is_hex, parts)) else None


def _is_hex(text: str) -> bool:
    return bool(text) and all(digit in "0123456789abcdef" for digit in text)
