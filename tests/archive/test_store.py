"""Stores: who created an object, and what a power cut leaves of one."""

import contextlib
import random
import shutil
from pathlib import Path

import pytest

from courser.archive.disk_store import DiskStore
from courser.archive.errors import ArchiveFailure, ObjectMissing, StoreRefused
from courser.archive.store import Creation, create, probe
from courser.storage.local_files import LocalFileSystem
from courser.testing.object_store import StoreFault
from tests.fakes.faults import FaultPlan, SimulatedCrash
from tests.fakes.files import FakeFileSystem
from tests.fakes.object_store import FakeStore

NONCE = bytes(range(16))


def fake_store(*faults: StoreFault | None) -> FakeStore:
    store = FakeStore(random.Random(1))
    store.faults.extend(faults)
    return store


def test_the_first_creation_wins() -> None:
    store = fake_store()
    assert create(store, "v1/a", b"one") is Creation.MINE
    assert create(store, "v1/a", b"two") is Creation.ANOTHERS
    assert store.read("v1/a") == b"one"


@pytest.mark.parametrize("fault", [StoreFault.REPLY_LOST, StoreFault.REPLY_DOUBTFUL])
def test_a_creation_whose_reply_was_lost_is_recognized(fault: StoreFault) -> None:
    assert create(fake_store(fault), "v1/a", b"mine") is Creation.MINE


@pytest.mark.parametrize("fault", [StoreFault.REFUSED, StoreFault.LATE])
def test_a_creation_that_may_still_happen_is_unknown(fault: StoreFault) -> None:
    store = fake_store(fault)
    assert create(store, "v1/a", b"mine") is Creation.UNKNOWN
    assert create(store, "v1/b", b"other") is Creation.MINE
    assert create(store, "v1/a", b"mine") is Creation.MINE


def test_the_probe_accepts_a_store_with_conditions_and_leaves_nothing() -> None:
    store = fake_store()
    probe(store, "v1/probe", NONCE)
    assert store.objects == {}


def test_the_probe_refuses_a_store_that_ignores_conditions() -> None:
    store = fake_store()
    store.ignores_conditions = True
    with pytest.raises(StoreRefused, match="overwrites objects"):
        probe(store, "v1/probe", NONCE)


def test_the_probe_does_not_judge_a_store_that_is_down() -> None:
    store = fake_store()
    store.is_down = True
    with pytest.raises(ArchiveFailure, match="connection refused"):
        probe(store, "v1/probe", NONCE)


def test_a_directory_is_a_store(tmp_path: Path) -> None:
    store = DiskStore(LocalFileSystem(), tmp_path, NONCE)
    probe(store, "v1/probe/x", NONCE)
    assert store.put_new("v1/s/a", b"0123456789")
    assert not store.put_new("v1/s/a", b"another")
    store.upload("v1/s/b", [b"abc", b"de"])
    assert store.read("v1/s/b") == b"abcde"
    assert store.read_range("v1/s/a", 3, 4) == b"3456"
    assert store.read_range("v1/s/a", 8, 4) == b"89"
    assert [(found.key, found.size) for found in store.list_objects("v1/")] == [("v1/s/a", 10), ("v1/s/b", 5)]
    assert list(store.list_objects("v2/")) == []
    found = store.find("v1/s/a")
    assert found is not None
    assert found.size == 10
    store.delete("v1/s/a")
    store.delete("v1/s/a")
    assert store.find("v1/s/a") is None
    with pytest.raises(ObjectMissing):
        store.read("v1/s/a")
    assert sorted(path.name for path in tmp_path.rglob("*") if path.is_file()) == ["b"]


def test_a_directory_that_somebody_removed_is_made_again(tmp_path: Path) -> None:
    store = DiskStore(LocalFileSystem(), tmp_path, NONCE)
    assert store.put_new("v1/s/a", b"a")
    shutil.rmtree(tmp_path / "v1")
    assert store.put_new("v1/s/a", b"b")
    assert store.read("v1/s/a") == b"b"


def test_directories_are_synced_once() -> None:
    class CountingFiles(FakeFileSystem):
        synced: list[Path]

        def sync_directory(self, path: Path) -> None:
            self.synced.append(path)
            super().sync_directory(path)

    file_system = CountingFiles(random.Random(1))
    file_system.plant_directory(Path("/archive"))
    file_system.synced = []
    store = DiskStore(file_system, Path("/archive"), NONCE)
    store.put_new("v1/a/b", b"1")
    file_system.synced.clear()
    store.put_new("v1/a/c", b"2")
    assert file_system.synced == [Path("/archive/v1/a")], "for the name of the object"


def test_a_power_cut_leaves_the_whole_object_or_none() -> None:
    data = bytes(range(256)) * 40
    outcomes = set()
    for seed in range(60):
        file_system = FakeFileSystem(random.Random(seed))
        file_system.plant_directory(Path("/archive"))
        file_system.plan = FaultPlan().crash_at(1 + seed % 12)
        store = DiskStore(file_system, Path("/archive"), NONCE)
        is_created = False
        with contextlib.suppress(SimulatedCrash):
            is_created = store.put_new("v1/a/b", data)
        file_system.plan = FaultPlan()
        file_system.power_cut()
        after = DiskStore(file_system, Path("/archive"), NONCE[::-1])
        found = after.find("v1/a/b")
        if found is not None:
            assert after.read("v1/a/b") == data
        assert found is not None or not is_created
        outcomes.add((is_created, found is not None))
    assert outcomes >= {(True, True), (False, False)}


def test_a_store_that_fails_to_write_says_so() -> None:
    file_system = FakeFileSystem(random.Random(1), capacity=10)
    file_system.plant_directory(Path("/archive"))
    store = DiskStore(file_system, Path("/archive"), NONCE)
    with pytest.raises(ArchiveFailure, match="could not create v1/a"):
        store.put_new("v1/a", bytes(100))
    assert store.find("v1/a") is None
