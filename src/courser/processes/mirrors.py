"""Sessions of connections that another process has: they stand for these connections here.

A connection has its socket in one process, its *home*. Every other process that works for it has a mirror of its
session: the first process, which lists and ends sessions, and the owners of the topics that it uses, which may have it
as a member of their consumer groups.
"""

from collections.abc import Callable, Iterator
from typing import TypeAlias

from courser.broker.access.sessions import Session
from courser.broker.broker import Broker
from courser.errors import CourserError
from courser.model.messaging import Transport

Passing: TypeAlias = tuple[str, str | None]
"""Address and request id of a session that lasts for one request, as HTTP has them."""


class Mirrors:
    """Of one process."""

    def __init__(self, broker: Broker, end_at_home: Callable[[int, int, CourserError], None]) -> None:
        """``end_at_home(home, client_id, error)`` ends a session where its connection is."""
        self._broker = broker
        self._end_at_home = end_at_home
        self._homes: dict[Session, int] = {}

    def __contains__(self, session: Session) -> bool:
        """Whether a session is a mirror."""
        return session in self._homes

    def open(self, home: int, client_id: int, transport: Transport, address: str, connected_at: int) -> Session:
        """A connection of another process."""
        session = Session(client_id, transport, address, now=connected_at)
        self.keep(home, session)
        self._broker.sessions.adopt(session)
        return session

    def keep(self, home: int, session: Session) -> None:
        """A session whose connection is in another process, from now on."""
        self._homes[session] = home
        session.on_end = lambda error: self._ended(session, error)

    def release(self, session: Session) -> None:
        """A session whose connection is here, from now on."""
        self._homes.pop(session, None)

    def find(self, client_id: int, user_id: int | None) -> Session | None:
        """The mirror of a session, on which this user is logged in; None if it has ended here."""
        session = self._broker.sessions.get(client_id)
        if session is not None and session.user_id != user_id:
            self.set_user(session, user_id)
        return session

    def set_user(self, session: Session, user_id: int | None) -> None:
        """Another user is logged in, who does not inherit memberships."""
        self._broker.groups.drop_session(session)
        session.user_id = user_id

    def passing(self, facts: Passing, user_id: int | None) -> Session:
        """A session for one request."""
        address, request_id = facts
        session = Session(0, Transport.HTTP, address, now=self._broker.clock.monotonic())
        session.user_id, session.request_id = user_id, request_id
        return session

    def close(self, client_id: int) -> None:
        """A connection is closed."""
        session = self._broker.sessions.get(client_id)
        if session is not None and session in self._homes:
            self._drop(session)

    def home_lost(self, home: int) -> None:
        """A process is gone, and all its connections with it."""
        for session in [session for session, of in self._homes.items() if of == home]:
            self._drop(session)

    def of(self, home: int) -> Iterator[Session]:
        """The mirrors of the connections of one process."""
        return (session for session, of in tuple(self._homes.items()) if of == home)

    def _drop(self, session: Session) -> None:
        self._homes.pop(session, None)
        self._broker.sessions.close(session)

    def _ended(self, session: Session, error: CourserError) -> None:
        """The session was ended here: for example, its user was deleted."""
        home = self._homes.pop(session, None)
        if home is not None:
            self._end_at_home(home, session.client_id, error)
