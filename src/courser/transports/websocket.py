"""WebSocket between a TCP or TLS connection and the session loop, or a subscription.

At ``/``, the loop sees the stream of requests that the binary messages carry, and each of its replies becomes one
message. A request may share a message with others, or be spread over several, as Iggy 0.8 allows. At ``/subscribe``,
each text message is a request of a subscription in JSON. The library ``websockets`` answers the handshake; the frames
after it are read here (see ``websocket_frames``).
"""

import asyncio
import logging
from collections.abc import Sequence
from http import HTTPStatus
from typing import Protocol

import numpy as np
from websockets.http11 import Request, Response
from websockets.server import ServerProtocol

from courser.broker.access.sessions import Session
from courser.model.buffers import Buffer
from courser.transports.connections import Conversation
from courser.transports.services import Services
from courser.transports.session_loop import SessionLoop, SessionTransport
from courser.transports.subscription_loop import REQUEST_SIZE_MAX, SubscriptionLoop, SubscriptionServices
from courser.transports.websocket_frames import (
    CODE_SIZE,
    CloseCode,
    FrameHeader,
    Opcode,
    WebSocketRefused,
    close_frame,
    control_frame,
    message,
    read_header,
    unmask,
)

_log = logging.getLogger(__name__)

PATH = "/"
SUBSCRIPTION_PATH = "/subscribe"
_BUFFER_SIZE = 64 * 1024
_HANDSHAKE_SIZE_MAX = 16 * 1024
"""Bytes of the client's side of a handshake."""
_HANDSHAKE_END = b"\r\n\r\n"
_FRAME_COUNT_MAX = 64
"""Frames of one connection in a turn of the event loop: each may be empty, and cost as much time as a request."""
_LINGER = 1.0
"""Seconds for a client to read why it was refused, before the connection is closed with its bytes unread."""


class Carrier(SessionTransport, Protocol):
    """The connection that carries a WebSocket."""

    loop: Conversation | None

    @property
    def unsent_size(self) -> int:
        """Bytes that the kernel has not taken yet."""


class WebSocketLayer:
    """One connection: bytes in, requests to the loop; replies of the loop, messages out."""

    def __init__(
        self, services: Services, session: Session, carrier: Carrier, subscribing: SubscriptionServices | None = None
    ) -> None:
        self._carrier = carrier
        self._session = session
        self._size_max = services.settings.frame_size_max
        self._opcode = Opcode.BINARY
        """Of all messages."""
        self._subscribing = subscribing
        """None: there are no subscriptions."""
        self._subscription: SubscriptionLoop | None = None
        self.loop: SessionLoop | SubscriptionLoop = SessionLoop(services, session, self)
        self._buffer = np.empty(_BUFFER_SIZE, np.uint8).data
        self._start = self._end = 0
        """Of what was received and not passed on."""
        self._is_open = False
        """Whether the handshake is done."""
        self._is_over = False
        """Whether nothing more is received or sent."""
        self._has_said_goodbye = False
        """Whether the close frame is sent: nothing else may follow it."""
        self._is_held = False
        """Whether the loop has no room for more."""
        self._is_due = False
        """Whether there is more to do in the next turn of the event loop."""
        self._is_paused = False
        """Whether the connection below receives nothing: if either is so."""
        self._frame: FrameHeader | None = None
        """The frame whose payload is being received."""
        self._passed_size = 0
        """Bytes of its payload that the loop has."""
        self._message_size: int | None = None
        """Bytes of the message under way, as far as its frames were announced; None between messages."""
        self._is_ping_open = False
        """Whether the client has not answered the last ping."""

    # --- receiving ---

    def room(self, size_hint: int = -1) -> memoryview:
        """Where the next bytes go."""
        del size_hint
        return self._buffer[self._end :]

    def received(self, count: int) -> None:
        """So many bytes were put into the room."""
        self._end += count
        self._advance()

    def _advance(self) -> None:
        """Handle what is there, as far as the loop takes it."""
        try:
            if self._is_open or self._shake_hands():
                self._read_frames()
        except WebSocketRefused as refusal:
            self._refuse(refusal)
        if self._is_over:
            self._start = self._end
        if self._start == self._end:
            self._start = self._end = 0
        elif self._start:
            # The beginning of a header, or what the loop has no room for.
            left_size = self._end - self._start
            self._buffer[:left_size] = bytes(self._buffer[self._start : self._end])
            self._start, self._end = 0, left_size

    def _read_frames(self) -> None:
        count = 0
        while not self._is_held and not self._is_over:
            if self._frame is None:
                if count == _FRAME_COUNT_MAX:
                    self._go_on_later()
                    return
                count += 1
                if not self._begin_frame():
                    return
            elif not self._pass_on(self._frame):
                return

    def _begin_frame(self) -> bool:
        """Read a header, and all of a control frame. False if more bytes are needed."""
        frame = read_header(self._buffer[self._start : self._end])
        if frame is None:
            return False
        if frame.is_control:
            return self._handle_control(frame)
        self._check(frame)
        self._start += frame.size
        self._message_size = (self._message_size or 0) + frame.payload_size
        self._frame, self._passed_size = frame, 0
        return True

    def _check(self, frame: FrameHeader) -> None:
        if frame.opcode not in (self._opcode, Opcode.CONTINUATION):
            word, wanted = frame.opcode.name.lower(), self._opcode.name.lower()
            raise WebSocketRefused(
                CloseCode.UNSUPPORTED_DATA, f"{word} messages are not supported here: requests are {wanted} messages"
            )
        if (frame.opcode is Opcode.CONTINUATION) != (self._message_size is not None):
            raise WebSocketRefused(CloseCode.PROTOCOL_ERROR, "a fragment that does not belong to the message before it")
        size = (self._message_size or 0) + frame.payload_size
        if size > self._size_max:
            raise WebSocketRefused(
                CloseCode.MESSAGE_TOO_BIG, f"a message of {size} bytes, where {self._size_max} are allowed"
            )

    def _pass_on(self, frame: FrameHeader) -> bool:
        """Give the loop what has come of a payload. False if more bytes are needed."""
        left_size = frame.payload_size - self._passed_size
        if not left_size:
            self._frame = None
            if frame.is_final:
                self._message_size = None
                if self._subscription is not None:
                    self._subscription.message_ended()
            return True
        room = self.loop.room()
        size = min(left_size, self._end - self._start, len(room))
        if not size:
            return False
        unmask(self._buffer[self._start : self._start + size], room[:size], frame.mask, self._passed_size)
        self._start += size
        self._passed_size += size
        self.loop.received(size)
        return True

    def _handle_control(self, frame: FrameHeader) -> bool:
        start, end = self._start + frame.size, self._start + frame.size + frame.payload_size
        if end > self._end:
            return False
        payload = self._buffer[start:end]
        unmask(payload, payload, frame.mask, 0)
        self._start = end
        if frame.opcode is Opcode.CLOSE:
            self._say_goodbye(control_frame(Opcode.CLOSE, bytes(payload[:CODE_SIZE])))
            self._is_over = True
            self._carrier.close()
        elif frame.opcode is Opcode.PING and not self._has_said_goodbye and not self._carrier.unsent_size:
            # A client that does not read gets no pongs: they would pile up here.
            self._carrier.send((control_frame(Opcode.PONG, bytes(payload)),))
        elif frame.opcode is Opcode.PONG:
            self._is_ping_open = False
        return True

    # --- the handshake ---

    def _shake_hands(self) -> bool:
        """Answer the client's handshake, if it is there. Returns whether the connection is open."""
        head = bytes(self._buffer[self._start : self._end])
        size = head.find(_HANDSHAKE_END) + len(_HANDSHAKE_END)
        if size < len(_HANDSHAKE_END):
            if len(head) > _HANDSHAKE_SIZE_MAX:
                self._end_handshake(f"a handshake of more than {_HANDSHAKE_SIZE_MAX} bytes")
            return False
        protocol = ServerProtocol()
        protocol.receive_data(head[:size])
        for request in protocol.events_received():
            assert isinstance(request, Request), "nothing else comes before a handshake"
            answer = self._answer_handshake(protocol, request)
            protocol.send_response(answer)
            self._is_open = answer.status_code == HTTPStatus.SWITCHING_PROTOCOLS
        # An empty piece stands for the end. What is no HTTP at all gets no answer.
        if answer_data := [data for data in protocol.data_to_send() if data]:
            self._carrier.send(answer_data)
        self._start += size
        if not self._is_open:
            self._end_handshake(f"its WebSocket handshake failed: {protocol.handshake_exc or 'wrong path'}")
        return self._is_open

    def _answer_handshake(self, protocol: ServerProtocol, request: Request) -> Response:
        path = request.path.partition("?")[0]
        if path == PATH:
            return protocol.accept(request)
        if path == SUBSCRIPTION_PATH and self._subscribing is not None:
            answer = protocol.accept(request)
            if answer.status_code == HTTPStatus.SWITCHING_PROTOCOLS:
                self._begin_subscription(self._subscribing)
            return answer
        reason = f"The binary protocol is at {PATH}, subscriptions in JSON are at {SUBSCRIPTION_PATH}\n"
        return protocol.reject(HTTPStatus.NOT_FOUND, reason)

    def _begin_subscription(self, subscribing: SubscriptionServices) -> None:
        self._opcode, self._size_max = Opcode.TEXT, REQUEST_SIZE_MAX
        # The session loop has not received anything: nothing is left behind.
        self.loop.lost()
        self._subscription = self.loop = SubscriptionLoop(subscribing, self._session, self)
        self._carrier.loop = self.loop

    def _end_handshake(self, reason: str) -> None:
        self._cut_off(reason)
        self._linger()

    # --- the loop's side ---

    def send(self, buffers: Sequence[Buffer]) -> bool:
        """Send a reply; True if the kernel has all of it."""
        return self._has_said_goodbye or self._is_over or self._carrier.send(message(buffers, opcode=self._opcode))

    def ping(self) -> bool:
        """Ask the client for a sign of life. False if it has not answered the last time."""
        if self._is_ping_open:
            return False
        self._is_ping_open = True
        self._carrier.send((control_frame(Opcode.PING, b""),))
        return True

    def acknowledge(self) -> None:
        """Confirm now what has come."""
        self._carrier.acknowledge()

    def pause(self) -> None:
        """Pass nothing more on for now."""
        self._is_held = True
        self._pause_carrier()

    def resume(self) -> None:
        """Pass on what is here, then receive again."""
        self._is_held = False
        self._go_on_later()

    def _pause_carrier(self) -> None:
        if not self._is_paused:
            self._is_paused = True
            self._carrier.pause()

    def _go_on_later(self) -> None:
        """In the next turn: others come first, and the loop may not be called from inside itself."""
        self._pause_carrier()
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._go_on)

    def _go_on(self) -> None:
        self._is_due = False
        if not self._is_held:
            self._advance()
        if not self._is_held and not self._is_due:
            self._is_paused = False
            self._carrier.resume()

    def finish(self, reason: str = "") -> None:
        """Tell the client that nothing more is sent; receive on."""
        self._say_goodbye(_close_frame_for(reason))

    def close(self, reason: str = "") -> None:
        """Send what is left, then close."""
        self._say_goodbye(_close_frame_for(reason))
        self._is_over = True
        self._carrier.close()

    # --- the end ---

    def _say_goodbye(self, frame: bytes) -> None:
        if self._is_open and not self._has_said_goodbye:
            self._has_said_goodbye = True
            self._carrier.send((frame,))

    def _refuse(self, refusal: WebSocketRefused) -> None:
        self._cut_off(refusal.reason)
        self._say_goodbye(close_frame(refusal.code, refusal.reason))
        self._linger()

    def _cut_off(self, reason: str) -> None:
        _log.info("client %d at %s cut off: %s", self._session.client_id, self._session.address, reason)

    def _linger(self) -> None:
        """Close soon. Closed now, with bytes unread, it would be reset, and the client might never see the reason."""
        self._is_over = True
        self._carrier.finish()
        asyncio.get_running_loop().call_later(_LINGER, self._carrier.close)


def _close_frame_for(reason: str) -> bytes:
    return close_frame(CloseCode.POLICY_VIOLATION if reason else CloseCode.NORMAL, reason)


def assemble_websocket(
    services: Services, session: Session, connection: Carrier, *, subscribing: SubscriptionServices | None = None
) -> tuple[Conversation, WebSocketLayer]:
    """For the listener: a connection whose bytes are WebSocket frames."""
    layer = WebSocketLayer(services, session, connection, subscribing)
    return layer.loop, layer
