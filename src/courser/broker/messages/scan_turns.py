"""Turns of scans: pieces of logs are read and looked at one after another, by one thread, with pauses.

While others use the server, scans get only a small part of its time: sends must not become slower because somebody
looks for a message.
"""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar

from courser.broker.partition.partition import Partition
from courser.broker.partition.waiting import Waiting
from courser.storage.read_result import ReadBuffer, ReadResult

PIECE_SIZE = 1024 * 1024
"""Bytes that are looked at without a pause; a single message may be larger."""
_BUSY_INTERVAL = 0.02
"""Seconds over which the use of the server is measured, at least."""
_BUSY_SHARE = 0.1
"""Of the time of a core: above it, others use the server."""
_BUSY_PART = 0.3
"""Of the processor time that the server gets: above it, too. A machine that is busy otherwise gives it little."""
_POLITE_SHARE = 0.05
"""Of the processor time of the server that scans get then."""
_CREDIT_MAX = 0.01
"""Seconds of that time that scans may have at once if they have not used them: the first messages are found soon, and
over a second it is little."""
_RATE_MIN = 0.1
"""Seconds of processor time in a second that the server is assumed to get at least."""
_OVERHEAD = 0.001
"""Seconds of processor time that a piece costs besides: handing it to the thread and back. Others do not use them."""
_PAUSE_MAX = 0.5
"""Seconds: a scan always goes on."""


class Timed(Protocol):
    """What a thread found out, and how long that took."""

    @property
    def spent(self) -> float:
        """Seconds of processor time."""


AnyTimed = TypeVar("AnyTimed", bound=Timed)


class ScanPace:
    """How long scans pause. Times are in seconds."""

    def __init__(self, now: float, process_time: float) -> None:
        self._measured_at = now
        self._process_time = process_time
        self._own_time = 0.0
        self._credit = _CREDIT_MAX
        self._credited_at = process_time
        self._rate = 1.0
        """Seconds of processor time that the server gets in a second."""
        self.is_busy = False
        """Whether others used the server during the last pieces."""

    def pause_after(self, spent: float, now: float, process_time: float) -> float:
        """How long to pause after a piece that took so long. ``process_time`` is that of all threads so far."""
        spent += _OVERHEAD
        self._own_time += spent
        self._credit = min(self._credit + (process_time - self._credited_at) * _POLITE_SHARE, _CREDIT_MAX) - spent
        self._credited_at = process_time
        passed = now - self._measured_at
        if passed >= _BUSY_INTERVAL:
            used = process_time - self._process_time
            self._rate = max(used / passed, _RATE_MIN)
            self.is_busy = used - self._own_time > min(passed * _BUSY_SHARE, used * _BUSY_PART)
            self._measured_at, self._process_time, self._own_time = now, process_time, 0.0
        if not self.is_busy:
            # Nobody was delayed.
            self._credit = max(self._credit, 0.0)
            return 0.0
        return min(max(-self._credit, 0.0) / _POLITE_SHARE / self._rate, _PAUSE_MAX)


class ScanTurns:
    """Lets scans take turns."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._pace = ScanPace(time.monotonic(), time.process_time())
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="scan")

    def close(self) -> None:
        """Wait for the piece that is being looked at. Scans that are under way fail."""
        self._thread.shutdown(cancel_futures=True)

    async def take(
        self, partition: Partition, offset: int, count: int, look: Callable[[ReadResult], AnyTimed]
    ) -> tuple[ReadResult, AnyTimed]:
        """Read up to ``count`` messages, and let the thread look at them."""
        async with self._turn:
            # Not the same one again: after a failure, threads may still use it.
            buffer = ReadBuffer(PIECE_SIZE)
            began = time.thread_time()
            found = partition.reader.try_read(offset, count, PIECE_SIZE, buffer)
            spent = time.thread_time() - began
            result = await found if isinstance(found, Waiting) else found
            looked = await asyncio.get_running_loop().run_in_executor(self._thread, look, result)
            # Others come first, also without a pause.
            await asyncio.sleep(self._pace.pause_after(spent + looked.spent, time.monotonic(), time.process_time()))
        return result, looked
