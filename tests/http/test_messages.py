"""Messages over HTTP: exact numbers, raw bodies, long polls."""

import asyncio
import base64
import json
from typing import Any

import pytest

from courser.api.replies import Polled
from courser.records.batch import NewMessage, build_batch, encode_batch
from courser.wire.rest_messages import PART_SIZE, encode_polled
from tests.http.serving import FIRST, HttpClient, HttpServer, message, read_reply, send, until, until_waiting

BALANCED = {"kind": "balanced", "value": ""}


@pytest.mark.parametrize("number", [1, 2**53 + 1, 2**64 - 1, 2**64, 2**128 - 1])
async def test_ids_are_exact(root: HttpClient, topic: str, number: int) -> None:
    await send(root, topic, message(id=str(number)))
    (polled,) = (await root.ask("GET", f"{topic}/messages")).json["messages"]
    assert polled["header"]["id"] == number


@pytest.mark.parametrize("given", [-1, 2**64, "-1", str(2**128), "x", "1.5", 1.5, True, None])
async def test_ids_that_are_none(root: HttpClient, topic: str, given: object) -> None:
    reply = await root.ask("POST", f"{topic}/messages", {"partitioning": FIRST, "messages": [message(id=given)]})
    assert reply.status == 422


async def test_a_reply_says_where_messages_are(root: HttpClient, topic: str) -> None:
    await send(root, topic, message(), message())
    reply = await root.ask("POST", f"{topic}/messages", {"partitioning": FIRST, "messages": [message()]})
    assert reply.json == {"confirmations": [{"stream_id": 0, "topic_id": 0, "partition_id": 0, "base_offset": 2}]}


async def test_raw_bytes_are_one_message(root: HttpClient, topic: str) -> None:
    payload = bytes(range(256)) * 100
    reply = await root.ask(
        "POST", f"{topic}/messages?partition_id=1&id=7", payload, content_type="application/octet-stream"
    )
    assert reply.status == 201
    (polled,) = (await root.ask("GET", f"{topic}/messages?partition_id=1")).json["messages"]
    assert base64.b64decode(polled["payload"]) == payload
    assert polled["header"]["id"] == 7


async def test_raw_bytes_with_a_key_go_where_the_key_says(root: HttpClient, topic: str) -> None:
    path = f"{topic}/messages?key=abc"
    raw = await root.ask("POST", path, b"x", content_type="application/octet-stream")
    by_key = {"partitioning": {"kind": "messages_key", "value": "YWJj"}, "messages": [message()]}
    other = await root.ask("POST", f"{topic}/messages", by_key)
    (one,), (two,) = (reply.json["confirmations"] for reply in (raw, other))
    assert one["partition_id"] == two["partition_id"]


@pytest.mark.parametrize("query", ["partition_id=x", "id=x"])
async def test_raw_bytes_with_a_bad_query(root: HttpClient, topic: str, query: str) -> None:
    reply = await root.ask("POST", f"{topic}/messages?{query}", b"x", content_type="application/octet-stream")
    assert reply.status in (400, 422)


async def test_a_large_poll_comes_whole(root: HttpClient, topic: str) -> None:
    payload = b"p" * 300_000
    for _ in range(3):
        await send(root, topic, message(payload))
    polled = (await root.ask("GET", f"{topic}/messages")).json["messages"]
    assert [base64.b64decode(found["payload"]) for found in polled] == [payload] * 3


def test_a_large_reply_is_encoded_in_small_parts() -> None:
    """Each part holds the interpreter lock while it is encoded, and with it the event loop."""
    payloads = [bytes([number % 256]) * size for number, size in enumerate((3_000_001, 10, *[1000] * 1000))]
    batch = build_batch([NewMessage(payload) for payload in payloads])
    data = memoryview(encode_batch(batch))
    parts = list(encode_polled(Polled(0, 0, batch.count, (data,), len(data))))
    assert max(map(len, parts)) < 2 * PART_SIZE
    messages = json.loads(b"".join(parts))["messages"]
    assert [base64.b64decode(found["payload"]) for found in messages] == payloads


async def test_a_poll_takes_no_more_than_it_is_told(root: HttpClient, topic: str) -> None:
    for _ in range(3):
        await send(root, topic, message(b"p" * 1000))
    assert (await root.ask("GET", f"{topic}/messages?max_bytes=2000")).json["count"] == 1
    assert (await root.ask("GET", f"{topic}/messages?max_bytes=1MiB")).json["count"] == 3


@pytest.mark.parametrize("query", ["wait=soon", "max_bytes=much", "wait=-1", "wait="])
async def test_a_bad_wait(root: HttpClient, topic: str, query: str) -> None:
    assert (await root.ask("GET", f"{topic}/messages?{query}")).status == 400


async def test_a_poll_waits_for_messages(server: HttpServer, root: HttpClient, topic: str) -> None:
    polling = asyncio.create_task(root.ask("GET", f"{topic}/messages?wait=20s"))
    await until_waiting(server)
    await send(root, topic, message(b"late"))
    assert (await polling).json["count"] == 1


async def test_a_client_that_goes_ends_its_wait(server: HttpServer, root: HttpClient, topic: str) -> None:
    _, writer = await root.open()
    writer.write(
        f"GET {topic}/messages?wait=20s HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {root.token}\r\n\r\n".encode()
    )
    await until_waiting(server)
    writer.close()
    await until(lambda: not server.long_polls)


async def test_a_stop_ends_waits_with_a_reply(server: HttpServer, root: HttpClient, topic: str) -> None:
    polling = asyncio.create_task(root.ask("GET", f"{topic}/messages?wait=20s"))
    await until_waiting(server)
    server.listener.close()
    await server.connections.say_goodbye(60)
    reply = await polling
    assert (reply.status, reply.json["count"]) == (200, 0)


async def test_messages_that_are_gone_are_an_error_for_strict_polls(root: HttpClient, topic: str) -> None:
    await send(root, topic, message())
    assert (await root.ask("DELETE", f"{topic}/purge")).status == 204
    await send(root, topic, message())
    for query in ("wait=1s", "max_bytes=1", "strict=true"):
        reply = await root.ask("GET", f"{topic}/messages?{query}")
        assert (reply.status, reply.json["code"]) == (410, "offset_gone"), query
        assert (reply.json["first_offset"], reply.json["end_offset"]) == (0, 1)
    for query in ("", "strict=false"):
        assert (await root.ask("GET", f"{topic}/messages?{query}")).json["count"] == 1, query
    assert (await root.ask("GET", f"{topic}/messages?value=1&strict=true")).json["count"] == 1


@pytest.mark.parametrize("query", ["strict=false&wait=1s", "strict=false&max_bytes=1", "strict=yes"])
async def test_a_poll_that_waits_is_strict(root: HttpClient, topic: str, query: str) -> None:
    assert (await root.ask("GET", f"{topic}/messages?{query}")).status == 400


async def test_requests_on_one_connection_are_answered_in_order(root: HttpClient, topic: str) -> None:
    reader, writer = await root.open()
    head = f" HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {root.token}\r\n\r\n"
    writer.write("".join(f"GET {path}{head}" for path in ("/ping", topic, "/nope", "/ping")).encode())
    replies = [await read_reply(reader) for _ in range(4)]
    assert [reply.status for reply in replies] == [200, 200, 404, 200]
    writer.close()


async def test_a_topic_can_keep_the_latest_by_key(root: HttpClient, topic: str) -> None:
    assert "keep_latest_by_key" not in (await root.ask("GET", topic)).json["options"]
    body = {"name": "t", "options": {"keep_latest_by_key": "true"}}
    assert (await root.ask("PUT", topic, body)).status == 204
    assert (await root.ask("GET", topic)).json["options"]["keep_latest_by_key"]["value"] == "true"


@pytest.mark.parametrize("algorithm", ["gzip", "zstd"])
async def test_a_topic_names_its_compression(root: HttpClient, topic: str, algorithm: str) -> None:
    assert (await root.ask("PUT", topic, {"name": "t", "compression_algorithm": algorithm})).status == 204
    reply = await root.ask("GET", topic)
    assert reply.json["options"]["compression_algorithm"]["value"] == algorithm
    # SDKs have a word for one algorithm only.
    assert reply.json["compression_algorithm"] == "gzip"


@pytest.mark.parametrize("flag", ["true", "false", "fsync=true", "fsync=false"])
async def test_a_flush_may_name_its_flag(root: HttpClient, topic: str, flag: str) -> None:
    """As the Rust SDK does."""
    assert (await root.ask("GET", f"{topic}/messages/flush/0/{flag}")).status == 200


async def test_a_flush_with_a_flag_that_is_none(root: HttpClient, topic: str) -> None:
    assert (await root.ask("GET", f"{topic}/messages/flush/0/fsync=1")).status == 400


async def test_user_headers_as_sdk_0_6_has_them(server: HttpServer, root: HttpClient, topic: str) -> None:
    """It names its version when it logs in. Its user headers are an object, both ways; nobody else's are."""
    login = {"username": "iggy", "password": "iggy", "version": "0.8.0", "context": ""}
    token = (await server.client.ask("POST", "/users/login", login)).json["access_token"]["token"]
    token = (await server.client.ask("POST", "/users/refresh-token", {"token": token})).json["access_token"]["token"]
    headers = {"key": {"kind": "string", "value": "dmFsdWU="}}
    old = HttpClient(server.port, token)
    await send(old, topic, message(b"with", headers=headers), message(b"without"))
    polled = (await old.ask("GET", f"{topic}/messages")).json["messages"]
    assert [found["user_headers"] for found in polled] == [headers, {}]
    polled = (await root.ask("GET", f"{topic}/messages")).json["messages"]
    key = {"kind": "string", "value": "a2V5"}
    assert [found["user_headers"] for found in polled] == [[{"key": key, "value": headers["key"]}], []]


async def test_segments_and_what_was_deleted_are_listed(root: HttpClient, topic: str) -> None:
    await send(root, topic, message())
    listed = (await root.ask("GET", f"{topic}/partitions/0/segments")).json
    (segment,) = listed["segments"]
    assert (listed["partition_id"], segment["first_offset"], segment["next_offset"]) == (0, 0, 1)
    assert (segment["state"], segment["location"], segment["is_sealed"]) == ("active", "local", False)
    assert (await root.ask("GET", f"{topic}/partitions/7/segments")).status == 404
    assert (await root.ask("GET", f"{topic}/maintenance")).json == {"deletions": [], "damages": []}
    assert (await root.ask("DELETE", f"{topic}/purge")).status == 204
    (deletion,) = (await root.ask("GET", f"{topic}/maintenance")).json["deletions"]
    assert (deletion["reason"], deletion["message_count"]) == ("purged", 1)
    assert (await root.ask("GET", f"{topic}x/maintenance")).status == 404


PARENT = f"00-{'a' * 32}-{'b' * 16}-01"
MARKS = {"traceparent": PARENT, "tracestate": "vendor=1"}


def headers_of(stored: dict[str, Any]) -> dict[str, str]:
    return {
        base64.b64decode(header["key"]["value"]).decode(): base64.b64decode(header["value"]["value"]).decode()
        for header in stored["user_headers"]
    }


@pytest.mark.parametrize("is_raw", [False, True])
async def test_a_message_carries_the_trace_context_of_its_request(root: HttpClient, topic: str, is_raw: bool) -> None:
    kind, path = "application/octet-stream" if is_raw else "application/json", f"{topic}/messages?partition_id=0"
    body = b"hello" if is_raw else {"partitioning": FIRST, "messages": [message(b"hello")]}
    reply = await root.ask("POST", path, body, content_type=kind, headers=MARKS)
    assert reply.status == 201
    (stored,) = (await root.ask("GET", f"{topic}/messages")).json["messages"]
    assert base64.b64decode(stored["payload"]) == b"hello"
    assert headers_of(stored) == MARKS


async def test_a_message_that_has_a_trace_context_keeps_it(root: HttpClient, topic: str) -> None:
    own = {name: {"kind": "string", "value": base64.b64encode(b"own").decode()} for name in ("traceparent", "other")}
    await root.ask(
        "POST",
        f"{topic}/messages",
        {"partitioning": FIRST, "messages": [message(headers=own)]},
        headers=MARKS,
    )
    (stored,) = (await root.ask("GET", f"{topic}/messages")).json["messages"]
    assert headers_of(stored) == {"traceparent": "own", "other": "own"}


@pytest.mark.parametrize(
    "parent", ["", "x", f"ff-{'a' * 32}-{'b' * 16}-01", f"00-{'0' * 32}-{'b' * 16}-01", f"00-{'A' * 32}-{'b' * 16}-01"]
)
async def test_an_invalid_trace_context_is_ignored(root: HttpClient, topic: str, parent: str) -> None:
    body = {"partitioning": FIRST, "messages": [message()]}
    reply = await root.ask("POST", f"{topic}/messages", body, headers={"traceparent": parent})
    assert reply.status == 201
    (stored,) = (await root.ask("GET", f"{topic}/messages")).json["messages"]
    assert stored["user_headers"] == []
