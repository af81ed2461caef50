"""Fairness between connections: how much each may do in one turn of the event loop.

A client may send thousands of requests without waiting for replies. If they were all handled as they arrive, every
other client would have to wait. A connection therefore handles a few requests and continues in the next turn of the
event loop, so that all others get their turn in between.

Connections without a login (strangers) share one allowance, however many they are. Their requests are small (a ping, a
login), so they wait only briefly, and other clients hardly notice them.
"""

import asyncio
from collections import deque
from collections.abc import Callable

REQUEST_COUNT_MAX = 64
"""Maximum requests per turn, for all pipelining connections together; each may handle at least one. A turn costs about
as much as one request, so this does not reduce throughput."""
REQUEST_COUNT_PAUSE = 8
"""Requests after which a connection waits for its next turn even if its buffer is empty: event loops read a busy socket
several times per turn, and each read can fill the buffer again."""
TIME_MAX = 1_000
"""Microseconds per turn that these connections share. After that, none of them starts another request."""
STRANGER_COUNT_MAX = 16
"""Reads of strangers, most of which are one request, per ``STRANGER_INTERVAL``."""
STRANGER_INTERVAL = 0.001
"""Seconds. Pings then use at most a tenth of one processor."""


class Turns:
    """Divides the turns of an event loop among the connections of all transports."""

    def __init__(self) -> None:
        self.yielding_count = 0
        """Connections with a login that have more requests in their buffer and continue in the next turn."""
        self._allowance = STRANGER_COUNT_MAX
        self._waiting: deque[Callable[[], bool]] = deque()
        self._is_due = False

    @property
    def waiting_count(self) -> int:
        """The number of strangers that wait for their turn."""
        return len(self._waiting)

    def admit(self, go_on: Callable[[], bool]) -> bool:
        """Whether a stranger's request may be handled now. If not, ``go_on`` is called when its turn has come.

        ``go_on`` returns False if there was nothing left to do.
        """
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_later(STRANGER_INTERVAL, self._renew)
        if self._allowance and not self._waiting:
            self._allowance -= 1
            return True
        self._waiting.append(go_on)
        return False

    def _renew(self) -> None:
        """Renew the allowance. Waiting strangers come first, in order, with one request each."""
        self._is_due = False
        self._allowance = STRANGER_COUNT_MAX
        try:
            # Strangers that are queued again meanwhile come after those that were already waiting.
            for _ in range(len(self._waiting)):
                if not self._allowance:
                    break
                go_on = self._waiting.popleft()
                if go_on():
                    self._allowance -= 1
        finally:
            # Also if one of them has failed: the others would wait for nothing.
            if self._waiting and not self._is_due:
                self._is_due = True
                asyncio.get_running_loop().call_later(STRANGER_INTERVAL, self._renew)
