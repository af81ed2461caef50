"""An object store in memory that does what real ones do on a bad day.

It loses replies, answers late, holds requests for any time, delivers them twice, refuses for no reason, lists late, and
forgets its newest objects. Which request goes wrong is decided by a seeded source of randomness, or by a list of faults
that a test prepares; when a request that was held arrives is a matter of the clock. Nothing here waits.
"""

import heapq
import random
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from enum import Enum

from courser.archive.errors import ArchiveFailure, ObjectMissing
from courser.archive.store import StoredObject
from courser.model.buffers import Buffer
from courser.model.clock import Clock

WRITE_TIME = 1_000
"""Microseconds that a request that writes takes, in a store without a clock."""


class StoreFault(Enum):
    """What happens to a request that writes."""

    REFUSED = "refused"
    """Nothing is done, and the reply says so."""
    REPLY_LOST = "reply lost"
    """It is done, and the caller gets an error."""
    REPLY_DOUBTFUL = "reply doubtful"
    """It is done, and the reply to a creation says that the object existed: a retry behind the caller's back."""
    LATE = "late"
    """The caller gets an error; it is held, and done later."""
    DOUBLED = "doubled"
    """It is done, and once more later: that matters if the object was deleted in between."""
    CHANGED = "changed"
    """It is done with other bytes."""


class MemoryStore:
    """Implements ``courser.archive.store.Store`` in memory.

    Attributes:
        objects: what it has, the newest last.
        faults: what happens to the next requests that write; None is nothing unusual.
        fault_rate: how often a request that writes goes wrong at random.
        fault_kinds: what may happen then.
        hold_max: microseconds after which a request that was held arrives at the latest.
        list_delay: microseconds until a new object is listed.
        ignores_conditions: whether it overwrites objects that it was asked to create.
        is_down: whether every request fails.
        write_count: how many requests that write there were.
    """

    def __init__(
        self,
        random: random.Random,
        clock: Clock | None = None,
        *,
        fault_rate: float = 0.0,
        fault_kinds: Sequence[StoreFault] = tuple(StoreFault),
        hold_max: int = 2 * WRITE_TIME,
        list_delay: int = 0,
    ) -> None:
        """Without a clock, time passes with the requests that write."""
        self.name = "memory"
        self.reports_md5 = False
        self.keeps_parts = True
        self.random = random
        self.objects: dict[str, bytes] = {}
        self.faults: deque[StoreFault | None] = deque()
        self.fault_rate = fault_rate
        self.fault_kinds = fault_kinds
        self.hold_max = hold_max
        self.list_delay = list_delay
        self.ignores_conditions = False
        self.is_down = False
        self.write_count = 0
        self._clock = clock
        self._held: list[tuple[int, int, str, bytes]] = []
        """A heap: when it arrives, the number of the request, key, bytes."""
        self._listed_from: dict[str, int] = {}

    def recognize(self) -> None:
        """It is known by its objects alone."""

    def check_place(self) -> None:
        """It is known by its objects alone."""

    # --- what a test does to it ---

    def lose_newest(self, count: int) -> list[str]:
        """Forget the newest objects, as a store that was set back. Returns their keys, the oldest first."""
        lost = list(self.objects)[len(self.objects) - count :] if count else []
        for key in lost:
            del self.objects[key]
        return lost

    def deliver_held(self) -> None:
        """Let all requests that are held arrive now."""
        while self._held:
            self._deliver_next()

    # --- requests that write ---

    def put_new(self, key: str, data: bytes) -> bool:
        """Create an object."""
        fault = self._fate_of("create", key, data)
        exists = key in self.objects and not self.ignores_conditions
        if not exists:
            self._put(key, bytes(reversed(data)) if fault is StoreFault.CHANGED else data)
        self._end_write()
        if fault is StoreFault.REPLY_LOST:
            raise ArchiveFailure("create", key, "connection reset")
        return not exists and fault is not StoreFault.REPLY_DOUBTFUL

    def upload(self, key: str, parts: Iterable[Buffer]) -> None:
        """Create a large object, without a condition."""
        data = b"".join(parts)
        fault = self._fate_of("upload", key, data)
        self._put(key, bytes(reversed(data)) if fault is StoreFault.CHANGED else data)
        self._end_write()
        if fault in (StoreFault.REPLY_LOST, StoreFault.REPLY_DOUBTFUL):
            raise ArchiveFailure("upload", key, "connection reset")

    def delete(self, key: str) -> None:
        """Delete an object."""
        if self._next_fault("delete", key) is StoreFault.REFUSED:
            raise ArchiveFailure("delete", key, "503 Slow Down")
        self.objects.pop(key, None)
        self._end_write()

    def _fate_of(self, operation: str, key: str, data: bytes) -> StoreFault | None:
        """What happens to a request that stores bytes. Raises what the caller gets if nothing is done now."""
        fault = self._next_fault(operation, key)
        if fault is StoreFault.REFUSED:
            raise ArchiveFailure(operation, key, "503 Slow Down")
        if fault in (StoreFault.LATE, StoreFault.DOUBLED):
            due = self._now() + self.random.randint(1, self.hold_max)
            heapq.heappush(self._held, (due, self.write_count, key, data))
        if fault is StoreFault.LATE:
            raise ArchiveFailure(operation, key, "timeout")
        return fault

    def _next_fault(self, operation: str, key: str) -> StoreFault | None:
        self._check_up(operation, key)
        self.write_count += 1
        self._begin_write(operation, key)
        self._deliver_due()
        if self.faults:
            return self.faults.popleft()
        return self.random.choice(self.fault_kinds) if self.random.random() < self.fault_rate else None

    def _begin_write(self, operation: str, key: str) -> None:
        """A request that writes has arrived, and nothing is done yet."""

    def _end_write(self) -> None:
        """A request that writes has been carried out, and is not answered yet."""

    def _put(self, key: str, data: bytes) -> None:
        self.objects[key] = data
        self._listed_from[key] = self._now() + self.list_delay

    def _check_up(self, operation: str, key: str) -> None:
        if self.is_down:
            raise ArchiveFailure(operation, key, "connection refused")

    def _deliver_due(self) -> None:
        while self._held and self._held[0][0] <= self._now():
            self._deliver_next()

    def _deliver_next(self) -> None:
        _, _, key, data = heapq.heappop(self._held)
        if key not in self.objects:
            self._put(key, data)

    def _now(self) -> int:
        return self._clock.monotonic() if self._clock else self.write_count * WRITE_TIME

    # --- requests that read ---

    def read(self, key: str) -> bytes:
        """The whole object."""
        self._check_up("read", key)
        self._deliver_due()
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
        self._deliver_due()
        return StoredObject(key, len(self.objects[key]), "", 0) if key in self.objects else None

    def list_names(self, prefix: str) -> list[str]:
        """The next parts of the keys below a prefix."""
        rests = [found.key.removeprefix(prefix) for found in self.list_objects(prefix)]
        return sorted({rest.partition("/")[0] for rest in rests if "/" in rest})

    def list_objects(self, prefix: str) -> Iterator[StoredObject]:
        """The objects below a prefix, without the newest if lists are late."""
        self._check_up("list", prefix)
        self._deliver_due()
        # An object that a test planted has no time: it is listed at once.
        now = self._now()
        listed = [key for key in self.objects if key.startswith(prefix) and self._listed_from.get(key, 0) <= now]
        yield from [StoredObject(key, len(self.objects[key]), "", 0) for key in sorted(listed)]
