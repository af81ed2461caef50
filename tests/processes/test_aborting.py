"""Connections that are closed without an answer, because a process of the server has ended."""

from types import SimpleNamespace
from typing import Any, cast

from courser.broker.access.sessions import Session
from courser.model.messaging import Transport
from courser.server.process_assembly import abort_connection
from courser.transports.session_loop import SessionLoop
from courser.transports.settings import ConnectionSettings
from courser.transports.tcp_connection import TcpConnection


class Loop(SessionLoop):
    """Of a session."""

    def __init__(self, session: Session, connection: TcpConnection) -> None:
        self.session = session
        self._link = connection
        session.on_end = self.end


def test_the_connection_of_a_session_is_not_searched_for_among_all() -> None:
    session = Session(1, Transport.TCP, "", now=0)
    services = cast("Any", SimpleNamespace(settings=ConnectionSettings(), held_replies=None))
    connection = TcpConnection(services, cast("Any", None), cast("Any", None))
    _ = Loop(session, connection)
    # It would fail to look at any of them.
    abort_connection(cast("Any", None), cast("Any", [None]), session)
    assert connection.is_aborted


def test_other_connections_are_searched_for() -> None:
    session = Session(1, Transport.QUIC, "", now=0)
    aborted: list[int] = []
    connections = [
        SimpleNamespace(loop=None),
        SimpleNamespace(loop=SimpleNamespace(session=session), abort=lambda: aborted.append(1)),
    ]
    abort_connection(cast("Any", None), cast("Any", connections), session)
    assert aborted == [1]


def test_a_member_without_a_connection_is_ended() -> None:
    session = Session(1, Transport.HTTP, "", now=0)
    ended: list[Session] = []
    broker = SimpleNamespace(sessions=SimpleNamespace(end=lambda session, _: ended.append(session)))
    abort_connection(cast("Any", broker), cast("Any", []), session)
    assert ended == [session]
