"""The client and a real server over TCP: kills, certificates, and the official SDK at the same topics."""

import asyncio
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from courser.client.client import connect
from courser.client.messages import PollingStrategy, SendMessage
from courser.client.sync import connect_sync
from courser.errors import AuthenticationFailed, ConnectionFailed, NotAllowed
from courser.model.permissions import GlobalPermissions, Permissions
from tests.sdk.conversations import Conversation
from tests.servers import RunningServer

FIRST = PollingStrategy.First()
PATIENCE = 60.0


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    with RunningServer(tmp_path / "server") as server:
        yield server


@pytest.fixture(scope="module")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with RunningServer(tmp_path_factory.mktemp("client-server")) as server:
        yield server


def url(server: RunningServer, options: str = "") -> str:
    return f"iggy://iggy:iggy@{server.address}{options}"


# --- kills --------------------------------------------------------------------------------------------


async def test_nothing_is_lost_or_doubled_when_the_server_is_killed(server: RunningServer) -> None:
    """A producer and a group consumer go on while the server dies three times."""
    total = 3_000
    async with connect(url(server), reconnect_interval=0.01) as client, asyncio.timeout(PATIENCE):
        await client.create_stream("demo")
        await client.create_topic("demo/orders", partitions_count=2)
        progress = asyncio.Event()
        found: list[int] = []

        async def produce() -> None:
            async with client.producer("demo/orders", batch_count=20, linger=0.001) as producer:
                for number in range(total):
                    await producer.send(str(number))
                    if number % 100 == 0:
                        await producer.flush()

        async def consume() -> None:
            async with client.consumer("demo/orders", group="app", batch_count=50) as consumer:
                async for message in consumer:
                    found.append(int(message.text()))
                    progress.set()
                    if len(found) == total:
                        return

        async def kill() -> None:
            for share in (1, 2, 3):
                while len(found) < share * total // 4:
                    progress.clear()
                    await progress.wait()
                await asyncio.to_thread(server.kill)
                await asyncio.to_thread(server.start)

        await asyncio.gather(produce(), consume(), kill())
        assert sorted(found) == list(range(total))
        stored = [
            (await client.get_consumer_offset("demo/orders", None, partition_id, group="app")).stored_offset
            for partition_id in range(2)
        ]
        assert sum(stored) + 2 == total


def test_a_sync_client_outlives_a_killed_server(server: RunningServer) -> None:
    with connect_sync(url(server), reconnect_interval=0.01) as client:
        client.create_stream("demo")
        client.create_topic("demo/orders")
        with client.producer("demo/orders", batch_count=10) as producer:
            for number in range(100):
                producer.send({"n": number})
                if number == 55:
                    producer.flush()
                    server.kill()
                    threading.Timer(0, server.start).start()
        consumer = client.consumer("demo/orders", name="reader", stop_at_end=True)
        assert [message.json()["n"] for message in consumer] == list(range(100))


async def test_who_waits_for_messages_goes_on_when_the_server_was_stopped_and_started(server: RunningServer) -> None:
    place = "demo/orders"
    async with (
        connect(url(server), reconnect_interval=0.01) as client,
        connect(url(server), reconnect_interval=0.01) as other,
        asyncio.timeout(PATIENCE),
    ):
        await client.create_stream("demo")
        await client.create_topic(place, partitions_count=1)
        async with other.consumer(place, name="reader") as consumer:
            coming = asyncio.ensure_future(anext(consumer))
            poll = asyncio.ensure_future(client.poll_messages(place, partition_id=0, wait=20))
            await until_asked(server)
            await asyncio.to_thread(server.stop)
            await asyncio.to_thread(server.start)
            async with connect(url(server)) as producer:
                await producer.send_messages(place, partitioning=0, messages=["afterwards"])
            assert (await coming).text() == "afterwards"
            assert [message.text() for message in await poll] == ["afterwards"]


async def test_who_waits_for_messages_and_does_not_reconnect_is_told_that_the_connection_is_gone(
    server: RunningServer,
) -> None:
    async with connect(url(server), reconnect=False) as client, asyncio.timeout(PATIENCE):
        await client.create_stream("demo")
        await client.create_topic("demo/orders", partitions_count=1)
        poll = asyncio.ensure_future(client.poll_messages("demo/orders", partition_id=0, wait=20))
        await until_asked(server)
        await asyncio.to_thread(server.stop)
        with pytest.raises(ConnectionFailed):
            await poll
    server.start()


async def until_asked(server: RunningServer) -> None:
    """Until the server has read what was sent before: it has answered somebody who came later."""
    async with connect(url(server)) as witness:
        await witness.ping()


def test_a_client_that_finds_no_server_says_so() -> None:
    # Nobody listens on a port that is bound, and no other test can take it.
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(ConnectionFailed, match=f"{address}: cannot connect"):
            connect_sync(address)


# --- logins and TLS -----------------------------------------------------------------------------------


async def test_logins(shared_server: RunningServer) -> None:
    with pytest.raises(AuthenticationFailed, match="unknown user or wrong password"):
        await connect(f"iggy://iggy:wrong@{shared_server.address}")
    async with connect(shared_server.address) as client:
        token = await client.create_personal_access_token("laptop")
        await client.create_user("reader", "secret", permissions=Permissions(GlobalPermissions(read_streams=True)))
    async with connect(f"iggy://{token}@{shared_server.address}") as client:
        assert client.user_id == 0
    async with connect(f"iggy+tcp://reader:secret@{shared_server.address}") as client:
        with pytest.raises(NotAllowed, match="reader"):
            await client.create_stream("mine")


async def test_tls(tmp_path: Path) -> None:
    settings = {"tcp.tls.enabled": "true", "tcp.tls.self_signed": "true"}
    with RunningServer(tmp_path / "server", settings=settings) as server:
        certificate_file = tmp_path / "certificate.pem"
        certificate_file.write_text(ssl.get_server_certificate((server.host, server.port)))
        options = f"?tls=true&tls_domain=localhost&tls_ca_file={certificate_file}"
        async with connect(url(server, options)) as client:
            await client.create_stream("demo")
            await client.create_topic("demo/secret")
            async with client.producer("demo/secret") as producer:
                for number in range(5):
                    await producer.send(str(number) * 700_000)
            async with client.consumer("demo/secret", stop_at_end=True) as consumer:
                assert [message.text()[0] async for message in consumer] == list("01234")
        async with connect(url(server, "?tls=true&tls_verify=false")) as client:
            assert len(await client.get_streams()) == 1
        with pytest.raises(ConnectionFailed, match="certificate"):
            await connect(url(server, "?tls=true"))
        with pytest.raises(ConnectionFailed):
            await connect(url(server))


# --- the official SDK ---------------------------------------------------------------------------------


@pytest.mark.parametrize("release", ["0.8.0", "0.9.0"])
async def test_the_official_sdk_and_our_client_read_each_other(shared_server: RunningServer, release: str) -> None:
    stream = f"together-{release}"
    place: dict[str, Any] = {"client": "own", "stream": stream, "topic": "shared"}
    with Conversation(release, shared_server.address) as child:
        child.ask("connect", client="own")
        child.ask("create", partitions=2, **place)
        theirs = ["plain", "ü" * 1000, "x"]
        child.ask("send", payloads=theirs, index=1, **place)
        async with connect(url(shared_server)) as client:
            read = await client.poll_messages(stream, "shared", 1, FIRST, 100)
            assert [message.text() for message in read] == theirs
            assert len({message.id for message in read} - {0}) == 3
            ours = [
                SendMessage("first", id=7),
                SendMessage("second", id=2**128 - 1, headers={"key": "value", "ü": "2" * 255}),
            ]
            await client.send_messages(stream, "shared", 0, ours)
            async with client.producer(stream, "shared", partitioning=0, linger=0) as producer:
                await producer.send("third", id=9)
                await producer.send("keyed", key="k", partition=1)
            found = child.ask("poll", index=0, **place)
            assert [(offset, payload) for offset, payload, _ in found] == [(0, "first"), (1, "second"), (2, "third")]
            assert [number for _, _, number in found] == ["7", str(2**128 - 1), "9"]
            assert [payload for _, payload, _ in child.ask("poll", index=1, **place)] == [*theirs, "keyed"]
            if release == "0.9.0":
                rich = [["with", str(1 << 64), {"first": "ü", "second": "2"}]]
                child.ask("send_rich", messages=rich, index=1, **place)
                (message,) = await client.poll_messages(stream, "shared", 1, PollingStrategy.Last(), 1)
                assert (message.headers, message.id) == ({"first": "ü", "second": "2"}, 1 << 64)
                headers = child.ask("headers", index=0, **place)
                assert headers[1] == {"key": "value", "ü": "2" * 255}


@pytest.mark.parametrize("release", ["0.8.0", "0.9.0"])
async def test_the_official_sdk_and_our_client_share_a_group(shared_server: RunningServer, release: str) -> None:
    stream = f"group-{release}"
    place: dict[str, Any] = {"stream": stream, "topic": "work"}
    with Conversation(release, shared_server.address) as child:
        child.ask("connect", client="own")
        async with connect(url(shared_server)) as client, asyncio.timeout(PATIENCE):
            await client.create_stream(stream)
            await client.create_topic(stream, "work", 2)
            await client.create_consumer_group(stream, "work", "workers")
            child.ask("consume", client="own", name="member", group="workers", **place)
            async with client.consumer(stream, "work", group="workers") as consumer:
                while len(consumer.partitions) != 1:
                    await consumer._look_again()
                mine, theirs = consumer.partitions[0], 1 - consumer.partitions[0]
                await client.send_messages(stream, "work", mine, ["mine"])
                await client.send_messages(stream, "work", theirs, ["theirs"])
                assert (await anext(consumer)).text() == "mine"
                await asyncio.to_thread(child.wait_until_given, {"theirs"})


# --- starting up --------------------------------------------------------------------------------------


def test_the_client_is_loaded_only_when_it_is_used() -> None:
    program = "import sys, courser; print(sorted(m for m in sys.modules if m in ('asyncio', 'numpy', 'msgspec')))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_arrow_is_loaded_only_when_it_is_used() -> None:
    program = "import sys; from courser import connect, connect_sync; print('pyarrow' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_the_package_names_what_there_is() -> None:
    import courser  # noqa: PLC0415 - what is tested

    assert {"connect", "connect_sync", "Client", "CourserError", "PollingStrategy"} <= set(dir(courser))
    for name in courser._PLACES:
        assert getattr(courser, name).__name__ == name
    with pytest.raises(AttributeError, match="nothing"):
        courser.nothing  # noqa: B018
