"""Bytes of archived objects that were read lately, in memory, up to a limit.

Objects are fetched in blocks. Readers that need the same block share one fetch, and a reader that goes forward finds
the next blocks on their way. Objects that are files of this machine are read as files: the kernel keeps their bytes and
reads ahead. Calls may come from any thread, and block unless they are told not to wait.
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

from courser.archive.errors import ArchiveDamaged, ArchiveFailure, ArchiveInterrupted
from courser.archive.store import Store
from courser.model.buffers import Buffer
from courser.storage.files import File, held

BLOCK_SIZE_MAX = 8 * 1024 * 1024
"""Bytes of a block: enough for the throughput of a connection, few enough for a reader of one message."""
_BLOCK_COUNT_MIN = 8
"""Blocks that a cache has room for: those of a small cache are smaller."""
_AHEAD_COUNT = 4
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

    def __init__(self, size_max: int, block_size: int = 0) -> None:
        """``block_size`` is chosen to fit ``size_max`` unless it is given."""
        self.block_size = block_size or max(min(BLOCK_SIZE_MAX, size_max // _BLOCK_COUNT_MIN), 1)
        self._count_max = max(size_max // self.block_size, 1)
        self._blocks: OrderedDict[tuple[str, int], Future[Buffer]] = OrderedDict()
        """By key and number, least recently used first. A block may still be on its way."""
        self._unread: set[tuple[str, int]] = set()
        """Blocks that were fetched ahead, and that no reader has asked for. They take half of the room at most: many
        readers together must not push out what the others are about to read."""
        self._lock = Lock()
        self._threads = ThreadPoolExecutor(_FETCH_COUNT, thread_name_prefix="archive-fetch")
        self.counters = CacheCounters()

    def read(self, store: Store, found: CachedObject, position: int, buffer: memoryview, *, wait: bool = True) -> int:
        """Fill a buffer with bytes of an object. Return how many came: fewer at its end.

        Raises:
            ArchiveFailure: the store did not give them.
            BlockingIOError: without ``wait``, if they are not here.
        """
        end, done = min(position + len(buffer), found.size), 0
        while position + done < end:
            number, start = divmod(position + done, self.block_size)
            block = self._block(store, found, number, wait=wait)
            piece = memoryview(block)[start : start + end - position - done]
            buffer[done : done + len(piece)] = piece
            done += len(piece)
        return done

    def read_ahead(self, store: Store, found: CachedObject, number: int = 0) -> None:
        """Have blocks fetched that somebody will ask for soon, from this one on."""
        with self._lock:
            self._read_ahead(store, found, number)

    def _read_ahead(self, store: Store, found: CachedObject, number: int) -> None:
        end = -(-found.size // self.block_size)
        for wanted in range(number, min(number + _AHEAD_COUNT, end)):
            place = found.key, wanted
            if place in self._blocks:
                # It stays while its reader comes nearer, and goes if the reader does not.
                self._blocks.move_to_end(place)
            elif 2 * (len(self._unread) + 1) <= self._count_max:
                self._unread.add(place)
                self._begin(store, found, wanted)

    def discard(self, key: str) -> None:
        """Forget an object whose bytes are wrong."""
        with self._lock:
            for place in [place for place in self._blocks if place[0] == key]:
                self._drop(place)

    @property
    def ahead_size(self) -> int:
        """Bytes that are fetched before a reader asks for them."""
        return _AHEAD_COUNT * self.block_size

    def close(self, *, wait: bool = False) -> None:
        """Stop. Who waits for a block that is not on its way gets ``ArchiveInterrupted``.

        With ``wait``, all blocks that were asked for come first.
        """
        self._threads.shutdown(wait=wait, cancel_futures=not wait)

    def _block(self, store: Store, found: CachedObject, number: int, *, wait: bool) -> Buffer:
        place = found.key, number
        with self._lock:
            block = self._blocks.get(place)
            if not wait and (block is None or not block.done()):
                raise BlockingIOError
            if block is None:
                self.counters.miss_count += 1
                block = self._begin(store, found, number)
            else:
                self.counters.hit_count += 1
                self._blocks.move_to_end(place)
                self._unread.discard(place)
            # Not for who reads one message somewhere: what comes before it was not read.
            if not number or (found.key, number - 1) in self._blocks:
                self._read_ahead(store, found, number + 1)
        try:
            return block.result()
        except CancelledError:
            raise ArchiveInterrupted(found.key) from None
        except BaseException:
            # The next reader tries again.
            with self._lock:
                if self._blocks.get(place) is block:
                    self._drop(place)
            raise

    def _begin(self, store: Store, found: CachedObject, number: int) -> "Future[Buffer]":
        """Fetch a block. The lock is held."""
        try:
            block = self._threads.submit(partial(self._fetch, store, found, number))
        except RuntimeError:
            # The threads have ended.
            raise ArchiveInterrupted(found.key) from None
        self._blocks[found.key, number] = block
        while len(self._blocks) > self._count_max:
            self._drop(next(iter(self._blocks)))
        return block

    def _drop(self, place: tuple[str, int]) -> None:
        """Forget a block. The lock is held."""
        del self._blocks[place]
        self._unread.discard(place)

    def _fetch(self, store: Store, found: CachedObject, number: int) -> Buffer:
        """On a thread of the cache."""
        position = number * self.block_size
        size = min(self.block_size, found.size - position)
        try:
            data = store.read_range(found.key, position, size)
            if not _is_right(found, data):
                # Something on the way may have changed it. If not, the checksums of its batches say what is damaged.
                data = store.read_range(found.key, position, size)
            if len(data) != size:
                raise ArchiveDamaged(found.key, _too_short(found, position + len(data)))
        except BaseException:
            self.counters.failure_count += 1
            raise
        self.counters.fetch_size += size
        return data


def _too_short(found: CachedObject, size: int) -> str:
    return f"it has {size} bytes and should have {found.size}"


def _is_right(found: CachedObject, data: Buffer) -> bool:
    """Whether an object that is one block is what was archived. Larger ones have checksums in their batches."""
    return len(data) < found.size or not found.digest or xxhash.xxh3_128_digest(data) == found.digest


class ObjectFile:
    """An object that can be read as a file. Implements ``File``, and raises ``ArchiveFailure`` besides."""

    def __init__(self, cache: ObjectCache, store: Store, found: CachedObject) -> None:
        self._cache = cache
        self._store = store
        self._found = found
        self._file: File | None = None
        self._is_opened = False
        self._lock = Lock()
        self._holder_count = 0
        self._is_closed = False
        self.path = Path(found.key)

    def read_at(self, position: int, buffer: memoryview, *, wait: bool = True) -> int:
        self._open_once(wait=wait)
        file = self._file
        if file is None:
            return self._cache.read(self._store, self._found, position, buffer, wait=wait)
        try:
            size = file.read_at(position, buffer, wait=wait)
        except BlockingIOError:
            raise
        except OSError as error:
            self._cache.counters.failure_count += 1
            raise ArchiveFailure("read", self._found.key, error.strerror or str(error)) from error
        self._cache.counters.fetch_size += size
        return size

    def _open_once(self, *, wait: bool) -> None:
        if self._is_opened:
            return
        if not wait:
            raise BlockingIOError
        file = self._store.open_file(self._found.key)
        if file is not None and (size := file.size()) < self._found.size:
            file.close()
            raise ArchiveDamaged(self._found.key, _too_short(self._found, size))
        if not self._use(file) and file is not None:
            file.close()

    def _use(self, file: File | None) -> bool:
        """Read from this file. Returns whether no other reader was faster."""
        with self._lock:
            if self._is_opened:
                return False
            self._file, self._is_opened = file, True
            return True

    def read_ahead(self, *, wait: bool = True) -> None:
        """Have its first bytes fetched. The kernel does that with a file, when somebody reads it."""
        # If it is closed meanwhile, nothing else would close what is opened here.
        with held(self):
            self._open_once(wait=wait)
            if self._file is None:
                self._cache.read_ahead(self._store, self._found)

    def size(self) -> int:
        return self._found.size

    def hold(self) -> bool:
        """Keep it open until ``release``. Also if it is closed: the next read opens it again."""
        with self._lock:
            self._holder_count += 1
        return True

    def release(self) -> None:
        with self._lock:
            self._holder_count -= 1
            self._close_if_unused()

    def close(self) -> None:
        """Keep nothing open, except for those who hold it."""
        with self._lock:
            self._is_closed = True
            self._close_if_unused()

    def _close_if_unused(self) -> None:
        if self._is_closed and not self._holder_count:
            file, self._file, self._is_opened = self._file, None, False
            if file is not None:
                file.close()

    def discard_cache(self, size: int = 0) -> None:  # noqa: ARG002 -- blocks are kept for objects as a whole
        """Read it from the store again."""
        self._cache.discard(self._found.key)
        if self._file is not None:
            self._file.discard_cache()

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise OSError(EROFS, "an archived object cannot be changed", str(self.path))

    write_at = sync = truncate = allocate = reserve = start_writeback = _refuse
