"""All connections of a server, whatever carries them: who may come in, who has to go, and goodbye at the end.

Those on which nobody has logged in are strangers. They hold their places only as long as nobody else needs them, and
never longer than the login deadline, whatever they send. So a client that wants to log in always finds a place, unless
all of them are taken by those who have.
"""

import asyncio
import logging
from collections.abc import Iterator
from itertools import islice
from typing import Protocol

from courser.broker.sessions import Session
from courser.errors import CommandRejected, ErrorCode
from courser.model.clock import Clock
from courser.transports.request_memory import RequestMemory
from courser.transports.session_loop import SessionLoop
from courser.transports.settings import ConnectionSettings

_log = logging.getLogger(__name__)

_PATROL_INTERVAL = 1.0
"""Seconds between two looks at the deadlines of all connections."""
_LOOK_COUNT_MAX = 64
"""Strangers from one address that are looked at to find one that is not logging in just now."""
_STALL_TIME = 500_000
"""Microseconds after which a client that does not read its reply may be cut off when others need the memory."""
_PRESSURE_FACTOR = 16
"""When others wait for memory, clients slower than so many times the minimum rate (1 MiB/s as it is) may be cut off."""


class Connection(Protocol):
    """What is needed of a connection, whatever carries it."""

    @property
    def loop(self) -> SessionLoop | None:
        """None as long as the connection is not let in: during a handshake."""

    @property
    def host(self) -> str:
        """The address of the client, without the port."""

    @property
    def taken_size(self) -> int:
        """Bytes that the client made room for, of a reply that did not go out at once."""

    def is_reply_overdue(self, now: int) -> bool:
        """Whether the client takes too long to read its reply."""

    def shows_life(self) -> bool:
        """Whether a request is being answered, or the client has read on in its reply since this was last asked."""

    def abort(self) -> None:
        """Close now, whatever is left."""


class ReplyMemory(Protocol):
    """What is needed of the memory of replies."""

    def size_of(self, session: Session) -> int:
        """Bytes that the reply to this session takes."""

    def drop(self, session: Session) -> None:
        """Nobody reads the reply of this session any more."""


class _NoReplyMemory:
    """For those who serve nothing but what they have at hand."""

    def size_of(self, session: Session) -> int:
        del session
        return 0

    def drop(self, session: Session) -> None:
        del session


class Connections:
    """The connections of all transports."""

    def __init__(
        self,
        settings: ConnectionSettings,
        clock: Clock,
        *,
        count_max: int,
        request_memory: RequestMemory,
        reply_memory: ReplyMemory | None = None,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._count_max = count_max
        self._request_memory = request_memory
        self._reply_memory = reply_memory if reply_memory is not None else _NoReplyMemory()
        self._rate_under_pressure = settings.frame_rate_min * _PRESSURE_FACTOR
        self._open: set[Connection] = set()
        """Those that count."""
        self._leaving: set[Connection] = set()
        """Those that were sent away to make room, and are about to be gone."""
        self._strangers: dict[str, dict[Connection, int]] = {}
        """By address, oldest first: since when. Some may have logged in meanwhile."""
        self._unread: dict[Connection, None] = {}
        """Those with a reply that the kernel has not taken, longest first."""
        self._all_gone: asyncio.Event | None = None
        self.turned_away_count = 0
        self.cut_off_count = 0

    # --- coming and going ---

    @property
    def count(self) -> int:
        """Connections that are open now, those in a handshake too."""
        return len(self._open)

    def __iter__(self) -> Iterator[Connection]:
        return iter(tuple(self._open))

    def make_place(self, host: str) -> bool:
        """Whether one more may come in. If all places are taken, a stranger has to go."""
        if self._all_gone is None and (self.count < self._count_max or self._evict_stranger()):
            return True
        self.turned_away_count += 1
        _log.warning("a connection from %s was turned away: %d are open already", host, self.count)
        return False

    def add(self, connection: Connection) -> None:
        """A connection came in. May be repeated: a handshake counts already."""
        if connection not in self._open:
            self._open.add(connection)
            self._note_stranger(connection)

    def remove(self, connection: Connection) -> None:
        """It is gone. May be repeated."""
        self._open.discard(connection)
        self._leaving.discard(connection)
        self._unread.pop(connection, None)
        self._forget_stranger(connection)
        if self._all_gone is not None and not self._open and not self._leaving:
            self._all_gone.set()

    async def say_goodbye(self, grace: float) -> None:
        """End idle connections at once, busy ones after their reply, all after ``grace`` seconds. Nobody comes in."""
        self._all_gone = asyncio.Event()
        goodbye = CommandRejected(ErrorCode.DISCONNECTED, "the server stops")
        for connection in self:
            if connection.loop is None:
                connection.abort()
            else:
                connection.loop.end(goodbye)
        if self._open or self._leaving:
            try:
                await asyncio.wait_for(self._all_gone.wait(), grace)
            except TimeoutError:
                if grace:
                    _log.warning("%d connections did not end in %g seconds", self.count, grace)
        for connection in self:
            connection.abort()

    # --- strangers ---

    def _note_stranger(self, connection: Connection) -> None:
        self._strangers.setdefault(connection.host, {})[connection] = self._clock.monotonic()

    def _forget_stranger(self, connection: Connection) -> None:
        neighbours = self._strangers.get(connection.host)
        if neighbours is not None:
            neighbours.pop(connection, None)
            if not neighbours:
                del self._strangers[connection.host]

    def _evict_stranger(self) -> bool:
        """Send one away: from the address with the most of them the oldest, but for those who are logging in."""
        while self._strangers:
            neighbours = max(self._strangers.values(), key=len)
            oldest = tuple(islice(neighbours, _LOOK_COUNT_MAX))
            strangers = [connection for connection in oldest if _is_stranger(connection)]
            if strangers:
                idle = (stranger for stranger in strangers if stranger.loop is None or not stranger.loop.is_answering)
                self._evict(next(idle, strangers[0]))
                return True
            for connection in oldest:
                self._forget_stranger(connection)
        return False

    def _evict(self, connection: Connection) -> None:
        self._open.discard(connection)
        self._leaving.add(connection)
        self._forget_stranger(connection)
        self._cut_off(connection, "it has not logged in, and others need its place")

    # --- deadlines ---

    async def patrol(self) -> None:
        """Look at the deadlines of all connections, for ever."""
        while True:
            await asyncio.sleep(_PATROL_INTERVAL)
            self.enforce_deadlines()

    def enforce_deadlines(self) -> None:
        """Cut off those who take too long, and those who hold memory that others wait for."""
        now = self._clock.monotonic()
        for connection in self:
            loop = connection.loop
            if loop is None:
                # A handshake has a deadline of its own.
                continue
            reason = self._overdue(connection, loop, now)
            if reason is not None:
                self._cut_off(connection, reason)
            elif connection.shows_life():
                # Clients wait for one answer before they ask again: until then nothing else can come from them.
                loop.session.last_seen = now
        needed_size = self._request_memory.starving_size()
        if needed_size:
            self._free_request_memory(needed_size, now)

    def _overdue(self, connection: Connection, loop: SessionLoop, now: int) -> str | None:
        """Which deadline a connection has missed, or None."""
        settings, session = self._settings, loop.session
        if loop.unsent_since is not None:
            if connection.is_reply_overdue(now):
                return "it did not read its reply in time"
        elif loop.is_frame_overdue(now):
            return "it did not finish a frame in time"
        elif session.user_id is None:
            if now - self._stranger_since(connection) > settings.login_deadline and not loop.is_answering:
                return "nobody logged in"
        else:
            self._forget_stranger(connection)
            if settings.idle_deadline and loop.is_idle and now - session.last_seen > settings.idle_deadline:
                return "it was idle for too long"
        return None

    def _stranger_since(self, connection: Connection) -> int:
        """When it came in, whatever it has sent since; or about when its user logged out."""
        since = self._strangers.get(connection.host, {}).get(connection)
        if since is None:
            self._note_stranger(connection)
            return self._clock.monotonic()
        return since

    # --- memory ---

    def _free_request_memory(self, size: int, now: int) -> None:
        """Cut off those who hold memory and send slowly, the slowest first."""
        slow: list[tuple[int, int, Connection]] = []
        for connection in self:
            lent = None if connection.loop is None else connection.loop.lent_to_sender(now)
            if lent is not None and lent[0] < self._rate_under_pressure:
                slow.append((*lent, connection))
        for _, lent_size, connection in sorted(slow, key=lambda sender: sender[0]):
            if size <= 0:
                break
            size -= lent_size
            self._cut_off(connection, "it sends a large request slowly, and others wait for its memory")

    def note_unread(self, connection: Connection) -> None:
        """The kernel has not taken all of its reply."""
        self._unread[connection] = None

    def note_read(self, connection: Connection) -> None:
        """The kernel has all of its reply."""
        self._unread.pop(connection, None)

    def free_reply_memory(self, size: int, session: Session | None) -> None:
        """Cut off those who do not read their replies, until ``size`` bytes are free.

        With a ``session`` the memory is in use already, by a reply of its own, and whoever has not read for longest has
        to go, however short that is. Without one, somebody waits for it, and only those who have had their chance go.
        """
        now = self._clock.monotonic()
        for is_patient in (True, False) if session is not None else (True,):
            for connection in tuple(self._unread):
                loop = connection.loop
                if size <= 0:
                    return
                if loop is None or loop.unsent_since is None or loop.session is session:
                    continue
                time = now - loop.unsent_since
                if is_patient and time < _STALL_TIME:
                    # All others have had less time.
                    break
                if is_patient and connection.taken_size * 1_000_000 // time >= self._rate_under_pressure:
                    continue
                size -= self._reply_memory.size_of(loop.session)
                self._unread.pop(connection, None)
                self._cut_off(connection, "it does not read its replies, and they fill the memory for replies")
                self._reply_memory.drop(loop.session)

    def _cut_off(self, connection: Connection, reason: str) -> None:
        self.cut_off_count += 1
        if connection.loop is None:
            _log.info("connection from %s cut off: %s", connection.host, reason)
        else:
            session = connection.loop.session
            _log.info("client %d at %s cut off: %s", session.client_id, session.address, reason)
        connection.abort()


def _is_stranger(connection: Connection) -> bool:
    return connection.loop is None or connection.loop.session.user_id is None
