"""One request over HTTP and its answer: reading the body within limits, and sending without waiting for ever."""

import asyncio
import re
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing
from functools import cached_property
from http import HTTPStatus
from itertools import count
from urllib.parse import parse_qsl

import msgspec

from courser.broker.access.sessions import Session
from courser.model.buffers import Buffer
from courser.model.clock import Clock
from courser.model.memory_ledger import MemoryLedger
from courser.model.trace_context import TraceContext, trace_context_of
from courser.transports.frame_buffer import BASE_SIZE
from courser.transports.http_body import BodyMemory
from courser.transports.http_connection import HttpConnection, HttpRequest
from courser.transports.request_memory import private_memory
from courser.transports.settings import ConnectionSettings
from courser.wire.rest_fields import RestRefused

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
_STATUS_LINES = {each.value: f"HTTP/1.1 {each.value} {each.phrase}\r\n".encode() for each in HTTPStatus}
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
    """An answer that is a sentence."""
    return Answer(status, text.encode(), TEXT_TYPE, headers or {}, closes=closes)


class RequestIds:
    """Names for requests that have none: unique, also across restarts."""

    def __init__(self, draw: Callable[[int], bytes]) -> None:
        self._prefix = draw(8).hex()
        self._numbers = count(1)

    def name(self) -> str:
        """A new name for a request."""
        return f"{self._prefix}{next(self._numbers):016x}"


class Exchange(HttpRequest):
    """A request as it comes in, and its answer as it goes out."""

    is_private = False
    """Whether the answer is for one user of a browser, and must not be kept."""
    session: Session | None = None
    """Of a request that is a command."""
    _query: dict[str, str] | None = None
    _memory: BodyMemory | None = None

    def __init__(
        self,
        connection: HttpConnection,
        method: str,
        path: bytes,
        query: bytes,
        headers: Sequence[tuple[bytes, bytes]],
        settings: ConnectionSettings,
        ids: RequestIds,
    ) -> None:
        self.connection = connection
        self.method = method
        self.path = path
        self._query_string = query
        self.headers: dict[bytes, bytes] = dict(headers)
        sent_id = self.headers.get(b"x-request-id")
        has_name = sent_id is not None and _REQUEST_ID.fullmatch(sent_id)
        self.request_id = sent_id.decode() if has_name and sent_id is not None else ids.name()
        """What the reply and the log call the request: as the client does, if that is harmless."""
        self.pieces = []
        self._settings = settings

    @property
    def address(self) -> str:
        """``ip:port`` of the client."""
        return self.connection.address

    @property
    def scheme(self) -> str:
        """``https`` with TLS, otherwise ``http``."""
        return self.connection.scheme

    @property
    def port(self) -> int:
        """On which the server listens."""
        return self.connection.port

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
        """The body behind ``room_size`` free bytes, if all of it is here and too small to count as memory."""
        if not self.is_whole or self.unread_size > BASE_SIZE:
            return None
        self._check_head(size_max)
        body = self.take_body()
        if len(body) > size_max:
            raise _too_large(size_max)
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
        self._memory = self.connection.receiving = BodyMemory(memory, clock)
        try:
            return await self._receive_body(size_max, declared_size, self._memory, room_size)
        finally:
            self.connection.receiving = None
            self.connection.stop_receiving()

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
        is_whole = False
        while not is_whole:
            if not self.unread_size and not self.is_whole:
                await self._wait_for_more(deadline)
            is_whole, piece = self.is_whole, self.take_body()
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
            if is_whole and not room_size and not body:
                # Most bodies come in one piece.
                return piece
            body += piece
            # Every byte earns time, but never more than the patience.
            earned = deadline + (loop.time() - began) + len(piece) / self._settings.frame_rate_min
            deadline = min(earned, loop.time() + patience)
            if declared_size is not None and memory.covers(declared_size) and not is_whole:
                return await self._receive_rest(body, room_size + declared_size, room_size, deadline)
        return body

    async def _wait_for_more(self, deadline: float) -> None:
        """Wait until more of the body has come, or until it is complete."""
        try:
            async with asyncio.timeout_at(deadline):
                while not (self.unread_size or self.is_whole or self.is_gone):
                    await self.wait_for_change()
        except TimeoutError:
            raise RestRefused(_REQUEST_TIMEOUT, "the body did not arrive in time") from None
        if self.is_gone:
            raise ClientGone

    async def _receive_rest(self, begun: bytearray, whole_size: int, room_size: int, deadline: float) -> Buffer:
        """The rest of a body for which there is memory. It goes to its place, with no step here per piece."""
        loop, connection = asyncio.get_running_loop(), self.connection
        # More may have come in while the body waited for memory.
        begun += self.take_body()
        body = private_memory(whole_size)
        body[: len(begun)] = begun
        counted_size = len(begun) - room_size
        if not self.is_whole:
            connection.receive_into(body[room_size:], counted_size)
        while not (self.is_whole or self.is_gone):
            try:
                async with asyncio.timeout_at(deadline):
                    await self.wait_for_change()
            except TimeoutError:
                arrived_size = connection.received_size
                if arrived_size == counted_size:
                    raise RestRefused(_REQUEST_TIMEOUT, "the body did not arrive in time") from None
                earned = deadline + (arrived_size - counted_size) / self._settings.frame_rate_min
                deadline = min(earned, loop.time() + self._settings.frame_deadline / _SECOND)
                counted_size = arrived_size
        if self.is_gone:
            raise ClientGone
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
        """Return when the client has closed the connection, or has the reply."""
        while not (self.is_gone or self.is_answered):
            await self.wait_for_change()

    # --- the answer ---

    async def send(self, answer: Answer, lines: bytes = b"") -> None:
        """Send an answer, with these lines in its head. A client that does not read it loses the connection."""
        body, rest = (b"", ()) if self.method == "HEAD" else (answer.body, answer.rest)
        connection = self.connection
        if answer.pieces is None and not rest and len(body) <= _SMALL_SIZE and connection.is_writable:
            if not self.is_gone:
                # With one system call.
                connection.end_reply(self, self._head(answer, lines) + body)
            return
        # A request that began outside a task must be in one to wait with a timeout.
        await asyncio.sleep(0)
        last = b""
        await self._send_piece(self._head(answer, lines))
        if answer.pieces is not None:
            async with aclosing(answer.pieces) as pieces:
                async for piece in pieces:
                    for part in _cut(piece):
                        await self._send_piece(b"%x\r\n%b\r\n" % (len(part), part))
            last = b"0\r\n\r\n"
        else:
            for part in (body, *rest):
                for piece in _cut(part):
                    await self._send_piece(piece)
        # The connection keeps no more than the last pieces.
        await self._send_piece(b"")
        if not self.is_gone:
            connection.end_reply(self, last)

    def _head(self, answer: Answer, lines: bytes) -> bytes:
        if answer.headers:
            lines += b"".join(head_line(name, value) for name, value in answer.headers.items())
        if answer.content_type is not None:
            lines += _CONTENT_TYPE_LINE % answer.content_type.encode()
        if answer.pieces is not None:
            lines += _CHUNKED_LINE
        elif answer.status != _NO_CONTENT:
            lines += _CONTENT_LENGTH_LINE % (len(answer.body) + sum(map(len, answer.rest)))
        self.keeps_alive = self.keeps_alive and not answer.closes
        if not self.keeps_alive:
            lines += _CLOSE_LINE
        return _HEAD % (_STATUS_LINES[answer.status], lines, self.request_id.encode())

    async def _send_piece(self, piece: bytes) -> None:
        """Send when the client has read most of what was sent before."""
        if not self.connection.is_writable:
            async with asyncio.timeout(self._settings.send_deadline / _SECOND):
                await self.connection.drain()
        if piece and not self.is_gone:
            self.connection.write(piece)


def _cut(body: bytes) -> Iterator[bytes]:
    return (body[start : start + _PIECE_SIZE] for start in range(0, len(body), _PIECE_SIZE))


def head_line(name: str, value: str) -> bytes:
    """A header as a line of the answer's head."""
    assert value.isprintable(), "a header has one line"
    return f"{name}: {value}\r\n".encode("latin-1")


def _too_large(size_max: int) -> RestRefused:
    return RestRefused(_TOO_LARGE, f"the body is larger than the {size_max} bytes that http.max_request_size allows")
