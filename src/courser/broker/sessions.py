"""Connections as the broker knows them: who is logged in, since when, and as a member of which groups."""

import asyncio
import secrets
from collections.abc import Callable
from typing import Protocol

from courser.errors import CommandRejected, CourserError, ErrorCode
from courser.model.clock import Clock
from courser.model.messaging import Transport

_UNKNOWN_SIZE = 2**62
"""Bytes of the last poll of a connection that has not polled yet: it may ask for much."""


class Session:
    """One connection. Transports make it, the dispatcher carries it along, handlers read and change it."""

    __slots__ = (
        "address",
        "client_id",
        "connected_at",
        "ended",
        "failed_login_count",
        "groups",
        "last_poll_size",
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
        """When the client last showed life: a request, or one under way. The transport keeps it."""
        self.user_id: int | None = None
        """Who is logged in."""
        self.token_name: str | None = None
        """The token that was used to log in, if it was one."""
        self.session_number = 0
        """Of the last login: grows with every login at this server."""
        self.failed_login_count = 0
        """Logins that were refused since the last that was not: later ones come behind those of other connections."""
        self.groups: set[tuple[int, int, int]] = set()
        """Stream, topic and group ids of its memberships."""
        self.last_poll_size = _UNKNOWN_SIZE
        """Bytes of the last poll: the next one is likely to be as large."""
        self.ended: CourserError | None = None
        """Why the server ended it, if it did: the answer to a request that comes after all."""
        self.waiting: asyncio.Future[bool] | None = None
        """What a long poll waits for: True means "look again", False "answer now". Cancelled when the connection goes.
        Nothing else of a request is cut short."""
        self.on_end: Callable[[CourserError], None] | None = None
        """Set by the transport: closes the connection once the reply under way is sent."""

    def wake(self) -> None:
        """Something that a long poll should know has happened."""
        if self.waiting is not None and not self.waiting.done():
            self.waiting.set_result(True)

    def hurry(self) -> None:
        """The client asks for something else: a long poll ends with what there is."""
        if self.waiting is not None and not self.waiting.done():
            self.waiting.set_result(False)

    def end(self, error: CourserError) -> None:
        """End the session from the server's side. May be repeated."""
        if self.ended is None:
            self.ended = error
            self.user_id = None
            if self.waiting is not None:
                # A long poll must not bring messages to one who is no longer allowed to be here.
                self.waiting.cancel()
            if self.on_end is not None:
                self.on_end(error)


class Memberships(Protocol):
    """What the registry needs of the consumer groups: a connection that ends leaves them."""

    def drop_session(self, session: Session) -> None:
        """Leave all groups."""


class Sessions:
    """All living connections. One that ends, whoever ends it, is listed no more and a member of no group."""

    def __init__(self, clock: Clock, groups: Memberships, draw_client_id: Callable[[], int] | None = None) -> None:
        self._clock = clock
        self._groups = groups
        self._draw = draw_client_id if draw_client_id is not None else _draw_client_id
        self._by_id: dict[int, Session] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def open(self, transport: Transport, address: str) -> Session:
        """A new connection, with nobody logged in."""
        client_id = self._draw()
        while client_id == 0 or client_id in self._by_id:
            client_id = self._draw()
        session = Session(client_id, transport, address, now=self._clock.monotonic())
        self._by_id[client_id] = session
        return session

    def close(self, session: Session) -> None:
        """The connection is gone. May be repeated."""
        # There is nothing left to close, and nobody to say farewell to.
        session.on_end = None
        self.end(session, CommandRejected(ErrorCode.DISCONNECTED, "the connection is closed"))

    def end(self, session: Session, error: CourserError) -> None:
        """End a session from the server's side; the transport closes the connection. May be repeated."""
        self._groups.drop_session(session)
        if self._by_id.get(session.client_id) is session:
            del self._by_id[session.client_id]
        session.end(error)

    def get(self, client_id: int) -> Session | None:
        """A connection by its number."""
        return self._by_id.get(client_id)

    def all(self) -> list[Session]:
        """Every connection, by id."""
        return [self._by_id[client_id] for client_id in sorted(self._by_id)]

    def of_user(self, user_id: int) -> list[Session]:
        """The connections on which this user is logged in."""
        return [session for session in self._by_id.values() if session.user_id == user_id]


def _draw_client_id() -> int:
    return secrets.randbits(_CLIENT_ID_BITS)


_CLIENT_ID_BITS = 32
