"""A connection that speaks HTTP/1.1: uvicorn's, with the limits that it does not have.

It counts among the connections of all transports. A small request that comes in one piece is answered without a task,
if the application says so. The head of a request has a size limit and a deadline; what follows
the reply to a request that was refused unread is dropped, for a limited time. A client that asks for WebSocket gets it:
from then on, the connection is like those on the port of WebSocket.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from courser.broker.waiting import Waiting, attempt
from courser.errors import CourserError
from courser.transports.connections import Connections, Conversation
from courser.transports.frame_buffer import BASE_SIZE
from courser.transports.http_body import BodyMemory
from courser.transports.settings import ConnectionSettings
from courser.transports.tcp_connection import TcpConnection

Upgrade = Callable[[asyncio.Transport], TcpConnection]
"""Makes a WebSocket connection, not connected yet, for the transport of an HTTP connection."""

IsHot = Callable[[bytes, bytes], bool]
"""Whether a request with this method and this path may begin outside a task: before it waits for anything else, it must
not wait with a timeout."""
CYCLE, WHOLE_BODY = "cycle", "body"
"""In the state of a request: what uvicorn knows about it; and its body, if it begins outside a task."""
HEAD_SIZE_MAX = 64 * 1024
"""Bytes of the request line and all headers."""
KEEP_ALIVE = 75
"""Seconds that a connection may be idle between two requests."""
_SECOND = 1_000_000
_TURNED_AWAY = b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
_HEAD_TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


class HttpSeat:
    """The place of an HTTP connection, from the moment that the connection is accepted."""

    def __init__(self) -> None:
        self.host = "unknown"
        self.handshake: asyncio.Task[None] | None = None
        """The TLS handshake, until it has ended."""
        self.has_begun = False
        """Whether a TLS handshake has started."""
        self.is_aborted = False
        self.is_stranger = True
        """Whether the last request that needed an access token had no valid one."""
        self.receiving: BodyMemory | None = None
        """Of the body that is being received."""
        self.protocol: HttpConnection
        """Set by the listener, which makes both."""
        self.is_admitted = False
        """Whether the connection may send requests."""

    @property
    def loop(self) -> Conversation | None:
        """None: requests over HTTP have a session each, not one for the connection."""
        return None

    @property
    def is_answering(self) -> bool:
        """Whether a request is being carried out."""
        return self.is_admitted and self.protocol.is_answering

    @property
    def taken_size(self) -> int:
        """Nothing counts here: the application waits until the client reads."""
        return 0

    def is_reply_overdue(self, now: int) -> bool:
        """The application looks after that."""
        del now
        return False

    def shows_life(self) -> bool:
        """Nobody asks."""
        return False

    def lent_to_sender(self, now: int) -> tuple[int, int] | None:
        """The rate in bytes per second at which a large body arrives, and its borrowed memory."""
        return None if self.receiving is None else self.receiving.lent_to_sender(now)

    def end(self, goodbye: CourserError) -> None:
        """Close now if no request is in progress, otherwise after the reply. HTTP has no message for a goodbye."""
        del goodbye
        if self.is_admitted:
            self.protocol.shutdown()
        else:
            self.abort()

    def abort(self) -> None:
        """Close now, even during a handshake."""
        self.is_aborted = True
        if self.is_admitted:
            self.protocol.transport.abort()
        elif self.handshake is not None:
            self.handshake.cancel()


class HttpConnection(HttpToolsProtocol):
    """One connection."""

    def __init__(
        self,
        config: Config,
        state: ServerState,
        connections: Connections,
        settings: ConnectionSettings,
        seat: HttpSeat,
        upgrade: Upgrade | None,
    ) -> None:
        # The state is handed to the application with each request.
        super().__init__(config, state, {"seat": seat})
        self._places = connections
        self._settings = settings
        self._seat = seat
        self._upgrade = upgrade
        self._deadline: asyncio.TimerHandle | None = None
        self._head_size = 0
        self._is_in_head = True
        self._is_in_message = False
        self._is_hot: IsHot = config.loaded_app.is_hot
        self._held: bytearray | None = None
        """The body so far of a request whose head is complete, and which has not begun."""
        self._is_collecting = False
        """Whether the application waits for the whole body, and has the memory for it."""

    # --- coming and going ---

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a place, if there is one."""
        super().connection_made(transport)
        seat = self._seat
        if seat.is_aborted:
            # It was closed just as its handshake completed.
            transport.abort()
            return
        if not seat.has_begun:
            # Without TLS, it has no place yet.
            seat.host = str(self.client[0]) if self.client else "unknown"
            if not self._places.make_place(seat.host):
                transport.write(_TURNED_AWAY)
                transport.close()
                return
        seat.is_admitted = True
        self._places.add(seat)
        self._start_deadline()

    def connection_lost(self, exc: Exception | None) -> None:
        """Give the place back."""
        self._stop_deadline()
        self._unset_keepalive_if_required()
        self._places.remove(self._seat)
        super().connection_lost(exc)

    def timeout_keep_alive_handler(self) -> None:
        """It was idle for too long. If the client has not read its reply by now, it does not get it."""
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        else:
            super().timeout_keep_alive_handler()

    # --- WebSocket ---

    def _should_upgrade_to_ws(self) -> bool:
        return self._upgrade is not None

    def handle_websocket_upgrade(self) -> None:
        """Hand the connection over. The WebSocket connection answers the request itself."""
        assert self._upgrade is not None, "asked before"
        head = b"".join(
            (
                *(self.scope["method"].encode(), b" ", self.url, b" HTTP/1.1\r\n"),
                *(piece for name, value in self.headers for piece in (name, b": ", value, b"\r\n")),
                b"\r\n",
            )
        )
        if self.is_answering or len(head) > HEAD_SIZE_MAX:
            # It has not waited for the reply to an earlier request, or its head is too large.
            self.transport.abort()
            return
        self._stop_deadline()
        self.connections.discard(self)
        transport = self.transport
        # Event loops choose how to read for the protocol when they start to read.
        transport.pause_reading()
        # Its place is taken by the new connection.
        self._places.remove(self._seat)
        connection = self._upgrade(transport)
        transport.set_protocol(connection)
        connection.connection_made(transport)
        if not transport.is_closing():
            connection.get_buffer(len(head))[: len(head)] = head
            connection.buffer_updated(len(head))
            transport.resume_reading()

    # --- limits ---

    def data_received(self, data: bytes) -> None:
        """Bytes came in."""
        if not self._seat.is_admitted or self.transport.is_closing():
            return
        self._head_size += len(data)
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self._held is not None:
            self._begin_held()
        if self._is_in_head and self._head_size > HEAD_SIZE_MAX:
            self.transport.write(_HEAD_TOO_LARGE)
            self.transport.close()
        elif self._is_in_head and self._deadline is None and (self._head_size or self._is_in_message):
            self._start_deadline()

    def on_message_begin(self) -> None:
        """A request begins."""
        self._is_in_message = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """The head is complete; the application looks after the body."""
        self._is_in_head = False
        self._head_size = 0
        self._stop_deadline()
        if self._may_hold():
            self._held = bytearray()
        else:
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """A piece of the body came in."""
        if self._held is not None:
            self._held += body
        elif not self._is_collecting:
            super().on_body(body)
        elif self._seat.receiving is not None:
            self.cycle.body += body
            self._seat.receiving.has_room(len(self.cycle.body))

    def on_message_complete(self) -> None:
        """The request is complete. The head of the next one may have begun in the same piece: it is not counted yet."""
        self._head_size = 0
        self._is_in_head = True
        self._is_in_message = self._is_collecting = False
        self._stop_deadline()
        if self._held is not None:
            self._begin_held(is_whole=len(self._held) <= BASE_SIZE)
        super().on_message_complete()

    def collect(self, body: bytearray) -> None:
        """Append the rest of the body that is being received, and tell the application when it is complete."""
        body += self.cycle.body
        self.cycle.body = body
        self._is_collecting = True
        self.flow.resume_reading()

    # --- requests that may come in one piece ---

    def _may_hold(self) -> bool:
        return not (
            self.is_answering or self.flow.write_paused or self.expect_100_continue or self.parser.should_upgrade()
        ) and self._is_hot(self.parser.get_method(), self.url)

    def _begin_held(self, *, is_whole: bool = False) -> None:
        """Hand the request over. If it is complete and small, the application begins here and now."""
        held, self._held = self._held, None
        assert held is not None, "asked before"
        if is_whole:
            self.scope["state"][WHOLE_BODY] = bytes(held)
        super().on_headers_complete()
        if held and not is_whole:
            super().on_body(bytes(held))

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        cycle.scope["state"][CYCLE] = cycle
        if WHOLE_BODY not in cycle.scope["state"]:
            super()._start_asgi_task(cycle, app)
            return
        begun = attempt(cycle.run_asgi(app))
        if isinstance(begun, Waiting) and isinstance(begun.future, asyncio.Task):
            self.tasks.add(begun.future)
            begun.future.add_done_callback(self.tasks.discard)

    # --- replies ---

    @property
    def is_writable(self) -> bool:
        """Whether the client has read most of the earlier replies."""
        return not self.flow.write_paused

    def reply(
        self, cycle: RequestResponseCycle, status: int, fields: Sequence[tuple[bytes, bytes]], body: bytes
    ) -> None:
        """Send a whole reply with one system call; uvicorn needs one for the head and one for the body."""
        if cycle.disconnected:
            return
        assert not cycle.response_started, "a request has one reply"
        lines = [b"%b: %b\r\n" % field for field in fields]
        if (b"connection", b"close") in fields:
            cycle.keep_alive = False
        elif not cycle.keep_alive:
            lines.append(b"connection: close\r\n")
        head = b"".join((STATUS_LINE[status], *lines))
        assert head.count(b"\n") == len(lines) + 1, "a header has one line"
        self.transport.write(b"".join((head, b"\r\n", body)))
        cycle.response_started = cycle.response_complete = True
        cycle.message_event.set()
        if not cycle.keep_alive:
            self.transport.close()
        cycle.on_response()

    @property
    def is_answering(self) -> bool:
        """Whether a request is being carried out."""
        # It is None before the first request, which its type leaves out.
        return self.cycle is not None and not self.cycle.response_complete  # type: ignore[redundant-expr]

    def on_response_complete(self) -> None:
        """The reply is on its way. The client may still be sending a body that was refused."""
        super().on_response_complete()
        if self._is_in_message and not self.transport.is_closing():
            self._start_deadline()

    def _abort(self) -> None:
        """Close now: a client that does not read would keep a connection open that is closed politely."""
        self.transport.abort()

    def _start_deadline(self) -> None:
        self._stop_deadline()
        self._deadline = self.loop.call_later(self._settings.frame_deadline / _SECOND, self._abort)

    def _stop_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


def make_config(application: Any) -> Config:
    """What uvicorn needs to know. Nothing of it reads the environment or changes the logs."""
    config = Config(
        application,
        interface="asgi3",
        http="httptools",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        date_header=False,
        timeout_keep_alive=KEEP_ALIVE,
    )
    config.load()
    return config
