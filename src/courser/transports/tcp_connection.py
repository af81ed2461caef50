"""One TCP connection, with or without TLS: a thin layer around the session loop."""

import asyncio
from collections.abc import Callable, Sequence
from typing import cast

from courser.broker.sessions import Session
from courser.model.buffers import Buffer
from courser.transports.session_loop import Services, SessionLoop


class TcpConnection(asyncio.BufferedProtocol):
    """Receives directly into the session loop's buffer, without a copy."""

    def __init__(
        self,
        services: Services,
        open_session: Callable[["TcpConnection", asyncio.Transport], Session | None],
        on_lost: Callable[["TcpConnection"], None],
    ) -> None:
        self._services = services
        self._open_session = open_session
        self._on_lost = on_lost
        self._transport: asyncio.Transport | None = None
        self._is_writable = True
        self._left_size = 0
        """Bytes of the last reply that the kernel did not take at once."""
        self._looked_at_size = 0
        """Unsent bytes at the last check."""
        self._room: Callable[[], memoryview]
        self._received: Callable[[int], None]
        self.loop: SessionLoop | None = None
        """None if the connection was refused."""

    # --- asyncio's side ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Accept the client, if the limit allows it."""
        # uvloop's transports are not subclasses of asyncio's.
        self._transport = transport = cast(asyncio.Transport, transport)
        # Get notified as soon as a reply does not fit into the kernel's buffer: the next request waits for that. A TLS
        # transport pauses when its limit is reached, not when it is exceeded: at 0 it would pause with nothing to send,
        # and not resume before it reads from the client again.
        transport.set_write_buffer_limits(high=0 if transport.get_extra_info("sslcontext") is None else 1)
        session = self._open_session(self, transport)
        if session is None:
            transport.abort()
            return
        self.loop = SessionLoop(self._services, session, self)
        # Cached as attributes, because they are called for every request.
        self._room, self._received = self.loop.room, self.loop.received

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the next bytes go."""
        del sizehint
        return self._room()

    def buffer_updated(self, nbytes: int) -> None:
        """Bytes were received."""
        self._received(nbytes)

    def eof_received(self) -> bool:
        """The client sends nothing more. Received requests are still answered if that is possible without waiting."""
        return False

    def pause_writing(self) -> None:
        """The kernel's buffer is full, because the client reads too slowly."""
        self._is_writable = False

    def resume_writing(self) -> None:
        """The kernel has taken everything."""
        self._is_writable = True
        if self.loop is not None:
            self.loop.sent()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection was closed, by either side."""
        del exc
        if self.loop is not None:
            self.loop.lost()
            self._on_lost(self)
        self._transport = None

    # --- the session loop's side ---

    def send(self, buffers: Sequence[Buffer]) -> bool:
        """Send bytes; True if the kernel took all of them."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return True
        if len(buffers) == 1:
            transport.write(buffers[0])
        else:
            transport.writelines(buffers)
        if self._is_writable:
            return True
        self._left_size = self._looked_at_size = self.unsent_size
        return False

    @property
    def unsent_size(self) -> int:
        """Bytes that the kernel has not taken yet."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    @property
    def taken_size(self) -> int:
        """Bytes that were sent so far, of a reply that could not be sent at once."""
        return self._left_size - self.unsent_size

    def shows_life(self) -> bool:
        """Whether a request is running, or the client has read more of its reply since the last call."""
        loop = self.loop
        if loop is None or loop.unsent_since is None:
            return loop is not None and not loop.is_idle and loop.frame_since is None
        before, self._looked_at_size = self._looked_at_size, self.unsent_size
        return self._looked_at_size < before

    def pause(self) -> None:
        """Stop receiving."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume(self) -> None:
        """Resume receiving."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def close(self) -> None:
        """Send the remaining bytes, then close."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close now and discard unsent bytes."""
        if self._transport is not None:
            self._transport.abort()
