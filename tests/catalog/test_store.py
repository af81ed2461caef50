"""The catalog on disk: when snapshots are taken, what a sick disk does to it, what a start does with what is left."""

import contextlib
import errno
import random

import pytest
import xxhash

from courser.catalog import changes as c
from courser.catalog.changes import encode_change
from courser.catalog.state import CatalogState
from courser.catalog.store import CatalogSettings, CatalogStore
from courser.errors import CommandRejected, DiskFull, JournalFull, MetadataDamaged, MetadataReadOnly, StorageFailure
from courser.model.topic_options import TopicOptions
from courser.storage.journal_entries import SnapshotMark, make_entry
from courser.storage.recovery_cases import StopKind
from courser.storage.snapshot import Snapshot, encode_snapshot, read_snapshot
from tests.catalog.opening import open_journal, open_store
from tests.catalog.scenes import JOURNAL_PATH, SNAPSHOT_PATH, image, uuid
from tests.fakes.clocks import ManualClock
from tests.fakes.files import CrashMoment, FakeFileSystem, FaultPlan, SimulatedCrash
from tests.simulator.catalog_simulation import DATA

SMALL = CatalogSettings(slot_count=8, slot_margin=2)
JOURNAL_NAME, SNAPSHOT_NAME = JOURNAL_PATH.name, SNAPSHOT_PATH.name
JOURNAL_TEMPORARY = JOURNAL_PATH.with_name(JOURNAL_NAME + ".tmp")
SNAPSHOT_TEMPORARY = SNAPSHOT_PATH.with_name(SNAPSHOT_NAME + ".tmp")


class Scene:
    """A store on a fake disk."""

    def __init__(self, settings: CatalogSettings | None = None) -> None:
        self.disk = FakeFileSystem(random.Random(1))
        self.disk.plant_directory(DATA)
        self.clock = ManualClock()
        self.settings = settings
        self.store = self.open(StopKind.CRASHED)

    def open(self, stop: StopKind = StopKind.KILLED) -> CatalogStore:
        return open_store(self.disk, DATA, clock=self.clock, stop=stop, settings=self.settings)

    def restart(self) -> CatalogStore:
        self.disk.power_cut()
        self.disk.plan = FaultPlan()
        self.store = self.open(StopKind.CRASHED)
        return self.store

    def create(self, count: int = 1) -> None:
        for _ in range(count):
            number = self.store.state.stream_ids.next_id
            self.store.submit(c.StreamCreation(f"stream {number}", uuid(number % 256)))

    def refusal(self, stop: StopKind = StopKind.KILLED) -> MetadataDamaged:
        self.disk.kill()
        before = image(self.disk)
        with pytest.raises(MetadataDamaged) as caught:
            self.open(stop)
        assert image(self.disk) == before
        assert "recreate_missing_state" in str(caught.value)
        return caught.value


# --- when a snapshot is taken ---


def test_a_snapshot_is_forced_when_64_of_1024_slots_are_left() -> None:
    scene = Scene()
    scene.create(960)
    assert (scene.store.snapshot_op, scene.store.remaining_count) == (None, 64)
    scene.create()
    assert scene.store.snapshot_op == 959
    assert (scene.store.last_op, scene.store.remaining_count) == (960, 1023)
    assert len(scene.restart().state.streams) == 961


def test_a_snapshot_is_due_by_size() -> None:
    scene = Scene(CatalogSettings(journal_size_max=3000))
    while len(scene.disk.contents(JOURNAL_PATH)) < 3000:
        assert not scene.store.is_snapshot_due()
        scene.create()
    assert scene.store.is_snapshot_due()
    scene.store.take_snapshot()
    assert not scene.store.is_snapshot_due()


def test_a_snapshot_is_due_by_age_of_the_oldest_entry() -> None:
    scene = Scene(CatalogSettings(snapshot_age_max=100))
    assert not scene.store.is_snapshot_due()
    scene.create()
    scene.clock.advance(60)
    scene.create()
    scene.clock.advance(39)
    assert not scene.store.is_snapshot_due()
    scene.clock.advance(1)
    assert scene.store.is_snapshot_due()
    # A restart does not make it younger.
    assert scene.restart().is_snapshot_due()
    scene.store.take_snapshot()
    scene.clock.advance(1000)
    assert not scene.store.is_snapshot_due()


def test_the_default_limits() -> None:
    settings = CatalogSettings()
    assert (settings.slot_count, settings.slot_margin) == (1024, 64)
    assert (settings.journal_size_max, settings.snapshot_age_max) == (16 * 1024 * 1024, 3600 * 1_000_000)
    with pytest.raises(ValueError, match="margin"):
        CatalogSettings(slot_count=64, slot_margin=64)


def test_without_a_command_there_is_no_snapshot() -> None:
    scene = Scene()
    scene.store.take_snapshot()
    assert not [path for path in scene.disk.files() if path == SNAPSHOT_PATH]
    scene.create()
    scene.store.take_snapshot()
    assert scene.store.snapshot_op == 0
    assert scene.restart().snapshot_op == 0


def test_the_cost_of_a_start_does_not_grow_with_history() -> None:
    scene = Scene(SMALL)
    scene.create()
    scene.store.submit(c.TopicCreation(0, "topic", uuid(1), 0, TopicOptions()))
    for _ in range(200):
        scene.store.submit(c.TopicPurge(0, 0))
        assert len(scene.disk.contents(JOURNAL_PATH)) <= 8 * 300
    assert scene.restart().state.streams[0].topics[0].purge_count == 200


# --- snapshots that fail ---


@pytest.mark.parametrize(
    ("operation", "name"),
    [
        ("open", SNAPSHOT_TEMPORARY.name),
        ("write_at", SNAPSHOT_TEMPORARY.name),
        ("sync", SNAPSHOT_TEMPORARY.name),
        ("rename", SNAPSHOT_TEMPORARY.name),
        ("sync_directory", None),
        ("open", JOURNAL_TEMPORARY.name),
        ("sync", JOURNAL_TEMPORARY.name),
        ("rename", JOURNAL_TEMPORARY.name),
    ],
)
def test_a_snapshot_that_fails_stops_nobody_until_the_journal_is_full(operation: str, name: str | None) -> None:
    scene = Scene(SMALL)
    scene.create(6)
    scene.disk.plan = FaultPlan().fail(operation, errno.EIO, onwards=True, name=name)
    scene.create(2)
    assert "could not" in str(scene.store.snapshot_failure)
    assert (scene.store.snapshot_op, scene.store.last_op) == (None, 7)
    before = scene.store.state.encode()
    with pytest.raises(JournalFull, match="8 entries"):
        scene.create()
    assert scene.store.state.encode() == before
    scene.disk.plan = FaultPlan()
    scene.create()
    assert (scene.store.snapshot_op, scene.store.snapshot_failure) == (7, None)
    assert len(scene.restart().state.streams) == 9


def test_a_failed_directory_sync_after_the_drain_ends_all_commands() -> None:
    scene = Scene(SMALL)
    scene.create(6)
    # The first one is that of the snapshot.
    scene.disk.plan = FaultPlan().fail("sync_directory", errno.EIO, call=2)
    with pytest.raises(MetadataReadOnly):
        scene.create()
    with pytest.raises(MetadataReadOnly):
        scene.create()
    assert scene.store.failure is not None
    assert len(scene.restart().state.streams) == 6
    scene.create()


# --- commands that fail ---


def test_a_full_disk_refuses_the_command_and_later_ones_work() -> None:
    scene = Scene()
    scene.create(2)
    scene.disk.capacity = scene.disk.used + 100
    with pytest.raises(DiskFull):
        scene.create(1000)
    before = scene.store.state.encode(), image(scene.disk)
    count = len(scene.store.state.streams)
    for _ in range(3):
        with pytest.raises(DiskFull):
            scene.create()
        assert (scene.store.state.encode(), image(scene.disk)) == before
    # What makes room finds it.
    scene.store.submit(c.StreamDeletion(0))
    with pytest.raises(DiskFull):
        scene.create()
    scene.disk.capacity = None
    scene.create()
    assert len(scene.restart().state.streams) == count


def test_a_journal_without_snapshots_keeps_slots_for_what_makes_room() -> None:
    scene = Scene(CatalogSettings(slot_count=32, slot_margin=16))
    scene.disk.plan = FaultPlan().fail("open", errno.ENOSPC, onwards=True, name=SNAPSHOT_TEMPORARY.name)
    with pytest.raises(JournalFull):
        scene.create(32)
    count = len(scene.store.state.streams)
    assert count == 28
    for stream_id in range(4):
        scene.store.submit(c.StreamDeletion(stream_id))
    with pytest.raises(JournalFull):
        scene.store.submit(c.StreamDeletion(5))
    scene.disk.plan = FaultPlan()
    scene.create()
    assert len(scene.restart().state.streams) == count - 3


def test_a_failed_sync_is_neither_applied_nor_believed_later() -> None:
    scene = Scene()
    scene.create(2)
    before = scene.store.state.encode()
    scene.disk.plan = FaultPlan().fail("sync", errno.EIO, name=JOURNAL_NAME)
    with pytest.raises(StorageFailure):
        scene.create()
    assert scene.store.state.encode() == before
    with pytest.raises(MetadataReadOnly, match="restarted"):
        scene.create()
    assert scene.store.failure is not None
    # A poisoned journal takes no snapshot either: it would drop the entry that may or may not be there.
    scene.store.take_snapshot()
    assert SNAPSHOT_PATH not in scene.disk.files()
    assert len(scene.restart().state.streams) in (2, 3)
    scene.create()


def test_a_command_that_cannot_be_stored_is_rejected_before_the_journal() -> None:
    scene = Scene()
    scene.create()
    before = image(scene.disk)
    with pytest.raises(CommandRejected, match="cannot be stored"):
        scene.store.submit(c.TopicCreation(0, "topic", uuid(1), 0, TopicOptions(segment_size=2**70)))
    assert image(scene.disk) == before


# --- starts ---


def test_leftovers_beside_sound_files_are_removed() -> None:
    scene = Scene(SMALL)
    scene.create(9)
    state = scene.store.state.encode()
    snapshot = read_snapshot(scene.disk, SNAPSHOT_PATH)
    assert snapshot is not None
    scene.disk.kill()
    scene.disk.plant(JOURNAL_TEMPORARY, b"half a journal")
    # The same sequence with another state: only the final name counts.
    scene.disk.plant(SNAPSHOT_TEMPORARY, encode_snapshot(Snapshot(snapshot.mark, bytes(16), 0, b"another state")))
    assert scene.restart().state.encode() == state
    assert read_snapshot(scene.disk, SNAPSHOT_PATH) == snapshot
    assert sorted(scene.disk.files()) == [JOURNAL_PATH, SNAPSHOT_PATH]
    scene.disk.power_cut()
    assert sorted(scene.disk.files()) == [JOURNAL_PATH, SNAPSHOT_PATH]


def test_a_temporary_snapshot_without_a_final_one_is_none() -> None:
    scene = Scene()
    scene.create(3)
    scene.disk.kill()
    body = CatalogState().encode()
    snapshot = Snapshot(SnapshotMark(2, bytes(16)), xxhash.xxh3_128_digest(body), 0, body)
    scene.disk.plant(SNAPSHOT_TEMPORARY, encode_snapshot(snapshot))
    assert scene.restart().snapshot_op is None
    assert len(scene.store.state.streams) == 3


def test_a_snapshot_newer_than_the_journal_is_the_state() -> None:
    scene = Scene()
    scene.create(3)
    old_journal = scene.disk.contents(JOURNAL_PATH)
    scene.create(4)
    scene.store.take_snapshot()
    state = scene.store.state.encode()
    scene.disk.kill()
    scene.disk.plant(JOURNAL_PATH, old_journal)
    assert scene.restart().state.encode() == state
    scene.create()
    state = scene.store.state.encode()
    assert scene.restart().state.encode() == state


def test_covered_entries_of_an_interrupted_drain_are_not_applied_again() -> None:
    scene = Scene()
    scene.create()
    scene.store.submit(c.TopicCreation(0, "topic", uuid(1), 1, TopicOptions()))
    scene.store.submit(c.TopicPurge(0, 0))
    journal, state = scene.disk.contents(JOURNAL_PATH), scene.store.state.encode()
    scene.store.take_snapshot()
    scene.disk.kill()
    scene.disk.plant(JOURNAL_PATH, journal)
    for _ in range(3):
        assert scene.restart().state.encode() == state


def test_a_state_whose_hash_is_not_the_stored_one_is_refused() -> None:
    scene = Scene()
    scene.create(3)
    scene.store.take_snapshot()
    snapshot = read_snapshot(scene.disk, SNAPSHOT_PATH)
    assert snapshot is not None
    wrong_hash = Snapshot(snapshot.mark, b"another hash....", 0, snapshot.body)
    # A body that can be read, and that this version would have written in another way.
    other_form = snapshot.body.replace(b"\xa8stream 0", b"\xd9\x08stream 0")
    assert other_form != snapshot.body
    no_state = b"\x91\xc0"
    for bad in (
        wrong_hash,
        Snapshot(snapshot.mark, xxhash.xxh3_128_digest(other_form), 0, other_form),
        Snapshot(snapshot.mark, xxhash.xxh3_128_digest(no_state), 0, no_state),
    ):
        scene.disk.plant(SNAPSHOT_PATH, encode_snapshot(bad))
        assert str(SNAPSHOT_PATH) in str(scene.refusal())


@pytest.mark.parametrize("stop", StopKind)
def test_an_entry_that_is_no_command_is_refused_by_its_position(stop: StopKind) -> None:
    scene = Scene()
    scene.create(2)
    journal = scene.disk.contents(JOURNAL_PATH)
    last = open_journal(scene.disk, JOURNAL_PATH, snapshot=None, stop=StopKind.CLEAN).last
    assert last is not None
    _, strange = make_entry(op=2, timestamp=0, kind=99, parent=last.checksum, body=b"\x91\x63")
    torn = b"" if stop is StopKind.CLEAN else b"torn"
    # Nothing is cut and no leftover goes while the start may still be refused.
    scene.disk.plant(JOURNAL_PATH, journal + strange + torn)
    scene.disk.plant(JOURNAL_TEMPORARY, b"left over")
    refusal = scene.refusal(stop)
    assert refusal.position == len(journal)
    assert "op 2" in str(refusal)


def test_an_entry_for_something_that_was_never_made_changes_nothing() -> None:
    scene = Scene()
    scene.create(2)
    journal = scene.disk.contents(JOURNAL_PATH)
    state = scene.store.state.encode()
    last = open_journal(scene.disk, JOURNAL_PATH, snapshot=None, stop=StopKind.CLEAN).last
    assert last is not None
    body = encode_change(c.StreamDeletion(77))
    scene.disk.kill()
    scene.disk.plant(JOURNAL_PATH, journal + make_entry(op=2, timestamp=0, kind=3, parent=last.checksum, body=body)[1])
    assert scene.restart().state.encode() == state
    assert scene.store.last_op == 2


def test_a_killed_first_start_loses_no_later_command() -> None:
    for position in range(1, 12):
        scene = Scene.__new__(Scene)
        scene.disk, scene.clock, scene.settings = FakeFileSystem(random.Random(position)), ManualClock(), None
        scene.disk.plant_directory(DATA)
        scene.disk.plan = FaultPlan().crash_at(position, CrashMoment.BEFORE)
        with contextlib.suppress(SimulatedCrash):
            scene.open()
        scene.disk.kill()
        scene.disk.plan = FaultPlan()
        scene.store = scene.open()
        scene.create()
        assert len(scene.restart().state.streams) == 1
