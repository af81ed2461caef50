"""Reads of SDK 0.10 that wait, over every binary transport of a whole server: other requests go on beside them."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from struct import pack, unpack_from

import pytest
from qh3.asyncio.client import connect as connect_quic
from qh3.asyncio.protocol import QuicConnectionProtocol
from qh3.quic.configuration import QuicConfiguration
from websockets.asyncio.client import ClientConnection
from websockets.asyncio.client import connect as connect_websocket
from websockets.exceptions import ConnectionClosedError

from courser.broker.partition.partition import Partition
from courser.errors import ErrorCode
from courser.model.identifiers import TopicAddress
from courser.model.messaging import Transport
from courser.transports.parked_reads import COUNT_MAX
from courser.wire.vsr_headers import HEADER_SIZE
from courser.wire.writing import identifier, text8
from tests.transports.waiting_clients import (
    ALONE,
    NEXT,
    OFFSET,
    PLACE,
    SECOND,
    Client,
    connected,
    fetch,
    fetched,
    poll,
    polled,
    status_of,
)
from tests.transports.whole_servers import PATIENCE, WholeServer, whole_server
from tests.wire.vsr_captures import frame, read


class WebSocketClient(Client):
    """Over WebSocket."""

    def __init__(self, connection: ClientConnection) -> None:
        super().__init__()
        self.connection = connection
        self.task = asyncio.create_task(self.listen())

    async def listen(self) -> None:
        try:
            async for message in self.connection:
                assert isinstance(message, bytes)
                self.got(message)
        except ConnectionClosedError:
            # The server said why.
            pass
        self.is_closed.set()

    async def write(self, request: bytes) -> None:
        await self.connection.send(request)


class QuicClient(Client):
    """Over QUIC: a stream for each request."""

    def __init__(self, connection: QuicConnectionProtocol) -> None:
        super().__init__()
        self.connection = connection
        self.tasks: set[asyncio.Task[None]] = set()
        self.unanswered: list[bytes] = []
        """Requests whose streams have ended without a reply."""

    async def listen(self, request: bytes, reader: asyncio.StreamReader) -> None:
        reply = await reader.read()
        if reply:
            number = request[168:176]
            assert reply[200:208] == number, "a reply comes on the stream of its request"
            self.got(reply)
        else:
            self.unanswered.append(request)

    async def write(self, request: bytes) -> None:
        reader, writer = await self.connection.create_stream()
        writer.write(request)
        writer.write_eof()
        task = asyncio.create_task(self.listen(request, reader))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)


@asynccontextmanager
async def over_tcp(server: WholeServer) -> AsyncIterator[Client]:
    async with connected("127.0.0.1", server.addresses[Transport.TCP].port) as client:
        yield client


@asynccontextmanager
async def over_websocket(server: WholeServer) -> AsyncIterator[Client]:
    address = f"ws://127.0.0.1:{server.websocket_port}/"
    async with connect_websocket(address, max_size=None, compression=None, proxy=None) as connection:
        client = WebSocketClient(connection)
        yield client
        client.task.cancel()


@asynccontextmanager
async def over_quic(server: WholeServer) -> AsyncIterator[Client]:
    configuration = QuicConfiguration(verify_mode=ssl.CERT_NONE, server_name="localhost")
    port = server.addresses[Transport.QUIC].port
    async with connect_quic("127.0.0.1", port, configuration=configuration) as connection:
        client = QuicClient(connection)
        yield client
        for task in client.tasks:
            task.cancel()


CARRIERS = {"tcp": over_tcp, "websocket": over_websocket, "quic": over_quic}
Carrier = Callable[[WholeServer], AbstractAsyncContextManager[Client]]
carriers = pytest.mark.parametrize("carrier", CARRIERS.values(), ids=CARRIERS)


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[WholeServer]:
    async with whole_server(tmp_path, "quic.enabled=true") as server:
        await server.add_topic(partition_count=4)
        yield server


def partition_of(server: WholeServer, number: int) -> Partition:
    return server.broker.partitions.at(TopicAddress(0, 0)).partition(number)


def waiting_count(server: WholeServer) -> int:
    """Reads that wait for a partition."""
    return sum(len(partition_of(server, number).readers.waiting) for number in range(4))


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.001)


@carriers
async def test_a_producer_is_answered_beside_reads_that_wait(server: WholeServer, carrier: Carrier) -> None:
    async with carrier(server) as client:
        await client.log_in()
        _, one = await client.begin(poll(0))
        _, several = await client.begin(fetch(1, 2))
        await until(lambda: waiting_count(server) == 3)
        for number in range(5):
            assert status_of(await client.send(f"elsewhere {number}", 3)) == 0
        await client.ping()
        assert waiting_count(server) == 3, "no other request has ended them"
        assert not one.done()
        assert not several.done()
        assert status_of(await client.send("for both", 2)) == 0
        async with asyncio.timeout(PATIENCE):
            assert fetched(await several) == ([2], ["for both"])
        assert not one.done()
        assert status_of(await client.send("for one", 0)) == 0
        async with asyncio.timeout(PATIENCE):
            assert polled(await one) == ["for one"]
        assert waiting_count(server) == 0
        assert fetched(await client.ask(fetch(0, 1, 2, 3)))[0] == [0, 2, 3]


@carriers
async def test_a_read_that_is_cancelled_is_answered_and_leaves_nothing(server: WholeServer, carrier: Carrier) -> None:
    async with carrier(server) as client:
        await client.log_in()
        number, reply = await client.begin(fetch(0, 1, kind=NEXT, commits=True))
        _, other = await client.begin(poll(2))
        await until(lambda: waiting_count(server) == 3)
        await client.cancel(number)
        async with asyncio.timeout(PATIENCE):
            assert status_of(await reply) == ErrorCode.NOT_ACCEPTED
        assert waiting_count(server) == 1
        (session,) = [session for session in server.broker.sessions if session.parked]
        assert len(session.parked) == 1
        # Later messages are for whoever reads next, and nothing was committed.
        await client.send("later", 0)
        assert fetched(await client.ask(fetch(0, kind=NEXT))) == ([0], ["later"])
        await client.cancel(number)
        await client.ping()
        assert not other.done()


@carriers
async def test_a_connection_that_is_lost_leaves_nothing(server: WholeServer, carrier: Carrier) -> None:
    async with carrier(server) as client:
        await client.log_in()
        await client.begin(poll(0))
        await client.begin(fetch(1, 2, 3))
        await until(lambda: waiting_count(server) == 4)
        (connection,) = server.connections
        connection.abort()
        await until(lambda: waiting_count(server) == 0)
    assert not server.broker.polls.rows.by_user
    assert server.broker.buffers.ledger.size == 0


@pytest.mark.parametrize("carrier", [over_tcp, over_websocket], ids=["tcp", "websocket"])
async def test_a_server_that_stops_refuses_reads_that_wait(server: WholeServer, carrier: Carrier) -> None:
    async with carrier(server) as client:
        await client.log_in()
        replies = [(await client.begin(request))[1] for request in (poll(0, kind=NEXT, commits=True), fetch(1, 2))]
        await until(lambda: waiting_count(server) == 3)
        stop = asyncio.create_task(server.connections.say_goodbye(PATIENCE))
        async with asyncio.timeout(PATIENCE):
            assert [status_of(await reply) for reply in replies] == [ErrorCode.NOT_ACCEPTED] * 2
            await client.is_closed.wait()
            await stop
        assert waiting_count(server) == 0


@carriers
async def test_so_many_reads_may_wait_and_no_more(server: WholeServer, carrier: Carrier) -> None:
    async with carrier(server) as client:
        await client.log_in()
        replies = [(await client.begin(poll(0)))[1] for _ in range(COUNT_MAX)]
        await until(lambda: waiting_count(server) == COUNT_MAX)
        assert status_of(await client.ask(poll(0))) == ErrorCode.TOO_MANY_WAITING_READS
        await client.send("for all", 0)
        async with asyncio.timeout(PATIENCE):
            assert [polled(await reply) for reply in replies] == [["for all"]] * COUNT_MAX
        await client.ping()
        assert server.broker.buffers.ledger.size == 0


@carriers
async def test_a_wait_that_is_over_is_answered_with_nothing(server: WholeServer, carrier: Carrier) -> None:
    async with carrier(server) as client:
        await client.log_in()
        short = (
            ALONE + PLACE + pack("<BIBQIB", 1, 0, OFFSET, 0, 1000, False) + pack("<QIIQ", 1000, 1, 1 << 20, 2 * SECOND)
        )
        assert polled(await client.ask(lambda number: read(106, short, request=number))) == []


async def test_a_member_hears_of_a_rebalance_at_once(server: WholeServer) -> None:
    async with over_tcp(server) as first, over_tcp(server) as second:
        group = PLACE + identifier("g")
        for client in (first, second):
            await client.log_in()
        assert status_of(await first.ask(lambda number: frame(139, PLACE + text8("g"), request=number))) == 0
        assert status_of(await first.ask(lambda number: frame(148, group, request=number))) == 0
        target = pack("<IBQIQQ", 1, NEXT, 0, 1 << 20, 0, 0)
        head = pack("<QQIIIBI", 600 * SECOND, 630 * SECOND, 1, 1000, 1 << 20, 1, 1)
        body = b"\x02" + identifier("g") + PLACE + head + target
        _, reply = await first.begin(lambda number: read(109, body, request=number))
        await until(lambda: waiting_count(server) == 1)
        assert status_of(await second.ask(lambda number: frame(148, group, request=number))) == 0
        async with asyncio.timeout(PATIENCE):
            refused = await reply
        assert unpack_from("<III", refused, HEADER_SIZE) == (1, 1, ErrorCode.PARTITION_NOT_OWNED)
