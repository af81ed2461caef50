"""A reply that is known, and may be given once something is done: for a send, the sync behind it.

Sends at ``synced`` come by the thousand and wait together. A coroutine in a task for each would cost more than the rest
of the send.
"""

import asyncio
from collections.abc import Callable, Generator
from typing import Any

from courser.api.replies import Reply


class Pending:
    """What a command gave that was carried out, but for a wait."""

    __slots__ = ("_explain", "_reply", "done")

    def __init__(self, done: asyncio.Future[None], reply: Reply, explain: Callable[[BaseException], Exception]) -> None:
        """``explain`` turns the failure of what is waited for into the answer that the client gets."""
        self.done = done
        self._reply = reply
        self._explain = explain

    def result(self) -> Reply:
        """The reply, when ``done`` is done. Raises what went wrong."""
        error = self.done.exception()
        if error is not None:
            raise self._explain(error)
        return self._reply

    def __await__(self) -> Generator[Any, None, Reply]:
        """Wait for it, as for any coroutine."""
        while not self.done.done():
            yield from asyncio.wait((self.done,)).__await__()
        return self.result()
