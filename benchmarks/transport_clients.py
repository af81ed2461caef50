"""Clients of every transport that only measure: each sends a command and reads the whole reply."""

import asyncio
import base64
import json
import os
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Protocol

from qh3.asyncio.client import connect as connect_quic
from qh3.asyncio.protocol import QuicConnectionProtocol
from qh3.quic.configuration import QuicConfiguration
from websockets.asyncio.client import ClientConnection
from websockets.asyncio.client import connect as connect_websocket

from courser.api import commands as c
from courser.client.targets import Target
from courser.wire.vsr_client import VsrClientCodec
from courser.wire.vsr_headers import HEADER_SIZE, frame_size_of

Address = tuple[str, int]


class Carrier(Protocol):
    """Brings one request of the binary protocol to the server, and its reply back."""

    async def exchange(self, request: bytes) -> bytes:
        """One request at a time."""


class BinaryClient:
    """The protocol of SDK 0.9 over any carrier."""

    def __init__(self, carrier: Carrier) -> None:
        self._carrier = carrier
        self._codec = VsrClientCodec(os.urandom(16))

    async def ask(self, command: c.Command) -> None:
        """Raises ``CourserError`` if the command is refused."""
        reply = await self._carrier.exchange(b"".join(self._codec.encode(command)))
        self._codec.decode(command, memoryview(reply))


class _Tcp:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def exchange(self, request: bytes) -> bytes:
        self._writer.write(request)
        head = await self._reader.readexactly(HEADER_SIZE)
        return head + await self._reader.readexactly(frame_size_of(memoryview(head)) - HEADER_SIZE)


class _WebSocket:
    def __init__(self, client: ClientConnection) -> None:
        self._client = client

    async def exchange(self, request: bytes) -> bytes:
        await self._client.send(request)
        return await self._client.recv(decode=False)


class _Quic:
    def __init__(self, peer: QuicConnectionProtocol) -> None:
        self._peer = peer

    async def exchange(self, request: bytes) -> bytes:
        reader, writer = await self._peer.create_stream()
        writer.write(request)
        writer.write_eof()
        return await reader.read()


@asynccontextmanager
async def binary_client(transport: str, address: Address, login: Target) -> AsyncIterator[BinaryClient]:
    """A client that is logged in."""
    host, port = address
    assert login.username is not None
    assert login.password is not None
    login_command = c.LoginUser(login.username, login.password)
    if transport == "tcp":
        reader, writer = await asyncio.open_connection(host, port)
        client = BinaryClient(_Tcp(reader, writer))
        await client.ask(login_command)
        yield client
        writer.close()
    elif transport == "websocket":
        async with connect_websocket(f"ws://{host}:{port}/", max_size=None, compression=None, proxy=None) as socket:
            client = BinaryClient(_WebSocket(socket))
            await client.ask(login_command)
            yield client
    else:
        configuration = QuicConfiguration(verify_mode=ssl.CERT_NONE, server_name="localhost")
        async with connect_quic(host, port, configuration=configuration) as peer:
            client = BinaryClient(_Quic(peer))
            await client.ask(login_command)
            yield client


class HttpClient:
    """One connection that stays open."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self.token = ""

    def request(
        self, method: str, path: str, body: bytes | None = None, content_type: str = "application/json"
    ) -> bytes:
        """The bytes of a request."""
        lines = [f"{method} {path} HTTP/1.1", "host: localhost", f"authorization: Bearer {self.token}"]
        if body is not None:
            lines += [f"content-type: {content_type}", f"content-length: {len(body)}"]
        return "\r\n".join([*lines, "", ""]).encode() + (body or b"")

    async def exchange(self, request: bytes) -> bytes:
        """Send a request; return the body of its reply, which must be a success."""
        self._writer.write(request)
        head = (await self._reader.readuntil(b"\r\n\r\n")).lower()
        size = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0])
        body = await self._reader.readexactly(size)
        assert head.startswith(b"http/1.1 20"), (head, body[:200])
        return body


@asynccontextmanager
async def http_client(address: Address, login: Target | None = None) -> AsyncIterator[HttpClient]:
    """A client, which is logged in if a login is given."""
    reader, writer = await asyncio.open_connection(*address)
    client = HttpClient(reader, writer)
    if login is not None:
        body = json.dumps({"username": login.username, "password": login.password}).encode()
        reply = await client.exchange(client.request("POST", "/users/login", body))
        client.token = json.loads(reply)["access_token"]["token"]
    yield client
    writer.close()


def json_send(payloads: list[bytes], ids: list[int]) -> bytes:
    """The body of a send to partition 0."""
    messages = [
        {"id": str(message_id), "payload": base64.b64encode(payload).decode()}
        for payload, message_id in zip(payloads, ids, strict=True)
    ]
    return json.dumps({"partitioning": {"kind": "partition_id", "value": "AAAAAA=="}, "messages": messages}).encode()
