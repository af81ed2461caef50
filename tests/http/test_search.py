"""Searches: which messages come, in which order, how far a search has got, and how it ends."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from courser.broker.settings import BrokerLimits, BrokerSettings
from tests.http.event_streams import Event, opened
from tests.http.serving import HttpClient, HttpServer, make_topic, message, send, serving, until


async def search(client: HttpClient, topic: str, query: str) -> list[Event]:
    """All events of a search."""
    async with opened(client, f"{topic}/search?{query}") as stream:
        events = [await stream.event()]
        while events[-1].kind not in ("done", "stopped"):
            events.append(await stream.event())
        return events


async def found(client: HttpClient, topic: str, query: str) -> list[tuple[int, int]]:
    """Partition and offset of the messages that are found."""
    events = await search(client, topic, query)
    return [(event.data["partition_id"], event.data["offset"]) for event in events if event.kind == "message"]


async def fill(root: HttpClient, topic: str) -> None:
    """Three messages in each of two partitions, alternately."""
    for number in range(3):
        for partition_id in range(2):
            payload = b'{"order": {"id": "A-%d"}, "n": %d}' % (10 * partition_id + number, number)
            await send(root, topic, message(payload), partition_id=partition_id)


async def test_without_conditions_all_messages_come_in_the_order_of_time(root: HttpClient, topic: str) -> None:
    await fill(root, topic)
    oldest = [(0, 0), (1, 0), (0, 1), (1, 1), (0, 2), (1, 2)]
    assert await found(root, topic, "order=oldest") == oldest
    assert await found(root, topic, "") == oldest[::-1]
    assert await found(root, topic, "partition_id=1") == [(1, 2), (1, 1), (1, 0)]
    assert await found(root, topic, "count=2") == [(1, 2), (0, 2)]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("filter=A-11", [(1, 1)]),
        ("filter=.order.id=A-2", [(0, 2)]),
        ("filter=.n=1&order=oldest", [(0, 1), (1, 1)]),
        ("filter=.n%3E0&filter=text~A-1&order=oldest", [(0, 1), (1, 1), (1, 2)]),
        ("filter=nothing", []),
        ("first_offset=1&end_offset=2", [(1, 1), (0, 1)]),
        ("end_time=0", []),
        ("first_time=18446744073709551615", []),
    ],
)
async def test_conditions_and_bounds(root: HttpClient, topic: str, query: str, expected: list[tuple[int, int]]) -> None:
    await fill(root, topic)
    assert await found(root, topic, query) == expected


async def test_headers_and_keys(root: HttpClient, topic: str) -> None:
    header = {"key": {"kind": "string", "value": "c291cmNl"}, "value": {"kind": "string", "value": "c2hvcA=="}}
    await send(root, topic, message(b"plain"), message(b"headed", user_headers=[header]))
    reply = await root.ask("POST", f"{topic}/messages?key=k-7", b"keyed", content_type="application/octet-stream")
    place = reply.json["confirmations"][0]
    assert await found(root, topic, "filter=header.source=shop") == [(0, 1)]
    assert await found(root, topic, "filter=key=k-7") == [(place["partition_id"], place["base_offset"])]


async def test_a_message_says_what_it_is(root: HttpClient, topic: str) -> None:
    await send(root, topic, message(b"x" * 100, id=str(2**127)))
    (hit,) = [
        event.data for event in await search(root, topic, "payload=text&payload_bytes=10") if event.kind == "message"
    ]
    assert hit.pop("timestamp") > 0
    assert hit.pop("origin_timestamp") > 0
    assert hit == {
        "partition_id": 0,
        "offset": 0,
        "id": str(2**127),
        "payload_size": 100,
        "payload": "x" * 10,
        "encoding": "text",
    }


async def test_a_search_says_what_it_looks_at_and_how_far_it_got(root: HttpClient, topic: str) -> None:
    await fill(root, topic)
    started, *_, done = await search(root, topic, "filter=.n=1")
    ranges = [{"partition_id": partition_id, "first_offset": 0, "end_offset": 3} for partition_id in range(2)]
    assert started.kind == "started"
    assert started.data == {"partitions": ranges, "total_count": 6}
    assert done.data.pop("scanned_bytes") > 0
    assert done.data == {
        "scanned_count": 6,
        "found_count": 2,
        "undecoded_count": 0,
        "positions": "0.0~1.0",
        "is_complete": True,
    }


@pytest.mark.parametrize("order", ["newest", "oldest"])
@pytest.mark.parametrize("conditions", ["", "&filter=.n!=1"])
async def test_another_search_continues_where_one_stopped(
    root: HttpClient, topic: str, order: str, conditions: str
) -> None:
    await fill(root, topic)
    expected = await found(root, topic, f"order={order}{conditions}")
    result: list[tuple[int, int]] = []
    last: Mapping[str, Any] = {"positions": "", "is_complete": False}
    while not last["is_complete"]:
        query = f"order={order}{conditions}&count=1&positions={last['positions']}"
        result += await found(root, topic, query)
        last = (await search(root, topic, query))[-1].data
    assert result == expected


async def test_many_messages_are_looked_at(root: HttpClient, topic: str) -> None:
    for start in range(0, 6000, 1000):
        await send(root, topic, *(message(b"%d." % number) for number in range(start, start + 1000)))
    assert await found(root, topic, "filter=4321.") == [(0, 4321)]
    assert await found(root, topic, "filter=4321.&order=oldest") == [(0, 4321)]
    assert len(await found(root, topic, "count=6000&payload=none&payload_bytes=0")) == 6000


async def test_a_value_in_a_huge_message_is_not_looked_for(root: HttpClient, topic: str) -> None:
    await send(root, topic, message(b'{"n": 1, "fill": "%b"}' % (b"x" * 1_100_000)))
    *_, done = await search(root, topic, "filter=.n=1")
    assert (done.data["found_count"], done.data["undecoded_count"]) == (0, 1)
    assert await found(root, topic, "filter=text~fill") == [(0, 0)]


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("filter=", "a condition must not be empty"),
        ("filter=.a..b=1", "is not a JSON path"),
        ("count=0", "count must be from 1 to 10000"),
        ("count=10000", "payloads of 16384 bytes are more than"),
        ("order=random", "is none of newest, oldest"),
        ("partition_id=x", "is not a number"),
        ("positions=1", "is not a partition and an offset"),
        ("payload_bytes=much", "payload_bytes"),
        ("end_time=-1", "end_time"),
    ],
)
async def test_wrong_queries_are_refused(root: HttpClient, topic: str, query: str, reason: str) -> None:
    reply = await root.ask("GET", f"{topic}/search?{query}")
    assert reply.status == 400
    assert reason in reply.body.decode()


async def test_what_is_not_there(root: HttpClient, topic: str) -> None:
    assert (await root.ask("GET", "/streams/s/topics/absent/search")).status == 404
    assert (await root.ask("GET", f"{topic}/search?partition_id=2")).json["code"] == "partition_not_found"


async def test_a_search_needs_the_permission_of_a_poll(server: HttpServer, root: HttpClient, topic: str) -> None:
    user = {"username": "clerk", "password": "secret-of-clerk", "status": "active"}
    assert (await root.ask("POST", "/users", user)).status == 200
    clerk = await server.client.login("clerk", "secret-of-clerk")
    assert (await clerk.ask("GET", f"{topic}/search")).status == 403
    assert (await server.client.ask("GET", f"{topic}/search")).status == 401


async def test_a_topic_that_is_deleted_ends_the_search(server: HttpServer, root: HttpClient, topic: str) -> None:
    await send(root, topic, *(message() for _ in range(1000)))
    async with server.broker.scan_pieces._turns._turn:
        search_task = asyncio.create_task(search(root, topic, "filter=absent&partition_id=0&order=oldest"))
        await until(lambda: bool(len(server.searches)))
        assert (await root.ask("DELETE", topic)).status == 204
    last = (await search_task)[-1]
    assert last.kind == "stopped"


async def test_a_new_password_ends_the_searches_of_other_tokens(
    server: HttpServer, root: HttpClient, topic: str
) -> None:
    await send(root, topic, *(message() for _ in range(1000)))
    other = server.root
    async with server.broker.scan_pieces._turns._turn:
        query = "filter=absent&partition_id=0&order=oldest"
        searches = [asyncio.create_task(search(client, topic, query)) for client in (root, other)]
        await until(lambda: len(server.searches) == 2)
        body = {"current_password": "iggy", "new_password": "another"}
        assert (await root.ask("PUT", "/users/0/password", body)).status == 204
    ends = [(await one)[-1] for one in searches]
    assert [end.kind for end in ends] == ["done", "stopped"]
    assert ends[1].data["code"] == "unauthenticated"


async def test_a_client_that_closes_ends_its_search(server: HttpServer, root: HttpClient, topic: str) -> None:
    await fill(root, topic)
    async with server.broker.scan_pieces._turns._turn, opened(root, f"{topic}/search?filter=x") as stream:
        assert (await stream.event()).kind == "started"
        assert len(server.searches) == 1
    await until(lambda: not len(server.searches))


async def test_searches_are_limited(tmp_path: Path) -> None:
    settings = BrokerSettings(limits=BrokerLimits(scan_count_max=3, scan_count_of_user_max=1))
    async with serving(tmp_path / "data", broker_settings=settings) as server:
        root = server.root
        topic = await make_topic(root)
        await fill(root, topic)
        async with server.broker.scan_pieces._turns._turn, opened(root, f"{topic}/search"):
            reply = await root.ask("GET", f"{topic}/search")
            assert reply.status == 503
            assert "this user already has 1 searches" in reply.json["reason"]
        await until(lambda: not len(server.searches))
        assert len(await found(root, topic, "")) == 6


async def test_a_stop_ends_searches(server: HttpServer, root: HttpClient, topic: str) -> None:
    await fill(root, topic)
    async with server.broker.scan_pieces._turns._turn:
        search_task = asyncio.create_task(search(root, topic, "filter=absent"))
        await until(lambda: bool(len(server.searches)))
        server.application.hurry()
    assert (await search_task)[-1].kind in ("stopped", "done")
