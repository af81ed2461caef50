"""Connections move to the process that carries out their requests, between two requests: then none is forwarded.

The socket is passed on as it is, with the session and what its codec knows. The client notices nothing. TLS connections
stay where they are, because the state of their encryption cannot be passed on.
"""

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from courser.broker.access.sessions import Session
from courser.broker.broker import Broker
from courser.errors import CommandRejected, ErrorCode
from courser.model.messaging import Transport
from courser.processes.handles import Handles
from courser.processes.links import Links
from courser.processes.ownership import FIRST
from courser.processes.peer import Peer
from courser.processes.remote_sessions import RemoteSessions
from courser.processes.router import Router
from courser.transports.connections import Connections
from courser.transports.session_loop import SessionLoop
from courser.transports.tcp import TcpListener
from courser.transports.tcp_connection import TcpConnection
from courser.wire.codec import Codec

_log = logging.getLogger(__name__)


def connection_of(session: Session) -> TcpConnection | None:
    """The connection of a session, if its socket can be passed on: TCP without TLS."""
    loop = getattr(session.on_end, "__self__", None)
    connection = loop.link if isinstance(loop, SessionLoop) else None
    # Not a subclass: the state of TLS cannot be passed on.
    return connection if type(connection) is TcpConnection else None


@dataclass(frozen=True, slots=True)
class MovedSession:
    """A session on its way."""

    client_id: int
    transport: Transport
    address: str
    connected_at: int
    last_seen: int
    user_id: int | None
    token_name: str | None
    sdk: str
    session_number: int
    move_count: int
    """This move included."""
    known: frozenset[int]
    """The processes that know it as a remote session."""
    joined: frozenset[int]
    """The processes in which it is a member of consumer groups."""


class Moves:
    """Moves connections from and to one process."""

    def __init__(
        self,
        broker: Broker,
        router: Router,
        links: Links,
        remote_sessions: RemoteSessions,
        *,
        handles_of: Callable[[int], Handles],
        pack: Callable[[Codec], object],
        unpack: Callable[[Any, Session], Codec],
    ) -> None:
        """``pack`` and ``unpack`` turn a codec into a value that can be sent, and back."""
        self._broker = broker
        self._router = router
        self._links = links
        self._remote_sessions = remote_sessions
        self._handles_of = handles_of
        self._pack = pack
        self._unpack = unpack
        self._connections: Connections | None = None
        self._listener: TcpListener | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.moved_count = 0
        """Connections that have left."""

    def begin(self, connections: Connections, listener: TcpListener) -> None:
        """Connections are accepted from now on."""
        self._connections, self._listener = connections, listener
        self._router.move = self._move

    @property
    def services(self) -> Mapping[str, Callable[..., Any]]:
        """What peers may call, by name."""
        return {"moving": self._moving, "moved": self._moved}

    @property
    def handle_services(self) -> Mapping[str, Callable[..., None]]:
        """For what carries sockets."""
        return {"adopt": self._adopt}

    # --- away ---

    def _move(self, session: Session, owner: int) -> None:
        """Move the connection of a session, if it does nothing right now; otherwise after one of its next requests."""
        peer = self._links.peers.get(owner)
        if peer is None or session.ended is not None or self._connections is None:
            return
        connection = connection_of(session)
        if connection is None:
            self._router.streaks.pop(session.client_id, None)
            return
        loop = connection.loop
        assert isinstance(loop, SessionLoop), "its session has ended otherwise"
        connection.send_held()
        if not loop.is_idle or loop.has_parked_reads or connection.unsent_size:
            return
        connection.pause()
        known, joined = self._router.hand_over(session)
        stays = self._links.number == FIRST or bool(session.groups)
        if stays:
            known.add(self._links.number)
        if session.groups:
            joined.add(self._links.number)
        codec = self._pack(loop.codec)
        facts = _facts_of(session, known - {owner}, joined - {owner})
        try:
            self._handles_of(owner).send([connection.descriptor], "adopt", facts, codec)
        except OSError as error:
            _log.info("could not move a connection to process %d: %s", owner, error)
            self._router.take_over(session, known, joined)
            connection.resume()
            return
        loop.give_up()
        connection.let_go()
        session.move_count = facts.move_count
        for number in facts.known - {self._links.number}:
            # If the owner ends before it says that it has the connection, they must know whose it was.
            if (other := self._links.peers.get(number)) is not None:
                other.note("moving", session.client_id, owner, facts.move_count)
        if stays:
            self._remote_sessions.keep(owner, session)
        else:
            self._broker.sessions.forget(session)
        self.moved_count += 1

    # --- here ---

    def _adopt(self, descriptors: Sequence[int], facts: MovedSession, codec_facts: object) -> None:
        session = self._broker.sessions.get(facts.client_id)
        if session is None:
            session = Session(facts.client_id, facts.transport, facts.address, now=facts.connected_at)
        else:
            self._remote_sessions.release(session)
        session.last_seen, session.user_id, session.token_name = facts.last_seen, facts.user_id, facts.token_name
        session.sdk, session.session_number = facts.sdk, facts.session_number
        session.move_count = facts.move_count
        self._broker.sessions.adopt(session)
        joined = facts.joined | ({self._links.number} if session.groups else set())
        self._router.take_over(session, set(facts.known), set(joined))
        for number in facts.known:
            if (peer := self._links.peers.get(number)) is not None:
                peer.note("moved", session.client_id, session.move_count)
        if not descriptors or self._listener is None:
            # This process has as many descriptors as it may have, and the kernel has dropped this one; or it stops, or
            # has just begun. The client comes back. All that know its session have to hear that it has ended.
            for descriptor in descriptors:
                os.close(descriptor)
            self._broker.sessions.close(session)
            return
        moved = socket.socket(fileno=descriptors[0])
        moved.setblocking(False)
        task = asyncio.get_running_loop().create_task(self._serve(moved, session, codec_facts))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, moved: socket.socket, session: Session, codec_facts: object) -> None:
        assert self._listener is not None, "checked before"
        try:
            await self._listener.take_over(moved, session, self._unpack(codec_facts, session))
        except OSError:
            # It was closed meanwhile.
            self._broker.sessions.close(session)

    def _moving(self, _: Peer, client_id: int, owner: int, move_count: int) -> None:
        """The connection of a remote session is on its way to another process, which may never have it."""
        session = self._broker.sessions.get(client_id)
        if session is None or move_count <= session.move_count:
            # That process, or one after it, was faster to say so.
            return
        session.move_count = move_count
        if owner in self._links.peers:
            self._remote_sessions.keep(owner, session)
        else:
            self._remote_sessions.close(client_id)

    def _moved(self, peer: Peer, client_id: int, move_count: int) -> None:
        """The connection of a remote session is in that process now."""
        session = self._broker.sessions.get(client_id)
        if session is None:
            # It was ended here while it was on its way.
            peer.note("ended", client_id, CommandRejected(ErrorCode.UNAUTHENTICATED, "the session has ended"))
        elif move_count >= session.move_count:
            # Otherwise it has moved on, and this comes late.
            session.move_count = move_count
            self._remote_sessions.keep(peer.number, session)


def _facts_of(session: Session, known: set[int], joined: set[int]) -> MovedSession:
    return MovedSession(
        session.client_id,
        session.transport,
        session.address,
        session.connected_at,
        session.last_seen,
        session.user_id,
        session.token_name,
        session.sdk,
        session.session_number,
        session.move_count + 1,
        frozenset(known),
        frozenset(joined),
    )
