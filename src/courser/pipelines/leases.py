"""Locks at addresses, where no kernel releases a lock when its holder dies.

Each holder creates the next file ``lock-N``, which only one process can do, and renews it. The highest number holds.
Whoever wants the lock watches that file: if it changes, its holder lives; if it does not for ``expiry``, the next file
may be created. No clocks are compared. A holder that could not renew stops its queries before anyone may take over, and
one that finds a higher number stops for good. ADR 0028 says what this promises, and what Spark's own log adds.
"""

import json
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from uuid import uuid4

from courser.errors import ClientFailure
from courser.jobs.folders import HadoopFolder
from courser.pipelines.locking import LockHolder, LockTaken, await_orphan, holder_of, process_started

_PREFIX = "lock-"
_LOOK_COUNT = 10
"""A lock that is being renewed is empty for a moment, and does not say who has it."""


class LeaseLate(ClientFailure):
    """The lock could not be renewed in time. It may still be ours."""


class LeaseLost(ClientFailure):
    """Another process has taken the lock over."""


@dataclass(frozen=True, slots=True)
class LeaseTimes:
    """Seconds."""

    renewal: float = 10.0
    """Between two renewals. Each is a few requests."""
    expiry: float = 60.0
    """Without a renewal, after which a lock is free. A failover of a name node or a slow store takes less."""
    validity: float = 40.0
    """Since the last renewal, after which the holder stops its queries. Less than ``expiry``: they need a moment."""
    settling: float = 2.0
    """For which the creator of a file waits before it looks whether it has it. Stores without conditional writes let
    two create a file, and the last one has it."""


class Lease:
    """A lock at an address. A context manager."""

    def __init__(
        self,
        folder: HadoopFolder,
        holder: LockHolder,
        *,
        times: LeaseTimes | None = None,
        wait: Callable[[float], object] = time.sleep,
        tell: Callable[[str], object] = lambda text: None,  # noqa: ARG005
    ) -> None:
        """``tell`` gets a sentence if somebody else's lock has to be watched for a while."""
        self._folder = folder
        self._holder = holder
        self._times = times or LeaseTimes()
        self._wait = wait
        self._tell = tell
        self._token = uuid4().hex
        self._number = 0
        self._renewals = 0
        self._renewed = 0.0
        self._is_lost = False
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def acquire(self) -> Self:
        """Acquire the lock. Raises ``LockTaken`` if another process holds it, after watching it for a moment."""
        number, text = self._newest()
        if number:
            self._await_end(number, text)
        self._number = number + 1
        self._renewed = time.monotonic()
        if self._folder.create(self._name, self._text()):
            self._wait(self._times.settling)
        # Even if the file was there: a write whose answer was lost has met itself.
        number, text = self._newest()
        if number != self._number or _values(text).get("token") != self._token:
            raise self._taken()
        for older in self._numbers():
            if older < self._number:
                self._folder.remove(f"{_PREFIX}{older}")
        self._thread = threading.Thread(target=self._renew_on, name=f"lease of {self._folder.place}", daemon=True)
        self._thread.start()
        return self

    def check(self) -> None:
        """Whether the lock is still held. Raises ``LeaseLost``, or ``LeaseLate``: it may be held again later."""
        place = self._folder.place
        if self._is_lost:
            raise LeaseLost(f"another runner has taken over {place}, because this one did not renew its lock in time")
        silence = time.monotonic() - self._renewed
        if silence > self._times.validity:
            raise LeaseLate(f"the lock of {place} could not be renewed for {silence:.0f} seconds")

    def note_java(self, pid: int) -> None:
        """Record the Java process of this runner; the next renewal writes it."""
        self._holder = replace(self._holder, java_pid=pid, java_started=process_started(pid) or 0)

    def release(self) -> None:
        """Release the lock. If that fails, the next holder has to wait until it expires."""
        if self._thread is None:
            return
        self._ended.set()
        self._thread.join()
        self._thread = None
        # Whatever py4j raises if Java has exited.
        with suppress(Exception):
            if self._newest()[0] == self._number:
                self._folder.overwrite(self._name, self._text(is_released=True))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    # --- the file ---

    @property
    def _name(self) -> str:
        return f"{_PREFIX}{self._number}"

    def _text(self, *, is_released: bool = False) -> bytes:
        own = {"token": self._token, "renewals": self._renewals, "is_released": is_released, "machine": _machine()}
        return json.dumps({"holder": asdict(self._holder), **own}).encode()

    def _numbers(self) -> list[int]:
        ends = (name.removeprefix(_PREFIX) for name in self._folder.names() if name.startswith(_PREFIX))
        return [int(end) for end in ends if end.isdecimal()]

    def _newest(self) -> tuple[int, bytes]:
        number = max(self._numbers(), default=0)
        return number, (self._folder.read(f"{_PREFIX}{number}") or b"") if number else b""

    def _taken(self) -> LockTaken:
        looks = (_values(self._newest()[1]) for _ in range(_LOOK_COUNT))
        return LockTaken(self._folder.place, holder_of(next(filter(None, looks), {}).get("holder")))

    # --- the holder before ---

    def _await_end(self, number: int, text: bytes) -> None:
        """Wait until the lock is free. Raises ``LockTaken`` if its holder lives."""
        values = _values(text)
        if values.get("is_released"):
            return
        holder = holder_of(values.get("holder"))
        if holder is not None and values.get("machine") == _machine():
            # The kernel that runs us knows it: there is nothing to watch.
            if process_started(holder.pid) == holder.started:
                raise LockTaken(self._folder.place, holder)
            await_orphan(holder, self._wait)
            return
        who = f"process {holder.pid} on {holder.host}" if holder is not None else "another process"
        self._tell(f"{self._folder.place} was locked by {who}; waiting up to {self._times.expiry:g} s for a sign of it")
        deadline = time.monotonic() + self._times.expiry
        while time.monotonic() < deadline:
            self._wait(self._times.renewal / 4)
            if self._newest() != (number, text):
                raise LockTaken(self._folder.place, holder)

    # --- renewals ---

    def _renew_on(self) -> None:
        while not self._ended.wait(self._times.renewal):
            begin = time.monotonic()
            # What fails is tried again: ``check`` says when it has failed for too long.
            with suppress(Exception):
                if max(self._numbers(), default=0) > self._number:
                    self._is_lost = True
                    return
                self._renewals += 1
                self._folder.overwrite(self._name, self._text())
                self._renewed = begin


def _values(text: bytes) -> dict[str, Any]:
    """What a lock says. A file that is being written may be empty."""
    with suppress(ValueError):
        found = json.loads(text)
        if isinstance(found, dict):
            return found
    return {}


def _machine() -> str:
    """Where process ids mean the same: a start of a kernel, and a container on it. Names of hosts are used again."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
