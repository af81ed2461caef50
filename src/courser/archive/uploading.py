"""Uploads files, and checks that the store has what was sent.

An upload whose reply was lost is not repeated if the object is there and right. The check uses the entity tag if it is
the one that S3 computes from MD5 hashes; with any other tag, the object is read back and hashed.
"""

import hashlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from threading import Event

import xxhash

from courser.archive.errors import ArchiveFailure, ArchiveInterrupted
from courser.archive.store import Store, StoredObject
from courser.storage.files import File, read_exactly


class Pace:
    """Limits the bytes per second of uploads. 0 is no limit."""

    def __init__(
        self, rate: int, *, monotonic: Callable[[], float] = time.monotonic, stop: Event | None = None
    ) -> None:
        self._rate = rate
        self._monotonic = monotonic
        self._stop = stop or Event()
        self._free_at = 0.0
        """When the bytes sent so far are within the rate."""

    def spend(self, size: int, key: str) -> None:
        """Wait until ``size`` more bytes may be sent. Raises ``ArchiveInterrupted`` if the server stops."""
        if self._rate:
            now = self._monotonic()
            pause = max(self._free_at - now, 0.0)
            self._free_at = max(self._free_at, now) + size / self._rate
            self._stop.wait(pause)
        if self._stop.is_set():
            raise ArchiveInterrupted(key)


@dataclass(frozen=True, slots=True)
class Range:
    """Bytes of a file to upload."""

    file: File
    position: int
    size: int


class _Hashes:
    """The hashes of what was sent."""

    def __init__(self) -> None:
        self.whole = xxhash.xxh3_128()
        self._parts: list[bytes] = []

    def note(self, part: bytes) -> None:
        self.whole.update(part)
        self._parts.append(hashlib.md5(part, usedforsecurity=False).digest())

    @property
    def tag(self) -> str:
        """The entity tag of S3 for an object that was sent in these parts."""
        if len(self._parts) == 1:
            return self._parts[0].hex()
        return f"{hashlib.md5(b''.join(self._parts), usedforsecurity=False).hexdigest()}-{len(self._parts)}"


def upload(store: Store, key: str, source: Range, part_size: int, pace: Pace) -> bytes:
    """Upload a range of a file and check it. Returns the XXH3-128 of its bytes.

    Raises:
        ArchiveFailure: the store refused, did not answer, or has something else now.
        OSError: the file cannot be read.
    """
    hashes = _Hashes()
    read = _Reading(source, part_size, pace, hashes, key)
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
    digest = hashes.whole.digest()
    if not _is_right(store, found, source.size, hashes.tag, digest, part_size):
        raise ArchiveFailure("verify", key, "the store has other bytes than were sent")
    return digest


class _Reading:
    """Gives the parts of a file to a store, and keeps the failures that are not the store's."""

    def __init__(self, source: Range, part_size: int, pace: Pace, hashes: _Hashes, key: str) -> None:
        self._source = source
        self._part_size = part_size
        self._pace = pace
        self._hashes = hashes
        self._key = key
        self._failure: OSError | ArchiveInterrupted | None = None
        self.is_complete = False

    def parts(self) -> Iterator[bytes]:
        source = self._source
        for start in range(0, max(source.size, 1), self._part_size):
            size = min(self._part_size, source.size - start)
            try:
                self._pace.spend(size, self._key)
                data = read_exactly(source.file, source.position + start, size)
                if data is None:
                    raise OSError(f"{source.file.path} is shorter than {source.position + source.size} bytes")
            except (OSError, ArchiveInterrupted) as failure:
                self._failure = failure
                raise
            part = bytes(data)
            self._hashes.note(part)
            self.is_complete = start + size >= source.size
            yield part

    def raise_own_failure(self) -> None:
        """A library may wrap what was raised here in an error of its own."""
        if self._failure is not None:
            raise self._failure


def is_stored(store: Store, key: str, size: int, digest: bytes, part_size: int) -> bool:
    """Whether the store has an object with these bytes. Reads all of it."""
    found = store.find(key)
    return found is not None and _is_right(store, found, size, "", digest, part_size)


def _is_right(store: Store, found: StoredObject, size: int, tag: str, digest: bytes, part_size: int) -> bool:
    if found.size != size:
        return False
    if tag and found.tag == tag:
        return True
    return hash_object(store, found.key, size, part_size) == digest


def hash_object(store: Store, key: str, size: int, part_size: int) -> bytes:
    """The XXH3-128 of an object, read in parts."""
    whole = xxhash.xxh3_128()
    for position in range(0, size, part_size):
        whole.update(store.read_range(key, position, min(part_size, size - position)))
    return whole.digest()


def hash_file(source: Range, part_size: int) -> bytes:
    """The XXH3-128 of a range of a file."""
    whole = xxhash.xxh3_128()
    for start in range(0, source.size, part_size):
        data = read_exactly(source.file, source.position + start, min(part_size, source.size - start))
        if data is None:
            raise OSError(f"{source.file.path} is shorter than {source.position + source.size} bytes")
        whole.update(data)
    return whole.digest()
