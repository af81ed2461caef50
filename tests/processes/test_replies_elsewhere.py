"""Sockets that are lent to the owners of topics, who answer clients themselves."""

import asyncio
import itertools
import os
import socket
from collections.abc import AsyncIterator, Callable
from typing import Any, cast

import pytest

from courser.api.commands import SendMessages
from courser.api.replies import Sent
from courser.broker.sessions import Session
from courser.broker.waiting import Waiting
from courser.errors import CommandRejected, CourserError, ErrorCode
from courser.model.messaging import ToPartition, Transport
from courser.processes.borrowing import Borrower
from courser.processes.channel import socket_pair
from courser.processes.handles import Handles, handle_pair
from courser.processes.lending import Lender, SendElsewhere
from courser.processes.links import Links
from courser.processes.peer import Peer, ProcessGone
from courser.processes.reply_board import ForeignBoard, ReplyBoard
from courser.processes.shared_memory import RequestRegion
from courser.records.batch import NewMessage, build_batch
from courser.transports.held_replies import HeldReplies
from courser.wire.sent_replies import pack_vsr_facts, reply_to_send
from tests.broker.open_partitions import until

SENT = Sent(1, 2, 3, 4)
FACTS = pack_vsr_facts(b"c" * 16, b"s" * 16, 7)
CLIENT_ID = 17
COMMAND = SendMessages("a", "b", ToPartition(3), [build_batch([NewMessage(b"hello")])])


class Connection:
    """In place of ``TcpConnection``."""

    def __init__(self, ours: socket.socket) -> None:
        self.ours = ours
        self.is_held = self.is_lent = False
        self.is_writable = True

    @property
    def descriptor(self) -> int:
        return self.ours.fileno()

    def send_held(self) -> None:
        pass

    def receive_into(self, room: Callable[[int], memoryview]) -> None:
        pass


class Owner:
    """In place of the ``Router`` of the other process: what its answers are."""

    def __init__(self) -> None:
        self.answer: Any = SENT
        self.error: CourserError | None = None
        self.on_gone: Any = None
        self.seen: list[SendMessages] = []

    def knows(self, client_id: int) -> bool:
        return client_id == CLIENT_ID

    def begin_for(self, client_id: int, user_id: int | None, command: SendMessages) -> tuple[Session, Any]:
        assert (client_id, user_id) == (CLIENT_ID, 5)
        self.seen.append(command)
        if self.error is not None:
            raise self.error
        return Session(client_id, Transport.TCP, "", now=0), self.answer

    def reply_sent(self, _: Session) -> None:
        pass


class World:
    """Two processes in one event loop: number 0 has a connection, number 1 owns the topic."""

    def __init__(self) -> None:
        self.client, ours = socket.socketpair()
        self.client.setblocking(False)
        ours.setblocking(False)
        self.connection = Connection(ours)
        self.session = Session(CLIENT_ID, Transport.TCP, "127.0.0.1:1", now=0)
        self.session.user_id = 5
        self.board = ReplyBoard(2)
        self.lender = Lender(
            Links(0, 2), self.board, lambda _: self.handles[0], find_connection=lambda _: self.connection
        )
        self.aborted: list[Session] = []
        self.lender.abort = self.aborted.append
        self.owner = Owner()
        self.borrower = Borrower(cast("Any", self.owner), lambda _: self.at_owner)
        self.borrower.begin(HeldReplies())
        self._region = RequestRegion(4096)
        self._call_ids = itertools.count(1)
        self.start_owner()
        self.done: list[SendElsewhere] = []

    def start_owner(self) -> None:
        """Connect both processes. Can be repeated when the owner has ended."""
        ends, handle_ends = socket_pair(), handle_pair()
        services = {"region_mapped": lambda _: None, **self.lender.services}
        calls: dict[str, Any] = {}
        self.to_owner = Peer(
            1, ends[0], services=services, calls=calls, call_ids=self._call_ids, on_lost=self._owner_lost
        )
        self.at_owner = Peer(
            0,
            ends[1],
            services=self.borrower.services,
            calls=calls,
            call_ids=itertools.count(1),
            on_lost=self._home_lost,
        )
        self.at_owner.on_send = self.borrower.send
        self.handles = Handles(handle_ends[0], {}), Handles(handle_ends[1], self.borrower.handle_services)
        self.at_owner.map_memory(os.dup(self._region.descriptor), os.dup(self.board.descriptor))

    def _owner_lost(self, peer: Peer) -> None:
        self.lender.peer_lost(peer.number)

    def _home_lost(self, peer: Peer) -> None:
        self.borrower.peer_lost(peer.number)

    async def lend(self) -> None:
        """Send until the owner has the socket."""
        await until(lambda: self.lender.send(self.to_owner, self.session, COMMAND) is not None)

    def begin(self, facts: bytes | None = FACTS) -> SendElsewhere:
        reply = self.lender.send(self.to_owner, self.session, COMMAND)
        assert reply is not None
        reply.on_done = lambda: self.done.append(reply)
        reply.begin(facts)
        return reply

    async def received(self, size: int) -> bytes:
        """What the client gets."""
        found = b""
        async with asyncio.timeout(30):
            while len(found) < size:
                found += await asyncio.get_running_loop().sock_recv(self.client, 65536) or b"the end"
        return found

    async def until_done(self) -> None:
        await until(lambda: bool(self.done))

    async def until_seen(self, count: int = 1) -> None:
        await until(lambda: len(self.owner.seen) >= count)

    async def exchange(self) -> None:
        """Let both processes hear all that was said so far."""
        heard = asyncio.Event()
        cast("dict[str, Any]", self.at_owner._services)["ping"] = lambda peer: peer.note("pong")
        cast("dict[str, Any]", self.to_owner._services)["pong"] = lambda _: heard.set()
        self.to_owner.note("ping")
        async with asyncio.timeout(30):
            await heard.wait()

    def close(self) -> None:
        self.borrower.peer_lost(0)
        for part in (self.to_owner, self.at_owner, *self.handles, self.client, self.connection.ours):
            part.close()


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = World()
    await world.lend()
    yield world
    world.close()


REPLY = reply_to_send(FACTS, SENT)


def test_what_the_board_says() -> None:
    board = ReplyBoard(3)
    theirs = ForeignBoard(os.dup(board.descriptor))
    number = 70_000
    assert not board.is_begun(1, number)
    theirs.begin(1, number, 1, 2, 3, 2**64 - 1)
    assert board.is_begun(1, number)
    assert board.read(1, number) is None
    theirs.note_sent(1, number)
    assert board.read(1, number) == (1, 2, 3, 2**64 - 1)
    # Others are not concerned.
    assert board.read(0, number) is None
    assert board.read(2, number) is None
    assert board.read(1, number - 1) is None


def test_facts_that_were_not_written_together_do_not_count() -> None:
    board = ReplyBoard(1)
    theirs = ForeignBoard(os.dup(board.descriptor))
    theirs.begin(0, 5, 1, 2, 3, 4)
    theirs.note_sent(0, 5)
    for word in range(6):
        before = board._words[word]
        board._words[word] = before + 1
        assert board.read(0, 5) is None
        board._words[word] = before
    assert board.read(0, 5) == (1, 2, 3, 4)


def test_slots_are_given_once() -> None:
    board = ReplyBoard(2)
    one, other = board.take(), board.take()
    assert {one, other} == {0, 1}
    assert board.take() is None
    assert other is not None
    board.give_back(other)
    assert board.take() == other


async def test_the_owner_replies_and_nobody_is_told(world: World) -> None:
    for _ in range(3):
        reply = world.begin()
        assert not reply.look()
        assert await world.received(len(REPLY)) == REPLY
        assert reply.look()
        assert reply.result() == SENT
        await world.exchange()
    assert not world.done
    assert world.owner.seen == [COMMAND] * 3
    # Nothing is kept: the memory of the requests is free.
    assert not world.to_owner._asked
    assert not world.at_owner._serving


async def test_a_reply_that_has_to_wait_is_sent_later(world: World) -> None:
    written: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    world.owner.answer = Waiting(written, SENT)
    reply = world.begin()
    await world.exchange()
    assert not reply.look()
    reply.watch()
    await world.exchange()
    assert not world.done
    written.set_result(None)
    await world.until_done()
    assert world.done == [reply]
    assert reply.look()
    assert await world.received(len(REPLY)) == REPLY


async def test_who_asks_after_the_reply_is_told(world: World) -> None:
    reply = world.begin()
    await world.received(len(REPLY))
    reply.watch()
    await world.until_done()
    assert world.done == [reply]
    assert reply.look()


async def test_failures_come_back(world: World) -> None:
    world.owner.error = CommandRejected(ErrorCode.TOPIC_FULL, "it is full")
    reply = world.begin()
    await world.until_done()
    assert not reply.look()
    with pytest.raises(CommandRejected, match="it is full"):
        reply.result()
    written: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    world.owner.answer, world.owner.error = Waiting(written), None
    world.done.clear()
    reply = world.begin()
    await world.until_seen(2)
    written.set_exception(CommandRejected(ErrorCode.DISK_FULL, "too late"))
    await world.until_done()
    with pytest.raises(CommandRejected, match="too late"):
        reply.result()
    assert not world.aborted


class _Narrow:
    """A socket that takes a few bytes."""

    def __init__(self, ours: socket.socket, size: int) -> None:
        self._ours = ours
        self._size = size

    def send(self, data: bytes) -> int:
        if not self._size:
            raise BlockingIOError
        return self._ours.send(data[: self._size])

    def close(self) -> None:
        self._ours.close()


@pytest.mark.parametrize("size", [0, 1, len(REPLY) - 1])
async def test_what_the_kernel_does_not_take_comes_back(world: World, size: int) -> None:
    (copy,) = world.borrower._copies.values()
    copy.socket = cast("Any", _Narrow(copy.socket, size))
    reply = world.begin()
    await world.until_done()
    assert not reply.look()
    assert reply.sent_size == size
    assert reply.result() == SENT
    if size:
        assert await world.received(size) == REPLY[:size]
    assert not world.to_owner._asked


async def test_a_connection_with_unsent_bytes_replies_itself(world: World) -> None:
    world.connection.is_writable = False
    reply = world.begin()
    call = next(iter(world.to_owner._asked))
    # As an ordinary call, which the owner's router answers.
    world.to_owner._received((2, call, SENT))
    assert world.done == [reply]
    assert not reply.look()
    assert reply.sent_size == 0


async def test_an_owner_that_ends_before_it_replies_takes_the_connection_with_it(world: World) -> None:
    world.owner.answer = Waiting(asyncio.get_running_loop().create_future(), SENT)
    reply = world.begin()
    await world.until_seen()
    # The messages may be written. Nobody has said so.
    world.at_owner.close()
    await world.until_done()
    assert world.aborted == [world.session]
    assert not reply.look()
    with pytest.raises(ProcessGone):
        reply.result()


async def test_an_owner_that_has_just_ended_takes_the_connection_with_it(world: World) -> None:
    world.at_owner.close()
    # Nobody has noticed.
    reply = world.begin()
    await world.until_done()
    assert world.aborted == [world.session]
    assert not reply.look()
    with pytest.raises(ProcessGone):
        reply.result()


async def test_the_next_request_does_not_begin_with_an_owner_that_has_ended(world: World) -> None:
    """As a client has it that does not wait for replies."""
    world.owner.answer = Waiting(asyncio.get_running_loop().create_future(), SENT)
    reply = world.begin()
    await world.until_seen()
    next_ones: list[SendElsewhere | None] = []
    reply.on_done = lambda: next_ones.append(world.lender.send(world.to_owner, world.session, COMMAND))
    world.at_owner.close()
    await until(lambda: bool(next_ones))
    assert next_ones == [None]
    assert not world.to_owner._asked


async def test_a_request_that_begins_with_an_owner_that_has_ended_fails(world: World) -> None:
    reply = world.lender.send(world.to_owner, world.session, COMMAND)
    assert reply is not None
    reply.on_done = lambda: world.done.append(reply)
    world.at_owner.close()
    await until(lambda: not world.to_owner.is_open)
    reply.begin(FACTS)
    await world.until_done()
    with pytest.raises(ProcessGone):
        reply.result()
    # Its slot is free when its connection is gone.
    world.lender.forget(CLIENT_ID)
    assert None not in (world.board.take(), world.board.take())


async def test_a_reply_of_an_owner_that_has_ended_is_not_taken_for_one_of_its_successor(world: World) -> None:
    """The connection stays, with its slot, in which the last reply is still noted."""
    reply = world.begin()
    assert await world.received(len(REPLY)) == REPLY
    assert reply.look()
    for handles in world.handles:
        handles.close()
    world.at_owner.close()
    await until(lambda: not world.to_owner.is_open)
    world.borrower.peer_lost(0)
    world.start_owner()
    world.owner.answer = Waiting(asyncio.get_running_loop().create_future(), SENT)
    await world.lend()
    reply = world.begin()
    assert not reply.look(), "it has not even arrived"
    assert not reply.is_being_sent
    await world.until_seen(2)
    assert not reply.look(), "it is not carried out"


async def test_an_owner_that_ends_after_it_replied_is_not_missed(world: World) -> None:
    reply = world.begin()
    assert await world.received(len(REPLY)) == REPLY
    world.at_owner.close()
    await world.until_done()
    assert not world.aborted
    assert reply.look()
    assert reply.result() == SENT


async def test_a_slot_is_free_when_its_last_request_is_answered(world: World) -> None:
    written: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    world.owner.answer = Waiting(written, SENT)
    reply = world.begin()
    await world.until_seen()
    reply.watch()
    world.lender.forget(CLIENT_ID)
    # As the end of its mirror does it.
    world.owner.on_gone(CLIENT_ID)
    free = [world.board.take(), world.board.take()]
    assert None in free
    written.set_result(None)
    await world.until_done()
    assert world.board.take() is not None
    assert not world.to_owner._asked


async def test_nobody_gets_a_reply_on_a_socket_that_was_taken_back(world: World) -> None:
    world.lender.forget(CLIENT_ID, moves=True)
    await world.exchange()
    assert not world.borrower._copies
    # It is lent again by whoever has it now.
    await world.lend()
    reply = world.begin()
    assert await world.received(len(REPLY)) == REPLY
    assert reply.look()


async def test_clients_of_a_process_that_ends_are_disconnected(world: World) -> None:
    world.connection.ours.close()
    world.to_owner.close()
    assert await world.received(1) == b"the end"


async def test_a_connection_that_went_meanwhile_is_given_back(world: World) -> None:
    world.lender.forget(CLIENT_ID, moves=True)
    await world.exchange()
    for _ in range(4):
        assert world.lender.send(world.to_owner, world.session, COMMAND) is None
    world.lender.forget(CLIENT_ID)
    await until(lambda: bool(world.borrower._copies))
    await until(lambda: not world.borrower._copies)
