"""Limits of the server as a whole, with several processes."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from courser.client.client import Client, connect
from courser.client.messages import PollingStrategy
from courser.errors import CourserError, ErrorCode
from courser.processes.channel import UNREAD_SIZE_MAX
from courser.processes.shared_slots import SharedSlots, make_shared_slots
from tests.processes.processes import children_of, connection_counts
from tests.servers import RunningServer
from tests.torture.process import until

PROCESS_COUNT = 3
PATIENCE = 120.0
_MIB = 1024 * 1024


# --- counting ---------------------------------------------------------------------------------------------


def test_processes_share_their_slots() -> None:
    descriptor = make_shared_slots(3)
    one, two, three = (SharedSlots(descriptor, number, 3, 4) for number in range(3))
    assert one.take(0)
    one.note(1, 0)
    assert two.take(0)
    two.note(1, 1)
    assert two.take(1)
    two.note(2, 2)
    # What one does not use, another may.
    assert three.take(0)
    three.note(1, 1)
    assert one.total == 4
    assert not one.take(1)
    assert not three.take(1)
    assert one.total == 4, "what was not given is not counted"
    asked: list[tuple[int, int]] = []
    for slots in (one, two, three):
        slots.ask_to_evict = lambda number, origin: asked.append((number, origin))
    assert one.free_in_peers(0)
    assert three.free_in_peers(1)
    assert not two.free_in_peers(2), "it has the most itself"
    assert asked == [(1, 0), (1, 2)]
    # All of them have logged in meanwhile.
    two.note(2, 0)
    assert two.pass_on(0)
    three.note(1, 0)
    assert three.pass_on(0)
    assert asked[2:] == [(2, 0), (0, 0)]
    assert one.pass_on(0), "there are as many as are allowed"
    one.note(2, 0)
    assert not one.pass_on(0), "nobody else can make room for what it has accepted"
    one.note(1, 0)
    one.forget(1)
    assert one.total == 2
    assert three.take(1)


# --- connections of a server ------------------------------------------------------------------------------


def url(server: RunningServer) -> str:
    return f"iggy://iggy:iggy@{server.address}"


@asynccontextmanager
async def connections(server: RunningServer, count: int) -> AsyncIterator[list[Client]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(connect(url(server), reconnect=False)) for _ in range(count)]


async def ping_until_refused(server: RunningServer) -> None:
    """A client may have logged in before the other processes have said that they have no slot for it."""
    async with connect(url(server), reconnect=False) as client:
        while True:
            await client.ping()


async def test_connections_are_counted_for_the_whole_server(tmp_path: Path) -> None:
    count_max = 9
    settings = {"server.processes": PROCESS_COUNT, "tcp.connection_count_max": count_max}
    with RunningServer(tmp_path / "server", settings=settings) as server:
        async with asyncio.timeout(PATIENCE):
            # However the kernel spreads them: as many as are allowed in all, and no more.
            async with connections(server, count_max):
                assert sum(connection_counts(server)) == count_max
                with pytest.raises(CourserError):
                    await ping_until_refused(server)
            await asyncio.to_thread(wait_until_gone, server)
            # Strangers make room, in whichever process they are.
            strangers = [await asyncio.open_connection(server.host, server.port) for _ in range(count_max)]
            async with connections(server, count_max) as clients:
                for client in clients:
                    await client.ping()
            for _, writer in strangers:
                writer.close()
        assert server.stop() == 0


def wait_until_gone(server: RunningServer) -> None:
    until(lambda: not sum(connection_counts(server)), "the end of all connections", PATIENCE)


# --- memory -----------------------------------------------------------------------------------------------


async def test_every_process_takes_the_largest_request(tmp_path: Path) -> None:
    size = 60 * _MIB
    settings = {"server.processes": PROCESS_COUNT, "tcp.request_memory": "64 MiB", "tcp.reply_memory": "64 MiB"}
    with RunningServer(tmp_path / "server", settings=settings) as server:
        async with asyncio.timeout(PATIENCE), connect(url(server)) as client:
            await client.create_stream("large")
            for number in range(PROCESS_COUNT):
                topic = f"large/topic-{number}"
                await client.create_topic(topic, partitions_count=1)
                payload = bytes([number]) * size
                await client.send_messages(topic, None, 0, [payload])
                (found,) = await client.poll_messages(topic, None, 0, PollingStrategy.First(), 1)
                assert found.payload == payload
        assert server.stop() == 0


async def test_large_sends_wait_for_a_process_that_does_not_read(tmp_path: Path) -> None:
    """As many as may wait are stored when it goes on. The others are refused, and nothing of them is done."""
    size, count = 16 * _MIB, 8
    with RunningServer(tmp_path / "server", settings={"server.processes": 2}) as server:
        async with asyncio.timeout(PATIENCE), connect(url(server)) as client:
            await client.create_stream("frozen")
            for number in range(2):
                await client.create_topic(f"frozen/topic-{number}", partitions_count=1)
            (worker,) = children_of(server)
            os.kill(worker, signal.SIGSTOP)
            try:
                # The other process does not accept connections now.
                async with connections(server, count) as clients:
                    sends = [
                        asyncio.ensure_future(other.send_messages("frozen/topic-1", None, 0, [bytes(size)]))
                        for other in clients
                    ]
                    refused, _ = await asyncio.wait(sends, return_when=asyncio.FIRST_COMPLETED)
                    assert {getattr(send.exception(), "code", None) for send in refused} == {ErrorCode.SERVER_BUSY}
                    await client.ping()
                    os.kill(worker, signal.SIGCONT)
                    results = await asyncio.gather(*sends, return_exceptions=True)
            finally:
                os.kill(worker, signal.SIGCONT)
            failures = [result for result in results if isinstance(result, BaseException)]
            assert {getattr(failure, "code", None) for failure in failures} == {ErrorCode.SERVER_BUSY}
            topic = await client.get_topic("frozen/topic-1")
            assert topic is not None
            assert topic.topic.message_count == count - len(failures) >= UNREAD_SIZE_MAX // size
        assert server.stop() == 0


# --- figures ----------------------------------------------------------------------------------------------


async def test_statistics_are_those_of_all_processes(tmp_path: Path) -> None:
    with RunningServer(tmp_path / "server", settings={"server.processes": PROCESS_COUNT}) as server:
        async with asyncio.timeout(PATIENCE), connect(url(server)) as client:
            stats = await client.get_stats()
            sizes = [resident_size(number) for number in (server.process.pid, *children_of(server))]
            assert len(sizes) == PROCESS_COUNT
            # Each has used some memory more or less since.
            assert 0.8 * sum(sizes) < stats.memory_usage < 1.2 * sum(sizes)
            assert stats.memory_usage > 1.5 * max(sizes)


def resident_size(process_id: int) -> int:
    return int(Path(f"/proc/{process_id}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
