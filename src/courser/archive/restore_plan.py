"""What a restore will do: which root, which topics, which objects become which files."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from itertools import groupby
from operator import attrgetter
from pathlib import Path

import msgspec
import xxhash

from courser.archive.errors import ArchiveDamaged, ArchiveFailure, ArchiveMissing, ObjectMissing
from courser.archive.objects import Manifest, PartitionRoot, Piece, Root
from courser.archive.reader import ArchiveReader, FoundRoot
from courser.catalog.directories import identity_of
from courser.catalog.entities import Partition, Stream, Topic
from courser.catalog.state import CatalogState
from courser.catalog.store import load_state
from courser.errors import MetadataDamaged
from courser.records.stored_header import PartitionIdentity
from courser.storage.snapshot import Snapshot

OFFSET_LEAP = 1 << 40
"""Offsets that a restored partition leaves out, unless its server stopped cleanly after the last run: so many messages
may have been confirmed since then, and no offset may ever name another message."""

_base_offset = attrgetter("base_offset")


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreSelection:
    """Which topics to restore, and up to which time."""

    topics: tuple[str, ...] = ()
    """Patterns such as ``shop/orders`` or ``shop/*``; empty: all."""
    until: int | None = None
    """Microseconds: leave out what was stored or changed after it."""

    @property
    def is_everything(self) -> bool:
        """Whether the result is what the server had: it may then continue the archive."""
        return not self.topics and self.until is None

    def includes(self, stream: Stream, topic: Topic) -> bool:
        name = f"{stream.name}/{topic.name}"
        return not self.topics or any(fnmatchcase(name, pattern) for pattern in self.topics)


@dataclass(frozen=True, slots=True)
class PlannedPartition:
    """A partition to restore."""

    stream: Stream
    topic: Topic
    partition: Partition
    numbers: PartitionRoot
    manifest: Manifest
    next_offset: int
    """The next message gets this offset or a later one."""

    @property
    def identity(self) -> PartitionIdentity:
        return identity_of(self.topic, self.partition)

    def segments(self) -> Iterator[tuple[int, Sequence[Piece]]]:
        """The pieces of each segment, by its first offset."""
        for base, pieces in groupby(self.manifest.pieces, key=_base_offset):
            yield base, list(pieces)


@dataclass(frozen=True, slots=True)
class RestorePlan:
    """All partitions to restore, and the catalog that has them."""

    cluster: bytes
    epoch: int
    """The epoch that has no seal yet."""
    root: FoundRoot
    snapshot: Snapshot
    state: CatalogState
    partitions: tuple[PlannedPartition, ...]
    selection: RestoreSelection

    @property
    def size(self) -> int:
        """Bytes of all messages."""
        return sum(piece.size for found in self.partitions for piece in found.manifest.pieces)

    @property
    def message_count(self) -> int:
        """Messages of all partitions, without the cut at a time."""
        return sum(piece.message_count for found in self.partitions for piece in found.manifest.pieces)

    @property
    def name(self) -> str:
        """Tells restores of different roots apart."""
        return f"{self.cluster.hex()} {self.root.epoch} {self.root.number}"


def plan_restore(
    reader: ArchiveReader, selection: RestoreSelection, *, passed_over: list[ArchiveFailure] | None = None
) -> RestorePlan:
    """Find out what the archive has.

    ``passed_over`` gets what is wrong with later runs that cannot be used; the run before is used then. Without it,
    the first such finding is raised: an older run lacks messages.

    Raises:
        ArchiveFailure: it has nothing to restore, an object is damaged, or the store does not answer.
    """
    if selection.until is not None:
        before, after = reader.roots_around(selection.until, passed_over)
        if before is None:
            raise ArchiveFailure("restore", reader.store.name, "the first run was completed after that time")
        return plan_root(reader, selection, before, after or before)
    for root in reader.roots_backwards(damaged=passed_over):
        try:
            return plan_root(reader, selection, root, root, is_newest=not passed_over)
        except (ArchiveDamaged, ObjectMissing) as failure:
            if passed_over is None:
                raise
            passed_over.append(failure)
    raise (
        passed_over[0] if passed_over else ArchiveMissing("restore", reader.store.name, "no run has been completed yet")
    )


def plan_root(
    reader: ArchiveReader,
    selection: RestoreSelection,
    root: FoundRoot,
    data_root: FoundRoot,
    *,
    is_newest: bool = False,
) -> RestorePlan:
    """Find out what a root has. ``data_root`` is for the messages: the first that has all up to the wanted time.

    ``is_newest``: whether no run came after it. Raises ``ArchiveFailure``.
    """
    epoch = reader.newest_epoch()
    snapshot, state = catalog_of(reader, root.root)
    if not selection.is_everything:
        snapshot = _select(state, selection, snapshot)
    is_final = root.root.is_final and root.epoch == epoch and is_newest
    partitions = tuple(
        _plan_partition(reader, place, root.root, data_root.root, is_final=is_final) for place in _places(state)
    )
    return RestorePlan(reader.keys.cluster, epoch, root, snapshot, state, partitions, selection)


def catalog_of(reader: ArchiveReader, root: Root) -> tuple[Snapshot, CatalogState]:
    """The catalog as of a root: as it is stored, and as a state. Raises ``ArchiveFailure``."""
    if not root.metadata_key:
        raise ArchiveMissing("use", reader.store.name, "no run has archived the metadata yet")
    snapshot = reader.snapshot(root)
    try:
        return snapshot, load_state(snapshot, Path(root.metadata_key))
    except MetadataDamaged as damage:
        raise ArchiveDamaged(root.metadata_key, damage.damage) from damage


def _select(state: CatalogState, selection: RestoreSelection, snapshot: Snapshot) -> Snapshot:
    """Remove the topics that are not wanted from the catalog. Their ids stay used."""
    for stream in list(state.streams.values()):
        stream.topics = {number: topic for number, topic in stream.topics.items() if selection.includes(stream, topic)}
        if selection.topics and not stream.topics:
            del state.streams[stream.stream_id]
    state.index_names()
    if selection.topics and not state.streams:
        raise ArchiveFailure("restore", ", ".join(selection.topics), "the archive has no such topic")
    body = state.encode()
    return replace(snapshot, body=body, state_hash=xxhash.xxh3_128_digest(body))


def _places(state: CatalogState) -> Iterator[tuple[Stream, Topic, Partition]]:
    for stream in state.streams.values():
        for topic in stream.topics.values():
            for partition in topic.partitions:
                yield stream, topic, partition


def _plan_partition(
    reader: ArchiveReader, place: tuple[Stream, Topic, Partition], root: Root, data_root: Root, *, is_final: bool
) -> PlannedPartition:
    stream, topic, partition = place
    identity = identity_of(topic, partition)
    numbers = _find(root, identity) or _nothing(identity, topic)
    later = _find(data_root, identity)
    # Messages that were purged after the chosen time are still in the older root.
    source = later if later is not None and later.purge_count == numbers.purge_count else numbers
    empty = Manifest(identity.topic_uuid, identity.partition_id, identity.incarnation, numbers.purge_count, ())
    manifest = reader.manifest(source) if source.manifest_key else empty
    if source is later and numbers.manifest_key not in ("", source.manifest_key):
        manifest = _as_before(manifest, reader.manifest(numbers))
    next_offset = max(numbers.next_offset, numbers.reserved_end, source.next_offset, source.reserved_end)
    return PlannedPartition(
        stream,
        topic,
        partition,
        numbers,
        manifest,
        numbers.next_offset if is_final else next_offset + OFFSET_LEAP,
    )


def _as_before(manifest: Manifest, before: Manifest) -> Manifest:
    """A manifest with the segments that an earlier one has too as they were then.

    They may have been condensed since, because of messages that a restore to the time in between leaves out.
    """
    earlier = {(piece.base_offset, piece.end_offset): piece for piece in before.pieces if piece.is_whole}
    pieces = [earlier.get((piece.base_offset, piece.end_offset), piece) for piece in manifest.pieces]
    return msgspec.structs.replace(manifest, pieces=tuple(pieces))


def _find(root: Root, identity: PartitionIdentity) -> PartitionRoot | None:
    return next((found for found in root.partitions if found.identity == identity), None)


def _nothing(identity: PartitionIdentity, topic: Topic) -> PartitionRoot:
    """A partition that was created after the last run had looked at the logs."""
    return PartitionRoot(
        topic_uuid=identity.topic_uuid,
        partition_id=identity.partition_id,
        incarnation=identity.incarnation,
        manifest_key="",
        start_offset=0,
        next_offset=0,
        reserved_end=0,
        last_timestamp=0,
        purge_count=topic.purge_count,
        offsets=(),
    )
