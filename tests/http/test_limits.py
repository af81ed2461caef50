"""What HTTP refuses, and when: sizes, deadlines, places, and bytes that are no request."""

import asyncio
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from courser.transports.settings import ConnectionSettings, HttpSettings
from tests.http.serving import HttpClient, HttpReply, HttpServer, read_reply, serving

SMALL = HttpSettings(port=0, request_size_max=1024)
IMPATIENT = ConnectionSettings(frame_deadline=50_000, frame_rate_min=1024)
"""Microseconds, and bytes a second."""


async def raw(server: HttpServer, data: bytes) -> HttpReply:
    """The answer to bytes as they are."""
    reader, writer = await server.client.open()
    try:
        writer.write(data)
        return await read_reply(reader)
    finally:
        writer.close()


async def until(condition: Callable[[], bool]) -> None:
    """Let the loop run until something has happened."""
    async with asyncio.timeout(60):
        # The other end of a socket tells nothing: there is no event to wait for.
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


def head_of(client: HttpClient, method: str, path: str, *headers: str) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "host: x", f"authorization: Bearer {client.token}", *headers, "", ""]
    return "\r\n".join(lines).encode()


# --- bodies ---


async def test_a_body_that_declares_too_much_is_refused_unread(tmp_path: Path) -> None:
    async with serving(tmp_path, SMALL) as server:
        root = await server.client.login()
        head = head_of(root, "POST", "/streams", "content-type: application/json", "content-length: 1000000000000")
        reply = await raw(server, head)
        assert reply.status == 413
        assert b"1024 bytes that http.max_request_size allows" in reply.body


async def test_a_body_that_declares_nothing_is_refused_while_it_is_read(tmp_path: Path) -> None:
    async with serving(tmp_path, SMALL) as server:
        root = await server.client.login()
        head = head_of(root, "POST", "/streams", "content-type: application/json", "transfer-encoding: chunked")
        # The last chunk never comes.
        reply = await raw(server, head + b"400\r\n" + b" " * 1024 + b"\r\n" + b"1\r\n \r\n")
        assert reply.status == 413


async def test_strangers_may_send_little(server: HttpServer) -> None:
    reply = await server.client.ask("POST", "/users/login", b" " * 20_000)
    assert reply.status == 413


async def test_a_connection_goes_on_after_a_refused_body(tmp_path: Path) -> None:
    async with serving(tmp_path, SMALL) as server:
        root = await server.client.login()
        reader, writer = await server.client.open()
        writer.write(head_of(root, "POST", "/streams", "content-length: 2000") + b" " * 2000)
        assert (await read_reply(reader)).status == 413
        writer.write(head_of(root, "GET", "/streams"))
        assert (await read_reply(reader)).status == 200
        writer.close()


async def test_a_slow_body_is_refused(tmp_path: Path) -> None:
    async with serving(tmp_path, limits=IMPATIENT) as server:
        root = await server.client.login()
        head = head_of(root, "POST", "/streams", "content-type: application/json", "content-length: 100")
        assert (await raw(server, head + b"{")).status == 408


async def test_what_follows_a_refused_body_has_a_deadline(tmp_path: Path) -> None:
    async with serving(tmp_path, SMALL, IMPATIENT) as server:
        root = await server.client.login()
        reader, writer = await server.client.open()
        writer.write(head_of(root, "POST", "/streams", "content-length: 2000") + b" " * 100)
        assert (await read_reply(reader)).status == 413
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await reader.readexactly(1)
        writer.close()


async def test_too_many_large_bodies_at_once(tmp_path: Path) -> None:
    limits = ConnectionSettings(request_memory=1000)
    async with serving(tmp_path, limits=limits) as server:
        root = await server.client.login()
        reply = await root.ask("POST", "/streams", b" " * 1001)
        assert (reply.status, reply.headers["retry-after"]) == (503, "1")
        # The memory is given back.
        assert (await root.ask("POST", "/streams", {"name": "s"})).status == 200


@pytest.mark.parametrize("body", [b"[" * 100_000, b'{"name":' * 50_000, b"\xff\xfe", b"{} {}", b'{"name":"\\ud800"}'])
async def test_bodies_that_are_not_json(root: HttpClient, body: bytes) -> None:
    assert (await root.ask("POST", "/streams", body)).status in (400, 422)


# --- heads ---


async def test_a_head_that_is_too_large(server: HttpServer) -> None:
    reply = await raw(server, b"GET /ping HTTP/1.1\r\n" + b"x: " + b"y" * 300_000)
    assert reply.status == 431


async def test_a_head_that_never_ends_has_a_deadline(tmp_path: Path) -> None:
    async with serving(tmp_path, limits=IMPATIENT) as server:
        for start in (b"", b"GET /ping HTT"):
            reader, writer = await server.client.open()
            writer.write(start)
            with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
                await reader.readexactly(1)
            writer.close()


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET /ping HTTP/1.1\r\nno colon\r\n\r\n",
        b"POST /users/login HTTP/1.1\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /users/login HTTP/1.1\r\ncontent-length: 3\r\ncontent-length: 4\r\n\r\nabcd",
        b"POST /users/login HTTP/1.1\r\ncontent-length: -3\r\n\r\nabc",
        b"POST /users/login HTTP/1.1\r\ntransfer-encoding: xchunked\r\n\r\n0\r\n\r\n",
    ],
)
async def test_bytes_that_are_no_request(server: HttpServer, data: bytes) -> None:
    assert (await raw(server, data)).status == 400


@pytest.mark.parametrize(
    "path",
    [
        "/streams/../streams",
        "//streams",
        "/streams//topics",
        "/./streams",
        "/streams/%",
        "/streams/%00",
        "/streams/%ff",
    ],
)
async def test_odd_paths(root: HttpClient, path: str) -> None:
    assert (await root.ask("GET", path)).status in (400, 404)


async def test_a_name_may_hold_a_slash(root: HttpClient) -> None:
    assert (await root.ask("POST", "/streams", {"name": "a/b é"})).status == 200
    assert (await root.ask("GET", "/streams/a%2Fb%20%C3%A9")).json["name"] == "a/b é"


async def test_the_wrong_method_says_which_are_right(server: HttpServer, root: HttpClient) -> None:
    reply = await root.ask("PATCH", "/streams")
    assert (reply.status, reply.headers["allow"]) == (405, "GET,HEAD,POST")
    assert (await server.client.ask("PATCH", "/streams")).status == 401
    assert (await server.client.ask("POST", "/ping", {})).status == 405


async def test_head_has_the_length_of_get(root: HttpClient) -> None:
    head, get = await root.ask("HEAD", "/streams"), await root.ask("GET", "/streams")
    assert (head.status, head.headers["content-length"]) == (200, get.headers["content-length"])


# --- readers ---


async def test_a_client_that_does_not_read_is_cut_off(tmp_path: Path) -> None:
    limits = ConnectionSettings(send_deadline=50_000)
    async with serving(tmp_path, HttpSettings(port=0, request_size_max=64 * 1024 * 1024), limits) as server:
        root = await server.client.login()
        await root.ask("POST", "/streams", {"name": "s"})
        options = {"compression_algorithm": "none", "message_expiry": 0, "max_topic_size": 0}
        await root.ask("POST", "/streams/s/topics", {"name": "t", "partitions_count": 1} | options)
        path = "/streams/s/topics/t/messages"
        # More than the kernel takes for both ends.
        large = bytes(20_000_000)
        assert (await root.ask("POST", path, large, content_type="application/octet-stream")).status == 201
        with socket.create_connection(("127.0.0.1", server.port)) as deaf:
            deaf.sendall(head_of(root, "GET", path))
            await until(lambda: server.broker.buffers.leased_size > 20_000_000)
            await until(lambda: server.connections.count == 0)
            assert server.broker.buffers.leased_size == 0


# --- places ---


async def test_connections_have_places(tmp_path: Path) -> None:
    limits = ConnectionSettings(connection_count_max=1)
    async with serving(tmp_path, limits=limits) as server:
        # It takes the only place, and whoever comes next gets it: the first has not logged in.
        reader, writer = await server.client.open()
        writer.write(b"GET /ping HTTP/1.1\r\nhost: x\r\n\r\n")
        assert (await read_reply(reader)).status == 200
        assert server.connections.count == 1
        assert (await server.client.ask("GET", "/ping")).status == 200
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await reader.readexactly(1)
        writer.close()


async def test_who_finds_no_place_is_told_to_come_again(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        server.connections._count_max = 0
        reply = await server.client.ask("GET", "/ping")
        assert (reply.status, reply.headers["retry-after"]) == (503, "1")


async def test_places_are_given_back(server: HttpServer) -> None:
    for _ in range(3):
        await server.client.ask("GET", "/ping")
    await until(lambda: not server.connections.count)
