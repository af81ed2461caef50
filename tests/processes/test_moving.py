"""Connections that move to another process, and those that do not arrive there."""

import asyncio
import itertools
import os
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from courser.broker.access.sessions import Session, Sessions
from courser.model.messaging import Transport
from courser.processes import moving
from courser.processes.channel import socket_pair
from courser.processes.handles import Handles, handle_pair
from courser.processes.links import Links
from courser.processes.moving import Moves
from courser.processes.peer import Peer
from courser.processes.remote_sessions import RemoteSessions
from courser.processes.router import Router
from courser.transports.session_loop import SessionLoop
from tests.broker.open_partitions import until
from tests.fakes.clocks import ManualClock

PROCESS_COUNT = 3
OLD, NEW, OTHER = range(PROCESS_COUNT)
CLIENT_ID = 17


class Loop(SessionLoop):
    """Of a connection that does nothing right now."""

    is_idle = True
    has_parked_reads = False
    codec = cast("Any", None)

    def __init__(self) -> None:
        pass

    def give_up(self) -> None:
        pass


class Connection:
    """In place of ``TcpConnection``."""

    unsent_size = 0

    def __init__(self) -> None:
        self.client, self._ours = socket.socketpair()
        self.client.setblocking(False)
        self.loop = Loop()

    @property
    def descriptor(self) -> int:
        return self._ours.fileno()

    def send_held(self) -> None:
        pass

    def pause(self) -> None:
        pass

    def let_go(self) -> None:
        self._ours.close()


class SmallRouter:
    """What a ``Router`` knows of sessions."""

    hand_over = Router.hand_over
    take_over = Router.take_over
    gone = Router._gone

    def __init__(self, links: Links) -> None:
        self._links = links
        self._number = links.number
        self._known: dict[int, set[int]] = {}
        self._joined: dict[int, set[int]] = {}
        self.streaks: dict[int, tuple[int, int]] = {}
        self.on_gone = lambda _: None
        self.move: Any = None


class Process:
    """One of three, in one event loop."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.left: list[int] = []
        """The client ids of sessions that have left their groups here."""
        groups = SimpleNamespace(drop_session=lambda session: self.left.append(session.client_id))
        self.sessions = Sessions(ManualClock(), cast("Any", groups))
        broker = cast("Any", SimpleNamespace(sessions=self.sessions))
        self.links = Links(number, PROCESS_COUNT)
        self.router = SmallRouter(self.links)
        self.sessions.on_gone = cast("Any", self.router).gone
        self.remote_sessions = RemoteSessions(broker, lambda *_: None)
        self.handles: dict[int, Handles] = {}
        self.moves = Moves(
            broker,
            cast("Any", self.router),
            self.links,
            self.remote_sessions,
            handles_of=self.handles.__getitem__,
            pack=lambda _: None,
            unpack=cast("Any", lambda *_: None),
        )
        self.served: list[Session] = []
        listener = SimpleNamespace(take_over=self._serve)
        self.moves.begin(cast("Any", object()), cast("Any", listener))
        self.services = dict(self.moves.services)
        self.services["closed"] = lambda _, client_id: self.remote_sessions.close(client_id)
        self.handle_services = dict(self.moves.handle_services)

    async def _serve(self, moved: socket.socket, session: Session, _: object) -> None:
        moved.close()
        self.served.append(session)

    def connect(self, number: int, channel: socket.socket, handles: socket.socket) -> None:
        parts: Any = {"services": self.services, "calls": {}, "on_lost": self._lost}
        self.links.add(Peer(number, channel, **parts))
        self.handles[number] = Handles(handles, self.handle_services)

    def _lost(self, peer: Peer) -> None:
        self.links.remove(peer)
        self.remote_sessions.peer_lost(peer.number)

    def end(self) -> None:
        """As a kill ends it: nothing is said to anybody."""
        for peer in self.links:
            peer.close()
        for handles in self.handles.values():
            handles.close()

    def home_of(self, client_id: int) -> int | None:
        """Where this process believes the connection to be."""
        session = self.sessions.get(client_id)
        return None if session is None else self.remote_sessions._numbers.get(session, self.number)


class World:
    """A connection of one process, which two others know."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.processes = [Process(number) for number in range(PROCESS_COUNT)]
        for one, other in itertools.combinations(self.processes, 2):
            channels, handles = socket_pair(), handle_pair()
            one.connect(other.number, channels[0], handles[0])
            other.connect(one.number, channels[1], handles[1])
        self.old, self.new, self.other = self.processes
        self.connection = Connection()
        monkeypatch.setattr(moving, "connection_of", lambda _: self.connection)
        self.session = Session(CLIENT_ID, Transport.TCP, "127.0.0.1:1", now=0)
        self.old.sessions.adopt(self.session)
        cast("Any", self.old.router).take_over(self.session, {OTHER}, {OTHER})
        self.other.remote_sessions.open(OLD, CLIENT_ID, Transport.TCP, "127.0.0.1:1", 0)

    def move(self) -> None:
        self.old.router.move(self.session, NEW)

    def homes(self) -> list[int | None]:
        return [process.home_of(CLIENT_ID) for process in self.processes]

    async def until_client_is_disconnected(self) -> None:
        async with asyncio.timeout(30):
            assert await asyncio.get_running_loop().sock_recv(self.connection.client, 1) == b""

    def close(self) -> None:
        for process in self.processes:
            process.end()
        self.connection.let_go()
        self.connection.client.close()


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    world = World(monkeypatch)
    yield world
    world.close()


async def test_all_that_know_a_session_hear_where_its_connection_is(world: World) -> None:
    world.move()
    await until(lambda: bool(world.new.served) and world.homes() == [NEW] * PROCESS_COUNT)
    assert [process.left for process in world.processes] == [[], [], []]


async def test_a_connection_stays_while_a_read_of_it_waits(world: World) -> None:
    world.connection.loop.has_parked_reads = True
    world.move()
    assert world.old.moves.moved_count == 0
    world.connection.loop.has_parked_reads = False
    world.move()
    assert world.old.moves.moved_count == 1


def without_descriptors(world: World) -> None:
    """As if there were as many as there may be: the kernel drops what does not fit."""

    def drop(descriptors: Sequence[int], *arguments: Any) -> None:
        for descriptor in descriptors:
            os.close(descriptor)
        world.new.moves._adopt([], *arguments)

    world.new.handle_services["adopt"] = drop


def without_listener(world: World) -> None:
    """As in a process that stops, or that has just begun."""
    world.new.moves._listener = None


@pytest.mark.parametrize("fail", [without_descriptors, without_listener])
async def test_a_connection_that_cannot_be_taken_over_is_over_everywhere(
    world: World, fail: Callable[[World], None]
) -> None:
    fail(world)
    world.move()
    await world.until_client_is_disconnected()
    await until(lambda: world.homes() == [None] * PROCESS_COUNT)
    assert CLIENT_ID in world.old.left
    assert CLIENT_ID in world.other.left
    assert not world.new.router._known


@pytest.mark.parametrize("is_late", [False, True])
async def test_a_connection_is_over_everywhere_if_its_new_process_ends_before_it_has_it(
    world: World, is_late: bool
) -> None:
    """Whether the others hear first of the move, or of the end of that process."""
    arrived: list[int] = []
    world.new.handle_services["adopt"] = lambda descriptors, *_: arrived.extend(descriptors)
    told = world.other.services["moving"]
    later: list[tuple[Any, ...]] = []
    if is_late:
        world.other.services["moving"] = lambda *arguments: later.append(arguments)
    world.move()
    await until(lambda: bool(arrived))
    if not is_late:
        await until(lambda: world.homes() == [NEW, None, NEW])
    world.new.end()
    os.close(arrived[0])
    await until(lambda: NEW not in world.other.links.peers and NEW not in world.old.links.peers)
    await until(lambda: bool(later) == is_late)
    for arguments in later:
        told(*arguments)
    assert world.homes() == [None] * PROCESS_COUNT
    assert CLIENT_ID in world.other.left


async def test_what_comes_late_does_not_move_a_session_back(world: World) -> None:
    """Messages of different processes may come in any order."""
    to_other = world.other.links.peers
    world.other.services["moved"](to_other[NEW], CLIENT_ID, 3)
    world.other.services["moving"](to_other[OLD], CLIENT_ID, OLD, 2)
    world.other.services["moved"](to_other[OLD], CLIENT_ID, 2)
    assert world.other.home_of(CLIENT_ID) == NEW
