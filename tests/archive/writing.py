"""An archive writer over planted segments: what the tests of the archive share."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import xxhash

from courser.archive.capture import CapturedPartition, CapturedSegment
from courser.archive.claiming import ArchiveState, read_state
from courser.archive.errors import ArchiveGone
from courser.archive.keys import ArchiveKeys
from courser.archive.manifest_writer import ManifestWriter
from courser.archive.objects import PartitionRoot
from courser.archive.pacing import Pace
from courser.archive.reader import ArchiveReader
from courser.archive.root_writer import RootWriter
from courser.archive.store import Store
from courser.catalog.state import CatalogState
from courser.records.batch import NewMessage, build_batch
from courser.records.stored_header import PartitionIdentity, blank_header, stamp
from courser.storage.files import FileSystem
from courser.storage.journal_entries import SnapshotMark
from courser.storage.ledger import SegmentFacts
from courser.storage.paths import index_path, log_path
from courser.storage.snapshot import Snapshot, encode_snapshot
from tests.fakes.files import FakeFileSystem

CLUSTER = bytes(range(100, 116))
DATA = Path("/data")
IDENTITY = PartitionIdentity(bytes(range(16)), 0, 7)
DIRECTORY = DATA / "streams/1/topics/1/partitions/0-7"


def _stored(offset: int, removed_count: int = 0) -> bytes:
    """A batch of one message, each with its own bytes."""
    batch = build_batch([NewMessage(offset.to_bytes(4, "big"), offset + 1)])
    blank = blank_header(IDENTITY, removed_count=removed_count)
    return bytes(stamp(batch, blank, offset, 1000 + offset)) + bytes(batch.body)


MESSAGE_SIZE = len(_stored(0))


def disk(seed: int = 1) -> FakeFileSystem:
    file_system = FakeFileSystem(random.Random(seed))
    file_system.plant_directory(DIRECTORY)
    return file_system


def plant_segment(file_system: FakeFileSystem, first: int, end: int) -> None:
    """A segment with one batch of one message per offset."""
    file_system.plant(log_path(DIRECTORY, first), expected_bytes(first, end))
    file_system.plant(index_path(DIRECTORY, first), b"index of %d to %d" % (first, end))


def plant_condensed(file_system: FakeFileSystem, first: int, end: int) -> CapturedSegment:
    """A segment of which only the last message is left."""
    file_system.plant(log_path(DIRECTORY, first), condensed_bytes(first, end))
    file_system.plant(index_path(DIRECTORY, first), b"index of %d to %d, condensed" % (first, end))
    return CapturedSegment(SegmentFacts(first, end, MESSAGE_SIZE, 1000 + end - 1, 1000 + end - 1, 1, 1), True)


def condensed_bytes(first: int, end: int) -> bytes:
    return _stored(end - 1, end - 1 - first)


def plant_damage(file_system: FakeFileSystem, first: int, offset: int) -> None:
    """Change a byte of a message."""
    path = log_path(DIRECTORY, first)
    data = bytearray(file_system.contents(path))
    data[(offset - first + 1) * MESSAGE_SIZE - 1] ^= 1
    file_system.plant(path, bytes(data))


def facts(first: int, end: int) -> SegmentFacts:
    count = end - first
    return SegmentFacts(first, end, count * MESSAGE_SIZE, 1000 + first, 1000 + end - 1, count, count)


def captured(
    bounds: Sequence[int], *, open_end: int | None = None, purge_count: int = 0, start_offset: int = 0
) -> CapturedPartition:
    """Sealed segments between the bounds, and an open one from the last bound on if ``open_end`` is given."""
    segments = [CapturedSegment(facts(first, end), True) for first, end in pairwise(bounds)]
    if open_end is not None:
        segments.append(CapturedSegment(facts(bounds[-1], open_end), False))
    end = open_end if open_end is not None else bounds[-1]
    return CapturedPartition(
        identity=IDENTITY,
        directory=DIRECTORY,
        segments=tuple(segments),
        local_segments=tuple((segment.facts.base_offset, segment.facts.end_offset) for segment in segments),
        start_offset=start_offset,
        next_offset=end,
        purge_count=purge_count,
    )


def naming(key: str, identity: PartitionIdentity = IDENTITY) -> PartitionRoot:
    """What a root of the first form says about a partition with a manifest."""
    return PartitionRoot(
        topic_uuid=identity.topic_uuid,
        partition_id=identity.partition_id,
        incarnation=identity.incarnation,
        manifest_key=key.removeprefix(ArchiveKeys(CLUSTER).base),
        start_offset=0,
        next_offset=0,
        reserved_end=0,
        last_timestamp=0,
        purge_count=0,
        offsets=(),
    )


_BODY = CatalogState().encode()
CATALOG = encode_snapshot(Snapshot(SnapshotMark(5, bytes(16)), xxhash.xxh3_128_digest(_BODY), 0, _BODY))


@dataclass(frozen=True, slots=True, kw_only=True)
class Capture:
    """Everything that a server has at one moment."""

    time: int
    op: int
    metadata: bytes | None
    partitions: tuple[CapturedPartition, ...]
    is_final: bool = False


def capture(*partitions: CapturedPartition, op: int = 5, metadata: bytes | None = CATALOG) -> Capture:
    return Capture(time=1_000_000, op=op, metadata=metadata, partitions=partitions)


class Process:
    """A server of one process that writes the archive: what it was told is confirmed."""

    def __init__(self, store: Store, file_system: FileSystem, seed: int = 1, *, take_over: bool = False) -> None:
        self.confirmed: dict[PartitionIdentity, frozenset[tuple[int, int]]] = {}
        draw = random.Random(seed).randbytes
        self.root_writer = RootWriter(
            store,
            file_system,
            DATA,
            read_state(file_system, DATA) or ArchiveState(CLUSTER),
            nonce=draw(16),
            take_over=take_over,
        )
        self.writer = ManifestWriter(
            store, file_system, nonce=draw(16), pace=Pace(0), part_size=512, commit_size=1 << 20, may_lose=take_over
        )

    def begin(self, *partitions: PartitionIdentity) -> None:
        try:
            self.root_writer.begin()
            self.writer.begin(self.root_writer.state, self.root_writer.newest_step, {IDENTITY, *partitions})
        except ArchiveGone:
            self.root_writer.lose()
            raise

    def run(self, what: Capture) -> None:
        self.begin(*(partition.identity for partition in what.partitions))
        try:
            self._run(what)
        except ArchiveGone:
            self.root_writer.lose()
            raise

    def _run(self, what: Capture) -> None:
        self.writer.start(what.partitions)
        is_finished = False
        while not is_finished:
            step = self.root_writer.next_step(what.time, what.op)
            if what.metadata is not None and step.op != self.root_writer.metadata_op:
                self.root_writer.put_metadata(step, what.metadata)
            written = self.writer.write(step)
            is_finished = written.is_finished
            self.root_writer.put_root(step, [written], is_final=what.is_final)
            confirmed = self.writer.confirm()
            self.confirmed.update({identity: found.segments for identity, found in confirmed.items()})


def archived_bytes(store: Store) -> bytes:
    """The log of the partition as the newest root has it."""
    reader = ArchiveReader(store, CLUSTER)
    found = reader.newest_root()
    assert found is not None
    partition = reader.partition(found.root, IDENTITY)
    assert partition is not None
    return b"".join(partition.read(piece, 0, piece.size) for piece in partition.manifest.pieces)


def expected_bytes(first: int, end: int) -> bytes:
    return b"".join(map(_stored, range(first, end)))
