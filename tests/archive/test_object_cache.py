"""Blocks of archived objects: how many are kept, when they are fetched, and what a failure does."""

import random
from pathlib import Path

import pytest
import xxhash

from courser.archive.disk_store import DiskStore
from courser.archive.errors import ArchiveDamaged, ArchiveFailure, ArchiveInterrupted
from courser.archive.object_cache import BLOCK_SIZE_MAX, CachedObject, ObjectCache, ObjectFile
from courser.archive.store import Store
from courser.storage.local_files import LocalFile, LocalFileSystem
from tests.fakes.object_store import FakeStore

BLOCK = 1000


class CountingStore(FakeStore):
    """Notes which ranges are read, and may change them."""

    def __init__(self) -> None:
        super().__init__(random.Random(1))
        self.ranges: list[tuple[str, int]] = []
        self.wrong_count = 0

    def read_range(self, key: str, position: int, size: int) -> bytes:
        data = super().read_range(key, position, size)
        self.ranges.append((key, position))
        if self.wrong_count:
            self.wrong_count -= 1
            return bytes(len(data))
        return data


def put(store: FakeStore, key: str, size: int) -> CachedObject:
    data = random.Random(key).randbytes(size)
    store.objects[key] = data
    return CachedObject(key, size, xxhash.xxh3_128_digest(data))


def read(cache: ObjectCache, store: Store, found: CachedObject, position: int, size: int) -> bytes:
    buffer = bytearray(size)
    count = ObjectFile(cache, store, found).read_at(position, memoryview(buffer))
    return bytes(buffer[:count])


def read_now(file: ObjectFile, position: int, size: int) -> bytes:
    """Without waiting."""
    buffer = bytearray(size)
    return bytes(buffer[: file.read_at(position, memoryview(buffer), wait=False)])


def fetched(store: CountingStore) -> list[int]:
    """The numbers of the blocks that were fetched."""
    return sorted(position // BLOCK for _, position in store.ranges)


def test_any_range_is_read_and_each_block_fetched_once() -> None:
    store, cache = CountingStore(), ObjectCache(100 * BLOCK, BLOCK)
    found = put(store, "a", 10 * BLOCK + 17)
    data = store.objects["a"]
    for position, size in [(0, 1), (999, 2), (0, len(data)), (5_500, 3_000), (len(data) - 5, 100), (len(data), 10)]:
        assert read(cache, store, found, position, size) == data[position : position + size]
    assert sorted(store.ranges) == [("a", position) for position in range(0, len(data), BLOCK)]
    assert cache.counters.fetch_size == len(data)
    cache.close()


def test_what_was_not_used_for_longest_goes_first() -> None:
    store, cache = CountingStore(), ObjectCache(5 * BLOCK, BLOCK)
    objects = [put(store, str(number), BLOCK) for number in range(6)]
    for found in [*objects[:5], objects[0], objects[5]]:
        read(cache, store, found, 0, BLOCK)
    assert cache.counters.miss_count == 6
    read(cache, store, objects[0], 0, BLOCK)
    assert cache.counters.miss_count == 6, "it was used again before the fifth came"
    read(cache, store, objects[1], 0, BLOCK)
    assert cache.counters.miss_count == 7
    cache.close()


def test_a_failure_is_not_kept() -> None:
    store, cache = CountingStore(), ObjectCache(5 * BLOCK, BLOCK)
    found = put(store, "a", BLOCK)
    store.is_down = True
    for _ in range(2):
        with pytest.raises(ArchiveFailure):
            read(cache, store, found, 0, 1)
    store.is_down = False
    assert read(cache, store, found, 0, BLOCK) == store.objects["a"]
    assert cache.counters.failure_count == 2
    cache.close()


def test_an_object_is_checked_when_it_comes() -> None:
    store, cache = CountingStore(), ObjectCache(5 * BLOCK, BLOCK)
    found = put(store, "a", BLOCK)
    store.wrong_count = 1
    assert read(cache, store, found, 0, BLOCK) == store.objects["a"], "fetched again"
    short = put(store, "b", BLOCK)
    store.objects["b"] = store.objects["b"][:-1]
    with pytest.raises(ArchiveFailure, match="it has 999 bytes and should have 1000"):
        read(cache, store, short, 0, 1)
    cache.close()


def test_a_closed_cache_says_so() -> None:
    store, cache = CountingStore(), ObjectCache(5 * BLOCK, BLOCK)
    found = put(store, "a", BLOCK)
    cache.close()
    with pytest.raises(ArchiveInterrupted):
        read(cache, store, found, 0, 1)
    with pytest.raises(OSError, match="cannot be changed"):
        ObjectFile(cache, store, found).write_at(0, [b"x"])


def test_what_is_in_memory_is_read_without_waiting() -> None:
    store, cache = CountingStore(), ObjectCache(100 * BLOCK, BLOCK)
    found = put(store, "a", 20 * BLOCK)
    file = ObjectFile(cache, store, found)
    with pytest.raises(BlockingIOError):
        read_now(file, 0, 10)
    assert not store.ranges, "nobody fetches for a reader that does not wait"
    read(cache, store, found, 0, 2 * BLOCK)
    file.read_ahead()
    assert read_now(file, BLOCK - 5, 10) == store.objects["a"][BLOCK - 5 : BLOCK + 5]
    with pytest.raises(BlockingIOError):
        read_now(file, 19 * BLOCK, 10)
    cache.close()


def test_only_a_reader_that_goes_forward_has_blocks_fetched_ahead() -> None:
    store, cache = CountingStore(), ObjectCache(100 * BLOCK, BLOCK)
    found = put(store, "a", 20 * BLOCK)
    read(cache, store, found, 10 * BLOCK, 10)
    assert fetched(store) == [10], "it may want one message"
    read(cache, store, found, 11 * BLOCK, 10)
    cache.close(wait=True)
    assert fetched(store) == [10, 11, 12, 13, 14, 15]


def test_blocks_that_nobody_has_read_yet_take_half_of_the_room() -> None:
    store, cache = CountingStore(), ObjectCache(8 * BLOCK, BLOCK)
    objects = [put(store, str(number), 20 * BLOCK) for number in range(3)]
    for position in range(0, 20 * BLOCK, 100):
        for found in objects:
            read(cache, store, found, position, 100)
    assert cache.counters.fetch_size == 60 * BLOCK, "no block came twice"
    cache.close()


@pytest.mark.parametrize(("size", "block_size"), [(32 << 20, 4 << 20), (64 << 20, 8 << 20), (1 << 30, BLOCK_SIZE_MAX)])
def test_a_small_cache_has_small_blocks(size: int, block_size: int) -> None:
    cache = ObjectCache(size)
    assert cache.block_size == block_size
    cache.close()


def test_nothing_stays_open_of_what_is_closed_before_it_is_read_ahead(tmp_path: Path) -> None:
    opened: list[LocalFile] = []

    class Watched(LocalFileSystem):
        def open(self, path: Path, *, writable: bool = False, create: bool = False) -> LocalFile:
            opened.append(super().open(path, writable=writable, create=create))
            return opened[-1]

    store = DiskStore(Watched(), tmp_path, bytes(16))
    cache = ObjectCache(5 * BLOCK, BLOCK)
    store.upload("a", [bytes(BLOCK)])
    file = ObjectFile(cache, store, CachedObject("a", BLOCK))
    file.close()
    file.read_ahead()
    cache.close()
    assert len(opened) == 2, "to write it, and to read it"
    assert not any(still.hold() for still in opened)


def test_an_object_on_this_machine_is_read_as_a_file(tmp_path: Path) -> None:
    store, cache = DiskStore(LocalFileSystem(), tmp_path, bytes(16)), ObjectCache(5 * BLOCK, BLOCK)
    data = random.Random(1).randbytes(10 * BLOCK)
    store.upload("a", [data])
    file = ObjectFile(cache, store, CachedObject("a", len(data)))
    with pytest.raises(BlockingIOError):
        read_now(file, 0, 10)
    buffer = bytearray(len(data))
    assert file.read_at(0, memoryview(buffer)) == len(data)
    assert buffer == data
    assert (cache.counters.fetch_size, cache.counters.miss_count) == (len(data), 0), "nothing is kept twice"
    with pytest.raises(ArchiveDamaged, match="it has 10000 bytes and should have 10001"):
        read(cache, store, CachedObject("a", len(data) + 1), 0, 1)
    with pytest.raises(ArchiveFailure):
        read(cache, store, CachedObject("b", 1), 0, 1)
    cache.close()
