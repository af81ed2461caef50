"""Processes that are there and do not answer: they are named and replaced, and nobody waits for them for ever."""

import asyncio
import contextlib
import os
import signal
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from courser.client.client import Client, connect
from courser.client.messages import PollingStrategy
from courser.processes.peer import ProcessGone
from courser.processes.peer_heartbeats import Patience
from tests.processes.processes import children_of
from tests.processes.test_restarts import Stage
from tests.servers import RunningServer
from tests.torture.process import until

PATIENCE = 60.0
LONG = 3600.0
SHORT = Patience(interval=0.005, figures=0.02, hint=0.005, silence=0.1, blocking=LONG, stopping=LONG, leaving=0.01)


def freeze(stage: Stage) -> Callable[[], None]:
    """Have processes answer no heartbeats. Returns what ends that."""
    stage.on_heartbeat = lambda: _wait_for(asyncio.Event())

    def thaw() -> None:
        stage.on_heartbeat = lambda: None

    return thaw


async def _wait_for(event: asyncio.Event) -> None:
    await event.wait()


async def test_a_silent_process_is_replaced_and_all_that_waits_for_it_ends(caplog: pytest.LogCaptureFixture) -> None:
    stage = Stage(SHORT)
    async with asyncio.timeout(PATIENCE):
        await stage.open()
        waiting = stage.peers.connected[1].call("never")
        thaw = freeze(stage)
        stage.peers.on_lost = lambda _: thaw()
        with pytest.raises(ProcessGone):
            await waiting
        await stage.peers.links.wait_for(1)
    assert (len(stage.started), stage.alive, stage.most_alive) == (2, 1, 1)
    assert "process 1 has not answered for 0.1 s; ending it" in caplog.text
    await stage.close()


async def test_nobody_waits_for_a_process_that_does_not_even_end() -> None:
    """The kernel ends no process that waits for a disk which hangs. It is replaced when it has ended, not earlier."""
    stage = Stage(SHORT)
    async with asyncio.timeout(PATIENCE):
        await stage.open()
        waiting = stage.peers.connected[1].call("never")
        stage.can_end.clear()
        thaw = freeze(stage)
        with pytest.raises(ProcessGone):
            await waiting
        thaw()
        assert not stage.peers.links.peers
        assert len(stage.started) == 1
        stage.can_end.set()
        await stage.peers.links.wait_for(1)
    assert (len(stage.started), stage.most_alive) == (2, 1)
    await stage.close()


@pytest.mark.parametrize("is_busy", [False, True])
async def test_a_process_may_be_silent_for_less_time_while_changes_wait_for_it(is_busy: bool) -> None:
    stage = Stage(Patience(interval=0.005, silence=0.1 + LONG * is_busy, blocking=0.1 + LONG * (not is_busy)))
    async with asyncio.timeout(PATIENCE):
        await stage.open()
        stage.catalog.is_busy = is_busy
        thaw = freeze(stage)
        stage.peers.on_lost = lambda _: thaw()
        await stage.until_started(2)
        await stage.peers.links.wait_for(1)
    await stage.close()


async def test_a_process_that_stood_still_itself_blames_nobody() -> None:
    stage = Stage(SHORT)
    async with asyncio.timeout(PATIENCE):
        await stage.open()
        asked, answer = asyncio.Event(), asyncio.Event()

        def hear() -> Any:
            asked.set()
            return _wait_for(answer)

        stage.on_heartbeat = hear
        await asked.wait()
        # As if the whole machine slept with an open question: nothing else runs.
        threading.Event().wait(3 * SHORT.silence)
        answer.set()
        peer = stage.peers.connected[1]
        await peer.call("problems")
        assert peer.is_open
        assert len(stage.started) == 1
    await stage.close()


async def test_health_and_metrics_name_a_silent_process_and_do_not_wait_for_it() -> None:
    stage = Stage(Patience(interval=0.005, figures=0.02, hint=0.005, silence=LONG))
    async with asyncio.timeout(PATIENCE):
        await stage.open()
        assert await stage.peers.problems() == ["its disk is full"]
        await stage.peers.metrics()
        assert stage.peers.answering() == (0, 1)
        # It neither answers heartbeats nor anything else.
        freeze(stage)
        stage.started[0]._services = {name: lambda _: _wait_for(asyncio.Event()) for name in stage.started[0]._services}
        assert await stage.peers.problems() == ["process 1 does not answer"]
        await stage.peers.metrics()
        assert stage.peers.answering() == (0,)
    await stage.close()


# --- real processes ---------------------------------------------------------------------------------------

PROCESS_COUNT = 3


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    settings = {"server.processes": PROCESS_COUNT, "http.enabled": "true", "http.address": "127.0.0.1:0"}
    with RunningServer(tmp_path / "server", settings=settings) as server:
        yield server


@contextmanager
def frozen(process_id: int) -> Iterator[None]:
    os.kill(process_id, signal.SIGSTOP)
    try:
        yield
    finally:
        # If it was not ended, as it should be.
        with contextlib.suppress(ProcessLookupError):
            os.kill(process_id, signal.SIGCONT)


async def make_topics(client: Client) -> list[str]:
    await client.create_stream("demo")
    topics = [f"demo/topic-{number}" for number in range(PROCESS_COUNT)]
    for topic in topics:
        await client.create_topic(topic, partitions_count=1)
        await client.send_messages(topic, None, 0, ["before"])
    return topics


def ask(server: RunningServer, path: str) -> str:
    """Ask over HTTP. Well before the process is replaced, which takes 20 seconds."""
    try:
        with urllib.request.urlopen(f"http://{server.address_of('http')}{path}", timeout=10) as reply:
            text: bytes = reply.read()
    except urllib.error.HTTPError as refusal:
        text = refusal.read()
    return text.decode()


def until_healthy(server: RunningServer) -> None:
    until(lambda: ask(server, "/health/ready") == "ready", "readiness", PATIENCE)


async def test_a_frozen_process_is_named_and_replaced(server: RunningServer) -> None:
    url = f"iggy://iggy:iggy@{server.address}"
    async with asyncio.timeout(PATIENCE), connect(url, reconnect_interval=0.01) as client:
        topics = await make_topics(client)
        await asyncio.to_thread(until_healthy, server)
        with frozen(children_of(server)[0]):
            assert await asyncio.to_thread(ask, server, "/health/ready") == "process 1 does not answer"
            metrics = await asyncio.to_thread(ask, server, "/metrics")
            found = [line for line in metrics.splitlines() if line.startswith("courser_process_up")]
            assert found == [f'courser_process_up{{process="{number}"}} {int(number != 1)}' for number in range(3)]
            # A change waits for all processes, but not for long.
            async with connect(url) as other:
                await other.create_topic("demo/late", partitions_count=1)
        await asyncio.to_thread(until_healthy, server)
        for topic in (*topics, "demo/late"):
            await client.send_messages(topic, None, 0, ["after"])
            polled = await client.poll_messages(topic, None, 0, PollingStrategy.First(), 10)
            assert polled[-1].text() == "after"
    assert server.output.count("s; ending it") == 1


async def test_a_stop_does_not_wait_for_a_frozen_process(server: RunningServer) -> None:
    url = f"iggy://iggy:iggy@{server.address}"
    async with asyncio.timeout(PATIENCE), connect(url) as client:
        topics = await make_topics(client)
    with frozen(children_of(server)[0]):
        server.process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(server.process.wait, PATIENCE) == 0, server.output
    server.start()
    async with asyncio.timeout(PATIENCE), connect(url) as client:
        for topic in topics:
            polled = await client.poll_messages(topic, None, 0, PollingStrategy.First(), 10)
            assert [message.text() for message in polled] == ["before"]
