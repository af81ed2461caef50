"""The first process starts others again that end: one at a time, with pauses, whatever goes wrong meanwhile."""

import asyncio
import errno
import logging
import socket
import subprocess
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from courser.model.metrics import Registry
from courser.processes import children
from courser.processes.channel import socket_pair
from courser.processes.children import Child
from courser.processes.handles import Handles, handle_pair
from courser.processes.leading import PeerProcesses
from courser.processes.links import Links
from courser.processes.ownership import FIRST
from courser.processes.peer import Peer, Services
from courser.processes.peer_heartbeats import HEARTBEAT, USUAL_PATIENCE, Patience

PATIENCE = 60.0
PAUSE = 0.001


class Stage:
    """A first process with one other, whose processes are parts of this one. Each lasts as long as a test wants."""

    def __init__(
        self, patience: Patience = USUAL_PATIENCE, *, process_count: int = 2, retry_pause: float = PAUSE
    ) -> None:
        self.peers = PeerProcesses(
            Links(FIRST, process_count),
            self._start,
            cast("Any", None),
            first_pause=PAUSE,
            retry_pause=retry_pause,
            patience=patience,
        )
        self.start_failures: list[OSError] = []
        """Why processes cannot be started, one try after the other."""
        self.started: list[Peer] = []
        """The ends of the processes, in the order in which they were started."""
        self.alive = 0
        self.most_alive = 0
        self.on_start: Callable[[Peer], None] = lambda _: None
        """Told of a process that was just started, with its end of the channel."""
        self.on_open: Callable[[Peer], Any] = lambda _: frozenset()
        """What a process does that has to open its partitions."""
        self.on_heartbeat: Callable[[], Any] = lambda: None
        """How a process answers a heartbeat."""
        self.can_end = asyncio.Event()
        """Whether processes end that are killed."""
        self.can_end.set()
        self.catalog = SimpleNamespace(
            state=SimpleNamespace(encode=lambda: b""), between_changes=self._between, is_settled=True, is_busy=False
        )
        self._turn = asyncio.Lock()
        self._news = asyncio.Event()

    def _start(self, number: int) -> Child:
        if self.start_failures:
            raise self.start_failures.pop()
        (channel, their_channel), (handles, their_handles) = socket_pair(), handle_pair()
        services: Services = {
            "open": lambda peer, _: self.on_open(peer),
            "start_report": lambda _: None,
            HEARTBEAT: lambda _: self.on_heartbeat(),
            "never": lambda _: asyncio.get_running_loop().create_future(),
            "problems": lambda _: ["its disk is full"],
            "metrics": lambda _: {},
        }
        end = Peer(FIRST, their_channel, services=services, calls={}, on_lost=lambda _: None)
        is_alive = True

        def kill() -> None:
            nonlocal is_alive
            if self.can_end.is_set():
                self.alive -= is_alive
                is_alive = False
                end.close()

        def poll() -> int | None:
            # A process that was killed ends as soon as it can.
            kill()
            return None if is_alive else 0

        self.started.append(end)
        self.alive += 1
        self.most_alive = max(self.most_alive, self.alive)
        self._news.set()
        self.on_start(end)
        their_handles.close()
        return Child(number, cast("Any", SimpleNamespace(kill=kill, poll=poll, pid=1)), channel, handles)

    async def open(self) -> None:
        """Start the server."""
        self.peers.start()
        broker: Any = SimpleNamespace(
            metrics=Registry(),
            catalog=self.catalog,
            data=SimpleNamespace(path=None, stop=None, unopened=frozenset()),
            archiver=None,
        )
        broker.disk_watch = SimpleNamespace()
        broker.operating = SimpleNamespace(
            scrapes=SimpleNamespace(), machine=SimpleNamespace(), start_findings=SimpleNamespace(add=lambda _: None)
        )
        await self.peers.open_all(broker, frozenset())

    async def _between(self, look: Callable[[Any], Any]) -> Any:
        async with self._turn:
            return await look(SimpleNamespace(state=SimpleNamespace(encode=lambda: b"")))

    async def until_started(self, count: int) -> None:
        """Wait until so many processes were started."""
        while len(self.started) < count:
            self._news.clear()
            await self._news.wait()

    async def close(self) -> None:
        await self.peers.abandon()
        for end in self.started:
            end.close()


async def test_a_process_that_ends_while_it_is_started_again_is_not_started_twice(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Whatever it has come to: just started, or asked to open its partitions."""
    stage = Stage()
    async with asyncio.timeout(PATIENCE):
        await stage.open()
        stage.on_start = lambda end: end.close()
        stage.started[0].close()
        await stage.until_started(4)
        stage.on_start = lambda _: None
        stage.on_open = lambda end: end.close()
        await stage.until_started(8)
        stage.on_open = lambda _: frozenset()
        await stage.peers.links.wait_for(1)
        assert not stage.peers._restarts
    assert (stage.alive, stage.most_alive) == (1, 1)
    said = [record.args for record in caplog.records if "again in" in record.msg]
    pauses = [arguments[1] for arguments in said if isinstance(arguments, tuple)]
    assert pauses == [PAUSE * 2**number for number in range(len(stage.started) - 1)], "each is longer than the last"
    await stage.close()


async def test_a_process_that_fails_when_it_is_ready_gets_no_requests(caplog: pytest.LogCaptureFixture) -> None:
    stage = Stage()
    failures = [OSError("no memory"), OSError("no memory")]
    seen: list[bool] = []

    def listen(peer: Peer, _: Handles) -> None:
        seen.append(stage.peers.links.peers.get(1) is peer)
        if failures:
            raise failures.pop()

    caplog.set_level(logging.ERROR)
    async with asyncio.timeout(PATIENCE):
        await stage.open()
        stage.peers.on_ready = listen
        stage.started[0].close()
        await stage.until_started(2)
        await stage.peers.links.wait_for(1)
    assert not failures, "nobody saw it before it was ready"
    assert seen == [True, True, True]
    assert stage.most_alive == 1
    assert "could not be started again: no memory" in caplog.text
    await stage.close()


@pytest.mark.parametrize("error", [OSError(errno.EAGAIN, "no process"), ZeroDivisionError()])
async def test_a_process_that_cannot_be_started_is_tried_again(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    stage = Stage()
    failures = 3

    def start(_: Peer) -> None:
        nonlocal failures
        if failures:
            failures -= 1
            stage.alive -= 1
            raise error

    async with asyncio.timeout(PATIENCE):
        await stage.open()
        stage.on_start = start
        stage.started[0].close()
        await stage.until_started(5)
        await stage.peers.links.wait_for(1)
    assert (failures, stage.alive, stage.most_alive) == (0, 1, 1)
    assert caplog.text.count("could not be started again") == 3
    await stage.close()


def test_a_start_that_fails_leaves_nothing_open(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[socket.socket] = []

    def note(make: Callable[[], tuple[socket.socket, socket.socket]]) -> Callable[[], Any]:
        def noted() -> tuple[socket.socket, socket.socket]:
            made.extend(ends := make())
            return ends

        return noted

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.ENOMEM, "no memory")

    monkeypatch.setattr(children, "socket_pair", note(socket_pair))
    monkeypatch.setattr(children, "handle_pair", note(handle_pair))
    monkeypatch.setattr(subprocess, "Popen", refuse)
    with pytest.raises(OSError, match="no memory"):
        children.start_child(1, "no.module", 0)
    assert len(made) == 4
    assert all(end.fileno() == -1 for end in made), "all are closed"
