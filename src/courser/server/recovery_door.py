"""Health checks while the server starts: recovery may take minutes, and a process that recovers is not to be killed.

The listener of HTTP needs the broker, which does not exist yet. So another one has its address until then, which knows
two answers: the server is alive, and it is not ready.
"""

import os
import ssl
from collections.abc import Sequence

from courser.model.clock import Clock
from courser.model.memory_ledger import MemoryLedger
from courser.transports.connections import Connections
from courser.transports.http import HttpListener
from courser.transports.http_connection import HttpConnection
from courser.transports.http_exchange import Answer, ClientGone, Exchange, RequestIds, text_answer
from courser.transports.settings import ConnectionSettings, HttpSettings

_CONNECTION_COUNT_MAX = 64
"""Health checks need few. Whoever comes after them takes the place of the oldest."""
_OK, _UNAVAILABLE = 200, 503
_LIVE_PATHS = (b"/health/live", b"/ping")


class RecoveryDoor:
    """Listens on the address of HTTP from ``open`` to ``close``."""

    def __init__(
        self, settings: HttpSettings, connections: ConnectionSettings, clock: Clock, tls: ssl.SSLContext | None
    ) -> None:
        memory = MemoryLedger(connections.request_memory)
        self._connections = Connections(connections, clock, count_max=_CONNECTION_COUNT_MAX, request_memory=memory)
        application = _RecoveryApplication(connections)
        self._listener = HttpListener(settings, connections, application, self._connections, tls=tls)

    async def open(self) -> tuple[str, int]:
        """Listen. Returns the actual address. Raises ``OSError``."""
        return await self._listener.start()

    async def close(self) -> None:
        """Listen no more, and close all connections."""
        await self._listener.close_now()
        await self._connections.say_goodbye(0)


class _RecoveryApplication:
    """Answers health checks while the server recovers."""

    def __init__(self, settings: ConnectionSettings) -> None:
        self._settings = settings
        self._ids = RequestIds(os.urandom)

    def open(
        self,
        connection: HttpConnection,
        method: str,
        path: bytes,
        query: bytes,
        headers: Sequence[tuple[bytes, bytes]],
    ) -> Exchange:
        return Exchange(connection, method, path, query, headers, self._settings, self._ids)

    def is_hot(self, method: str, path: bytes) -> bool:
        """No request takes the direct path: each connection has one."""
        del method, path
        return False

    def hurry(self) -> None:
        """No answer takes long."""

    async def answer(self, exchange: Exchange) -> None:
        try:
            await exchange.send(_answer_to(exchange.path))
        except (ClientGone, TimeoutError):
            exchange.connection.abort()


def _answer_to(path: bytes) -> Answer:
    if path in _LIVE_PATHS:
        return text_answer(_OK, "pong", closes=True)
    reason = "the server is starting: it recovers its data"
    return text_answer(_UNAVAILABLE, reason, {"retry-after": "1"}, closes=True)
