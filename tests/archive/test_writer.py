"""The archive writer: every kill, every lost reply, and servers that replace each other."""

import random
from collections.abc import Set as AbstractSet
from dataclasses import replace
from itertools import pairwise

import msgspec
import pytest

from courser.archive import manifest_writer
from courser.archive.claiming import read_state
from courser.archive.errors import ArchiveDamaged, ArchiveFailure, ArchiveTakenOver
from courser.archive.keys import segment_name
from courser.archive.manifest_writer import ConfirmedLog, confirmed_log
from courser.archive.objects import Manifest, Piece, RelativeKey, decode_body, encode_body
from courser.archive.reader import ArchiveReader
from courser.storage.ledger import SegmentFacts
from courser.storage.paths import LOG_SUFFIX, log_path
from courser.testing.object_store import WRITE_TIME, StoreFault
from tests.archive.writing import (
    CLUSTER,
    DATA,
    DIRECTORY,
    IDENTITY,
    MESSAGE_SIZE,
    Process,
    archived_bytes,
    capture,
    captured,
    disk,
    expected_bytes,
    facts,
    naming,
    plant_condensed,
    plant_segment,
)
from tests.fakes.object_store import FakeStore, StoreKilled

BOUNDS = (0, 10, 25, 40)


def store_of(seed: int = 1, **options: float) -> FakeStore:
    return FakeStore(random.Random(seed), fault_rate=options.get("fault_rate", 0.0))


def sizes_of(*segments: tuple[int, int]) -> frozenset[tuple[int, int]]:
    """What is confirmed of segments, given by first and end offset."""
    return frozenset((first, (end - first) * MESSAGE_SIZE) for first, end in segments)


def logs_in(store: FakeStore) -> list[tuple[int, int]]:
    """First and end offset of every archived log, also of those that nobody names."""
    names = [name for key in store.objects if (name := segment_name(key)) is not None]
    return sorted((name.first_offset, name.end_offset) for name in names if name.suffix == LOG_SUFFIX)


def test_sealed_segments_are_archived_once() -> None:
    store, file_system = store_of(), disk()
    for first, end in ((0, 10), (10, 25), (25, 40)):
        plant_segment(file_system, first, end)
    process = Process(store, file_system)
    process.run(capture(captured(BOUNDS[:3])))
    process.run(capture(captured(BOUNDS)))
    count = store.write_count
    process.run(capture(captured(BOUNDS), metadata=None))
    assert store.write_count == count, "nothing is new, so nothing is written"
    assert process.confirmed == {IDENTITY: sizes_of((0, 10), (10, 25), (25, 40))}
    assert archived_bytes(store) == expected_bytes(0, 40)
    assert logs_in(store) == [(0, 10), (10, 25), (25, 40)]


def test_a_run_does_not_walk_again_what_is_archived(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[int] = []
    walked: list[Manifest] = []
    is_copy_of = Piece.is_copy_of

    def compare(piece: Piece, segment: SegmentFacts) -> bool:
        compared.append(piece.base_offset)
        return is_copy_of(piece, segment)

    def walk(manifest: Manifest, seen: AbstractSet[RelativeKey]) -> ConfirmedLog:
        walked.append(manifest)
        return confirmed_log(manifest, seen)

    monkeypatch.setattr(Piece, "is_copy_of", compare)
    monkeypatch.setattr(manifest_writer, "confirmed_log", walk)
    bounds = tuple(range(0, 101, 5))
    store, file_system = store_of(), disk()
    for first, end in pairwise(bounds):
        plant_segment(file_system, first, end)
    process = Process(store, file_system)
    process.run(capture(captured(bounds)))
    assert process.confirmed == {IDENTITY: sizes_of(*pairwise(bounds))}
    assert not compared
    assert len(walked) == 1
    process.run(capture(captured(bounds), metadata=None))
    assert compared == list(bounds[:-1]), "each segment is compared with its own object"
    assert len(walked) == 1, "a root that names the same manifest does not need another walk"


def test_the_open_segment_is_archived_in_pieces_and_merged_when_it_is_sealed() -> None:
    store, file_system = store_of(), disk()
    plant_segment(file_system, 0, 40)
    process = Process(store, file_system)
    for end in (10, 25):
        process.run(capture(captured((0,), open_end=end)))
        assert archived_bytes(store) == expected_bytes(0, end)
    assert process.confirmed == {IDENTITY: frozenset()}, "pieces do not allow a deletion"
    process.run(capture(captured((0, 40))))
    assert process.confirmed == {IDENTITY: sizes_of((0, 40))}
    assert archived_bytes(store) == expected_bytes(0, 40)
    partition = _partition(store)
    assert [(piece.first_offset, piece.end_offset, piece.is_whole) for piece in partition] == [(0, 40, True)]


@pytest.mark.parametrize("is_same", [True, False])
def test_a_segment_that_another_server_had_sealed_is_archived_further(is_same: bool) -> None:
    """A standby restores a piece as a sealed segment and takes over. Then the old primary takes the archive back."""
    store, old_disk, new_disk = store_of(), disk(1), disk(2)
    for file_system in (old_disk, new_disk):
        plant_segment(file_system, 0, 40)
    Process(store, old_disk, seed=1).run(capture(captured((0,), open_end=10)))
    standby = captured((0, 10))
    if not is_same:
        standby = replace(standby, segments=(plant_condensed(new_disk, 0, 10),))
    Process(store, new_disk, seed=2, take_over=True).run(capture(standby))
    old = Process(store, old_disk, seed=3, take_over=True)
    old.run(capture(captured((0,), open_end=25)))
    assert archived_bytes(store) == expected_bytes(0, 25)
    assert old.confirmed == {IDENTITY: frozenset()}
    old.run(capture(captured((0, 40))))
    assert archived_bytes(store) == expected_bytes(0, 40)
    assert old.confirmed == {IDENTITY: sizes_of((0, 40))}


def _partition(store: FakeStore) -> tuple[Piece, ...]:
    reader = ArchiveReader(store, CLUSTER)
    found = reader.newest_root()
    assert found is not None
    archive = reader.partition(found.root, IDENTITY)
    return () if archive is None else archive.manifest.pieces


@pytest.mark.parametrize("is_killed_before", [True, False])
def test_a_kill_at_any_write_uploads_nothing_twice_and_forgets_nothing(is_killed_before: bool) -> None:
    kill_at = 0
    while True:
        kill_at += 1
        store, file_system = store_of(), disk()
        for first, end in ((0, 10), (10, 25)):
            plant_segment(file_system, first, end)
        store.kill_at, store.is_killed_before = kill_at, is_killed_before
        process = Process(store, file_system, seed=1)
        try:
            process.run(capture(captured(BOUNDS[:3])))
        except StoreKilled:
            file_system.power_cut()
        else:
            assert kill_at > 8, "every write was a kill point"
            return
        for segment in process.confirmed.get(IDENTITY, ()):
            assert archived_bytes(store), f"{segment} was confirmed without a root"
        store.kill_at = None
        Process(store, file_system, seed=2).run(capture(captured(BOUNDS[:3])))
        assert archived_bytes(store) == expected_bytes(0, 25), kill_at
        assert logs_in(store) == [(0, 10), (10, 25)], kill_at
        assert not store.overwritten


@pytest.mark.parametrize("seed", range(30))
def test_faults_at_random_lose_nothing(seed: int) -> None:
    store, file_system = FakeStore(random.Random(seed), fault_rate=0.3, list_delay=seed % 5 * WRITE_TIME), disk(seed)
    plant_segment(file_system, 0, 10)
    plant_segment(file_system, 10, 25)
    process = Process(store, file_system, seed)
    for attempt in range(60):
        try:
            process.run(capture(captured(BOUNDS[:3])))
        except ArchiveFailure:
            if attempt % 7 == 6:
                process = Process(store, file_system, seed + 100 * attempt)
            continue
        break
    assert process.confirmed[IDENTITY] == sizes_of((0, 10), (10, 25))
    assert archived_bytes(store) == expected_bytes(0, 25)


def test_bytes_that_changed_on_the_way_are_noticed_and_not_overwritten() -> None:
    store, file_system = store_of(), disk()
    plant_segment(file_system, 0, 10)
    process = Process(store, file_system)
    process.begin()
    store.faults.extend([None, StoreFault.CHANGED])
    with pytest.raises(ArchiveFailure, match="other bytes than were sent"):
        process.run(capture(captured(BOUNDS[:2])))
    assert process.confirmed == {}
    process.run(capture(captured(BOUNDS[:2])))
    assert archived_bytes(store) == expected_bytes(0, 10)
    assert not store.overwritten


def test_a_server_that_was_replaced_is_refused_and_confirms_nothing_more() -> None:
    store, old_disk, new_disk = store_of(), disk(1), disk(2)
    for file_system in (old_disk, new_disk):
        plant_segment(file_system, 0, 10)
        plant_segment(file_system, 10, 25)
    old = Process(store, old_disk, seed=1)
    old.run(capture(captured(BOUNDS[:2])))
    old.confirmed.clear()
    new = Process(store, new_disk, seed=2, take_over=True)
    new.run(capture(captured(BOUNDS[:2])))
    with pytest.raises(ArchiveTakenOver, match="take_over=true"):
        old.run(capture(captured(BOUNDS[:3])))
    assert old.confirmed == {}
    with pytest.raises(ArchiveTakenOver, match="epoch 2, and this server had epoch 1"):
        Process(store, old_disk, seed=3).run(capture(captured(BOUNDS[:3])))
    new.run(capture(captured(BOUNDS[:3])))
    assert archived_bytes(store) == expected_bytes(0, 25)


def test_a_copy_without_the_newest_epoch_is_refused() -> None:
    store, original, clone = store_of(), disk(1), disk(2)
    Process(store, original, seed=1).run(capture())
    with pytest.raises(ArchiveTakenOver):
        Process(store, clone, seed=2).run(capture())


def test_a_crash_while_claiming_does_not_lock_the_server_out() -> None:
    store, file_system = store_of(), disk()
    Process(store, file_system, seed=1).run(capture())
    store.kill_at, store.is_killed_before = store.write_count + 4, False
    with pytest.raises(StoreKilled):
        Process(store, file_system, seed=2).run(capture())
    file_system.power_cut()
    store.kill_at = None
    Process(store, file_system, seed=3).run(capture())
    state = read_state(file_system, DATA)
    assert state is not None
    assert state.epoch == 3


def test_an_archive_that_is_gone_is_not_begun_again_by_itself() -> None:
    store, file_system = store_of(), disk()
    plant_segment(file_system, 0, 10)
    Process(store, file_system, seed=1).run(capture(captured([0, 10])))
    # As a directory looks whose disk is not mounted.
    empty = store_of()
    process = Process(empty, file_system, seed=2)
    with pytest.raises(ArchiveFailure, match="the right disk is mounted"):
        process.run(capture(captured([0, 10])))
    assert process.confirmed == {}
    Process(empty, file_system, seed=3, take_over=True).run(capture(captured([0, 10])))
    assert archived_bytes(empty) == expected_bytes(0, 10)
    Process(empty, file_system, seed=4).run(capture(captured([0, 10])))


class _StoreThatGoesDown(FakeStore):
    """Goes down when it reads or creates a key with ``at`` in it. A creation is still done; only its reply is lost."""

    at = ""

    def _check_up(self, operation: str, key: str) -> None:
        is_reached = bool(self.at) and self.at in key
        if is_reached and not self.is_down and operation in ("create", "find"):
            return
        self.is_down = self.is_down or is_reached
        super()._check_up(operation, key)

    def put_new(self, key: str, data: bytes) -> bool:
        is_new = super().put_new(key, data)
        if self.at and self.at in key:
            self.is_down = True
            raise ArchiveFailure("create", key, "timeout")
        return is_new


@pytest.mark.parametrize("at", ["/wal/00000001/", "root/00", "man/"])
def test_a_begin_that_fails_during_or_after_its_claim_can_be_repeated(at: str) -> None:
    store, file_system = _StoreThatGoesDown(random.Random(1)), disk()
    plant_segment(file_system, 0, 10)
    Process(store, file_system, seed=1).run(capture(captured([0, 10])))
    process = Process(store, file_system, seed=2)
    for _ in range(3):
        store.at = at
        with pytest.raises(ArchiveFailure):
            process.begin()
        store.at, store.is_down = "", False
    process.run(capture(captured([0, 10])))
    assert archived_bytes(store) == expected_bytes(0, 10)


@pytest.mark.parametrize("key", ["../../outside.log", "seg/../x.log", "/etc/passwd", "seg//x", "seg/./x", ".x", "x\n"])
def test_a_manifest_that_names_an_object_outside_the_archive_is_refused(key: str) -> None:
    store, file_system = store_of(), disk()
    plant_segment(file_system, 0, 10)
    Process(store, file_system).run(capture(captured([0, 10])))
    reader = ArchiveReader(store, CLUSTER)
    (found,) = [found.key for found in store.list_objects(reader.keys.all_manifests)]
    origin, manifest = decode_body(store.read(found), found, Manifest)
    place = naming(found)
    for change in ({"key": key}, {"index_key": key}):
        piece = msgspec.structs.replace(manifest.pieces[0], **change)
        store.objects[found] = encode_body(msgspec.structs.replace(manifest, pieces=(piece,)), found, origin)
        with pytest.raises(ArchiveDamaged):
            reader.manifest(place)


def test_a_purge_removes_the_messages_from_the_next_manifest_only() -> None:
    store, file_system = store_of(), disk()
    plant_segment(file_system, 0, 10)
    plant_segment(file_system, 10, 25)
    process = Process(store, file_system)
    process.run(capture(captured(BOUNDS[:2])))
    before = ArchiveReader(store, CLUSTER).newest_root()
    process.run(capture(captured((10, 25), purge_count=1, start_offset=10)))
    assert archived_bytes(store) == expected_bytes(10, 25)
    assert before is not None
    old = ArchiveReader(store, CLUSTER).partition(before.root, IDENTITY)
    assert old is not None
    assert old.start_offset == 0


def test_what_retention_deleted_stays_in_the_archive() -> None:
    store, file_system = store_of(), disk()
    plant_segment(file_system, 0, 10)
    plant_segment(file_system, 10, 25)
    process = Process(store, file_system)
    process.run(capture(captured(BOUNDS[:3])))
    file_system.unlink(log_path(DIRECTORY, 0))
    Process(store, file_system, seed=2).run(capture(captured((10, 25), start_offset=10)))
    assert archived_bytes(store) == expected_bytes(0, 25)


@pytest.mark.parametrize("bounds", [(0, 10), (0, 10, 20), (0, 25)])
def test_a_manifest_never_shrinks_by_itself(bounds: tuple[int, ...], caplog: pytest.LogCaptureFixture) -> None:
    """The partition has fewer messages than the archive, or others: its disk has lost some, or was set back."""
    store, file_system, other = store_of(), disk(), replace(IDENTITY, partition_id=1)
    for first, end in ((0, 10), (10, 25)):
        plant_segment(file_system, first, end)
    whole = captured((0, 10, 25))
    Process(store, file_system, seed=1).run(capture(whole))
    for first, end in pairwise(bounds):
        plant_segment(file_system, first, end)
    process = Process(store, file_system, seed=2)
    behind = captured(bounds)
    for _ in range(2):
        process.run(capture(behind, replace(behind, identity=other, segments=()), metadata=None))
    assert archived_bytes(store) == expected_bytes(0, 25)
    assert process.confirmed[IDENTITY] == frozenset(), "nothing of it may be deleted"
    assert process.writer.counters.failure_count == 2
    assert caplog.text.count("lacks messages which the archive has") == 1
    root = ArchiveReader(store, CLUSTER).newest_root()
    assert root is not None
    assert [found.next_offset for found in root.root.partitions] == [25, bounds[-1]], "the other goes on"
    Process(store, file_system, seed=3, take_over=True).run(capture(behind))
    assert archived_bytes(store) == expected_bytes(0, bounds[-1])


def test_a_partition_that_cannot_be_read_does_not_stop_the_others() -> None:
    store, file_system = store_of(), disk()
    process = Process(store, file_system)
    process.run(capture(captured(BOUNDS[:2])))
    assert process.writer.counters.failure_count == 1
    assert process.confirmed == {IDENTITY: frozenset()}


def test_offsets_and_times_are_found() -> None:
    store, file_system = store_of(), disk()
    for first, end in ((0, 10), (10, 25)):
        plant_segment(file_system, first, end)
    Process(store, file_system).run(capture(captured(BOUNDS[:3])))
    reader = ArchiveReader(store, CLUSTER)
    found = reader.newest_root()
    assert found is not None
    archive = reader.partition(found.root, IDENTITY)
    assert archive is not None
    place = archive.find(12)
    assert place is not None
    assert place.is_copy_of(facts(10, 25))
    assert archive.read(place, 2 * MESSAGE_SIZE, MESSAGE_SIZE) == expected_bytes(12, 13)
    assert archive.find(25) is None
