"""The metadata journal: what is appended is durable, what a crash tears is cut, and everything else is refused.

A refusal names the file, the position and the remedy, and changes no byte. ``tests/catalog/test_seed_tests.py`` has
the plain cases.
"""

import errno
import random
import struct
import tracemalloc
from contextlib import suppress
from pathlib import Path

import pytest
import xxhash

from courser.errors import DiskFull, JournalFull, MetadataDamaged, MetadataReadOnly, StorageFailure
from courser.storage import journal as storage_journal
from courser.storage.journal import RESERVE_SIZE, Journal
from courser.storage.journal_entries import (
    ENTRY_HEADER_SIZE,
    ENTRY_SIZE_MAX,
    NO_PARENT,
    BadEntry,
    Entry,
    Fault,
    FaultKind,
    JournalScan,
    ScannedEntry,
    SnapshotMark,
    decode_entry,
    make_entry,
)
from courser.storage.paths import QUARANTINE
from courser.storage.recovery_cases import StopKind
from tests.catalog.opening import open_journal
from tests.fakes.files import FakeFileSystem, FaultPlan

PATH = Path("/data/metadata/journal.wal")
TEMPORARY = PATH.with_name("journal.wal.tmp")
UNCLEAN = (StopKind.KILLED, StopKind.CRASHED)
REMEDY = "recreate_missing_state"


class Scene:
    """A journal on a fake disk, and its entries."""

    def __init__(self, count: int = 0, *, slot_count: int = 16) -> None:
        self.disk = FakeFileSystem(random.Random(1))
        self.disk.plant_directory(PATH.parent)
        self.slot_count = slot_count
        self.journal = self.open(StopKind.CRASHED)
        self.entries = [self.append() for _ in range(count)]

    def open(self, stop: StopKind, mark: SnapshotMark | None = None) -> Journal:
        return open_journal(self.disk, PATH, snapshot=mark, stop=stop, slot_count=self.slot_count)

    def append(self, size: int = 20, *, may_use_reserve: bool = False) -> Entry:
        journal = self.journal
        entry, data = journal.make_next(timestamp=5, kind=1, body=f"body {journal.next_op}".ljust(size).encode())
        journal.append(entry, data, may_use_reserve=may_use_reserve)
        return entry

    @property
    def data(self) -> bytes:
        return self.disk.contents(PATH)

    def bytes_of(self, op: int) -> bytes:
        start = sum(entry.size for entry in self.entries[:op])
        return self.data[start : start + self.entries[op].size]

    def plant(self, data: bytes) -> None:
        self.disk.kill()
        self.disk.plant(PATH, data)

    def refusal(self, stop: StopKind = StopKind.CRASHED, mark: SnapshotMark | None = None) -> MetadataDamaged:
        """The open is refused, names file and remedy, and changes nothing."""
        before = {path: self.disk.contents(path) for path in self.disk.files()}
        with pytest.raises(MetadataDamaged) as caught:
            self.open(stop, mark)
        assert {path: self.disk.contents(path) for path in self.disk.files()} == before
        assert str(PATH) in str(caught.value)
        assert REMEDY in str(caught.value)
        assert f"byte {caught.value.position}" in str(caught.value)
        return caught.value


def mark_of(entry: Entry) -> SnapshotMark:
    return SnapshotMark(entry.op, entry.checksum)


# --- the end of the file ---


@pytest.mark.parametrize("stop", UNCLEAN)
def test_the_last_entry_may_be_torn_at_any_byte(stop: StopKind) -> None:
    scene = Scene(3)
    whole = scene.data
    start = len(whole) - scene.entries[2].size
    for cut in range(start + 1, len(whole)):
        torn = Scene()
        torn.plant(whole[:cut])
        journal = torn.open(stop)
        assert journal.entries() == scene.entries[:2]
        assert torn.data == whole[:start]
        assert journal.size == start
        kept = [path for path in torn.disk.files() if path.parent.name == QUARANTINE]
        # Zeros behind the data are not worth keeping.
        assert [torn.disk.contents(path) for path in kept] == [whole[start:cut].rstrip(b"\0")]


@pytest.mark.parametrize("stop", UNCLEAN)
def test_after_a_torn_end_the_next_entry_takes_its_place(stop: StopKind) -> None:
    scene = Scene(3)
    scene.plant(scene.data[:-1])
    scene.journal = scene.open(stop)
    last = scene.append(50)
    assert last.op == 2
    scene.disk.power_cut()
    assert scene.open(StopKind.CRASHED).entries() == [*scene.entries[:2], last]


def test_after_a_clean_stop_no_end_is_torn() -> None:
    scene = Scene(3)
    whole = scene.data
    start = len(whole) - scene.entries[2].size
    for cut in range(start + 1, len(whole)):
        scene.plant(whole[:cut])
        assert scene.refusal(StopKind.CLEAN).position == start
    scene.plant(whole + bytes(600))
    assert scene.refusal(StopKind.CLEAN).position == len(whole)


@pytest.mark.parametrize("garbage", [bytes(1), bytes(4096), b"\xff" * 300, b"CRSJ" * 200])
def test_bytes_that_are_no_entry_are_cut_at_the_end(garbage: bytes) -> None:
    scene = Scene(3)
    whole = scene.data
    scene.plant(whole + garbage)
    assert scene.open(StopKind.CRASHED).entries() == scene.entries
    assert scene.data == whole


def test_an_entry_of_a_later_version_is_not_torn() -> None:
    scene = Scene(2)
    header = bytearray(scene.bytes_of(1)[:ENTRY_HEADER_SIZE])
    header[56:58] = struct.pack("<H", 2)
    header[:16] = xxhash.xxh3_128_digest(header[16:])
    scene.plant(scene.bytes_of(0) + bytes(header) + scene.bytes_of(1)[ENTRY_HEADER_SIZE:])
    assert "format 2" in str(scene.refusal())


# --- before the end ---


def test_damage_before_the_last_entry_is_refused_wherever_it_is() -> None:
    scene = Scene(3)
    whole = scene.data
    for position in range(len(whole) - scene.entries[2].size):
        damaged = bytearray(whole)
        damaged[position] ^= 0x40
        for stop in StopKind:
            scene.plant(bytes(damaged))
            refusal = scene.refusal(stop)
            assert refusal.position == (0 if position < scene.entries[0].size else scene.entries[0].size)


def test_a_missing_op_is_refused() -> None:
    scene = Scene(4)
    scene.plant(scene.bytes_of(0) + scene.bytes_of(1) + scene.bytes_of(3))
    refusal = scene.refusal()
    assert "op 2 is missing" in str(refusal)
    assert refusal.position == scene.entries[0].size + scene.entries[1].size


def test_a_missing_first_op_is_refused() -> None:
    scene = Scene(3)
    scene.plant(scene.data[scene.entries[0].size :])
    assert "op 0 is missing" in str(scene.refusal())


def test_a_gap_behind_the_snapshot_is_refused() -> None:
    scene = Scene(5)
    scene.plant(scene.bytes_of(4))
    assert "op 3 is missing" in str(scene.refusal(mark=mark_of(scene.entries[2])))


def test_an_entry_that_does_not_follow_its_parent_is_refused() -> None:
    scene = Scene(2)
    _, foreign = make_entry(op=2, timestamp=5, kind=1, parent=b"another parent..", body=b"")
    scene.plant(scene.data + foreign)
    refusal = scene.refusal()
    assert "does not follow" in str(refusal)
    assert refusal.position == len(scene.data) - len(foreign)


def test_a_first_entry_with_a_parent_is_refused() -> None:
    scene = Scene()
    scene.plant(make_entry(op=0, timestamp=5, kind=1, parent=b"another parent..", body=b"")[1])
    assert "does not follow" in str(scene.refusal())


def test_a_journal_of_another_history_than_the_snapshots_is_refused() -> None:
    scene = Scene(3)
    assert "snapshot" in str(scene.refusal(mark=SnapshotMark(2, b"another history.")))
    assert "snapshot" in str(scene.refusal(mark=SnapshotMark(1, b"another history.")))
    scene.plant(scene.bytes_of(2))
    assert "does not follow" in str(scene.refusal(mark=SnapshotMark(1, b"another history.")))


def test_the_chain_is_also_checked_where_the_snapshot_covers_it() -> None:
    scene = Scene(4)
    scene.plant(scene.bytes_of(0) + scene.bytes_of(2) + scene.bytes_of(3))
    assert "op 1 is missing" in str(scene.refusal(mark=mark_of(scene.entries[3])))


def test_a_conflicting_repetition_is_refused() -> None:
    scene = Scene(3)
    parent = scene.entries[0].checksum
    _, other = make_entry(op=1, timestamp=5, kind=1, parent=parent, body=b"something else")
    scene.plant(scene.data + other)
    refusal = scene.refusal()
    assert "op 1 occurs twice" in str(refusal)
    assert refusal.position == len(scene.data) - len(other)


@pytest.mark.parametrize("covered", [None, 0, 1, 2])
@pytest.mark.parametrize("repeated", [0, 1, 2])
def test_an_identical_repetition_is_passed_over(repeated: int, covered: int | None) -> None:
    scene = Scene(3)
    scene.plant(scene.data + scene.bytes_of(repeated))
    mark = None if covered is None else mark_of(scene.entries[covered])
    scene.journal = scene.open(StopKind.CLEAN, mark)
    assert scene.journal.entries() == scene.entries[0 if covered is None else covered + 1 :]
    last = scene.append()
    scene.disk.power_cut()
    assert scene.open(StopKind.CRASHED, mark).last == mark_of(last)


# --- a snapshot that is newer than the journal ---


def test_entries_far_below_the_snapshot_are_dropped_before_the_next_append() -> None:
    scene = Scene(3)
    mark = SnapshotMark(10, b"rebuilt at op 10")
    scene.disk.kill()
    scene.journal = scene.open(StopKind.KILLED, mark)
    assert scene.journal.entries() == []
    last = scene.append()
    assert (last.op, last.parent) == (11, mark.checksum)
    scene.disk.power_cut()
    assert scene.open(StopKind.CRASHED, mark).entries() == [last]


# --- sizes ---


def test_an_entry_has_at_most_64_mebibytes() -> None:
    largest = bytes(ENTRY_SIZE_MAX - ENTRY_HEADER_SIZE)
    entry, data = make_entry(op=0, timestamp=0, kind=1, parent=NO_PARENT, body=largest)
    assert entry.size == len(data) == ENTRY_SIZE_MAX == 64 * 1024 * 1024
    scene = Scene()
    with pytest.raises(ValueError, match="larger than"):
        scene.journal.make_next(timestamp=0, kind=1, body=largest + b"!")
    assert scene.data == b""


@pytest.mark.parametrize("size", [0, 255, ENTRY_SIZE_MAX + 1, 2**32 - 1])
def test_an_impossible_size_takes_no_memory(size: int) -> None:
    scene = Scene(1)
    header = bytearray(scene.bytes_of(0)[:ENTRY_HEADER_SIZE])
    header[48:52] = struct.pack("<I", size)
    header[:16] = xxhash.xxh3_128_digest(header[16:])
    scene.plant(bytes(header) + bytes(1000))
    tracemalloc.start()
    try:
        assert f"invalid entry size of {size} bytes" in str(scene.refusal())
        assert tracemalloc.get_traced_memory()[1] < 1024 * 1024
    finally:
        tracemalloc.stop()


def test_a_size_beyond_the_end_takes_no_memory() -> None:
    scene = Scene(1)
    header = bytearray(scene.bytes_of(0)[:ENTRY_HEADER_SIZE])
    header[48:52] = struct.pack("<I", ENTRY_SIZE_MAX)
    header[:16] = xxhash.xxh3_128_digest(header[16:])
    tracemalloc.start()
    try:
        with pytest.raises(BadEntry, match="ends inside an entry"):
            decode_entry(bytes(header), 0, len(header))
        assert tracemalloc.get_traced_memory()[1] < 1024 * 1024
    finally:
        tracemalloc.stop()


# --- slots ---


def test_the_ring_has_as_many_slots_as_it_is_told() -> None:
    scene = Scene(4, slot_count=4)
    assert scene.journal.remaining_count == 0
    with pytest.raises(JournalFull, match="4 entries"):
        scene.append()
    scene.journal.drain(mark_of(scene.entries[1]))
    assert scene.journal.remaining_count == 2
    later = [scene.append(), scene.append()]
    assert scene.journal.entries() == [*scene.entries[2:], *later]
    with pytest.raises(JournalFull):
        scene.append()


def test_slots_wrap_around_many_times() -> None:
    scene = Scene(slot_count=4)
    mark: SnapshotMark | None = None
    for round_number in range(10):
        entries = [scene.append() for _ in range(3)]
        assert [scene.journal.entry(entry.op) for entry in entries] == entries
        assert [scene.journal.position(entry.op) for entry in entries] == [0, entries[0].size, 2 * entries[0].size]
        mark = mark_of(entries[-1])
        scene.journal.drain(mark)
        assert scene.journal.next_op == 3 * (round_number + 1)
    scene.disk.power_cut()
    assert scene.open(StopKind.CRASHED, mark).next_op == 30


def test_more_entries_than_slots_are_refused() -> None:
    scene = Scene(5)
    scene.slot_count = 4
    scene.disk.kill()
    assert "more than 4 entries" in str(scene.refusal())


def test_op_zero_and_no_snapshot_are_told_apart() -> None:
    scene = Scene(2)
    assert scene.journal.snapshot is None
    scene.disk.kill()
    journal = scene.open(StopKind.KILLED, mark_of(scene.entries[0]))
    assert journal.snapshot == SnapshotMark(0, scene.entries[0].checksum)
    assert journal.entries() == scene.entries[1:]
    assert (journal.remaining_count, journal.next_op) == (15, 2)
    scene.disk.kill()
    assert scene.open(StopKind.KILLED).entries() == scene.entries


# --- draining ---


def test_the_snapshot_mark_never_falls() -> None:
    scene = Scene(4)
    scene.journal.drain(mark_of(scene.entries[2]))
    before = scene.data
    with pytest.raises(ValueError, match="is older than"):
        scene.journal.drain(mark_of(scene.entries[1]))
    assert scene.journal.snapshot == mark_of(scene.entries[2])
    assert scene.data == before
    scene.journal.drain(mark_of(scene.entries[2]))
    assert scene.journal.entries() == scene.entries[3:]


@pytest.mark.parametrize(
    ("operation", "name"),
    [("open", TEMPORARY.name), ("write_at", TEMPORARY.name), ("sync", TEMPORARY.name), ("rename", TEMPORARY.name)],
)
def test_a_drain_that_fails_before_its_rename_leaves_the_journal_as_it_was(operation: str, name: str) -> None:
    scene = Scene(4)
    before = scene.data
    scene.disk.plan = FaultPlan().fail(operation, errno.EIO, name=name)
    with pytest.raises(StorageFailure):
        scene.journal.drain(mark_of(scene.entries[1]))
    assert scene.journal.failure is None
    assert scene.journal.snapshot is None
    assert scene.data == before
    last = scene.append()
    scene.journal.drain(mark_of(scene.entries[1]))
    scene.disk.power_cut()
    assert scene.open(StopKind.CRASHED, mark_of(scene.entries[1])).entries() == [*scene.entries[2:], last]


def test_a_failed_directory_sync_after_a_drain_ends_all_appends() -> None:
    scene = Scene(4)
    scene.disk.plan = FaultPlan().fail("sync_directory", errno.EIO)
    with pytest.raises(StorageFailure, match="sync"):
        scene.journal.drain(mark_of(scene.entries[3]))
    assert scene.journal.failure is not None
    with pytest.raises(MetadataReadOnly, match="restarted"):
        scene.append()
    scene.disk.power_cut()
    # Old file or new one: the snapshot covers everything in it.
    assert scene.open(StopKind.CRASHED, mark_of(scene.entries[3])).entries() == []


# --- failures of the disk ---


def test_a_failed_sync_is_not_believed_later() -> None:
    scene = Scene(2)
    scene.disk.plan = FaultPlan().fail("sync", errno.EIO, name=PATH.name)
    with pytest.raises(StorageFailure, match="sync"):
        scene.append()
    assert scene.journal.next_op == 2
    with pytest.raises(MetadataReadOnly, match=str(PATH)):
        scene.append()


@pytest.mark.parametrize("seed", range(20))
def test_after_a_failed_sync_a_restart_believes_the_disk_and_not_the_kernel(seed: int) -> None:
    scene = Scene(2)
    scene.disk.random = random.Random(seed)
    scene.disk.plan = FaultPlan().fail("sync", errno.EIO, name=PATH.name)
    with pytest.raises(StorageFailure):
        scene.append()
    scene.disk.kill()
    scene.disk.plan = FaultPlan()
    scene.journal = scene.open(StopKind.KILLED)
    shown = scene.journal.entries()
    assert shown[:2] == scene.entries
    last = scene.append()
    scene.disk.power_cut()
    assert scene.open(StopKind.CRASHED).entries() == [*shown, last]


@pytest.mark.parametrize("taken", [0, 1, 255, 256, 270])
def test_a_full_disk_refuses_the_entry_and_keeps_nothing_of_it(taken: int) -> None:
    scene = Scene(2)
    before = scene.data
    # A file system that cannot reserve: the journal believes that it has room.
    scene.journal._file.truncate(len(before))
    scene.disk.capacity = scene.disk.used + taken
    with pytest.raises(DiskFull):
        scene.append()
    assert scene.data == before
    assert scene.journal.failure is None
    scene.disk.capacity = None
    last = scene.append()
    scene.disk.power_cut()
    assert scene.open(StopKind.CRASHED).entries() == [*scene.entries, last]


def test_a_full_disk_keeps_room_for_entries_that_make_room() -> None:
    scene = Scene(2, slot_count=4096)
    scene.disk.capacity = scene.disk.used
    with suppress(DiskFull):
        for _ in range(1000):
            scene.append()
    assert scene.journal.next_op < 1000
    before = scene.data
    with pytest.raises(DiskFull):
        scene.append()
    assert scene.data == before
    for _ in range(RESERVE_SIZE // 512):
        scene.append(may_use_reserve=True)
    # The room is still kept after a restart on the same full disk.
    scene.disk.kill()
    scene.journal = scene.open(StopKind.KILLED)
    scene.append(may_use_reserve=True)
    with pytest.raises(DiskFull):
        scene.append()


@pytest.mark.parametrize("operation", ["truncate", "sync"])
def test_half_an_entry_that_cannot_be_cut_ends_all_appends(operation: str) -> None:
    scene = Scene(2)
    plan = FaultPlan().shorten(take=100, name=PATH.name).fail("write_at", errno.ENOSPC, call=2, name=PATH.name)
    scene.disk.plan = plan.fail(operation, errno.EIO, name=PATH.name)
    with pytest.raises(DiskFull):
        scene.append()
    with pytest.raises(MetadataReadOnly, match="could not remove a partly written entry"):
        scene.append()
    scene.disk.power_cut()
    scene.disk.plan = FaultPlan()
    assert scene.open(StopKind.CRASHED).entries() == scene.entries


def test_a_failed_write_that_is_no_lack_of_space_ends_all_appends() -> None:
    scene = Scene(2)
    scene.disk.plan = FaultPlan().fail("write_at", errno.EIO, name=PATH.name)
    with pytest.raises(StorageFailure, match="write"):
        scene.append()
    with pytest.raises(MetadataReadOnly):
        scene.append()


@pytest.mark.parametrize("step", ["write_all", "sync_file"])
def test_a_defect_in_an_append_ends_all_appends(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it left in the file is unknown: a shorter entry in its place would have its rest behind it."""
    scene = Scene(count=2)
    monkeypatch.setattr(storage_journal, step, broken)
    with pytest.raises(ValueError, match="a defect"):
        scene.append()
    monkeypatch.undo()
    with pytest.raises(MetadataReadOnly, match="a defect"):
        scene.append()


def test_a_defect_in_a_drain_ends_all_appends(monkeypatch: pytest.MonkeyPatch) -> None:
    """The new file may have the name already: what is appended to the old one is gone after a restart."""
    scene = Scene(count=4)
    mark = scene.journal.last
    assert mark is not None
    monkeypatch.setattr(storage_journal, "sync_directory", broken)
    with pytest.raises(ValueError, match="a defect"):
        scene.journal.drain(mark)
    monkeypatch.undo()
    with pytest.raises(MetadataReadOnly, match="a defect"):
        scene.append()


def broken(*_: object) -> None:
    raise ValueError("a defect")


def test_a_write_in_many_small_portions_is_whole() -> None:
    scene = Scene()
    scene.disk.plan = FaultPlan().shorten(take=7, onwards=True)
    entry = scene.append(100)
    scene.disk.power_cut()
    assert scene.open(StopKind.CRASHED).entries() == [entry]


def test_what_a_start_relies_on_survives_a_power_cut() -> None:
    for seed in range(20):
        scene = Scene(1)
        scene.disk.random = random.Random(seed)
        entry, data = scene.journal.make_next(timestamp=1, kind=1, body=b"killed before the sync")
        scene.disk.open(PATH, writable=True).write_at(scene.journal.size, [data])
        scene.disk.kill()
        assert scene.open(StopKind.KILLED).entries() == [*scene.entries, entry]
        scene.disk.power_cut()
        assert scene.open(StopKind.CRASHED).entries() == [*scene.entries, entry]


def test_the_scan_gives_positions_and_the_torn_end() -> None:
    scene = Scene(2)
    found = list(JournalScan(scene.data + b"torn").walk())
    assert [item.position for item in found if isinstance(item, ScannedEntry)] == [0, scene.entries[0].size]
    assert isinstance(found[-1], Fault)
    assert found[-1].fault == FaultKind.TORN_TAIL.value
