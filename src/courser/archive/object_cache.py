"""Bytes of archived objects that were read lately, in memory, up to a limit.

Objects are fetched in blocks. Readers that need the same block share one fetch, and a reader that goes forward finds
the next blocks on their way. All calls block, and may come from any thread.
"""

from collections import OrderedDict
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import dataclass
from errno import EROFS
from functools import partial
from pathlib import Path
from threading import Lock
from typing import NoReturn

import xxhash

from courser.archive.errors import ArchiveDamaged, ArchiveInterrupted
from courser.archive.store import Store

BLOCK_SIZE = 4 * 1024 * 1024
_AHEAD_COUNT = 3
"""Blocks that are fetched before a reader asks for them."""
_FETCH_COUNT = 8
"""Fetches at a time."""


@dataclass(slots=True)
class CacheCounters:
    """What the cache did since the start."""

    hit_count: int = 0
    """Blocks that were there, or on their way, when a reader asked for them."""
    miss_count: int = 0
    fetch_size: int = 0
    """Bytes that came from the store."""
    failure_count: int = 0
    """Fetches that failed."""


@dataclass(frozen=True, slots=True)
class CachedObject:
    """An object to read."""

    key: str
    """The whole key."""
    size: int
    digest: bytes = b""
    """XXH3-128 of its bytes; empty: not known."""


class ObjectCache:
    """The cache of one server. ``close`` ends its threads."""

    def __init__(self, size_max: int, block_size: int = BLOCK_SIZE) -> None:
        self.block_size = block_size
        # A block that is being read must not push out the one before it.
        self._count_max = max(size_max // block_size, _AHEAD_COUNT + 2)
        self._blocks: OrderedDict[tuple[str, int], Future[bytes]] = OrderedDict()
        """By key and number, least recently used first. A block may still be on its way."""
        self._lock = Lock()
        self._threads = ThreadPoolExecutor(_FETCH_COUNT, thread_name_prefix="archive-fetch")
        self.counters = CacheCounters()

    def read(self, store: Store, found: CachedObject, position: int, buffer: memoryview) -> int:
        """Fill a buffer with bytes of an object. Return how many came: fewer at its end.

        Raises:
            ArchiveFailure: the store did not give them.
        """
        end, done = min(position + len(buffer), found.size), 0
        while position + done < end:
            number, start = divmod(position + done, self.block_size)
            block = self._block(store, found, number)
            piece = memoryview(block)[start : start + end - position - done]
            buffer[done : done + len(piece)] = piece
            done += len(piece)
        return done

    def read_ahead(self, store: Store, found: CachedObject, number: int = 0) -> None:
        """Have blocks fetched that somebody will ask for soon, from this one on."""
        last = (found.size - 1) // self.block_size
        with self._lock:
            for wanted in range(number, min(number + _AHEAD_COUNT - 1, last) + 1):
                if (found.key, wanted) not in self._blocks:
                    self._begin(store, found, wanted)

    def discard(self, key: str) -> None:
        """Forget an object whose bytes are wrong."""
        with self._lock:
            for place in [place for place in self._blocks if place[0] == key]:
                del self._blocks[place]

    def close(self) -> None:
        """Stop. Who waits for a block that is not on its way gets ``ArchiveInterrupted``."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _block(self, store: Store, found: CachedObject, number: int) -> bytes:
        place = found.key, number
        with self._lock:
            block = self._blocks.get(place)
            if block is None:
                self.counters.miss_count += 1
                block = self._begin(store, found, number)
            else:
                self.counters.hit_count += 1
                self._blocks.move_to_end(place)
        if (number + 1) * self.block_size < found.size:
            self.read_ahead(store, found, number + 1)
        try:
            return block.result()
        except CancelledError:
            raise ArchiveInterrupted(found.key) from None
        except BaseException:
            # The next reader tries again.
            self._forget(place, block)
            raise

    def _begin(self, store: Store, found: CachedObject, number: int) -> "Future[bytes]":
        """Fetch a block. The lock is held."""
        try:
            block = self._threads.submit(partial(self._fetch, store, found, number))
        except RuntimeError:
            # The threads have ended.
            raise ArchiveInterrupted(found.key) from None
        self._blocks[found.key, number] = block
        while len(self._blocks) > self._count_max:
            self._blocks.popitem(last=False)
        return block

    def _forget(self, place: tuple[str, int], block: "Future[bytes]") -> None:
        with self._lock:
            if self._blocks.get(place) is block:
                del self._blocks[place]

    def _fetch(self, store: Store, found: CachedObject, number: int) -> bytes:
        """On a thread of the cache."""
        position = number * self.block_size
        size = min(self.block_size, found.size - position)
        try:
            data = store.read_range(found.key, position, size)
            if not _is_right(found, data):
                # Something on the way may have changed it. If not, the checksums of its batches say what is damaged.
                data = store.read_range(found.key, position, size)
            if len(data) != size:
                raise ArchiveDamaged(found.key, f"it has {position + len(data)} bytes and should have {found.size}")
        except BaseException:
            self.counters.failure_count += 1
            raise
        self.counters.fetch_size += size
        return data


def _is_right(found: CachedObject, data: bytes) -> bool:
    """Whether an object that is one block is what was archived. Larger ones have checksums in their batches."""
    return len(data) < found.size or not found.digest or xxhash.xxh3_128_digest(data) == found.digest


class ObjectFile:
    """An object that can be read as a file. Implements ``File``."""

    def __init__(self, cache: ObjectCache, store: Store, found: CachedObject) -> None:
        self._cache = cache
        self._store = store
        self._found = found
        self.path = Path(found.key)

    def read_at(self, position: int, buffer: memoryview, *, wait: bool = True) -> int:
        """Fill the buffer, as far as the object goes."""
        if not wait:
            raise BlockingIOError
        return self._cache.read(self._store, self._found, position, buffer)

    def size(self) -> int:
        """The size of the object."""
        return self._found.size

    def close(self) -> None:
        """Nothing is open."""

    def discard_cache(self) -> None:
        """Read it from the store again."""
        self._cache.discard(self._found.key)

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise OSError(EROFS, "an archived object cannot be changed", str(self.path))

    write_at = sync = truncate = allocate = reserve = start_writeback = _refuse
