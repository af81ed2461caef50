"""Catalogs to be ruined: what the tests of starts and rebuilds share."""

from pathlib import Path

import pytest

from courser.catalog import changes as c
from courser.catalog.opening import OpenedCatalog, open_catalog
from courser.catalog.state import CatalogState
from courser.errors import StartRefused
from courser.model.topic_options import TopicOptions
from courser.storage.journal_entries import JournalScan, ScannedEntry
from courser.storage.paths import METADATA, QUARANTINE, stream_directory, topic_directory
from courser.storage.recovery_cases import StopKind
from tests.catalog.scenes import HASH, OPTIONS, image, living, uuid
from tests.fakes.files import FakeFileSystem
from tests.simulator.catalog_simulation import (
    DATA,
    CatalogWorld,
    visible,
)

COMMANDS: tuple[c.AnyChange, ...] = (
    c.UserCreation("root", HASH),
    c.StreamCreation("orders", uuid(1)),
    c.TopicCreation(0, "placed", uuid(2), 2, OPTIONS),
    c.GroupCreation(0, 0, "billing"),
    c.StreamCreation("gone", uuid(3)),
    c.StreamDeletion(1),
    c.UserCreation("alice", HASH),
    c.TokenCreation(1, "laptop", bytes(32)),
    c.TopicCreation(0, "gone", uuid(4), 1, TopicOptions()),
    c.TopicDeletion(0, 1),
    c.TopicUpdate(0, 0, "placed orders", OPTIONS),
    c.PartitionCreation(0, 0, 1),
    c.PartitionDeletion(0, 0, 2),
    c.PartitionCreation(0, 0, 1),
    c.TopicPurge(0, 0),
    c.StreamCreation("logs", uuid(5), 7),
    c.TopicCreation(7, "web", uuid(6), 1, TopicOptions()),
    c.GroupCreation(7, 0, "audit", 3),
    c.StreamUpdate(0, "all orders"),
    c.UserCreation("last", HASH),
)


LAST_OP = 22
"""The commands above, and one for each of the three removals."""


def lived(seed: int = 1) -> CatalogWorld:
    return living(seed, COMMANDS).fork(seed)


def start(world: CatalogWorld, *, recreate: bool = True) -> OpenedCatalog:
    return open_catalog(world.disk, DATA, clock=world.clock, stop=StopKind.CRASHED, recreate_missing_state=recreate)


def refused(world: CatalogWorld) -> str:
    """Without the flag: refused, with the remedy, nothing changed."""
    before = image(world.disk)
    with pytest.raises(StartRefused, match="recreate_missing_state") as refusal:
        start(world, recreate=False)
    assert image(world.disk) == before
    return str(refusal.value)


def remove(disk: FakeFileSystem, *paths: Path) -> None:
    """What an operator's ``rm`` does."""
    for path in paths:
        disk.unlink(path)
        disk.sync_directory(path.parent)


def data_part(state: CatalogState) -> list[object]:
    """What descriptors know: everything but users."""
    return [(stream.stream_id, stream) for _, stream in sorted(state.streams.items())]


def expected_state() -> CatalogState:
    return living(1, COMMANDS).state


def set_aside(world: CatalogWorld) -> dict[str, bytes]:
    directory = DATA / METADATA / QUARANTINE
    return {path.name: world.disk.contents(path) for path in world.disk.files() if path.parent == directory}


def check_usable(world: CatalogWorld, opened: OpenedCatalog) -> None:
    """Directories and state agree, and new partitions collide with nothing."""
    highest = max(int(path.name.split("-")[1]) for path in world.disk_directories())
    assert opened.store.last_op is not None
    assert opened.store.last_op > highest
    world.acknowledged = visible(opened.store.state)
    world.stop = StopKind.KILLED
    world.disk.kill()
    world.start()
    world.check_tree()
    world.check_that_life_goes_on()


def entry_starts(data: bytes) -> list[int]:
    return [item.position for item in JournalScan(data).walk() if isinstance(item, ScannedEntry)]


def damage(disk: FakeFileSystem, path: Path) -> None:
    data = bytearray(disk.contents(path))
    data[-3] ^= 1
    disk.plant(path, data)


def copied_stream(world: CatalogWorld, number: int) -> None:
    other = living(2, (c.StreamCreation("foreign", uuid(8), number), c.TopicCreation(number, "t", uuid(9), 1, OPTIONS)))
    for path in other.disk.files():
        if stream_directory(DATA, number) in path.parents:
            world.disk.plant(path, other.disk.contents(path))
    world.disk.plant_directory(topic_directory(DATA, number, 0) / "partitions")


def remove_partition(world: CatalogWorld, directory: Path) -> None:
    for path in [path for path in world.disk.files() if directory in path.parents]:
        world.disk.unlink(path)
    world.disk.remove_directory(directory)
    world.disk.sync_directory(directory.parent)
