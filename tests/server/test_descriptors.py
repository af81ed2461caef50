"""A server that may open few files: it starts with fewer than it ran with, and says which limit is in the way."""

import asyncio
import re
from pathlib import Path

import pytest

import courser
from courser.client.messages import PollingStrategy
from courser.errors import ServerFailure
from tests.servers import RunningServer

LIMIT = 96
LIMIT_TOO_LOW = 12
PARTITION_COUNT = 120


def server_with(directory: Path, limit: int) -> RunningServer:
    return RunningServer(directory, prefix=("prlimit", f"--nofile={limit}:{limit}"))


async def write_until_refused(address: str) -> int:
    """One message for each partition, as long as there are descriptors; return to how many."""
    async with courser.connect(f"iggy://iggy:iggy@{address}") as client:
        await client.create_stream("s")
        await client.create_topic("s", "t", PARTITION_COUNT)
        for partition in range(PARTITION_COUNT):
            try:
                await client.send_messages("s/t", None, partition, f"message {partition}")
            except ServerFailure:
                return partition
    raise AssertionError("there were descriptors for all partitions")


async def read_all(address: str, count: int) -> list[str]:
    found = []
    async with courser.connect(f"iggy://iggy:iggy@{address}") as client:
        for partition in range(count):
            first = PollingStrategy.First()
            messages = await client.poll_messages("s/t", None, partition, first, 10, auto_commit=False)
            found += [message.text() for message in messages]
    return found


def test_a_start_after_a_kill_needs_fewer_descriptors_than_the_session_before(tmp_path: Path) -> None:
    with server_with(tmp_path, LIMIT) as server:
        count = asyncio.run(write_until_refused(server.address))
        assert count > 10
        server.kill()
    # Fewer by a third, and it starts all the same; what was confirmed is there.
    with server_with(tmp_path, LIMIT * 2 // 3) as server:
        server.kill()
    with RunningServer(tmp_path) as server:
        expected = [f"message {partition}" for partition in range(count)]
        assert asyncio.run(read_all(server.address, count)) == expected
        assert server.stop() == 0


def test_a_limit_that_is_too_low_is_named_with_what_is_needed(tmp_path: Path) -> None:
    with RunningServer(tmp_path) as server:
        asyncio.run(make_topic(server.address))
        server.stop()
    with pytest.raises(AssertionError, match="the server ended with 1"):
        server_with(tmp_path, LIMIT_TOO_LOW).start()
    output = (tmp_path / "output.txt").read_text()
    assert re.search(
        rf"too many open files: the limit is {LIMIT_TOO_LOW}, but the server needs at least 6[47]:", output
    )
    assert "ulimit -n, or LimitNOFILE=" in output
    assert "errors of the disk" not in output


async def make_topic(address: str) -> None:
    async with courser.connect(f"iggy://iggy:iggy@{address}") as client:
        await client.create_stream("s")
        await client.create_topic("s", "t", 3)
