"""A connection that speaks HTTP/1.1: uvicorn's, with the limits that it does not have.

It counts among the connections of all transports. A small request that comes in one piece is answered without a task
and without what ASGI needs, if the application says so. The rest of a large body goes where it belongs without the
parser. The head of a request has a size limit and a deadline; what follows the reply to a request that was refused
unread is dropped, for a limited time. A client that asks for WebSocket gets it: from then on, the connection is like
those on the port of WebSocket.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from courser.broker.partition.waiting import Waiting, attempt
from courser.errors import CourserError
from courser.transports.connections import Connections, Conversation
from courser.transports.frame_buffer import BASE_SIZE
from courser.transports.http_body import BodyMemory
from courser.transports.settings import ConnectionSettings
from courser.transports.tcp_connection import TcpConnection

_log = logging.getLogger(__name__)

Upgrade = Callable[[asyncio.Transport], TcpConnection]
"""Makes a WebSocket connection, not connected yet, for the transport of an HTTP connection."""

SEAT, CYCLE = "seat", "cycle"
"""In the state of a request: the connection's place, and what uvicorn knows about the request."""
HEAD_SIZE_MAX = 64 * 1024
"""Bytes of the request line and all headers, and of what may follow them that is no body, such as trailers."""
AHEAD_COUNT_MAX = 32
"""Requests that a client may send before it has the reply to the first. Each takes some kilobytes until its turn."""
KEEP_ALIVE = 75
"""Seconds that a connection may be idle between two requests."""
_SECOND = 1_000_000
_TURNED_AWAY = b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
_HEAD_TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


class Opened(Protocol):
    """A request that came in one piece."""

    cycle: RequestResponseCycle | None
    """What uvicorn knows about it, once it waits."""


class HotApplication(Protocol):
    """The part of an application that answers requests which come in one piece."""

    def is_hot(self, method: bytes, url: bytes) -> bool:
        """Whether such a request may begin outside a task.

        Before it waits for anything else, it must not wait with a timeout. Its URL must be a path in ASCII, with or
        without a query.
        """

    def open_whole(
        self, seat: "HttpSeat", method: str, url: bytes, headers: Sequence[tuple[bytes, bytes]], body: bytes
    ) -> Opened:
        """A request with its body."""

    def answer(self, exchange: Any) -> Coroutine[Any, Any, None]:
        """Answer what ``open_whole`` returned."""


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
        self.authorization, self.token = b"", ""
        """The header of the last request that had one, and the access token in it: clients send the same again."""
        self.address = "unknown"
        """``ip:port`` of the client."""
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

    def reserved_by_sender(self, now: int) -> tuple[int, int] | None:
        """The rate in bytes per second at which a large body arrives, and its reserved memory."""
        return None if self.receiving is None else self.receiving.reserved_by_sender(now)

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
        super().__init__(config, state, {SEAT: seat})
        self._places = connections
        self._settings = settings
        self._seat = seat
        self._upgrade = upgrade
        self._deadline: asyncio.TimerHandle | None = None
        self._head_size = 0
        """Bytes since the last request, its head, or a piece of its body."""
        self._begun_count = 0
        """Requests that began in the bytes that came last."""
        self._is_in_head = True
        self._is_in_message = False
        self._application: HotApplication = config.loaded_app
        self._held: list[bytes] | None = None
        """The body so far of a request whose head is complete, and which has not begun."""
        self._begun: tuple[Opened, asyncio.Task[None]] | None = None
        """A request that came in one piece and waits, until uvicorn knows it."""
        self._receiver: _BodyReceiver | None = None
        """What gets the bytes of the connection, instead of the parser."""
        self._idle_since: float | None = None

    # --- coming and going ---

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a place, if there is one."""
        super().connection_made(transport)
        seat = self._seat
        if seat.is_aborted:
            # It was closed just as its handshake completed.
            transport.abort()
            return
        if self.client is not None:
            host, port = self.client
            seat.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
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
        if self.timeout_keep_alive_task is not None:
            self.timeout_keep_alive_task.cancel()
            self.timeout_keep_alive_task = None
        self._receiver = None
        self._places.remove(self._seat)
        super().connection_lost(exc)

    def _unset_keepalive_if_required(self) -> None:
        """Something came in. The timer goes on: a new one for each request would take longer than asking it later."""
        self._idle_since = None

    def _rest(self) -> None:
        """Nothing is to be done until the next request."""
        self._idle_since = self.loop.time()
        if self.timeout_keep_alive_task is None:
            self._start_keep_alive(KEEP_ALIVE)

    def _start_keep_alive(self, seconds: float) -> None:
        self.timeout_keep_alive_task = self.loop.call_later(seconds, self.timeout_keep_alive_handler)

    def timeout_keep_alive_handler(self) -> None:
        """Was it idle for too long? If the client has not read its reply by now, it does not get it."""
        self.timeout_keep_alive_task = None
        if self._idle_since is None:
            return
        left = self._idle_since + KEEP_ALIVE - self.loop.time()
        if left > 0:
            self._start_keep_alive(left)
        elif self.transport.get_write_buffer_size():
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
                *(self.parser.get_method(), b" ", self.url, b" HTTP/1.1\r\n"),
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
        self._begun_count = 0
        super().data_received(data)
        if self.transport.is_closing():
            self._limit_closing()
            return
        if self._held is not None:
            self._begin_held()
        if self._is_in_head and self._head_size > HEAD_SIZE_MAX:
            self.transport.write(_HEAD_TOO_LARGE)
            self.transport.close()
            self._limit_closing()
        elif self._is_in_message and self._head_size > HEAD_SIZE_MAX:
            # Trailers or extensions of chunks without end. The reply may be under way.
            self._cut_off(f"it sent more than {HEAD_SIZE_MAX} bytes of a body without any of its contents")
        elif self._is_in_head and self._deadline is None and (self._head_size or self._is_in_message):
            self._start_deadline()

    def on_message_begin(self) -> None:
        """A request begins. What ASGI needs to know about it is collected later, if at all."""
        if max(self._begun_count, len(self.pipeline)) >= AHEAD_COUNT_MAX:
            raise _TooFarAhead
        self._begun_count += 1
        self._is_in_message = True
        self.url, self.headers, self.expect_100_continue = b"", [], False

    def on_headers_complete(self) -> None:
        """The head is complete; the application looks after the body."""
        self._is_in_head = False
        self._head_size = 0
        self._stop_deadline()
        if self._may_hold():
            self._held = []
        else:
            self._hand_over()

    def on_body(self, body: bytes) -> None:
        """A piece of the body came in."""
        self._head_size = 0
        if self._held is not None:
            self._held.append(body)
        else:
            super().on_body(body)

    def on_message_complete(self) -> None:
        """The request is complete. The head of the next one may have begun in the same piece: it is not counted yet."""
        self._head_size = 0
        self._is_in_head = True
        self._is_in_message = False
        self._stop_deadline()
        if self._held is None:
            super().on_message_complete()
            return
        body = self._held[0] if len(self._held) == 1 else b"".join(self._held)
        if len(body) > BASE_SIZE:
            self._begin_held()
            super().on_message_complete()
        else:
            self._held = None
            self._begin_whole(body)

    def _hand_over(self) -> None:
        """Hand the request over to uvicorn."""
        url, headers, expects_100_continue = self.url, self.headers, self.expect_100_continue
        super().on_message_begin()
        self.url, self.headers, self.expect_100_continue = url, headers, expects_100_continue
        self.scope["headers"] = headers
        super().on_headers_complete()

    # --- requests that may come in one piece ---

    def _may_hold(self) -> bool:
        parser = self.parser
        # Others come before the second request in the same bytes.
        return self._begun_count == 1 and (
            self._application.is_hot(parser.get_method(), self.url)
            and not (self.is_answering or self.flow.write_paused or self.expect_100_continue or parser.should_upgrade())
            and parser.should_keep_alive()
            and parser.get_http_version() == "1.1"
        )

    def _begin_held(self) -> None:
        """Hand a request over whose body is not complete, or is large."""
        held, self._held = self._held, None
        assert held is not None, "asked before"
        self._hand_over()
        for piece in held:
            super().on_body(piece)

    def _begin_whole(self, body: bytes) -> None:
        """The application begins here and now. If it has to wait, uvicorn has to know of the request."""
        exchange = self._application.open_whole(
            self._seat, self.parser.get_method().decode("ascii"), self.url, self.headers, body
        )
        begun = attempt(self._application.answer(exchange))
        if isinstance(begun, Waiting):
            assert isinstance(begun.future, asyncio.Task), "the rest of a coroutine is a task"
            self._begun = exchange, begun.future
            self._hand_over()
            super().on_message_complete()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        if self._begun is None:
            cycle.scope["state"][CYCLE] = cycle
            super()._start_asgi_task(cycle, app)
            return
        (exchange, task), self._begun = self._begun, None
        exchange.cycle = cycle
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    # --- large bodies ---

    def receive_into(self, body: memoryview, arrived_size: int) -> None:
        """Put the rest of the body that is being received into its place."""
        self._receiver = _BodyReceiver(self, body, arrived_size)
        self._switch_to(self._receiver)

    def _switch_to(self, protocol: asyncio.BaseProtocol) -> None:
        # Event loops choose how to read for the protocol when they start to read.
        self.flow.pause_reading()
        self.transport.set_protocol(protocol)
        self.flow.resume_reading()

    def stop_receiving(self) -> None:
        """Drop the rest of the body: nobody waits for it any more."""
        if self._receiver is not None:
            self._receiver.drop_rest()

    @property
    def received_size(self) -> int:
        """Bytes of the body that ``receive_into`` has so far."""
        return 0 if self._receiver is None else self._receiver.arrived_size

    def body_arrived(self, arrived_size: int, *, is_complete: bool) -> None:
        """So many bytes of the body are in their place."""
        if self._seat.receiving is not None:
            self._seat.receiving.has_room(arrived_size)
        if is_complete:
            self._receiver = None
            # The old one still waits for the body.
            self.parser = httptools.HttpRequestParser(self)
            self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
            self.on_message_complete()
            self._switch_to(self)

    # --- replies ---

    @property
    def is_writable(self) -> bool:
        """Whether the client has read most of the earlier replies."""
        return not self.flow.write_paused

    def begin_reply(self, cycle: RequestResponseCycle, head: bytes, size: int | None) -> None:
        """Send the head of a reply; uvicorn sends its body, of ``size`` bytes or in chunks."""
        if cycle.disconnected:
            return
        assert not cycle.response_started, "a request has one reply"
        cycle.response_started = True
        cycle.waiting_for_100_continue = False
        cycle.chunked_encoding = size is None
        cycle.expected_content_length = size or 0
        self.transport.write(head)

    def reply(self, cycle: RequestResponseCycle | None, reply: bytes) -> None:
        """Send a whole reply with one system call; uvicorn needs one for the head and one for the body."""
        if cycle is None:
            if not self.transport.is_closing():
                self.transport.write(reply)
                self._rest()
            return
        if cycle.disconnected:
            return
        assert not cycle.response_started, "a request has one reply"
        self.transport.write(reply)
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
        if self.transport.is_closing():
            self._limit_closing()
            return
        self.flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
        else:
            self._rest()
        if self._is_in_message:
            self._start_deadline()

    def send_400_response(self, msg: str) -> None:
        """The parser cannot go on."""
        if max(self._begun_count, len(self.pipeline)) >= AHEAD_COUNT_MAX:
            # It would take that for the reply to the first one.
            self._cut_off(f"it sent more than {AHEAD_COUNT_MAX} requests ahead")
        else:
            super().send_400_response(msg)

    def _cut_off(self, reason: str) -> None:
        _log.info("HTTP client at %s cut off: %s", self._seat.address, reason)
        self._abort()

    def _limit_closing(self) -> None:
        """The connection is closed when the client has read the rest, which it may never do."""
        if self._deadline is None and self.transport.get_write_buffer_size():
            self._deadline = self.loop.call_later(self._settings.send_deadline / _SECOND, self._abort)

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


class _TooFarAhead(Exception):
    """More requests than may wait for their turn. Ends the parser's work."""


class _BodyReceiver(asyncio.BufferedProtocol):
    """Takes the place of a connection while a large body arrives: the kernel writes into the place of the body."""

    def __init__(self, connection: HttpConnection, body: memoryview, arrived_size: int) -> None:
        self._connection = connection
        self._body: memoryview | None = body
        self._size = len(body)
        self.arrived_size = arrived_size

    def drop_rest(self) -> None:
        """Keep nothing of what arrives from now on."""
        self._body = None

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where to put the next bytes: never more than the body has."""
        del sizehint
        if self._body is None:
            return memoryview(bytearray(min(self._size - self.arrived_size, BASE_SIZE)))
        return self._body[self.arrived_size :]

    def buffer_updated(self, nbytes: int) -> None:
        """Bytes came in."""
        self.arrived_size += nbytes
        self._connection.body_arrived(self.arrived_size, is_complete=self.arrived_size == self._size)

    def eof_received(self) -> None:
        """The client sends nothing more, and expects no reply."""
        self._connection.eof_received()

    def pause_writing(self) -> None:
        """The client does not read."""
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        """The client reads again."""
        self._connection.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        self._connection.connection_lost(exc)


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
