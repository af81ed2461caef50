"""Connections: order, time limits, strangers, and what comes back after a break."""

import asyncio
import logging
import re
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from courser.api import commands as c
from courser.client.client import Client, connect
from courser.client.connection import Connection
from courser.client.messages import PollingStrategy, SendMessage
from courser.client.messaging import make_batch
from courser.client.sync import connect_sync
from courser.client.targets import Target
from courser.errors import (
    AuthenticationFailed,
    ClientClosed,
    CommandRejected,
    ConnectionFailed,
    CourserError,
    ErrorCode,
    NotFound,
    TimedOut,
    Uncertain,
)
from courser.model.messaging import ToPartition
from courser.testing.broker import SyncTestBroker, TestBroker
from tests.client.twins import Twins

PATIENCE = 60.0
"""Seconds for what is about to happen: enough for a machine that is busy with other things."""


@pytest.fixture
async def broker() -> AsyncIterator[TestBroker]:
    async with TestBroker() as broker:
        yield broker


@asynccontextmanager
async def stranger(answer: bytes | None, request_timeout: float = PATIENCE) -> AsyncIterator[Target]:
    """A server that says this to whatever it hears, or nothing at all."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(65_536):
            if answer is not None:
                writer.write(answer)
        writer.close()

        done.set()

    done = asyncio.Event()
    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    try:
        port = server.sockets[0].getsockname()[1]
        yield Target(port=port, username="iggy", password="iggy", request_timeout=request_timeout)
        await done.wait()
    finally:
        server.close()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110 - it is about to
            await asyncio.sleep(0.001)


def watch(monkeypatch: pytest.MonkeyPatch) -> list[c.Command]:
    """Every command that travels from now on."""
    seen: list[c.Command] = []
    begin = Connection.begin

    def noting(connection: Connection, command: c.Command) -> Any:
        seen.append(command)
        return begin(connection, command)

    monkeypatch.setattr(Connection, "begin", noting)
    return seen


# --- requests -----------------------------------------------------------------------------------------


async def test_requests_of_many_tasks_share_a_connection(broker: TestBroker) -> None:
    client = await broker.connect()
    await client.create_stream("demo")
    made = await asyncio.gather(*(client.create_topic(f"demo/{number}") for number in range(50)))
    assert [details.topic.name for details in made] == [str(number) for number in range(50)]
    found = await asyncio.gather(*(client.get_topic("demo", number) for number in range(50)))
    assert [details.topic.topic_id for details in found] == list(range(50))
    outcomes = await asyncio.gather(
        *(client.get_stream("demo" if number % 2 else "nope") for number in range(50)), return_exceptions=True
    )
    assert [isinstance(outcome, NotFound) for outcome in outcomes] == [number % 2 == 0 for number in range(50)]


async def test_a_request_that_is_given_up_does_not_confuse_the_others(broker: TestBroker) -> None:
    client = await broker.connect()
    await client.create_stream("demo")
    abandoned = [asyncio.create_task(client.get_streams()) for _ in range(10)]
    await asyncio.sleep(0)
    for task in abandoned:
        task.cancel()
    assert (await client.get_stream("demo")).stream.name == "demo"
    assert (await client.get_me()).client.user_id == 0


async def test_large_replies_come_whole(broker: TestBroker) -> None:
    client = await broker.connect()
    await client.create_stream("demo")
    await client.create_topic("demo/large")
    sizes = [0, 1, 200_000, 262_000, 262_144, 300_000, 1_000_000]
    for size in sizes:
        await client.send_messages("demo/large", messages=[bytes([size % 251]) * size])
    polls = [
        client.poll_batches("demo/large", None, 0, PollingStrategy.Offset(offset), 1 + offset % 3)
        for offset in range(len(sizes))
    ]
    for offset, polled in enumerate(await asyncio.gather(*polls)):
        for message in polled.messages():
            size = sizes[message.offset]
            assert message.payload == bytes([size % 251]) * size
        assert polled.views[0].first_offset == offset
    everything = await client.poll_messages("demo/large", None, 0, PollingStrategy.First(), size_max=2**26)
    assert [len(message.payload) for message in everything] == sizes


async def test_a_closed_client_says_so(scene: Twins) -> None:
    client = await scene.connect()
    producer = client.producer("demo/orders")
    await client.close()
    await client.close()
    with pytest.raises(ClientClosed):
        await client.ping()
    with pytest.raises(ClientClosed):
        await producer.send("x")
    assert not client.is_connected


def test_a_forgotten_await_says_so() -> None:
    with pytest.raises(AttributeError, match='no "get_streams": use async with connect'):
        connect("127.0.0.1:1").get_streams()  # type: ignore[attr-defined]


async def test_a_client_that_was_not_opened_says_so(broker: TestBroker) -> None:
    with pytest.raises(ClientClosed, match="async with"):
        await Client(broker.target(), broker.dial).ping()


# --- strangers ----------------------------------------------------------------------------------------


async def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(ConnectionFailed, match=f"^127.0.0.1:{port}: cannot connect: Connection refused$") as failure:
        await connect(f"127.0.0.1:{port}")
    assert (failure.value.address, failure.value.code) == (f"127.0.0.1:{port}", ErrorCode.DISCONNECTED)
    with pytest.raises(ConnectionFailed, match="cannot connect"):
        await asyncio.to_thread(connect_sync, f"127.0.0.1:{port}")


async def test_a_name_that_is_none() -> None:
    with pytest.raises(ConnectionFailed, match="cannot connect"):
        await connect("iggy://no-such-host.invalid:1")


async def test_tls_with_a_server_that_has_none_is_named() -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(65_536)
        writer.close()

    async with await asyncio.start_server(hang_up, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(ConnectionFailed, match="cannot connect: TLS handshake failed; the server may not use TLS"):
            await connect(f"127.0.0.1:{port}", tls=True)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (
            b"HTTP/1.1 400 Bad Request\r\n\r\n",
            r"not a Courser or Iggy 0\.9 server: its reply begins with 'HTTP/1\.1 400 Bad",
        ),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n" + b" " * 300, "is this a Courser or Iggy"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "its reply begins with 'SSH-2"),
        (b"-ERR unknown command\r\n", "its reply begins with '-ERR"),
        (b"\x15\x03\x03\x00\x02\x02\x46", "the server expects TLS: connect with tls=true"),
    ],
)
async def test_a_server_of_another_kind_is_recognised_at_once(answer: bytes, words: str) -> None:
    async with stranger(answer) as target:
        with pytest.raises(ConnectionFailed, match=words):
            await connect(target)


async def test_a_server_that_says_nothing_is_given_up_before_requests_are() -> None:
    async with stranger(None) as target:
        with pytest.raises(TimedOut, match=r"no reply within 0\.2 seconds; is this a Courser or Iggy 0\.9 server"):
            await connect(target, connect_timeout=0.2)


async def test_a_server_that_hangs_up_without_a_word() -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(65_536)
        writer.close()

    async with await asyncio.start_server(hang_up, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(ConnectionFailed, match="without a reply; is this a Courser or Iggy"):
            await connect(f"127.0.0.1:{port}")


async def test_a_reset_is_told_in_words() -> None:
    async def reset(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(65_536)
        # Without lingering, closing sends a reset.
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.close()

    async with await asyncio.start_server(reset, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(
            ConnectionFailed, match=r"the connection broke \(Connection reset by peer\) without a reply"
        ):
            await connect(f"127.0.0.1:{port}")


async def test_a_connection_that_does_not_come_about_in_time() -> None:
    async def never(_: Target) -> Connection:
        await asyncio.Event().wait()
        raise AssertionError

    client = Client(Target(connect_timeout=0.01), never)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(client.__aenter__(), 0.05)


async def test_a_certificate_file_that_is_none() -> None:
    with pytest.raises(ConnectionFailed, match=r"certificates in nothing\.pem: No such file or directory$"):
        await connect("127.0.0.1:1", tls=True, tls_ca_file="nothing.pem")


async def test_a_wrong_password_is_told_at_once(scene: Twins) -> None:
    with pytest.raises(AuthenticationFailed, match="unknown user or wrong password") as refused:
        await scene.connect(username="iggy", password="wrong")
    assert refused.value.code is ErrorCode.INVALID_CREDENTIALS


# --- breaks -------------------------------------------------------------------------------------------


async def test_a_lost_connection_is_logged_once_and_so_is_the_next(
    broker: TestBroker, caplog: pytest.LogCaptureFixture
) -> None:
    client = await broker.connect()
    with caplog.at_level(logging.INFO, "courser.client"):
        broker.disconnect()
        assert await client.get_streams() == []
        await client.close()
    warnings = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(warnings) == 2
    assert re.match("lost the connection to test-broker:8090: the server closed the connection", warnings[0])
    assert re.match(r"restored the connection to .* after \d+\.\d seconds", warnings[1])


async def test_the_connection_comes_back_by_itself(scene: Twins) -> None:
    client = await scene.connect()
    await client.create_stream("demo")
    for _ in range(3):
        await scene.disconnect()
        assert (await client.get_stream("demo")).stream.name == "demo"
    await scene.restart()
    await client.create_stream("more")
    assert len(await client.get_streams()) == 2


async def test_what_is_read_is_asked_for_again_and_what_is_changed_is_uncertain(
    broker: TestBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await broker.connect()
    begin = Connection.begin
    breaks = 1

    def breaking(connection: Connection, command: c.Command) -> Any:
        nonlocal breaks
        answer = begin(connection, command)
        if breaks and isinstance(command, c.GetStreams | c.CreateStream):
            breaks -= 1
            broker.disconnect()
        return answer

    monkeypatch.setattr(Connection, "begin", breaking)
    assert await client.get_streams() == []
    breaks = 1
    with pytest.raises(Uncertain, match="before the reply to CreateStream"):
        await client.create_stream("demo")
    await client.create_stream("other")


async def test_groups_are_joined_again(scene: Twins) -> None:
    client = await scene.connect()
    await client.create_stream("demo")
    await client.create_topic("demo/orders", partitions_count=2)
    await client.create_consumer_group("demo/orders", name="app")
    await client.join_consumer_group("demo/orders", consumer_group="app")
    await scene.disconnect()
    assignment = await client.sync_consumer_group("demo/orders", consumer_group="app")
    assert assignment.partition_ids == (0, 1)
    await client.leave_consumer_group("demo/orders", consumer_group="app")
    await scene.disconnect()
    assert (await client.get_consumer_group("demo/orders", consumer_group="app")).members == []


async def test_attempts_to_reconnect_can_be_counted(broker: TestBroker) -> None:
    attempts = 0

    async def dial(target: Target) -> Connection:
        nonlocal attempts
        attempts += 1
        return await broker.dial(target)

    options: dict[str, object] = {"reconnect_attempts": 3, "reconnect_interval": 0.001}
    client = Client(broker.target(**options), dial)
    async with client:
        await broker.stop()
        with pytest.raises(ConnectionFailed, match="not running"):
            await client.ping()
        assert attempts == 4
        await broker.open()
        broker._token = ""
        client._link._login = c.LoginWithToken("wrong")
        with pytest.raises(AuthenticationFailed):
            await client.ping()


async def test_a_request_waits_for_a_connection_no_longer_than_it_should(broker: TestBroker) -> None:
    client = await broker.connect()
    client._link.target = broker.target(request_timeout=0.05)
    await broker.stop()
    with pytest.raises(ConnectionFailed, match="no connection within"):
        await client.ping()
    await broker.open()


async def test_who_does_not_want_to_reconnect_is_told(broker: TestBroker) -> None:
    client = await broker.connect(reconnect=False)
    broker.disconnect()
    for _ in range(2):
        with pytest.raises(ConnectionFailed, match="closed the connection"):
            await client.ping()


async def test_a_session_that_the_server_ends_is_begun_anew(broker: TestBroker) -> None:
    client = await broker.connect()
    await client.create_stream("demo")
    for code in (ErrorCode.STALE_CLIENT, ErrorCode.UNAUTHENTICATED, ErrorCode.ERROR):
        for session in broker.broker.sessions.all():
            broker.broker.sessions.end(session, CommandRejected(code, "enough"))
        assert (await client.get_stream("demo")).stream.name == "demo"


async def test_a_user_who_is_thrown_out_learns_it_at_the_next_login(scene: Twins) -> None:
    root = await scene.connect()
    await root.create_user("alice", "secret")
    alice = await scene.connect(username="alice", password="secret")
    await alice.ping()
    await root.update_user("alice", is_active=False)
    with pytest.raises(AuthenticationFailed, match="inactive"):
        await alice.get_streams()


async def test_signs_of_life_are_sent_while_nothing_else_is(
    broker: TestBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = watch(monkeypatch)
    client = await broker.connect(heartbeat_interval=0.01)
    await until(lambda: sum(isinstance(command, c.Ping) for command in seen) >= 3)
    broker.disconnect()
    await client.ping()
    count = len(seen)
    await until(lambda: len(seen) > count + 2)


async def test_a_member_comes_back_without_being_asked(broker: TestBroker) -> None:
    client = await broker.connect(heartbeat_interval=0.01)
    await client.create_stream("demo")
    await client.create_topic("demo/orders")
    await client.create_consumer_group("demo/orders", name="app")
    await client.join_consumer_group("demo/orders", consumer_group="app")
    broker.disconnect()
    await until(lambda: broker.broker.groups.member_count((0, 0, 0)) == 1)


# --- the test broker ----------------------------------------------------------------------------------


async def test_a_test_broker_keeps_its_data_if_it_is_told_where(tmp_path: Any) -> None:
    async with TestBroker(tmp_path) as broker:
        await (await broker.connect()).create_stream("kept")
    async with TestBroker(tmp_path) as broker:
        assert [stream.name for stream in await (await broker.connect()).get_streams()] == ["kept"]


async def test_a_test_broker_leaves_nothing_behind() -> None:
    async with TestBroker() as broker:
        directory = broker.broker.data.path
        assert directory.exists()
    assert not directory.exists()
    with pytest.raises(ConnectionFailed, match="not running"):
        await broker.connect()


def test_a_test_broker_for_sync_tests() -> None:
    with SyncTestBroker() as broker:
        client = broker.connect()
        client.create_stream("demo")
        client.create_topic("demo/orders")
        with client.producer("demo/orders") as producer:
            producer.send({"n": 1})
        broker.restart()
        broker.disconnect()
        consumer = client.consumer("demo/orders", group="app", stop_at_end=True)
        assert [message.json() for message in consumer] == [{"n": 1}]


async def test_a_sync_client_cannot_be_used_on_its_own_loop() -> None:
    with SyncTestBroker() as broker:
        client = broker.connect()

        async def inside() -> None:
            client.ping()

        with pytest.raises(RuntimeError, match="own event loop"):
            await asyncio.to_thread(client._thread.call, inside())


def describe(error: CourserError) -> Awaitable[None] | str:
    return str(error)


def test_exceptions_of_the_client_are_sentences() -> None:
    assert describe(ConnectionFailed("host:1", "cannot connect")) == "host:1: cannot connect"
    assert str(ClientClosed("closed")) == "closed"


# --- large requests -----------------------------------------------------------------------------------


class Reluctant(asyncio.Transport):
    """Takes so many writes, then says that it is enough."""

    def __init__(self, connection: Connection, write_count: int) -> None:
        super().__init__()
        self.connection = connection
        self.write_count = write_count
        self.written = bytearray()
        self.largest = 0

    def write(self, data: Any) -> None:
        assert self.write_count, "it said that it is enough"
        self.written += data
        self.largest = max(self.largest, len(data))
        self.write_count -= 1
        if not self.write_count:
            self.connection.pause_writing()

    def take_more(self, write_count: int) -> None:
        self.write_count = write_count
        self.connection.resume_writing()

    def close(self) -> None:
        self.write_count = 0

    abort = close


def connection_to_reluctant(write_count: int) -> tuple[Connection, Reluctant]:
    connection = Connection("nowhere", PATIENCE)
    transport = Reluctant(connection, write_count)
    connection.connection_made(transport)
    return connection, transport


def send_of(payload_size: int) -> c.SendMessages:
    return c.SendMessages("demo", "orders", ToPartition(0), [make_batch([SendMessage(bytes(payload_size))])])


async def test_a_large_request_goes_out_in_slices_as_the_kernel_takes_them() -> None:
    connection, transport = connection_to_reluctant(2)
    large = connection.begin(send_of(3_000_000))
    waiting = asyncio.ensure_future(connection.drained())
    following = connection.begin(send_of(10))
    while not connection.is_writable:
        before = len(transport.written)
        assert not waiting.done()
        transport.take_more(2)
        assert len(transport.written) > before
    await asyncio.wait_for(waiting, PATIENCE)
    assert transport.largest <= 512 * 1024
    first_size = int.from_bytes(transport.written[48:52], "little")
    assert first_size > 3_000_000
    second_size = int.from_bytes(transport.written[first_size + 48 : first_size + 52], "little")
    assert len(transport.written) == first_size + second_size
    connection.close()
    for answer in (large, following):
        with pytest.raises(ConnectionFailed):
            await answer


async def test_what_waits_for_the_kernel_is_forgotten_with_the_connection() -> None:
    connection, transport = connection_to_reluctant(1)
    answer = connection.begin(send_of(3_000_000))
    waiting = asyncio.ensure_future(connection.drained())
    connection.connection_lost(None)
    with pytest.raises(ConnectionFailed):
        await answer
    await asyncio.wait_for(waiting, PATIENCE)
    assert len(transport.written) < 3_000_000
