"""One request over HTTP and its answer: reading the body within limits, and sending without waiting for ever."""

import asyncio
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, MutableMapping, Sequence
from contextlib import AsyncExitStack, aclosing
from functools import cached_property
from itertools import count
from typing import Any
from urllib.parse import parse_qsl

import msgspec
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

from courser.broker.access.sessions import Session
from courser.model.buffers import Buffer
from courser.model.clock import Clock
from courser.model.memory_ledger import MemoryLedger
from courser.model.trace_context import TraceContext, trace_context_of
from courser.transports.http_body import BodyMemory
from courser.transports.http_connection import CYCLE, SEAT, HttpSeat
from courser.transports.request_memory import private_memory
from courser.transports.settings import ConnectionSettings
from courser.wire.rest_fields import RestRefused

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

_SECOND = 1_000_000
_PIECE_SIZE = 256 * 1024
"""Bytes that are handed to the connection at once: the rest of a large reply waits until the client reads."""
_SMALL_SIZE = 16 * 1024
"""A body that the connection's buffer takes at once: there is nothing to wait for behind it."""
_BAD_REQUEST, _REQUEST_TIMEOUT, _TOO_LARGE, _UNSUPPORTED, _UNAVAILABLE = 400, 408, 413, 415, 503
_NO_CONTENT = 204
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")
_HEAD = b"%b%bx-request-id: %b\r\n\r\n"
_CONTENT_TYPE_LINE, _CONTENT_LENGTH_LINE = b"content-type: %b\r\n", b"content-length: %d\r\n"
_CHUNKED_LINE, _CLOSE_LINE = b"transfer-encoding: chunked\r\n", b"connection: close\r\n"
TEXT_TYPE = "text/plain; charset=utf-8"


class ClientGone(Exception):
    """The client has closed the connection: nobody reads an answer."""


class Answer(msgspec.Struct, frozen=True):
    """What is sent. Not a dataclass, because one is created for each request."""

    status: int
    body: bytes = b""
    content_type: str | None = None
    headers: Mapping[str, str] = {}
    rest: Sequence[bytes] = ()
    """What follows the body, if it is large and made in parts."""
    pieces: AsyncGenerator[bytes, None] | None = None
    """A body whose size is not known, instead of ``body``."""
    closes: bool = False
    """Whether the connection is closed after it."""


def text_answer(status: int, text: str, headers: Mapping[str, str] | None = None, *, closes: bool = False) -> Answer:
    """A sentence."""
    return Answer(status, text.encode(), TEXT_TYPE, headers or {}, closes=closes)


class RequestIds:
    """Names for requests that have none: unique, also across restarts."""

    def __init__(self, draw: Callable[[int], bytes]) -> None:
        self._prefix = draw(8).hex()
        self._numbers = count(1)

    def name(self) -> str:
        """A new name."""
        return f"{self._prefix}{next(self._numbers):016x}"


class Exchange:
    """A request as it comes in."""

    def __init__(
        self,
        seat: HttpSeat,
        method: str,
        target: tuple[bytes, bytes],
        headers: Sequence[tuple[bytes, bytes]],
        settings: ConnectionSettings,
        ids: RequestIds,
        *,
        whole_body: bytes | None = None,
    ) -> None:
        """``target`` is the path and the query. ``whole_body``: the body, if it came together with the head."""
        self.seat = seat
        self.method = method
        self.path, self._query_string = target
        self.headers: dict[bytes, bytes] = dict(headers)
        sent_id = self.headers.get(b"x-request-id")
        has_name = sent_id is not None and _REQUEST_ID.fullmatch(sent_id)
        self.request_id = sent_id.decode() if has_name and sent_id is not None else ids.name()
        """What the reply and the log call the request: as the client does, if that is harmless."""
        self.cycle: RequestResponseCycle | None = None
        """What uvicorn knows about it. None while a request that came in one piece has not waited for anything."""
        self._whole_body = whole_body
        self._query: dict[str, str] | None = None
        self.is_private = False
        """Whether the answer is for one user of a browser, and must not be kept."""
        self.session: Session | None = None
        """Of a request that is a command."""
        self._settings = settings
        self._memory: BodyMemory | None = None
        self._is_body_complete = False

    @classmethod
    def of(cls, scope: Scope, settings: ConnectionSettings, ids: RequestIds) -> "Exchange":
        """A request as ASGI describes it."""
        state = scope["state"]
        target = scope["raw_path"], scope["query_string"]
        exchange = cls(state[SEAT], scope["method"], target, scope["headers"], settings, ids)
        exchange.cycle = state[CYCLE]
        return exchange

    @property
    def address(self) -> str:
        """``ip:port`` of the client."""
        return self.seat.address

    @property
    def scheme(self) -> str:
        """``https`` with TLS, otherwise ``http``."""
        return self.seat.protocol.scheme or "http"

    @property
    def port(self) -> int:
        """On which the server listens."""
        return (self.seat.protocol.server or ("", 0))[1] or 0

    @property
    def _known_cycle(self) -> RequestResponseCycle:
        assert self.cycle is not None, "it is known from the first wait on"
        return self.cycle

    @property
    def trace(self) -> TraceContext | None:
        """The trace that the request belongs to, if it names one."""
        if b"traceparent" not in self.headers:
            return None
        return trace_context_of(self.header(b"traceparent"), self.header(b"tracestate"))

    def header(self, name: bytes) -> str:
        """A header, or an empty text."""
        return self.headers.get(name, b"").decode("latin-1")

    @cached_property
    def held(self) -> AsyncExitStack:
        """What is given back when the answer is sent."""
        return AsyncExitStack()

    @property
    def query(self) -> dict[str, str]:
        """The query; the last value of each name. Raises ``RestRefused``."""
        if self._query is None:
            self._query = dict(self.query_pairs())
        return self._query

    def query_pairs(self) -> list[tuple[str, str]]:
        """All names and values of the query. Raises ``RestRefused``."""
        if not self._query_string:
            return []
        try:
            text = self._query_string.decode("ascii")
            if "%" not in text and "+" not in text:
                # Much faster, and the same.
                return [pair.partition("=")[::2] for pair in text.split("&") if pair]
            return parse_qsl(text, keep_blank_values=True, errors="strict")
        except ValueError:
            raise RestRefused(_BAD_REQUEST, "invalid query: it is not UTF-8") from None

    # --- the body ---

    def whole_body(self, size_max: int, room_size: int = 0) -> Buffer | None:
        """The body behind ``room_size`` free bytes, if it came with the head. It is too small to count as memory."""
        body = self._whole_body
        if body is None:
            return None
        self._check_head(size_max)
        if len(body) > size_max:
            raise _too_large(size_max)
        self._is_body_complete = True
        if not room_size:
            return body
        whole = bytearray(room_size)
        whole += body
        return whole

    async def read_body(self, size_max: int, memory: MemoryLedger, clock: Clock, room_size: int = 0) -> Buffer:
        """The whole body behind ``room_size`` free bytes.

        Raises ``RestRefused`` as soon as it is too large or too slow, and ``ClientGone``.
        """
        whole = self.whole_body(size_max, room_size)
        if whole is not None:
            return whole
        declared_size = self._check_head(size_max)
        self._memory = self.seat.receiving = BodyMemory(memory, clock)
        try:
            return await self._receive_body(size_max, declared_size, self._memory, room_size)
        finally:
            self.seat.receiving = None
            self.seat.protocol.stop_receiving()

    def _check_head(self, size_max: int) -> int | None:
        """Refuse a body because of what the head says about it. The declared size, if there is one."""
        headers = self.headers
        if b"content-encoding" in headers and headers[b"content-encoding"].lower() not in (b"", b"identity"):
            # Little that is sent could become much.
            raise RestRefused(_UNSUPPORTED, "the body must not be compressed: Content-Encoding is not supported")
        declared = headers.get(b"content-length")
        if declared is None:
            return None
        declared_size = int(declared)
        if declared_size > size_max:
            raise _too_large(size_max)
        return declared_size

    async def _receive_body(
        self, size_max: int, declared_size: int | None, memory: BodyMemory, room_size: int
    ) -> Buffer:
        body = bytearray(room_size)
        loop = asyncio.get_running_loop()
        patience = self._settings.frame_deadline / _SECOND
        deadline = loop.time() + patience
        while not self._is_body_complete:
            try:
                async with asyncio.timeout_at(deadline):
                    message: Mapping[str, Any] = await self._known_cycle.receive()
            except TimeoutError:
                raise RestRefused(_REQUEST_TIMEOUT, "the body did not arrive in time") from None
            if message["type"] == "http.disconnect":
                raise ClientGone
            piece = message.get("body", b"")
            size = len(body) - room_size + len(piece)
            if size > size_max:
                raise _too_large(size_max)
            # The time that it waits for memory is not the client's fault.
            began = loop.time()
            if not memory.has_room(size):
                try:
                    async with asyncio.timeout(patience):
                        await memory.make_room(size, size_max if declared_size is None else declared_size)
                except TimeoutError:
                    raise RestRefused(_UNAVAILABLE, "the server is busy with large requests; try again") from None
            self._is_body_complete = not message.get("more_body", False)
            if self._is_body_complete and not room_size and not body:
                # Most bodies come in one piece.
                return bytes(piece)
            body += piece
            # Every byte earns time, but never more than the patience.
            earned = deadline + (loop.time() - began) + len(piece) / self._settings.frame_rate_min
            deadline = min(earned, loop.time() + patience)
            if declared_size is not None and memory.covers(declared_size) and not self._is_body_complete:
                return await self._receive_rest(body, room_size + declared_size, room_size, deadline)
        return body

    async def _receive_rest(self, begun: bytearray, whole_size: int, room_size: int, deadline: float) -> Buffer:
        """The rest of a body for which there is memory. It goes to its place, with no step here per piece."""
        loop, cycle, protocol = asyncio.get_running_loop(), self._known_cycle, self.seat.protocol
        # More may have come in while the body waited for memory.
        begun += cycle.body
        cycle.body = bytearray()
        body = private_memory(whole_size)
        body[: len(begun)] = begun
        if cycle.more_body:
            protocol.receive_into(body[room_size:], len(begun) - room_size)
        counted_size = len(begun) - room_size
        while cycle.more_body and not cycle.disconnected:
            try:
                async with asyncio.timeout_at(deadline):
                    await cycle.message_event.wait()
                    cycle.message_event.clear()
            except TimeoutError:
                arrived_size = protocol.received_size
                if arrived_size == counted_size:
                    raise RestRefused(_REQUEST_TIMEOUT, "the body did not arrive in time") from None
                earned = deadline + (arrived_size - counted_size) / self._settings.frame_rate_min
                deadline = min(earned, loop.time() + self._settings.frame_deadline / _SECOND)
                counted_size = arrived_size
        if cycle.disconnected:
            raise ClientGone
        self._is_body_complete = True
        return body

    @property
    def has_to_release(self) -> bool:
        """Whether ``release`` has something to do."""
        return self._memory is not None or "held" in self.__dict__

    async def release(self) -> None:
        """The answer is sent: nothing is needed any more."""
        if self._memory is not None:
            self._memory.close()
            self._memory = None
        if "held" in self.__dict__:
            await self.held.aclose()

    async def wait_for_disconnect(self) -> None:
        """Return when the client has closed the connection. Not before the body is read."""
        while (await self._known_cycle.receive())["type"] != "http.disconnect":
            pass

    # --- the answer ---

    async def send(self, answer: Answer, lines: bytes = b"") -> None:
        """Send an answer, with these lines in its head. A client that does not read it loses the connection."""
        body, rest = (b"", ()) if self.method == "HEAD" else (answer.body, answer.rest)
        protocol = self.seat.protocol
        if answer.pieces is None and not rest and len(body) <= _SMALL_SIZE and protocol.is_writable:
            protocol.reply(self.cycle, self._head(answer, lines) + body)
            return
        # A request that began outside a task must be in one to wait with a timeout.
        await asyncio.sleep(0)
        patience = self._settings.send_deadline / _SECOND
        cycle = self._known_cycle
        size = len(body) + sum(map(len, rest)) if answer.pieces is None else None
        async with asyncio.timeout(patience):
            await cycle.flow.drain()
        protocol.begin_reply(cycle, self._head(answer, lines), size)
        if answer.pieces is not None:
            async with aclosing(answer.pieces) as pieces:
                async for piece in pieces:
                    await self._send_body(piece, patience)
        else:
            for part in (body, *rest):
                await self._send_body(part, patience)
        async with asyncio.timeout(patience):
            await cycle.send({"type": "http.response.body", "body": b"", "more_body": False})

    def _head(self, answer: Answer, lines: bytes) -> bytes:
        if answer.headers:
            lines += b"".join(head_line(name, value) for name, value in answer.headers.items())
        if answer.content_type is not None:
            lines += _CONTENT_TYPE_LINE % answer.content_type.encode()
        if answer.pieces is not None:
            lines += _CHUNKED_LINE
        elif answer.status != _NO_CONTENT:
            lines += _CONTENT_LENGTH_LINE % (len(answer.body) + sum(map(len, answer.rest)))
        cycle = self.cycle
        if cycle is not None:
            cycle.keep_alive = cycle.keep_alive and not answer.closes
            if not cycle.keep_alive:
                lines += _CLOSE_LINE
        return _HEAD % (STATUS_LINE[answer.status], lines, self.request_id.encode())

    async def _send_body(self, body: bytes, patience: float) -> None:
        """Return when the connection has taken all of it but the last pieces."""
        cycle = self._known_cycle
        for start in range(0, len(body), _PIECE_SIZE):
            piece = body[start : start + _PIECE_SIZE]
            async with asyncio.timeout(patience):
                await cycle.send({"type": "http.response.body", "body": piece, "more_body": True})


def head_line(name: str, value: str) -> bytes:
    """A header."""
    assert value.isprintable(), "a header has one line"
    return f"{name}: {value}\r\n".encode("latin-1")


def _too_large(size_max: int) -> RestRefused:
    return RestRefused(_TOO_LARGE, f"the body is larger than the {size_max} bytes that http.max_request_size allows")
