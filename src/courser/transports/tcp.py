"""The TCP listener: listening sockets with or without TLS, and socket options."""

import asyncio
import socket
import ssl
import struct
from collections.abc import Sequence

from courser.broker.access.sessions import Session, Sessions
from courser.model.messaging import Transport
from courser.model.quantities import SECOND
from courser.transports.connections import Connections, Conversation
from courser.transports.doors import PlainDoor, TlsDoor, open_sockets
from courser.transports.services import Services
from courser.transports.session_loop import SessionLoop
from courser.transports.settings import SocketSettings, TcpSettings
from courser.transports.tcp_connection import Assemble, Receiver, TcpConnection, TlsConnection, assemble_plain
from courser.wire.codec import Codec


class TcpListener:
    """One listening socket. ``Connections`` holds its connections and those of all other transports."""

    def __init__(
        self,
        settings: TcpSettings,
        services: Services,
        connections: Connections,
        *,
        sessions: Sessions,
        tls: ssl.SSLContext | None = None,
        transport: Transport = Transport.TCP,
        assemble: Assemble = assemble_plain,
    ) -> None:
        self._settings = settings
        self._services = services
        self._connections = connections
        self._sessions = sessions
        self._tls = tls
        self._transport = transport
        self._assemble = assemble
        self._door: PlainDoor | TlsDoor | None = None
        self.sockets: Sequence[socket.socket] = ()
        """On which it listens."""

    async def start(self) -> tuple[str, int]:
        """Listen. Returns the actual address and port."""
        return await self.start_on(await open_sockets(self._settings.host, self._settings.port))

    async def start_on(self, sockets: Sequence[socket.socket]) -> tuple[str, int]:
        """Listen with sockets that are there already. Returns the address and port of the first one."""
        self.sockets = sockets
        host, port = sockets[0].getsockname()[:2]
        if self._tls is None:
            self._door = PlainDoor(self._make_connection)
        else:
            self._door = TlsDoor(
                self._tls,
                self._connections,
                make_connection=self._make_tls_connection,
                handshake_deadline=self._services.settings.handshake_deadline,
            )
        await self._door.serve(sockets)
        return host, port

    def close(self) -> None:
        """Stop listening. Can be repeated."""
        if self._door is not None:
            self._door.close()
            self._door = None

    def release(self) -> None:
        """All connections are gone. They had sockets of their own, so there is nothing to do."""

    # --- connections ---

    def _make_connection(self) -> TcpConnection:
        return TcpConnection(self._services, self._connections, self, self._assemble)

    def _make_tls_connection(self) -> TlsConnection:
        return TlsConnection(self._services, self._connections, self, self._assemble)

    def adopt(self, transport: asyncio.Transport) -> TcpConnection:
        """A connection that another listener has accepted, and that gives up its place there for this one."""
        kind = TcpConnection if transport.get_extra_info("sslcontext") is None else TlsConnection
        return kind(self._services, self._connections, _Adoption(self), self._assemble)

    async def take_over(self, moved: socket.socket, session: Session, codec: Codec) -> None:
        """Serve a connection that another process has served so far, with its session and its codec."""

        def assemble(services: Services, session: Session, connection: TcpConnection) -> tuple[Conversation, Receiver]:
            loop = SessionLoop(services, session, connection, codec)
            return loop, loop

        await asyncio.get_running_loop().connect_accepted_socket(
            lambda: TcpConnection(self._services, self._connections, _Takeover(self, session), assemble), moved
        )

    def let_in(self, connection: TcpConnection, transport: asyncio.Transport) -> Session | None:
        """Open the session of a connection that this listener has accepted; None if it has no place."""
        if self._tls is None:
            if self._door is None or not self._connections.admit(_peer_of(transport)[0]):
                return None
        elif connection.is_aborted:
            # It was closed just as its handshake completed.
            return None
        return self.welcome(connection, transport)

    def welcome(self, connection: TcpConnection, transport: asyncio.Transport) -> Session | None:
        """Open the session of a connection that has a place; None if the listener is closed."""
        if self._door is None:
            return None
        connection.host, port = host, _ = _peer_of(transport)
        _set_options(transport, self._settings.socket)
        session = self._sessions.open(self._transport, f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
        self._connections.add(connection)
        return session

    def note_arrival(self, connection: TcpConnection, transport: asyncio.Transport) -> None:
        """A connection comes from another process, with its session."""
        connection.host = _peer_of(transport)[0]
        self._connections.add(connection)

    def forget(self, connection: TcpConnection) -> None:
        """Close the session of a connection that is lost."""
        assert connection.loop is not None
        self._sessions.close(connection.loop.session)
        self._connections.remove(connection)


class _Adoption:
    """Admits a connection that another listener has accepted."""

    def __init__(self, listener: TcpListener) -> None:
        self._listener = listener
        self.forget = listener.forget

    def let_in(self, connection: TcpConnection, transport: asyncio.Transport) -> Session | None:
        return self._listener.welcome(connection, transport)


class _Takeover:
    """Admits a connection that another process has served so far, with its session."""

    def __init__(self, listener: TcpListener, session: Session) -> None:
        self._listener = listener
        self._session = session
        self.forget = listener.forget

    def let_in(self, connection: TcpConnection, transport: asyncio.Transport) -> Session:
        self._listener.note_arrival(connection, transport)
        return self._session


def _peer_of(transport: asyncio.Transport) -> tuple[str, int]:
    host, port = (transport.get_extra_info("peername") or ("unknown", 0))[:2]
    return host, port


def _set_options(transport: asyncio.Transport, settings: SocketSettings | None) -> None:
    connection: socket.socket = transport.get_extra_info("socket")
    # Set in any case, because event loops enable the first one by default.
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, settings is None or settings.nodelay)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, settings is not None and settings.keepalive)
    if settings is None:
        return
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, settings.receive_buffer_size)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, settings.send_buffer_size)
    if settings.linger:
        # In whole seconds. A linger of zero would make the kernel drop replies in flight.
        seconds = -(-settings.linger // SECOND)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, seconds))
