"""A server of several processes on one fake disk, in one event loop. Single processes are killed at any step.

The brokers, the routers and the messages between them are the real ones. What a process is here: a view of the disk
that fails from the moment of its death on, and channels that break then. Whatever it has written before stays, as in
the kernel's memory. ``Script`` asks the server for one thing after the other, and notes what was acknowledged.
"""

import asyncio
import contextlib
import random
import socket
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, cast

from courser.api import commands as c
from courser.api.replies import Polled
from courser.broker.access.sessions import Session
from courser.broker.broker import ALONE, Broker, Place, RootUser
from courser.broker.partition.waiting import Waiting
from courser.broker.settings import BrokerLimits, BrokerSettings
from courser.catalog.rules import ROOT_USER_ID
from courser.errors import CourserError, ErrorCode
from courser.handlers.dispatcher import Dispatcher
from courser.model.identifiers import Consumer, ConsumerKind
from courser.model.messaging import PollingKind, ToPartition, Transport
from courser.model.topic_options import TopicOptions
from courser.processes.channel import socket_pair
from courser.processes.children import Child
from courser.processes.following import FirstProcessPeer, FollowingServices, OpeningOrders, open_follower
from courser.processes.handles import Handles, handle_pair
from courser.processes.leading import PeerProcesses
from courser.processes.links import Links
from courser.processes.ownership import FIRST, owns_of, share_name
from courser.processes.peer import Peer, ProcessGone
from courser.processes.peer_heartbeats import HEARTBEAT
from courser.records.batch import NewMessage, build_batch
from courser.records.frames import iterate_messages
from courser.server.process_assembly import make_router, session_services
from courser.storage.data_directory import DataDirectory
from courser.storage.local_files import DirectoryLock
from courser.storage.session_file import how_it_stopped
from tests.fakes.clocks import ManualClock
from tests.fakes.files import FakeFileSystem
from tests.simulator.partition_model import BrokenPromise

_DATA = Path("/data")
_ROOT = RootUser("root", "$argon2id$made up")
_READER = Consumer(ConsumerKind.CONSUMER, 1)
_CHANGING = frozenset(
    {"write_at", "sync", "truncate", "allocate", "reserve", "rename", "link", "unlink", "make_directory"}
    | {"remove_directory", "sync_directory", "opening", "opened", "linked"}
)
"""Calls that change the disk, and how far a restart has come: a process may be killed before any of them."""
_SETTINGS = BrokerSettings(disk_thread_count=1, limits=BrokerLimits(change_retry_delay=0))


class _NoLock:
    """There is nobody else on a disk that exists only here."""

    def close(self) -> None:
        """Nothing to let go of."""


class Life:
    """How many steps a process has taken on the disk, and before which one it dies."""

    def __init__(self, last_step: int | None, on_death: Callable[[], None]) -> None:
        self._last_step = last_step
        self._on_death = on_death
        self.step_count = 0
        self.is_over = False

    def step(self, name: str) -> None:
        """Called before every call. Raises ``OSError`` if the process is dead."""
        if name in _CHANGING and not self.is_over:
            if self.step_count == self._last_step:
                self.is_over = True
                self._on_death()
            self.step_count += 1
        if self.is_over:
            raise OSError("this process was killed")


class _View:
    """The disk or a file of it, as one process sees it."""

    def __init__(self, target: Any, life: Life, lock: threading.RLock) -> None:
        self._target, self._life, self._lock = target, life, lock

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._target, name)
        if not callable(found):
            return found

        def call(*arguments: Any, **named: Any) -> Any:
            # Every process has a thread of its own.
            with self._lock:
                self._life.step(name)
                result = found(*arguments, **named)
            return _View(result, self._life, self._lock) if name == "open" else result

        return call


class _FurtherProcess:
    """A further process. Has the methods of ``Popen`` that are used."""

    def __init__(self, world: "ProcessesWorld", number: int, last_step: int | None, *, is_restarted: bool) -> None:
        self.pid = 0
        self._world = world
        self.number = number
        self._is_restarted = is_restarted
        self._loop = asyncio.get_running_loop()
        self._thread = threading.current_thread()
        self.life = Life(last_step, self._killed)
        (channel, self._channel), (handles, self._their_handles) = socket_pair(), handle_pair()
        self.child = Child(number, cast("Any", self), channel, handles)
        self._services: dict[str, Callable[..., Any]] = {
            "open": self._open,
            "close": self._close,
            HEARTBEAT: lambda _: None,
        }
        self._calls: dict[str, Callable[..., None]] = {}
        self._ends: list[socket.socket] = []
        self._peers = [self._peer(FIRST, self._channel)]
        self._handle_services: dict[str, Callable[..., None]] = {"link": self._link}
        self._handles = [Handles(self._their_handles, self._handle_services)]
        self._links: Links | None = None
        self._broker: Broker | None = None

    def _peer(self, number: int, end: socket.socket) -> Peer:
        self._ends.append(end)
        parts: Any = {"services": self._services, "calls": self._calls}
        return Peer(number, end, **parts, on_lost=self._lost)

    def _restart_step(self, name: str) -> None:
        """Restarts write little, so they would take few steps otherwise. A first start that fails is another matter."""
        if self._is_restarted:
            self.life.step(name)

    async def _open(self, peer: Peer, orders: OpeningOrders) -> Any:
        self._restart_step("opening")
        files = cast("Any", _View(self._world.disk, self.life, self._world.lock))
        lock = cast("DirectoryLock", _NoLock())
        broker = await open_follower(orders, lock, FirstProcessPeer(peer), file_system=files, clock=self._world.clock)
        self._broker = broker
        self._links = Links(self.number, orders.process_count)
        router, remote_sessions = make_router(broker, self._links)
        self._services.update(FollowingServices(broker).by_name())
        self._services.update(session_services(router, remote_sessions))
        self._calls["command"] = router.command_for
        self._links.add(peer)
        self._restart_step("opened")
        return broker.partitions.unopened

    def _link(self, descriptors: Sequence[int], number: int) -> None:
        channel, handles = (socket.socket(fileno=descriptor) for descriptor in descriptors)
        handles.close()
        try:
            self._restart_step("linked")
        except OSError:
            channel.close()
            return
        peer = self._peer(number, channel)
        self._peers.append(peer)
        assert self._links is not None, "it was opened"
        self._links.add(peer)

    def _lost(self, peer: Peer) -> None:
        if self._links is not None:
            self._links.remove(peer)

    async def _close(self, _: Peer) -> bool:
        assert self._broker is not None, "it was opened"
        is_clean = await self._broker.close()
        # After the answer.
        self._loop.call_later(0.001, self.kill)
        return is_clean

    def _killed(self) -> None:
        """Nothing that it would send after this may get out, such as that the disk has refused something."""
        for end in self._ends:
            # At once: the event loop may be about to send it.
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        if threading.current_thread() is self._thread:
            self._die()
        else:
            self._loop.call_soon_threadsafe(self._die)

    def _die(self) -> None:
        self.life.is_over = True
        for peer in self._peers:
            peer.close()
        for handles in self._handles:
            handles.close()
        if self._broker is not None:
            self._broker.catalog._is_closed = True
            # Later: this may be called from a step, and the threads wait for the end of it.
            self._loop.call_soon(partial(cast("Any", self._broker.pool).shutdown, cancel_futures=True))

    def kill(self) -> None:
        """See ``Popen``. Nothing of it reaches the disk any more."""
        with self._world.lock:
            self.life.is_over = True
        self._killed()

    def poll(self) -> int | None:
        """See ``Popen``."""
        return 0 if self.life.is_over else None


class ProcessesWorld:
    """A disk, and one server after the other on it."""

    def __init__(self, seed: int) -> None:
        self.disk = FakeFileSystem(random.Random(seed))
        self.disk.plant_directory(_DATA)
        self.clock = ManualClock()
        self.lock = threading.RLock()
        self._random = random.Random(seed)
        self.processes: list[_FurtherProcess] = []
        """All further processes that were started, dead or alive."""
        self._is_doubled = False
        """Whether there were two processes with the same number at a time."""
        self._broker: Broker | None = None
        self._begin: Callable[..., Any] | None = None
        self.session = Session(0, Transport.TCP, "", now=0)

    async def start(self, process_count: int, *, victim: int = 0, last_steps: Sequence[int] = ()) -> None:
        """Start a server. Processes with the number ``victim`` die before these steps, one after the other."""
        stop = how_it_stopped(self.disk, _DATA)
        files = cast("Any", _View(self.disk, Life(None, lambda: None), self.lock))
        data = DataDirectory(_DATA, files, cast("DirectoryLock", _NoLock()), stop, self.clock)
        draw = self._random.randbytes
        if process_count == 1:
            broker = await Broker.open(data, _SETTINGS, make_root=lambda: _ROOT, draw=draw, place=ALONE)
            self._begin = Dispatcher(broker).begin
        else:
            deaths = iter(last_steps)
            links = Links(FIRST, process_count)
            earlier = len(self.processes)

            def start_one(number: int) -> Child:
                same = [process for process in self.processes[earlier:] if process.number == number]
                if not all(process.life.is_over for process in same):
                    self._is_doubled = True
                last_step = next(deaths, None) if number == victim else None
                process = _FurtherProcess(self, number, last_step, is_restarted=bool(same))
                self.processes.append(process)
                return process.child

            peers = PeerProcesses(links, start_one, _SETTINGS, first_pause=0)
            place = Place(owns_of(FIRST, process_count), share_name(FIRST, process_count), peers)
            peers.start()
            broker = await Broker.open(data, _SETTINGS, make_root=lambda: _ROOT, draw=draw, place=place)
            router, remote_sessions = make_router(broker, links)
            peers.services.update(session_services(router, remote_sessions))
            peers.calls["command"] = router.command_for
            peers.on_lost = partial(_forget, remote_sessions.peer_lost, router.peer_lost)
            self._begin = router.begin
        self._broker = broker
        self.session = broker.sessions.open(Transport.TCP, "127.0.0.1:1")
        self.session.user_id = ROOT_USER_ID

    async def stop(self) -> None:
        """Stop the server. The stop is clean, whoever ends meanwhile."""
        assert self._broker is not None, "it runs"
        if not await self._broker.close():
            raise BrokenPromise("the stop was not clean")

    async def ask(self, command: c.Command) -> Any:
        """Have a command carried out."""
        assert self._begin is not None, "it runs"
        if self._is_doubled:
            raise BrokenPromise("two processes have the same partitions")
        answer = self._begin(self.session, command)
        return await answer if isinstance(answer, Waiting) else answer

    async def ask_until_known(self, command: c.Command) -> bool:
        """The same, until it is known what has become of it. False if nobody knows: the process has ended."""
        while True:
            try:
                await self.ask(command)
            except ProcessGone:
                return False
            except CourserError as error:
                # A publish that is decided is finished by whoever asks for it again.
                if error.code not in (ErrorCode.SERVER_BUSY, ErrorCode.PUBLISH_UNFINISHED):
                    raise
                await asyncio.sleep(0)
            else:
                return True


def _forget(*parts: Any) -> None:
    *forget, number = parts
    for one in forget:
        one(number)


# --- what is asked for ------------------------------------------------------------------------------------


@dataclass(slots=True)
class Expected:
    """What must and may be in a topic, in order."""

    must: list[str] = field(default_factory=list)
    may: set[str] = field(default_factory=set)


class Script:
    """The same commands in every run, and what was acknowledged."""

    def __init__(self, world: ProcessesWorld, topic_count: int) -> None:
        self._world = world
        self._topics = {f"topic-{number}": Expected() for number in range(topic_count)}
        self._published = 0

    async def run(self) -> None:
        """Ask for everything."""
        await self._surely(c.CreateStream("stream"))
        for name in self._topics:
            await self._surely(c.CreateTopic("stream", name, 1, TopicOptions()))
        for number in range(3):
            await self._send_all(f"first-{number}")
        await self._publish()
        for number in range(2):
            await self._send_all(f"second-{number}")
        for name in self._topics:
            await self._purge(name)
        await self._publish()
        await self._send_all("third")
        for name in self._topics:
            await self._store_offset(name)

    async def _surely(self, command: c.Command) -> None:
        """A change of metadata. The first process makes it: its fate is always known."""
        assert await self._world.ask_until_known(command), "the first process lives"

    async def _send_all(self, text: str) -> None:
        for name, expected in self._topics.items():
            batch = build_batch([NewMessage(text.encode())])
            if await self._world.ask_until_known(c.SendMessages("stream", name, ToPartition(0), [batch])):
                expected.must.append(text)
            else:
                expected.may.add(text)

    async def _publish(self) -> None:
        number, self._published = self._published, self._published + 1
        part = c.StagedPartName("sink", number, 0, 1)
        for chunk, name in enumerate(self._topics):
            batch = build_batch([NewMessage(f"published-{number}".encode())])
            await self._surely(c.StageMessages(part, chunk, "stream", name, ToPartition(0), batch))
        await self._surely(c.FinishStage(part, len(self._topics)))
        while True:
            # Whatever happened to the last try: a batch is published once.
            with contextlib.suppress(ProcessGone):
                if await self._world.ask_until_known(c.PublishStaged("sink", number, ((0, 1),), 0)):
                    break
        for expected in self._topics.values():
            expected.must.append(f"published-{number}")

    async def _purge(self, name: str) -> None:
        expected = self._topics[name]
        try:
            is_done = await self._world.ask_until_known(c.PurgeTopic("stream", name))
        except CourserError:
            # The disk of a process that was dying refused it: it is repeated.
            is_done = False
        if not is_done:
            expected.may |= set(expected.must)
            expected.must.clear()
            await self._purge(name)
        else:
            expected.must.clear()
            expected.may.clear()

    async def _store_offset(self, name: str) -> None:
        stored = False
        while not stored:
            stored = await self._world.ask_until_known(c.StoreConsumerOffset(_READER, "stream", name, 0, 1))

    async def check(self) -> None:
        """Raise ``BrokenPromise`` if something is not as it was acknowledged."""
        for name, expected in self._topics.items():
            found = await self._read(name)
            known = set(expected.must)
            if [text for text in found if text in known] != expected.must:
                raise BrokenPromise(f"{name} has {found}, but {expected.must} were acknowledged in this order")
            if strange := [text for text in found if text not in known | expected.may]:
                raise BrokenPromise(f"{name} has {strange}, which nobody sent, or which was purged")
            if len(found) != len(set(found)):
                raise BrokenPromise(f"{name} has a message twice: {found}")

    async def _read(self, name: str) -> list[str]:
        found: list[str] = []
        kind, value = PollingKind.FIRST, 0
        while True:
            command = c.PollMessages(_READER, "stream", name, 0, kind, value, 100, auto_commit=False)
            try:
                polled: Polled = await self._world.ask(command)
            except CourserError as error:
                if error.code is not ErrorCode.SERVER_BUSY:
                    raise
                await asyncio.sleep(0)
                continue
            rows = [(offset, bytes(frame.payload).decode()) for offset, _, _, frame in iterate_messages(polled.pieces)]
            if not rows:
                return found
            found += [text for _, text in rows]
            kind, value = PollingKind.OFFSET, rows[-1][0] + 1
