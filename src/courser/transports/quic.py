"""QUIC: one connection for each client, and a stream of its own for each request and its reply.

The streams of a connection share its session and its session loop, so their requests are carried out one at a time, in
the order in which they were complete. Reads that wait are set aside meanwhile. The library ``qh3`` does the protocol;
it is only touched here.
"""

import asyncio
import logging
import socket
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from qh3.asyncio.protocol import QuicConnectionProtocol
from qh3.asyncio.server import QuicServer
from qh3.quic.configuration import QuicConfiguration
from qh3.quic.connection import QuicConnection
from qh3.quic.events import (
    ConnectionTerminated,
    HandshakeCompleted,
    QuicEvent,
    StopSendingReceived,
    StreamDataReceived,
    StreamReset,
)

from courser.broker.access.sessions import Session, Sessions
from courser.errors import CommandRejected, ErrorCode
from courser.model.buffers import Buffer
from courser.model.messaging import Transport
from courser.transports.connections import Connections
from courser.transports.minimum_rate import MinimumRate
from courser.transports.quic_requests import StreamedRequests, StreamRefused
from courser.transports.quic_retry import RetryTokens
from courser.transports.reply_progress import ReplyProgress
from courser.transports.services import Services
from courser.transports.session_loop import SessionLoop
from courser.transports.settings import QuicSettings
from courser.wire.codec import FrameRefused, Incoming

_log = logging.getLogger(__name__)

REPLY_SIZE_MAX = 10_000_000
"""Bytes of a reply that Iggy's SDKs read from a stream, unless told otherwise. They hang up on a larger one."""
_CHUNK_SIZE = 256 * 1024
"""Bytes of a reply that are with the library at a time, which copies them."""
WINDOW_SIZE = 1024 * 1024
"""Bytes that a client may send beyond a gap in its streams. The library keeps them until the gap is filled, and they
count nowhere; its own limit is 15 MiB for each connection."""
STRANGER_OVERHEAD_MAX = 48 * 1024
"""Bytes of datagrams before a login, beyond a request of the size that is allowed there: a handshake takes about 6 KiB.
The library keeps what many kinds of frames ask for until it can answer, without a limit."""
_SECOND = 1_000_000
_LINGER = 0.25
"""Seconds for the last reply to arrive before the connection is closed, which would overtake it."""
_REFUSED = 1
"""The error code of a connection that the server closes because of what the client did."""


@dataclass(frozen=True, slots=True)
class QuicServices:
    """What all QUIC connections share."""

    services: Services
    connections: Connections
    sessions: Sessions
    draw: Callable[[int], bytes]
    """So many random bytes."""


class QuicSessionLoop(SessionLoop):
    """A session loop whose requests come whole, and whose replies may not be larger than clients accept."""

    def __init__(self, services: Services, session: Session, connection: "QuicClient") -> None:
        super().__init__(services, session, connection)
        self._connection = connection
        self._requests = connection.requests
        self._stream_pace = MinimumRate(services.settings.frame_deadline, services.settings.frame_rate_min)

    def is_frame_overdue(self, now: int) -> bool:
        """Whether the client takes too long to send the oldest of its requests."""
        slowest = self._requests.slowest()
        if slowest is None:
            return super().is_frame_overdue(now)
        return self._stream_pace.is_late(now, *slowest)

    def _next_frame(self) -> memoryview | None:
        frame = super()._next_frame()
        if frame is not None and (self._buffer.size or self._connection.has_more):
            raise FrameRefused("a stream with more than one request")
        return frame

    def _send(self, incoming: Incoming, buffers: Sequence[Buffer]) -> None:
        size = sum(map(len, buffers))
        if size > REPLY_SIZE_MAX:
            assert self._codec is not None, "it has encoded the reply"
            reason = f"the reply has {size} bytes, more than the {REPLY_SIZE_MAX} that are possible over QUIC"
            error = CommandRejected(ErrorCode.TOO_BIG_MESSAGE_PAYLOAD, reason)
            buffers = self._failure(self._codec, incoming, error)
        super()._send(incoming, buffers)

    def _left_line(self, number: int) -> None:
        self._connection.set_aside(number)

    def _joined_line(self, number: int) -> None:
        self._connection.take_up(number)


class QuicClient(ReplyProgress, QuicConnectionProtocol):
    """A QUIC connection of a client."""

    loop: SessionLoop | None

    def __init__(
        self, quic: QuicConnection, shared: QuicServices, stream_handler: Any = None, *, is_welcome: bool = True
    ) -> None:
        ReplyProgress.__init__(self, shared.services.settings)
        QuicConnectionProtocol.__init__(self, quic, stream_handler)
        self._shared = shared
        self.requests = StreamedRequests(shared.services.settings, shared.services.memory)
        self.host = "unknown"
        self._address = ""
        self._is_welcome = is_welcome
        self._is_known = False
        """Whether it counts as a connection."""
        self._handshake_timer: asyncio.TimerHandle | None = None
        self._stranger_size = 0
        """Bytes of datagrams since the start, or since a logout."""
        self._stranger_size_max = shared.services.settings.login_frame_size_max + STRANGER_OVERHEAD_MAX
        self._is_over = False
        """Whether nothing more is received or sent."""
        self._is_lost = False
        """Whether the session has ended too."""
        self._close_reason: str | None = None
        """Set if the connection is closed when the reply has been sent."""
        self._stream: int | None = None
        """The stream whose request is with the loop, until its reply is."""
        self._request: memoryview = memoryview(b"")
        """What the loop has not taken yet of that request."""
        self._aside: dict[int, int] = {}
        """The streams of reads that wait, by the numbers of the reads."""
        self._taken_up: int | None = None
        """One of them whose reply is the next."""
        self._is_held = False
        """Whether the loop has no room for more."""
        self._reply_stream: int | None = None
        self._rest: deque[memoryview] = deque()
        """What the library does not have yet of a reply."""
        self._rest_size = 0
        self._is_due = False

    @property
    def has_more(self) -> bool:
        """Whether the loop does not have all of a stream yet."""
        return bool(self._request)

    # --- the library's side ---

    def datagram_received(self, data: bytes | str, addr: Any) -> None:
        """A datagram came: the first one of a connection asks for a place."""
        if self._is_over:
            # The library still answers what is under way.
            super().datagram_received(data, addr)
            return
        if not self._is_known and not self._ask_for_place(addr):
            return
        if not self.is_stranger:
            self._stranger_size = 0
        else:
            self._stranger_size += len(data)
            if self._stranger_size > self._stranger_size_max:
                self._refuse(f"more than {self._stranger_size_max} bytes of datagrams before a login")
                return
        super().datagram_received(data, addr)
        self._continue_reply()

    def _ask_for_place(self, address: Any) -> bool:
        host, port = address[:2]
        connections = self._shared.connections
        if not self._is_welcome or not connections.admit(host):
            self._is_over = True
            self._connection_terminated_handler()
            return False
        self.host, self._address = host, f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._is_known = True
        connections.add(self)
        deadline = self._shared.services.settings.handshake_deadline / _SECOND
        self._handshake_timer = self._loop.call_later(deadline, self.abort)
        return True

    def _stop_handshake_timer(self) -> None:
        """Stop the timer, which would keep a lost connection in memory."""
        if self._handshake_timer is not None:
            self._handshake_timer.cancel()
            self._handshake_timer = None

    def _handle_timer(self) -> None:
        super()._handle_timer()
        self._continue_reply()

    def quic_event_received(self, event: QuicEvent) -> None:
        """Something happened on the connection."""
        if isinstance(event, ConnectionTerminated):
            self._log_violation()
            self._lost()
        elif self._is_over:
            return
        elif isinstance(event, StreamDataReceived):
            self._stream_received(event)
        elif isinstance(event, StreamReset):
            self._dropped(event.stream_id)
        elif isinstance(event, StopSendingReceived):
            self._stop_sending(event.stream_id)
        elif isinstance(event, HandshakeCompleted):
            self._stop_handshake_timer()
            session = self._shared.sessions.open(Transport.QUIC, self._address)
            self.loop = QuicSessionLoop(self._shared.services, session, self)

    def _stream_received(self, event: StreamDataReceived) -> None:
        loop = self.loop
        if loop is None or event.stream_id % 4:
            # Not before the handshake is done, and only on streams that go both ways and that the client began.
            return
        now = self._shared.services.clock.monotonic()
        try:
            self.requests.received(event.stream_id, event.data, now, is_stranger=loop.session.user_id is None)
        except StreamRefused as refusal:
            self._refuse(str(refusal))
            return
        if event.end_stream:
            self.requests.ended(event.stream_id)
            self._serve()

    def _dropped(self, stream: int) -> None:
        """The client has given a stream up. Ours ends too: it would count among those that the client has open."""
        self.requests.dropped(stream)
        if self._quic._stream_can_send(stream):
            self._quic.reset_stream(stream, 0)
            self._transmit_soon()

    def _stop_sending(self, stream: int) -> None:
        """The client does not want the rest of a reply."""
        if self._rest and stream == self._reply_stream:
            self._rest.clear()
            self._rest_size = 0

    # --- requests ---

    def _serve(self) -> None:
        """Give requests to the loop, one after the other, as long as it takes them."""
        loop = self.loop
        while loop is not None and not self._is_over and not self._is_held:
            if self._stream is None:
                if not loop.is_idle:
                    # It still sends the reply before.
                    return
                request = self.requests.next()
                if request is None:
                    return
                self._stream, self._request = request[0], memoryview(request[1])
            if self._request:
                self._pass_on(loop)
            elif loop.is_idle:
                # It has taken the request, and has nothing to say.
                self.requests.passed_on()
                self._finish_stream(self._stream)
            else:
                return

    def _pass_on(self, loop: SessionLoop) -> None:
        room = loop.room()
        piece = self._request[: len(room)]
        self._request = self._request[len(piece) :]
        room[: len(piece)] = piece
        if not self._request:
            self.requests.passed_on()
        loop.received(len(piece))
        if not self._request and not self._is_over and self._stream is not None and loop.frame_since is not None:
            self._refuse("a stream ended in the middle of a request")

    def _serve_later(self) -> None:
        """In the next turn: the loop may not be called from inside itself."""
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._serve_now)

    def _serve_now(self) -> None:
        self._is_due = False
        self._serve()

    # --- the loop's side ---

    def send(self, buffers: Sequence[Buffer]) -> bool:
        """Send a reply on the stream of its request; True if all of it is on its way."""
        stream, self._taken_up = self._taken_up, None
        if stream is None and self._stream is not None:
            stream, self._stream = self._stream, None
            self._request = memoryview(b"")
            self.requests.passed_on()
        if stream is None or self._is_over:
            # Nobody asked, so there is no stream for it: the reason for the close has to do.
            return True
        self._reply_stream = stream
        self._rest.extend(memoryview(buffer).cast("B") for buffer in buffers if len(buffer))
        self._rest_size = sum(map(len, self._rest))
        self._send_rest()
        self._serve_later()
        if not self.unsent_size:
            return True
        self.note_left_size()
        self._shared.connections.note_unread(self)
        return False

    def set_aside(self, number: int) -> None:
        """The request that was passed on last is a read that waits. Its stream gets its reply later."""
        assert self._stream is not None, "the request came on it"
        self._aside[number], self._stream = self._stream, None
        self._serve_later()

    def take_up(self, number: int) -> None:
        """The next reply is to this read."""
        self._taken_up = self._aside.pop(number)

    def _send_rest(self) -> None:
        """Give the library as much of the reply as it should have."""
        quic, stream = self._quic, self._reply_stream
        assert stream is not None, "there is a reply"
        while self._rest and quic.get_send_buffer_size(stream) < _CHUNK_SIZE:
            piece = self._rest.popleft()
            if len(piece) > _CHUNK_SIZE:
                self._rest.appendleft(piece[_CHUNK_SIZE:])
                piece = piece[:_CHUNK_SIZE]
            self._rest_size -= len(piece)
            if quic._stream_can_send(stream):
                quic.send_stream_data(stream, piece, end_stream=not self._rest)
            self.transmit()

    def _finish_stream(self, stream: int) -> None:
        """A stream without a request gets no reply."""
        self._stream = None
        if self._quic._stream_can_send(stream):
            self._quic.send_stream_data(stream, b"", end_stream=True)
            self._transmit_soon()

    def _continue_reply(self) -> None:
        """The client may have read on."""
        loop = self.loop
        if loop is None or loop.unsent_since is None or self._is_over:
            return
        self._send_rest()
        if not self.unsent_size:
            self._shared.connections.note_read(self)
            loop.sent()
            self._serve_later()
            if self._close_reason is not None:
                self.close(self._close_reason)

    def reserved_by_sender(self, now: int) -> tuple[int, int] | None:
        """The rate in bytes per second at which a large request arrives, and its reserved memory."""
        return self.requests.reserved_by_sender(now) or super().reserved_by_sender(now)

    @property
    def unsent_size(self) -> int:
        """Bytes of the reply that were not sent yet."""
        if self._reply_stream is None:
            return 0
        return self._rest_size + self._quic.get_send_buffer_size(self._reply_stream)

    def acknowledge(self) -> None:
        """The library does so in time."""

    def pause(self) -> None:
        """Pass nothing more on for now."""
        self._is_held = True

    def resume(self) -> None:
        """Receive requests again."""
        self._is_held = False
        self._serve_later()

    def finish(self, reason: str = "") -> None:
        """Close: the rest of the request is here already."""
        self.close(reason)

    # --- the end ---

    def close(self, reason: str = "") -> None:
        """Send what is left, then close."""
        if self._is_over:
            return
        if self._rest:
            self._close_reason = reason
        elif self._reply_stream is not None:
            self._loop.call_later(_LINGER, self._end, reason)
        else:
            self._end(reason)

    def abort(self) -> None:
        """Close now, whatever is left."""
        self._end("")

    def _refuse(self, reason: str) -> None:
        self._log_cut_off(reason)
        self._end(reason, _REFUSED)

    def _log_violation(self) -> None:
        """What the client did against the protocol, if that is why the library ended the connection."""
        core = self._quic._core
        error = None if core is None or self._is_over else core.local_error
        if error is not None:
            self._log_cut_off(error[2])

    def _log_cut_off(self, reason: str) -> None:
        if self.loop is None:
            _log.info("a client at %s cut off during its handshake: %s", self._address, reason)
        else:
            _log.info("client %d at %s cut off: %s", self.loop.session.client_id, self._address, reason)

    def _end(self, reason: str, code: int = 0) -> None:
        if not self._is_over:
            self._is_over = True
            self._quic.close(code, reason_phrase=reason)
            self.transmit()
            # Later: the loop may be what closes the connection.
            self._loop.call_soon(self._lost)

    def _lost(self) -> None:
        """The connection is gone. May be repeated."""
        if self._is_lost:
            return
        self._is_lost = self._is_over = True
        self._stop_handshake_timer()
        self._rest.clear()
        self._rest_size = 0
        self.requests.close()
        if self.loop is not None:
            self.loop.lost()
            self._shared.sessions.close(self.loop.session)
        self._shared.connections.remove(self)


class QuicListener:
    """One UDP socket. Its connections are kept with those of all other transports."""

    def __init__(self, settings: QuicSettings, shared: QuicServices, certificate: bytes, key: bytes) -> None:
        """``certificate`` and ``key`` are PEM."""
        self._settings = settings
        self._shared = shared
        self._configuration = QuicConfiguration(
            is_client=False,
            idle_timeout=settings.idle_timeout / _SECOND,
            max_data=WINDOW_SIZE,
            max_stream_data=WINDOW_SIZE,
        )
        self.use_certificate(certificate, key)
        self._transport: asyncio.DatagramTransport | None = None
        self._is_closed = False

    def use_certificate(self, certificate: bytes, key: bytes) -> None:
        """New connections get this one."""
        self._configuration.load_cert_chain(certificate, key)

    async def start(self) -> tuple[str, int]:
        """Listen. Return the actual address."""
        # The library warns of every client that closes its connection.
        logging.getLogger("quic").setLevel(logging.ERROR)
        loop = asyncio.get_running_loop()
        places = await loop.getaddrinfo(
            self._settings.host, self._settings.port, type=socket.SOCK_DGRAM, flags=socket.AI_PASSIVE
        )
        family, _, _, _, address = places[0]
        bound = socket.socket(family, socket.SOCK_DGRAM)
        try:
            bound.setblocking(False)
            bound.bind(address)
        except OSError:
            bound.close()
            raise
        self._transport, _ = await loop.create_datagram_endpoint(self._make_server, sock=bound)
        host, port = self._transport.get_extra_info("sockname")[:2]
        return host, port

    def _make_server(self) -> QuicServer:
        server = QuicServer(configuration=self._configuration, create_protocol=self._make_client)
        # In place of the library's own, which are expensive to check.
        server._retry = RetryTokens(self._shared.services.clock, self._shared.draw)  # type: ignore[assignment]
        return server

    def _make_client(self, quic: QuicConnection, stream_handler: Any = None) -> QuicClient:
        return QuicClient(quic, self._shared, stream_handler, is_welcome=not self._is_closed)

    def close(self) -> None:
        """Accept nobody any more: those who are here still need the socket. May be repeated."""
        self._is_closed = True

    def release(self) -> None:
        """All connections are gone. May be repeated."""
        if self._transport is not None:
            self._transport.close()
            self._transport = None
