"""The other processes of a server, by number: those that are there, and waiting for one that is being restarted."""

import asyncio
from collections.abc import Iterator

from courser.errors import CommandRejected, ErrorCode
from courser.processes.ownership import owner_of
from courser.processes.peer import Peer

RESTART_PATIENCE = 10.0
"""Seconds that a request waits for a process that is being restarted: longer than a usual start takes."""


class Links:
    """Of one process to all others."""

    def __init__(self, number: int, process_count: int) -> None:
        self.number = number
        """Of this process."""
        self.process_count = process_count
        self.peers: dict[int, Peer] = {}
        """Those that are ready for requests."""
        self._changed = asyncio.Event()

    def __iter__(self) -> Iterator[Peer]:
        return iter(tuple(self.peers.values()))

    def owner_of(self, stream_id: int, topic_id: int) -> int:
        """The number of the process that owns a topic."""
        return owner_of(stream_id, topic_id, self.process_count)

    def add(self, peer: Peer) -> None:
        """A process is ready for requests."""
        self.peers[peer.number] = peer
        self._changed.set()

    def remove(self, peer: Peer) -> None:
        """A process is gone. Can be repeated."""
        if self.peers.get(peer.number) is peer:
            del self.peers[peer.number]

    def at(self, number: int) -> Peer:
        """A process that is there. Raises ``CommandRejected`` (20010) while it is being restarted."""
        peer = self.peers.get(number)
        if peer is None:
            raise _restarting()
        return peer

    async def wait_for(self, number: int) -> Peer:
        """A process, once it is there. Raises ``CommandRejected`` (20010) if that takes too long."""
        try:
            async with asyncio.timeout(RESTART_PATIENCE):
                while number not in self.peers:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise _restarting() from None
        return self.peers[number]


def _restarting() -> CommandRejected:
    reason = "the process of the server that owns this topic is being restarted; try again"
    return CommandRejected(ErrorCode.SERVER_BUSY, reason)
