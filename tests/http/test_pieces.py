"""Requests in one piece, which are answered on the spot, and the same ones in several pieces."""

import asyncio
import json
from base64 import b64decode
from pathlib import Path
from typing import cast

import pytest

from courser.transports.http_connection import HttpConnection
from courser.transports.request_memory import RequestMemory
from courser.transports.settings import ConnectionSettings, HttpSettings
from tests.http.serving import FIRST, HttpServer, make_topic, message, send, serving, until

_SECOND = 1_000_000


class RecordingTransport:
    """The server's end of a connection without a socket."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.is_closed = False
        self.protocol: asyncio.BaseProtocol | None = None

    def write(self, data: bytes) -> None:
        self.writes.append(data)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol

    def receive(self, data: bytes) -> None:
        """Bytes come in, for whoever gets them now."""
        assert isinstance(self.protocol, asyncio.BufferedProtocol)
        while data:
            room = memoryview(self.protocol.get_buffer(-1))
            piece, data = data[: len(room)], data[len(room) :]
            room[: len(piece)] = piece
            self.protocol.buffer_updated(len(piece))

    def get_extra_info(self, name: str) -> object:
        return ("127.0.0.1", 1) if name in ("peername", "sockname") else None

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return self.is_closed

    def pause_reading(self) -> None:
        """Pieces come when the test says so."""

    def resume_reading(self) -> None:
        """The same."""

    def close(self) -> None:
        self.is_closed = True

    abort = close


def connect(server: HttpServer) -> tuple[HttpConnection, RecordingTransport]:
    connection = server.listener._make_connection()
    transport = RecordingTransport()
    transport.set_protocol(connection)
    connection.connection_made(cast(asyncio.Transport, transport))
    return connection, transport


def request(server: HttpServer, method: str, path: str, body: bytes = b"", content_type: str = "") -> bytes:
    head = f"{method} {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {server.root.token}\r\n"
    if body:
        head += f"content-type: {content_type}\r\ncontent-length: {len(body)}\r\n"
    return head.encode() + b"\r\n" + body


def a_send(server: HttpServer, topic: str) -> bytes:
    body = json.dumps({"partitioning": FIRST, "messages": [message(b"hello")]}).encode()
    return request(server, "POST", f"{topic}/messages", body, "application/json")


@pytest.mark.parametrize("method", ["POST", "GET"])
async def test_what_need_not_wait_is_answered_on_the_spot_with_one_write(server: HttpServer, method: str) -> None:
    topic = await make_topic(server.root)
    await send(server.root, topic, message())
    connection, transport = connect(server)
    poll = request(server, "GET", f"{topic}/messages?kind=first&count=1")
    for _ in range(1_000):
        transport.writes.clear()
        transport.receive(a_send(server, topic) if method == "POST" else poll)
        if transport.writes:
            break
        # It had to wait after all, for upkeep of the partition.
        await until(lambda: bool(transport.writes))
    else:
        pytest.fail("each request needed a task")
    (reply,) = transport.writes
    assert reply.startswith(b"HTTP/1.1 201 " if method == "POST" else b"HTTP/1.1 200 ")
    connection.connection_lost(None)


async def test_requests_in_one_piece_are_all_answered(server: HttpServer) -> None:
    topic = await make_topic(server.root)
    connection, transport = connect(server)
    transport.receive(a_send(server, topic) * 3)
    await until(lambda: len(transport.writes) == 3)
    assert [reply.split(b" ")[1] for reply in transport.writes] == [b"201"] * 3
    connection.connection_lost(None)
    reply = await server.root.ask("GET", f"{topic}/messages?kind=first")
    assert reply.json["count"] == 3


async def test_a_request_may_be_cut_anywhere(server: HttpServer) -> None:
    topic = await make_topic(server.root)
    whole = a_send(server, topic)
    for position in range(1, len(whole), 7):
        connection, transport = connect(server)
        transport.receive(whole[:position])
        assert transport.writes == []
        transport.receive(whole[position:])
        await until(lambda transport=transport: bool(transport.writes))  # type: ignore[misc]
        assert transport.writes[0].startswith(b"HTTP/1.1 201 "), position
        connection.connection_lost(None)


async def test_a_refusal_on_the_spot(server: HttpServer) -> None:
    connection, transport = connect(server)
    transport.receive(request(server, "GET", "/streams/none/topics/none/messages"))
    transport.receive(b"GET /streams/s/topics/t/messages HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
    assert [reply.split(b" ")[1] for reply in transport.writes] == [b"404", b"401"]
    assert transport.is_closed, "the client asked for that"
    connection.connection_lost(None)


async def test_a_small_body_without_a_length_has_the_same_limit(tmp_path: Path) -> None:
    async with serving(tmp_path, HttpSettings(port=0, request_size_max=10)) as server:
        connection, transport = connect(server)
        head, _, _ = request(server, "POST", "/streams/s/topics/t/messages").rpartition(b"\r\n")
        kind = b"content-type: application/octet-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        transport.receive(head + kind + b"b\r\n" + b"x" * 11 + b"\r\n0\r\n\r\n")
        assert [reply.split(b" ")[1] for reply in transport.writes] == [b"413"]
        connection.connection_lost(None)


@pytest.mark.parametrize("piece_size", [1_000, 70_000, 300_000])
async def test_a_large_body_goes_to_its_place_and_the_next_request_follows(server: HttpServer, piece_size: int) -> None:
    topic = await make_topic(server.root)
    body = bytes(range(256)) * 2_000
    whole = request(server, "POST", f"{topic}/messages?partition_id=0", body, "application/octet-stream")
    connection, transport = connect(server)
    data = whole + a_send(server, topic)
    for start in range(0, len(data), piece_size):
        transport.receive(data[start : start + piece_size])
        await asyncio.sleep(0)
    await until(lambda: len(transport.writes) == 2)
    assert [reply.split(b" ")[1] for reply in transport.writes] == [b"201"] * 2
    assert not connection.is_receiving_body
    connection.connection_lost(None)
    await until(lambda: server.memory.size == 0)
    reply = await server.root.ask("GET", f"{topic}/messages?kind=first&count=2")
    assert [b64decode(stored["payload"]) for stored in reply.json["messages"]] == [body, b"hello"]


async def test_what_came_while_a_body_waited_for_memory_is_part_of_it(tmp_path: Path) -> None:
    async with serving(tmp_path, limits=ConnectionSettings(request_memory=4_000_000)) as server:
        topic = await make_topic(server.root)
        body = bytes(range(256)) * 2_000
        whole = request(server, "POST", f"{topic}/messages?partition_id=0", body, "application/octet-stream")
        busy, others = server.memory, [RequestMemory(server.memory, lambda: None) for _ in range(3)]
        for other, size in zip(others, (3_000_000, 1_000_000, 100), strict=True):
            # The last one is lent more than there is: that happens once at a time.
            assert other.grow(size, size)
        connection, transport = connect(server)
        transport.receive(whole[:100_000])
        await until(lambda: busy.waiting_count == 1)
        transport.receive(whole[100_000:150_000])
        others[0].close()
        await until(lambda: connection.is_receiving_body)
        transport.receive(whole[150_000:])
        await until(lambda: bool(transport.writes))
        assert transport.writes[0].startswith(b"HTTP/1.1 201 ")
        connection.connection_lost(None)
        reply = await server.root.ask("GET", f"{topic}/messages?kind=first")
        assert [b64decode(stored["payload"]) for stored in reply.json["messages"]] == [body]


async def test_a_large_body_that_stops_is_refused(tmp_path: Path) -> None:
    async with serving(tmp_path, limits=ConnectionSettings(frame_deadline=_SECOND // 10)) as server:
        topic = await make_topic(server.root)
        body = b"x" * 500_000
        whole = request(server, "POST", f"{topic}/messages", body, "application/octet-stream")
        connection, transport = connect(server)
        transport.receive(whole[:200_000])
        await until(lambda: connection.is_receiving_body)
        transport.receive(whole[200_000:200_001])
        await until(lambda: bool(transport.writes))
        assert transport.writes[0].startswith(b"HTTP/1.1 408 ")
        await until(lambda: server.memory.size == 0)
        transport.receive(whole[200_001:])
        assert not connection.is_receiving_body, "the rest was dropped"
        connection.connection_lost(None)


async def test_a_connection_that_is_lost_amid_a_large_body_holds_no_memory(server: HttpServer) -> None:
    topic = await make_topic(server.root)
    whole = request(server, "POST", f"{topic}/messages", b"x" * 500_000, "application/octet-stream")
    connection, transport = connect(server)
    transport.receive(whole[:200_000])
    await until(lambda: connection.is_receiving_body)
    assert server.memory.size
    connection.connection_lost(None)
    await until(lambda: server.memory.size == 0)
    assert transport.writes == []


async def test_who_asks_for_another_protocol_gets_this_one(server: HttpServer) -> None:
    connection, transport = connect(server)
    upgrade = b"GET /ping HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n"
    for count in (1, 2):
        transport.receive(upgrade)
        await until(lambda count=count: len(transport.writes) == count)  # type: ignore[misc]
        assert transport.writes[-1].startswith(b"HTTP/1.1 200 ")
    connection.connection_lost(None)


async def test_the_client_of_a_request_sent_ahead_is_gone_for_the_first_one_too(server: HttpServer) -> None:
    topic = await make_topic(server.root)
    connection, transport = connect(server)
    transport.receive(request(server, "GET", f"{topic}/messages?wait=60s") + request(server, "GET", "/ping"))
    await until(lambda: bool(server.long_polls))
    connection.connection_lost(None)
    await until(lambda: not server.long_polls)
    assert transport.writes == []
