"""Lock files that name their holder. The kernel releases them when the holder dies.

The lock itself is a ``flock``, so a killed runner never leaves a stale lock. The text in the file is for people, and
for finding the Java process of a killed runner, which may run on for a moment and must be waited for.
"""

import fcntl
import json
import os
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from courser.errors import ClientFailure

ORPHAN_PATIENCE = 30.0
"""Seconds to wait for the Java process of a killed runner to exit. It normally takes less than one."""
_LOOK_INTERVAL = 0.05
"""Seconds between checks of that process."""


@dataclass(frozen=True, slots=True)
class LockHolder:
    """A process that holds a lock, or held it last."""

    pid: int
    started: int
    """Start time of the process in clock ticks since boot. Process ids are reused, but not with the same start time."""
    host: str
    name: str
    """The pipeline's name."""
    java_pid: int | None = None
    java_started: int = 0

    @property
    def is_alive(self) -> bool:
        """Whether it is running. A process on another host is assumed to be."""
        return self.host != socket.gethostname() or process_started(self.pid) == self.started


class LockTaken(ClientFailure):
    """Another process holds the lock."""

    def __init__(self, place: str, holder: LockHolder | None) -> None:
        who = "another process"
        if holder is not None:
            who = f"process {holder.pid} on {holder.host}, which runs {holder.name}"
        super().__init__(f"{place} is in use by {who}; stop it first, or use another checkpoint")
        self.holder = holder


def process_started(pid: int) -> int | None:
    """The start time of a process on this machine; None if it is not running."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    state, *rest = text.rpartition(")")[2].split()
    # Z and X: it has exited but was not reaped yet.
    return None if state in "ZX" else int(rest[18])


def this_process(name: str) -> LockHolder:
    """This process as a holder."""
    return LockHolder(os.getpid(), process_started(os.getpid()) or 0, socket.gethostname(), name)


def await_orphan(holder: LockHolder, wait: Callable[[float], object], patience: float = ORPHAN_PATIENCE) -> None:
    """Wait until the Java process of a dead runner on this machine has exited. Raises ``ClientFailure``."""
    deadline = time.monotonic() + patience
    while holder.java_pid is not None and process_started(holder.java_pid) == holder.java_started:
        if time.monotonic() > deadline:
            raise ClientFailure(
                f"the Java process {holder.java_pid} of the dead runner {holder.pid} does not exit; end it with "
                f"kill {holder.java_pid} and try again"
            )
        wait(_LOOK_INTERVAL)


class Lock:
    """A lock file that one process at a time can hold. A context manager."""

    def __init__(
        self,
        path: Path,
        holder: LockHolder,
        wait: Callable[[float], object] = time.sleep,
        *,
        orphan_patience: float = ORPHAN_PATIENCE,
    ) -> None:
        """``orphan_patience``: seconds to wait for the Java process of a killed runner to exit."""
        self._path = path
        self._holder = holder
        self._wait = wait
        self._orphan_patience = orphan_patience
        self._descriptor: int | None = None
        self.abandoned_by: LockHolder | None = None
        """The last holder, if it died without releasing the lock."""

    def acquire(self) -> Self:
        """Acquire the lock. Raises ``LockTaken`` at once if another process holds it."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise LockTaken(str(self._path.parent), _read(self._path)) from None
        self._descriptor = descriptor
        self.abandoned_by = _read(self._path)
        try:
            holder = self.abandoned_by
            if holder is not None and holder.host == self._holder.host:
                await_orphan(holder, self._wait, self._orphan_patience)
        except BaseException:
            # Keep the text in the file: the orphan is still running.
            os.close(descriptor)
            self._descriptor = None
            raise
        self._write(self._holder)
        return self

    def note_java(self, pid: int) -> None:
        """Record the Java process of this runner."""
        self._holder = replace(self._holder, java_pid=pid, java_started=process_started(pid) or 0)
        self._write(self._holder)

    def release(self) -> None:
        """Release the lock. Can be called repeatedly."""
        if self._descriptor is not None:
            os.ftruncate(self._descriptor, 0)
            os.close(self._descriptor)
            self._descriptor = None

    def check(self) -> None:
        """The kernel keeps the lock as long as this process lives."""

    def _write(self, holder: LockHolder) -> None:
        assert self._descriptor is not None, "the lock is not held"
        data = json.dumps(asdict(holder)).encode()
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, data, 0)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def holder_of(values: Any) -> LockHolder | None:
    """The holder that a lock names; None if it names none."""
    with suppress(TypeError):
        return LockHolder(**values)
    return None


def _read(path: Path) -> LockHolder | None:
    with suppress(OSError, ValueError):
        return holder_of(json.loads(path.read_text()))
    return None
