"""Reads of SDK 0.10 that wait, over every binary transport of a whole server: other requests go on beside them."""

import asyncio
import ssl
from abc import ABC, abstractmethod
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
from courser.records.batch import NewMessage, build_batch, encode_batch
from courser.transports.parked_reads import COUNT_MAX
from courser.wire.vsr_headers import HEADER_SIZE
from courser.wire.writing import identifier, text8
from tests.records.reference import read_wire
from tests.transports.whole_servers import PATIENCE, WholeServer, whole_server
from tests.wire.vsr_captures import frame, read

SECOND = 1_000_000
VERSION = ((12 << 10) + 2).to_bytes(4, "little")
PLACE = identifier("s") + identifier("t")
ALONE = b"\x01" + identifier(1) + PLACE
OFFSET, NEXT = 1, 5


class Client(ABC):
    """A client of protocol 0.12: it finds the request of a reply by its number."""

    def __init__(self) -> None:
        self.number = 0
        self.pending: dict[int, asyncio.Future[bytes]] = {}
        self.is_closed = asyncio.Event()

    def got(self, reply: bytes) -> None:
        self.pending.pop(int.from_bytes(reply[200:208], "little")).set_result(reply)

    @abstractmethod
    async def write(self, request: bytes) -> None:
        """Send a request."""

    async def begin(self, request: Callable[[int], bytes]) -> "tuple[int, asyncio.Future[bytes]]":
        """Send a request that is made for its number. Its number, and its reply."""
        self.number += 1
        reply = self.pending[self.number] = asyncio.get_running_loop().create_future()
        await self.write(request(self.number))
        return self.number, reply

    async def ask(self, request: Callable[[int], bytes]) -> bytes:
        _, reply = await self.begin(request)
        async with asyncio.timeout(PATIENCE):
            return await reply

    async def log_in(self) -> None:
        body = VERSION + text8("rust-sdk") + text8("0.11.1") + bytes(32) + text8("iggy") + text8("iggy") + bytes(4)
        reply = self.pending[0] = asyncio.get_running_loop().create_future()
        await self.write(frame(1, body, request=0, session=0))
        async with asyncio.timeout(PATIENCE):
            assert status_of(await reply) == 0

    async def send(self, text: str, partition: int) -> bytes:
        batch = encode_batch(build_batch([NewMessage(text.encode())]))
        target = PLACE + b"\x02\x04" + partition.to_bytes(4, "little") + pack("<I", 1)
        body = len(target).to_bytes(4, "little") + target + batch
        return await self.ask(lambda number: frame(160, body, request=number))

    async def ping(self) -> None:
        assert status_of(await self.ask(lambda number: read(1, request=number))) == 0

    async def cancel(self, number: int) -> None:
        await self.write(read(108, request=number))


class StreamClient(Client):
    """Over TCP."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        super().__init__()
        self.reader, self.writer = reader, writer
        self.task = asyncio.create_task(self.listen())

    async def listen(self) -> None:
        try:
            while True:
                header = await self.reader.readexactly(HEADER_SIZE)
                size = int.from_bytes(header[48:52], "little")
                self.got(header + await self.reader.readexactly(size - HEADER_SIZE))
        except (asyncio.IncompleteReadError, ConnectionError):
            self.is_closed.set()

    async def write(self, request: bytes) -> None:
        self.writer.write(request)
        await self.writer.drain()


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
    reader, writer = await asyncio.open_connection("127.0.0.1", server.addresses[Transport.TCP].port)
    client = StreamClient(reader, writer)
    yield client
    client.task.cancel()
    writer.close()


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


def poll(partition: int, *, kind: int = OFFSET, value: int = 0, commits: bool = False) -> Callable[[int], bytes]:
    """A read of one partition that waits for ten minutes."""
    strategy = pack("<BIBQIB", 1, partition, kind, value, 1000, commits)
    body = ALONE + strategy + pack("<QIIQ", 600 * SECOND, 1, 1 << 20, 630 * SECOND)
    return lambda number: read(106, body, request=number)


def fetch(*partitions: int, kind: int = OFFSET, commits: bool = False) -> Callable[[int], bytes]:
    """The same of several."""
    targets = b"".join(pack("<IBQIQQ", partition, kind, 0, 1 << 20, 0, 0) for partition in partitions)
    head = pack("<QQIIIBI", 600 * SECOND, 630 * SECOND, 1, 1000, 1 << 20, commits, len(partitions))
    return lambda number: read(109, ALONE + head + targets, request=number)


def status_of(reply: bytes) -> int:
    status: int = unpack_from("<I", reply, 216)[0]
    return status


def polled(reply: bytes) -> list[str]:
    assert status_of(reply) == 0
    return [message.payload.decode() for message in read_wire(reply[HEADER_SIZE + 40 :])]


def fetched(reply: bytes) -> tuple[list[int], list[str]]:
    """The partitions of the reply that have messages, and the messages."""
    assert status_of(reply) == 0
    (count,) = unpack_from("<I", reply, HEADER_SIZE)
    rows = [unpack_from("<IIQIQQQQI", reply, HEADER_SIZE + 4 + 56 * number) for number in range(count)]
    records = reply[HEADER_SIZE + 4 + 56 * count :]
    return [row[0] for row in rows if row[3]], [message.payload.decode() for message in read_wire(records)]


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
        short = ALONE + pack("<BIBQIB", 1, 0, OFFSET, 0, 1000, False) + pack("<QIIQ", 1000, 1, 1 << 20, 2 * SECOND)
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
