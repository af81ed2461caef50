"""The client's side of a replay: whole frames out, whole frames in."""

import asyncio
import struct
from dataclasses import dataclass

from tests.replay.captures import Wire
from tests.wire.classic_client import REPLY_HEAD_SIZE, frame, reply_head

PATIENCE = 120.0
"""Seconds that a reply may take before the test gives up: a thousand partitions on a busy disk take a while."""
SILENCE = 0.3
"""Seconds without a reply after which the server is taken to wait for more bytes."""

VSR_HEADER_SIZE = 256
_PING_NUMBER = 1 << 62
"""The request number of our own pings: the replies to them can be told by it."""
_CLASSIC_PING = frame(1)

_REGISTER, _DELETE_SEGMENTS, _DELETE_SEGMENTS_REPLY = 1, 138, 68
_RESULT_FRAMED = frozenset({_REGISTER, *range(64, 69), *range(128, 138), *range(139, 150), 161, 162})
_EVICTION = 13


@dataclass(frozen=True)
class Answer:
    """What came back for a request."""

    channel: str
    """ok, result, status, evict, none; or closed."""
    status: int | None = None
    body: bytes = b""
    """Without header and result section."""
    header: bytes = b""

    @property
    def outcome(self) -> str:
        """Channel and number in words."""
        return self.channel if self.channel in {"ok", "none", "closed"} else f"{self.channel} {self.status}"


NO_ANSWER = Answer("none")
CLOSED = Answer("closed")


def parse_vsr(frame: bytes) -> Answer:
    """Understand a whole frame of the 0.9 protocol."""
    header, body = frame[:VSR_HEADER_SIZE], frame[VSR_HEADER_SIZE:]
    if header[60] == _EVICTION:
        return Answer("evict", header[255], body, header)
    status = struct.unpack_from("<I", header, 216)[0]
    if status:
        return Answer("status", status, body, header)
    if header[208] in _RESULT_FRAMED and body:
        count = struct.unpack_from("<I", body)[0]
        if count:
            return Answer("result", struct.unpack_from("<I", body, 8)[0], body[12:], header)
        return Answer("ok", 0, body[4:], header)
    return Answer("ok", 0, body, header)


class Connection:
    """One connection to the server under test."""

    def __init__(self, wire: Wire, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.wire = wire
        self._reader = reader
        self._writer = writer
        self.recorded_session: int | None = None
        self.our_session = 0

    @classmethod
    async def open(cls, wire: Wire, port: int) -> "Connection":
        """Connect to the server on loopback."""
        return cls(wire, *await asyncio.open_connection("127.0.0.1", port))

    async def close(self) -> None:
        """Close, and wait until it is."""
        self._writer.close()
        try:
            await self._writer.wait_closed()
        except ConnectionError:
            # The server was first.
            return

    async def ask(self, request: bytes) -> Answer:
        """Send a request and wait for its answer."""
        await self._send(request)
        return await self._receive()

    async def wait_for_nothing(self, request: bytes) -> Answer:
        """Send a request that is not whole: the server is expected to wait for the rest."""
        await self._send(request)
        try:
            return await asyncio.wait_for(self._receive(), SILENCE)
        except TimeoutError:
            return NO_ANSWER

    async def ask_with_ping(self, request: bytes) -> tuple[Answer, bool]:
        """Send a request that may stay without an answer, and a ping behind it, whose answer ends the waiting.

        Return also whether the ping was answered.
        """
        await self._send(request + self._ping())
        first = await self._receive()
        if first is CLOSED:
            return first, False
        if self._is_pong(first):
            return NO_ANSWER, True
        try:
            second = await asyncio.wait_for(self._receive(), SILENCE if self.wire is Wire.CLASSIC else PATIENCE)
        except TimeoutError:
            # A classic reply does not say what it answers: then the only one was for the ping.
            return NO_ANSWER, first.channel == "ok"
        return first, second.channel == "ok"

    async def fate(self) -> str:
        """What a ping tells of the connection."""
        try:
            answer = await self.ask(self._ping())
        except ConnectionError:
            return "closed"
        return "usable" if answer.channel == "ok" else answer.outcome

    def _ping(self) -> bytes:
        if self.wire is Wire.CLASSIC:
            return _CLASSIC_PING
        frame = bytearray(VSR_HEADER_SIZE)
        struct.pack_into("<I", frame, 48, VSR_HEADER_SIZE)
        frame[60] = 5
        frame[128] = 1
        struct.pack_into("<Q", frame, 168, _PING_NUMBER)
        frame[176] = 2
        struct.pack_into("<I", frame, 196, 1)
        return bytes(frame)

    def _is_pong(self, answer: Answer) -> bool:
        return self.wire is Wire.VSR and struct.unpack_from("<Q", answer.header, 200)[0] == _PING_NUMBER

    async def _send(self, data: bytes) -> None:
        try:
            self._writer.write(data)
            await self._writer.drain()
        except ConnectionError:
            # Closed meanwhile: what it said before can still be read.
            return

    async def _receive(self) -> Answer:
        try:
            if self.wire is Wire.CLASSIC:
                status, size = reply_head(await self._read(REPLY_HEAD_SIZE))
                body = await self._read(size)
                return Answer("status" if status else "ok", status, body)
            header = await self._read(VSR_HEADER_SIZE)
            body = await self._read(struct.unpack_from("<I", header, 48)[0] - VSR_HEADER_SIZE)
            return parse_vsr(header + body)
        except (asyncio.IncompleteReadError, ConnectionError):
            return CLOSED

    async def _read(self, size: int) -> bytes:
        return await asyncio.wait_for(self._reader.readexactly(size), PATIENCE)
