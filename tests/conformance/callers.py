"""Clients of every transport with one interface: a command goes out, its reply or its error comes back.

The binary protocols are those of the SDKs 0.10, 0.9 and 0.8, each over several carriers. ``rest`` has HTTP.
"""

import asyncio
import os
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Protocol, TypeVar

from qh3.asyncio.client import connect as connect_quic
from qh3.asyncio.protocol import QuicConnectionProtocol
from qh3.quic.configuration import QuicConfiguration
from websockets.asyncio.client import ClientConnection
from websockets.asyncio.client import connect as connect_websocket

from courser.api import commands as c
from courser.api import replies as r
from courser.errors import CourserError, ErrorCode, NotFound
from courser.model.messaging import Transport
from courser.model.setting_kinds import Address
from courser.records.batch import Batch
from courser.records.frames import iterate_frames
from courser.wire.vsr_client import SessionEnded, VsrClientCodec
from courser.wire.vsr_facts import read_failure
from courser.wire.vsr_headers import HEADER_SIZE
from tests.conformance.rest import RestConnection
from tests.conformance.serving import Served
from tests.conformance.wire_0_12 import GONE, VERSIONS, Wire12
from tests.wire import classic_client

PATIENCE = 60.0
"""Seconds that a reply may take."""
SDK_0_8 = "0.10.0"
"""What the SDK 0.8 calls itself."""

AnyReply = TypeVar("AnyReply", bound=r.Reply)


class Connection(Protocol):
    """A connection to a server."""

    async def exchange(self, command: c.Command) -> r.Reply | None:
        """Send a command. Raises ``CourserError`` if it is refused."""


class Caller:
    """A client of one transport."""

    def __init__(self, connection: Connection, lacks: frozenset[type[c.Command]] = frozenset()) -> None:
        self._connection = connection
        self._lacks = lacks

    def has(self, *kinds: type[c.Command]) -> bool:
        """Whether its release has these commands."""
        return self._lacks.isdisjoint(kinds)

    async def ask(self, command: c.Command) -> r.Reply | None:
        return await asyncio.wait_for(self._connection.exchange(command), PATIENCE)

    async def get(self, kind: type[AnyReply], command: c.Command) -> AnyReply:
        """The reply to a command that has one."""
        reply = await self.ask(command)
        assert isinstance(reply, kind), reply
        return reply

    async def refusal(self, command: c.Command) -> ErrorCode:
        """The number of the error with which a command is refused."""
        try:
            reply = await self.ask(command)
        except CourserError as error:
            return error.code
        raise AssertionError(f"{command} was carried out: {reply}")

    async def is_missing(self, command: c.Command) -> bool:
        """Whether there is nothing to find. HTTP has a status for that, the other transports an empty reply."""
        try:
            await self.ask(command)
        except NotFound:
            return True
        return False

    async def login(self, name: str = "iggy", password: str = "iggy") -> "Caller":
        await self.ask(c.LoginUser(name, password, SDK_0_8))
        return self


# --- the binary protocols -----------------------------------------------------------------------------


class Wire(Protocol):
    """A generation of the binary protocol, from the client's side."""

    def encode(self, command: c.Command) -> bytes:
        """A request."""

    async def read(self, reader: asyncio.StreamReader) -> bytes:
        """The next reply of a stream of bytes."""

    def decode(self, command: c.Command, frame: bytes) -> r.Reply | None:
        """A reply."""


class Wire09:
    """The protocol of SDK 0.9."""

    def __init__(self) -> None:
        self._codec = VsrClientCodec(os.urandom(16))

    def encode(self, command: c.Command) -> bytes:
        return b"".join(self._codec.encode(command))

    async def read(self, reader: asyncio.StreamReader) -> bytes:
        head = await reader.readexactly(HEADER_SIZE)
        size = self._codec.frame_size(memoryview(head))
        assert size is not None
        return head + await reader.readexactly(size - HEADER_SIZE)

    def decode(self, command: c.Command, frame: bytes) -> r.Reply | None:
        try:
            return self._codec.decode(command, memoryview(frame))
        except SessionEnded as end:
            raise end.error from None


class Wire08:
    """The protocol of SDK 0.8."""

    def encode(self, command: c.Command) -> bytes:
        messages = _classic_messages(command.batches) if isinstance(command, c.SendMessages) else ()
        return classic_client.request(command, messages=messages)

    async def read(self, reader: asyncio.StreamReader) -> bytes:
        head = await reader.readexactly(classic_client.REPLY_HEAD_SIZE)
        _, size = classic_client.reply_head(head)
        return head + await reader.readexactly(size)

    def decode(self, command: c.Command, frame: bytes) -> r.Reply | None:
        head, payload = frame[: classic_client.REPLY_HEAD_SIZE], frame[classic_client.REPLY_HEAD_SIZE :]
        status, _ = classic_client.reply_head(head)
        if status:
            raise read_failure(status, payload)
        expected = command.row.reply
        if expected is r.Polled:
            return classic_client.polled(classic_client.parse_polled(payload), is_merged=False)
        if not payload and expected in (r.StreamDetails, r.TopicDetails, r.GroupDetails, r.UserDetails, r.StoredOffset):
            raise NotFound(ErrorCode.RESOURCE_NOT_FOUND, "not found")
        return classic_client.parse_reply(command.row.code, payload)


def _classic_messages(batches: Sequence[Batch]) -> list[classic_client.Message]:
    return [
        classic_client.Message(
            bytes(frame.payload),
            frame.message_id.to_bytes(16, "little"),
            batch.origin_timestamp + frame.timestamp_delta,
            bytes(frame.user_headers),
        )
        for batch in batches
        for frame in iterate_frames(batch.body, batch.count)
    ]


# --- what carries them --------------------------------------------------------------------------------


class StreamConnection:
    """TCP, with TLS or without."""

    def __init__(self, wire: Wire, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._wire, self._reader, self._writer = wire, reader, writer

    async def exchange(self, command: c.Command) -> r.Reply | None:
        self._writer.write(self._wire.encode(command))
        return self._wire.decode(command, await self._wire.read(self._reader))


class WebSocketConnection:
    """Every request and every reply is a message."""

    def __init__(self, wire: Wire, client: ClientConnection) -> None:
        self._wire, self._client = wire, client

    async def exchange(self, command: c.Command) -> r.Reply | None:
        await self._client.send(self._wire.encode(command))
        reply = await self._client.recv(decode=False)
        return self._wire.decode(command, reply)


class QuicConnection:
    """Every request has a stream of its own."""

    def __init__(self, wire: Wire, peer: QuicConnectionProtocol) -> None:
        self._wire, self._peer = wire, peer

    async def exchange(self, command: c.Command) -> r.Reply | None:
        reader, writer = await self._peer.create_stream()
        writer.write(self._wire.encode(command))
        writer.write_eof()
        return self._wire.decode(command, await reader.read())


@asynccontextmanager
async def _stream(wire: Wire, address: Address, tls: ssl.SSLContext | None) -> AsyncIterator[Connection]:
    name = None if tls is None else "localhost"
    reader, writer = await asyncio.open_connection(address.host, address.port, ssl=tls, server_hostname=name)
    try:
        yield StreamConnection(wire, reader, writer)
    finally:
        writer.close()


@asynccontextmanager
async def _websocket(wire: Wire, address: Address) -> AsyncIterator[Connection]:
    async with connect_websocket(f"ws://{address}/", max_size=None, compression=None, proxy=None) as client:
        yield WebSocketConnection(wire, client)


@asynccontextmanager
async def _quic(wire: Wire, address: Address) -> AsyncIterator[Connection]:
    # As the SDKs do by default: no authority vouches for a certificate that was made at the start.
    configuration = QuicConfiguration(verify_mode=ssl.CERT_NONE, server_name="localhost")
    async with connect_quic(address.host, address.port, configuration=configuration) as peer:
        yield QuicConnection(wire, peer)


@asynccontextmanager
async def _http(address: Address) -> AsyncIterator[Connection]:
    connection = RestConnection(*await asyncio.open_connection(address.host, address.port))
    try:
        yield connection
    finally:
        connection.close()


OF_0_12 = ("tcp-0.12.0", "tcp-0.12.2", "tls-0.12.2", "websocket-0.12.2", "quic-0.12.2")
"""SDK 0.10, by the version of its protocol."""
BINARY = ("tcp", "tls", "websocket", "quic", "tcp-0.8", "websocket-0.8", "quic-0.8", *OF_0_12)
TRANSPORTS = (*BINARY, "http")


@asynccontextmanager
async def caller(server: Served, transport: str) -> AsyncIterator[Caller]:
    """A new connection, on which nobody is logged in."""
    carrier, _, release = transport.partition("-")
    wire: Wire = Wire12(release) if release in VERSIONS else Wire08() if release else Wire09()
    addresses = server.addresses
    async with AsyncExitStack() as stack:
        match carrier:
            case "tcp":
                opened = _stream(wire, addresses[Transport.TCP], None)
            case "tls":
                opened = _stream(wire, server.tls_address, server.trusting(Transport.TCP))
            case "websocket":
                opened = _websocket(wire, addresses[Transport.WEBSOCKET])
            case "quic":
                opened = _quic(wire, addresses[Transport.QUIC])
            case _:
                opened = _http(addresses[Transport.HTTP])
        yield Caller(await stack.enter_async_context(opened), GONE if release in VERSIONS else frozenset())
