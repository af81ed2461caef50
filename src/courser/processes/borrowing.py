"""Copies of the sockets of connections that other processes have: their requests are answered from here.

See ``lending`` for the other side. Only the reply to a send that was carried out is sent from here, and only as long as
the kernel takes it at once. Everything else goes back to the process of the connection: failures, what is left of a
reply, and the reply to a request whose connection is gone.
"""

import os
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from courser.api.commands import SendMessages
from courser.api.replies import Sent
from courser.broker.sessions import Session
from courser.broker.waiting import Waiting
from courser.model.buffers import Buffer
from courser.processes.peer import Peer
from courser.processes.reply_board import ForeignBoard
from courser.processes.router import Router
from courser.transports.held_replies import HeldReplies
from courser.wire.sent_replies import reply_to_send


class _Copy:
    """A connection of another process. One of its requests is in progress at a time."""

    __slots__ = (
        "_board",
        "_held_replies",
        "_sent",
        "_slot",
        "call_id",
        "client_id",
        "is_held",
        "is_open",
        "is_watched",
        "peer",
        "socket",
    )

    def __init__(
        self,
        copy: socket.socket,
        peer: Peer,
        client_id: int,
        slot: int,
        board: ForeignBoard,
        held_replies: HeldReplies,
    ) -> None:
        self.socket = copy
        self.peer = peer
        self.client_id = client_id
        self.is_open = True
        self.is_held = False
        """Whether its reply is held until the end of the turn."""
        self.call_id = 0
        """Of the request in progress, which is its number on the board; 0 if there is none."""
        self.is_watched = False
        """Whether the other process wants to be told when the reply is sent."""
        self._slot = slot
        self._board = board
        self._held_replies = held_replies
        self._sent: Sent

    def reply(self, facts: bytes, sent: Sent) -> None:
        """Send a reply, now or at the end of the turn."""
        self._sent = sent
        self._board.begin(self._slot, self.call_id, sent.stream_id, sent.topic_id, sent.partition_id, sent.base_offset)
        data = (reply_to_send(facts, sent),)
        held = self._held_replies
        if held.last is self or not held.hold(self, data):
            self.write(data)

    def write(self, buffers: Sequence[Buffer]) -> None:
        """Hand the reply to the kernel now."""
        (data,) = buffers
        call_id, self.call_id = self.call_id, 0
        if not self.is_open:
            self.peer.serve(call_id).answer(self._sent)
            return
        try:
            size = self.socket.send(data)
        except BlockingIOError:
            size = 0
        except OSError:
            # The client is gone. Whoever has its connection notices it.
            size = len(data)
        if size == len(data):
            self._board.note_sent(self._slot, call_id)
            if self.is_watched:
                self.is_watched = False
                self.peer.note("reply_sent", call_id)
        else:
            self.is_watched = False
            self.peer.note("rest_unsent", call_id, self._sent, size)

    def abort(self) -> None:
        """End the connection for the client. Whoever has it notices that."""
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """The connection is gone, or another process has it now."""
        self.is_open = False
        self._held_replies.forget(self)
        self.socket.close()


class Borrower:
    """Of one process."""

    def __init__(self, router: Router, peer_of: Callable[[int], Peer | None]) -> None:
        self._router = router
        self._peer_of = peer_of
        self._held_replies: HeldReplies | None = None
        self._copies: dict[tuple[Peer, int], _Copy] = {}
        """By the process that has the connection, and client id."""
        router.on_gone = self._gone

    def begin(self, held_replies: HeldReplies) -> None:
        """Connections are accepted from now on; ``held_replies`` are theirs."""
        self._held_replies = held_replies

    @property
    def services(self) -> Mapping[str, Callable[..., Any]]:
        """For peers."""
        return {"take_back": self._take_back, "watch_reply": self._watch}

    @property
    def handle_services(self) -> Mapping[str, Callable[..., None]]:
        """For what carries sockets."""
        return {"lend": self._lend}

    # --- copies ---

    def _lend(self, descriptors: Sequence[int], home: int, client_id: int, slot: int) -> None:
        if not descriptors:
            # This process has as many as it may have: the kernel has dropped it.
            return
        peer = self._peer_of(home)
        if (
            peer is None
            or peer.foreign_board is None
            or self._held_replies is None
            or not self._router.knows(client_id)
        ):
            # It has gone meanwhile, or this process is not ready.
            os.close(descriptors[0])
            return
        self._drop(peer, client_id)
        copy = socket.socket(fileno=descriptors[0])
        copy.setblocking(False)
        self._copies[peer, client_id] = _Copy(copy, peer, client_id, slot, peer.foreign_board, self._held_replies)
        peer.note("borrowed", client_id)

    def _take_back(self, peer: Peer, client_id: int) -> None:
        self._drop(peer, client_id)

    def _drop(self, peer: Peer, client_id: int) -> None:
        copy = self._copies.pop((peer, client_id), None)
        if copy is not None:
            copy.close()

    def _gone(self, client_id: int) -> None:
        """A session has ended."""
        for peer, _ in [key for key in self._copies if key[1] == client_id]:
            self._drop(peer, client_id)

    def peer_lost(self, number: int) -> None:
        """A process is gone. Its clients notice that when the last copy of their socket is closed."""
        for peer, client_id in [key for key in self._copies if key[0].number == number]:
            self._drop(peer, client_id)

    # --- requests ---

    def send(
        self, peer: Peer, call_id: int, client_id: int, user_id: int | None, command: SendMessages, facts: bytes
    ) -> None:
        """Carry out a send, and reply to the client."""
        router = self._router
        copy = self._copies.get((peer, client_id))
        try:
            session, answer = router.begin_for(client_id, user_id, command)
        except Exception as error:  # noqa: BLE001 - the caller gets it
            peer.serve(call_id).fail(error)
            return
        if copy is None:
            call = peer.serve(call_id)
            if type(answer) is Waiting:
                call.answer_later(answer)
            else:
                call.answer(answer)
            return
        copy.call_id = call_id
        if type(answer) is Waiting:
            answer.future.add_done_callback(partial(self._settle, copy, facts, session, answer))
            return
        assert type(answer) is Sent, "as a send is answered"
        copy.reply(facts, answer)
        router.reply_sent(session)

    def _settle(self, copy: _Copy, facts: bytes, session: Session, answer: Waiting[Any], _: object) -> None:
        call_id = copy.call_id
        try:
            sent = answer.result()
        except BaseException as error:  # noqa: BLE001 - the caller gets it
            copy.call_id, copy.is_watched = 0, False
            copy.peer.serve(call_id).fail(error)
        else:
            copy.reply(facts, sent)
        self._router.reply_sent(session)

    def _watch(self, peer: Peer, client_id: int, call_id: int) -> None:
        copy = self._copies.get((peer, client_id))
        if copy is not None and copy.call_id == call_id:
            copy.is_watched = True
        else:
            # It is sent, or what came of it was said before, or will be.
            peer.note("reply_sent", call_id)
