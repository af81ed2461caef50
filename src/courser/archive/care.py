"""Looks after an archive: checks every object, and removes what nothing needs.

Both work beside a running server. An object is removed only if the server can never need it: it is named by no root
that is kept, and either replaced by another object, or purged, or its topic is deleted. Roots go first, so that no root
ever names an object that is gone.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from functools import partial

from courser.archive.errors import ArchiveDamaged, ArchiveFailure, ObjectMissing
from courser.archive.keys import SegmentName, number_of_root, op_of_metadata, segment_name
from courser.archive.objects import Manifest, PartitionRoot
from courser.archive.reader import ArchiveReader, FoundRoot
from courser.archive.transfers import hash_object

_PART_SIZE = 16 * 1024 * 1024


class FindingKind(Enum):
    """What is wrong with an object."""

    MISSING = "missing"
    WRONG_SIZE = "wrong size"
    DAMAGED = "damaged"


@dataclass(frozen=True, slots=True)
class ArchiveFinding:
    """An object that is not as it should be."""

    key: str
    kind: FindingKind
    reason: str


def newest_intact_root(reader: ArchiveReader) -> tuple[FoundRoot | None, list[ArchiveFinding]]:
    """The newest intact root, and what is wrong with those after it. Raises ``ArchiveFailure``."""
    damaged: list[ArchiveFailure] = []
    found = next(reader.roots_backwards(damaged=damaged), None)
    base = reader.keys.base
    return found, [ArchiveFinding(one.key.removeprefix(base), FindingKind.DAMAGED, one.reason) for one in damaged]


@dataclass(slots=True)
class Verification:
    """Checks all that a root names. ``findings`` does the work; the counts are final after it."""

    reader: ArchiveReader
    root: FoundRoot
    reads_bytes: bool
    """Whether to read all bytes; otherwise only sizes are compared."""
    on_progress: Callable[[int], None] = lambda _: None
    """Told the size of each object that was checked."""
    object_count: int = 0
    size: int = 0
    _found: list[ArchiveFinding] | None = None
    """What is wrong with the metadata and the manifests; None before ``begin``."""
    _manifests: list[Manifest] = field(default_factory=list)

    def begin(self) -> int:
        """Check the metadata and the manifests. Returns how many bytes of segments they name.

        Raises:
            ArchiveFailure: the store does not answer.
        """
        root = self.root.root
        self._found = []
        if root.metadata_key:
            self._found += self._judge(root.metadata_key, lambda: self.reader.snapshot(root))
        for partition in root.partitions:
            if partition.manifest_key:
                self._found += self._judge(partition.manifest_key, partial(self._read_manifest, partition))
        pieces = (piece for manifest in self._manifests for piece in manifest.pieces)
        return sum(piece.size + piece.index_size for piece in pieces)

    def _read_manifest(self, partition: PartitionRoot) -> None:
        self._manifests.append(self.reader.manifest(partition))

    def findings(self) -> Iterator[ArchiveFinding]:
        """Check every object. Raises ``ArchiveFailure`` if the store does not answer."""
        if self._found is None:
            self.begin()
        yield from self._found or ()
        for manifest in self._manifests:
            for piece in manifest.pieces:
                yield from self._check_bytes(piece.key, piece.size, piece.digest)
                if piece.index_key:
                    yield from self._check_bytes(piece.index_key, piece.index_size, piece.index_digest)

    def _check_bytes(self, key: str, size: int, digest: bytes) -> Iterator[ArchiveFinding]:
        self.object_count += 1
        self.size += size
        store, whole = self.reader.store, self.reader.keys.base + key
        found = store.find(whole)
        if found is None:
            yield ArchiveFinding(key, FindingKind.MISSING, "there is no such object")
        elif found.size != size:
            yield ArchiveFinding(key, FindingKind.WRONG_SIZE, f"it has {found.size} bytes instead of {size}")
        elif self.reads_bytes and hash_object(store, whole, size, _PART_SIZE) != digest:
            yield ArchiveFinding(key, FindingKind.DAMAGED, "its bytes are not what was archived")
        self.on_progress(size)

    def _judge(self, key: str, check: Callable[[], object]) -> Iterator[ArchiveFinding]:
        self.object_count += 1
        try:
            check()
        except ObjectMissing:
            yield ArchiveFinding(key, FindingKind.MISSING, "there is no such object")
        except ArchiveDamaged as damage:
            yield ArchiveFinding(key, FindingKind.DAMAGED, damage.reason)


# --- removing ---


@dataclass(frozen=True, slots=True)
class Removal:
    """An object that nothing needs."""

    key: str
    size: int


def plan_removals(reader: ArchiveReader, since: int) -> list[Removal]:
    """What to remove so that restores to times from ``since`` on stay possible, in the order of removal.

    Raises:
        ArchiveFailure: the store does not answer, or a root to keep, or a manifest of one, is damaged: then nothing
            may be removed.
    """
    newest = reader.newest_root()
    if newest is None:
        return []
    kept, first = [newest], (0, 0)
    for found in reader.listed_backwards():
        kept.append(found)
        if found.root.time <= since:
            # It has the metadata as of that time. Those before it go unread: a damaged one keeps nothing.
            first = found.place
            break
    named = _names_of(reader, kept)
    return [*_old_roots(reader, first, newest), *_Unnamed(reader, newest, named).find()]


def _names_of(reader: ArchiveReader, roots: list[FoundRoot]) -> set[str]:
    names: set[str] = set()
    seen: set[str] = set()
    for found in roots:
        names.add(found.root.metadata_key)
        for partition in found.root.partitions:
            key = partition.manifest_key
            if key and key not in seen:
                seen.add(key)
                names.add(key)
                for piece in reader.manifest(partition).pieces:
                    names.update((piece.key, piece.index_key))
    return names


def _old_roots(reader: ArchiveReader, first: tuple[int, int], newest: FoundRoot) -> Iterator[Removal]:
    for stored in reader.store.list_objects(reader.keys.roots):
        place = number_of_root(stored.key)
        if place is not None and place < first and place < (newest.epoch, newest.number):
            yield Removal(stored.key, stored.size)


class _Unnamed:
    """Finds objects that no kept root names, and that the server will not name again."""

    def __init__(self, reader: ArchiveReader, newest: FoundRoot, named: set[str]) -> None:
        self._reader = reader
        self._newest = newest
        self._named = named
        keys = reader.keys
        partitions = newest.root.partitions
        self._partitions = {keys.segments(found.identity): found for found in partitions}
        self._by_manifests = {keys.manifests(found.identity): found for found in partitions}
        self._manifests: dict[str, Manifest] = {}

    def find(self) -> Iterator[Removal]:
        store, keys = self._reader.store, self._reader.keys
        prefixes: tuple[tuple[str, Callable[[str], bool]], ...] = (
            (keys.all_manifests, self._is_old_manifest),
            (keys.metadata_prefix, self._is_old_metadata),
            (keys.all_segments, self._is_old_segment),
        )
        for prefix, is_old in prefixes:
            for stored in store.list_objects(prefix):
                if stored.key.removeprefix(keys.base) not in self._named and is_old(stored.key):
                    yield Removal(stored.key, stored.size)

    def _is_old_manifest(self, key: str) -> bool:
        """Keys of one partition are in the order of time, and a later one may be about to be named."""
        partition = self._by_manifests.get(key.rpartition("/")[0] + "/")
        if partition is None:
            return self._is_before_newest_epoch(int(key.rpartition("/")[2].partition("-")[0], 16))
        return key.removeprefix(self._reader.keys.base) < partition.manifest_key

    def _is_old_metadata(self, key: str) -> bool:
        found = op_of_metadata(key)
        return found is not None and self._is_before_newest_epoch(found[1])

    def _is_before_newest_epoch(self, epoch: int) -> bool:
        return epoch < self._newest.epoch

    def _is_old_segment(self, key: str) -> bool:
        name = segment_name(key)
        if name is None:
            return False
        prefix = key.rpartition("/")[0] + "/"
        partition = self._partitions.get(prefix)
        if partition is None:
            # Its topic is deleted.
            return self._is_before_newest_epoch(name.epoch)
        return name.end_offset <= partition.start_offset or self._is_replaced(key, prefix, partition, name)

    def _is_replaced(self, key: str, prefix: str, partition: PartitionRoot, name: SegmentName) -> bool:
        """Whether another object has the same messages, and the server does not come back to this one.

        An object with the same offsets as one that is named may be a newer version that is about to be named, so only
        the manifest says which are older.
        """
        if not partition.manifest_key:
            return False
        if prefix not in self._manifests:
            self._manifests[prefix] = self._reader.manifest(partition)
        manifest = self._manifests[prefix]
        if key.removeprefix(self._reader.keys.base) in manifest.retired:
            return True
        offsets = name.first_offset, name.end_offset
        return any(
            piece.first_offset <= name.first_offset and name.end_offset <= piece.end_offset
            for piece in manifest.pieces
            if piece.is_whole and (piece.first_offset, piece.end_offset) != offsets
        )


def remove(reader: ArchiveReader, removals: list[Removal], on_progress: Callable[[Removal], None]) -> None:
    """Remove objects, in this order. May be repeated. Raises ``ArchiveFailure``."""
    for removal in removals:
        reader.store.delete(removal.key)
        on_progress(removal)
