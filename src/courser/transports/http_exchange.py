"""One request over HTTP and its answer: reading the body within limits, and sending without waiting for ever."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl

from courser.broker.sessions import Session
from courser.transports.settings import ConnectionSettings
from courser.wire.rest_fields import RestRefused

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

_SECOND = 1_000_000
_PIECE_SIZE = 256 * 1024
"""Bytes that are handed to the connection at once: the rest of a large reply waits until the client reads."""
_BAD_REQUEST, _REQUEST_TIMEOUT, _TOO_LARGE, _UNAVAILABLE = 400, 408, 413, 503
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


def text_answer(status: int, text: str) -> Answer:
    """A sentence."""
    return Answer(status, text.encode(), TEXT_TYPE)


class BodyMemory:
    """Bytes of all request bodies that are being read or carried out."""

    def __init__(self, size_max: int) -> None:
        self._size_max = size_max
        self.size = 0

    def take(self, size: int) -> None:
        """Count so many more. Raises ``RestRefused`` if there is no room."""
        if self.size + size > self._size_max:
            raise RestRefused(_UNAVAILABLE, "the server is busy with large requests; try again")
        self.size += size


class Exchange:
    """A request as it comes in."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, settings: ConnectionSettings) -> None:
        self.method: str = scope["method"]
        self.path: bytes = scope["raw_path"]
        self._query_string: bytes = scope["query_string"]
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        client = scope.get("client") or ("unknown", 0)
        self.address = f"[{client[0]}]:{client[1]}" if ":" in client[0] else f"{client[0]}:{client[1]}"
        self.abort: Callable[[], None] = scope["state"]["abort"]
        """Closes the connection at once."""
        self.session: Session | None = None
        """Of a request that is a command."""
        self._receive = receive
        self._send = send
        self._settings = settings
        self._held_size = 0
        self._is_body_complete = False

    def header(self, name: bytes) -> str:
        """A header, or an empty text."""
        return self.headers.get(name, b"").decode("latin-1")

    def query(self) -> dict[str, str]:
        """The query. Raises ``RestRefused``."""
        try:
            pairs = parse_qsl(self._query_string.decode("ascii"), keep_blank_values=True, errors="strict")
        except ValueError:
            raise RestRefused(_BAD_REQUEST, "invalid query: it is not UTF-8") from None
        return dict(pairs)

    # --- the body ---

    async def read_body(self, size_max: int, memory: BodyMemory) -> bytearray:
        """The whole body. Raises ``RestRefused`` as soon as it is too large or too slow, and ``ClientGone``."""
        declared = self.header(b"content-length")
        if declared and int(declared) > size_max:
            raise _too_large(size_max)
        body = bytearray()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._settings.frame_deadline / _SECOND
        while not self._is_body_complete:
            try:
                async with asyncio.timeout_at(deadline):
                    message = await self._receive()
            except TimeoutError:
                raise RestRefused(_REQUEST_TIMEOUT, "the body did not arrive in time") from None
            if message["type"] == "http.disconnect":
                raise ClientGone
            piece = message.get("body", b"")
            if len(body) + len(piece) > size_max:
                raise _too_large(size_max)
            memory.take(len(piece))
            self._held_size += len(piece)
            body += piece
            # Every byte earns time, but never more than the patience.
            earned = deadline + len(piece) / self._settings.frame_rate_min
            deadline = min(earned, loop.time() + self._settings.frame_deadline / _SECOND)
            self._is_body_complete = not message.get("more_body", False)
        return body

    def release(self, memory: BodyMemory) -> None:
        """The body is not needed any more."""
        memory.size -= self._held_size
        self._held_size = 0

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
        if answer.status != 204:
            fields.append((b"content-length", str(len(answer.body)).encode()))
        await self._send({"type": "http.response.start", "status": answer.status, "headers": fields})
        body = b"" if self.method == "HEAD" else answer.body
        loop = asyncio.get_running_loop()
        patience = self._settings.send_deadline / _SECOND
        for start in range(0, len(body), _PIECE_SIZE):
            piece = body[start : start + _PIECE_SIZE]
            async with asyncio.timeout_at(loop.time() + patience):
                await self._send({"type": "http.response.body", "body": piece, "more_body": True})
        async with asyncio.timeout_at(loop.time() + patience):
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})


def _too_large(size_max: int) -> RestRefused:
    return RestRefused(_TOO_LARGE, f"the body is larger than the {size_max} bytes that http.max_request_size allows")
