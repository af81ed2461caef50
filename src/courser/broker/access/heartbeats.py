"""Remove silent group members: their partitions go to other members, and their sessions end.

Any request counts as a heartbeat. Connections without a membership may be silent for as long as the transport allows.
"""

import asyncio
import logging
from collections.abc import Callable

from courser.broker.access.sessions import Session, Sessions
from courser.errors import CommandRejected, ErrorCode
from courser.model.clock import Clock
from courser.model.messaging import Transport

_log = logging.getLogger(__name__)

_LOOKS_PER_INTERVAL = 5
"""A member is removed after 1.2 intervals of silence. The check runs every fifth of an interval."""


def has_groups(session: Session) -> bool:
    """Whether a session is a member of a group in this process."""
    return bool(session.groups)


class Heartbeats:
    """Finds and removes silent members."""

    def __init__(
        self,
        sessions: Sessions,
        clock: Clock,
        *,
        interval: int,
        is_member: Callable[[Session], bool] = has_groups,
    ) -> None:
        """``is_member`` says whether a connection of this process is a member of a group."""
        self._sessions = sessions
        self._clock = clock
        self._interval = interval
        self._is_member = is_member

    def stale_sessions(self, now: int) -> list[Session]:
        """The group members that sent nothing for more than 1.2 intervals. ``now`` is monotonic time."""
        oldest = now - self._interval * 6 // 5
        # Those over HTTP have a time to live of their own.
        members = [
            session
            for session in self._sessions.all()
            if session.transport is not Transport.HTTP and self._is_member(session)
        ]
        for session in members:
            if session.waiting is not None:
                # A request is running: the client waits for the server.
                session.last_seen = now
        return [session for session in members if session.last_seen < oldest]

    def drop_stale(self) -> int:
        """Remove silent members from their groups and end their sessions. Return how many."""
        stale = self.stale_sessions(self._clock.monotonic())
        for session in stale:
            _log.warning("removed a silent group member client=%d address=%s", session.client_id, session.address)
            reason = f"this group member sent nothing for {self._interval * 6 // 5 / 1_000_000:g} seconds"
            self._sessions.end(session, CommandRejected(ErrorCode.STALE_CLIENT, reason))
        return len(stale)

    async def run(self) -> None:
        """Check periodically, until cancelled."""
        while True:
            await asyncio.sleep(self._interval / _LOOKS_PER_INTERVAL / 1_000_000)
            self.drop_stale()
