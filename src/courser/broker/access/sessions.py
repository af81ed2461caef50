"""Sessions: which user is logged in on a connection, since when, and its group memberships."""

import asyncio
import re
import secrets
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple, Protocol

from courser.broker.access.access_tokens import Access
from courser.errors import CommandRejected, CourserError, ErrorCode
from courser.model.clock import Clock
from courser.model.messaging import Transport
from courser.model.metrics import OTHER
from courser.model.trace_context import TraceContext
from courser.storage.read_result import LeasedBuffer

_UNKNOWN_SIZE = 2**62
"""Bytes of the last poll of a connection that has not polled yet: it may ask for much."""


SDKS = frozenset({"courser", "rust", "python", "go", "java", "node", "csharp", "cpp", "php"})
"""The client libraries that metrics tell apart."""
NO_SDK = "unknown"
"""Nobody is logged in, or the login does not name the library."""
_WORD = re.compile("[a-z]+")


def sdk_of(name: str) -> str:
    """The label of a client library, from what it says at login, such as ``rust-sdk``."""
    words = _WORD.findall(name.lower())
    return next((word for word in words if word in SDKS), OTHER if words else NO_SDK)


class Session:
    """The session of one connection. Transports create it; handlers read and change it."""

    __slots__ = (
        "access",
        "address",
        "client_id",
        "connected_at",
        "ended",
        "groups",
        "has_failed_login",
        "last_poll_size",
        "last_seen",
        "lease",
        "login_hash",
        "move_count",
        "on_end",
        "parked",
        "request_count",
        "request_id",
        "sdk",
        "session_number",
        "token_name",
        "trace",
        "transport",
        "user_id",
        "waiting",
    )

    def __init__(self, client_id: int, transport: Transport, address: str, *, now: int) -> None:
        self.client_id = client_id
        """32 bits, never 0, unique among open connections."""
        self.transport = transport
        self.address = address
        """``ip:port`` of the client."""
        self.connected_at = now
        """Microseconds of the monotonic clock, like ``last_seen``."""
        self.last_seen = now
        """When the client last sent a request or had one running. The transport updates it."""
        self.user_id: int | None = None
        """The user who is logged in, or None."""
        self.token_name: str | None = None
        """The token that was used to log in, if any."""
        self.login_hash = b""
        """Of the password or token that was used. Only the process that carries out logins knows it."""
        self.access: Access | None = None
        """Over HTTP: the access token of the request."""
        self.request_id: str | None = None
        """Over HTTP, which has a session for each request: what the reply and the log call the request."""
        self.request_count = 0
        """Requests since it was opened."""
        self.trace: TraceContext | None = None
        """Over HTTP: the trace that the request belongs to, if it names one."""
        self.sdk = NO_SDK
        """The client library that the last login named: one of ``SDKS``, ``OTHER`` or ``NO_SDK``."""
        self.session_number = 0
        """Number of the last login; increases with every login, over all restarts of the server."""
        self.move_count = 0
        """How often its connection was moved to another process of the server, as far as is known here."""
        self.has_failed_login = False
        """Whether one has failed since the last successful one. Further ones come after those of other connections."""
        self.groups: set[tuple[int, int, int]] = set()
        """Stream, topic and group ids of its memberships."""
        self.last_poll_size = _UNKNOWN_SIZE
        """Bytes of the last poll: the next one is likely to be as large."""
        self.lease: LeasedBuffer | None = None
        """The memory of a reply that the kernel does not have yet (``ReadBuffers``)."""
        self.ended: CourserError | None = None
        """Why the server ended the session, or None: the reply to a request that is still received."""
        self.waiting: asyncio.Future[bool] | None = None
        """What a long poll waits for: True means "check again", False "reply now". Cancelled when the connection
        closes. No other request is interrupted."""
        self.parked: frozenset[asyncio.Future[bool]] = frozenset()
        """What reads wait for that are parked beside the line of its requests; as ``waiting``."""
        self.on_end: Callable[[CourserError], None] | None = None
        """Set by the transport: closes the connection after the current reply is sent."""

    def enter(self, access: Access) -> None:
        """Log in by access token."""
        self.user_id, self.token_name, self.login_hash = access.user.user_id, access.token_name, access.login_hash
        self.access = access

    def wake(self) -> None:
        """Wake long polls, because something relevant happened."""
        for woken in (self.waiting, *self.parked):
            if woken is not None and not woken.done():
                woken.set_result(True)

    def hurry(self) -> None:
        """The client sent another request: a long poll ends with the messages it has. Parked reads go on."""
        if self.waiting is not None and not self.waiting.done():
            self.waiting.set_result(False)

    def end(self, error: CourserError) -> None:
        """End the session from the server's side. May be repeated."""
        if self.ended is None:
            self.ended = error
            self.user_id = None
            for woken in (self.waiting, *self.parked):
                if woken is not None:
                    # A long poll must not deliver messages to a user who may not read them any more.
                    woken.cancel()
            if self.on_end is not None:
                self.on_end(error)


class SessionActivity(NamedTuple):
    """What one or several processes know about a session."""

    groups: tuple[tuple[int, int, int], ...]
    """Stream, topic and group ids of its memberships, in order."""
    request_count: int
    last_seen: int

    def joined(self, other: "SessionActivity") -> "SessionActivity":
        """Add what another process knows."""
        return SessionActivity(
            tuple(sorted({*self.groups, *other.groups})),
            self.request_count + other.request_count,
            max(self.last_seen, other.last_seen),
        )


def activity_of(session: Session) -> SessionActivity:
    """What this process knows about a session."""
    return SessionActivity(tuple(sorted(session.groups)), session.request_count, session.last_seen)


class Memberships(Protocol):
    """The part of the consumer groups that the registry uses: a closed connection leaves them."""

    def drop_session(self, session: Session) -> None:
        """Make a session leave all its groups."""


class Sessions:
    """All open sessions. One that ends, from either side, is removed and leaves all its groups."""

    def __init__(self, clock: Clock, groups: Memberships, draw_client_id: Callable[[], int] | None = None) -> None:
        self._clock = clock
        self._groups = groups
        self._draw = draw_client_id if draw_client_id is not None else _draw_client_id
        self._by_id: dict[int, Session] = {}
        self.remote: Mapping[int, SessionActivity] = {}
        """What other processes know about sessions, by client id, as of the last time it was collected."""
        self.on_open: Callable[[Session], None] | None = None
        """Called with every new connection."""
        self.on_gone: Callable[[Session], None] | None = None
        """Called with every session that has ended, once."""

    def __len__(self) -> int:
        return len(self._by_id)

    def open(self, transport: Transport, address: str) -> Session:
        """Register a new connection, on which no user is logged in."""
        client_id = self._draw()
        while client_id == 0 or client_id in self._by_id:
            client_id = self._draw()
        session = Session(client_id, transport, address, now=self._clock.monotonic())
        self._by_id[client_id] = session
        if self.on_open is not None:
            self.on_open(session)
        return session

    def adopt(self, session: Session) -> None:
        """Register the session of a connection that another process has, or had."""
        self._by_id[session.client_id] = session

    def forget(self, session: Session) -> None:
        """Unregister a session that has not ended: another process has its connection from now on."""
        self._by_id.pop(session.client_id, None)

    def close(self, session: Session) -> None:
        """Unregister a closed connection. May be repeated."""
        # The connection is already closed: nothing can be sent.
        session.on_end = None
        self.end(session, CommandRejected(ErrorCode.DISCONNECTED, "the connection is closed"))

    def end(self, session: Session, error: CourserError) -> None:
        """End a session from the server's side; the transport closes the connection. May be repeated."""
        self._groups.drop_session(session)
        if self._by_id.get(session.client_id) is session:
            del self._by_id[session.client_id]
            if self.on_gone is not None:
                self.on_gone(session)
        session.end(error)

    def __iter__(self) -> Iterator[Session]:
        return iter(tuple(self._by_id.values()))

    def get(self, client_id: int) -> Session | None:
        """A session by client id."""
        return self._by_id.get(client_id)

    def in_all_processes(self, session: Session) -> SessionActivity:
        """What all processes know about a session."""
        here = activity_of(session)
        other = self.remote.get(session.client_id)
        return here if other is None else here.joined(other)

    def all(self) -> list[Session]:
        """All sessions, by client id."""
        return [self._by_id[client_id] for client_id in sorted(self._by_id)]

    def of_user(self, user_id: int) -> list[Session]:
        """The sessions of a user."""
        return [session for session in self._by_id.values() if session.user_id == user_id]


def _draw_client_id() -> int:
    return secrets.randbits(_CLIENT_ID_BITS)


_CLIENT_ID_BITS = 32
