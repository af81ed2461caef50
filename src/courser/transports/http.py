"""The HTTP listener: a listening socket, whose connections may become WebSocket connections."""

import ssl

from courser.transports.connections import Connections
from courser.transports.doors import PlainDoor, TlsDoor, open_sockets
from courser.transports.http_connection import HttpConnection, RequestHandler, Upgrade
from courser.transports.settings import ConnectionSettings, HttpSettings


class HttpListener:
    """One listening socket. Its connections count among those of all other transports."""

    def __init__(
        self,
        settings: HttpSettings,
        connection_settings: ConnectionSettings,
        application: RequestHandler,
        connections: Connections,
        *,
        tls: ssl.SSLContext | None = None,
        upgrade: Upgrade | None = None,
    ) -> None:
        self._settings = settings
        self._connection_settings = connection_settings
        self._application = application
        self._connections = connections
        self._tls = tls
        self._upgrade = upgrade
        self._open: set[HttpConnection] = set()
        self._door: PlainDoor | TlsDoor | None = None

    async def start(self) -> tuple[str, int]:
        """Listen. Return the real address."""
        sockets = await open_sockets(self._settings.host, self._settings.port)
        if self._tls is None:
            self._door = PlainDoor(self._make_connection)
        else:
            self._door = TlsDoor(
                self._tls,
                self._connections,
                make_connection=self._make_connection,
                handshake_deadline=self._connection_settings.handshake_deadline,
            )
        await self._door.serve(sockets)
        host, port = sockets[0].getsockname()[:2]
        return host, port

    def _make_connection(self) -> HttpConnection:
        return HttpConnection(
            self._application, self._connection_settings, self._connections, self._open, self._upgrade
        )

    @property
    def connection_count(self) -> int:
        """Open connections, without those in a TLS handshake."""
        return len(self._open)

    def close(self) -> None:
        """Let nobody in any more, and end long polls with what they have. May be repeated."""
        if self._door is not None:
            self._door.close()
            self._door = None
            self._application.hurry()

    async def close_now(self) -> None:
        """``close``, and return when the address is free."""
        door = self._door
        self.close()
        if isinstance(door, TlsDoor):
            await door.wait_closed()

    def release(self) -> None:
        """All connections are gone. They had sockets of their own, so there is nothing to do."""
