"""Moves whole objects: uploads files, and checks that the store has what was sent; reads objects from end to end.

An upload whose reply was lost is not repeated if the object is there and right. The check uses the entity tag if it is
the one that S3 computes from MD5 hashes; with any other tag, the object is read back and hashed.

A store far away answers late, so that one request at a time would leave the connection idle most of the time: an object
is read in several ranges at a time, in order. Who takes the parts hashes them.
"""

import hashlib
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np
import xxhash

from courser.archive.errors import ArchiveDamaged, ArchiveFailure, ArchiveInterrupted
from courser.archive.pacing import Pace
from courser.archive.store import Store, StoredObject
from courser.model.buffers import Buffer
from courser.storage.files import File, read_into

_UNHASHED_COUNT = 2
"""Parts that wait to be hashed, at most, when the next one is read."""


@dataclass(frozen=True, slots=True)
class Range:
    """Bytes of a file to upload."""

    file: File
    position: int
    size: int


class _Hashes:
    """The hashes of what is sent. The entity tag takes much longer than the rest, so a thread computes it meanwhile."""

    def __init__(self, *, with_tag: bool) -> None:
        self.whole = xxhash.xxh3_128()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="archive-hash") if with_tag else None
        self._parts: list[Future[bytes]] = []

    def note(self, part: Buffer) -> None:
        self.whole.update(part)
        if self._thread is not None:
            if len(self._parts) >= _UNHASHED_COUNT:
                # The store may take parts faster: they must not pile up here.
                self._parts[-_UNHASHED_COUNT].result()
            self._parts.append(self._thread.submit(_md5, part))

    @property
    def tag(self) -> str:
        """The entity tag of S3 for an object that was sent in these parts; empty if nobody needs it."""
        parts = [part.result() for part in self._parts]
        if len(parts) < 2:
            return b"".join(parts).hex()
        return f"{_md5(b''.join(parts)).hex()}-{len(parts)}"

    def close(self) -> None:
        if self._thread is not None:
            self._thread.shutdown(wait=False, cancel_futures=True)


def _md5(data: Buffer) -> bytes:
    return hashlib.md5(data, usedforsecurity=False).digest()


def upload(store: Store, key: str, source: Range, part_size: int, pace: Pace) -> bytes:
    """Upload a range of a file and check it. Returns the XXH3-128 of its bytes.

    Raises:
        ArchiveFailure: the store refused, did not answer, or has something else now.
        OSError: the file cannot be read.
    """
    hashes = _Hashes(with_tag=store.reports_md5)
    try:
        is_shared = not store.keeps_parts
        reading = _Reading(source, min(part_size, STEP_SIZE) if is_shared else part_size, pace, hashes, key, is_shared)
        found = _send(store, key, reading)
        digest = hashes.whole.digest()
        if not _is_right(store, found, source.size, hashes.tag, digest, part_size, pace):
            raise ArchiveFailure("verify", key, "the store has other bytes than were sent")
    finally:
        hashes.close()
    return digest


def _send(store: Store, key: str, read: "_Reading") -> StoredObject:
    """Send all parts. Returns what the store reports after that."""
    try:
        store.upload(key, read.parts())
    except ArchiveInterrupted:
        raise
    except ArchiveFailure:
        read.raise_own_failure()
        if not read.is_complete:
            raise
        # Only the reply may be lost.
        found = store.find(key)
        if found is None:
            raise
    else:
        found = store.find(key)
    if found is None:
        raise ArchiveFailure("upload", key, "the store accepted it, but does not have it")
    return found


class _Reading:
    """Gives the parts of a file to a store, and keeps the failures that are not the store's."""

    def __init__(self, source: Range, part_size: int, pace: Pace, hashes: _Hashes, key: str, is_shared: bool) -> None:
        """``is_shared``: all parts use the same memory."""
        self._is_shared = is_shared
        self._source = source
        self._part_size = part_size
        self._pace = pace
        self._hashes = hashes
        self._key = key
        self._failure: OSError | ArchiveInterrupted | None = None
        self.is_complete = False

    def parts(self) -> Iterator[Buffer]:
        source, memory = self._source, memoryview(b"")
        for start in range(0, max(source.size, 1), self._part_size):
            size = min(self._part_size, source.size - start)
            try:
                self._pace.spend(size, self._key)
                if size > len(memory) or not self._is_shared:
                    # Not a bytearray, which would be zeroed first.
                    memory = np.empty(size, np.uint8).data
                part = memory[:size]
                if read_into(source.file, source.position + start, part) < size:
                    raise _too_short(source)
            except (OSError, ArchiveInterrupted) as failure:
                self._failure = failure
                raise
            self._hashes.note(part)
            self.is_complete = start + size >= source.size
            yield part

    def raise_own_failure(self) -> None:
        """A library may wrap what was raised here in an error of its own."""
        if self._failure is not None:
            raise self._failure


def is_stored(store: Store, key: str, size: int, digest: bytes, part_size: int, pace: Pace) -> bool:
    """Whether the store has an object with these bytes. Reads all of it."""
    found = store.find(key)
    return found is not None and _is_right(store, found, size, "", digest, part_size, pace)


def _is_right(
    store: Store, found: StoredObject, size: int, tag: str, digest: bytes, part_size: int, pace: Pace
) -> bool:
    if found.size != size:
        return False
    if tag and found.tag == tag:
        return True
    whole = xxhash.xxh3_128()
    for part in object_parts(store, found.key, size, part_size):
        whole.update(part)
        pace.give_way(found.key)
    return whole.digest() == digest


def hash_file(source: Range, pace: Pace) -> bytes:
    """The XXH3-128 of a range of a file."""
    whole, size = xxhash.xxh3_128(), 0
    for part in file_steps(source.file, source.position, source.size):
        whole.update(part)
        size += len(part)
        pace.give_way(source.file.path.name)
    if size < source.size:
        raise _too_short(source)
    return whole.digest()


def _too_short(source: Range) -> OSError:
    return OSError(f"{source.file.path} is shorter than {source.position + source.size} bytes")


# --- reading ---

_REQUEST_COUNT = 4
"""Requests at a time: as many parts are in memory."""
STEP_SIZE = 1024 * 1024
"""Bytes of a file that are read at a time: they are still in the processor's cache when they are hashed or written."""


def object_parts(store: Store, key: str, size: int, part_size: int) -> Iterator[Buffer]:
    """An object from its first to its last byte. A part is valid until the next one is asked for.

    Raises:
        ObjectMissing: it is not there.
        ArchiveFailure: the store does not answer, or the object is shorter.
    """
    file = store.open_file(key)
    parts = _ranges(store, key, size, part_size) if file is None else _steps(file, key, size)
    position = 0
    for part in parts:
        position += len(part)
        yield part
    if position != size:
        raise ArchiveDamaged(key, f"it has {position} bytes and should have {size}")


def _ranges(store: Store, key: str, size: int, part_size: int) -> Iterator[Buffer]:
    requests = [
        partial(store.read_range, key, position, min(part_size, size - position))
        for position in range(0, size, part_size)
    ]
    if len(requests) < 2:
        yield from (request() for request in requests)
        return
    waiting: deque[Future[Buffer]] = deque()
    threads = ThreadPoolExecutor(_REQUEST_COUNT, thread_name_prefix="archive-download")
    try:
        for request in requests:
            waiting.append(threads.submit(request))
            if len(waiting) == _REQUEST_COUNT:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        # Nobody waits for the others if one has failed.
        threads.shutdown(wait=False, cancel_futures=True)


def _steps(file: File, key: str, size: int) -> Iterator[Buffer]:
    try:
        yield from file_steps(file, 0, size)
    except OSError as error:
        raise ArchiveFailure("read", key, error.strerror or str(error)) from error
    finally:
        file.close()


def file_steps(file: File, position: int, size: int) -> Iterator[memoryview]:
    """A range of a file; less if the file is shorter. A step is valid until the next one is asked for."""
    buffer = np.empty(min(STEP_SIZE, size), np.uint8).data
    end = position + size
    while position < end:
        filled = read_into(file, position, buffer[: end - position])
        if not filled:
            return
        yield buffer[:filled]
        position += filled


def hash_object(store: Store, key: str, size: int, part_size: int) -> bytes:
    """The XXH3-128 of an object. Raises as ``object_parts`` does."""
    whole = xxhash.xxh3_128()
    for part in object_parts(store, key, size, part_size):
        whole.update(part)
    return whole.digest()
