"""What shall go wrong, and when: the schedule that a ``FakeFileSystem`` follows."""

import random
from dataclasses import dataclass
from enum import Enum
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Self

OPERATIONS = frozenset(
    {
        "write_at",
        "read_at",
        "sync",
        "truncate",
        "allocate",
        "reserve",
        "start_writeback",
        "discard_cache",
        "size",
        "open",
        "list_directory",
        "make_directory",
        "link",
        "rename",
        "unlink",
        "remove_directory",
        "sync_directory",
        "identity",
        "free_space",
    }
)
"""The names under which calls are counted and made to fail."""


class SimulatedCrash(BaseException):
    """The process dies here. Not an ``Exception``, so that no handler in the code under test survives its own death."""


class CrashMoment(Enum):
    """Where in the fatal call the process dies."""

    BEFORE = "before"
    MIDDLE = "middle"
    AFTER = "after"


@dataclass(slots=True)
class _Rule:
    """Fires at its n-th matching call, or from it on."""

    operation: str | None
    name: str | None
    call: int
    onwards: bool
    value: int | None
    seen: int = 0

    def fires(self, operation: str, path: Path) -> bool:
        if self.operation is not None and self.operation != operation:
            return False
        if self.name is not None and not fnmatchcase(path.name, self.name):
            return False
        self.seen += 1
        return self.seen == self.call or (self.onwards and self.seen > self.call)


class FaultPlan:
    """Calls are counted from 1, from the moment that the plan is handed to the file system.

    The methods return the plan, so that it can be written down in one expression.
    """

    def __init__(self) -> None:
        self._failures: list[_Rule] = []
        self._portions: list[_Rule] = []
        self._crash_at = 0
        self._crash_moment: CrashMoment | None = None
        self._mutations = 0

    def fail(
        self, operation: str | None, error: int, *, call: int = 1, onwards: bool = False, name: str | None = None
    ) -> Self:
        """Let the n-th call of the operation (None: of any) end with this error number.

        Args:
            operation: one of ``OPERATIONS``.
            error: an ``errno``.
            call: which one, counted from 1.
            onwards: all calls after it fail as well.
            name: a pattern such as ``*.log``; only files of such names are counted and fail.
        """
        self._failures.append(_Rule(_known(operation), name, call, onwards, error))
        return self

    def shorten(
        self,
        operation: str = "write_at",
        *,
        call: int = 1,
        take: int | None = None,
        onwards: bool = False,
        name: str | None = None,
    ) -> Self:
        """Let the n-th write (or ``read_at``) move at most ``take`` bytes; None: a random part, at least one byte."""
        self._portions.append(_Rule(_known(operation), name, call, onwards, take))
        return self

    def crash_at(self, call: int, moment: CrashMoment | None = None) -> Self:
        """Die in the n-th call that changes anything; without a moment, at a random one."""
        self._crash_at = call
        self._crash_moment = moment
        return self

    def failure(self, operation: str, path: Path) -> int | None:
        """The error number that this call has to end with. Counts the call."""
        error = None
        for rule in self._failures:
            if rule.fires(operation, path):
                error = rule.value
        return error

    def portion(self, operation: str, path: Path, size: int, source: random.Random) -> int:
        """How many of ``size`` bytes this call may move. Counts the call."""
        for rule in self._portions:
            if rule.fires(operation, path) and size > 0:
                size = min(size, source.randint(1, size) if rule.value is None else rule.value)
        return size

    def crash(self, source: random.Random) -> CrashMoment | None:
        """Whether this mutating call is the fatal one, and where in it. Counts the call."""
        self._mutations += 1
        if self._mutations != self._crash_at:
            return None
        return self._crash_moment or source.choice(tuple(CrashMoment))


def _known(operation: str | None) -> str | None:
    if operation is not None and operation not in OPERATIONS:
        raise ValueError(f"there is no operation {operation!r}: a fault that never fires proves nothing")
    return operation
