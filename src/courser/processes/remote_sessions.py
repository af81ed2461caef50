"""Remote sessions: they stand for connections that another process has.

A connection has its socket in one process. Every other process that works for it has a remote session in its place: the
first process, which lists and ends sessions, and the owners of the topics that it uses, which may have it as a member
of their consumer groups.
"""

from collections.abc import Callable, Iterator
from typing import TypeAlias

from courser.broker.access.sessions import Session
from courser.broker.broker import Broker
from courser.errors import CourserError
from courser.model.messaging import Transport

Passing: TypeAlias = tuple[str, str | None]
"""Address and request id of a session that lasts for one request, as HTTP has them."""


class RemoteSessions:
    """Keeps, in one process, the sessions of connections that others have."""

    def __init__(self, broker: Broker, end_at_peer: Callable[[int, int, CourserError], None]) -> None:
        """``end_at_peer(number, client_id, error)`` ends a session where its connection is."""
        self._broker = broker
        self._end_at_peer = end_at_peer
        self._numbers: dict[Session, int] = {}
        """Those of the processes that have the connections."""

    def __contains__(self, session: Session) -> bool:
        """Whether the connection of a session is in another process."""
        return session in self._numbers

    def open(self, number: int, client_id: int, transport: Transport, address: str, connected_at: int) -> Session:
        """A connection of another process."""
        session = Session(client_id, transport, address, now=connected_at)
        self.keep(number, session)
        self._broker.sessions.adopt(session)
        return session

    def keep(self, number: int, session: Session) -> None:
        """A session whose connection is in another process, from now on."""
        self._numbers[session] = number
        session.on_end = lambda error: self._ended(session, error)

    def release(self, session: Session) -> None:
        """A session whose connection is here, from now on."""
        self._numbers.pop(session, None)

    def find(self, client_id: int, user_id: int | None) -> Session | None:
        """A session, on which this user is logged in; None if it has ended here."""
        session = self._broker.sessions.get(client_id)
        if session is not None and session.user_id != user_id:
            self.set_user(session, user_id)
        return session

    def set_user(self, session: Session, user_id: int | None) -> None:
        """Another user is logged in, who does not inherit memberships."""
        self._broker.groups.drop_session(session)
        session.user_id = user_id

    def passing(self, facts: Passing, user_id: int | None) -> Session:
        address, request_id = facts
        session = Session(0, Transport.HTTP, address, now=self._broker.clock.monotonic())
        session.user_id, session.request_id = user_id, request_id
        return session

    def close(self, client_id: int) -> None:
        session = self._broker.sessions.get(client_id)
        if session is not None and session in self._numbers:
            self._drop(session)

    def peer_lost(self, number: int) -> None:
        """A process is gone, and all its connections with it."""
        for session in [session for session, its in self._numbers.items() if its == number]:
            self._drop(session)

    def of(self, number: int) -> Iterator[Session]:
        """The sessions of the connections of one process."""
        return (session for session, its in tuple(self._numbers.items()) if its == number)

    def _drop(self, session: Session) -> None:
        self._numbers.pop(session, None)
        self._broker.sessions.close(session)

    def _ended(self, session: Session, error: CourserError) -> None:
        """The session was ended here: for example, its user was deleted."""
        number = self._numbers.pop(session, None)
        if number is not None:
            self._end_at_peer(number, session.client_id, error)
