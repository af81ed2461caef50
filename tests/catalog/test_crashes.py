"""A crash at every call that changes the disk: the state is the one before the command or the one after it.

Every step is a process from its start to its death: recovery is part of it, so crashes fall into recovery too, and the
start after each crash dies once more. Snapshots and drains come by themselves, because the journal has few slots.
``-rP`` shows how many positions were covered.
"""

import contextlib
import errno
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast
from unittest import mock

import pytest
import xxhash

from courser.catalog import changes as c
from courser.catalog import directories
from courser.catalog import store as store_module
from courser.catalog.entities import UsedIds
from courser.catalog.state import CatalogState
from courser.catalog.store import CatalogStore
from courser.errors import DiskFull, MetadataReadOnly, StartRefused, StorageFailure
from courser.model.topic_options import TopicOptions
from courser.storage import journal as journal_module
from courser.storage.files import File, FileSystem, read_exactly
from courser.storage.journal import Journal
from courser.storage.journal_entries import Entry, JournalScan, ScannedEntry, SnapshotMark
from courser.storage.paths import METADATA_SNAPSHOT
from courser.storage.snapshot import Snapshot, write_snapshot
from tests.catalog.scenes import LIFE, living, uuid
from tests.fakes.files import FaultPlan
from tests.simulator.catalog_simulation import (
    CatalogWorld,
    Coverage,
    CrashDepth,
    CrashKind,
    crash_everywhere,
    live_randomly,
)
from tests.simulator.disk_trouble import RecordingPlan
from tests.simulator.partition_model import BrokenPromise

ALL_SECOND_CRASHES = CrashDepth(second_crashes=None)
SHORT_LIFE: tuple[c.AnyChange, ...] = (
    c.StreamCreation("s", uuid(1)),
    c.TopicCreation(0, "t", uuid(2), 1, TopicOptions()),
    c.StreamCreation("gone", uuid(3)),
    # With the command that forgets it.
    c.StreamDeletion(1),
    c.TopicPurge(0, 0),
    # The journal holds six entries now: this command takes a snapshot first.
    c.StreamUpdate(0, "renamed"),
    c.PartitionDeletion(0, 0, 1),
    c.PartitionCreation(0, 0, 1),
)
SNAPSHOT_TAKEN_AT = 5
"""Which command takes the snapshot."""


def start_and(command: c.AnyChange) -> Callable[[CatalogWorld], object]:
    def step(world: CatalogWorld) -> None:
        world.start()
        assert world.perform(command)

    return step


def world_before(count: int, commands: tuple[c.AnyChange, ...], seed: int) -> CatalogWorld:
    return living(seed, commands[:count], CatalogWorld.new(0).settings)


def report(what: str, coverage: Coverage) -> None:
    print(f"{what}: {coverage}")


def test_a_crash_in_the_first_start(seed: int) -> None:
    world = CatalogWorld.new(seed)
    coverage = crash_everywhere(world, lambda world: world.start(), ALL_SECOND_CRASHES)
    report("first start", coverage)
    assert coverage.positions >= 5


@pytest.mark.parametrize("number", range(len(LIFE)), ids=lambda number: f"{number}-{type(LIFE[number]).__name__}")
def test_a_crash_at_every_call_of_every_command(number: int, seed: int, is_long: bool) -> None:
    world = world_before(number, LIFE, seed)
    power_cuts = 4 if is_long else 1
    coverage = crash_everywhere(world, start_and(LIFE[number]), CrashDepth(power_cuts=power_cuts, second_crashes=1))
    report(type(LIFE[number]).__name__, coverage)
    # A kill and the power cuts before each call, and each once more during the start after it.
    assert coverage.crashes >= 2 * (1 + power_cuts) * coverage.positions


@pytest.mark.parametrize("number", [3, 4, SNAPSHOT_TAKEN_AT, 6], ids=lambda number: type(SHORT_LIFE[number]).__name__)
def test_two_crashes_in_a_row_around_snapshot_and_drain(number: int, seed: int, is_long: bool) -> None:
    world = world_before(number, SHORT_LIFE, seed)
    depth = ALL_SECOND_CRASHES if is_long else CrashDepth(power_cuts=1, second_crashes=None)
    coverage = crash_everywhere(world, start_and(SHORT_LIFE[number]), depth)
    report(f"all pairs, {type(SHORT_LIFE[number]).__name__}", coverage)


def test_the_scenes_cover_snapshot_and_drain() -> None:
    world = world_before(SNAPSHOT_TAKEN_AT, SHORT_LIFE, 1)
    renames = world.disk.calls["rename"]
    assert world.perform(SHORT_LIFE[SNAPSHOT_TAKEN_AT])
    # Snapshot, journal, and the descriptor of the stream.
    assert world.disk.calls["rename"] - renames == 3
    assert world.opened.store.snapshot_op == SNAPSHOT_TAKEN_AT


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(LIFE)), ids=lambda number: f"{number}-{type(LIFE[number]).__name__}")
def test_two_crashes_in_a_row_everywhere(number: int, seed: int) -> None:
    world = world_before(number, LIFE, seed)
    coverage = crash_everywhere(world, start_and(LIFE[number]), ALL_SECOND_CRASHES)
    report(f"all pairs, {type(LIFE[number]).__name__}", coverage)


# --- a disk that fails instead of dying ---


def call_count(world: CatalogWorld, step: Callable[[CatalogWorld], object]) -> int:
    """All calls of a step, those that only look included."""
    fork = world.fork(0)
    step(fork)
    return sum(fork.disk.calls.values())


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC, errno.EMFILE], ids=lambda error: errno.errorcode[error])
@pytest.mark.parametrize("number", [1, 3, 4, SNAPSHOT_TAKEN_AT], ids=lambda number: type(SHORT_LIFE[number]).__name__)
def test_a_failure_of_every_call(number: int, error: int, seed: int) -> None:
    world = world_before(number, SHORT_LIFE, seed)
    step = start_and(SHORT_LIFE[number])
    count = call_count(world, step)
    for call in range(1, count + 1):
        for kind in CrashKind:
            fork = world.fork(seed + call)
            plan = fork.disk.plan = RecordingPlan().fail(None, error, call=call)
            with contextlib.suppress(StorageFailure, MetadataReadOnly):
                step(fork)
            assert plan.fired
            # With names that the disk does not have, a kernel goes on only after a new mount.
            fork.crash(CrashKind.POWER_CUT if plan.has_failed_names else kind)
            fork.start()
            fork.check_tree()
            fork.check_that_life_goes_on()
    print(f"{type(SHORT_LIFE[number]).__name__}: {count} calls, each failed once")


# --- a disk that is full at the start ---


def start_on_a_full_disk(world: CatalogWorld) -> None:
    """There is room for journal and snapshot, and none for a partition."""
    world.disk.plan.fail("write_at", errno.ENOSPC, name="ledger*", onwards=True)
    world.start()


def world_with_an_unfinished(creation: c.AnyChange, seed: int) -> CatalogWorld:
    world = world_before(4, SHORT_LIFE, seed)
    world.disk.plan = RecordingPlan().fail("write_at", errno.ENOSPC, name="ledger*", call=2, onwards=True)
    with pytest.raises(DiskFull):
        world.perform(creation)
    world.crash(CrashKind.KILL)
    world.disk.plan = RecordingPlan()
    return world


UNFINISHED = [c.TopicCreation(0, "u", uuid(4), 2, TopicOptions(), 7), c.PartitionCreation(0, 0, 2)]


@pytest.mark.parametrize("creation", UNFINISHED, ids=lambda creation: type(creation).__name__)
def test_a_full_disk_undoes_an_unfinished_creation_but_its_id_stays_used(creation: c.AnyChange, seed: int) -> None:
    world = world_with_an_unfinished(creation, seed)
    start_on_a_full_disk(world)
    world.check_tree()
    stream = world.state.streams[0]
    assert {topic_id: len(topic.partitions) for topic_id, topic in stream.topics.items()} == {0: 1}
    assert stream.topic_ids.is_used(7) == isinstance(creation, c.TopicCreation)


@pytest.mark.parametrize("creation", UNFINISHED, ids=lambda creation: type(creation).__name__)
def test_a_crash_while_an_unfinished_creation_is_undone(creation: c.AnyChange, seed: int, is_long: bool) -> None:
    world = world_with_an_unfinished(creation, seed)
    depth = CrashDepth(power_cuts=4 if is_long else 1, second_crashes=0)
    for recover in (lambda world: world.start(), start_on_a_full_disk):
        coverage = crash_everywhere(world, start_on_a_full_disk, depth, recover=recover)
        report(f"undoing {type(creation).__name__}", coverage)


# --- chance ---


@pytest.mark.parametrize("group", range(4))
def test_random_lives(group: int, seed: int) -> None:
    total = Coverage()
    for number in range(25):
        total.add(live_randomly(CatalogWorld.new(seed + number), random.Random(seed + number), 12))
    report("random lives", total)


@pytest.mark.slow
@pytest.mark.parametrize("group", range(20))
def test_many_random_lives(group: int, seed: int) -> None:
    total = Coverage()
    for number in range(250):
        total.add(live_randomly(CatalogWorld.new(seed + number), random.Random(seed + number), 20))
    report("random lives", total)


# --- planted bugs: the crashes above must find each of them ---


def find_by_crashing(*numbers: int, seeds: range = range(10)) -> None:
    """All positions of some commands of the short life."""
    depth = CrashDepth(power_cuts=10, second_crashes=0)
    for seed in seeds:
        for number in numbers:
            crash_everywhere(world_before(number, SHORT_LIFE, seed), start_and(SHORT_LIFE[number]), depth)


def find_by_sick_disks() -> None:
    """A failure of the journal, then a kill or a power cut."""
    for operation, error in (("sync", errno.EIO), ("write_at", errno.ENOSPC)):
        for number in (0, SNAPSHOT_TAKEN_AT - 1, SNAPSHOT_TAKEN_AT):
            for kind in CrashKind:
                for seed in range(3):
                    world = world_before(number, SHORT_LIFE, seed)
                    world.disk.plan = FaultPlan().fail(operation, error, name="journal.wal*")
                    perform_on_a_sick_disk(world, SHORT_LIFE[number], kind)


def perform_on_a_sick_disk(world: CatalogWorld, command: c.AnyChange, kind: CrashKind) -> None:
    with contextlib.suppress(StorageFailure):
        world.perform(command)
    world.crash(kind)
    world.start()
    world.check_tree()
    world.check_that_life_goes_on()


def test_without_a_bug_neither_search_finds_anything() -> None:
    find_by_crashing(SNAPSHOT_TAKEN_AT, seeds=range(1))
    find_by_sick_disks()


def test_planted_applied_before_it_is_synced() -> None:
    def submit(self: CatalogStore, command: c.AnyChange) -> object:
        self.make_room()
        prepared = self.prepare(command)
        created = self.commit(prepared)
        self.persist(prepared)
        return created

    with mock.patch.object(CatalogStore, "submit", submit), pytest.raises(BrokenPromise, match="before it was durable"):
        find_by_sick_disks()


def test_planted_journal_drained_before_the_snapshot_is_durable() -> None:
    def take_snapshot(self: CatalogStore) -> None:
        mark = self._journal.last
        assert mark is not None
        self._journal.drain(mark)
        body = self.state.encode()
        snapshot = Snapshot(mark, xxhash.xxh3_128_digest(body), 0, body)
        write_snapshot(self._file_system, self._directory / METADATA_SNAPSHOT, snapshot)

    with mock.patch.object(CatalogStore, "take_snapshot", take_snapshot), pytest.raises(BrokenPromise):
        find_by_crashing(SNAPSHOT_TAKEN_AT)


def nothing(*_: object) -> None:
    """What a forgotten step does."""


class WithoutDirectorySync:
    """A file system that forgets the names."""

    def __init__(self, file_system: FileSystem) -> None:
        self._file_system = file_system

    def __getattr__(self, name: str) -> object:
        return getattr(self._file_system, name)

    def sync_directory(self, path: Path) -> None:
        """Nothing."""


def test_planted_no_directory_sync_after_the_rename_of_a_snapshot() -> None:
    def write(file_system: FileSystem, path: Path, snapshot: Snapshot) -> None:
        write_snapshot(cast(FileSystem, WithoutDirectorySync(file_system)), path, snapshot)

    with mock.patch.object(store_module, "write_snapshot", write), pytest.raises(BrokenPromise):
        find_by_crashing(SNAPSHOT_TAKEN_AT)


def test_planted_no_directory_sync_after_the_rename_of_a_journal() -> None:
    original = Journal.drain

    def drain(self: Journal, snapshot: SnapshotMark) -> None:
        with mock.patch.object(journal_module, "sync_directory", nothing):
            original(self, snapshot)

    with mock.patch.object(Journal, "drain", drain), pytest.raises(BrokenPromise):
        find_by_crashing(SNAPSHOT_TAKEN_AT)


def test_planted_failed_sync_ignored() -> None:
    def sync(file: File) -> None:
        with contextlib.suppress(OSError):
            file.sync()

    with mock.patch.object(journal_module, "sync_file", sync), pytest.raises((BrokenPromise, StartRefused)):
        find_by_sick_disks()


def test_planted_replay_begins_at_the_snapshot_and_not_behind_it() -> None:
    def entries(self: Journal) -> list[Entry]:
        data = read_exactly(self._file, 0, self._file.size()) or b""
        found = [item.entry for item in JournalScan(data).walk() if isinstance(item, ScannedEntry)]
        first = 0 if self.snapshot is None else self.snapshot.op
        return [entry for entry in found if entry.op >= first]

    with (
        mock.patch.object(Journal, "entries", entries),
        mock.patch.object(Journal, "position", return_value=0),
        pytest.raises(BrokenPromise, match="neither"),
    ):
        find_by_crashing(SNAPSHOT_TAKEN_AT)


def test_planted_id_given_out_again_after_a_restart() -> None:
    original = CatalogState.decode

    def decode(data: bytes) -> CatalogState:
        state = original(data)
        state.stream_ids = UsedIds(max([-1, *state.streams]) + 1)
        return state

    with mock.patch.object(CatalogState, "decode", decode), pytest.raises(BrokenPromise):
        find_by_crashing(SNAPSHOT_TAKEN_AT)


def test_planted_start_that_relies_on_what_is_not_synced() -> None:
    original = Journal.read

    def read(*arguments: Any, **options: Any) -> Journal:
        with (
            mock.patch.object(journal_module, "sync_file", nothing),
            mock.patch.object(journal_module, "sync_directory", nothing),
        ):
            return original(*arguments, **options)

    with mock.patch.object(Journal, "read", read), pytest.raises(BrokenPromise):
        find_by_crashing(SNAPSHOT_TAKEN_AT)


def test_planted_partitions_without_a_sync_of_their_names() -> None:
    with mock.patch.object(directories, "sync_directory", nothing), pytest.raises(BrokenPromise, match="lost"):
        find_by_crashing(7)
