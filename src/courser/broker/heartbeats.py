"""Group members that fell silent: their partitions are for others, and their connections end.

Any request is a sign of life. Connections without a membership may be silent for as long as the transport lets them.
"""

import asyncio
import logging

from courser.broker.sessions import Session, Sessions
from courser.errors import CommandRejected, ErrorCode
from courser.model.clock import Clock

_log = logging.getLogger(__name__)

_LOOKS_PER_INTERVAL = 5
"""A member is dropped after 1.2 intervals of silence, and noticed at most a fifth of an interval later."""


class Heartbeats:
    """Looks for members that are silent."""

    def __init__(self, sessions: Sessions, clock: Clock, *, interval: int) -> None:
        self._sessions = sessions
        self._clock = clock
        self._interval = interval

    def stale_sessions(self, now: int) -> list[Session]:
        """The group members from which nothing came for more than 1.2 intervals. ``now`` is monotonic time."""
        oldest = now - self._interval * 6 // 5
        members = [session for session in self._sessions.all() if session.groups]
        for session in members:
            if session.waiting is not None:
                # It is the client that waits for this server, not the other way round.
                session.last_seen = now
        return [session for session in members if session.last_seen < oldest]

    def drop_stale(self) -> int:
        """Take silent members out of their groups and end their sessions. Return how many."""
        stale = self.stale_sessions(self._clock.monotonic())
        for session in stale:
            _log.warning("silent group member dropped client=%d address=%s", session.client_id, session.address)
            reason = f"nothing came from this group member for {self._interval * 6 // 5 / 1_000_000:g} seconds"
            self._sessions.end(session, CommandRejected(ErrorCode.STALE_CLIENT, reason))
        return len(stale)

    async def run(self) -> None:
        """Look again and again, until cancelled."""
        while True:
            await asyncio.sleep(self._interval / _LOOKS_PER_INTERVAL / 1_000_000)
            self.drop_stale()
