"""A further process of a server: started by the first one, it owns some topics and accepts connections over TCP.

``python -m courser.server.worker`` is not for users: it needs the sockets that the first process passes to it.
"""

import asyncio
import logging
import os
import random
import socket
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import uvloop

from courser.api.replies import Node
from courser.broker.broker import Broker
from courser.processes.children import end_with_parent
from courser.processes.following import FirstProcessPeer, FollowingServices, OpeningOrders, open_follower
from courser.processes.handles import Handles, are_left
from courser.processes.links import Links
from courser.processes.ownership import FIRST
from courser.processes.peer import Peer
from courser.processes.peer_heartbeats import HEARTBEAT
from courser.processes.shared_slots import SharedSlots
from courser.records.stored_header import PartitionIdentity
from courser.server.allocator import prepare_heap
from courser.server.assembly import calm_process, make_codec_chooser, make_connections, make_services
from courser.server.background import BackgroundTasks, keep_own_tasks
from courser.server.codecs import CodecChooser
from courser.server.configuration.settings import ServerSettings
from courser.server.process_assembly import ProcessConnections
from courser.server.system_limits import raise_file_limit
from courser.storage.local_files import DirectoryLock
from courser.transports.connections import Connections
from courser.transports.tcp import TcpListener

if TYPE_CHECKING:
    from courser.server.telemetry import Begin, Telemetry

_log = logging.getLogger(__name__)

_LINK_DESCRIPTOR_COUNT = 8
"""Descriptors that a channel to another process needs, with a few for what happens at the same time."""
_LINK_PAUSE = 0.5
"""Seconds between looks whether there are so many."""


class _Forwarder(logging.Handler):
    """Sends log lines to the first process, which writes them."""

    def __init__(self, peer: Peer) -> None:
        super().__init__()
        self._peer = peer
        self._loop = asyncio.get_running_loop()

    def emit(self, record: logging.LogRecord) -> None:
        trace = None if record.exc_info is None else logging.Formatter().formatException(record.exc_info)
        line = ("log", record.name, record.levelno, record.getMessage(), trace)
        if self._loop.is_closed():
            return
        # Threads log too, and the channel belongs to the loop.
        self._loop.call_soon_threadsafe(self._peer.note, *line)


class Worker:
    """One process, from its start to its end."""

    def __init__(self, number: int, channel: socket.socket, handles: socket.socket, lock: DirectoryLock) -> None:
        self._number = number
        self._lock = lock
        self._services: dict[str, Callable[..., Any]] = {
            HEARTBEAT: _answer_at_once,
            "gone": self._gone,
            "prepare": self._prepare,
            "open": self._open,
            "say_goodbye": self._say_goodbye,
            "use_certificate": self._use_certificate,
            "close": self._close,
        }
        self._calls: dict[str, Callable[..., None]] = {}
        self._first = self._make_peer(FIRST, channel)
        self._handle_services: dict[str, Callable[..., None]] = {
            "link": self._link,
            "listen": self._listen,
            "slots": self._share_slots,
        }
        self._handles = {FIRST: Handles(handles, self._handle_services)}
        self._settings: ServerSettings
        self._slots: SharedSlots
        self._links: Links
        self._given_up: dict[int, Peer] = {}
        """Processes that the first one has given up, until their successors are there."""
        self._broker: Broker
        self._chooser: CodecChooser
        self._process_connections: ProcessConnections
        self._connections: Connections | None = None
        self._listener: TcpListener | None = None
        self._background: BackgroundTasks | None = None
        self._slow_work = ThreadPoolExecutor(1, thread_name_prefix="codec")
        self._ended = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._tls: Any = None
        self._telemetry: Telemetry | None = None

    async def run(self) -> None:
        """Serve until the first process ends it."""
        await self._ended.wait()

    # --- starting ---

    def _prepare(self, peer: Peer, settings: ServerSettings) -> None:
        self._settings = settings
        root = logging.getLogger()
        root.addHandler(_Forwarder(peer))
        root.setLevel(settings.logging.levels.root)
        for name, level in settings.logging.levels.modules:
            logging.getLogger(name).setLevel(level)
        logging.captureWarnings(capture=True)

    def _share_slots(self, descriptors: Sequence[int], settings: ServerSettings) -> None:
        """The memory in which all processes count their connections."""
        count_max = settings.connections.connection_count_max
        self._slots = SharedSlots(descriptors[0], self._number, settings.process_count, count_max)
        os.close(descriptors[0])

    async def _open(self, peer: Peer, orders: OpeningOrders) -> frozenset[PartitionIdentity]:
        broker = self._broker = await open_follower(orders, self._lock, FirstProcessPeer(peer))
        self._links = Links(self._number, orders.process_count)
        self._services.update(FollowingServices(broker).by_name())
        self._chooser = make_codec_chooser(self._settings, broker, is_first=False)
        self._process_connections = ProcessConnections(
            broker,
            self._links,
            self._chooser,
            services=self._services,
            calls=self._calls,
            handle_services=self._handle_services,
            handles_of=self._handles.__getitem__,
        )
        self._links.add(peer)
        return broker.partitions.unopened

    def _link(self, descriptors: Sequence[int], number: int) -> None:
        """A channel to another further process."""
        if not descriptors:
            # The other ends are closed with them. Whoever was connected to its predecessor notices that by itself.
            _log.error("no descriptor is left for a channel to process %d; trying again when there is", number)
            self._links.without_channel.add(number)
            self._link_when_possible(number)
            return
        channel, handles = (socket.socket(fileno=descriptor) for descriptor in descriptors)
        self._given_up.pop(number, None)
        if (predecessor := self._links.peers.get(number)) is not None:
            # Its end was not noticed yet. Later, what belongs to its successor would be taken for its own.
            predecessor.close()
            self._lost(predecessor)
        peer = self._make_peer(number, channel)
        if (old := self._handles.pop(number, None)) is not None:
            old.close()
        self._handles[number] = Handles(handles, self._handle_services)
        if number in self._links.without_channel:
            _log.info("connected to process %d again", number)
        self._links.add(peer)

    def _link_when_possible(self, number: int) -> None:
        if number not in self._links.without_channel:
            return
        if are_left(_LINK_DESCRIPTOR_COUNT):
            self._first.note("link_again", number)
        else:
            asyncio.get_running_loop().call_later(_LINK_PAUSE, self._link_when_possible, number)

    def _make_peer(self, number: int, channel: socket.socket) -> Peer:
        return Peer(
            number,
            channel,
            services=self._services,
            calls=self._calls,
            on_lost=self._lost,
        )

    def _listen(self, descriptors: Sequence[int], node: Node, pem: bytes | None) -> None:
        task = asyncio.get_running_loop().create_task(self._begin(descriptors, node, pem))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _begin(self, descriptors: Sequence[int], node: Node, pem: bytes | None) -> None:
        settings, broker = self._settings, self._broker
        broker.node = node
        calm_process()
        router = self._process_connections.router
        begin: Begin = router.begin
        if settings.telemetry is not None and settings.telemetry.traces_endpoint:
            # Import it only if it is enabled: the libraries are an extra.
            from courser.server.telemetry import Telemetry, only_traces  # noqa: PLC0415

            # Requests are traced where their connection is, and nowhere else.
            self._telemetry = Telemetry(only_traces(settings.telemetry), random.random)
            begin = self._telemetry.traced(begin)
        services = make_services(settings, broker, self._chooser, begin, self._slow_work)
        connections = self._connections = make_connections(settings, broker, services, lambda: 0, self._slots)
        if pem is not None:
            # Import it only if TLS is enabled.
            from courser.server.certificates import context_of  # noqa: PLC0415

            self._tls = context_of(pem)
        sessions = broker.sessions
        self._listener = TcpListener(
            settings.tcp,
            services,
            connections,
            sessions=sessions,
            tls=self._tls,
        )
        await self._listener.start_on([socket.socket(fileno=descriptor) for descriptor in descriptors])
        self._process_connections.begin(connections, self._listener, self._slots)
        self._background = BackgroundTasks(broker.clock)
        keep_own_tasks(self._background, broker, connections, settings, router.is_member)

    def _use_certificate(self, _: Peer, pem: bytes) -> None:
        from courser.server.certificates import load_from_memory  # noqa: PLC0415

        if self._tls is not None:
            load_from_memory(self._tls, pem)

    # --- ending ---

    def _lost(self, peer: Peer) -> None:
        if peer.number == FIRST:
            # Nothing can be done without it. Acknowledged messages are in the kernel.
            os._exit(1)
        self._links.remove(peer)
        self._process_connections.peer_lost(peer.number)

    def _gone(self, _: Peer, number: int) -> None:
        """The first process has given another one up, which does not end yet."""
        if (peer := self._links.peers.get(number)) is not None:
            self._given_up[number] = peer
            peer.lose()

    async def _say_goodbye(self, _: Peer, grace: float) -> None:
        if self._listener is not None and self._connections is not None:
            self._listener.close()
            await self._connections.say_goodbye(grace)

    async def _close(self, peer: Peer) -> bool:
        if self._background is not None:
            await self._background.stop()
        await self._say_goodbye(peer, 0)
        self._slow_work.shutdown(wait=False, cancel_futures=True)
        is_clean = await self._broker.close()
        if self._telemetry is not None:
            await self._telemetry.close()
        # After the answer.
        asyncio.get_running_loop().call_later(0.1, self._ended.set)
        return is_clean


def _answer_at_once(_: Peer) -> None:
    """The event loop runs."""


async def _run(number: int, channel: int, handles: int, lock: int) -> None:
    ends = socket.socket(fileno=channel), socket.socket(fileno=handles)
    await Worker(number, *ends, DirectoryLock(lock)).run()


def main(arguments: Sequence[str]) -> None:
    """Run a further process. ``arguments`` are the parent, the number of the process, and three descriptors."""
    parent, number, channel, handles, lock = map(int, arguments)
    end_with_parent(parent)
    for descriptor in (channel, handles, lock):
        os.set_inheritable(descriptor, False)
    raise_file_limit()
    prepare_heap()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_run(number, channel, handles, lock))


if __name__ == "__main__":
    main(sys.argv[1:])
