"""The HTTP listener: a listening socket."""

import asyncio
import logging
import ssl

from uvicorn.server import ServerState

from courser.transports.connections import Connections
from courser.transports.http_application import HttpApplication
from courser.transports.http_connection import HttpConnection, make_config
from courser.transports.settings import ConnectionSettings, HttpSettings

_BACKLOG = 1024
_HANDSHAKE_DEADLINE = 10.0
"""Seconds for a TLS handshake."""


class HttpListener:
    """One listening socket. Its connections count among those of all other transports."""

    def __init__(
        self,
        settings: HttpSettings,
        connection_settings: ConnectionSettings,
        application: HttpApplication,
        connections: Connections,
        *,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._settings = settings
        self._connection_settings = connection_settings
        self._application = application
        self._connections = connections
        self._tls = tls
        self._state = ServerState()
        self._server: asyncio.Server | None = None

    async def start(self) -> tuple[str, int]:
        """Listen. Return the real address."""
        # Strangers make it warn of invalid requests at any rate; what the application fails at is an error.
        logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
        config = make_config(self._application)

        def make_connection() -> HttpConnection:
            return HttpConnection(config, self._state, self._connections, self._connection_settings)

        settings = self._settings
        self._server = server = await asyncio.get_running_loop().create_server(
            make_connection,
            settings.host,
            settings.port,
            backlog=_BACKLOG,
            ssl=self._tls,
            ssl_handshake_timeout=_HANDSHAKE_DEADLINE if self._tls is not None else None,
        )
        host, port = server.sockets[0].getsockname()[:2]
        return host, port

    def close(self) -> None:
        """Let nobody in any more, and end long polls with what they have. May be repeated."""
        if self._server is not None:
            self._server.close()
            self._server = None
            self._application.hurry()

    def release(self) -> None:
        """All connections are gone. They had sockets of their own, so there is nothing to do."""
