"""Fairness between connections: how much each may do in one turn of the event loop.

A client may send thousands of requests ahead. If all of them were handled as soon as they are there, every other client
would wait for them. So a connection handles a few and continues in the next turn of the event loop; in between, all
others have their turn.

Connections on which nobody has logged in (strangers) share one allowance, whatever their number. What they ask for is
little (a ping, a login), so they wait for moments at most, and the others hardly notice them.
"""

import asyncio
from collections import deque
from collections.abc import Callable

REQUEST_COUNT_MAX = 64
"""Requests in a turn, of all connections that send ahead together; each has at least one. A turn costs about as much as
one request, so nobody loses throughput."""
REQUEST_COUNT_PAUSE = 8
"""Requests after which a connection waits for its next turn even if it has no more: event loops read a busy socket
several times in a turn, and each time brings a buffer full of requests."""
TIME_MAX = 1_000
"""Microseconds of a turn that those connections share: then each begins no further request."""
STRANGER_COUNT_MAX = 16
"""Reads of strangers, of which most are one request, in ..."""
STRANGER_INTERVAL = 0.001
"""... so many seconds: pings then take a tenth of one processor at most."""


class Turns:
    """What strangers may still do. One for all connections of an event loop, whatever carries them."""

    def __init__(self) -> None:
        self.yielding_count = 0
        """Connections with a login that have more requests at hand, and continue in the next turn."""
        self._allowance = STRANGER_COUNT_MAX
        self._waiting: deque[Callable[[], bool]] = deque()
        self._is_due = False

    @property
    def waiting_count(self) -> int:
        """Strangers that wait for their turn."""
        return len(self._waiting)

    def admit(self, go_on: Callable[[], bool]) -> bool:
        """Whether a stranger may have a request handled now. If not, ``go_on`` is called when its turn has come.

        ``go_on`` returns False if there was nothing to do any more.
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
        """A new allowance: those who wait come first, one request each, in their order."""
        self._is_due = False
        self._allowance = STRANGER_COUNT_MAX
        # Whoever comes back to the queue meanwhile is behind those who were there.
        for _ in range(len(self._waiting)):
            if not self._allowance:
                break
            go_on = self._waiting.popleft()
            if go_on():
                self._allowance -= 1
        if self._waiting and not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_later(STRANGER_INTERVAL, self._renew)
