"""What HTTP refuses, and when: sizes, deadlines, places, and bytes that are no request."""

import asyncio
import gzip
import json
import socket
import ssl
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from courser.model.memory_ledger import MemoryLedger
from courser.server.certificates import make_self_signed
from courser.transports.request_memory import RequestMemory
from courser.transports.settings import ConnectionSettings, HttpSettings
from tests.http.serving import HttpClient, HttpReply, HttpServer, read_reply, serving, until

SMALL = HttpSettings(port=0, request_size_max=1024)
IMPATIENT = ConnectionSettings(frame_deadline=500_000, frame_rate_min=1024)
"""Microseconds, and bytes a second. Requests that are not slow have to arrive in time on a busy machine too."""
LATER = 2**62
"""On the monotonic clock."""


async def raw(server: HttpServer, data: bytes) -> HttpReply:
    """The answer to bytes as they are."""
    reader, writer = await server.client.open()
    try:
        writer.write(data)
        return await read_reply(reader)
    finally:
        writer.close()


def head_of(client: HttpClient, method: str, path: str, *headers: str) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "host: x", f"authorization: Bearer {client.token}", *headers, "", ""]
    return "\r\n".join(lines).encode()


# --- bodies ---


async def test_a_body_that_declares_too_much_is_refused_unread(tmp_path: Path) -> None:
    async with serving(tmp_path, SMALL) as server:
        root = server.root
        head = head_of(root, "POST", "/streams", "content-type: application/json", "content-length: 1000000000000")
        reply = await raw(server, head)
        assert reply.status == 413
        assert b"1024 bytes that http.max_request_size allows" in reply.body


async def test_a_body_that_declares_nothing_is_refused_while_it_is_read(tmp_path: Path) -> None:
    async with serving(tmp_path, SMALL) as server:
        root = server.root
        head = head_of(root, "POST", "/streams", "content-type: application/json", "transfer-encoding: chunked")
        # The last chunk never comes.
        reply = await raw(server, head + b"400\r\n" + b" " * 1024 + b"\r\n" + b"1\r\n \r\n")
        assert reply.status == 413


async def test_strangers_may_send_little(server: HttpServer) -> None:
    reply = await server.client.ask("POST", "/users/login", b" " * 20_000)
    assert reply.status == 413


async def test_a_connection_goes_on_after_a_refused_body(tmp_path: Path) -> None:
    async with serving(tmp_path, SMALL) as server:
        root = server.root
        reader, writer = await server.client.open()
        writer.write(head_of(root, "POST", "/streams", "content-length: 2000") + b" " * 2000)
        assert (await read_reply(reader)).status == 413
        writer.write(head_of(root, "GET", "/streams"))
        assert (await read_reply(reader)).status == 200
        writer.close()


async def test_a_slow_body_is_refused(tmp_path: Path) -> None:
    async with serving(tmp_path, limits=IMPATIENT) as server:
        root = server.root
        head = head_of(root, "POST", "/streams", "content-type: application/json", "content-length: 100")
        assert (await raw(server, head + b"{")).status == 408


async def test_what_follows_a_refused_body_has_a_deadline(tmp_path: Path) -> None:
    async with serving(tmp_path, SMALL, IMPATIENT) as server:
        root = server.root
        reader, writer = await server.client.open()
        writer.write(head_of(root, "POST", "/streams", "content-length: 2000") + b" " * 100)
        assert (await read_reply(reader)).status == 413
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await reader.readexactly(1)
        writer.close()


def take_all(ledger: MemoryLedger) -> list[RequestMemory]:
    """One overdraws the budget, as one may, and the other takes all of it."""
    hoarders = []
    for size in (4 * ledger.size_max, ledger.large_size_max):
        hoarders.append(RequestMemory(ledger, lambda: None))
        assert hoarders[-1].grow(size, size)
    return hoarders


SCARCE = ConnectionSettings(request_memory=1024 * 1024)
LARGE_BODY = json.dumps({"name": "s"}).encode() + b" " * 500_000


async def test_a_large_body_waits_for_the_memory_of_all_transports(tmp_path: Path) -> None:
    async with serving(tmp_path, limits=SCARCE) as server:
        root = server.root
        hoarders = take_all(server.memory)
        asking = asyncio.create_task(root.ask("POST", "/streams", LARGE_BODY))
        await until(lambda: server.memory.waiting_count == 1)
        # Small ones need none.
        assert (await root.ask("GET", "/streams")).json == []
        for hoarder in hoarders:
            hoarder.close()
        assert (await asking).status == 200
        await until(lambda: server.memory.size == 0)


async def test_a_large_body_that_gets_no_memory_is_told_to_come_again(tmp_path: Path) -> None:
    limits = replace(SCARCE, frame_deadline=1_000_000)
    async with serving(tmp_path, limits=limits) as server:
        root = server.root
        hoarders = take_all(server.memory)
        reply = await root.ask("POST", "/streams", LARGE_BODY)
        assert (reply.status, reply.headers["retry-after"]) == (503, "1")
        await until(lambda: server.memory.waiting_count == 0)
        for hoarder in hoarders:
            hoarder.close()
        assert server.memory.size == 0
        assert (await root.ask("POST", "/streams", LARGE_BODY)).status == 200


async def test_a_body_that_comes_slowly_makes_room_for_others_that_wait(tmp_path: Path) -> None:
    async with serving(tmp_path, limits=SCARCE) as server:
        root = server.root
        reader, writer = await server.client.open()
        writer.write(head_of(root, "POST", "/streams", "content-length: 2000000") + b" " * 200_000)
        await until(lambda: server.memory.size > 0)
        (seat,) = (found for found in server.connections if found.reserved_by_sender(LATER) is not None)
        rate, lent_size = seat.reserved_by_sender(LATER) or (0, 0)
        assert rate < 64 * 1024
        assert lent_size == server.memory.size
        seat.abort()
        await until(lambda: server.memory.size == 0)
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await reader.readexactly(1)
        writer.close()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b" ",
        b"null",
        b"[]",
        b'[{"name":"a"}]',
        b'"name"',
        b"[" * 100_000,
        b'{"name":' * 50_000,
        b"\xff\xfe",
        b'\xef\xbb\xbf{"name":"a"}',
        '{"name":"a"}'.encode("utf-16"),
        '{"name":"\xe9"}'.encode("latin-1"),
        b"{} {}",
        b'{"name":"\\ud800"}',
        b'{"name":NaN}',
        b'{"name":7}',
        b'{"name":null}',
        b"{'name':'a'}",
        b'{"name":"a",}',
    ],
)
async def test_bodies_that_are_not_the_right_json(root: HttpClient, body: bytes) -> None:
    assert (await root.ask("POST", "/streams", body)).status in (400, 422)


@pytest.mark.parametrize(
    "number", [b"1e400", b"NaN", b"-1", b"1.5", b'"1"', b"9" * 5000, b"4294967296", b"true", b"null"]
)
async def test_numbers_that_are_none(root: HttpClient, topic: str, number: bytes) -> None:
    body = b'{"partitions_count":%b}' % number
    assert (await root.ask("POST", f"{topic}/partitions", body)).status in (400, 422)


async def test_of_a_key_that_comes_twice_the_last_counts(root: HttpClient) -> None:
    assert (await root.ask("POST", "/streams", b'{"name":"a","name":"b"}')).json["name"] == "b"


async def test_a_request_without_a_body(root: HttpClient) -> None:
    assert (await root.ask("POST", "/streams")).status == 415
    assert (await root.ask("POST", "/streams", b"{}", content_type=None)).status == 415
    assert (
        await root.ask("POST", "/streams", b"name=a", content_type="application/x-www-form-urlencoded")
    ).status == 415


@pytest.mark.parametrize("payload", ["*", "eA", "eA=", "eA===", "e A==", "eA==\n", "eA__", 7, None, ["eA=="]])
async def test_payloads_that_are_not_base64(root: HttpClient, topic: str, payload: object) -> None:
    body = {"partitioning": {"kind": "balanced", "value": ""}, "messages": [{"payload": payload}]}
    assert (await root.ask("POST", f"{topic}/messages", body)).status in (400, 422)
    assert (await root.ask("GET", topic)).json["messages_count"] == 0


@pytest.mark.parametrize("content_type", ["application/json", "application/octet-stream"])
@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "identity, gzip"])
async def test_compressed_bodies_are_refused(root: HttpClient, topic: str, content_type: str, encoding: str) -> None:
    bomb = gzip.compress(bytes(10_000_000))
    headers = {"content-encoding": encoding}
    reply = await root.ask("POST", f"{topic}/messages", bomb, content_type=content_type, headers=headers)
    assert reply.status == 415
    assert (await root.ask("GET", topic)).json["messages_count"] == 0


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
        b"POST /users/login HTTP/1.1\r\ntransfer-encoding: chunked, identity\r\n\r\n0\r\n\r\n",
        b"POST /users/login HTTP/1.1\r\ntransfer-encoding : chunked\r\n\r\n0\r\n\r\n",
        b"POST /users/login HTTP/1.1\r\ntransfer-encoding: chunked\r\ncontent-length: 3\r\n\r\n0\r\n\r\n",
        b"POST /users/login HTTP/1.1\r\ncontent-length: +3\r\n\r\nabc",
        b"POST /users/login HTTP/1.1\r\ncontent-length: 0x3\r\n\r\nabc",
        b"POST /users/login HTTP/1.1\r\ncontent-length: 3, 3\r\n\r\nabc",
        b"POST /users/login HTTP/1.1\r\ncontent-length: 99999999999999999999\r\n\r\nabc",
        b"GET /ping HTTP/1.1\r\nhost: x\r\n folded: y\r\n\r\n".replace(b"host: x", b""),
        b"GET /ping HTTP/1.1\r\nx: a\x00b\r\n\r\n",
        b"GET /pi\x00ng HTTP/1.1\r\n\r\n",
        b"GET /ping HTTP/9.9\r\n\r\n",
        b"MAKE /ping HTTP/1.1\r\n\r\n",
        b"get /ping HTTP/1.1\r\n\r\n",
    ],
)
async def test_bytes_that_are_no_request(server: HttpServer, data: bytes) -> None:
    assert (await raw(server, data)).status == 400


CHUNKED = "transfer-encoding: chunked"
JSON = "content-type: application/json"


@pytest.mark.parametrize(
    "chunks",
    [
        b"ffffffffffffffff1\r\n{}\r\n0\r\n\r\n",
        b"-2\r\n{}\r\n0\r\n\r\n",
        b"2\n{}\r\n0\r\n\r\n",
        b"2\r\n{}x\r\n0\r\n\r\n",
        b"2 2\r\n{}\r\n0\r\n\r\n",
        b"zz\r\n",
    ],
)
async def test_chunks_that_are_none_end_the_connection(server: HttpServer, root: HttpClient, chunks: bytes) -> None:
    """Nothing that follows is taken for another request."""
    reader, writer = await server.client.open()
    writer.write(head_of(root, "POST", "/streams", CHUNKED, JSON) + chunks + head_of(root, "GET", "/ping"))
    rest = await reader.read()
    assert b"200 OK" not in rest
    assert b"pong" not in rest
    writer.close()


async def test_what_follows_a_body_is_another_request_and_nothing_else(server: HttpServer, root: HttpClient) -> None:
    hidden = head_of(root, "DELETE", "/streams/kept")
    await root.ask("POST", "/streams", {"name": "kept"})
    reader, writer = await server.client.open()
    body = b'{"name":"x"}' + hidden
    writer.write(head_of(root, "POST", "/streams", JSON, f"content-length: {len(body)}") + body)
    assert (await read_reply(reader)).status == 400
    writer.write(head_of(root, "GET", "/streams/kept"))
    assert (await read_reply(reader)).json["name"] == "kept"
    writer.close()


async def test_a_body_that_ends_early_does_nothing(server: HttpServer, root: HttpClient) -> None:
    reader, writer = await server.client.open()
    writer.write(head_of(root, "POST", "/streams", JSON, "content-length: 100") + b'{"name":"x"}')
    writer.write_eof()
    assert await reader.read() == b""
    writer.close()
    assert (await root.ask("GET", "/streams")).json == []


async def test_many_headers_are_too_large_a_head(server: HttpServer) -> None:
    head = b"GET /ping HTTP/1.1\r\n"
    few, many = (b"".join(b"x-%d: y\r\n" % number for number in range(count)) for count in (100, 20_000))
    assert (await raw(server, head + few + b"\r\n")).status == 200
    assert (await raw(server, head + many)).status == 431


async def test_a_path_that_is_too_long(server: HttpServer, root: HttpClient) -> None:
    assert (await raw(server, b"GET /" + b"a" * 300_000)).status == 431
    assert (await root.ask("GET", f"/streams/{'a' * 60_000}")).status in (400, 404)


async def test_trace_is_not_answered_with_the_request(root: HttpClient) -> None:
    for method in ("TRACE", "CONNECT", "PATCH"):
        reply = await root.ask(method, "/streams" if method != "CONNECT" else "x:1", headers={"x-secret": "abc"})
        assert reply.status in (400, 404, 405)
        assert b"abc" not in reply.body


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
        "/streams/..",
        "/streams/%2e%2e/users",
        "/streams/%252e%252e%252fusers",
        "/streams/%c0%ae%c0%ae/topics",
        "/%73treams/none",
        "/docs/../users",
        "/docs/%2e%2e%2fetc%2fpasswd",
        "/openapi.json/",
        "*",
        "http://other.example/nope",
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
    limits = ConnectionSettings(send_deadline=1_000_000)
    async with serving(tmp_path, HttpSettings(port=0, request_size_max=64 * 1024 * 1024), limits) as server:
        root = server.root
        await root.ask("POST", "/streams", {"name": "s"})
        options = {"compression_algorithm": "none", "message_expiry": 0, "max_topic_size": 0}
        await root.ask("POST", "/streams/s/topics", {"name": "t", "partitions_count": 1} | options)
        path = "/streams/s/topics/t/messages"
        # More than the kernel takes for both ends.
        large = bytes(36_000_000)
        assert (await root.ask("POST", path, large, content_type="application/octet-stream")).status == 201
        with socket.create_connection(("127.0.0.1", server.port)) as deaf:
            deaf.sendall(head_of(root, "GET", path))
            await until(lambda: server.broker.buffers.ledger.size > 36_000_000)
            await until(lambda: server.connections.count == 0)
            assert server.broker.buffers.ledger.size == 0


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


async def test_who_has_a_valid_access_token_keeps_the_place(tmp_path: Path) -> None:
    limits = ConnectionSettings(connection_count_max=2)
    async with serving(tmp_path, limits=limits) as server:
        root = server.root
        await until(lambda: not server.connections.count)
        known_reader, known = await server.client.open()
        known.write(head_of(root, "GET", "/streams"))
        assert (await read_reply(known_reader)).status == 200
        # The stranger came later, and goes first.
        reader, stranger = await server.client.open()
        stranger.write(head_of(HttpClient(0, "made up"), "GET", "/streams"))
        assert (await read_reply(reader)).status == 401
        assert (await server.client.ask("GET", "/ping")).status == 200
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await reader.readexactly(1)
        known.write(head_of(root, "GET", "/streams"))
        assert (await read_reply(known_reader)).status == 200
        # Without its token it is a stranger again.
        assert (await root.ask("DELETE", "/users/logout")).status == 204
        known.write(head_of(root, "GET", "/streams"))
        assert (await read_reply(known_reader)).status == 401
        server.connections.enforce_deadlines()
        others = [await server.client.open() for _ in range(2)]
        for other_reader, other in others:
            other.write(b"GET /ping HTTP/1.1\r\nhost: x\r\n\r\n")
            assert (await read_reply(other_reader)).status == 200
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await known_reader.readexactly(1)
        for writer in (known, stranger, *(other for _, other in others)):
            writer.close()


async def test_handshakes_have_places_too(tmp_path: Path) -> None:
    key, certificate = make_self_signed("127.0.0.1", datetime.now(UTC))
    (tmp_path / "both.pem").write_bytes(certificate + key)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(tmp_path / "both.pem")
    trusting = ssl.create_default_context(cafile=tmp_path / "both.pem")
    limits = ConnectionSettings(connection_count_max=2)
    async with serving(tmp_path / "data", limits=limits, tls=context) as server:
        silent = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(2)]
        await until(lambda: server.connections.count == 2)
        assert (await HttpClient(server.port, tls=trusting).ask("GET", "/ping")).status == 200
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await silent[0][0].readexactly(1)
        silent[1][1].write(b"no handshake")
        await until(lambda: not server.connections.count)
        for _, writer in silent:
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
