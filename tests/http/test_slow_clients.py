"""Clients that send a byte at a time, or ask and never read: each has a bound, and others are served meanwhile."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from itertools import chain, repeat
from pathlib import Path

import pytest

from courser.transports.http_connection import AHEAD_COUNT_MAX, HEAD_SIZE_MAX
from courser.transports.settings import ConnectionSettings
from tests.http.serving import HttpServer, read_reply, serving, until
from tests.http.test_limits import head_of

LOGIN = b"POST /users/login HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
CHUNKED = LOGIN + b"transfer-encoding: chunked\r\n\r\n"
SLOW = ConnectionSettings(frame_deadline=500_000, frame_rate_min=1024, send_deadline=500_000)
"""Microseconds, and bytes a second."""


@asynccontextmanager
async def raw(server: HttpServer) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await server.client.open()
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def until_closed(reader: asyncio.StreamReader) -> bytes:
    """What came until the server closed the connection."""
    data = b""
    with suppress(ConnectionError):
        while piece := await reader.read(1 << 16):
            data += piece
    return data


async def check_others(server: HttpServer) -> None:
    assert (await server.client.ask("GET", "/ping")).status == 200


# Of each request what comes at once, and what follows one by one, without end.
TRICKLES: dict[str, tuple[bytes, bytes, bytes]] = {
    "a request line": (b"", b"G", b""),
    "a path": (b"GET /", b"a", b""),
    "headers": (b"GET /ping HTTP/1.1\r\n", b"a: b\r\n", b""),
    "the value of a header": (b"GET /ping HTTP/1.1\r\na: ", b"b", b""),
    "empty lines before a request": (b"", b"\r\n", b""),
    "a body": (LOGIN + b"content-length: 1000\r\n\r\n", b" ", b"408"),
    "a body that nobody reads": (b"GET /ping HTTP/1.1\r\ncontent-length: 1000\r\n\r\n", b" ", b"200"),
    "chunks": (CHUNKED, b"1\r\n \r\n", b"408"),
    "the size of a chunk": (CHUNKED, b"0", b"408"),
    "an extension of a chunk": (CHUNKED + b"2;", b"a", b"408"),
    "trailers": (CHUNKED + b"2\r\n{}\r\n0\r\n", b"a: b\r\n", b"408"),
    "a WebSocket handshake": (b"GET / HTTP/1.1\r\nupgrade: websocket\r\nconnection: upgrade\r\n", b"a", b""),
}


@pytest.mark.parametrize("name", TRICKLES)
async def test_what_comes_byte_by_byte_has_a_deadline(tmp_path: Path, name: str) -> None:
    begin, piece, status = TRICKLES[name]
    async with serving(tmp_path, limits=SLOW) as server, raw(server) as (reader, writer):
        writer.write(begin)
        closed = asyncio.create_task(until_closed(reader))
        while not closed.done():
            # Slower than the rate that earns time.
            writer.write(piece)
            await check_others(server)
            await asyncio.wait((closed,), timeout=0.02)
        assert status in (await closed)[:20]
        await until(lambda: not server.connections.count)


FLOODS: dict[str, tuple[bytes, bytes]] = {
    "trailers": (CHUNKED + b"2\r\n{}\r\n0\r\n", b"a: b\r\n" * 10_000),
    "trailers of a request that is answered": (
        b"GET /ping HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n0\r\n",
        b"a: b\r\n" * 10_000,
    ),
    "the value of a trailer": (CHUNKED + b"0\r\na: ", b"b" * 60_000),
    "an extension of a chunk": (CHUNKED + b"2;", b"a=b;" * 10_000),
}


@pytest.mark.parametrize("name", FLOODS)
async def test_what_is_no_body_has_a_size(tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture) -> None:
    """The deadlines are far away."""
    begin, piece = FLOODS[name]
    caplog.set_level("INFO", "courser.transports")
    async with serving(tmp_path) as server, raw(server) as (reader, writer):
        closed = asyncio.create_task(until_closed(reader))
        for each in chain((begin,), repeat(piece, 100)):
            writer.write(each)
            with suppress(ConnectionError):
                await writer.drain()
            if closed.done():
                break
        await closed
        await until(lambda: not server.connections.count)
        await check_others(server)
    lines = [record.getMessage() for record in caplog.records]
    assert [line for line in lines if f"more than {HEAD_SIZE_MAX} bytes of a body without any" in line] == lines[:1]


@pytest.mark.parametrize("request_line", [b"GET /ping HTTP/1.1", b"GET /streams HTTP/1.1", b"GET /x HTTP/1.1"])
async def test_requests_sent_ahead_have_a_number(
    tmp_path: Path, request_line: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "courser.transports")
    async with serving(tmp_path) as server:
        async with raw(server) as (reader, writer):
            writer.write((request_line + b"\r\nhost: x\r\n\r\n") * AHEAD_COUNT_MAX)
            replies = [await read_reply(reader) for _ in range(AHEAD_COUNT_MAX)]
            assert len({reply.status for reply in replies}) == 1
            writer.write(request_line + b"\r\nhost: x\r\n\r\n")
            assert (await read_reply(reader)).status == replies[0].status
        async with raw(server) as (reader, writer):
            writer.write((request_line + b"\r\nhost: x\r\n\r\n") * 10_000)
            # No more than the first, and no refusal that could be taken for an answer.
            assert (await until_closed(reader)).count(b"HTTP/1.1 ") <= 1
        await check_others(server)
    assert f"cut off: it sent more than {AHEAD_COUNT_MAX} requests ahead" in caplog.text


async def test_requests_that_wait_for_their_turn_have_a_number(tmp_path: Path) -> None:
    """Also if they come one by one."""
    async with serving(tmp_path) as server, raw(server) as (reader, writer):
        root = server.root
        await root.ask("POST", "/streams", {"name": "s"})
        options = {"compression_algorithm": "none", "message_expiry": 0, "max_topic_size": 0}
        await root.ask("POST", "/streams/s/topics", {"name": "t", "partitions_count": 1} | options)
        writer.write(head_of(root, "GET", "/streams/s/topics/t/messages?wait=60s"))
        (seat,) = server.connections
        connection = seat.protocol  # type: ignore[attr-defined]
        await until(lambda: connection.is_answering)
        closed = asyncio.create_task(until_closed(reader))
        while not closed.done():
            # As an event loop that reads on would hand them over.
            if not connection.transport.is_closing():
                data = b"GET /ping HTTP/1.1\r\nhost: x\r\n\r\n"
                connection.get_buffer(-1)[: len(data)] = data
                connection.buffer_updated(len(data))
            assert len(connection.pipeline) <= AHEAD_COUNT_MAX
            await asyncio.sleep(0)
        assert await closed == b""


def small_buffers(server: HttpServer) -> None:
    for seat in server.connections:
        connected: socket.socket = seat.protocol.transport.get_extra_info("socket")  # type: ignore[attr-defined]
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)


@pytest.mark.parametrize(("path", "header"), [("/docs", "x: y"), ("/ui/style.css", "connection: close")])
async def test_who_asks_and_never_reads_is_cut_off_in_time(tmp_path: Path, path: str, header: str) -> None:
    """Also if the connection is to be closed behind the reply, which fits into what the event loop keeps."""
    async with serving(tmp_path, limits=SLOW) as server:
        with socket.socket() as deaf:
            deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
            deaf.connect(("127.0.0.1", server.port))
            deaf.setblocking(False)
            await until(lambda: bool(server.connections.count))
            small_buffers(server)
            request = f"GET {path} HTTP/1.1\r\nhost: x\r\n{header}\r\n\r\n".encode()
            (seat,) = server.connections
            transport = seat.protocol.transport  # type: ignore[attr-defined]
            deaf.send(request)
            await until(lambda: bool(transport.get_write_buffer_size()))
            await check_others(server)
            await until(lambda: not server.connections.count)
