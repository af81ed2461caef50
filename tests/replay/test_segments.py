"""Segments as clients of SDK 0.9 see them: what deleting them takes, what it keeps, and how reading goes on.

The real server's smallest segment holds a thousand messages, so these rules are not in its recording; the classic
recording has them for the classic wire.
"""

import struct
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from courser.broker.settings import USUAL_TOPIC_OPTIONS, BrokerSettings
from courser.records.batch import NewMessage, build_batch, encode_batch
from tests.replay.captures import Wire
from tests.replay.connections import Answer, Connection
from tests.replay.fields import Record
from tests.replay.preparations import vsr_frame
from tests.replay.replies import parse_reply
from tests.replay.requests import Target
from tests.replay.server import running_server

PAYLOAD_SIZE = 200
BATCH_SIZE = 256 + 48 + PAYLOAD_SIZE
SEGMENT_SIZE = 5 * BATCH_SIZE
CLIENT = b"\x07" + bytes(15)
PLACE = b"\x02\x01s\x02\x01t"
"""Stream s, topic t."""
OFFSET, TIMESTAMP, FIRST, LAST, NEXT = range(1, 6)


def consumer(number: int) -> bytes:
    return b"\x01\x01\x04" + struct.pack("<I", number)


@dataclass
class Client:
    """A client that is logged in, with a topic of one partition."""

    connection: Connection
    number: int = 0

    async def change(self, operation: int, body: bytes) -> Answer:
        self.number += 1
        return await self.connection.ask(vsr_frame(operation, body, client=CLIENT, number=self.number, session=1))

    async def read(self, code: int, body: bytes) -> Answer:
        frame = bytearray(vsr_frame(2, body, client=CLIENT, number=self.number + 1, session=1))
        struct.pack_into("<I", frame, 196, code)
        return await self.connection.ask(bytes(frame))

    async def send(self, count: int) -> None:
        """Messages one by one, each a batch of its own."""
        for _ in range(count):
            batch = encode_batch(build_batch([NewMessage(b"x" * PAYLOAD_SIZE)]))
            metadata = PLACE + b"\x02\x04" + struct.pack("<II", 0, 1)
            body = struct.pack("<I", len(metadata)) + metadata + batch
            assert (await self.change(160, body)).outcome == "ok"

    async def offsets(self, strategy: int, value: int = 0, *, count: int = 3, by: int = 1) -> list[int]:
        """What a poll gives."""
        body = consumer(by) + PLACE + struct.pack("<BIBQIB", 1, 0, strategy, value, count, 0)
        answer = await self.read(100, body)
        reply = parse_reply(Wire.VSR, "PollMessages", Target(), answer.body)
        return [batch.field("base_offset").value for batch in reply.records("batches")]

    async def store(self, offset: int, *, by: int) -> None:
        body = consumer(by) + PLACE + struct.pack("<BIQB", 1, 0, offset, 1)
        assert (await self.change(161, body)).outcome == "ok"

    async def forget(self, *, by: int) -> None:
        assert (await self.change(162, consumer(by) + PLACE + struct.pack("<BIB", 1, 0, 1))).outcome == "ok"

    async def delete_segments(self, count: int) -> None:
        assert (await self.change(138, PLACE + struct.pack("<II", 0, count))).outcome == "ok"

    async def partition(self) -> dict[str, int]:
        """The figures of the one partition."""
        reply = parse_reply(Wire.VSR, "GetTopic", Target(), (await self.read(300, PLACE)).body)
        row: Record = reply.records("partitions")[0]
        names = ("segments_count", "current_offset", "size", "messages_count")
        return {name: row.field(name).value for name in names}


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[Client]:
    settings = BrokerSettings(topic_defaults=msgspec.structs.replace(USUAL_TOPIC_OPTIONS, segment_size=SEGMENT_SIZE))
    async with running_server(tmp_path / "data", settings) as server:
        connection = await Connection.open(Wire.VSR, server.port)
        login = struct.pack("<I", 0x2C00) + b"\x04test\x051.0.0\x04iggy\x04iggy" + bytes(4)
        assert (await connection.ask(vsr_frame(1, login, client=CLIENT))).outcome == "ok"
        client = Client(connection)
        assert (await client.change(128, b"\x01s")).outcome == "ok"
        assert (await client.change(132, b"\x02\x01s" + struct.pack("<I", 1) + b"\x01t")).outcome == "ok"
        yield client
        await connection.close()


def figures(segments: int, current: int, messages: int) -> dict[str, int]:
    return {
        "segments_count": segments,
        "current_offset": current,
        "size": messages * BATCH_SIZE,
        "messages_count": messages,
    }


async def test_a_segment_takes_what_fits_into_its_size(client: Client) -> None:
    await client.send(5)
    assert await client.partition() == figures(1, current=4, messages=5)
    await client.send(1)
    assert await client.partition() == figures(2, current=5, messages=6)


async def test_the_oldest_sealed_segments_go_and_numbering_goes_on(client: Client) -> None:
    await client.send(17)
    await client.delete_segments(2)
    assert await client.partition() == figures(2, current=16, messages=7)
    await client.send(1)
    assert await client.offsets(LAST, count=1) == [17]


async def test_reading_begins_at_the_first_message_that_is_kept(client: Client) -> None:
    await client.send(17)
    await client.delete_segments(1)
    assert await client.offsets(FIRST) == [5, 6, 7]
    assert await client.offsets(OFFSET, 0) == [5, 6, 7]
    assert await client.offsets(OFFSET, 3) == [5, 6, 7]
    assert await client.offsets(TIMESTAMP, 0) == [5, 6, 7]
    assert await client.offsets(NEXT) == [5, 6, 7]
    assert await client.offsets(LAST, count=100) == list(range(5, 17))


async def test_a_stored_offset_may_lie_below_what_is_kept(client: Client) -> None:
    await client.send(17)
    await client.delete_segments(1)
    await client.store(1, by=2)
    assert await client.offsets(NEXT, by=2) == [5, 6, 7]


async def test_the_open_segment_stays(client: Client) -> None:
    await client.send(17)
    await client.delete_segments(2**32 - 1)
    assert await client.partition() == figures(1, current=16, messages=2)
    await client.delete_segments(1)
    assert await client.partition() == figures(1, current=16, messages=2)


async def test_none_asked_for_is_none_deleted(client: Client) -> None:
    await client.send(17)
    await client.delete_segments(0)
    assert await client.partition() == figures(4, current=16, messages=17)


async def test_what_a_stored_offset_has_not_passed_stays(client: Client) -> None:
    await client.send(17)
    await client.store(8, by=1)
    await client.store(16, by=2)
    await client.delete_segments(100)
    assert await client.offsets(FIRST) == [5, 6, 7]
    await client.store(9, by=1)
    await client.delete_segments(100)
    assert await client.offsets(FIRST) == [10, 11, 12]
    await client.forget(by=1)
    await client.delete_segments(100)
    assert await client.offsets(FIRST) == [15, 16]


async def test_a_purge_takes_all_segments_and_numbering_goes_on(client: Client) -> None:
    await client.send(17)
    assert (await client.change(135, PLACE)).outcome == "ok"
    assert await client.partition() == figures(1, current=16, messages=0)
    assert await client.offsets(FIRST) == []
    await client.send(1)
    assert await client.offsets(FIRST) == [17]
