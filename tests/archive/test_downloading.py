"""Whole objects: in order, several requests at a time, and never less than there should be."""

import random
import threading
from pathlib import Path

import pytest
import xxhash

from courser.archive.disk_store import DiskStore
from courser.archive.errors import ArchiveDamaged, ArchiveFailure, ObjectMissing
from courser.archive.store import Store
from courser.archive.transfers import hash_object, object_parts
from courser.storage.local_files import LocalFileSystem
from tests.fakes.object_store import FakeStore

DATA = random.Random(1).randbytes(2_500_017)
PART = 200_000


def fake_store() -> FakeStore:
    store = FakeStore(random.Random(1))
    store.objects["a"] = DATA
    return store


def disk_store(path: Path) -> DiskStore:
    store = DiskStore(LocalFileSystem(), path, bytes(16))
    store.upload("a", [DATA])
    return store


def whole(store: Store, key: str, size: int) -> bytes:
    return b"".join(bytes(part) for part in object_parts(store, key, size, PART))


@pytest.mark.parametrize("is_disk", [True, False])
def test_the_parts_are_the_object(tmp_path: Path, is_disk: bool) -> None:
    store = disk_store(tmp_path) if is_disk else fake_store()
    for size in (0, 1, PART, PART + 1, len(DATA)):
        assert whole(store, "a", size) == DATA[:size]
    assert hash_object(store, "a", len(DATA), PART) == xxhash.xxh3_128_digest(DATA)
    with pytest.raises(ArchiveDamaged, match="it has 2500017 bytes and should have 2500018"):
        whole(store, "a", len(DATA) + 1)
    with pytest.raises(ObjectMissing):
        whole(store, "b", 1)


def test_requests_do_not_wait_for_each_other() -> None:
    class MeetingStore(FakeStore):
        """Answers no request before four have come."""

        barrier = threading.Barrier(4)

        def read_range(self, key: str, position: int, size: int) -> bytes:
            self.barrier.wait()
            return super().read_range(key, position, size)

    store = MeetingStore(random.Random(1))
    store.objects["a"] = DATA
    assert whole(store, "a", 8 * PART) == DATA[: 8 * PART]


def test_one_failure_ends_it() -> None:
    class TornStore(FakeStore):
        def read_range(self, key: str, position: int, size: int) -> bytes:
            if position == 3 * PART:
                raise ArchiveFailure("read", key, "connection reset")
            return super().read_range(key, position, size)

    store = TornStore(random.Random(1))
    store.objects["a"] = DATA
    parts = object_parts(store, "a", len(DATA), PART)
    assert b"".join(bytes(next(parts)) for _ in range(3)) == DATA[: 3 * PART]
    with pytest.raises(ArchiveFailure, match="connection reset"):
        next(parts)
