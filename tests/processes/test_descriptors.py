"""A process with as many descriptors as it may have: what is sent to it is dropped by the kernel, and comes later."""

import asyncio
import errno
import os
import resource
import signal
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from courser.client.client import connect
from courser.errors import CommandRejected
from courser.processes import links
from courser.processes.handles import Handles, are_left, handle_pair
from courser.processes.links import Links
from tests.broker.open_partitions import until
from tests.processes.processes import children_of
from tests.processes.test_kills import PATIENCE, PROCESS_COUNT, make_topics, url
from tests.processes.test_restarts import PAUSE, Stage
from tests.servers import RunningServer
from tests.torture.process import until as wait_until

CLIENT_COUNT = 12
"""Enough that each process has some of them."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    with RunningServer(tmp_path / "server", settings={"server.processes": PROCESS_COUNT}) as server:
        yield server


async def said(server: RunningServer, words: str) -> None:
    await asyncio.to_thread(wait_until, lambda: words in server.output, words, PATIENCE)


async def test_a_restarted_process_is_reached_as_soon_as_there_are_descriptors(server: RunningServer) -> None:
    clients = [await connect(url(server)) for _ in range(CLIENT_COUNT)]
    topics = await make_topics(clients[0])
    full, killed = children_of(server)
    before = resource.prlimit(full, resource.RLIMIT_NOFILE)
    # Not one more, whatever it closes.
    resource.prlimit(full, resource.RLIMIT_NOFILE, (3, before[1]))
    os.kill(killed, signal.SIGKILL)
    async with asyncio.timeout(PATIENCE):
        await said(server, "no descriptor is left for a channel to process 2")
        resource.prlimit(full, resource.RLIMIT_NOFILE, before)
        await said(server, "connected to process 2 again")
        for client in clients:
            for topic in topics:
                await client.send_messages(topic, None, 0, ["one"])
            await client.close()


async def test_descriptors_that_arrive_in_part_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel gives as many as fit."""
    ours, theirs = handle_pair()
    found: list[Sequence[int]] = []
    receive, kept = socket.recv_fds, list[int]()

    def cut(end: socket.socket, size: int, count: int) -> object:
        data, descriptors, flags, address = receive(end, size, count)
        os.close(descriptors.pop())
        kept.extend(descriptors)
        return data, descriptors, flags, address

    monkeypatch.setattr(socket, "recv_fds", cut)
    sender = Handles(ours, {})
    receiver = Handles(theirs, {"take": lambda descriptors, _: found.append(descriptors)})
    sender.send([0, 1], "take", "argument")
    await until(lambda: bool(found))
    assert found == [[]]
    for descriptor in kept:
        with pytest.raises(OSError, match="Bad file"):
            os.fstat(descriptor)
    sender.close()
    receiver.close()


async def test_a_request_hears_why_a_process_cannot_be_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "RESTART_PATIENCE", 0.001)
    found = Links(1, 3)
    found.without_channel.add(2)
    with pytest.raises(CommandRejected, match="limit of open files"):
        await found.wait_for(2)
    with pytest.raises(CommandRejected, match="is being restarted"):
        await found.wait_for(0)


def test_descriptors_that_are_left_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    opened, closed = list[int](), list[int]()

    def give(*_: object) -> int:
        if len(opened) == 3:
            raise OSError(errno.EMFILE, "too many")
        opened.append(100 + len(opened))
        return opened[-1]

    monkeypatch.setattr(os, "open", give)
    monkeypatch.setattr(os, "close", closed.append)
    assert not are_left(4)
    assert closed == [100, 101, 102]
    opened.clear()
    assert are_left(3)


async def test_the_first_process_without_descriptors_tries_again_soon(caplog: pytest.LogCaptureFixture) -> None:
    """It did not end, so the pause does not grow with each try."""
    stage = Stage(retry_pause=4 * PAUSE)
    async with asyncio.timeout(PATIENCE):
        await stage.open()
        stage.start_failures = [OSError(errno.EMFILE, "too many")] * 8
        stage.started[0].close()
        await stage.until_started(2)
        await stage.peers.links.wait_for(1)
    said = [record.args for record in caplog.records if "again in" in record.msg]
    pauses = [arguments[1] for arguments in said if isinstance(arguments, tuple)]
    assert len(pauses) == 9
    assert set(pauses) == {PAUSE, 2 * PAUSE, 4 * PAUSE}
    await stage.close()


async def test_processes_that_cannot_be_connected_now_are_connected_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither of them is ended for that."""
    stage = Stage(process_count=3, retry_pause=PAUSE)
    failures, linked = list[OSError](), list[tuple[int, int]]()

    def link(one: int, other: int) -> None:
        if failures:
            raise failures.pop()
        linked.append((one, other))

    monkeypatch.setattr(stage.peers, "_link", link)
    async with asyncio.timeout(PATIENCE):
        await stage.open()
        assert linked == [(1, 2)]
        linked.clear()
        failures += [OSError(errno.EMFILE, "too many")] * 2
        stage.started[0].close()
        await until(lambda: bool(linked))
        assert linked == [(1, 2)]
        assert len(stage.started) == 3
        # One that says that it is not connected is connected, unless the other one is being started again.
        stage.peers.services["link_again"](stage.peers.connected[2], 1)
        assert linked == [(1, 2), (2, 1)]
    await stage.close()
