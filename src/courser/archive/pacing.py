"""How fast the archiver works: within a bandwidth, and behind the clients.

Work that only has to be done at some time must not slow down those who wait for an answer. While the thread that serves
clients is busy, the archiver rests after each piece of work, in proportion to the processor time that the piece took. A
store far away takes little of it, so it is hardly slowed down.
"""

import time
from threading import Event
from typing import NamedTuple

from courser.archive.errors import ArchiveInterrupted

_TURN = 0.002
"""Seconds of work between two rests, at least."""
_BUSY_SHARE = 0.5
"""Of the time of a core: with this share for clients, the archiver rests as long as it ever does."""
_REST = 3.0
"""Seconds of rest for each second of work, if clients are busy: the archiver then works a quarter of the time."""
_REST_MAX = 0.5
"""Seconds of one rest."""


class Times(NamedTuple):
    """What the clocks say that a pace goes by, in seconds."""

    now: float
    process: float
    """The processor time of all threads."""
    clients: float
    """The processor time of the thread that serves clients."""


class WorkClock:
    """The clocks of this process."""

    def __init__(self, client_clock: int | None = None) -> None:
        """``client_clock`` is the processor clock of the thread that serves clients; None if there is none."""
        self._client_clock = client_clock

    def read(self) -> Times:
        """Read all clocks at once."""
        clients = 0.0 if self._client_clock is None else time.clock_gettime(self._client_clock)
        return Times(time.monotonic(), time.process_time(), clients)


class Pace:
    """Limits the bytes per second of uploads (0 is no limit), and rests while clients are busy.

    One thread works at a pace. ``is_patient`` may be set on any.
    """

    def __init__(self, rate: int, clock: WorkClock | None = None, stop: Event | None = None) -> None:
        self._rate = rate
        self._clock = clock or WorkClock()
        self._stop = stop or Event()
        self._free_at = 0.0
        """When the bytes sent so far are within the rate."""
        self._began = self._clock.read()
        """When the last rest ended."""
        self.is_patient = False
        """Whether clients come first. Not if somebody waits for the archive."""

    def spend(self, size: int, key: str) -> None:
        """Wait until ``size`` more bytes may be sent. Raises ``ArchiveInterrupted`` if the server stops."""
        if self._rate:
            now = self._clock.read().now
            pause = max(self._free_at - now, 0.0)
            self._free_at = max(self._free_at, now) + size / self._rate
            self._stop.wait(pause)
        self.give_way(key)

    def give_way(self, key: str) -> None:
        """Rest between two pieces of work, if clients are busy. Raises ``ArchiveInterrupted`` if the server stops."""
        if self.is_patient:
            times = self._clock.read()
            if times.now - self._began.now >= _TURN:
                rest = self._rest(times)
                if rest > 0:
                    self._stop.wait(rest)
                self._began = self._clock.read()
        if self._stop.is_set():
            raise ArchiveInterrupted(key)

    def _rest(self, times: Times) -> float:
        passed, all_time, client_time = (now - before for now, before in zip(times, self._began, strict=True))
        busyness = min(client_time / (passed * _BUSY_SHARE), 1.0)
        return min(max(all_time - client_time, 0.0) * _REST * busyness, _REST_MAX)
