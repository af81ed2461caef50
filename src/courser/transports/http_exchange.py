"""One request over HTTP and its answer: reading the body within limits, and sending without waiting for ever."""

import asyncio
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, MutableMapping, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any
from urllib.parse import parse_qsl

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from courser.broker.sessions import Session
from courser.model.clock import Clock
from courser.transports.http_body import BodyMemory
from courser.transports.http_connection import CYCLE, WHOLE_BODY, HttpSeat
from courser.transports.request_memory import RequestMemory
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
REQUEST_ID = "x-request-id"
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
TEXT_TYPE = "text/plain; charset=utf-8"


class ClientGone(Exception):
    """The client has closed the connection: nobody reads an answer."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What is sent."""

    status: int
    body: bytes = b""
    content_type: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    rest: Sequence[bytes] = ()
    """What follows the body, if it is large and made in parts."""
    pieces: AsyncGenerator[bytes, None] | None = None
    """A body whose size is not known, instead of ``body``."""


def text_answer(status: int, text: str) -> Answer:
    """A sentence."""
    return Answer(status, text.encode(), TEXT_TYPE)


class Exchange:
    """A request as it comes in."""

    def __init__(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        settings: ConnectionSettings,
        draw: Callable[[int], bytes],
    ) -> None:
        self.method: str = scope["method"]
        self.path: bytes = scope["raw_path"]
        self._query_string: bytes = scope["query_string"]
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        client = scope.get("client") or ("unknown", 0)
        self.address = f"[{client[0]}]:{client[1]}" if ":" in client[0] else f"{client[0]}:{client[1]}"
        self.scheme: str = scope["scheme"]
        self.port: int = (scope.get("server") or ("", 0))[1] or 0
        """On which the server listens."""
        sent_id = self.header(REQUEST_ID.encode())
        self.request_id = sent_id if _REQUEST_ID.fullmatch(sent_id) else draw(16).hex()
        """What the reply and the log call the request: as the client does, if that is harmless."""
        self.seat: HttpSeat = scope["state"]["seat"]
        self._cycle: RequestResponseCycle = scope["state"][CYCLE]
        self._whole_body: bytes | None = scope["state"].get(WHOLE_BODY)
        """If it came together with the head."""
        self.is_private = False
        """Whether the answer is for one user of a browser, and must not be kept."""
        self.session: Session | None = None
        """Of a request that is a command."""
        self._receive = receive
        self._send = send
        self._settings = settings
        self._patience = settings.send_deadline / _SECOND
        """Seconds in which the connection must take a piece."""
        self._memory: BodyMemory | None = None
        self._is_body_complete = False

    def header(self, name: bytes) -> str:
        """A header, or an empty text."""
        return self.headers.get(name, b"").decode("latin-1")

    @cached_property
    def held(self) -> AsyncExitStack:
        """What is given back when the answer is sent."""
        return AsyncExitStack()

    @cached_property
    def query(self) -> dict[str, str]:
        """The query; the last value of each name. Raises ``RestRefused``."""
        return dict(self.query_pairs())

    def query_pairs(self) -> list[tuple[str, str]]:
        """All names and values of the query. Raises ``RestRefused``."""
        if not self._query_string:
            return []
        try:
            text = self._query_string.decode("ascii")
            if "%" not in text and "+" not in text:
                # Much faster, and the same.
                return [(name, value) for name, _, value in (pair.partition("=") for pair in text.split("&") if pair)]
            return parse_qsl(text, keep_blank_values=True, errors="strict")
        except ValueError:
            raise RestRefused(_BAD_REQUEST, "invalid query: it is not UTF-8") from None

    # --- the body ---

    async def read_body(self, size_max: int, memory: RequestMemory, clock: Clock) -> bytes | bytearray:
        """The whole body. Raises ``RestRefused`` as soon as it is too large or too slow, and ``ClientGone``."""
        if self.header(b"content-encoding").lower() not in ("", "identity"):
            # Little that is sent could become much.
            raise RestRefused(_UNSUPPORTED, "the body must not be compressed: Content-Encoding is not supported")
        declared = self.header(b"content-length")
        if declared and int(declared) > size_max:
            raise _too_large(size_max)
        if self._whole_body is not None:
            # It is too small to count as memory.
            if len(self._whole_body) > size_max:
                raise _too_large(size_max)
            self._is_body_complete = True
            return self._whole_body
        self._memory = self.seat.receiving = BodyMemory(memory, clock)
        try:
            return await self._receive_body(size_max, int(declared) if declared else None, self._memory)
        finally:
            self.seat.receiving = None

    async def _receive_body(self, size_max: int, declared_size: int | None, memory: BodyMemory) -> bytes | bytearray:
        body = bytearray()
        loop = asyncio.get_running_loop()
        patience = self._settings.frame_deadline / _SECOND
        deadline = loop.time() + patience
        while not self._is_body_complete:
            try:
                async with asyncio.timeout_at(deadline):
                    message = await self._receive()
            except TimeoutError:
                raise RestRefused(_REQUEST_TIMEOUT, "the body did not arrive in time") from None
            if message["type"] == "http.disconnect":
                raise ClientGone
            piece = message.get("body", b"")
            size = len(body) + len(piece)
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
            if self._is_body_complete and not body:
                # Most bodies come in one piece.
                return bytes(piece)
            body += piece
            # Every byte earns time, but never more than the patience.
            earned = deadline + (loop.time() - began) + len(piece) / self._settings.frame_rate_min
            deadline = min(earned, loop.time() + patience)
            if declared_size is not None and memory.covers(declared_size) and not self._is_body_complete:
                await self._collect(body, deadline)
        return body

    async def _collect(self, body: bytearray, deadline: float) -> None:
        """The rest of a body for which there is memory. The connection appends to it, with no step here per piece."""
        loop, cycle = asyncio.get_running_loop(), self._cycle
        self.seat.protocol.collect(body)
        counted_size = len(body)
        while cycle.more_body and not cycle.disconnected:
            try:
                async with asyncio.timeout_at(deadline):
                    await cycle.message_event.wait()
                    cycle.message_event.clear()
            except TimeoutError:
                arrived_size = len(body)
                if arrived_size == counted_size:
                    raise RestRefused(_REQUEST_TIMEOUT, "the body did not arrive in time") from None
                earned = deadline + (arrived_size - counted_size) / self._settings.frame_rate_min
                deadline = min(earned, loop.time() + self._settings.frame_deadline / _SECOND)
                counted_size = arrived_size
        if cycle.disconnected:
            raise ClientGone
        self._is_body_complete = True
        cycle.body = bytearray()

    async def release(self) -> None:
        """The answer is sent: nothing is needed any more."""
        if self._memory is not None:
            self._memory.close()
            self._memory = None
        if "held" in self.__dict__:
            await self.held.aclose()

    async def wait_for_disconnect(self) -> None:
        """Return when the client has closed the connection. Not before the body is read."""
        while (await self._receive())["type"] != "http.disconnect":
            pass

    # --- the answer ---

    async def send(self, answer: Answer, headers: Mapping[str, str]) -> None:
        """Send an answer. A client that does not read it loses the connection."""
        fields = [(name.encode(), value.encode("latin-1")) for name, value in {**headers, **answer.headers}.items()]
        if answer.content_type is not None:
            fields.append((b"content-type", answer.content_type.encode()))
        if answer.status != 204 and answer.pieces is None:
            size = len(answer.body) + sum(map(len, answer.rest))
            fields.append((b"content-length", str(size).encode()))
        body, rest = (b"", ()) if self.method == "HEAD" else (answer.body, answer.rest)
        if answer.pieces is None and not rest and len(body) <= _SMALL_SIZE and self.seat.protocol.is_writable:
            self.seat.protocol.reply(self._cycle, answer.status, fields, body)
            return
        # A request that began outside a task must be in one to wait with a timeout.
        await asyncio.sleep(0)
        async with asyncio.timeout(self._patience):
            await self._send({"type": "http.response.start", "status": answer.status, "headers": fields})
        if answer.pieces is not None:
            async with aclosing(answer.pieces) as pieces:
                async for piece in pieces:
                    await self._send_body(piece)
        else:
            for part in (body, *rest):
                await self._send_body(part)
        async with asyncio.timeout(self._patience):
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send_body(self, body: bytes) -> None:
        """Return when the connection has taken all of it but the last pieces."""
        for start in range(0, len(body), _PIECE_SIZE):
            piece = body[start : start + _PIECE_SIZE]
            async with asyncio.timeout(self._patience):
                await self._send({"type": "http.response.body", "body": piece, "more_body": True})


def _too_large(size_max: int) -> RestRefused:
    return RestRefused(_TOO_LARGE, f"the body is larger than the {size_max} bytes that http.max_request_size allows")
