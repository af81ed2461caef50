"""Connections as the broker knows them: who is logged in, since when, and as a member of which groups."""

import asyncio
from collections.abc import Callable

from courser.errors import CourserError
from courser.model.messaging import Transport


class Session:
    """One connection. Transports make it, the dispatcher carries it along, handlers read and change it."""

    __slots__ = (
        "address",
        "client_id",
        "connected_at",
        "ended",
        "groups",
        "last_seen",
        "on_end",
        "session_number",
        "token_name",
        "transport",
        "user_id",
        "waiting",
    )

    def __init__(self, client_id: int, transport: Transport, address: str, *, now: int) -> None:
        self.client_id = client_id
        """32 bits, never 0, unique among the living."""
        self.transport = transport
        self.address = address
        """``ip:port`` of the client."""
        self.connected_at = now
        """Microseconds of the monotonic clock, as ``last_seen``."""
        self.last_seen = now
        """When the last request came; the session loop keeps it."""
        self.user_id: int | None = None
        """Who is logged in."""
        self.token_name: str | None = None
        """The token that was used to log in, if it was one."""
        self.session_number = 0
        """Of the last login: grows with every login at this server."""
        self.groups: set[tuple[int, int, int]] = set()
        """Stream, topic and group ids of its memberships."""
        self.ended: CourserError | None = None
        """Why the server ended it, if it did: the answer to a request that comes after all."""
        self.waiting: asyncio.Future[None] | None = None
        """What a long poll waits for: cancelled when the connection goes. Nothing else of a request is cut short."""
        self.on_end: Callable[[CourserError], None] | None = None
        """Set by the transport: closes the connection once the reply under way is sent."""

    def end(self, error: CourserError) -> None:
        """End the session from the server's side. May be repeated."""
        if self.ended is None:
            self.ended = error
            self.user_id = None
            if self.on_end is not None:
                self.on_end(error)
