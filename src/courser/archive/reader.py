"""Reads an archive: its roots, its manifests, and the bytes of any offset.

A root names its manifests and the metadata with their checksums, and a manifest its segments with theirs. What has
another checksum is damage, however intact it is by itself: it is older, or of another place. A damaged root is never
passed over unless the caller says so: the one before it lacks messages.

A list of objects may be behind the store. Where that matters, the next number is looked for by its key: epochs and the
roots of an epoch are numbered without gaps.
"""

import logging
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path

from courser.archive.claiming import newest_epoch
from courser.archive.disk_store import DiskStore
from courser.archive.errors import ArchiveDamaged, ArchiveFailure, ArchiveMissing, ObjectMissing, StoreRefused
from courser.archive.keys import VERSION, ArchiveKeys, cluster_of, number_of_root
from courser.archive.objects import (
    HEADER_SIZE,
    Manifest,
    ObjectKind,
    PartitionRoot,
    Piece,
    Root,
    checksum_of,
    decode_body,
    decode_header,
    decode_object,
)
from courser.archive.settings import StoreKind, StoreSettings
from courser.archive.store import Store
from courser.errors import MetadataDamaged
from courser.records.stored_header import PartitionIdentity
from courser.storage.files import FileSystem
from courser.storage.read_result import SkipReason
from courser.storage.snapshot import Snapshot, decode_snapshot

_log = logging.getLogger(__name__)

_end_offset = attrgetter("end_offset")
_place = attrgetter("place")


def open_store(settings: StoreSettings, file_system: FileSystem, nonce: bytes) -> Store:
    """Open a store. ``nonce`` is that of this process. It is used only when something is asked of it.

    Raises:
        StoreRefused: the settings are invalid.
    """
    if settings.kind is not StoreKind.DISK:
        # The library has threads of its own: only who needs it loads it.
        from courser.archive.object_store import ObjectStore  # noqa: PLC0415

        return ObjectStore(settings)
    return DiskStore(file_system, settings.path, nonce)


def open_archive_store(settings: StoreSettings, file_system: FileSystem, nonce: bytes) -> Store:
    """Open a store that somebody only reads. Raises ``ArchiveMissing`` if its directory is not there."""
    if settings.kind is StoreKind.DISK and not settings.path.is_dir():
        raise ArchiveMissing("find", str(settings.path), "there is no archive, because there is no such directory")
    return open_store(settings, file_system, nonce)


def make_store_directory(settings: StoreSettings) -> None:
    """Make the directory of a store, for a server that has no archive yet.

    Never later: if it is missing then, its disk is not mounted. Raises ``StoreRefused``.
    """
    try:
        if settings.kind is StoreKind.DISK:
            settings.path.mkdir(0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise StoreRefused(str(settings.path), error.strerror or str(error)) from error


def find_clusters(store: Store) -> list[bytes]:
    return sorted(filter(None, map(cluster_of, store.list_names(f"{VERSION}/"))))


def _keys(store: Store, prefix: str) -> Iterator[str]:
    return (found.key for found in store.list_objects(prefix))


@dataclass(frozen=True, slots=True)
class FoundRoot:
    """A root, and where it is."""

    epoch: int
    number: int
    root: Root

    @property
    def place(self) -> tuple[int, int]:
        """Epoch and number: later roots have greater ones."""
        return self.epoch, self.number


@dataclass(frozen=True, slots=True)
class FoundManifest:
    """A manifest, and where it is."""

    manifest: Manifest
    key: str
    """As roots have it."""
    checksum: bytes


class PartitionArchive:
    """The archived log of one partition."""

    def __init__(self, store: Store, keys: ArchiveKeys, manifest: Manifest) -> None:
        self.store = store
        self._keys = keys
        self.manifest = manifest

    @property
    def cluster(self) -> bytes:
        """The cluster that it belongs to."""
        return self._keys.cluster

    @property
    def start_offset(self) -> int | None:
        """The first archived offset; None if nothing is archived."""
        pieces = self.manifest.pieces
        return pieces[0].first_offset if pieces else None

    def find(self, offset: int) -> Piece | None:
        """The object with this offset, or with the next one that is archived; None if all are before it."""
        pieces = self.manifest.pieces
        number = bisect_right(pieces, offset, key=_end_offset)
        return pieces[number] if number < len(pieces) else None

    def missing_between(self, offset: int, end_offset: int) -> Iterator[tuple[int, int, SkipReason]]:
        """Offsets between two objects, as first and end, and why no message has them."""
        while offset < end_offset:
            gaps = [gap for gap in self.manifest.gaps if gap[1] > offset and gap[0] < end_offset]
            first, end, is_loss = min(gaps, default=(end_offset, end_offset, False))
            if first <= offset:
                behind, reason = min(end, end_offset), SkipReason.LOST if is_loss else SkipReason.RESERVED
            else:
                behind, reason = first, SkipReason.TRIMMED
            yield offset, behind, reason
            offset = behind

    def key_of(self, piece: Piece) -> str:
        """The whole key of an object."""
        return self._keys.base + piece.key

    def index_key_of(self, piece: Piece) -> str:
        """The whole key of its index."""
        return self._keys.base + piece.index_key

    def read(self, piece: Piece, position: int, size: int) -> bytes:
        """Bytes of an object, by their position in it. Not checked: batches have their own checksums."""
        return bytes(self.store.read_range(self._keys.base + piece.key, position, min(size, piece.size - position)))


class ArchiveReader:
    """The archive of one cluster. All methods block and may raise ``ArchiveFailure``."""

    def __init__(self, store: Store, cluster: bytes) -> None:
        self.store = store
        self.keys = ArchiveKeys(cluster)

    def newest_epoch(self) -> int:
        """The epoch that is not sealed: that of the server that writes this archive, if there is one."""
        return newest_epoch(self.store, self.keys)

    def newest_root(self) -> FoundRoot | None:
        """The newest root; None if there is none. Raises ``ArchiveDamaged`` if it is damaged."""
        return next(self.roots_backwards(), None)

    def roots_backwards(
        self, *, before_epoch: int | None = None, damaged: list[ArchiveFailure] | None = None
    ) -> Iterator[FoundRoot]:
        """All roots, newest first. ``before_epoch``: only those of the epochs before it.

        What is wrong with a damaged one is added to ``damaged``, and the one before it comes next. Without that list,
        it is raised.
        """
        epoch = self.newest_epoch() if before_epoch is None else before_epoch - 1
        while epoch >= 0:
            for number in range(self._last_number(epoch), -1, -1):
                try:
                    yield self._root_at((epoch, number))
                except ObjectMissing:
                    continue
                except ArchiveDamaged as damage:
                    if damaged is None:
                        raise
                    damaged.append(damage)
            epoch -= 1

    def root_after(self, known: FoundRoot) -> FoundRoot:
        """The newest root, for who knows an earlier one. Asks for two keys if that is still the newest.

        Raises:
            ArchiveDamaged: it is damaged.
        """
        number = self._follow(known.epoch, known.number)
        is_sealed = self.store.find(self.keys.seal(known.epoch)) is not None
        newest = known if number == known.number and not is_sealed else self.newest_root() or known
        return max(known, newest, key=_place)

    def _last_number(self, epoch: int) -> int:
        """The number of the last root of an epoch, intact or not; -1 if there is none."""
        prefix = self.keys.root(epoch, 0).rpartition("/")[0] + "/"
        numbers = [place[1] for key in _keys(self.store, prefix) if (place := number_of_root(key)) is not None]
        return self._follow(epoch, max(numbers, default=-1))

    def _follow(self, epoch: int, number: int) -> int:
        """The number of the last root of an epoch, from one that exists: a list may be behind."""
        while self.store.find(self.keys.root(epoch, number + 1)) is not None:
            number += 1
        return number

    def _root_at(self, place: tuple[int, int]) -> FoundRoot:
        key = self.keys.root(*place)
        return FoundRoot(*place, decode_body(self.store.read(key), key, Root)[1])

    def newest_manifest(self, identity: PartitionIdentity) -> FoundManifest | None:
        """The newest intact manifest of a partition that the store lists, whether or not a root names it."""
        for key in sorted(_keys(self.store, self.keys.manifests(identity)), reverse=True):
            try:
                return self._manifest_at(key.removeprefix(self.keys.base), identity)
            except ArchiveDamaged as damage:
                _log.error("%s; using the manifest before it", damage)
        return None

    def listed_backwards(self) -> Iterator[FoundRoot]:
        """All roots that the store lists, newest first. Raises ``ArchiveDamaged``."""
        for place in reversed(self._listed_roots()):
            with suppress(ObjectMissing):
                yield self._root_at(place)

    def oldest_time(self) -> int | None:
        """The time of the oldest root: restores go back to it. None if there is none."""
        places = self._listed_roots()
        return self._time_of(places[0]) if places else None

    def roots_around(
        self, time: int, damaged: list[ArchiveFailure] | None = None
    ) -> tuple[FoundRoot | None, FoundRoot | None]:
        """The last root up to a time, and the first one from that time on. Reads only a few.

        ``damaged``: see ``roots_backwards``.
        """
        places = self._listed_roots()
        while True:
            try:
                number = bisect_right(places, time, key=self._time_of)
                before = self._root_at(places[number - 1]) if number else None
                if before is not None and before.root.time == time:
                    return before, before
                return before, self._root_at(places[number]) if number < len(places) else None
            except ObjectMissing as missing:
                places = [place for place in places if self.keys.root(*place) != missing.key]
            except ArchiveDamaged as damage:
                if damaged is None:
                    raise
                damaged.append(damage)
                places = [place for place in places if self.keys.root(*place) != damage.key]

    def _listed_roots(self) -> list[tuple[int, int]]:
        return sorted(filter(None, map(number_of_root, _keys(self.store, self.keys.roots))))

    def _time_of(self, place: tuple[int, int]) -> int:
        """When a root was made, according to its header."""
        key = self.keys.root(*place)
        return decode_header(bytes(self.store.read_range(key, 0, HEADER_SIZE)), key, ObjectKind.ROOT).origin.time

    def manifest(self, found: PartitionRoot) -> Manifest:
        """The manifest that a root names, which is not an empty name."""
        return self.find_manifest(found).manifest

    def find_manifest(self, found: PartitionRoot) -> FoundManifest:
        """The manifest that a root names, with its key and checksum."""
        manifest = self._manifest_at(found.manifest_key, found.identity)
        if found.manifest_checksum not in (b"", manifest.checksum):
            raise ArchiveDamaged(self.keys.base + found.manifest_key, "it is not the manifest that the root names")
        return manifest

    def _manifest_at(self, key: str, identity: PartitionIdentity) -> FoundManifest:
        whole = self.keys.base + key
        data = self.store.read(whole)
        manifest = decode_body(data, whole, Manifest)[1]
        if manifest.identity != identity:
            raise ArchiveDamaged(whole, "it is the manifest of another partition")
        return FoundManifest(manifest, key, checksum_of(data))

    def partition(self, root: Root, identity: PartitionIdentity) -> PartitionArchive | None:
        """The archived log of a partition as of a root; None if nothing of it is archived."""
        for found in root.partitions:
            if found.identity == identity and found.manifest_key:
                return PartitionArchive(self.store, self.keys, self.manifest(found))
        return None

    def snapshot(self, root: Root) -> Snapshot:
        """The catalog as of a root."""
        key = self.keys.base + root.metadata_key
        data = self.store.read(key)
        _, body = decode_object(data, key, ObjectKind.METADATA)
        if root.metadata_checksum not in (b"", checksum_of(data)):
            raise ArchiveDamaged(key, "it is not the metadata that the root names")
        try:
            return decode_snapshot(body, Path(key))
        except MetadataDamaged as damage:
            raise ArchiveDamaged(key, damage.damage) from damage


def choose_cluster(store: Store, wanted: str = "") -> bytes:
    """The cluster whose id begins with ``wanted``; without it, the only one.

    Raises:
        ArchiveMissing: there is none, or several.
        ArchiveFailure: the store did not answer.
    """
    clusters = [cluster for cluster in find_clusters(store) if cluster.hex().startswith(wanted)]
    if len(clusters) == 1:
        return clusters[0]
    if not clusters:
        reason = f"no archive has an id that starts with {wanted}" if wanted else "there is no archive"
        raise ArchiveMissing("find", store.name, reason)
    names = ", ".join(cluster.hex() for cluster in clusters)
    raise ArchiveMissing("choose", store.name, f"there are several archives; name one of {names}")
