"""The other processes of a server, as its first process puts them together and uses them."""

import logging
from dataclasses import replace
from functools import partial

from courser.api.replies import Node
from courser.broker.access.sessions import Session
from courser.broker.broker import Broker, Place
from courser.model.messaging import Transport
from courser.processes.children import start_child
from courser.processes.handles import Handles
from courser.processes.leading import PeerProcesses, share_of
from courser.processes.links import Links
from courser.processes.ownership import FIRST, client_ids_of, owns_of, share_name
from courser.processes.peer import Peer
from courser.processes.router import Router
from courser.processes.shared_slots import SharedSlots, make_shared_slots
from courser.server.codecs import CodecChooser
from courser.server.configuration.settings import ServerSettings
from courser.server.listeners import Listeners
from courser.server.process_assembly import ProcessConnections
from courser.storage.data_directory import DataDirectory
from courser.transports.connections import Connections

WORKER_MODULE = "courser.server.worker"
"""What a further process runs."""


class Crew:
    """Created when the data directory is locked; the processes start at once."""

    def __init__(self, settings: ServerSettings, data: DataDirectory) -> None:
        count = settings.process_count
        self.settings = settings_of_each(settings)
        """Those of each process, this one included."""
        links = Links(FIRST, count)
        self._links = links
        self._peers = PeerProcesses(
            links,
            partial(start_child, module=WORKER_MODULE, lock_descriptor=data.lock_descriptor),
            self.settings.broker,
        )
        count_max = settings.connections.connection_count_max
        self._slots_memory = make_shared_slots(count)
        self.slots = SharedSlots.first(self._slots_memory, count, count_max)
        """The connections of all processes."""
        self._peers.on_start = self._prepare
        self._peers.services["log"] = _log_line
        self.place = Place(
            owns_of(FIRST, count),
            share_name(FIRST, count),
            self._peers,
            draw_client_id=client_ids_of(FIRST, count),
        )
        self._connections: ProcessConnections | None = None
        self._peers.start()

    def _prepare(self, peer: Peer) -> None:
        """Tell a process that was just started what it needs before everything else."""
        peer.note("prepare", self.settings)
        self._peers.handles_of(peer.number).send([self._slots_memory], "slots", self.settings)

    def make_router(self, broker: Broker, chooser: CodecChooser) -> Router:
        """The dispatcher of this process."""
        peers = self._peers
        self._connections = ProcessConnections(
            broker,
            self._links,
            chooser,
            services=peers.services,
            calls=peers.calls,
            handle_services=peers.handle_services,
            handles_of=peers.handles_of,
        )
        self._connections.router.collect = peers.collect
        peers.on_lost = self._lost
        return self._connections.router

    def is_member(self, session: Session) -> bool:
        """Whether a connection of this process is a member of a group."""
        return self._connections is not None and self._connections.router.is_member(session)

    def begin(self, connections: Connections, listeners: Listeners, node: Node) -> None:
        """This process listens: let the others accept connections too, of the same sockets."""
        tcp = listeners.tcp
        assert self._connections is not None, "made before"
        assert tcp is not None, "it is open"
        self._connections.begin(connections, tcp, self.slots)

        def listen(_: Peer, handles: Handles) -> None:
            certificate = listeners.certificates.get(Transport.TCP)
            pem = None if certificate is None else certificate.key_pem + certificate.pem
            handles.send([found.fileno() for found in tcp.sockets], "listen", node, pem)

        self._peers.begin(listen)

    def use_certificate(self, pem: bytes) -> None:
        """Have new connections encrypted with another certificate."""
        for peer in self._links:
            peer.note("use_certificate", pem)

    def end_restarts(self) -> None:
        """The server stops: start no process again."""
        self._peers.end_restarts()

    async def say_goodbye(self, grace: float) -> None:
        """Have the others accept nobody any more, and close their connections."""
        await self._peers.tell_all("say_goodbye", grace)

    async def abandon(self) -> None:
        await self._peers.abandon()

    def _lost(self, number: int) -> None:
        assert self._connections is not None, "made before"
        self.slots.forget(number)
        self._connections.peer_lost(number)


def settings_of_each(settings: ServerSettings) -> ServerSettings:
    """The settings of each of several processes: what is limited for the whole server is divided."""
    count, connections = settings.process_count, settings.connections
    return replace(
        settings,
        broker=share_of(settings.broker, count),
        connections=replace(
            connections,
            request_memory=max(connections.request_memory // count, connections.frame_size_max),
            reply_memory=max(connections.reply_memory // count, 1),
        ),
    )


def _log_line(peer: Peer, name: str, level: int, text: str, trace: str | None) -> None:
    """A line that another process has logged."""
    logger = logging.getLogger(name)
    if logger.isEnabledFor(level):
        logger.log(level, "[process %d] %s%s", peer.number, text, "" if trace is None else f"\n{trace}")
