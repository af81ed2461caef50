"""What ``prune`` removes, and what it must not."""

import random

from courser.archive.capture import Capture
from courser.archive.care import Verification, plan_removals, remove
from courser.archive.keys import segment_name
from courser.archive.reader import ArchiveReader
from courser.testing.object_store import FakeStore
from tests.archive.writing import (
    CLUSTER,
    IDENTITY,
    Process,
    archived_bytes,
    capture,
    captured,
    disk,
    expected_bytes,
    plant_segment,
)


def at(time: int, what: Capture) -> Capture:
    return Capture(time=time, op=what.op, metadata=what.metadata, partitions=what.partitions)


def prune(store: FakeStore, since: int) -> None:
    reader = ArchiveReader(store, CLUSTER)
    remove(reader, plan_removals(reader, since), lambda _: None)
    found = reader.newest_root()
    assert found is not None
    assert not list(Verification(reader, found, reads_bytes=True).findings())


def ranges(store: FakeStore) -> list[tuple[int, int]]:
    names = [segment_name(key) for key in store.objects if key.endswith(".log")]
    return sorted((name.first_offset, name.end_offset) for name in names if name is not None)


def archive_with_pieces() -> FakeStore:
    """Two pieces of a segment at times 100 and 200, and the sealed segment at 300."""
    store, file_system = FakeStore(random.Random(1)), disk()
    plant_segment(file_system, 0, 40)
    process = Process(store, file_system)
    process.run(at(100, capture(captured((0,), open_end=10))))
    process.run(at(200, capture(captured((0,), open_end=25))))
    process.run(at(300, capture(captured((0, 40)))))
    return store


def test_pieces_that_were_merged_are_removed_when_no_restore_needs_them() -> None:
    store = archive_with_pieces()
    prune(store, since=0)
    assert ranges(store) == [(0, 10), (0, 40), (10, 25)], "all times can still be restored"
    prune(store, since=250)
    assert ranges(store) == [(0, 10), (0, 40), (10, 25)], "the root of 200 has the state of 250"
    prune(store, since=300)
    assert ranges(store) == [(0, 40)]
    assert archived_bytes(store) == expected_bytes(0, 40)


def test_what_a_killed_run_left_is_kept_until_it_is_named_or_replaced() -> None:
    store, file_system = FakeStore(random.Random(1)), disk()
    plant_segment(file_system, 0, 10)
    plant_segment(file_system, 10, 25)
    first = Process(store, file_system, seed=1)
    first.run(at(100, capture(captured((0, 10)))))
    # Uploaded, and then the process is killed before it writes the manifest.
    leftover = next(key for key in store.objects if key.endswith(".log"))
    orphan = leftover.replace(f"{0:020d}-{10:020d}", f"{10:020d}-{25:020d}")
    store.put_new(orphan, expected_bytes(10, 25))
    Process(store, file_system, seed=2).run(at(200, capture(captured((0, 10)))))
    prune(store, since=300)
    assert orphan in store.objects, "the next run may be about to use it"
    third = Process(store, file_system, seed=3)
    third.run(at(300, capture(captured((0, 10, 25)))))
    assert third.writer.counters.adopted_count == 1
    prune(store, since=400)
    assert archived_bytes(store) == expected_bytes(0, 25)


def test_what_was_purged_and_what_was_deleted_is_removed() -> None:
    store, file_system = FakeStore(random.Random(1)), disk()
    plant_segment(file_system, 0, 10)
    plant_segment(file_system, 10, 25)
    process = Process(store, file_system)
    process.run(at(100, capture(captured((0, 10)))))
    process.run(at(200, capture(captured((10, 25), purge_count=1, start_offset=10))))
    prune(store, since=200)
    assert ranges(store) == [(10, 25)]
    process.run(at(300, capture()))
    assert IDENTITY not in process.confirmed or ranges(store)
    prune(store, since=300)
    assert ranges(store) == [(10, 25)], "this epoch may still name it"
    Process(store, file_system, seed=2).run(at(400, capture()))
    prune(store, since=400)
    assert ranges(store) == []


def test_what_retention_deleted_on_the_server_is_kept() -> None:
    store, file_system = FakeStore(random.Random(1)), disk()
    plant_segment(file_system, 0, 10)
    plant_segment(file_system, 10, 25)
    process = Process(store, file_system)
    process.run(at(100, capture(captured((0, 10, 25)))))
    process.run(at(200, capture(captured((10, 25), start_offset=10))))
    prune(store, since=300)
    assert archived_bytes(store) == expected_bytes(0, 25)


def test_a_prune_that_is_interrupted_leaves_a_good_archive() -> None:
    count = len(plan_removals(ArchiveReader(archive_with_pieces(), CLUSTER), 300))
    for done in range(count + 1):
        store = archive_with_pieces()
        reader = ArchiveReader(store, CLUSTER)
        remove(reader, plan_removals(reader, 300)[:done], lambda _: None)
        for found in reader.roots():
            assert not list(Verification(reader, found, reads_bytes=True).findings())
