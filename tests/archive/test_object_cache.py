"""Blocks of archived objects: how many are kept, when they are fetched, and what a failure does."""

import random

import pytest
import xxhash

from courser.archive.errors import ArchiveFailure, ArchiveInterrupted
from courser.archive.object_cache import CachedObject, ObjectCache, ObjectFile
from courser.testing.object_store import FakeStore

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


def read(cache: ObjectCache, store: FakeStore, found: CachedObject, position: int, size: int) -> bytes:
    buffer = bytearray(size)
    count = ObjectFile(cache, store, found).read_at(position, memoryview(buffer))
    return bytes(buffer[:count])


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
