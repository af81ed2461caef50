"""A connection that speaks HTTP/1.1: bytes to requests, replies to bytes, one after the other, each within limits.

A small request that comes in one piece is answered without a task, if the application says so. The rest of a large
body goes where it belongs without the parser. The head of a request has a size limit and a deadline; what follows the
reply to a request that was refused unread is dropped, for a limited time. A client that asks for WebSocket gets it:
from then on, the connection is like those on the port of WebSocket.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol, cast

import httptools

from courser.broker.partition.waiting import Waiting, attempt
from courser.errors import CourserError
from courser.transports.connections import Connections, Conversation
from courser.transports.frame_buffer import BASE_SIZE
from courser.transports.http_body import BodyMemory
from courser.transports.request_memory import private_memory
from courser.transports.settings import ConnectionSettings
from courser.transports.tcp_connection import TcpConnection

_log = logging.getLogger(__name__)

Upgrade = Callable[[asyncio.Transport], TcpConnection]
"""Makes a WebSocket connection, not connected yet, for the transport of an HTTP connection."""

HEAD_SIZE_MAX = 64 * 1024
"""Bytes of the request line and all headers, and of what may follow them that is no body, such as trailers."""
AHEAD_COUNT_MAX = 32
"""Requests that a client may send before it has the reply to the first one. Each takes some kilobytes."""
KEEP_ALIVE = 75
"""Seconds that a connection may be idle between two requests."""
_UNREAD_SIZE_MAX = 64 * 1024
"""Bytes of a body that wait until the application takes them. Beyond, nothing is received."""
_SECOND = 1_000_000
_TURNED_AWAY = b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
_HEAD_TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
_INVALID = (
    b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain; charset=utf-8\r\ncontent-length: 30\r\n"
    b"connection: close\r\n\r\nInvalid HTTP request received."
)
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class HttpRequest:
    """What a connection knows of a request and its body. The application makes it, and answers it."""

    connection: "HttpConnection"
    method: str
    path: bytes
    headers: dict[bytes, bytes]
    pieces: list[bytes]
    """What has arrived of the body and was not taken."""
    # Most requests leave these as they are: one that is created costs a store less for each.
    unread_size = 0
    """Bytes of the pieces."""
    is_whole = False
    """Whether all of the body has arrived."""
    expects_continue = False
    """Whether the client waits until its body is wanted."""
    keeps_alive = True
    """Whether the connection stays open after the reply."""
    is_answered = False
    """Whether all of the reply was handed to the event loop."""
    is_gone = False
    """Whether the client has closed the connection."""
    change: asyncio.Future[None] | None = None
    """While somebody waits for a change of this."""
    task: asyncio.Task[None] | None = None

    def changed(self) -> None:
        """Something of this has changed: tell whoever waits."""
        if self.change is not None and not self.change.done():
            self.change.set_result(None)

    async def wait_for_change(self) -> None:
        """Wait until more of the body has come, or the client has gone, or has the reply."""
        self.connection.receive_more(self)
        self.change = asyncio.get_running_loop().create_future()
        try:
            await self.change
        finally:
            self.change = None

    def take_body(self) -> bytes:
        """What has arrived of the body since the last call."""
        pieces, self.pieces = self.pieces, []
        self.unread_size = 0
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)


class RequestHandler(Protocol):
    """Answers requests, given their head and body."""

    def open(
        self,
        connection: "HttpConnection",
        method: str,
        path: bytes,
        query: bytes,
        headers: Sequence[tuple[bytes, bytes]],
    ) -> HttpRequest:
        """A request whose head has arrived."""

    def is_hot(self, method: str, path: bytes) -> bool:
        """Whether such a request may begin outside a task.

        Before it waits for anything else, it must not wait with a timeout.
        """

    def answer(self, exchange: Any) -> Coroutine[Any, Any, None]:
        """Answer what ``open`` returned."""

    def hurry(self) -> None:
        """The server stops: end what takes long."""


class HttpConnection(asyncio.BufferedProtocol):
    """One connection, from the moment that it is accepted."""

    def __init__(
        self,
        application: RequestHandler,
        settings: ConnectionSettings,
        connections: Connections,
        open_connections: "set[HttpConnection]",
        upgrade: Upgrade | None,
    ) -> None:
        """While it is open, without TLS or after its handshake, it is in ``open_connections``."""
        self._application = application
        self._settings = settings
        self._connections = connections
        self._open_connections = open_connections
        self._upgrade = upgrade
        self._event_loop = asyncio.get_running_loop()
        self.host = "unknown"
        self.handshake: asyncio.Task[None] | None = None
        """The TLS handshake, until it has ended."""
        self.has_begun = False
        """Whether a TLS handshake has started."""
        self.is_aborted = False
        self.is_admitted = False
        """Whether the connection may send requests."""
        self.is_stranger = True
        """Whether the last request that needed an access token had no valid one."""
        self.authorization, self.token = b"", ""
        """The header of the last request that had one, and the access token in it: clients send the same again."""
        self.address = "unknown"
        """``ip:port`` of the client."""
        self.receiving: BodyMemory | None = None
        """Of the body that is being received."""
        self.transport: asyncio.Transport
        self._parser = self._new_parser()
        self._buffer = private_memory(BASE_SIZE)
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._head_size = 0
        """Bytes since the last request, its head, or a piece of its body."""
        self._begun_count = 0
        """Requests that began in the bytes that came last."""
        self._is_too_far_ahead = False
        self._is_in_head = True
        self._is_in_message = False
        self._incoming: HttpRequest | None = None
        """The request whose body is being received."""
        self._current: HttpRequest | None = None
        """The request that is being answered, or will be when the bytes that came are parsed."""
        self._is_due = False
        """Whether the answer to the current request has not begun."""
        self.pipeline: deque[HttpRequest] = deque()
        """Requests that wait for the reply to the current one."""
        self._body: memoryview | None = None
        """Where the rest of a large body goes; None if nobody wants it."""
        self._body_size = self._body_left = 0
        """Bytes of it, and of those that are still to come. The latter do not go to the parser."""
        self._is_paused = False
        self.is_writable = True
        """Whether the client has read most of the earlier replies."""
        self._writable: asyncio.Future[None] | None = None
        """While somebody waits for that."""
        self._deadline: asyncio.TimerHandle | None = None
        self._idle_since: float | None = None
        self._idle_timer: asyncio.TimerHandle | None = None

    # --- for those who look after connections ---

    @property
    def protocol(self) -> asyncio.BaseProtocol:
        """What gets the bytes."""
        return self

    @property
    def loop(self) -> Conversation | None:
        """None: requests over HTTP have a session each, not one for the connection."""
        return None

    @property
    def is_answering(self) -> bool:
        """Whether a request is being carried out."""
        return self._current is not None

    @property
    def taken_size(self) -> int:
        """Always 0: the application waits until the client reads."""
        return 0

    def is_reply_overdue(self, now: int) -> bool:
        """The application looks after that."""
        del now
        return False

    def shows_life(self) -> bool:
        """Not used for HTTP."""
        return False

    def reserved_by_sender(self, now: int) -> tuple[int, int] | None:
        """The rate in bytes per second at which a large body arrives, and its reserved memory."""
        return None if self.receiving is None else self.receiving.reserved_by_sender(now)

    def end(self, goodbye: CourserError) -> None:
        """Close now if no request is in progress, otherwise after the reply. HTTP has no message for a goodbye."""
        del goodbye
        if not self.is_admitted:
            self.abort()
        elif self._current is None:
            self.transport.close()
        else:
            self._current.keeps_alive = False

    def abort(self) -> None:
        """Close now, even during a handshake: a client that does not read would keep a polite close waiting."""
        self.is_aborted = True
        if self.is_admitted:
            self.transport.abort()
        elif self.handshake is not None:
            self.handshake.cancel()

    # --- coming and going ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take a place, if there is one."""
        # uvloop's transports do not inherit from asyncio's.
        self.transport = transport = cast(asyncio.Transport, transport)
        if self.is_aborted:
            # It was closed just as its handshake completed.
            transport.abort()
            return
        peer = transport.get_extra_info("peername")
        if peer:
            host, port = str(peer[0]), peer[1]
            self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        if not self.has_begun:
            # Without TLS, it has no place yet.
            self.host = str(peer[0]) if peer else "unknown"
            if not self._connections.admit(self.host):
                transport.write(_TURNED_AWAY)
                transport.close()
                return
        self.is_admitted = True
        self._open_connections.add(self)
        self._connections.add(self)
        self._start_deadline(self._settings.frame_deadline)

    def connection_lost(self, exc: Exception | None) -> None:
        """Give the place back."""
        del exc
        self._stop_deadline()
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None
        self._open_connections.discard(self)
        self._connections.remove(self)
        for request in (self._current, *self.pipeline):
            if request is not None:
                request.is_gone = True
                request.changed()
        self.pipeline.clear()
        self.resume_writing()
        self._body = None

    @property
    def scheme(self) -> str:
        """``https`` with TLS, otherwise ``http``."""
        return "http" if self.transport.get_extra_info("sslcontext") is None else "https"

    @property
    def port(self) -> int:
        """On which the server listens."""
        name = self.transport.get_extra_info("sockname")
        return int(name[1]) if name else 0

    # --- receiving ---

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where to put the next bytes. Those of a large body go to their place, and never more than it has."""
        del sizehint
        if not self._body_left:
            return self._buffer
        if self._body is None:
            return self._buffer[: self._body_left]
        return self._body[self._body_size - self._body_left :]

    def buffer_updated(self, nbytes: int) -> None:
        """Parse the bytes that came in."""
        if not self.is_admitted or self.transport.is_closing():
            return
        if self._body_left:
            self._receive_body(nbytes)
            return
        self._idle_since = None
        self._head_size += nbytes
        self._begun_count = 0
        if not self._parse(self._buffer[:nbytes]):
            return
        if self.transport.is_closing():
            self._limit_closing()
            return
        if self._is_due:
            self._begin(may_be_hot=False)
        if self._is_in_head and self._head_size > HEAD_SIZE_MAX:
            self._refuse(_HEAD_TOO_LARGE)
        elif self._is_in_message and self._head_size > HEAD_SIZE_MAX:
            # Trailers or extensions of chunks without end. The reply may be under way.
            self._cut_off(f"it sent more than {HEAD_SIZE_MAX} bytes of a body without any of its contents")
        elif self._is_in_head and self._deadline is None and (self._head_size or self._is_in_message):
            self._start_deadline(self._settings.frame_deadline)

    def _parse(self, data: memoryview) -> bool:
        """Have the parser call the methods below. Returns False if the connection is refused, or somebody else's."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            if self._is_websocket():
                self._hand_over()
                return False
            # It asks for something else, and gets HTTP/1.1.
            self._parser = self._new_parser()
        except httptools.HttpParserError:
            if self._is_too_far_ahead:
                # It would take a refusal for the reply to the first one.
                self._cut_off(f"it sent more than {AHEAD_COUNT_MAX} requests ahead")
            else:
                self._refuse(_INVALID)
            return False
        return True

    def _new_parser(self) -> Any:
        parser = httptools.HttpRequestParser(self)
        # What follows the last request on a connection is no reason not to answer that one.
        parser.set_dangerous_leniencies(lenient_data_after_close=True)
        return parser

    def on_message_begin(self) -> None:
        if self._begun_count >= AHEAD_COUNT_MAX or len(self.pipeline) >= AHEAD_COUNT_MAX:
            self._is_too_far_ahead = True
            raise _TooFarAhead
        self._begun_count += 1
        self._is_in_message = True
        self._url, self._headers = b"", []

    def on_url(self, url: bytes) -> None:
        """A piece of the URL came."""
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """The head is complete."""
        self._is_in_head = False
        self._head_size = 0
        self._stop_deadline()
        parser = self._parser
        if parser.should_upgrade() and self._is_websocket():
            return
        method: bytes = parser.get_method()
        url = self._url
        if b"#" not in url and url.isascii() and url.startswith(b"/"):
            path, _, query = url.partition(b"?")
        else:
            parsed = httptools.parse_url(url)
            path, query = parsed.path, parsed.query or b""
        request = self._application.open(self, method.decode("ascii"), path, query, self._headers)
        request.keeps_alive = parser.should_keep_alive() and parser.get_http_version() != "1.0"
        if b"expect" in request.headers:
            request.expects_continue = request.headers[b"expect"].lower() == b"100-continue"
        self._incoming = request
        if self._current is None:
            self._current = request
            self._is_due = True
        else:
            self._pause()
            self.pipeline.append(request)

    def on_body(self, body: bytes) -> None:
        """A piece of the body came in."""
        self._head_size = 0
        request = self._incoming
        if request is not None and not request.is_answered:
            request.pieces.append(body)
            request.unread_size += len(body)
            if request.change is not None:
                request.changed()
            if request.unread_size > _UNREAD_SIZE_MAX:
                self._pause()

    def on_message_complete(self) -> None:
        """The request is complete. The head of the next one may have begun in the same piece: it is not counted yet."""
        self._head_size = 0
        self._is_in_head = True
        self._is_in_message = False
        self._stop_deadline()
        request, self._incoming = self._incoming, None
        if request is not None:
            request.is_whole = True
            if request.change is not None:
                request.changed()
            if self._is_due and request is self._current:
                # Others come before the second request in the same bytes.
                self._begin(may_be_hot=self._begun_count == 1)

    def receive_more(self, request: HttpRequest) -> None:
        """More is wanted of a request: of its body, or whether its client is there."""
        if request.expects_continue:
            request.expects_continue = False
            self.write(_CONTINUE)
        self._resume()

    def _resume(self) -> None:
        if self._is_paused and not self.transport.is_closing():
            self._is_paused = False
            self.transport.resume_reading()

    def _pause(self) -> None:
        if not self._is_paused and not self.transport.is_closing():
            self._is_paused = True
            self.transport.pause_reading()

    # --- large bodies ---

    def receive_into(self, body: memoryview, arrived_size: int) -> None:
        """Put the rest of the body that is being received into its place."""
        self._body, self._body_size, self._body_left = body, len(body), len(body) - arrived_size

    def stop_receiving(self) -> None:
        """Drop the rest of the body: nobody waits for it any more."""
        self._body = None

    @property
    def is_receiving_body(self) -> bool:
        """Whether the next bytes belong to such a body."""
        return self._body_left > 0

    @property
    def received_size(self) -> int:
        """Bytes of the body that ``receive_into`` has so far."""
        return self._body_size - self._body_left

    def _receive_body(self, size: int) -> None:
        self._body_left -= size
        if self.receiving is not None:
            self.receiving.has_room(self.received_size)
        if not self._body_left:
            self._body = None
            # The old one still waits for the body.
            self._parser = self._new_parser()
            self.on_message_complete()

    # --- answering ---

    def _begin(self, *, may_be_hot: bool) -> None:
        """Answer the current request, here and now if it is likely to wait for nothing."""
        request = self._current
        assert request is not None, "it is due"
        self._is_due = False
        work = self._application.answer(request)
        if may_be_hot and self.is_writable and self._application.is_hot(request.method, request.path):
            try:
                begun = attempt(work)
            except Exception as error:  # noqa: BLE001 - one defect of ours must not take the other connections down
                self._failed(error)
                return
            if not isinstance(begun, Waiting):
                return
            assert isinstance(begun.future, asyncio.Task), "the rest of a coroutine is a task"
            request.task = begun.future
        else:
            request.task = self._event_loop.create_task(work)
        request.task.add_done_callback(self._done)

    def _done(self, task: "asyncio.Task[None]") -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._failed(error)

    def _failed(self, error: BaseException) -> None:
        _log.error("a request over HTTP failed for a reason that is a defect", exc_info=error)
        self.abort()

    async def drain(self) -> None:
        """Return when the client has read most of what was sent."""
        while not self.is_writable:
            self._writable = self._event_loop.create_future()
            await self._writable

    def write(self, data: bytes) -> None:
        """Send bytes of the reply to the current request."""
        if not self.transport.is_closing():
            self.transport.write(data)

    def end_reply(self, request: HttpRequest, data: bytes) -> None:
        """Send the last bytes of a reply. The client may still be sending a body that was refused."""
        assert request is self._current, "requests are answered in their order"
        request.is_answered = True
        if request.change is not None:
            request.changed()
        self._current = None
        transport = self.transport
        if not transport.is_closing():
            transport.write(data)
            if not request.keeps_alive:
                transport.close()
        if transport.is_closing():
            self._limit_closing()
            return
        if self._is_paused:
            self._resume()
        if self.pipeline:
            self._current = self.pipeline.popleft()
            self._begin(may_be_hot=False)
        else:
            self._rest()
        if self._is_in_message:
            self._start_deadline(self._settings.frame_deadline)

    def pause_writing(self) -> None:
        """The client does not read."""
        self.is_writable = False

    def resume_writing(self) -> None:
        """The client reads again."""
        self.is_writable = True
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)

    # --- WebSocket ---

    def _is_websocket(self) -> bool:
        """Whether the request asks for WebSocket, and may."""
        headers = dict(self._headers)
        tokens = [token.strip() for token in headers.get(b"connection", b"").lower().split(b",")]
        return (
            self._upgrade is not None and b"upgrade" in tokens and headers.get(b"upgrade", b"").lower() == b"websocket"
        )

    def _hand_over(self) -> None:
        """Hand the connection over. The WebSocket connection answers the request itself."""
        assert self._upgrade is not None, "asked before"
        head = b"".join(
            (
                *(self._parser.get_method(), b" ", self._url, b" HTTP/1.1\r\n"),
                *(piece for name, value in self._headers for piece in (name, b": ", value, b"\r\n")),
                b"\r\n",
            )
        )
        if self.is_answering or len(head) > HEAD_SIZE_MAX:
            # It has not waited for the reply to an earlier request, or its head is too large.
            self.transport.abort()
            return
        self._stop_deadline()
        self._open_connections.discard(self)
        transport = self.transport
        # Event loops choose how to read for the protocol when they start to read.
        transport.pause_reading()
        # Its place is taken by the new connection.
        self._connections.remove(self)
        connection = self._upgrade(transport)
        transport.set_protocol(connection)
        connection.connection_made(transport)
        if not transport.is_closing():
            connection.get_buffer(len(head))[: len(head)] = head
            connection.buffer_updated(len(head))
            transport.resume_reading()

    # --- limits ---

    def _rest(self) -> None:
        """Wait for the next request."""
        self._idle_since = self._event_loop.time()
        # The timer goes on: a new one for each request would take longer than asking it later.
        if self._idle_timer is None:
            self._idle_timer = self._event_loop.call_later(KEEP_ALIVE, self._look_whether_idle)

    def _look_whether_idle(self) -> None:
        """Was it idle for too long? If the client has not read its reply by now, it does not get it."""
        self._idle_timer = None
        if self._idle_since is None:
            return
        left = self._idle_since + KEEP_ALIVE - self._event_loop.time()
        if left > 0:
            self._idle_timer = self._event_loop.call_later(left, self._look_whether_idle)
        elif self.transport.get_write_buffer_size():
            self.transport.abort()
        else:
            self.transport.close()

    def _refuse(self, reply: bytes) -> None:
        self.transport.write(reply)
        self.transport.close()
        self._limit_closing()

    def _cut_off(self, reason: str) -> None:
        _log.info("HTTP client at %s cut off: %s", self.address, reason)
        self.abort()

    def _limit_closing(self) -> None:
        """The connection is closed when the client has read the rest, which it may never do."""
        if self._deadline is None and self.transport.get_write_buffer_size():
            self._start_deadline(self._settings.send_deadline)

    def _start_deadline(self, microseconds: int) -> None:
        self._stop_deadline()
        self._deadline = self._event_loop.call_later(microseconds / _SECOND, self.abort)

    def _stop_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


class _TooFarAhead(Exception):
    """More requests than may wait for their turn. Ends the parser's work."""
