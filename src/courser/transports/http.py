"""The HTTP listener: a listening socket, whose connections may become WebSocket connections."""

import logging
import ssl
from functools import partial
from typing import Protocol

from uvicorn.config import Config
from uvicorn.server import ServerState

from courser.transports.connections import Connections
from courser.transports.http_connection import HttpConnection, HttpSeat, Upgrade, make_config
from courser.transports.http_exchange import Receive, Scope, Send
from courser.transports.plain_door import PlainDoor
from courser.transports.settings import ConnectionSettings, HttpSettings
from courser.transports.tls_door import TlsDoor

_BACKLOG = 1024


class Application(Protocol):
    """An ASGI application."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""

    def is_hot(self, method: bytes, url: bytes) -> bool:
        """Whether such a request may begin outside a task (``http_connection.HotApplication``)."""

    def hurry(self) -> None:
        """The server stops: end what takes long."""


class HttpListener:
    """One listening socket. Its connections count among those of all other transports."""

    def __init__(
        self,
        settings: HttpSettings,
        connection_settings: ConnectionSettings,
        application: Application,
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
        self._state = ServerState()
        self._door: PlainDoor | TlsDoor | None = None

    async def start(self) -> tuple[str, int]:
        """Listen. Return the real address."""
        # Strangers make it warn of invalid requests at any rate; what the application fails at is an error.
        logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
        config = make_config(self._application)

        def make_connection() -> HttpConnection:
            return self._make_seat(config).protocol

        host, port = self._settings.host, self._settings.port
        if self._tls is None:
            self._door = PlainDoor(make_connection)
        else:
            self._door = TlsDoor(
                self._tls,
                self._connections,
                make_connection=partial(self._make_seat, config),
                handshake_deadline=self._connection_settings.handshake_deadline,
            )
        return await self._door.open(host, port, _BACKLOG)

    def _make_seat(self, config: Config) -> HttpSeat:
        seat = HttpSeat()
        seat.protocol = HttpConnection(
            config, self._state, self._connections, self._connection_settings, seat, self._upgrade
        )
        return seat

    @property
    def connection_count(self) -> int:
        """Open connections, without those in a TLS handshake."""
        return len(self._state.connections)

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
