"""The TCP listener: accepts connections, closes those that miss a deadline, and ends all of them at a stop."""

import asyncio
import logging
import socket
import ssl
import struct
from collections.abc import Callable

from courser.broker.sessions import Session
from courser.errors import CommandRejected, ErrorCode
from courser.model.messaging import Transport
from courser.transports.session_loop import Services
from courser.transports.settings import ConnectionSettings, SocketSettings, TcpSettings
from courser.transports.tcp_connection import TcpConnection
from courser.transports.tls_door import TlsDoor

_log = logging.getLogger(__name__)

_PATROL_INTERVAL = 1.0
"""Seconds between two checks of all deadlines."""
_BACKLOG = 1024
"""Connections that may wait to be accepted: after a restart all clients reconnect at once."""


class TcpListener:
    """One listening socket and its connections."""

    def __init__(
        self,
        settings: TcpSettings,
        services: Services,
        *,
        open_session: Callable[[Transport, str], Session],
        close_session: Callable[[Session], None],
        connection_count_max: int,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._settings = settings
        self._services = services
        self._open_session = open_session
        self._close_session = close_session
        self._connection_count_max = connection_count_max
        self._tls = tls
        self._connections: set[TcpConnection] = set()
        self._door: asyncio.Server | TlsDoor | None = None
        self._all_gone: asyncio.Event | None = None
        self.turned_away_count = 0
        self.cut_off_count = 0

    @property
    def connection_count(self) -> int:
        """Open connections, including those in a TLS handshake."""
        handshake_count = self._door.handshake_count if isinstance(self._door, TlsDoor) else 0
        return len(self._connections) + handshake_count

    async def start(self) -> tuple[str, int]:
        """Listen. Return the actual address, with the port that was chosen if port 0 was requested."""
        host, port = self._settings.host, self._settings.port
        if self._tls is not None:
            self._door = door = TlsDoor(self._tls, make_connection=self._make_connection, has_room=self._has_room)
            return await door.open(host, port, _BACKLOG)
        self._door = server = await asyncio.get_running_loop().create_server(
            self._make_connection, host, port, backlog=_BACKLOG
        )
        host, port = server.sockets[0].getsockname()[:2]
        return host, port

    async def stop(self, grace: float) -> None:
        """Accept no more. Close idle connections at once, busy ones after their reply, all after ``grace`` seconds."""
        if self._door is None:
            return
        self._door.close()
        self._all_gone = asyncio.Event()
        goodbye = CommandRejected(ErrorCode.DISCONNECTED, "the server is stopping")
        for connection in tuple(self._connections):
            assert connection.loop is not None
            connection.loop.end(goodbye)
        if self._connections:
            try:
                await asyncio.wait_for(self._all_gone.wait(), grace)
            except TimeoutError:
                if grace:
                    _log.warning("%d connections did not close within %g seconds", len(self._connections), grace)
        for connection in tuple(self._connections):
            connection.abort()
        self._door = None

    # --- connections ---

    def _make_connection(self) -> TcpConnection:
        return TcpConnection(self._services, self._let_in, self._forget)

    def _has_room(self) -> bool:
        count = self.connection_count
        if count < self._connection_count_max and self._all_gone is None:
            return True
        self.turned_away_count += 1
        _log.warning("refused a connection: %d are already open", count)
        return False

    def _let_in(self, connection: TcpConnection, transport: asyncio.Transport) -> Session | None:
        if isinstance(self._door, TlsDoor):
            self._door.handshake_done(connection)
        if not self._has_room():
            return None
        _set_options(transport, self._settings.socket)
        peer = transport.get_extra_info("peername") or ("unknown", 0)
        host, port = peer[:2]
        session = self._open_session(Transport.TCP, f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
        self._connections.add(connection)
        return session

    def _forget(self, connection: TcpConnection) -> None:
        self._connections.discard(connection)
        assert connection.loop is not None
        self._close_session(connection.loop.session)
        if self._all_gone is not None and not self._connections:
            self._all_gone.set()

    # --- deadlines ---

    async def patrol(self) -> None:
        """Check the deadlines of all connections periodically, until cancelled."""
        while True:
            await asyncio.sleep(_PATROL_INTERVAL)
            self.enforce_deadlines()

    def enforce_deadlines(self) -> None:
        """Close connections that missed a deadline, and the slowest readers if replies use too much memory."""
        now = self._services.clock.monotonic()
        slow_readers: list[tuple[int, int, TcpConnection]] = []
        for connection in tuple(self._connections):
            reason = _overdue(connection, self._services.settings, now)
            loop = connection.loop
            if reason is not None:
                self._cut_off(connection, reason)
            elif loop is not None:
                if connection.shows_life():
                    # Clients wait for the reply before they send the next request, so nothing else can arrive.
                    loop.session.last_seen = now
                if loop.unsent_since is not None:
                    slow_readers.append((loop.unsent_since, connection.unsent_size, connection))
        excess = sum(size for _, size, _ in slow_readers) - self._services.settings.reply_memory
        for _, size, connection in sorted(slow_readers, key=lambda reader: reader[0]):
            if excess <= 0:
                break
            excess -= size
            self._cut_off(connection, "it does not read its replies, and the memory for replies is full")

    def _cut_off(self, connection: TcpConnection, reason: str) -> None:
        self.cut_off_count += 1
        assert connection.loop is not None
        session = connection.loop.session
        _log.info("closed the connection of client %d at %s: %s", session.client_id, session.address, reason)
        connection.abort()


def _overdue(connection: TcpConnection, settings: ConnectionSettings, now: int) -> str | None:
    """Which deadline a connection has missed, or None."""
    loop = connection.loop
    if loop is None:
        return None
    session = loop.session
    if loop.unsent_since is not None:
        # As for frames: a fixed time for every reply, and more for every byte that is read.
        time_max = settings.send_deadline + connection.taken_size * 1_000_000 // settings.frame_rate_min
        if now - loop.unsent_since > time_max:
            return "it did not read its reply in time"
    elif loop.is_frame_overdue(now):
        return "it did not finish a frame in time"
    elif session.user_id is None and now - session.last_seen > settings.login_deadline:
        return "it did not log in"
    elif settings.idle_deadline and loop.is_idle and now - session.last_seen > settings.idle_deadline:
        return "it was idle for too long"
    return None


def _set_options(transport: asyncio.Transport, settings: SocketSettings) -> None:
    connection: socket.socket = transport.get_extra_info("socket")
    # Set in either case: event loops enable the first one by default.
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, settings.nodelay)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, settings.keepalive)
    if settings.receive_buffer_size is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, settings.receive_buffer_size)
    if settings.send_buffer_size is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, settings.send_buffer_size)
    if settings.linger is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, settings.linger))
