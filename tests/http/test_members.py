"""Consumer groups over HTTP: members that are created, used, deleted and forgotten."""

import asyncio
import base64
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from courser.api.commands import JoinConsumerGroup
from courser.broker.access.heartbeats import Heartbeats
from courser.broker.settings import BrokerLimits, BrokerSettings
from courser.handlers.dispatcher import Dispatcher
from courser.model.messaging import Transport
from courser.model.quantities import SECOND
from tests.fakes.clocks import ManualClock
from tests.http.serving import (
    HttpClient,
    HttpReply,
    HttpServer,
    make_topic,
    message,
    send,
    serving,
    until,
    until_waiting,
)


@pytest.fixture
async def group(root: HttpClient, topic: str) -> str:
    """The path of the members of a group."""
    assert (await root.ask("POST", f"{topic}/consumer-groups", {"name": "g"})).status == 201
    return f"{topic}/consumer-groups/g/members"


async def join(client: HttpClient, group: str, **body: object) -> str:
    """The path of a new member."""
    reply = await client.ask("POST", group, body or None)
    assert reply.status == 201, reply
    return f"{group}/{reply.json['id']}"


async def partitions_of(client: HttpClient, member: str) -> list[int]:
    reply = await client.ask("GET", member)
    assert reply.status == 200, reply
    partitions: list[int] = reply.json["partitions"]
    return partitions


def payloads(reply: HttpReply) -> list[bytes]:
    assert reply.status == 200, reply
    return [base64.b64decode(one["payload"]) for one in reply.json["messages"]]


async def test_a_member_reads_what_its_group_has_not(root: HttpClient, topic: str, group: str) -> None:
    for partition_id in (0, 1):
        await send(
            root, topic, message(b"a%d" % partition_id), message(b"b%d" % partition_id), partition_id=partition_id
        )
    member = await join(root, group)
    first = await root.ask("GET", f"{member}/messages?count=1&auto_commit=true")
    second = await root.ask("GET", f"{member}/messages?count=1")
    assert {*payloads(first), *payloads(second)} == {b"a0", b"a1"}, "partitions take turns"
    place = {"partition_id": second.json["partition_id"], "offset": 0}
    assert (await root.ask("PUT", f"{member}/offsets", place)).status == 204
    rest = [await root.ask("GET", f"{member}/messages?auto_commit=true") for _ in range(3)]
    assert sorted(payload for reply in rest for payload in payloads(reply)) == [b"b0", b"b1"]
    assert (await root.ask("DELETE", member)).status == 204
    other = await join(root, group)
    assert payloads(await root.ask("GET", f"{other}/messages")) == [], "offsets belong to the group"


async def test_members_share_partitions(server: HttpServer, root: HttpClient, group: str) -> None:
    first = await join(root, group)
    assert await partitions_of(root, first) == [0, 1]
    second = await join(root, group)
    assert (await partitions_of(root, first), await partitions_of(root, second)) == ([0], [1])
    # A member on another transport shares with them.
    session = server.broker.sessions.open(Transport.TCP, "127.0.0.1:1")
    session.user_id = 0
    joining = Dispatcher(server.broker).begin(session, JoinConsumerGroup("s", "t", "g"))
    assert joining is None
    assert (await root.ask("GET", group.removesuffix("/members"))).json["members_count"] == 3
    assert (await root.ask("DELETE", first)).status == 204
    assert await partitions_of(root, second) == [0]
    server.broker.sessions.close(session)
    assert await partitions_of(root, second) == [0, 1]


async def test_a_partition_of_another_member_is_refused(root: HttpClient, group: str) -> None:
    first, second = await join(root, group), await join(root, group)
    assert (await root.ask("GET", f"{first}/messages?partition_id=0")).status == 200
    refused = await root.ask("GET", f"{second}/messages?partition_id=0")
    assert (refused.status, refused.json["code"]) == (409, "partition_not_owned")
    assert (await root.ask("PUT", f"{second}/offsets", {"partition_id": 0, "offset": 0})).status == 409


async def test_a_member_waits_for_all_its_partitions(
    server: HttpServer, root: HttpClient, topic: str, group: str
) -> None:
    member = await join(root, group)
    for partition_id in (1, 0):
        polling = asyncio.create_task(root.ask("GET", f"{member}/messages?wait=20s&auto_commit=true"))
        await until_waiting(server)
        await send(root, topic, message(b"late"), partition_id=partition_id)
        assert (await polling).json["partition_id"] == partition_id


async def test_a_member_without_partitions_waits_for_some(
    server: HttpServer, root: HttpClient, topic: str, group: str
) -> None:
    first, second, third = [await join(root, group) for _ in range(3)]
    await send(root, topic, message(b"x"), partition_id=1)
    polling = asyncio.create_task(root.ask("GET", f"{third}/messages?wait=20s"))
    await until_waiting(server)
    assert (await root.ask("DELETE", first)).status == 204
    assert payloads(await polling) == [b"x"]
    assert payloads(await root.ask("GET", f"{second}/messages")) == []


async def test_another_request_ends_a_wait(server: HttpServer, root: HttpClient, group: str) -> None:
    member = await join(root, group)
    polling = asyncio.create_task(root.ask("GET", f"{member}/messages?wait=20s"))
    await until_waiting(server)
    assert await partitions_of(root, member) == [0, 1]
    assert payloads(await polling) == []


async def test_a_client_that_goes_ends_its_wait_and_stays_a_member(
    server: HttpServer, root: HttpClient, topic: str, group: str
) -> None:
    member = await join(root, group)
    _, writer = await root.open()
    head = f"GET {member}/messages?wait=20s HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {root.token}\r\n\r\n"
    writer.write(head.encode())
    await until_waiting(server)
    writer.close()
    await until(lambda: not server.long_polls)
    await send(root, topic, message(b"x"))
    assert payloads(await root.ask("GET", f"{member}/messages?wait=20s")) == [b"x"]


async def test_messages_that_are_gone_are_an_error_that_says_where_to_continue(
    root: HttpClient, topic: str, group: str
) -> None:
    await send(root, topic, message(b"old"), message(b"old"))
    await root.ask("DELETE", f"{topic}/purge")
    await send(root, topic, message(b"new"))
    member = await join(root, group)
    assert (await root.ask("PUT", f"{member}/offsets", {"partition_id": 0, "offset": 0})).status == 204
    gone = await root.ask("GET", f"{member}/messages?partition_id=0")
    assert (gone.status, gone.json["first_offset"], gone.json["end_offset"]) == (410, 1, 2)
    place = {"partition_id": 0, "offset": gone.json["end_offset"] - 1}
    assert (await root.ask("PUT", f"{member}/offsets", place)).status == 204
    assert payloads(await root.ask("GET", f"{member}/messages")) == [b"new"]


# --- whose they are, and how long they last ---


async def test_a_member_belongs_to_its_user(root: HttpClient, group: str) -> None:
    everything = dict.fromkeys(
        [
            *("manage_servers", "read_servers", "manage_users", "read_users", "manage_streams", "read_streams"),
            *("manage_topics", "read_topics", "poll_messages", "send_messages"),
        ],
        True,
    )
    user = {"username": "eve", "password": "secret", "status": "active", "permissions": {"global": everything}}
    assert (await root.ask("POST", "/users", user)).status == 200
    eve = await HttpClient(root.port).login("eve", "secret")
    member = await join(root, group)
    for method, path in [("GET", member), ("GET", f"{member}/messages"), ("DELETE", member)]:
        assert (await eve.ask(method, path)).status == 404
    own = await join(eve, group)
    assert await partitions_of(root, member) == [0]
    assert (await root.ask("DELETE", "/users/eve")).status == 204
    assert await partitions_of(root, member) == [0, 1], "the members of a deleted user leave"
    assert (await root.ask("GET", own)).status == 404


async def test_who_may_not_read_the_topic_cannot_join(root: HttpClient, group: str) -> None:
    user = {"username": "eve", "password": "secret", "status": "active", "permissions": None}
    assert (await root.ask("POST", "/users", user)).status == 200
    eve = await HttpClient(root.port).login("eve", "secret")
    assert (await eve.ask("POST", group)).status == 403
    assert (await HttpClient(root.port).ask("POST", group)).status == 401
    assert await partitions_of(root, await join(root, group)) == [0, 1]


@dataclass(frozen=True)
class Timed:
    """A server whose clock stands still."""

    server: HttpServer
    clock: ManualClock
    root: HttpClient
    group: str


@pytest.fixture
async def timed(tmp_path: Path) -> AsyncIterator[Timed]:
    clock = ManualClock()
    settings = BrokerSettings(limits=BrokerLimits(connectionless_count_max=3, connectionless_count_of_user_max=2))
    async with serving(tmp_path, broker_settings=settings, clock=clock) as server:
        root = server.root
        await make_topic(root)
        await root.ask("POST", "/streams/s/topics/t/consumer-groups", {"name": "g"})
        yield Timed(server, clock, root, "/streams/s/topics/t/consumer-groups/g/members")


async def test_a_member_expires_unless_it_is_used(timed: Timed) -> None:
    root, clock = timed.root, timed.clock
    used, unused = await join(root, timed.group, ttl="10s"), await join(root, timed.group, ttl=10 * SECOND)
    clock.advance(9 * SECOND)
    assert timed.server.broker.connectionless.expire() == 0
    assert await partitions_of(root, used) == [0]
    clock.advance(SECOND)
    assert timed.server.broker.connectionless.expire() == 1
    assert await partitions_of(root, used) == [0, 1]
    gone = await root.ask("GET", f"{unused}/messages")
    assert (gone.status, gone.json["code"]) == (404, "consumer_group_member_not_found")
    assert "create another one" in gone.json["reason"]
    clock.advance(10 * SECOND)
    assert (await root.ask("GET", used)).status == 404, "also before anybody looks"


async def test_a_member_does_not_expire_while_it_waits(timed: Timed) -> None:
    member = await join(timed.root, timed.group, ttl="1s")
    polling = asyncio.create_task(timed.root.ask("GET", f"{member}/messages?wait=20s"))
    await until_waiting(timed.server)
    timed.clock.advance(60 * SECOND)
    assert timed.server.broker.connectionless.expire() == 0
    heartbeats = Heartbeats(timed.server.broker.sessions, timed.clock, interval=SECOND)
    await send(timed.root, "/streams/s/topics/t", message(b"x"))
    assert payloads(await polling) == [b"x"]
    timed.clock.advance(SECOND // 2)
    assert heartbeats.drop_stale() == 0
    assert await partitions_of(timed.root, member) == [0, 1]


async def test_a_user_has_so_many_members(timed: Timed) -> None:
    first, _ = await join(timed.root, timed.group, ttl="10s"), await join(timed.root, timed.group, ttl="20s")
    refused = await timed.root.ask("POST", timed.group)
    assert (refused.status, refused.headers["retry-after"]) == (503, "1")
    assert "already has 2 members" in refused.json["reason"]
    assert (await timed.root.ask("DELETE", first)).status == 204
    await join(timed.root, timed.group, ttl="10s")
    timed.clock.advance(10 * SECOND)
    await join(timed.root, timed.group)


async def test_no_member_survives_a_restart(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        root = server.root
        await make_topic(root)
        await root.ask("POST", "/streams/s/topics/t/consumer-groups", {"name": "g"})
        member = await join(root, "/streams/s/topics/t/consumer-groups/g/members")
    async with serving(tmp_path) as server:
        reply = await HttpClient(server.port, root.token).ask("GET", member)
        assert (reply.status, reply.json["id"]) == (404, 5006)


async def test_a_deleted_group_has_no_members(root: HttpClient, group: str) -> None:
    member = await join(root, group)
    assert (await root.ask("DELETE", group.removesuffix("/members"))).status == 204
    assert (await root.ask("GET", f"{member}/messages?wait=20s")).status == 404
    assert (await root.ask("DELETE", member)).status == 404


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"ttl": "1ms"}, 422),
        ({"ttl": "2h"}, 422),
        ({"ttl": 1.5}, 422),
        ({"ttl": "soon"}, 422),
        (b"{", 400),
        ({}, 201),
        ({"ttl": "1h"}, 201),
    ],
)
async def test_times_to_live(root: HttpClient, group: str, body: object, status: int) -> None:
    assert (await root.ask("POST", group, body)).status == status


@pytest.mark.parametrize("member", ["x", "0" * 32, "%00", "0" * 40])
async def test_what_is_no_member(root: HttpClient, group: str, member: str) -> None:
    assert (await root.ask("GET", f"{group}/{member}")).status == 404
    assert (await root.ask("POST", group.replace("/g/", "/none/"))).status == 404
