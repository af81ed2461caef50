"""One TCP connection to a server: sends requests and receives replies in the same order. Not reused after a failure.

A large reply is received into its own memory, to which the reply refers: nothing is copied.
"""

import asyncio
import os
import ssl
import struct
from collections import deque
from collections.abc import Sequence
from typing import cast

from courser.api.commands import Command, Ping
from courser.api.replies import Reply
from courser.client.argument_checks import wrong_type
from courser.client.receiving import ReadPatience, ReceiveMemory
from courser.client.targets import Target
from courser.errors import ConnectionFailed, CourserError, ErrorCode, InvalidRequest, TimedOut, TooLarge
from courser.model.buffers import Buffer
from courser.wire.reading import Malformed
from courser.wire.vsr_client import SessionEnded, VsrClientCodec
from courser.wire.vsr_headers import FRAME_SIZE_MAX

_BASE_SIZE = 64 * 1024
"""Size of the buffer for small replies. The part of a large reply that it contains is copied."""
_HEAD_SIZE = 256
_SLICE_SIZE = 512 * 1024
"""Bytes of a request passed to asyncio at a time: asyncio copies what the kernel does not accept at once."""

_WRONG_PEER = "is this a Courser or Iggy 0.9 server, and does it use TLS?"
_TLS_RECORDS = (b"\x15\x03", b"\x16\x03")
"""The first bytes of a server that expects TLS: an alert, or a handshake."""
_PRINTABLE = frozenset(range(32, 127)) | frozenset(b"\t\r\n")
_TEXT_SIZE = 4
"""Bytes of text that no frame of a server begins with: known releases begin with zeros."""


class _Pending:
    """A request without a reply so far."""

    __slots__ = ("command", "deadline", "future", "patience")

    def __init__(
        self, command: Command, future: "asyncio.Future[Reply | None]", deadline: float, patience: float
    ) -> None:
        self.command = command
        self.future = future
        self.deadline = deadline
        self.patience = patience
        """The seconds that it was given, for the error message."""


class Connection(asyncio.BufferedProtocol):
    """A connection. Requests may be sent without waiting for replies; replies arrive in order."""

    def __init__(self, address: str, request_timeout: float) -> None:
        self.address = address
        self._codec = VsrClientCodec(os.urandom(16))
        self._request_timeout = request_timeout
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._pending: deque[_Pending] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._outgoing: deque[memoryview] = deque()
        """Parts of requests that have not been passed to asyncio."""
        self._is_paused = False
        """Whether asyncio's buffer is full."""
        self._writable: asyncio.Future[None] | None = None
        """Awaited by requests while the buffer is full."""
        self.closed: asyncio.Future[None] = self._loop.create_future()
        """Done when the connection is closed."""
        self.error: CourserError | None = None
        """The reason why it was closed."""
        self.last_request = self._loop.time()
        self._memory = ReceiveMemory()
        self._base = self._buffer = self._memory.take(_BASE_SIZE)
        self._end = 0
        """Bytes of the buffer that are filled."""
        self._patience = ReadPatience(None)
        self._is_silent = True
        """Whether no frame has been received: the peer may be anything."""

    @property
    def frame_size_max(self) -> int:
        """Maximum bytes of a request. Known after a login."""
        return self._codec.frame_size_max

    # --- requests -------------------------------------------------------------------------------------

    def is_open(self) -> bool:
        """Whether the connection can be used."""
        return self.error is None and self._transport is not None

    @property
    def is_idle(self) -> bool:
        """Whether no reply is pending."""
        return not self._pending

    async def request(self, command: Command) -> Reply | None:
        """Send a command and wait for its reply.

        Raises:
            CourserError: the server rejected the command, or failed.
            ConnectionFailed: the connection broke. If the command was sent, it is not known whether it was processed.
        """
        await self.drained()
        return await self.begin(command)

    def greet(self, patience: float) -> "asyncio.Future[Reply | None]":
        """Send a ping, which every server answers at once. Without a reply in time, the connection fails."""
        answer = self._begin(Ping(), min(patience, self._request_timeout))
        # Not awaited if a request behind it reports the failure.
        answer.add_done_callback(lambda done: done.cancelled() or done.exception())
        return answer

    def begin(self, command: Command) -> "asyncio.Future[Reply | None]":
        """Send a command; the future gets its reply. Data that the kernel does not accept is kept in memory.

        Raises:
            InvalidRequest: the command does not fit into the protocol; nothing was sent.
            TypeError: a field of the command has another type; nothing was sent.
            TooLarge: the server does not accept so large a request; nothing was sent.
        """
        return self._begin(command, self._request_timeout)

    def _begin(self, command: Command, patience: float) -> "asyncio.Future[Reply | None]":
        if self.error is not None:
            raise self.error.with_traceback(None)
        assert self._transport is not None, "the connection is made before the first request"
        try:
            buffers = self._codec.encode(command)
        except UnicodeEncodeError:
            # This error already names the invalid text.
            raise
        except (struct.error, OverflowError, ValueError, TypeError, AttributeError) as error:
            if (wrong := wrong_type(command)) is not None:
                raise TypeError(f"cannot send {type(command).__name__}: {wrong}") from error
            reason = "a number is negative or too large, or a name is longer than 255 bytes"
            refusal = f"cannot send {type(command).__name__}: {reason}"
            raise InvalidRequest(ErrorCode.INVALID_COMMAND, refusal) from error
        size = sum(map(len, buffers))
        if size > self._codec.frame_size_max:
            raise too_large(f"this {type(command).__name__}", size, self._codec.frame_size_max)
        now = self._loop.time()
        # Long polls get more time.
        wait: float = getattr(command, "wait", 0) / 1_000_000
        future: asyncio.Future[Reply | None] = self._loop.create_future()
        self._pending.append(_Pending(command, future, now + patience + wait, patience))
        self.last_request = now
        if self._timer is None:
            self._timer = self._loop.call_at(self._pending[0].deadline, self._check_deadline)
        self._write(buffers)
        return future

    def _write(self, buffers: Sequence[Buffer]) -> None:
        # Pass the parts one by one: asyncio would join them, and the last part of a send is large.
        self._outgoing.extend(map(memoryview, buffers))
        self._hand_over()

    def _hand_over(self) -> None:
        """Pass waiting parts to asyncio while the kernel accepts them."""
        outgoing, transport = self._outgoing, self._transport
        while outgoing and not self._is_paused and transport is not None:
            buffer = outgoing.popleft()
            if len(buffer) > _SLICE_SIZE:
                outgoing.appendleft(buffer[_SLICE_SIZE:])
                buffer = buffer[:_SLICE_SIZE]
            transport.write(buffer)

    @property
    def is_writable(self) -> bool:
        """Whether the kernel accepts more data."""
        return self._writable is None

    async def drained(self) -> None:
        """Wait until the kernel accepts more data."""
        while self._writable is not None:
            await asyncio.shield(self._writable)

    def _check_deadline(self) -> None:
        self._timer = None
        if not self._pending:
            return
        late = self._pending[0]
        if late.deadline <= self._loop.time():
            reason = f"no reply to {type(late.command).__name__} within {late.patience:g} seconds"
            if self._is_silent:
                reason = f"no reply within {late.patience:g} seconds; {_WRONG_PEER}"
            self.fail(TimedOut(self.address, reason))
            return
        self._timer = self._loop.call_at(self._pending[0].deadline, self._check_deadline)

    # --- asyncio's side -------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do not derive from asyncio's classes.
        self._transport = cast(asyncio.Transport, transport)
        self._patience = ReadPatience(transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        """The buffer for the next bytes."""
        del sizehint
        return self._buffer[self._end :]

    def buffer_updated(self, nbytes: int) -> None:
        self._end += nbytes
        try:
            if self._buffer is self._base:
                self._take_frames()
                return
            left = len(self._buffer) - self._end
            self._patience.expect(left)
            if not left:
                self._is_silent = False
                frame = self._buffer
                self._buffer, self._end = self._base, 0
                self._answer(frame)
        except Malformed as error:
            self.fail(ConnectionFailed(self.address, error.reason))

    def _take_frames(self) -> None:
        """Process all complete frames in the base buffer, and prepare for the incomplete one."""
        buffer, start, end = self._base, 0, self._end
        while end - start >= _HEAD_SIZE:
            size = self._codec.frame_size(buffer[start:end])
            assert size is not None, "the header is complete"
            if end - start < size:
                if size > len(buffer):
                    self._buffer = large = self._memory.take(size)
                    large[: end - start] = buffer[start:end]
                    self._end = end - start
                    self._patience.expect(size - self._end)
                    return
                break
            self._is_silent = False
            # The buffer is reused, so the reply gets its own memory.
            self._answer(memoryview(bytes(buffer[start : start + size])))
            start += size
        if self._is_silent:
            self._check_peer(buffer[:end])
        if start:
            rest = end - start
            buffer[:rest] = bytes(buffer[start:end])
            self._end = rest

    def _check_peer(self, head: memoryview) -> None:
        """Notice other protocols by their first bytes, which are too few for a frame. Raises ``Malformed``."""
        if bytes(head[:2]) in _TLS_RECORDS:
            raise Malformed("the server expects TLS: connect with tls=true")
        if len(head) >= _TEXT_SIZE and all(byte in _PRINTABLE for byte in head):
            line = bytes(head).decode().splitlines()[0]
            raise Malformed(f"this is not a Courser or Iggy 0.9 server: its reply begins with {line[:40]!r}")

    def _answer(self, frame: memoryview) -> None:
        if not self._pending:
            self._unasked(frame)
            return
        pending = self._pending.popleft()
        future = pending.future
        try:
            reply = self._codec.decode(pending.command, frame)
        except SessionEnded as ended:
            # An eviction, not a reply: the request was not processed.
            self._pending.appendleft(pending)
            self.fail(ConnectionFailed(self.address, str(ended.error)))
        except CourserError as error:
            if isinstance(error, Malformed):
                self._settle(future, ConnectionFailed(self.address, f"malformed reply: {error.reason}"))
                raise
            if error.code is ErrorCode.DISCONNECTED:
                # An eviction too: a server that stops disconnects clients that wait for messages.
                self._pending.appendleft(pending)
                self.fail(ConnectionFailed(self.address, str(error)))
                return
            self._settle(future, error)
        else:
            if not future.done():
                future.set_result(reply)

    def _unasked(self, frame: memoryview) -> None:
        """Handle an eviction: servers send nothing else without a request."""
        reason = self._codec.farewell(frame)
        self.fail(ConnectionFailed(self.address, reason))

    def _settle(self, future: "asyncio.Future[Reply | None]", error: Exception) -> None:
        if not future.done():
            future.set_exception(error)

    def pause_writing(self) -> None:
        """The buffer is full: the server reads more slowly than this client writes."""
        self._is_paused = True
        if self._writable is None:
            self._writable = self._loop.create_future()

    def resume_writing(self) -> None:
        """The kernel accepts more data."""
        self._is_paused = False
        self._hand_over()
        if self._is_paused:
            return
        writable, self._writable = self._writable, None
        if writable is not None and not writable.done():
            writable.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection was closed by either side."""
        reason = "the server closed the connection"
        if exc is not None:
            reason = f"the connection broke ({getattr(exc, 'strerror', None) or exc})"
        if self._is_silent:
            reason += f" without a reply; {_WRONG_PEER}"
        # Closed already: an abort now would make asyncio close it a second time.
        self._transport = None
        self.fail(ConnectionFailed(self.address, reason))

    # --- the end --------------------------------------------------------------------------------------

    def fail(self, error: CourserError) -> None:
        """Close the connection and fail all pending requests with ``error``. May be called more than once."""
        if self.error is None:
            self.error = error
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._pending:
            self._settle(self._pending.popleft().future, self.error)
        self._outgoing.clear()
        self.resume_writing()
        if self._transport is not None:
            self._transport.abort()
        if not self.closed.done():
            self.closed.set_result(None)

    def close(self) -> None:
        if self.error is None:
            self.error = ConnectionFailed(self.address, "this client closed the connection")
        if self._transport is not None:
            self._transport.close()
        self.fail(self.error)


def too_large(what: str, size: int, size_max: int) -> TooLarge:
    """The error for a request that is too large. A limit below the protocol's is the server's setting."""
    return TooLarge(what, size, size_max, "tcp.frame_size_max" if size_max < FRAME_SIZE_MAX else None)


async def open_connection(target: Target) -> Connection:
    """Connect, without a login.

    Raises:
        ConnectionFailed: no server listens at the address, or the TLS handshake failed.
    """
    loop = asyncio.get_running_loop()
    address = target.address
    tls = _tls_of(target)
    try:
        async with asyncio.timeout(target.connect_timeout):
            _, connection = await loop.create_connection(
                lambda: Connection(address, target.request_timeout),
                target.host,
                target.port,
                ssl=tls,
                server_hostname=(target.tls_domain or target.host) if tls is not None else None,
            )
    except TimeoutError as error:
        raise ConnectionFailed(address, f"no connection within {target.connect_timeout:g} seconds") from error
    except OSError as error:
        raise ConnectionFailed(address, f"cannot connect: {_reason(error)}") from error
    return connection


def _reason(error: OSError) -> str:
    """A short reason. The messages of asyncio repeat the address, or are empty."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the certificate is not trusted: {error.verify_message}"
    if not isinstance(error, ConnectionError):
        return error.strerror or str(error)
    if error.errno is None:
        return "TLS handshake failed; the server may not use TLS"
    return os.strerror(error.errno)


def _tls_of(target: Target) -> ssl.SSLContext | None:
    if not target.tls:
        return None
    try:
        context = ssl.create_default_context(cafile=target.tls_ca_file)
    except OSError as error:
        reason = f"cannot read the certificates in {target.tls_ca_file}: {error.strerror or error}"
        raise ConnectionFailed(target.address, reason) from error
    if not target.tls_verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
