"""The readers that wait for messages of one partition, woken once for all sends of a turn of the event loop."""

import asyncio
from collections.abc import Callable

PAST_EVERY_OFFSET = 2**64


class WaitingReaders:
    """Use it from one event loop.

    Args:
        visible_end: the offset after the last readable message; ``PAST_EVERY_OFFSET`` if none will follow.
    """

    __slots__ = ("_is_announcing", "_visible_end", "waiting")

    def __init__(self, visible_end: Callable[[], int]) -> None:
        self.waiting: dict[asyncio.Future[bool], int] = {}
        """The offset that each client waits for. Whoever appends calls ``announce_soon`` unless this is empty."""
        self._visible_end = visible_end
        self._is_announcing = False
        """Whether they will be woken in the next turn of the event loop."""

    def wait_for(self, woken: asyncio.Future[bool], offset: int) -> None:
        """Set ``woken`` to True once there is a message at ``offset``, or there can never be one."""
        self.waiting[woken] = offset

    def stop_waiting(self, woken: asyncio.Future[bool]) -> None:
        """Forget a future passed to ``wait_for``. Can be repeated."""
        self.waiting.pop(woken, None)

    def announce_soon(self) -> None:
        """Wake waiting clients in the next turn of the loop: once for all sends of this turn, after their replies."""
        if not self._is_announcing:
            self._is_announcing = True
            asyncio.get_running_loop().call_soon(self.announce)

    def announce(self) -> None:
        """Wake the clients that have something to read.

        Those that wait for later offsets are not woken: that would cost a hundred times as much as this check.
        """
        self._is_announcing = False
        end_offset = self._visible_end()
        for woken in [woken for woken, offset in self.waiting.items() if offset < end_offset]:
            del self.waiting[woken]
            if not woken.done():
                woken.set_result(True)
