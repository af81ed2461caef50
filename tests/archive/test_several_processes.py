"""An archive that several processes of one server write: each the manifests of its own topics, one the roots."""

import pickle
import random
from dataclasses import replace

import pytest

from courser.archive.capture import CapturedPartition, Step
from courser.archive.claiming import ArchiveState
from courser.archive.errors import (
    ArchiveDamaged,
    ArchiveFailure,
    ArchiveGone,
    ArchiveInterrupted,
    ArchiveMissing,
    ArchiveTakenOver,
    ArchiveTooNew,
    ObjectMissing,
    StoreRefused,
)
from courser.archive.manifest_writer import ManifestWriter, Written
from courser.archive.pacing import Pace
from courser.archive.reader import ArchiveReader
from courser.archive.root_writer import RootWriter
from courser.errors import CourserError
from courser.records.stored_header import PartitionIdentity
from tests.archive.brokers import fake_store
from tests.archive.writing import (
    CATALOG,
    CLUSTER,
    DATA,
    IDENTITY,
    captured,
    disk,
    expected_bytes,
    plant_segment,
)
from tests.fakes.files import FakeFileSystem
from tests.fakes.object_store import FakeStore, StoreKilled

OTHER = PartitionIdentity(bytes(16), 0, 7)
"""A partition of the first process, without segments."""


class Server:
    """Two processes: the first one writes the roots, and the second one has the partition with segments."""

    def __init__(self, store: FakeStore, file_system: FakeFileSystem) -> None:
        self.store = store
        self.file_system = file_system
        draw = random.Random(1).randbytes
        self.roots = RootWriter(store, file_system, DATA, ArchiveState(CLUSTER), nonce=draw(16))
        self.first = self._writer(2)
        self.start_count = 0
        self.restart()
        self.step = Step(0, 0, 0)
        """The last one."""

    def _writer(self, seed: int, commit_size: int = 1 << 20) -> ManifestWriter:
        draw = random.Random(seed).randbytes
        pace = Pace(0)
        return ManifestWriter(
            self.store, self.file_system, nonce=draw(16), pace=pace, part_size=512, commit_size=commit_size
        )

    def restart(self, commit_size: int = 1 << 20) -> None:
        """The second process is started again."""
        self.start_count += 1
        self.second = self._writer(100 + self.start_count, commit_size)

    def begin(self) -> None:
        self.roots.begin()
        self.begin_of(self.first, OTHER)
        self.begin_of(self.second, IDENTITY)

    def begin_of(self, writer: ManifestWriter, identity: PartitionIdentity) -> None:
        writer.begin(self.roots.state, self.roots.newest_step, {identity})

    def write(self, what: CapturedPartition, kill_at: int | None = None) -> list[Written]:
        """Everything of a run before its root. ``kill_at``: the request at which the second process is killed."""
        self.begin()
        self.first.start([replace(captured((0,)), identity=OTHER)])
        self.second.start([what])
        self.step = self.roots.next_step(1_000_000, 5)
        self.roots.put_metadata(self.step, CATALOG)
        written = self.first.write(self.step)
        self.store.kill_at = None if kill_at is None else self.store.write_count + kill_at
        try:
            return [written, self.second.write(self.step)]
        finally:
            self.store.kill_at = None

    def run(self, what: CapturedPartition) -> frozenset[tuple[int, int]]:
        """A whole run. Returns the segments that are confirmed."""
        written = self.write(what)
        self.roots.put_root(self.step, written, is_final=False)
        self.first.confirm()
        return self.second.confirm()[IDENTITY].segments

    def archived(self) -> bytes:
        """What a restore of the newest root gives."""
        reader = ArchiveReader(self.store, CLUSTER)
        found = reader.newest_root()
        assert found is not None
        assert [row.identity for row in found.root.partitions] == [OTHER, IDENTITY]
        archive = reader.partition(found.root, IDENTITY)
        pieces = () if archive is None else archive.manifest.pieces
        return b"".join(archive.read(piece, 0, piece.size) for piece in pieces if archive is not None)

    def log_count(self) -> int:
        return sum(key.endswith(".log") for key in self.store.objects)


def server_of(*bounds: tuple[int, int]) -> Server:
    file_system = disk()
    for first, end in bounds:
        plant_segment(file_system, first, end)
    return Server(fake_store(), file_system)


def size_of(first: int, end: int) -> int:
    return len(expected_bytes(first, end))


def test_a_process_that_is_started_again_goes_on_from_the_newest_root() -> None:
    server = server_of((0, 10), (10, 25))
    assert server.run(captured((0, 10))) == {(0, size_of(0, 10))}
    server.restart()
    # The server has deleted the first segment: only the archive has it.
    rest = replace(captured((10, 25)), start_offset=10)
    assert server.run(rest) == {(10, size_of(10, 25))}
    assert server.archived() == expected_bytes(0, 25)
    assert server.log_count() == 2
    assert not server.store.overwritten


def test_what_a_killed_process_has_uploaded_is_used_by_its_successor() -> None:
    server = server_of((0, 10))
    server.write(captured((0, 10)))
    server.restart()
    assert server.run(captured((0, 10))) == {(0, size_of(0, 10))}
    assert server.second.counters.adopted_count == 2, "a log and its index"
    assert server.archived() == expected_bytes(0, 10)
    assert server.log_count() == 1
    assert not server.store.overwritten


@pytest.mark.parametrize("is_killed_before", [True, False])
def test_a_process_may_be_killed_at_every_write(is_killed_before: bool) -> None:
    """Nothing is uploaded twice, no manifest is written over another, and none names less than the one before."""
    kill_at = 0
    while True:
        kill_at += 1
        server = server_of((0, 10), (10, 25), (25, 40))
        server.run(captured((0, 10)))
        server.store.is_killed_before = is_killed_before
        try:
            server.write(captured((0, 10, 25)), kill_at)
            is_whole = True
        except StoreKilled:
            is_whole = False
        assert server.archived() == expected_bytes(0, 10)
        server.restart()
        server.run(captured((0, 10, 25, 40)))
        assert server.archived() == expected_bytes(0, 40), kill_at
        assert server.log_count() == 3, kill_at
        assert not server.store.overwritten
        if is_whole:
            return


def test_a_successor_that_has_read_the_root_before_reads_the_newest_one_first() -> None:
    """It was started when its predecessor had handed its rows over, but the root with them was not written yet."""
    server = server_of((0, 10), (10, 25))
    server.begin()
    written = server.write(captured((0, 10)))
    server.restart()
    server.begin_of(server.second, IDENTITY)
    server.roots.put_root(server.step, written, is_final=False)
    with pytest.raises(ArchiveFailure, match="started again"):
        server.second.confirm()
    server.run(replace(captured((10, 25)), start_offset=10))
    assert server.archived() == expected_bytes(0, 25)


def test_a_process_that_was_started_again_in_a_run_fails_it() -> None:
    server = server_of((0, 10))
    server.begin()
    server.second.start([captured((0, 10))])
    server.restart()
    server.begin_of(server.second, IDENTITY)
    with pytest.raises(ArchiveFailure, match="started again"):
        server.second.write(server.roots.next_step(1_000_000, 5))


def test_every_process_waits_for_the_steps_of_the_others() -> None:
    """A root confirms a part of a long run: it has the rows of all, and each goes on where it was."""
    server = server_of((0, 10), (10, 25), (25, 40))
    server.restart(commit_size=1)
    written = server.write(captured((0, 10, 25, 40)))
    ends = []
    while not all(share.is_finished for share in written):
        server.roots.put_root(server.step, written, is_final=False)
        server.first.confirm()
        server.second.confirm()
        ends.append(len(server.archived()))
        server.step = server.roots.next_step(1_000_000, 5)
        written = [server.first.write(server.step), server.second.write(server.step)]
    assert ends == [size_of(0, 10), size_of(0, 25), size_of(0, 40)]
    assert [share.is_complete for share in written] == [True, True]


def test_a_partition_whose_files_are_missing_keeps_its_row_in_every_process() -> None:
    server = server_of((0, 10))
    server.run(captured((0, 10)))
    server.restart()
    lost = CapturedPartition(identity=IDENTITY, directory=captured((0,)).directory, is_lost=True, segments=())
    server.run(lost)
    assert server.archived() == expected_bytes(0, 10)
    newest = ArchiveReader(server.store, CLUSTER).newest_root()
    assert newest is not None
    assert newest.root.partitions[1].next_offset == 10


def test_a_process_whose_store_is_another_one_confirms_nothing() -> None:
    """The claim is in the store of the first process. The other one sees an empty store, and writes nothing there."""
    server = server_of((0, 10))
    empty = fake_store(2)
    server.roots.begin()
    server.store = empty
    server.restart()
    with pytest.raises(ArchiveGone):
        server.begin_of(server.second, IDENTITY)
    assert empty.objects == {}


def test_a_process_that_is_started_after_another_server_has_taken_over_reads_what_there_was() -> None:
    server = server_of((0, 10))
    server.run(captured((0, 10)))
    other = RootWriter(
        server.store, disk(2), DATA, ArchiveState(CLUSTER), nonce=random.Random(9).randbytes(16), take_over=True
    )
    other.begin()
    server.restart()
    with pytest.raises(ArchiveTakenOver):
        server.begin_of(server.second, IDENTITY)
    archive = server.second.archive_of(IDENTITY)
    assert archive is not None
    assert archive.start_offset == 0
    with pytest.raises(ArchiveTakenOver):
        server.begin_of(server.second, IDENTITY)


def test_nothing_is_forgotten_if_the_partitions_are_not_known_when_the_archive_must_be_read() -> None:
    server = server_of((0, 10))
    server.run(captured((0, 10)))
    server.second.read_again()
    with pytest.raises(ArchiveFailure, match="read again"):
        server.second.begin(server.roots.state, server.roots.newest_step, None)
    server.run(replace(captured((0, 10)), segments=()))
    assert server.archived() == expected_bytes(0, 10)


@pytest.mark.parametrize(
    "failure",
    [
        ArchiveFailure("read", "key", "reason"),
        ObjectMissing("key"),
        ArchiveMissing("find", "store", "reason"),
        ArchiveGone("store", "reason"),
        ArchiveInterrupted("key"),
        ArchiveDamaged("key", "reason"),
        ArchiveTooNew("key", "9", "1"),
        StoreRefused("store", "reason"),
        ArchiveTakenOver("store", 5, 3),
    ],
    ids=lambda failure: type(failure).__name__,
)
def test_what_goes_wrong_is_the_same_in_another_process(failure: CourserError) -> None:
    received = pickle.loads(pickle.dumps(failure))
    assert type(received) is type(failure)
    assert str(received) == str(failure)
    assert received.code is failure.code
    assert vars(received) == vars(failure)
