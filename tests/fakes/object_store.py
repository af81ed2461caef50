"""The object store in memory that Courser ships, as a process sees it that may be killed at any request.

It also notes what no writer may ever do: to want other bytes under a key than it wanted before.
"""

import random
from collections.abc import Iterable

from courser.model.buffers import Buffer
from courser.model.clock import Clock
from courser.testing.object_store import MemoryStore


class StoreKilled(BaseException):
    """The process that uses the store dies here. Not an ``Exception``, as ``SimulatedCrash``."""


class FakeStore(MemoryStore):
    """A store whose client dies at a request that a test chooses.

    Attributes:
        kill_at: the number of the request that writes at which the process ends; None: never.
        is_killed_before: whether that request is not done.
        overwritten: keys that callers wanted to give different bytes.
    """

    kill_at: int | None = None
    is_killed_before = True

    def __init__(
        self, random: random.Random, clock: Clock | None = None, *, fault_rate: float = 0.0, list_delay: int = 0
    ) -> None:
        super().__init__(random, clock, fault_rate=fault_rate, list_delay=list_delay)
        self.overwritten: list[str] = []
        self._wanted: dict[str, bytes] = {}

    def put_new(self, key: str, data: bytes) -> bool:
        if key in self.objects and not self.ignores_conditions:
            self._note_wanted(key, data)
        return super().put_new(key, data)

    def upload(self, key: str, parts: Iterable[Buffer]) -> None:
        data = b"".join(parts)
        self._note_wanted(key, data)
        super().upload(key, [data])

    def _note_wanted(self, key: str, data: bytes) -> None:
        if self._wanted.setdefault(key, data) != data:
            self.overwritten.append(key)

    def _begin_write(self, operation: str, key: str) -> None:
        if self.kill_at == self.write_count and self.is_killed_before:
            raise StoreKilled(f"killed before {operation} of {key}")

    def _end_write(self) -> None:
        if self.kill_at == self.write_count and not self.is_killed_before:
            raise StoreKilled(f"killed after write {self.write_count}")
