"""Small replies to several clients, sent together at the end of a turn of the event loop.

To send a reply to a client that waits for it means to wake that client: an interrupt on another processor, which costs
the server a quarter of a small request. A client with several connections, such as a program with several producers,
needs to be woken once for all replies of a turn. So if the server answers different connections one after the other,
their replies wait for the end of the turn. A connection that is alone gets its replies at once.

The messages of a held reply are stored already. If the server is killed before it is sent, the client does not learn
that they are, as with any reply that is lost on the way.
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import Protocol

from courser.model.buffers import Buffer

_log = logging.getLogger(__name__)

SIZE_MAX = 4 * 1024
"""Bytes of a reply that may be held. It is copied: the memory of a larger one is not free before it is sent."""
_COUNT_MAX = 16
"""Replies that are held at a time. Clients can prepare their next requests while the server does the next ones."""


class Holder(Protocol):
    """A connection whose replies may be held."""

    is_held: bool
    """Whether a reply of it is held. Later ones must not overtake that one."""

    def write(self, buffers: Sequence[Buffer]) -> None:
        """Hand bytes to the kernel now."""

    def abort(self) -> None:
        """Close the connection now."""


class HeldReplies:
    """Those of one event loop."""

    def __init__(self) -> None:
        self.last: Holder | None = None
        """The connection that was answered last."""
        self._held: list[tuple[Holder, bytes]] = []
        self._is_due = False
        """Whether the end of this turn is waited for."""

    def hold(self, connection: Holder, buffers: Sequence[Buffer]) -> bool:
        """Hold a reply of a connection that is not alone. False: it is too large, and all before it are sent."""
        self.last = connection
        reply = buffers[0]
        if len(buffers) > 1 or type(reply) is not bytes:
            if sum(map(len, buffers)) > SIZE_MAX:
                self.send_all()
                return False
            reply = b"".join(buffers)
        elif len(reply) > SIZE_MAX:
            self.send_all()
            return False
        self._held.append((connection, reply))
        connection.is_held = True
        if len(self._held) >= _COUNT_MAX:
            self.send_all()
        elif not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._end_turn)
        return True

    def _end_turn(self) -> None:
        self._is_due = False
        self.send_all()

    def send_all(self) -> None:
        """Send what is held, in order."""
        held, self._held = self._held, []
        for connection, reply in held:
            connection.is_held = False
            try:
                connection.write((reply,))
            except Exception:  # noqa: BLE001 - whatever it is, only this connection ends
                # Its client would take the next reply for this one. The others are owed theirs.
                _log.exception("a reply could not be sent; closing its connection")
                connection.abort()

    def forget(self, connection: Holder) -> None:
        """A connection is gone."""
        if self.last is connection:
            self.last = None
