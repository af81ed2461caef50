"""Server-sent events: what comes, in which order, how a client resumes, and what becomes of one that does not read."""

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from courser.model.identifiers import TopicAddress
from courser.model.quantities import SECOND
from courser.transports.settings import ConnectionSettings
from courser.wire.rest_events import ResumePoint, decode_cursor
from tests.fakes.clocks import ManualClock
from tests.http import event_streams
from tests.http.event_streams import Stream
from tests.http.serving import HttpClient, HttpServer, make_topic, message, send, serving, until


@asynccontextmanager
async def listening(client: HttpClient, query: str, last_event_id: str = "") -> AsyncIterator[Stream]:
    """A stream of events, after its first one."""
    async with opened(client, query, last_event_id) as stream:
        assert (await stream.event()).kind == "subscribed"
        yield stream


@asynccontextmanager
async def opened(client: HttpClient, query: str, last_event_id: str = "") -> AsyncIterator[Stream]:
    async with event_streams.opened(client, f"/events?{query}", last_event_id) as stream:
        yield stream


async def test_an_event_says_where_a_message_is(server: HttpServer, root: HttpClient, topic: str) -> None:
    async with opened(root, "topic=s/t") as stream:
        assert stream.headers["content-type"] == "text/event-stream"
        assert stream.headers["cache-control"] == "no-store"
        first = await stream.event()
        assert first.data == {"topics": [{"stream": "s", "topic": "t", "offsets": {"0": 0, "1": 0}}]}
        await send(root, topic, message(b"x", id=7), partition_id=1)
        event = await stream.event()
        assert event.kind == "message"
        assert event.data.pop("timestamp") > 0
        assert event.data.pop("origin_timestamp") > 0
        assert event.data == {"stream": "s", "topic": "t", "partition_id": 1, "offset": 0, "id": "7"}
    await until(lambda: not len(server.subscriptions) and not len(server.broker.sessions))


@pytest.mark.parametrize(
    ("form", "payload", "shown", "encoding"),
    [
        ("base64", b"\xff", "/w==", "base64"),
        ("text", "ü\n\n".encode(), "ü\n\n", "text"),
        ("json", b'{"a":\r\n[1, 2]}', {"a": [1, 2]}, "json"),
        ("json", b"no\n\njson", base64.b64encode(b"no\n\njson").decode(), "base64"),
    ],
)
async def test_payloads_are_optional(
    root: HttpClient, topic: str, form: str, payload: bytes, shown: object, encoding: str
) -> None:
    async with listening(root, f"topic=s/t&payload={form}") as stream:
        await send(root, topic, message(payload))
        event = await stream.event()
        assert (event.data["payload"], event.data["encoding"]) == (shown, encoding)


async def test_several_topics(root: HttpClient, topic: str) -> None:
    other = await make_topic(root, "a/b")
    async with listening(root, "topic=s/t&topic=0/a%252Fb&topic=0/0") as stream:
        await send(root, topic, message())
        assert (await stream.event()).data["topic"] == "t"
        await send(root, other.replace("a/b", "a%2Fb"), message())
        data = (await stream.event()).data
        assert (data["stream"], data["topic"]) == (0, "a/b"), "as the request names it"


@pytest.mark.parametrize(
    ("query", "offsets"),
    [
        ("kind=first", [0, 1, 2, 3]),
        ("kind=offset&value=2", [2, 3]),
        ("kind=last&count=1", [2, 3]),
        ("kind=next&consumer_id=7", [1, 2, 3]),
        ("kind=timestamp&value=0", [0, 1, 2, 3]),
        ("", [3]),
    ],
)
async def test_where_to_start(root: HttpClient, topic: str, query: str, offsets: list[int]) -> None:
    await send(root, topic, *[message()] * 3)
    place = {"consumer_id": 7, "partition_id": 0, "offset": 0}
    assert (await root.ask("PUT", f"{topic}/consumer-offsets", place)).status == 204
    async with listening(root, f"topic=s/t&{query}") as stream:
        await send(root, topic, message())
        assert [(await stream.event()).data["offset"] for _ in offsets] == offsets


async def test_a_client_resumes_after_any_event(root: HttpClient, topic: str) -> None:
    async with opened(root, "topic=s/t") as stream:
        ids = [(await stream.event()).event_id]
        for partition_id in (0, 1):
            await send(root, topic, *[message()] * 3, partition_id=partition_id)
            ids += [(await stream.event()).event_id for _ in range(3)]
    places = [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]
    for seen_count, event_id in enumerate(ids[:-1]):
        async with listening(root, "topic=s/t", event_id) as stream:
            events = [await stream.event() for _ in places[seen_count:]]
            found = [(event.data["partition_id"], event.data["offset"]) for event in events]
            assert sorted(found) == places[seen_count:]


async def test_what_an_id_does_not_know_is_new(root: HttpClient, topic: str) -> None:
    async with opened(root, "topic=s/t") as stream:
        event_id = (await stream.event()).event_id
    assert (await root.ask("DELETE", topic)).status == 204
    await make_topic(root)
    await send(root, topic, message())
    async with listening(root, "topic=s/t", event_id) as stream:
        assert (await stream.event()).data["offset"] == 0


async def test_messages_that_are_gone_are_a_gap(root: HttpClient, topic: str) -> None:
    async with opened(root, "topic=s/t") as stream:
        event_id = (await stream.event()).event_id
    await send(root, topic, *[message()] * 2)
    assert (await root.ask("DELETE", f"{topic}/purge")).status == 204
    await send(root, topic, message())
    async with listening(root, "topic=s/t", event_id) as stream:
        gap = await stream.event()
        assert (gap.kind, gap.data["first_offset"], gap.data["end_offset"]) == ("gap", 0, 2)
        assert (await stream.event()).data["offset"] == 2


async def test_a_topic_that_ends(root: HttpClient, topic: str) -> None:
    other = await make_topic(root, "other")
    async with listening(root, "topic=s/t&topic=s/other") as stream:
        assert (await root.ask("DELETE", topic)).status == 204
        end = await stream.event()
        assert (end.kind, end.data["topic"], end.data["error"]["code"]) == ("ended", "t", "topic_id_not_found")
        await send(root, other, message())
        assert (await stream.event()).data["topic"] == "other"
        assert (await root.ask("DELETE", other)).status == 204
        assert (await stream.event()).kind == "ended"
        with pytest.raises(EOFError):
            await stream.event()


async def test_a_stop_ends_streams(server: HttpServer, root: HttpClient, topic: str) -> None:
    async with listening(root, "topic=s/t") as stream:
        server.listener.close()
        stopping = asyncio.create_task(server.connections.say_goodbye(60))
        assert (await stream.event()).kind == "stopped"
        with pytest.raises(EOFError):
            await stream.event()
        await stopping
    del topic


async def test_who_logs_out_hears_nothing_more(server: HttpServer, root: HttpClient, topic: str) -> None:
    other = server.root
    async with listening(other, "topic=s/t") as stream:
        assert (await other.ask("DELETE", "/users/logout")).status == 204
        await send(root, topic, message())
        end = await stream.event()
        assert (end.kind, end.data["code"]) == ("stopped", "unauthenticated")


async def test_who_is_deleted_hears_nothing_more(root: HttpClient, topic: str) -> None:
    everything = {"manage_stream": True, "read_stream": True, "manage_topics": True, "read_topics": True}
    stream_permissions = everything | {"poll_messages": True, "send_messages": True}
    nothing = dict.fromkeys(
        [
            *("manage_servers", "read_servers", "manage_users", "read_users", "manage_streams", "read_streams"),
            *("manage_topics", "read_topics", "poll_messages", "send_messages"),
        ],
        False,
    )
    permissions = {"global": nothing, "streams": {"0": stream_permissions}}
    user = {"username": "eve", "password": "secret", "status": "active", "permissions": permissions}
    assert (await root.ask("POST", "/users", user)).status == 200
    eve = await HttpClient(root.port).login("eve", "secret")
    async with listening(eve, "topic=s/t") as stream:
        assert (await root.ask("PUT", "/users/eve/permissions", {"permissions": None})).status == 204
        assert (await stream.event()).data["error"]["code"] == "unauthorized"
    assert (await eve.ask("GET", "/events?topic=s/t")).status == 403
    del topic


async def test_comments_keep_a_connection_alive_until_the_token_expires(tmp_path: Path) -> None:
    clock = ManualClock()
    async with serving(tmp_path, clock=clock) as server:
        root = server.root
        await make_topic(root)
        server.application._events.keep_alive_interval = 0.001
        async with listening(root, "topic=s/t") as stream:
            assert [await stream.block() for _ in range(3)] == [": keep-alive"] * 3
            clock.advance(3605 * SECOND)
            end = await stream.event()
            assert (end.kind, end.data["code"]) == ("stopped", "unauthenticated")


@pytest.mark.parametrize(
    ("query", "last_event_id", "status"),
    [
        ("", "", 400),
        ("topic=s", "", 400),
        ("topic=s/", "", 400),
        ("topic=s/none", "", 404),
        ("topic=s/t&topic=none/t", "", 404),
        ("topic=s/t&kind=soon", "", 400),
        ("topic=s/t&payload=yes", "", 400),
        ("topic=s/t&value=-1", "", 400),
        ("topic=s/%25ff", "", 400),
        ("topic=s/t", "nonsense", 400),
        ("topic=s/t", "0.0.0.99999999999999999999", 400),
    ],
)
async def test_subscriptions_that_are_refused(
    server: HttpServer, root: HttpClient, topic: str, query: str, last_event_id: str, status: int
) -> None:
    headers = {"last-event-id": last_event_id} if last_event_id else {}
    assert (await root.ask("GET", f"/events?{query}", headers=headers)).status == status
    assert (await server.client.ask("GET", "/events?topic=s/t")).status == 401
    assert not len(server.subscriptions)
    del topic


async def test_head_has_no_events(server: HttpServer, root: HttpClient, topic: str) -> None:
    assert (await root.ask("HEAD", "/events?topic=s/t")).headers["content-type"] == "text/event-stream"
    await until(lambda: not len(server.subscriptions))
    del topic


def test_an_id_is_read_as_it_was_written() -> None:
    cursor = ResumePoint({TopicAddress(1, 2): {0: 5, 3: 2**64 - 1}, TopicAddress(4, 5): {0: 0}})
    assert decode_cursor(cursor.encode().decode()) == cursor


async def test_who_does_not_read_is_cut_off_with_little_memory(tmp_path: Path) -> None:
    payload = base64.b64encode(bytes(1_000_000)).decode()
    limits = ConnectionSettings(send_deadline=SECOND // 10)
    async with serving(tmp_path, limits=limits) as server:
        root = server.root
        topic = await make_topic(root)
        # More than the sockets hold.
        for _ in range(48):
            await send(root, topic, {"payload": payload})
        async with opened(root, "topic=s/t&kind=first&payload=base64") as stream:
            stream.writer.transport.pause_reading()  # type: ignore[attr-defined]
            largest = 0

            def is_over() -> bool:
                nonlocal largest
                largest = max(largest, server.broker.buffers.ledger.size)
                return not len(server.subscriptions)

            await until(is_over)
            assert largest < 8_000_000
            assert (await root.ask("GET", "/ping")).status == 200
