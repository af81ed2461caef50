"""A login that survives reconnects: connects, logs in, rejoins groups, and sends heartbeats.

A request that finds the connection broken waits for the next one. If its reply was lost, it is repeated if that is
harmless. Otherwise it raises ``Uncertain``: it is not known whether the request was processed.
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from typing import TypeVar

from courser import __version__
from courser.api import commands as c
from courser.api.replies import LoggedIn, Reply
from courser.client.connection import Connection, open_connection, too_large
from courser.client.targets import Target
from courser.errors import (
    AuthenticationFailed,
    ClientClosed,
    ConnectionFailed,
    CourserError,
    ErrorCode,
    InvalidRequest,
    NotFound,
    RequestFailed,
    TimedOut,
    Uncertain,
)
from courser.model.identifiers import Identifier
from courser.wire.vsr_headers import FRAME_SIZE_MAX, HEADER_SIZE

_log = logging.getLogger(__name__)

Answer = TypeVar("Answer", bound=Reply)
Dial = Callable[[Target], Awaitable[Connection]]
GroupName = tuple[Identifier, Identifier, Identifier]
"""Stream, topic and group, as given by the user."""

_REPEATABLE = {row.kind for row in c.COMMANDS if not row.operation} | {
    c.StoreConsumerOffset,
    c.UpdateStream,
    c.UpdateTopic,
    c.UpdatePermissions,
}
"""Idempotent commands."""
_PRODUCER_COUNT_MAX = 2**20
"""Ids of producers that are made of the number of one login, as SDK 0.10 does."""
_LOGINS = frozenset({c.LoginUser, c.LoginWithToken, c.LogoutUser})
_LOGIN_LOST = frozenset({ErrorCode.UNAUTHENTICATED, ErrorCode.STALE_CLIENT})


class Link:
    """One login at one server, over a sequence of connections."""

    def __init__(self, target: Target, dial: Dial = open_connection) -> None:
        self.target = target
        self._dial = dial
        self._login = _login_of(target)
        self._connection: Connection | None = None
        self._connecting: asyncio.Task[Connection] | None = None
        self._heartbeat: asyncio.Task[None] | None = None
        self._memberships: dict[GroupName, None] = {}
        self._is_closed = False
        self._lost_at: float | None = None
        """When the connection broke, by the event loop's clock; None if there is one."""
        self.last_error: CourserError | None = None
        """Why the connection broke, or why the last attempt to connect failed; None while there is a connection."""
        self.user_id: int | None = None
        """The id of the user who is logged in."""
        self.connection_count = 0
        """Number of connections so far."""
        self.frame_size_max = FRAME_SIZE_MAX
        """Maximum bytes of a request, from the last login."""
        self._session = 0
        """The number of the last login at a Courser server; 0 if the server is another one."""
        self._producer_count = 0
        """Ids of producers that were made of that number."""
        self.gave_up = False
        """Whether the last attempts to connect were abandoned."""

    # --- life -----------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Connect and log in. Tries only once, so that the first error is reported at once.

        Raises:
            ConnectionFailed: no server listens at the address.
            AuthenticationFailed: the login failed.
        """
        self._adopt(await self._connect())
        self._heartbeat = asyncio.create_task(self._beat(), name="courser-heartbeat")

    async def close(self) -> None:
        """Close the connection. May be called more than once."""
        self._is_closed = True
        for task in (self._connecting, self._heartbeat):
            if task is not None:
                task.cancel()
                with suppress(asyncio.CancelledError, CourserError):
                    await task
        self._connecting = self._heartbeat = None
        if self._connection is not None:
            self._connection.close()

    @property
    def is_closed(self) -> bool:
        """Whether it was closed by its user."""
        return self._is_closed

    @property
    def current(self) -> Connection | None:
        """The current connection, if any."""
        connection = self._connection
        return connection if connection is not None and connection.is_open() else None

    @property
    def is_connected(self) -> bool:
        return self.current is not None

    def login_target(self) -> Target:
        """The target with the current login, for further connections of the same user."""
        match self._login:
            case c.LoginUser(name=name, password=password):
                return replace(self.target, username=name, password=password, token=None)
            case c.LoginWithToken(token=token):
                return replace(self.target, username=None, password=None, token=token)
            case _:
                return replace(self.target, username=None, password=None, token=None)

    # --- requests -------------------------------------------------------------------------------------

    def check_size(self, message_count: int, batch_size: int) -> None:
        """Refuse a batch that the server would not accept, before memory is spent on it.

        Raises:
            TooLarge: the batch is too large.
        """
        size = HEADER_SIZE + batch_size
        if size > self.frame_size_max:
            what = "the message" if message_count == 1 else f"the batch of {message_count} messages"
            raise too_large(what, size, self.frame_size_max)

    async def request(self, command: c.Command, *, patient: bool = False) -> Reply | None:
        """Send a command and return its reply. ``patient``: wait for a connection without a time limit.

        Raises:
            CourserError: the server rejected the command, or failed.
            ConnectionFailed: no connection in time.
            Uncertain: the reply was lost, and the command is not idempotent.
        """
        is_refused = False
        pause = 0.0
        while True:
            connection = await self.connection(patient=patient)
            await connection.drained()
            if not connection.is_open():
                # The command was not sent.
                continue
            try:
                reply = await connection.begin(command)
            except RequestFailed as error:
                if is_refused or type(command) in _LOGINS or not self.logs_in_again(error):
                    raise
                # The server ended this session and rejected the command: it was not processed and may be repeated.
                is_refused = True
                connection.fail(ConnectionFailed(connection.address, str(error)))
                continue
            except ConnectionFailed as error:
                if connection.is_open() or isinstance(error, TimedOut):
                    raise
                if type(command) not in _REPEATABLE:
                    raise Uncertain(error.address, f"{error.reason} before the reply to {_name(command)}") from error
                if not self.target.reconnect:
                    raise
                # Not at once a second time: perhaps it is this request that breaks the connection.
                await asyncio.sleep(pause)
                pause = min(max(pause * 2, self.target.reconnect_interval), self.target.reconnect_interval_max)
                continue
            self._note(command, reply)
            return reply

    async def ask(self, command: c.Command, kind: type[Answer], *, patient: bool = False) -> Answer:
        """Send a command and return its reply, which is of this kind. Raises what ``request`` raises."""
        reply = await self.request(command, patient=patient)
        assert isinstance(reply, kind), f"{type(command).__name__} was answered with {reply!r}"
        return reply

    def logs_in_again(self, error: CourserError) -> bool:
        """Whether a request that failed with this error may be repeated after a new login."""
        return error.code in _LOGIN_LOST and self._login is not None and self.target.reconnect

    def _note(self, command: c.Command, reply: Reply | None) -> None:
        """Remember what has to be repeated on the next connection."""
        if isinstance(command, c.JoinConsumerGroup):
            self._memberships[command.stream, command.topic, command.group] = None
        elif isinstance(command, c.LeaveConsumerGroup | c.DeleteConsumerGroup):
            self._memberships.pop((command.stream, command.topic, command.group), None)
        elif isinstance(command, c.LoginUser | c.LoginWithToken):
            assert isinstance(reply, LoggedIn)
            self._login = command
            self._note_login(reply)
        elif isinstance(command, c.LogoutUser):
            self._login = self.user_id = None
            self._memberships.clear()

    def _note_login(self, reply: LoggedIn) -> None:
        self.user_id = reply.user_id
        # Only Courser says this. Others may give a number again after a restart, and refuse messages that are numbered.
        self._session = 0 if reply.frame_size_max is None else reply.session
        self._producer_count = 0

    @property
    def is_courser(self) -> bool:
        """Whether the last login was at a Courser server."""
        return self._session != 0

    def draw_producer_id(self) -> int:
        """An id that no other producer has, of any client of the server.

        Raises:
            InvalidRequest: this login has none left. The next one has.
        """
        if self._producer_count == _PRODUCER_COUNT_MAX:
            reason = f"a login can have {_PRODUCER_COUNT_MAX} producers; use one longer, or connect again"
            raise InvalidRequest(ErrorCode.PRODUCER_IDS_EXHAUSTED, reason)
        number = self._producer_count
        self._producer_count += 1
        return self._session * _PRODUCER_COUNT_MAX + number

    def memberships_in(self, stream: Identifier, topic: Identifier) -> list[Identifier]:
        """The joined groups of a topic, as given by the user."""
        return [group for in_stream, in_topic, group in self._memberships if (in_stream, in_topic) == (stream, topic)]

    # --- connections ----------------------------------------------------------------------------------

    async def connection(self, *, patient: bool = False) -> Connection:
        """Wait for a working connection.

        Raises:
            ConnectionFailed: not in time, or all attempts failed.
            AuthenticationFailed: the login failed.
            ClientClosed: the client was closed.
        """
        if self._is_closed:
            raise ClientClosed("the client is closed")
        connection = self._connection
        if connection is not None and connection.is_open():
            return connection
        if connection is None:
            raise ClientClosed("the client is not connected yet: use it in `async with connect() as client`")
        if not self.target.reconnect:
            assert connection.error is not None
            raise connection.error.with_traceback(None)
        if self._connecting is None or self._connecting.done():
            self._connecting = asyncio.create_task(self._connect_again(), name="courser-reconnect")
        try:
            async with asyncio.timeout(None if patient else self.target.request_timeout):
                return await asyncio.shield(self._connecting)
        except TimeoutError:
            reason = f"no connection within {self.target.request_timeout:g} seconds"
            raise ConnectionFailed(self.target.address, reason) from None

    async def _connect_again(self) -> Connection:
        """Try until it works. A failed login is final; every other error may be temporary."""
        attempt, delay = 0, self.target.reconnect_interval
        while True:
            attempt += 1
            try:
                connection = await self._connect()
            except AuthenticationFailed:
                raise
            except CourserError as error:
                self.last_error = error
                attempts = self.target.reconnect_attempts
                if attempts is not None and attempt >= attempts:
                    self.gave_up = True
                    raise
                _log.info("could not connect to %s, attempt %d: %s", self.target.address, attempt, error)
            else:
                self.gave_up = False
                self._adopt(connection)
                return connection
            # Spread the attempts: the clients of a restarted server must not all reconnect at the same moment.
            await asyncio.sleep(delay * random.uniform(0.5, 1.0))
            delay = min(delay * 2, self.target.reconnect_interval_max)

    def _adopt(self, connection: Connection) -> None:
        """Use a new connection, and note when it breaks."""
        if self._lost_at is not None:
            time = asyncio.get_running_loop().time() - self._lost_at
            _log.warning("restored the connection to %s after %.1f seconds", self.target.address, time)
            self._lost_at = None
        self._connection, self.last_error = connection, None
        connection.closed.add_done_callback(lambda _: self._note_lost(connection))

    def _note_lost(self, connection: Connection) -> None:
        if self._is_closed or connection is not self._connection:
            return
        self._lost_at, self.last_error = asyncio.get_running_loop().time(), connection.error
        _log.warning("lost the connection to %s", connection.error)

    async def _connect(self) -> Connection:
        connection = await self._dial(self.target)
        try:
            # Every server answers a ping at once, whoever asks. A login may have to wait for others.
            pong = connection.greet(self.target.connect_timeout)
            if self._login is not None:
                reply = await connection.request(self._login)
                assert isinstance(reply, LoggedIn)
                self._note_login(reply)
            for stream, topic, group in self._memberships:
                # If the group was deleted, the next poll for it fails.
                with suppress(NotFound):
                    await connection.request(c.JoinConsumerGroup(stream, topic, group))
            await pong
        except BaseException:
            connection.close()
            raise
        self.frame_size_max = connection.frame_size_max
        self.connection_count += 1
        return connection

    async def _beat(self) -> None:
        """Send heartbeats while the connection is idle. They also reconnect members of groups."""
        interval = self.target.heartbeat_interval
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(interval / 2)
            connection = self._connection
            if connection is None:
                continue
            try:
                if not connection.is_open():
                    if self._memberships and self.target.reconnect:
                        await self.connection()
                elif connection.is_idle and loop.time() - connection.last_request >= interval / 2:
                    await connection.request(c.Ping())
            except CourserError as error:
                _log.debug("heartbeat to %s failed: %s", self.target.address, error)


def _login_of(target: Target) -> c.LoginUser | c.LoginWithToken | None:
    target.check_login()
    if target.token is not None:
        return c.LoginWithToken(target.token, __version__)
    if target.username is not None and target.password is not None:
        return c.LoginUser(target.username, target.password, __version__)
    return None


def _name(command: c.Command) -> str:
    return type(command).__name__
