"""The dispatcher of a server with several processes: a command is carried out here, or by the process that it needs.

Commands about one topic need its owner. Nearly all others need the first process, which owns the metadata, the users
and the list of connections. What another process carries out is carried out by the same handlers, with a remote
session (``remote_sessions``); batches are not looked at on the way.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from operator import attrgetter
from typing import Any

import msgspec

from courser.api import commands as c
from courser.api.internal_commands import FindRangesToScan, FindStartOffsets, ScanPiece
from courser.api.operating_replies import RetentionPlan, TopicFigureList
from courser.api.replies import ArrivalsInTopics, LoggedIn, Reply
from courser.broker.access.sessions import Session
from courser.broker.broker import Broker
from courser.broker.catalog.finding import find_stream, find_topic
from courser.broker.partition.waiting import Waiting, attempt
from courser.errors import CommandRejected, CourserError, ErrorCode
from courser.handlers.audit import Answer
from courser.handlers.dispatcher import Dispatcher
from courser.model.identifiers import Identifier
from courser.model.messaging import Transport
from courser.processes.encoding import COMMAND
from courser.processes.links import Links
from courser.processes.ownership import FIRST
from courser.processes.peer import Call, Peer, ProcessGone
from courser.processes.remote_sessions import Passing, RemoteSessions

_KNOWN_COUNT_MAX = 10_000
"""Owners of topics that are remembered, by the names that commands use."""

OWNED: frozenset[type[c.Command]] = frozenset(
    {
        c.SendMessages,
        c.PollMessages,
        c.WaitForMessages,
        c.AwaitMessages,
        c.ReadMessages,
        c.FetchMessages,
        c.GetPartitionRoute,
        c.WaitForArrivals,
        c.FindMessages,
        FindStartOffsets,
        FindRangesToScan,
        ScanPiece,
        c.FlushMessages,
        c.GetConsumerOffset,
        c.StoreConsumerOffset,
        c.DeleteConsumerOffset,
        c.GetTopic,
        c.GetSegments,
        c.DeleteSegments,
        c.GetTopicMaintenance,
        c.GetOffsetsAtTime,
        c.VerifySegment,
        c.GetPartitionBounds,
        c.GetConsumerGroup,
        c.GetConsumerGroups,
        c.JoinConsumerGroup,
        c.LeaveConsumerGroup,
        c.SyncConsumerGroup,
        c.ConfirmAssignment,
        c.GetGroupLag,
        c.ResetGroupOffsets,
    }
)
"""Commands about one topic, which its owner carries out."""
ANYWHERE: frozenset[type[c.Command]] = frozenset(
    {c.Ping, c.DescribeOptions, c.GetClusterMetadata, c.GetTopicDurability}
)
"""Commands that any process can carry out."""
COLLECTED: frozenset[type[c.Command]] = frozenset(
    {c.GetStream, c.GetStreams, c.GetTopics, c.GetStats, c.GetMe, c.GetClient, c.GetClients, c.GetSessions}
)
"""Commands that the first process carries out with figures of all others."""
_LOGINS = frozenset({c.LoginUser, c.LoginWithToken, c.LogoutUser})
_HERE_FOR_OTHERS = OWNED | {c.WaitForTopics}
"""Commands that another process sends only to the process that carries them out."""
_INTERRUPTIBLE = frozenset({c.WaitForMessages, c.WaitForArrivals, c.WaitForTopics})
"""Commands that wait for messages."""

STREAK_COUNT = 32
"""Requests in a row that one other process carries out before a connection is moved to it."""

LoginFacts = tuple[int | None, str | None, int, str]
"""User id, token name, number and client library of a session."""


def _join_plans(replies: list[Any], _: Links) -> Reply:
    rows = [row for reply in replies for row in reply.deletions]
    rows.sort(key=attrgetter("stream_id", "topic_id", "partition_id"))
    return RetentionPlan(replies[FIRST].until, replies[FIRST].is_enabled, rows)


def _join_figures(replies: list[Any], links: Links) -> Reply:
    """Every process lists all topics. The owner knows the figures of one."""
    rows = [
        row
        for number, reply in enumerate(replies)
        for row in reply.topics
        if links.owner_of(row.stream_id, row.topic_id) == number
    ]
    return TopicFigureList(sorted(rows, key=attrgetter("stream_id", "topic_id")))


SPREAD: dict[type[c.Command], Callable[[list[Any], Links], Reply]] = {
    c.GetRetentionPlan: _join_plans,
    c.GetTopicFigures: _join_figures,
}
"""Commands about all topics, which every process carries out for its own, and how the replies become one."""


class Router(Dispatcher):
    """One for all connections of a process."""

    def __init__(self, broker: Broker, links: Links, remote_sessions: RemoteSessions) -> None:
        super().__init__(broker)
        self._links = links
        self._remote_sessions = remote_sessions
        self._number = links.number
        self._catalog = broker.catalog
        self._sessions = broker.sessions
        self._buffers = broker.buffers
        self._here = super().begin
        self._owners: dict[tuple[Identifier, Identifier], int] = {}
        """By the names of a stream and a topic. Valid until metadata changes."""
        self._version = 0
        self._known: dict[int, set[int]] = {}
        """The processes that know a session as a remote one, by client id."""
        self._joined: dict[int, set[int]] = {}
        """The processes in which a session is a member of groups, by client id."""
        self.abort: Callable[[Session], None] = lambda _: None
        """Set by the server: closes a connection without an answer."""
        self.collect: Callable[[], Any] | None = None
        """Set in the first process: brings the figures of the others up to date."""
        self.streaks: dict[int, tuple[int, int]] = {}
        """By client id: the owner that carried out its last requests, and how many of them, without one in between."""
        self.on_gone: Callable[[int], None] = lambda _: None
        """Told the client ids of sessions that have ended."""
        self.move: Callable[[Session, int], None] | None = None
        """Set by the server: moves a connection to a process that carries out all its requests."""
        broker.sessions.on_open = self._opened
        broker.sessions.on_gone = self._gone

    # --- which process ---

    def begin(self, session: Session, command: c.Command) -> Answer:
        kind = type(command)
        if kind in OWNED:
            named: Any = command.poll if kind is c.WaitForMessages else command  # type: ignore[attr-defined]
            if self._version != self._catalog.version:
                self._owners.clear()
                self._version = self._catalog.version
            owner = self._owners.get((named.stream, named.topic))
            if owner is None:
                owner = self._find_owner(named.stream, named.topic)
            if owner != self._number:
                return self._forward(owner, session, command)
            if self.streaks:
                self.streaks.pop(session.client_id, None)
        elif kind is c.WaitForTopics:
            assert isinstance(command, c.WaitForTopics), "as its kind says"
            return self._wait_for_topics(session, command)
        elif kind in _LOGINS:
            return attempt(self._log_in(session, command))
        elif kind not in ANYWHERE:
            if self._number != FIRST:
                return self._forward(FIRST, session, command)
            if kind in SPREAD:
                return attempt(self._gathered(session, command))
            if kind in COLLECTED and self.collect is not None:
                return attempt(self._collected(session, command))
        return self._here(session, command)

    def _find_owner(self, stream: Identifier, topic: Identifier) -> int:
        """The owner of a topic. Of one that does not exist: this process, which says so."""
        state = self._catalog.state
        try:
            found = find_stream(state, stream)
            topic_id = find_topic(state, found, topic).topic_id
        except CommandRejected:
            return self._number
        if len(self._owners) >= _KNOWN_COUNT_MAX:
            self._owners.clear()
        owner = self._owners[stream, topic] = self._links.owner_of(found.stream_id, topic_id)
        return owner

    # --- what others carry out ---

    def _forward(self, owner: int, session: Session, command: c.Command) -> Waiting[Any]:
        if session.ended is not None:
            raise session.ended.with_traceback(None)
        peer = self._links.peers.get(owner)
        if peer is None:
            begun = attempt(self._forward_later(owner, session, command))
            assert isinstance(begun, Waiting), "the process is not there yet"
            return begun
        if peer.is_congested:
            raise _too_busy()
        future = peer.call(COMMAND, self._name(peer, session), session.user_id, command)
        future.add_done_callback(partial(self._answered, session, owner, command))
        if type(command) in _INTERRUPTIBLE:
            self._make_interruptible(session, peer, future)
        elif type(command) is c.AwaitMessages:
            future.add_done_callback(partial(_pass_cancellation, peer, peer.last_call_id))
        return Waiting(future)

    async def _forward_later(self, owner: int, session: Session, command: c.Command) -> Any:
        await self._links.wait_for(owner)
        return await self._forward(owner, session, command)

    def _name(self, peer: Peer, session: Session) -> int | Passing:
        """What another process calls a session. It is told of a session before the first request."""
        client_id = session.client_id
        if not client_id:
            return session.address, session.request_id
        known = self._known.setdefault(client_id, set())
        if peer.number not in known:
            known.add(peer.number)
            peer.note("opened", client_id, session.transport, session.address, session.connected_at)
        return client_id

    def _answered(self, session: Session, owner: int, command: c.Command, future: "asyncio.Future[Any]") -> None:
        if future.cancelled():
            return
        error = future.exception()
        if isinstance(error, ProcessGone):
            # Whether the request was carried out is not known: the client must not be told that it was not.
            self.abort(session)
            return
        if error is None and type(command) is c.JoinConsumerGroup and session.ended is None:
            self._joined.setdefault(session.client_id, set()).add(owner)
        if type(command) in OWNED and session.transport is Transport.TCP and session.ended is None:
            self._note_forwarded(session, owner)

    def _note_forwarded(self, session: Session, owner: int) -> None:
        last, count = self.streaks.get(session.client_id, (owner, 0))
        count = count + 1 if last == owner else 1
        self.streaks[session.client_id] = owner, count
        if count >= STREAK_COUNT and self.move is not None:
            # After the reply is sent.
            asyncio.get_running_loop().call_soon(self.move, session, owner)

    def _make_interruptible(self, session: Session, peer: Peer, future: "asyncio.Future[Any]") -> None:
        """What happens to the wait of a session here happens to that of its remote session."""
        call_id = peer.last_call_id
        waiting: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        session.waiting = waiting

        def interrupted(done: "asyncio.Future[bool]") -> None:
            if not future.done():
                peer.interrupt(call_id, None if done.cancelled() else done.result())

        def over(_: "asyncio.Future[Any]") -> None:
            if session.waiting is waiting:
                session.waiting = None

        waiting.add_done_callback(interrupted)
        future.add_done_callback(over)

    # --- logging in and out ---

    async def _log_in(self, session: Session, command: c.Command) -> Reply | None:
        """Carried out by the first process. The others forget whose session it was."""
        user_id = session.user_id
        if self._number == FIRST:
            answer = self._here(session, command)
            reply: Reply | None = await answer if isinstance(answer, Waiting) else answer
        else:
            peer = self._links.peers.get(FIRST) or await self._links.wait_for(FIRST)
            reply, facts = await peer.call("log_in", self._name(peer, session), user_id, command)
            if session.ended is not None:
                raise session.ended.with_traceback(None)
            session.user_id, session.token_name, session.session_number, session.sdk = facts
            if session.user_id != user_id or not isinstance(reply, LoggedIn):
                self.broker.groups.drop_session(session)
        if session.user_id != user_id:
            self._joined.pop(session.client_id, None)
            for number in self._known.get(session.client_id, set()) - {FIRST}:
                if (peer_there := self._links.peers.get(number)) is not None:
                    peer_there.note("user_changed", session.client_id, session.user_id)
        return reply

    async def log_in_for(self, peer: Peer, client: int, user_id: int | None, command: c.Command) -> Any:
        """Log in on a connection of another process: the reply, and what its session has to know."""
        del peer
        session = self._remote_session(client, user_id)
        session.last_seen = self._monotonic()
        reply = await self.dispatch_here(session, command)
        facts: LoginFacts = (session.user_id, session.token_name, session.session_number, session.sdk)
        return reply, facts

    async def dispatch_here(self, session: Session, command: c.Command) -> Reply | None:
        """Carry out a command in this process."""
        answer = self._here(session, command)
        reply: Reply | None = await answer if isinstance(answer, Waiting) else answer
        return reply

    async def _collected(self, session: Session, command: c.Command) -> Reply | None:
        assert self.collect is not None, "asked for in the first process alone"
        await self.collect()
        return await self.dispatch_here(session, command)

    async def _gathered(self, session: Session, command: c.Command) -> Reply | None:
        """Carried out by every process for its own topics."""
        replies = [await self.dispatch_here(session, command)]
        for number in range(FIRST + 1, self._links.process_count):
            facts = session.address, session.request_id
            replies.append(await self._links.at(number).call("here", facts, session.user_id, command))
        return SPREAD[type(command)](replies, self._links)

    async def here_for(self, _: Peer, facts: Passing, user_id: int | None, command: c.Command) -> Reply | None:
        """Carry out a command for the topics of this process."""
        return await self.dispatch_here(self._remote_sessions.passing(facts, user_id), command)

    # --- several topics at once ---

    def _wait_for_topics(self, session: Session, command: c.WaitForTopics) -> Answer:
        shares: dict[int, list[int]] = {}
        for number, (stream, topic, _, _) in enumerate(command.positions):
            shares.setdefault(self._find_owner(stream, topic), []).append(number)
        if set(shares) <= {self._number}:
            return self._here(session, command)
        if len(shares) == 1:
            return self._forward(next(iter(shares)), session, command)
        return attempt(self._wait_for_shares(session, command, shares))

    async def _wait_for_shares(
        self, session: Session, command: c.WaitForTopics, shares: dict[int, list[int]]
    ) -> ArrivalsInTopics:
        """Each owner waits for its topics. The first arrival ends the wait of all."""
        waits: dict[asyncio.Future[Any], tuple[Session, list[int]]] = {}
        waiting: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        session.waiting = waiting
        try:
            for owner, numbers in shares.items():
                stand_in = Session(0, Transport.HTTP, session.address, now=session.last_seen)
                stand_in.user_id = session.user_id
                positions = tuple(command.positions[number] for number in numbers)
                share = msgspec.structs.replace(command, positions=positions)
                begin = self._here if owner == self._number else partial(self._forward, owner)
                waits[asyncio.ensure_future(_result_of(begin(stand_in, share)))] = stand_in, numbers
            await asyncio.wait((waiting, *waits), return_when=asyncio.FIRST_COMPLETED)
            for stand_in, _ in waits.values():
                stand_in.hurry()
            if waiting.cancelled():
                raise asyncio.CancelledError
            found: list[int] = []
            for done, (_, numbers) in waits.items():
                found += [numbers[number] for number in (await done).numbers]
            return ArrivalsInTopics(tuple(sorted(found)))
        finally:
            session.waiting = None
            for done, (stand_in, _) in waits.items():
                if not done.done():
                    done.cancel()
                if stand_in.waiting is not None:
                    stand_in.waiting.cancel()

    # --- for connections of other processes ---

    def command_for(self, call: Call, client: int | Passing, user_id: int | None, command: c.Command) -> None:
        """Carry out a command of a connection of another process."""
        if call.is_congested:
            # Before anything is done: the reply would only wait with the others.
            call.fail(_too_busy())
            return
        try:
            session, answer = self.begin_for(client, user_id, command)
        except Exception as error:  # noqa: BLE001 - the caller gets it
            call.fail(error)
            return
        if type(answer) is Waiting and type(command) is c.AwaitMessages:
            # Beside other requests of the session, which may be about to read: its memory is not touched.
            call.on_interrupt = lambda _: answer.cancel()
            answer.future.add_done_callback(lambda _: call.settle(answer))
            return
        if type(answer) is Waiting:
            call.on_interrupt = partial(_interrupt, session)
            answer.future.add_done_callback(lambda _: self._settle(call, session, answer))
            return
        call.answer(answer)
        self._buffers.give_back(session)

    def begin_for(self, client: int | Passing, user_id: int | None, command: c.Command) -> tuple[Session, Answer]:
        """Begin a command of a connection of another process, with a remote session."""
        session = self._remote_session(client, user_id)
        session.last_seen = self._monotonic()
        return session, (self._here if type(command) in _HERE_FOR_OTHERS else self.begin)(session, command)

    def knows(self, client_id: int) -> bool:
        return self._sessions.get(client_id) is not None

    def _settle(self, call: Call, session: Session, answer: Waiting[Any]) -> None:
        call.settle(answer)
        self._buffers.give_back(session)

    def _remote_session(self, client: int | Passing, user_id: int | None) -> Session:
        if not isinstance(client, int):
            return self._remote_sessions.passing(client, user_id)
        session = self._remote_sessions.find(client, user_id)
        if session is None:
            raise CommandRejected(ErrorCode.UNAUTHENTICATED, "the session has ended")
        return session

    # --- connections that come and go ---

    def _opened(self, session: Session) -> None:
        if self._number != FIRST and (first := self._links.peers.get(FIRST)) is not None:
            # The first process lists all connections.
            self._name(first, session)

    def _gone(self, session: Session) -> None:
        self.on_gone(session.client_id)
        self.streaks.pop(session.client_id, None)
        self._joined.pop(session.client_id, None)
        for number in self._known.pop(session.client_id, ()):
            if (peer := self._links.peers.get(number)) is not None:
                peer.note("closed", session.client_id)

    def end(self, client_id: int, error: CourserError) -> None:
        """Another process has ended the session of a connection that is here."""
        session = self._sessions.get(client_id)
        if session is not None and session not in self._remote_sessions:
            self._sessions.end(session, error)

    def peer_lost(self, number: int) -> None:
        """A process is gone, with all remote_sessions and memberships that it had."""
        for known in self._known.values():
            known.discard(number)
        for client_id in [client_id for client_id, owners in self._joined.items() if number in owners]:
            session = self._sessions.get(client_id)
            if session is not None:
                # Its client has to join its groups again, as after any loss of its connection.
                self.abort(session)

    def is_member(self, session: Session) -> bool:
        """Whether a connection of this process is a member of a consumer group, here or in another process."""
        return session not in self._remote_sessions and (bool(session.groups) or session.client_id in self._joined)

    # --- connections that move ---

    def hand_over(self, session: Session) -> tuple[set[int], set[int]]:
        """A connection leaves this process: who knows its session, and where it is a member of groups."""
        self.streaks.pop(session.client_id, None)
        return self._known.pop(session.client_id, set()), self._joined.pop(session.client_id, set())

    def take_over(self, session: Session, known: set[int], joined: set[int]) -> None:
        """A connection has come from another process."""
        self._known[session.client_id] = known - {self._number}
        if joined:
            self._joined[session.client_id] = joined - {self._number}


def _too_busy() -> CommandRejected:
    return CommandRejected(ErrorCode.SERVER_BUSY, "a process of the server does not keep up; try again")


def _pass_cancellation(peer: Peer, call_id: int, future: "asyncio.Future[Any]") -> None:
    """Nobody needs the wait any more: it ends where it is carried out."""
    if future.cancelled():
        peer.interrupt(call_id, None)


def _interrupt(session: Session, flag: bool | None) -> None:
    if session.waiting is None:
        return
    if flag is None:
        session.waiting.cancel()
    elif flag:
        session.wake()
    else:
        session.hurry()


async def _result_of(answer: Any) -> Any:
    return await answer if isinstance(answer, Waiting) else answer
