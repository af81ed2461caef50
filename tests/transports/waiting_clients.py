"""A client of protocol 0.12 that sends any request, and finds the reply to each by its number."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from struct import pack, unpack_from

from courser.records.batch import NewMessage, build_batch, encode_batch
from courser.wire.vsr_headers import HEADER_SIZE
from courser.wire.writing import identifier, text8
from tests.records.reference import read_wire
from tests.transports.whole_servers import PATIENCE
from tests.wire.vsr_captures import frame, read

SECOND = 1_000_000
VERSION = ((12 << 10) + 2).to_bytes(4, "little")


def place_of(stream: str, topic: str) -> bytes:
    """What names a topic in a request."""
    return identifier(stream) + identifier(topic)


PLACE = place_of("s", "t")
ALONE = b"\x01" + identifier(1)
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

    async def send(self, text: str, partition: int, place: bytes = PLACE) -> bytes:
        batch = encode_batch(build_batch([NewMessage(text.encode())]))
        target = place + b"\x02\x04" + partition.to_bytes(4, "little") + pack("<I", 1)
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


@asynccontextmanager
async def connected(host: str, port: int) -> AsyncIterator[StreamClient]:
    """A client over TCP."""
    reader, writer = await asyncio.open_connection(host, port)
    client = StreamClient(reader, writer)
    try:
        yield client
    finally:
        client.task.cancel()
        writer.close()


def poll(
    partition: int, *, kind: int = OFFSET, value: int = 0, commits: bool = False, place: bytes = PLACE
) -> Callable[[int], bytes]:
    """A read of one partition that waits for ten minutes."""
    strategy = pack("<BIBQIB", 1, partition, kind, value, 1000, commits)
    body = ALONE + place + strategy + pack("<QIIQ", 600 * SECOND, 1, 1 << 20, 630 * SECOND)
    return lambda number: read(106, body, request=number)


def fetch(*partitions: int, kind: int = OFFSET, commits: bool = False, place: bytes = PLACE) -> Callable[[int], bytes]:
    """The same of several."""
    targets = b"".join(pack("<IBQIQQ", partition, kind, 0, 1 << 20, 0, 0) for partition in partitions)
    head = pack("<QQIIIBI", 600 * SECOND, 630 * SECOND, 1, 1000, 1 << 20, commits, len(partitions))
    return lambda number: read(109, ALONE + place + head + targets, request=number)


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
