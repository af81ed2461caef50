"""One TCP connection, with or without TLS: a thin shell around the session loop."""

import asyncio
import socket
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol, cast

from courser.broker.access.sessions import Session
from courser.model.buffers import Buffer
from courser.transports.connections import Connections, Conversation
from courser.transports.reply_progress import ReplyProgress
from courser.transports.services import Services
from courser.transports.session_loop import SessionLoop

_CHUNK_SIZE = 64 * 1024
"""Bytes of a reply that are encrypted at a time."""


class Receiver(Protocol):
    """Takes the bytes of a connection."""

    def room(self, size_hint: int = -1) -> memoryview:
        """Where the next bytes go, whatever the event loop says of their number."""

    def received(self, count: int) -> None:
        """So many bytes were put into the room."""


Assemble = Callable[[Services, Session, "TcpConnection"], tuple[Conversation, Receiver]]
"""Makes what happens on a connection, and what takes its bytes: the session loop for both, or a layer before it."""


def assemble_plain(services: Services, session: Session, connection: "TcpConnection") -> tuple[Conversation, Receiver]:
    """The loop takes the bytes as they come."""
    loop = SessionLoop(services, session, connection)
    return loop, loop


class Admission(Protocol):
    """Lets connections in, and is told when they are lost."""

    def let_in(self, connection: "TcpConnection", transport: asyncio.Transport) -> Session | None:
        """The session of a connection that was just made; None if it is not let in."""

    def forget(self, connection: "TcpConnection") -> None:
        """A connection is lost that was let in."""


class TcpConnection(ReplyProgress, asyncio.BufferedProtocol):
    """A connection without TLS. The kernel writes into the buffer of the session loop, or of the layer before it."""

    get_buffer: Callable[[int], memoryview]  # type: ignore[assignment] # a method of the base class
    """Where the next bytes go."""
    buffer_updated: Callable[[int], None]  # type: ignore[assignment]
    """Called when they came."""

    def __init__(
        self,
        services: Services,
        connections: Connections,
        admission: "Admission",
        assemble: Assemble = assemble_plain,
    ) -> None:
        super().__init__(services.settings)
        self._services = services
        self._connections = connections
        self._admission = admission
        self._assemble = assemble
        self._transport: asyncio.Transport | None = None
        self._is_writable = True
        self.host = "unknown"
        """The address of the client, without the port."""
        self.is_aborted = False
        self._held_replies = services.held_replies
        self.is_held = False
        """Whether a reply is held until the end of the turn."""

    # --- asyncio's side ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Admit the client if there is a free slot."""
        # uvloop's transports do not inherit from asyncio's.
        self._transport = transport = cast(asyncio.Transport, transport)
        # Reports at once when a reply does not fit into the kernel's buffer, because the next request waits for that. A
        # TLS transport pauses when it reaches its limit, not when it exceeds it. With limit 0 it would pause with
        # nothing to send, and would resume only after the next read.
        transport.set_write_buffer_limits(high=0 if transport.get_extra_info("sslcontext") is None else 1)
        session = self._admission.let_in(self, transport)
        if session is None:
            transport.abort()
            return
        self.loop, receiver = self._assemble(self._services, session, self)
        self.buffer_updated = receiver.received
        self.get_buffer = receiver.room
        # These are called for every request, so the event loop keeps them. It has looked them up before.
        transport.set_protocol(self)

    def eof_received(self) -> bool:
        """Handle the end of the client's data. Requests that can be answered at once are still answered."""
        self.send_held()
        return False

    def pause_writing(self) -> None:
        """The client reads more slowly than it is answered."""
        self._is_writable = False

    def resume_writing(self) -> None:
        """The kernel has everything."""
        self._is_writable = True
        if self.loop is not None:
            self._connections.note_read(self)
            self.loop.sent()

    def connection_lost(self, exc: Exception | None) -> None:
        """Handle the loss of the connection, whichever side closed it."""
        del exc
        if self.loop is not None:
            self.loop.lost()
            self._admission.forget(self)
        self._transport = None
        self._is_writable = False
        self._held_replies.forget(self)

    # --- moving to another process ---

    @property
    def descriptor(self) -> int:
        assert self._transport is not None, "the connection is open"
        number: int = self._transport.get_extra_info("socket").fileno()
        return number

    def let_go(self) -> None:
        """Close our copy of the socket, without an end for the client: another process has the connection now."""
        self._connections.remove(self)
        self.loop = None
        self.abort()

    # --- the session loop's side ---

    def send(self, buffers: Sequence[Buffer]) -> bool:
        """Send bytes. Returns True if the kernel has accepted all, or will get a copy at the end of the turn."""
        held = self._held_replies
        if (held.last is not self or self.is_held) and self._is_writable and held.hold(self, buffers):
            # If the kernel does not accept it then, the next reply waits.
            return True
        self.write(buffers)
        return self._is_writable or self._is_gone or self._note_unread()

    def write(self, buffers: Sequence[Buffer]) -> None:
        """Hand bytes to the kernel now."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if len(buffers) == 1:
            transport.write(buffers[0])
        else:
            transport.writelines(buffers)

    def send_held(self) -> None:
        """Send now what is held until the end of the turn."""
        if self.is_held:
            self._held_replies.send_all()

    @property
    def is_writable(self) -> bool:
        """Whether the kernel has all that was sent."""
        return self._is_writable

    @property
    def _is_gone(self) -> bool:
        """Whether nobody is left to read a reply: it would be waited for in vain."""
        return self._transport is None or self._transport.is_closing()

    def _note_unread(self) -> bool:
        self.note_left_size()
        self._connections.note_unread(self)
        return False

    @property
    def unsent_size(self) -> int:
        """Bytes that the kernel has not accepted yet."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def acknowledge(self) -> None:
        """Send an ACK now. Many clients do not send their next request before it, and the kernel delays it by 40 ms."""
        if self._transport is not None and not self._transport.is_closing():
            connection: socket.socket = self._transport.get_extra_info("socket")
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)

    def pause(self) -> None:
        """Stop receiving for now."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume(self) -> None:
        """Receive again, after a pause."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def finish(self, reason: str = "") -> None:
        """Tell the client that nothing more is sent; receive on. TLS cannot say that."""
        del reason
        self.send_held()
        if self._transport is not None and not self._transport.is_closing() and self._transport.can_write_eof():
            self._transport.write_eof()

    def close(self, reason: str = "") -> None:
        """Send the rest, then close. TCP cannot carry a reason."""
        del reason
        self.send_held()
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close now, without sending the rest."""
        self.is_aborted = True
        if self._transport is not None:
            self._transport.abort()


class TlsConnection(TcpConnection):
    """A connection with TLS. A large reply is encrypted in chunks as the client reads it.

    A TLS transport encrypts everything at once and hands it to a lower transport whose buffer is not visible. A whole
    reply there would look as if the kernel had accepted it, and no deadline or memory limit would apply.
    """

    def __init__(
        self,
        services: Services,
        connections: Connections,
        admission: "Admission",
        assemble: Assemble = assemble_plain,
    ) -> None:
        super().__init__(services, connections, admission, assemble)
        self._rest: deque[memoryview] = deque()
        """The part of a reply that is not encrypted yet."""
        self._rest_size = 0
        self._closes_behind = False
        self.handshake: asyncio.Task[None] | None = None
        """The handshake, until the connection is admitted."""
        self.has_begun = False
        """Whether the handshake has started."""

    @property
    def is_admitted(self) -> bool:
        """Whether the handshake succeeded and the client was let in."""
        return self.loop is not None

    @property
    def protocol(self) -> asyncio.BaseProtocol:
        """What gets the decrypted bytes."""
        return self

    def send(self, buffers: Sequence[Buffer]) -> bool:
        """Send bytes. Returns True if the kernel has accepted nearly all of them."""
        if self._rest or sum(map(len, buffers)) > _CHUNK_SIZE:
            return self._send_in_chunks(buffers)
        self.write(buffers)
        return self._is_writable or self._is_gone or self._note_unread()

    def _send_in_chunks(self, buffers: Sequence[Buffer]) -> bool:
        self._rest.extend(memoryview(buffer) for buffer in buffers)
        self._rest_size += sum(map(len, buffers))
        return self._send_rest() or self._note_unread()

    def _send_rest(self) -> bool:
        """Encrypt as much as the client reads. Returns True if that was all."""
        transport = self._transport
        if transport is None or transport.is_closing():
            self._rest.clear()
            self._rest_size = 0
            return True
        while self._rest and self._is_writable:
            piece = self._rest.popleft()
            if len(piece) > _CHUNK_SIZE:
                self._rest.appendleft(piece[_CHUNK_SIZE:])
                piece = piece[:_CHUNK_SIZE]
            self._rest_size -= len(piece)
            transport.write(piece)
        return not self._rest and self._is_writable

    def resume_writing(self) -> None:
        """Continue to send, because the client has read some of its reply."""
        self._is_writable = True
        if self._rest and not self._send_rest():
            return
        super().resume_writing()
        if self._closes_behind:
            super().close()

    @property
    def unsent_size(self) -> int:
        """Bytes that the kernel has not accepted yet."""
        return super().unsent_size + self._rest_size

    def close(self, reason: str = "") -> None:
        """Send the rest, then close."""
        if self._rest:
            self._closes_behind = True
        else:
            super().close(reason)

    def abort(self) -> None:
        """Close now, even during a handshake, without sending the rest."""
        super().abort()
        if self.handshake is not None and self.loop is None:
            self.handshake.cancel()

    def connection_lost(self, exc: Exception | None) -> None:
        """Handle the loss of the connection, whichever side closed it."""
        self._rest.clear()
        super().connection_lost(exc)
