"""Messages above the size limit: refused by the client before they are sent."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from courser.api import commands as c
from courser.client.client import connect
from courser.client.connection import open_connection
from courser.client.messages import SendMessage
from courser.client.messaging import make_batch
from courser.client.targets import Target
from courser.errors import ErrorCode, InvalidRequest, TooLarge
from courser.model.messaging import ToPartition
from tests.servers import RunningServer

MIB = 1024 * 1024
PLACE = "demo/orders"


async def test_a_message_above_the_limit_is_refused_and_others_are_sent(client: Any) -> None:
    async with client.producer(PLACE, partitioning=0) as producer:
        await producer.send("before")
        with pytest.raises(
            TooLarge, match="the message has 67,109,424 bytes, and the protocol allows 67,108,864 in"
        ) as one:
            await producer.send(bytes(64 * MIB))
        await producer.send("after")
    assert (one.value.size_max, one.value.setting, one.value.code) == (64 * MIB, None, ErrorCode.INVALID_MESSAGES_SIZE)
    assert producer.message_count == 2
    with pytest.raises(TooLarge, match="the batch of 2 messages has"):
        await client.send_messages(PLACE, partitioning=0, messages=[bytes(33 * MIB), bytes(33 * MIB)])
    assert (await client.get_partition_bounds(PLACE)).partitions[0].message_count == 2


async def test_a_message_that_only_its_names_make_too_large_is_refused_too(client: Any) -> None:
    """The size of a whole request is known only when it is written."""
    payload = bytes(64 * MIB - 3 * 256 - 48)
    with pytest.raises(TooLarge):
        async with client.producer(PLACE, partitioning=0) as producer:
            await producer.send(payload + bytes(256))
    with pytest.raises(TooLarge, match="this SendMessages has 67,1"):
        await client.send_messages(PLACE, partitioning=0, messages=[payload + bytes(256)])
    await client.send_messages(PLACE, partitioning=0, messages=[payload])


@pytest.fixture(scope="module")
def small_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server that accepts requests of 1 MiB."""
    settings = {"tcp.frame_size_max": "1 MiB"}
    with RunningServer(tmp_path_factory.mktemp("small"), settings=settings) as server:
        yield server


async def test_the_client_learns_the_limit_of_the_server_at_login(small_server: RunningServer) -> None:
    async with connect(f"iggy://iggy:iggy@{small_server.address}") as client:
        await client.create_stream("demo")
        await client.create_topic(PLACE)
        with pytest.raises(TooLarge, match=r"the server's setting tcp\.frame_size_max allows 1,048,576 in one") as one:
            await client.send_messages(PLACE, messages=[bytes(MIB)])
        assert one.value.setting == "tcp.frame_size_max"
        async with client.producer(PLACE) as producer:
            with pytest.raises(TooLarge):
                await producer.send(bytes(2 * MIB))
            # More than one request takes: the producer makes its batches smaller.
            for _ in range(20):
                await producer.send(bytes(100_000))
        assert producer.message_count == 20


async def test_the_server_answers_a_request_above_its_limit_before_it_closes_the_connection(
    small_server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From a client that does not know the limit."""
    defects: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: defects.append(context))
    connection = await open_connection(Target(port=small_server.port))
    await connection.request(c.LoginUser("iggy", "iggy"))
    monkeypatch.setattr(connection._codec, "frame_size_max", 64 * MIB)
    batch = make_batch([SendMessage(bytes(40 * MIB))])
    with pytest.raises(InvalidRequest, match="a request has 41943628 bytes, but at most 1048576 are allowed"):
        await connection.request(c.SendMessages("demo", "orders", ToPartition(0), [batch]))
    await connection.closed
    await asyncio.sleep(0)
    assert defects == []
