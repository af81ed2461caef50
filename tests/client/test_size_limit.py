"""Messages above the size limit: refused by the client before they are sent."""

from pathlib import Path
from typing import Any

import pytest

from courser.client.client import connect
from courser.errors import ErrorCode, TooLarge
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


async def test_the_client_learns_the_limit_of_the_server_at_login(tmp_path: Path) -> None:
    settings = {"tcp.frame_size_max": "1 MiB"}
    with RunningServer(tmp_path, settings=settings) as server:
        async with connect(f"iggy://iggy:iggy@{server.address}") as client:
            await client.create_stream("demo")
            await client.create_topic(PLACE)
            with pytest.raises(
                TooLarge, match=r"the server's setting tcp\.frame_size_max allows 1,048,576 in one"
            ) as one:
                await client.send_messages(PLACE, messages=[bytes(MIB)])
            assert one.value.setting == "tcp.frame_size_max"
            async with client.producer(PLACE) as producer:
                with pytest.raises(TooLarge):
                    await producer.send(bytes(2 * MIB))
                # More than one request takes: the producer makes its batches smaller.
                for _ in range(20):
                    await producer.send(bytes(100_000))
            assert producer.message_count == 20
