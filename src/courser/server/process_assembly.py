"""What every process of a server puts together in the same way if there are several."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from courser.broker.access.sessions import Session
from courser.broker.broker import Broker
from courser.errors import CommandRejected, CourserError, ErrorCode
from courser.model.messaging import Transport
from courser.processes.encoding import COMMAND
from courser.processes.handles import Handles
from courser.processes.links import Links
from courser.processes.moving import Moves, connection_of
from courser.processes.peer import Peer
from courser.processes.remote_sessions import RemoteSessions
from courser.processes.router import Router
from courser.processes.shared_slots import SharedSlots
from courser.server.codecs import CodecChooser, CodecMoves
from courser.server.proven_dialects import ProvenDialects
from courser.transports.connections import Connections
from courser.transports.tcp import TcpListener
from courser.wire.classic_dialect import LoginFields, Proof


class ProcessConnections:
    """The connections of one of several processes: who carries out their requests, and how they move there."""

    def __init__(
        self,
        broker: Broker,
        links: Links,
        chooser: CodecChooser,
        *,
        services: dict[str, Callable[..., Any]],
        calls: dict[str, Callable[..., None]],
        handle_services: dict[str, Callable[..., None]],
        handles_of: Callable[[int], Handles],
    ) -> None:
        """``services`` and ``calls`` of peers and ``handle_services`` get what is for connections."""
        self._broker = broker
        self._links = links
        self._services = services
        self.router, self._remote_sessions = make_router(broker, links)
        codecs = CodecMoves(chooser)
        self._moves = Moves(
            broker,
            self.router,
            links,
            self._remote_sessions,
            handles_of=handles_of,
            pack=codecs.pack,
            unpack=codecs.unpack,
        )
        services.update(session_services(self.router, self._remote_sessions))
        services.update(self._moves.services)
        services["proven"] = share_proofs(chooser.proven, links)
        calls[COMMAND] = self.router.command_for
        handle_services.update(self._moves.handle_services)

    def begin(self, connections: Connections, listener: TcpListener, slots: SharedSlots) -> None:
        """This process accepts connections from now on."""
        self.router.abort = partial(abort_connection, self._broker, connections)
        self._services["evict_stranger"] = share_slots(slots, connections, self._links)
        self._moves.begin(connections, listener)

    def peer_lost(self, number: int) -> None:
        """A process is gone, and its connections with it."""
        self._remote_sessions.peer_lost(number)
        self.router.peer_lost(number)


def share_proofs(proven: ProvenDialects, links: Links) -> Callable[..., None]:
    """Have all processes know what classic clients have proven in one of them. Returns the service for peers."""
    loop = asyncio.get_running_loop()

    def tell_all(*facts: object) -> None:
        for peer in links:
            peer.note("proven", *facts)

    def learn(_: Peer, user_id: int, login: LoginFields, proof: Proof) -> None:
        proven.learn(user_id, login, proof)

    def note(user_id: int, login: LoginFields, proof: Proof) -> None:
        loop.call_soon_threadsafe(tell_all, user_id, login, proof)

    proven.on_new = note
    return learn


def abort_connection(broker: Broker, connections: Connections, session: Session) -> None:
    """Close the connection of a session without an answer."""
    if (found := connection_of(session)) is not None:
        # Nearly all. When a process ends, there may be many of them, so they are not searched for.
        found.abort()
        return
    for connection in connections:
        if connection.loop is not None and connection.loop.session is session:
            connection.abort()
            return
    error = CommandRejected(ErrorCode.DISCONNECTED, "a process of the server has ended")
    if session.client_id:
        # A member over HTTP, which has no connection.
        broker.sessions.end(session, error)


def share_slots(slots: SharedSlots, connections: Connections, links: Links) -> Callable[..., None]:
    """Have processes close strangers for each other, if the slots of all are taken. Returns the service for peers."""

    def ask(number: int, origin: int) -> None:
        if (peer := links.peers.get(number)) is not None:
            peer.note("evict_stranger", origin)

    def evict_stranger(_: Peer, origin: int) -> None:
        if not connections.evict_stranger() and not slots.pass_on(origin):
            connections.evict_newest()

    slots.ask_to_evict = ask
    return evict_stranger


def session_services(router: Router, remote_sessions: RemoteSessions) -> dict[str, Callable[..., Any]]:
    """What processes tell each other about sessions: the services of a ``Peer``."""

    def opened(peer: Peer, client_id: int, transport: Transport, address: str, connected_at: int) -> None:
        remote_sessions.open(peer.number, client_id, transport, address, connected_at)

    def closed(_: Peer, client_id: int) -> None:
        remote_sessions.close(client_id)

    def user_changed(_: Peer, client_id: int, user_id: int | None) -> None:
        remote_sessions.find(client_id, user_id)

    def ended(_: Peer, client_id: int, error: CourserError) -> None:
        router.end(client_id, error)

    services = opened, closed, user_changed, ended
    return {service.__name__: service for service in services} | {
        "log_in": router.log_in_for,
        "here": router.here_for,
    }


def make_router(broker: Broker, links: Links) -> tuple[Router, RemoteSessions]:
    """The dispatcher of one of several processes."""

    def end_at_peer(number: int, client_id: int, error: CourserError) -> None:
        if (peer := links.peers.get(number)) is not None:
            peer.note("ended", client_id, error)

    remote_sessions = RemoteSessions(broker, end_at_peer)
    return Router(broker, links, remote_sessions), remote_sessions
