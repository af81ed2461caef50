"""Carrying out commands for requests over HTTP: through the dispatcher, with bodies and replies within limits."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any

from courser.api import commands as c
from courser.api import replies as r
from courser.broker.access.access_tokens import Access, AccessTokens
from courser.broker.access.connectionless import ConnectionlessMembers
from courser.broker.access.sessions import Session, Sessions
from courser.broker.partition.read_buffers import ReadBuffers
from courser.broker.partition.waiting import Waiting
from courser.handlers.audit import Answer as DispatchAnswer
from courser.handlers.searches import Searches
from courser.handlers.subscriptions import Subscriptions
from courser.model.buffers import Buffer
from courser.model.clock import Clock
from courser.model.memory_ledger import MemoryLedger
from courser.model.messaging import Transport
from courser.model.metrics import Registry
from courser.transports.http_exchange import ClientGone, Exchange
from courser.wire.codec import QUICK_SIZE_MAX
from courser.wire.rest_messages import encode_polled


@dataclass(frozen=True, slots=True)
class HttpServices:
    """What requests over HTTP need of the server."""

    begin: Callable[[Session, c.Command], DispatchAnswer]
    """The dispatcher."""
    tokens: AccessTokens
    check_trusted: Callable[[str], Awaitable[Access | None]] | None
    """Checks a token of a trusted issuer; returns None for tokens of others. None: no issuer is trusted."""
    sessions: Sessions
    subscriptions: Subscriptions
    searches: Searches
    members: ConnectionlessMembers
    """Members of consumer groups over HTTP."""
    buffers: ReadBuffers
    """The memory of replies."""
    problems: Callable[[], Awaitable[list[str]]]
    """Why the server is not ready; empty if it is."""
    notices: Callable[[], list[str]]
    """What is wrong although the server is ready."""
    metrics: Registry
    read_metrics: Callable[[], Awaitable[str]]
    """All metrics as text."""
    memory: MemoryLedger
    """For large bodies; shared with all transports."""
    clock: Clock
    draw: Callable[[int], bytes]
    slow_work: Executor
    """For conversions that would hold other connections up."""

    async def check_token(self, token: str) -> Access:
        """What an access token stands for, ours or a trusted issuer's. Raises ``CommandRejected`` (40)."""
        access = None if self.check_trusted is None else await self.check_trusted(token)
        return self.tokens.check(token) if access is None else access


class HttpCommands:
    """Carries out the commands of requests over HTTP."""

    def __init__(self, services: HttpServices) -> None:
        self._services = services
        self._waiting: set[Session] = set()
        """Long polls."""
        self._parked: set[asyncio.Future[Any]] = set()
        """Polls that wait before they read."""

    def hurry(self) -> None:
        """The server stops: long polls end with what they have."""
        for session in self._waiting:
            session.hurry()
        for wait in self._parked:
            wait.cancel()

    def make_session(self, exchange: Exchange, access: Access | None) -> Session:
        session = Session(0, Transport.HTTP, exchange.address, now=self._services.clock.monotonic())
        exchange.session = session
        session.request_id = exchange.request_id
        session.trace = exchange.trace
        if access is not None:
            session.enter(access)
        return session

    def read_body(self, exchange: Exchange, size_max: int, room_size: int = 0) -> Awaitable[Buffer]:
        """The whole body behind ``room_size`` free bytes.

        Raises ``RestRefused`` as soon as it is too large or too slow, and ``ClientGone``.
        """
        return exchange.read_body(size_max, self._services.memory, self._services.clock, room_size)

    async def carry_out(self, exchange: Exchange, session: Session, command: c.Command) -> r.Reply | None:
        """The reply. Raises ``CourserError``, and ``ClientGone`` if nobody waits for it any more."""
        # Durations of requests do not include the time in which the client sends the body.
        session.last_seen = self._services.clock.monotonic()
        begun = self._services.begin(session, command)
        if not isinstance(begun, Waiting):
            return begun
        if not isinstance(command, c.WaitForMessages):
            return await _awaited(begun)
        self._waiting.add(session)
        gone = asyncio.ensure_future(exchange.wait_for_disconnect())
        gone.add_done_callback(lambda task: None if task.cancelled() else _cancel_wait(session))
        try:
            return await _awaited(begun)
        except asyncio.CancelledError:
            if gone.done() and not gone.cancelled():
                raise ClientGone from None
            raise
        finally:
            self._waiting.discard(session)
            gone.cancel()

    async def wait(self, exchange: Exchange, session: Session, command: c.AwaitMessages) -> None:
        """Wait until messages can be read. Raises ``CourserError``, and ``ClientGone`` if nobody waits any more."""
        session.last_seen = self._services.clock.monotonic()
        begun = self._services.begin(session, command)
        if not isinstance(begun, Waiting):
            return
        wait = begun.future
        gone = asyncio.ensure_future(exchange.wait_for_disconnect())
        self._parked.add(wait)
        try:
            await asyncio.wait((wait, gone), return_when=asyncio.FIRST_COMPLETED)
            if not wait.done():
                raise ClientGone
            if not wait.cancelled():
                begun.result()
        finally:
            self._parked.discard(wait)
            wait.cancel()
            gone.cancel()

    async def encode_polled(
        self, session: Session, polled: r.Polled, *, has_header_objects: bool = False
    ) -> Sequence[bytes]:
        """The messages of a poll as JSON, in parts; for SDK 0.6 with user headers as objects."""
        parts = encode_polled(polled, has_header_objects=has_header_objects)
        if polled.size > QUICK_SIZE_MAX:
            body = await asyncio.get_running_loop().run_in_executor(self._services.slow_work, list, parts)
        else:
            body = list(parts)
        self._services.buffers.unread(session, sum(map(len, body)), is_copied=True)
        return body


async def _awaited(waiting: Waiting[Any]) -> r.Reply | None:
    reply: r.Reply | None = await waiting
    return reply


def _cancel_wait(session: Session) -> None:
    if session.waiting is not None:
        session.waiting.cancel()
