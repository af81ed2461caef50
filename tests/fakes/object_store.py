"""An object store in memory that does what real ones do on a bad day.

It loses replies, answers late, refuses for no reason and lists late. Which request goes wrong is decided by a seeded
source of randomness, or by a list of faults that a test prepares.
"""

import random
from collections import deque
from collections.abc import Iterable, Iterator
from enum import Enum

from courser.archive.errors import ArchiveFailure, ObjectMissing
from courser.archive.store import StoredObject
from courser.model.buffers import Buffer


class StoreFault(Enum):
    """What happens to a request."""

    REFUSED = "refused"
    """Nothing is done, and the reply says so."""
    REPLY_LOST = "reply lost"
    """It is done, and the caller gets an error."""
    REPLY_DOUBTFUL = "reply doubtful"
    """It is done, and the reply to a creation says that the object existed: a retry behind the caller's back."""
    LATE = "late"
    """The caller gets an error; it is done later, before the request after the next one."""
    CHANGED = "changed"
    """It is done with other bytes."""


class StoreKilled(BaseException):
    """The process that uses the store dies here. Not an ``Exception``, as ``SimulatedCrash``."""


class FakeStore:
    """Implements ``Store`` in memory.

    Attributes:
        objects: what it has.
        faults: what happens to the next requests that write; None is nothing unusual.
        fault_rate: how often a request that writes goes wrong at random.
        list_delay: how many later writes it takes until a new object is listed.
        ignores_conditions: whether it overwrites objects that it was asked to create.
        is_down: whether every request fails.
        kill_at: the number of the request that writes at which the process ends; None: never.
        is_killed_before: whether that request is not done.
        write_count: how many requests that write there were.
    """

    def __init__(self, random: random.Random, *, fault_rate: float = 0.0, list_delay: int = 0) -> None:
        self.name = "fake store"
        self.reports_md5 = False
        self.keeps_parts = True
        self.random = random
        self.objects: dict[str, bytes] = {}
        self.faults: deque[StoreFault | None] = deque()
        self.fault_rate = fault_rate
        self.list_delay = list_delay
        self.ignores_conditions = False
        self.is_down = False
        self.kill_at: int | None = None
        self.is_killed_before = True
        self.write_count = 0
        self._late: deque[tuple[int, str, bytes]] = deque()
        self._listed_from: dict[str, int] = {}
        self._uploaded: dict[str, bytes] = {}
        """What callers wanted to upload, whatever became of it."""
        self.overwritten: list[str] = []
        """Keys that callers wanted to give different bytes."""

    def recognize(self) -> None:
        """It is known by its objects alone."""

    def check_place(self) -> None:
        """It is known by its objects alone."""

    # --- requests that write ---

    def put_new(self, key: str, data: bytes) -> bool:
        """Create an object."""
        fault = self._next_write("create", key)
        exists = key in self.objects and not self.ignores_conditions
        if key in self.objects and not exists:
            self._note_wanted(key, data)
        if fault is StoreFault.REFUSED:
            raise ArchiveFailure("create", key, "503 Slow Down")
        if fault is StoreFault.LATE:
            self._late.append((self.write_count + 1, key, data))
            raise ArchiveFailure("create", key, "timeout")
        if not exists:
            self._put(key, bytes(reversed(data)) if fault is StoreFault.CHANGED else data)
        self._end_write()
        if fault is StoreFault.REPLY_LOST:
            raise ArchiveFailure("create", key, "connection reset")
        return not exists and fault is not StoreFault.REPLY_DOUBTFUL

    def upload(self, key: str, parts: Iterable[Buffer]) -> None:
        """Create a large object, without a condition."""
        data = b"".join(parts)
        self._note_wanted(key, data)
        fault = self._next_write("upload", key)
        if fault is StoreFault.REFUSED:
            raise ArchiveFailure("upload", key, "503 Slow Down")
        if fault is StoreFault.LATE:
            self._late.append((self.write_count + 1, key, data))
            raise ArchiveFailure("upload", key, "timeout")
        self._put(key, bytes(reversed(data)) if fault is StoreFault.CHANGED else data)
        self._end_write()
        if fault in (StoreFault.REPLY_LOST, StoreFault.REPLY_DOUBTFUL):
            raise ArchiveFailure("upload", key, "connection reset")

    def delete(self, key: str) -> None:
        """Delete an object."""
        if self._next_write("delete", key) is StoreFault.REFUSED:
            raise ArchiveFailure("delete", key, "503 Slow Down")
        self.objects.pop(key, None)
        self._end_write()

    def _next_write(self, operation: str, key: str) -> StoreFault | None:
        self._check_up(operation, key)
        self.write_count += 1
        if self.kill_at == self.write_count and self.is_killed_before:
            raise StoreKilled(f"killed before {operation} of {key}")
        while self._late and self._late[0][0] < self.write_count:
            _, late_key, data = self._late.popleft()
            if late_key not in self.objects:
                self._put(late_key, data)
        if self.faults:
            return self.faults.popleft()
        return self.random.choice(tuple(StoreFault)) if self.random.random() < self.fault_rate else None

    def _end_write(self) -> None:
        if self.kill_at == self.write_count and not self.is_killed_before:
            raise StoreKilled(f"killed after write {self.write_count}")

    def _note_wanted(self, key: str, data: bytes) -> None:
        if self._uploaded.setdefault(key, data) != data:
            self.overwritten.append(key)

    def _put(self, key: str, data: bytes) -> None:
        self.objects[key] = data
        self._listed_from[key] = self.write_count + self.list_delay

    def _check_up(self, operation: str, key: str) -> None:
        if self.is_down:
            raise ArchiveFailure(operation, key, "connection refused")

    # --- requests that read ---

    def read(self, key: str) -> bytes:
        """The whole object."""
        self._check_up("read", key)
        if key not in self.objects:
            raise ObjectMissing(key)
        return self.objects[key]

    def read_range(self, key: str, position: int, size: int) -> bytes:
        """Bytes of an object."""
        return self.read(key)[position : position + size]

    def open_file(self, key: str) -> None:
        """It has no files."""

    def find(self, key: str) -> StoredObject | None:
        """What the store reports about an object."""
        self._check_up("find", key)
        return StoredObject(key, len(self.objects[key]), "", 0) if key in self.objects else None

    def list_names(self, prefix: str) -> list[str]:
        """The next parts of the keys below a prefix."""
        rests = [found.key.removeprefix(prefix) for found in self.list_objects(prefix)]
        return sorted({rest.partition("/")[0] for rest in rests if "/" in rest})

    def list_objects(self, prefix: str) -> Iterator[StoredObject]:
        """The objects below a prefix, without the newest if lists are late."""
        self._check_up("list", prefix)
        listed = [key for key in self.objects if key.startswith(prefix) and self._listed_from[key] <= self.write_count]
        yield from [StoredObject(key, len(self.objects[key]), "", 0) for key in sorted(listed)]
