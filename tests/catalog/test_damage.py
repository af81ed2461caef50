"""Every byte of journal, snapshot and descriptors changed in turn: nothing is accepted silently.

A changed byte either refuses the start, and then nothing on the disk has changed, or lies in the last entry of the
journal after an unclean stop, where it cannot be told from a torn write: then the state is the one before that entry.
"""

import random

import pytest

from courser.catalog.descriptors import descriptor_of, read_descriptor
from courser.catalog.state import CatalogState
from courser.errors import MetadataDamaged, StartRefused
from courser.storage.journal_entries import Entry, JournalScan, ScannedEntry
from courser.storage.paths import DESCRIPTOR, QUARANTINE, stream_directory, topic_directory
from courser.storage.recovery_cases import StopKind
from tests.catalog.opening import open_store
from tests.catalog.scenes import JOURNAL_PATH, LIFE, SNAPSHOT_PATH, image, living
from tests.fakes.files import FakeFileSystem
from tests.simulator.catalog_simulation import DATA, CatalogWorld

COMMANDS = LIFE[:6]
SNAPSHOT_AFTER = 3
FLIPS = (0x01, 0x80)


class Scene:
    """A catalog with a snapshot and a journal behind it, to be damaged many times."""

    def __init__(self) -> None:
        world = living(1, COMMANDS[:SNAPSHOT_AFTER])
        world.opened.store.take_snapshot()
        for command in COMMANDS[SNAPSHOT_AFTER:-1]:
            assert world.perform(command)
        self.before_last = world.state.encode()
        assert world.perform(COMMANDS[-1])
        self.state = world.state.encode()
        self.world = world
        self.journal = world.disk.contents(JOURNAL_PATH)
        self.snapshot = world.disk.contents(SNAPSHOT_PATH)
        found = [item for item in JournalScan(self.journal).walk() if isinstance(item, ScannedEntry)]
        self.entries: list[Entry] = [item.entry for item in found]
        self.last_start = found[-1].position

    def disk(self) -> FakeFileSystem:
        return self.world.disk.clone(random.Random(1))

    def opened(self, disk: FakeFileSystem, stop: StopKind) -> CatalogState | None:
        """The state that a start shows; None if it is refused: then it says where, and has changed nothing."""
        before = image(disk)
        try:
            store = open_store(disk, DATA, clock=self.world.clock, stop=stop)
        except MetadataDamaged as refusal:
            message = str(refusal)
            assert image(disk) == before
            assert "byte" in message
            assert "recreate_missing_state" in message
            return None
        return store.state


@pytest.fixture(scope="module")
def scene() -> Scene:
    return Scene()


def flipped(data: bytes, position: int, bit: int) -> bytes:
    damaged = bytearray(data)
    damaged[position] ^= bit
    return bytes(damaged)


@pytest.mark.parametrize("stop", StopKind)
def test_every_flipped_byte_of_the_journal(scene: Scene, stop: StopKind) -> None:
    refused = torn = 0
    for position in range(len(scene.journal)):
        disk = scene.disk()
        disk.plant(JOURNAL_PATH, flipped(scene.journal, position, FLIPS[position % 2]))
        state = scene.opened(disk, stop)
        if state is None:
            refused += 1
            continue
        assert stop is not StopKind.CLEAN
        assert position >= scene.last_start, "an entry with good ones behind it was dropped"
        assert state.encode() == scene.before_last
        kept = [disk.contents(path) for path in disk.files() if path.parent.name == QUARANTINE]
        assert len(kept) == 1
        torn += 1
    print(f"journal, {stop.value}: {refused} flips refused, {torn} taken for a torn write, 0 accepted")
    assert refused == (len(scene.journal) if stop is StopKind.CLEAN else scene.last_start)
    assert refused + torn == len(scene.journal)


@pytest.mark.parametrize("stop", StopKind)
def test_every_flipped_byte_of_the_snapshot(scene: Scene, stop: StopKind) -> None:
    for position in range(len(scene.snapshot)):
        for bit in FLIPS:
            disk = scene.disk()
            disk.plant(SNAPSHOT_PATH, flipped(scene.snapshot, position, bit))
            assert scene.opened(disk, stop) is None
    print(f"snapshot: {2 * len(scene.snapshot)} flips refused")


def test_every_cut_of_the_snapshot(scene: Scene) -> None:
    for size in range(len(scene.snapshot)):
        disk = scene.disk()
        disk.plant(SNAPSHOT_PATH, scene.snapshot[:size])
        assert scene.opened(disk, StopKind.CRASHED) is None


def test_every_cut_of_the_journal(scene: Scene) -> None:
    ends = {0}
    for entry in scene.entries:
        ends.add(max(ends) + entry.size)
    for size in range(len(scene.journal)):
        disk = scene.disk()
        disk.plant(JOURNAL_PATH, scene.journal[:size])
        assert (scene.opened(disk, StopKind.CLEAN) is None) == (size not in ends)


@pytest.mark.parametrize("block", [512, 4096])
def test_a_zeroed_block_of_the_journal(scene: Scene, block: int) -> None:
    for start in range(0, scene.last_start, 64):
        data = bytearray(scene.journal)
        size = min(block, len(data) - start)
        data[start : start + size] = bytes(size)
        disk = scene.disk()
        disk.plant(JOURNAL_PATH, data)
        state = scene.opened(disk, StopKind.KILLED)
        # Zeros up to the end, or over the last header, leave no good entry behind them.
        assert state is None or start + size > scene.last_start


# --- the end of the journal is gone, without a torn entry to show for it ---


def world_without_the_end(scene: Scene, size: int) -> CatalogWorld:
    world = scene.world.fork(1)
    world.disk.plant(JOURNAL_PATH, scene.journal[:size])
    return world


def test_directories_that_are_newer_than_the_journal_refuse_the_start(scene: Scene) -> None:
    # The last command made a partition; the one before it only changed a name.
    for stop in StopKind:
        world = world_without_the_end(scene, scene.last_start)
        world.stop = stop
        before = image(world.disk)
        with pytest.raises(StartRefused, match="recreate_missing_state") as refusal:
            world.start()
        assert "partitions/2-5" in str(refusal.value)
        assert image(world.disk) == before


def test_an_empty_journal_beside_data_refuses_the_start() -> None:
    world = living(1, COMMANDS).fork(1)
    world.disk.plant(JOURNAL_PATH, b"")
    before = image(world.disk)
    with pytest.raises(StartRefused, match="recreate_missing_state"):
        world.start()
    assert image(world.disk) == before


# --- descriptors ---


def test_every_flipped_byte_of_a_descriptor_is_found_and_put_right(scene: Scene) -> None:
    stream = scene.world.state.streams[0]
    topic = stream.topics[0]
    expected = {
        stream_directory(DATA, 0): descriptor_of(stream),
        topic_directory(DATA, 0, 0): descriptor_of(stream, topic),
    }
    for directory, descriptor in expected.items():
        path = directory / DESCRIPTOR
        good = scene.world.disk.contents(path)
        for position in range(len(good)):
            world = scene.world.fork(position)
            bad = flipped(good, position, 0x10)
            world.disk.plant(path, bad)
            world.start()
            assert read_descriptor(world.disk, directory) == descriptor
            assert world.disk.contents(path) == good
            # What was there is kept: a person may still read a name in it.
            kept = [world.disk.contents(name) for name in world.disk.files() if name.parent == directory / QUARANTINE]
            assert kept == [bad.rstrip(b"\0")]


def test_the_descriptor_of_something_else_is_kept_when_it_is_replaced(scene: Scene) -> None:
    world = scene.world.fork(1)
    directory = stream_directory(DATA, 0)
    foreign = living(2, (*COMMANDS[:1], LIFE[20])).disk.contents(stream_directory(DATA, 9) / DESCRIPTOR)
    world.disk.plant(directory / DESCRIPTOR, foreign)
    world.start()
    assert read_descriptor(world.disk, directory) == descriptor_of(world.state.streams[0])
    kept = [world.disk.contents(name) for name in world.disk.files() if name.parent == directory / QUARANTINE]
    assert kept == [foreign.rstrip(b"\0")]
