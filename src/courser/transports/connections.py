"""The connections of all transports: admission, deadlines, memory held by slow clients, and closing them at a stop.

A connection without a login is a stranger. When all slots are taken, strangers make room for new connections, and they
never stay longer than the login deadline, whatever they send. A client that wants to log in therefore always gets a
slot, unless all slots belong to clients that are logged in.
"""

import asyncio
import logging
from collections.abc import Iterator
from itertools import islice
from typing import Protocol

from courser.broker.access.sessions import Session
from courser.broker.partition.read_buffers import ReadBuffers
from courser.errors import CommandRejected, CourserError, ErrorCode
from courser.model.clock import Clock
from courser.model.memory_ledger import MemoryLedger
from courser.transports.settings import ConnectionSettings

_log = logging.getLogger(__name__)

_PATROL_INTERVAL = 1.0
"""Seconds between two checks of the deadlines of all connections."""
_LOOK_COUNT_MAX = 64
"""How many strangers of one address are searched for one that is not logging in right now."""
_STALL_TIME = 500_000
"""Microseconds after which a client that does not read its reply may be disconnected if others need the memory."""
_PRESSURE_FACTOR = 16
"""If others wait for memory, clients slower than this multiple of the minimum rate (by default 1 MiB/s) may be
disconnected."""


class ConnectionSlots:
    """The slots of the only process of a server. Others may share them (``processes/shared_slots``)."""

    def __init__(self, count_max: int) -> None:
        self._count_max = count_max

    def take(self, count: int) -> bool:
        """Whether this process, which has so many connections, may have one more."""
        return count < self._count_max

    def note(self, count: int, stranger_count: int) -> None:
        """This process has so many connections now, and so many of them without a login."""
        del count, stranger_count

    def free_in_peers(self, stranger_count: int) -> bool:
        """Have another process close a stranger, if one has more strangers than this process, which has so many.

        Returns whether it was asked to.
        """
        del stranger_count
        return False


class Conversation(Protocol):
    """What happens on a connection, as whoever looks after connections sees it: requests, or a subscription."""

    session: Session
    unsent_since: int | None
    """Since when the client has not read what was sent to it."""
    frame_since: int | None
    """When the first bytes of the request that is being received came."""

    @property
    def is_idle(self) -> bool:
        """Whether nothing is being received or sent, and nobody waits for anything."""

    @property
    def is_answering(self) -> bool:
        """Whether a request is being carried out."""

    def is_frame_overdue(self, now: int) -> bool:
        """Whether the client sends a request too slowly."""

    def reserved_by_sender(self, now: int) -> tuple[int, int] | None:
        """The rate in bytes per second at which a large request arrives, and its reserved memory."""

    def sent(self) -> None:
        """The kernel has all that was sent."""

    def end(self, error: CourserError) -> None:
        """Close the connection after the reply in progress."""

    def lost(self) -> None:
        """Handle the loss of the connection."""


class Connection(Protocol):
    """A connection of any transport."""

    @property
    def loop(self) -> Conversation | None:
        """None during a TLS handshake, and always for HTTP, which has a session for each request."""

    @property
    def host(self) -> str:
        """The address of the client, without the port."""

    @property
    def is_stranger(self) -> bool:
        """Whether nobody is logged in."""

    @property
    def is_answering(self) -> bool:
        """Whether a request is being carried out."""

    @property
    def taken_size(self) -> int:
        """Bytes that the client has read of a reply that the kernel did not accept at once."""

    def is_reply_overdue(self, now: int) -> bool:
        """Whether the client takes too long to read its reply."""

    def shows_life(self) -> bool:
        """Whether a request is in progress, or the client has read part of its reply since the last call."""

    def reserved_by_sender(self, now: int) -> tuple[int, int] | None:
        """The rate in bytes per second at which a large request arrives, and its reserved memory.

        None if there is no such request, or if it is too early to judge.
        """

    def end(self, goodbye: CourserError) -> None:
        """Close now if no request is in progress, otherwise after the reply."""

    def abort(self) -> None:
        """Close now, without sending the rest."""


class Connections:
    """The connections of all transports."""

    def __init__(
        self,
        settings: ConnectionSettings,
        clock: Clock,
        *,
        count_max: int,
        request_memory: MemoryLedger,
        reply_memory: ReadBuffers | None = None,
        slots: ConnectionSlots | None = None,
    ) -> None:
        """``count_max`` is the limit of this process. ``slots`` are those of the whole server, if it has others."""
        self._settings = settings
        self._clock = clock
        self._count_max = count_max
        self._request_memory = request_memory
        self._reply_memory = reply_memory
        self._rate_under_pressure = settings.frame_rate_min * _PRESSURE_FACTOR
        self._slots = slots if slots is not None else ConnectionSlots(count_max)
        self._open: dict[Connection, None] = {}
        """The connections that occupy a slot, oldest first."""
        self._leaving: set[Connection] = set()
        """Connections that were closed to make room and will be lost soon."""
        self._strangers: dict[str, dict[Connection, int]] = {}
        """When each stranger connected, by address, oldest first. Some may have logged in meanwhile."""
        self._stranger_count = 0
        """Of all addresses."""
        self._unread: dict[Connection, None] = {}
        """Connections with a reply that the kernel has not accepted, oldest first."""
        self._all_gone: asyncio.Event | None = None
        self.turned_away_count = 0
        self.cut_off_count = 0

    # --- coming and going ---

    @property
    def count(self) -> int:
        """The number of open connections, including those in a TLS handshake."""
        return len(self._open)

    def __iter__(self) -> Iterator[Connection]:
        return iter(tuple(self._open))

    def admit(self, host: str) -> bool:
        """Whether another connection is admitted. If all slots are taken, a stranger is closed."""
        if self._all_gone is None and (self._has_room() or self._make_room()):
            return True
        self.turned_away_count += 1
        _log.warning("refused a connection from %s: %d connections are open", host, self.count)
        return False

    def _has_room(self) -> bool:
        return self.count < self._count_max and self._slots.take(self.count)

    def _make_room(self) -> bool:
        """Close a stranger, in the process that has the most."""
        can_exceed = self.count < self._count_max
        if can_exceed and self._slots.free_in_peers(self._stranger_count):
            return True
        # Without one here, another process may have one after all.
        return self.evict_stranger() or (can_exceed and self._slots.free_in_peers(0))

    def add(self, connection: Connection) -> None:
        """Add a connection. Can be repeated: a TLS connection is added before its handshake."""
        if connection not in self._open:
            self._open[connection] = None
            self._note_stranger(connection)
            self._note_slots()

    def remove(self, connection: Connection) -> None:
        """Remove a lost connection. Can be repeated."""
        self._open.pop(connection, None)
        self._leaving.discard(connection)
        self._unread.pop(connection, None)
        self._forget_stranger(connection)
        self._note_slots()
        if self._all_gone is not None and not self._open and not self._leaving:
            self._all_gone.set()

    async def say_goodbye(self, grace: float) -> None:
        """Close idle connections now, busy ones after their reply, and the rest after ``grace`` seconds.

        No connections are admitted any more.
        """
        self._all_gone = asyncio.Event()
        goodbye = CommandRejected(ErrorCode.DISCONNECTED, "the server is stopping")
        for connection in self:
            connection.end(goodbye)
        if self._open or self._leaving:
            try:
                await asyncio.wait_for(self._all_gone.wait(), grace)
            except TimeoutError:
                if grace:
                    _log.warning("closing %d connections that are still busy after %g seconds", self.count, grace)
        for connection in self:
            connection.abort()

    # --- strangers ---

    def _note_stranger(self, connection: Connection) -> None:
        neighbours = self._strangers.setdefault(connection.host, {})
        self._stranger_count += connection not in neighbours
        neighbours[connection] = self._clock.monotonic()

    def _forget_stranger(self, connection: Connection) -> None:
        neighbours = self._strangers.get(connection.host)
        if neighbours is not None:
            self._stranger_count -= neighbours.pop(connection, None) is not None
            if not neighbours:
                del self._strangers[connection.host]

    def _note_slots(self) -> None:
        self._slots.note(len(self._open), self._stranger_count)

    def evict_stranger(self) -> bool:
        """Close the oldest stranger of the address that has the most, preferably one that is not logging in."""
        while self._strangers:
            neighbours = max(self._strangers.values(), key=len)
            oldest = tuple(islice(neighbours, _LOOK_COUNT_MAX))
            strangers = [connection for connection in oldest if connection.is_stranger]
            if strangers:
                idle = (stranger for stranger in strangers if not stranger.is_answering)
                self._evict(next(idle, strangers[0]))
                return True
            for connection in oldest:
                self._forget_stranger(connection)
        self._note_slots()
        return False

    def evict_newest(self) -> None:
        """Close the newest connection: the slot that it was accepted for is not free after all."""
        if self._open:
            self._evict(next(reversed(self._open)), "it is one more than are allowed")

    def _evict(self, connection: Connection, reason: str = "it has not logged in, and its slot is needed") -> None:
        self._open.pop(connection, None)
        self._leaving.add(connection)
        self._forget_stranger(connection)
        self._note_slots()
        self._cut_off(connection, reason)

    # --- deadlines ---

    async def patrol(self) -> None:
        """Check the deadlines of all connections once a second. Never returns."""
        while True:
            await asyncio.sleep(_PATROL_INTERVAL)
            self.enforce_deadlines()

    def enforce_deadlines(self) -> None:
        """Disconnect clients that miss a deadline, and slow clients that hold memory that others wait for."""
        now = self._clock.monotonic()
        for connection in self:
            loop = connection.loop
            if loop is None:
                # A TLS handshake and HTTP have their own deadlines.
                if connection.is_stranger:
                    # Its access token may have become invalid.
                    self._stranger_since(connection)
                continue
            reason = self._overdue(connection, loop, now)
            if reason is not None:
                self._cut_off(connection, reason)
            elif connection.shows_life():
                # A client that waits for a reply sends nothing, but is not idle.
                loop.session.last_seen = now
        needed_size = self._request_memory.starving_size()
        if needed_size:
            self._free_request_memory(needed_size, now)

    def _overdue(self, connection: Connection, loop: Conversation, now: int) -> str | None:
        """Why a connection must be closed; None if it has met all deadlines."""
        settings, session = self._settings, loop.session
        if loop.unsent_since is not None:
            if connection.is_reply_overdue(now):
                return "it did not read its reply in time"
        elif loop.is_frame_overdue(now):
            return "it did not finish sending a request in time"
        elif session.user_id is None:
            if now - self._stranger_since(connection) > settings.login_deadline and not loop.is_answering:
                return "it missed the login deadline"
        else:
            self._forget_stranger(connection)
            if settings.idle_deadline and loop.is_idle and now - session.last_seen > settings.idle_deadline:
                return "it was idle for too long"
        return None

    def _stranger_since(self, connection: Connection) -> int:
        """When the stranger connected, or roughly when its user logged out."""
        since = self._strangers.get(connection.host, {}).get(connection)
        if since is None:
            self._note_stranger(connection)
            return self._clock.monotonic()
        return since

    # --- memory ---

    def _free_request_memory(self, size: int, now: int) -> None:
        """Disconnect clients that hold memory and send slowly, the slowest first."""
        slow: list[tuple[int, int, Connection]] = []
        for connection in self:
            lent = connection.reserved_by_sender(now)
            if lent is not None and lent[0] < self._rate_under_pressure:
                slow.append((*lent, connection))
        for _, lent_size, connection in sorted(slow, key=lambda sender: sender[0]):
            if size <= 0:
                break
            size -= lent_size
            self._cut_off(connection, "it sends a large request slowly, and other clients wait for its memory")

    def note_unread(self, connection: Connection) -> None:
        """Note that the kernel has not accepted all of its reply."""
        self._unread[connection] = None

    def note_read(self, connection: Connection) -> None:
        """Note that the kernel has accepted all of its reply."""
        self._unread.pop(connection, None)

    def free_reply_memory(self, size: int, session: Session | None) -> None:
        """Disconnect clients that do not read their replies until ``size`` bytes are free.

        With a ``session``, its reply already uses the memory. The clients that have not read for longest must go then,
        however short that time is. Without one, a request waits for the memory, and only stalled or slow clients go.
        """
        now, memory = self._clock.monotonic(), self._reply_memory
        assert memory is not None, "it is what asks"
        for is_patient in (True, False) if session is not None else (True,):
            for connection in tuple(self._unread):
                loop = connection.loop
                if size <= 0:
                    return
                if loop is None or loop.unsent_since is None or loop.session is session:
                    continue
                time = now - loop.unsent_since
                if is_patient and time < _STALL_TIME:
                    # The others have had even less time.
                    break
                if is_patient and connection.taken_size * 1_000_000 // time >= self._rate_under_pressure:
                    continue
                size -= memory.size_of(loop.session)
                self._unread.pop(connection, None)
                self._cut_off(connection, "it does not read its replies, and their memory is needed")
                memory.drop(loop.session)

    def _cut_off(self, connection: Connection, reason: str) -> None:
        self.cut_off_count += 1
        if connection.loop is None:
            _log.info("closing a connection from %s: %s", connection.host, reason)
        else:
            session = connection.loop.session
            _log.info("disconnecting client %d at %s: %s", session.client_id, session.address, reason)
        connection.abort()
