"""Members of consumer groups without a connection of their own: each lasts as long as somebody uses it.

Over HTTP every request may come on another connection. A member is therefore a session with an id that its user sends
along, and with a time to live. Whoever does not use it for that long has left the group. Members do not survive a
restart, like those of other transports: their users create new ones, and stored offsets say where to continue.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from courser.broker.access.access_tokens import Access
from courser.broker.access.sessions import Session, Sessions
from courser.broker.settings import BrokerLimits
from courser.errors import CommandRejected, ErrorCode
from courser.model.clock import Clock
from courser.model.messaging import Transport

_SECOND = 1_000_000
TIME_TO_LIVE_MIN, TIME_TO_LIVE_MAX = _SECOND, 3600 * _SECOND
TIME_TO_LIVE_DEFAULT = 30 * _SECOND
_ID_SIZE = 16


@dataclass(slots=True, eq=False)
class ConnectionlessMember:
    """A member of a consumer group without a connection, over HTTP."""

    member_id: str
    session: Session
    """Is in one group, and serves one request at a time."""
    user_id: int
    time_to_live: int
    """Microseconds without a request after which it leaves."""
    deadline: int
    """When that is, by the monotonic clock, unless a request comes."""
    request_count: int = 0
    """Requests that are running or wait for their turn: as long as there are any, it does not expire."""
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)


class ConnectionlessMembers:
    """Keeps the members that have no connection."""

    def __init__(self, sessions: Sessions, clock: Clock, limits: BrokerLimits, draw: Callable[[int], bytes]) -> None:
        self._sessions = sessions
        self._clock = clock
        self._limits = limits
        self._draw = draw
        self._members: dict[str, ConnectionlessMember] = {}
        self._counts: Counter[int] = Counter()
        """By user."""

    def __len__(self) -> int:
        return len(self._members)

    def create(self, access: Access, address: str, time_to_live: int) -> ConnectionlessMember:
        """A new member, in no group yet. Raises ``CommandRejected`` (20010) if there are too many."""
        self.expire()
        user_id = access.user.user_id
        limits, count_of_user = self._limits, self._counts[user_id]
        if (
            len(self._members) >= limits.connectionless_count_max
            or count_of_user >= limits.connectionless_count_of_user_max
        ):
            reason = (
                f"this user already has {count_of_user} members of consumer groups over HTTP, all users have "
                f"{len(self._members)}; delete some, or try again after they have expired"
            )
            raise CommandRejected(ErrorCode.SERVER_BUSY, reason)
        session = self._sessions.open(Transport.HTTP, address)
        session.enter(access)
        deadline = self._clock.monotonic() + time_to_live
        member = ConnectionlessMember(self._draw(_ID_SIZE).hex(), session, user_id, time_to_live, deadline)
        self._members[member.member_id] = member
        self._counts[user_id] += 1
        return member

    def remove(self, member: ConnectionlessMember) -> None:
        """Make a member leave its group. May be repeated."""
        if self._members.pop(member.member_id, None) is not None:
            self._counts[member.user_id] -= 1
            if not self._counts[member.user_id]:
                del self._counts[member.user_id]
            self._sessions.close(member.session)

    @asynccontextmanager
    async def use(self, member_id: str, user_id: int) -> AsyncIterator[ConnectionlessMember]:
        """Use a member for one request: it lives on, and its other requests wait. A long poll ends with what it has.

        Raises:
            CommandRejected: 5006, if it does not exist or belongs to another user.
        """
        member = self._find(member_id, user_id)
        member.request_count += 1
        try:
            member.session.hurry()
            async with member.turn:
                if member.session.ended is not None:
                    raise _not_found(member_id)
                yield member
        finally:
            member.request_count -= 1
            member.deadline = self._clock.monotonic() + member.time_to_live

    def expire(self) -> int:
        """Remove the members that nobody used for their time to live. Return how many."""
        now = self._clock.monotonic()
        late = [member for member in self._members.values() if _is_over(member, now)]
        for member in late:
            self.remove(member)
        return len(late)

    def _find(self, member_id: str, user_id: int) -> ConnectionlessMember:
        member = self._members.get(member_id)
        if member is not None and _is_over(member, self._clock.monotonic()):
            self.remove(member)
            member = None
        if member is None or member.user_id != user_id:
            # Others learn nothing about it.
            raise _not_found(member_id)
        return member


def _is_over(member: ConnectionlessMember, now: int) -> bool:
    """Whether it was not used for too long, or the server ended its session, for example because its user is gone."""
    return member.session.ended is not None or (not member.request_count and member.deadline <= now)


def _not_found(member_id: str) -> CommandRejected:
    reason = (
        f"member {member_id[:32]!r} does not exist: it has left, its time to live is over, or the server was "
        "restarted; create another one"
    )
    return CommandRejected(ErrorCode.GROUP_MEMBER_NOT_FOUND, reason)
