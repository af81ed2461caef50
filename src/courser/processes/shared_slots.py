"""How many connections all processes of a server have: counted in memory that they share.

Every process writes its own numbers and reads those of all. Nothing is locked: a process first counts the connection
that it wants to accept, and then looks whether the sum is too large.
"""

import mmap
import os
from collections.abc import Callable
from typing import Self

from courser.transports.connections import ConnectionSlots

_FIELD_COUNT = 2
"""For each process: its connections, and those of them that are strangers."""
_FIELD_SIZE = 8
"""Bytes. One store or load each, so nobody reads half of a number."""


class SharedSlots(ConnectionSlots):
    """Counts the connections of one process against the slots of the server."""

    def __init__(self, descriptor: int, number: int, process_count: int, count_max: int) -> None:
        """``descriptor`` is that of the shared memory; the caller keeps it."""
        super().__init__(count_max)
        self._number = number
        self._process_count = process_count
        self._memory = mmap.mmap(descriptor, size_of(process_count))
        self._counts = memoryview(self._memory).cast("Q")
        self.ask_to_evict: Callable[[int, int], None] = lambda _, __: None
        """Set by the server: has a process close a stranger, on behalf of another one."""

    @classmethod
    def first(cls, descriptor: int, process_count: int, count_max: int) -> Self:
        """Those of the first process."""
        return cls(descriptor, 0, process_count, count_max)

    @property
    def total(self) -> int:
        """The connections of all processes."""
        return sum(self._counts[: self._process_count])

    def take(self, count: int) -> bool:
        self._counts[self._number] = count + 1
        if self.total <= self._count_max:
            return True
        self._counts[self._number] = count
        return False

    def note(self, count: int, stranger_count: int) -> None:
        self._counts[self._number] = count
        self._counts[self._process_count + self._number] = stranger_count

    def free_in_peers(self, stranger_count: int) -> bool:
        number, most = self._most_strangers({self._number})
        if most <= stranger_count:
            return False
        self.ask_to_evict(number, self._number)
        return True

    def pass_on(self, origin: int) -> bool:
        """This process was asked to close a stranger, but it has none: others had logged in. Ask the next one.

        In the end, it is ``origin`` that must close a connection: it has accepted one for which there is no slot.
        Returns False if that is this process, and there are too many connections indeed.
        """
        number, most = self._most_strangers({self._number, origin})
        if most or origin != self._number:
            self.ask_to_evict(number if most else origin, origin)
            return True
        return self.total <= self._count_max

    def _most_strangers(self, excluded: set[int]) -> tuple[int, int]:
        """The process that has the most, as far as is known, and how many."""
        counts = self._counts[self._process_count :].tolist()
        found = [(count, number) for number, count in enumerate(counts) if number not in excluded]
        count, number = max(found, default=(0, self._number))
        return number, count

    def forget(self, number: int) -> None:
        """A process is gone, and its connections with it."""
        self._counts[number] = self._counts[self._process_count + number] = 0


def make_shared_slots(process_count: int) -> int:
    """New memory for all processes, as a descriptor."""
    descriptor = os.memfd_create("courser-connections", os.MFD_CLOEXEC)
    os.ftruncate(descriptor, size_of(process_count))
    return descriptor


def size_of(process_count: int) -> int:
    """Bytes of the shared memory."""
    return process_count * _FIELD_COUNT * _FIELD_SIZE
