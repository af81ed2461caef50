"""Sockets that are lent to other processes, so that they answer the requests which they carry out themselves.

A reply that came back through the process of the connection would wake that process only to be passed on. So the owner
of a topic gets a copy of the socket of a connection that keeps sending to it. It sends its replies to the client, and
notes that on the board of this process (``reply_board``). This process still receives all requests, one after the
other: it begins the next one when the reply to the last one is sent.

The other side is ``borrowing``. Connections with TLS are not lent: the state of their encryption is here.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from courser.api.commands import SendMessages
from courser.api.replies import Sent
from courser.broker.sessions import Session
from courser.processes.handles import Handles
from courser.processes.links import Links
from courser.processes.peer import Peer, ProcessGone
from courser.processes.reply_board import ReplyBoard
from courser.records.batch import Batch
from courser.transports.reply_elsewhere import ReplyElsewhere
from courser.transports.session_loop import SessionLoop
from courser.transports.tcp_connection import TcpConnection

_log = logging.getLogger(__name__)

SLOT_COUNT = 1024
"""Connections of a process that can be lent at a time. Each takes a descriptor in the processes that have a copy."""
_SEND_COUNT_MIN = 4
"""Sends to another process before the socket is lent to it."""


class Lendable(Protocol):
    """A connection whose socket can be passed on."""

    is_held: bool
    """Whether a reply waits for the end of the turn."""
    is_lent: bool
    """Whether others may have a copy of the socket."""

    @property
    def descriptor(self) -> int:
        """Of the socket."""

    @property
    def is_writable(self) -> bool:
        """Whether the kernel has all that was sent."""

    def send_held(self) -> None:
        """Send now what waits for the end of the turn."""

    def receive_into(self, room: Callable[[int], memoryview]) -> None:
        """Ask this function where to put the next bytes."""


def connection_of(session: Session) -> TcpConnection | None:
    """The connection of a session, if its socket can be passed on: TCP without TLS."""
    loop = getattr(session.on_end, "__self__", None)
    connection = loop.link if isinstance(loop, SessionLoop) else None
    # Not a subclass: the state of TLS cannot be passed on.
    return connection if type(connection) is TcpConnection else None


class _Lent:
    """A connection that is lent, or soon will be."""

    __slots__ = ("connection", "counts", "is_over", "offered", "pending", "ready", "slot")

    def __init__(self, connection: Lendable) -> None:
        self.connection = connection
        self.counts: dict[Peer, int] = {}
        """Sends to processes that do not have the socket."""
        self.offered: set[Peer] = set()
        self.ready: set[Peer] = set()
        """Processes that have the socket."""
        self.slot: int | None = None
        self.pending: SendElsewhere | None = None
        """The request in progress, if another process replies to it."""
        self.is_over = False
        """Whether the connection is gone. Its slot is free when no request is pending."""


class SendElsewhere(ReplyElsewhere):
    """A send that its owner replies to. For the peer, it is what waits for the answer."""

    __slots__ = (
        "_call_id",
        "_command",
        "_error",
        "_is_done",
        "_is_watched",
        "_lender",
        "_lent",
        "_peer",
        "_sent",
        "_session",
    )

    def __init__(self, lender: "Lender", lent: _Lent, peer: Peer, session: Session, command: SendMessages) -> None:
        # Not ``super``: one is made for every request.
        self.on_done = None
        self.sent_size = 0
        self._lender = lender
        self._lent = lent
        self._peer = peer
        self._session = session
        self._command = command
        self._call_id = 0
        """Also the number of the request on the board."""
        self._sent: Sent | None = None
        self._error: BaseException | None = None
        self._is_watched = self._is_done = False

    # --- for the connection ---

    def begin(self, facts: bytes | None) -> None:
        """See ``ReplyElsewhere``."""
        lent, session, peer = self._lent, self._session, self._peer
        connection = lent.connection
        if connection.is_held:
            connection.send_held()
        if facts is not None and connection.is_writable:
            lent.pending = self
        else:
            # What is sent next has to wait here.
            facts = None
        self._call_id = call_id = peer.new_call()
        peer.send(call_id, self, session.client_id, session.user_id, self._command, facts)

    def look(self) -> bool:
        """See ``ReplyElsewhere``."""
        if self._sent is not None:
            return not self._is_done
        lent = self._lent
        if lent.pending is not self:
            return False
        assert lent.slot is not None, "lent connections have one"
        facts = self._lender.board.read(lent.slot, self._call_id)
        if facts is None:
            return False
        self._sent = Sent(*facts)
        self._peer.forget(self._call_id)
        self._lender.settle(lent)
        return True

    def result(self) -> Sent:
        """See ``ReplyElsewhere``."""
        if self._error is not None:
            raise self._error
        assert self._sent is not None, "it is there"
        return self._sent

    @property
    def is_being_sent(self) -> bool:
        """See ``ReplyElsewhere``."""
        lent = self._lent
        return lent.pending is self and lent.slot is not None and self._lender.board.is_begun(lent.slot, self._call_id)

    def watch(self) -> None:
        """See ``ReplyElsewhere``."""
        if not self._is_watched and self._lent.pending is self:
            self._is_watched = True
            self._peer.note("watch_reply", self._session.client_id, self._call_id)

    def receive_into(self, room: Callable[[int], memoryview]) -> None:
        """See ``ReplyElsewhere``."""
        self._lent.connection.receive_into(room)

    # --- for the peer ---

    def done(self) -> bool:
        """Whether there was an answer."""
        return self._is_done or self._sent is not None

    def set_result(self, sent: Sent) -> None:
        """The answer came: the reply is the matter of this process."""
        self._sent = sent
        self._finish()

    def set_exception(self, error: BaseException) -> None:
        """It failed, or the other process has ended."""
        if isinstance(error, ProcessGone):
            if self.look():
                # It has replied before.
                self.note_sent()
                return
            # Whether it was carried out is not known: the client must not be told that it was not.
            self._lender.abort(self._session)
        self._error = error
        self._finish()

    def cancel(self) -> None:
        """The other process stops."""
        self.set_exception(asyncio.CancelledError())

    def note_sent(self) -> None:
        """The reply is sent, and whoever watches for that has to be told."""
        if self.on_done is not None:
            self.on_done()

    def _finish(self) -> None:
        self._is_done = True
        if self._lent.pending is self:
            self._lender.settle(self._lent)
        if self.on_done is not None:
            self.on_done()


class Lender:
    """Of one process."""

    def __init__(
        self,
        links: Links,
        board: ReplyBoard,
        handles_of: Callable[[int], Handles],
        *,
        find_connection: Callable[[Session], Lendable | None] = connection_of,
        send_count_min: int = _SEND_COUNT_MIN,
    ) -> None:
        self.board = board
        self._links = links
        self._handles_of = handles_of
        self._find_connection = find_connection
        self._send_count_min = send_count_min
        self._lent: dict[int, _Lent] = {}
        """By client id."""
        self.abort: Callable[[Session], None] = lambda _: None
        """Set by the server: closes a connection without an answer."""

    @property
    def services(self) -> Mapping[str, Callable[..., Any]]:
        """For peers."""
        return {"borrowed": self._borrowed, "reply_sent": self._reply_sent, "rest_unsent": self._rest_unsent}

    def send(self, peer: Peer, session: Session, command: SendMessages) -> SendElsewhere | None:
        """A send that its owner replies to, to be begun by the caller; None if it has to come back."""
        lent = self._lent.get(session.client_id)
        if lent is None or peer not in lent.ready:
            self._count(peer, session, lent)
            return None
        batches = command.batches
        if len(batches) != 1 or type(batches[0]) is not Batch:
            return None
        return SendElsewhere(self, lent, peer, session, command)

    # --- lending ---

    def _count(self, peer: Peer, session: Session, lent: _Lent | None) -> None:
        """Lend the socket of a connection that keeps sending."""
        if lent is None:
            connection = self._find_connection(session)
            if connection is None:
                return
            lent = self._lent[session.client_id] = _Lent(connection)
        lent.counts[peer] = count = lent.counts.get(peer, 0) + 1
        if count < self._send_count_min or peer in lent.offered or not peer.is_open:
            return
        if lent.slot is None:
            lent.slot = self.board.take()
            if lent.slot is None:
                return
        lent.offered.add(peer)
        lent.connection.is_lent = True
        try:
            self._handles_of(peer.number).send(
                [lent.connection.descriptor], "lend", self._links.number, session.client_id, lent.slot
            )
        except OSError as error:
            # It does its best without, and is not asked again.
            _log.info("could not lend a connection to process %d: %s", peer.number, error)

    def _borrowed(self, peer: Peer, client_id: int) -> None:
        lent = self._lent.get(client_id)
        if lent is not None and peer in lent.offered:
            lent.ready.add(peer)
        else:
            # It has gone meanwhile.
            peer.note("take_back", client_id)

    def forget(self, client_id: int, *, moves: bool = False) -> None:
        """A connection is gone, or moves to another process: then its copies are of no use any more."""
        lent = self._lent.pop(client_id, None)
        if lent is None:
            return
        lent.is_over = True
        if lent.pending is None:
            self.settle(lent)
        if moves:
            for peer in lent.offered:
                peer.note("take_back", client_id)

    def peer_lost(self, number: int) -> None:
        """A process is gone, with its copies."""
        for lent in self._lent.values():
            for peers in (lent.offered, lent.ready):
                peers -= {peer for peer in peers if peer.number == number}
            lent.counts = {peer: count for peer, count in lent.counts.items() if peer.number != number}

    def settle(self, lent: _Lent) -> None:
        """No request of a connection is pending any more."""
        lent.pending = None
        if lent.is_over and lent.slot is not None:
            self.board.give_back(lent.slot)
            lent.slot = None

    # --- what the other process says ---

    def _reply_sent(self, peer: Peer, call_id: int) -> None:
        """It has sent the reply, or what came of it was said before."""
        reply = peer.asked(call_id)
        if isinstance(reply, SendElsewhere) and reply.look():
            reply.note_sent()

    def _rest_unsent(self, peer: Peer, call_id: int, sent: Sent, sent_size: int) -> None:
        """The kernel did not take the whole reply."""
        reply = peer.forget(call_id)
        if isinstance(reply, SendElsewhere):
            reply.sent_size = sent_size
            reply.set_result(sent)
