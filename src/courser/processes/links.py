"""The other processes of a server, by number: those that are there, and waiting for one that is being restarted."""

import asyncio
from collections.abc import Iterator

from courser.errors import CommandRejected, ErrorCode
from courser.processes.ownership import owner_of
from courser.processes.peer import Peer

RESTART_PATIENCE = 20.0
"""Seconds that a request waits for a process that is being restarted: as long as the longest poll."""


class Links:
    """Connects one process to all others."""

    def __init__(self, number: int, process_count: int) -> None:
        self.number = number
        """Of this process."""
        self.process_count = process_count
        self.numbers = set(range(process_count)) - {number}
        """Of the others, ready or not; without those whose partitions this process has taken over."""
        self.peers: dict[int, Peer] = {}
        """Those that are ready for requests."""
        self.without_channel: set[int] = set()
        """Processes that are there, but this one has no descriptor left for a channel to them."""
        self._changed: asyncio.Future[None] | None = None
        """Done when a process comes back, for those who wait for one."""
        self._is_stopping = False

    def __iter__(self) -> Iterator[Peer]:
        return iter(tuple(self.peers.values()))

    def owner_of(self, stream_id: int, topic_id: int) -> int:
        """The number of the process that owns a topic."""
        return owner_of(stream_id, topic_id, self.process_count)

    def add(self, peer: Peer) -> None:
        """A process is ready for requests."""
        self.peers[peer.number] = peer
        self.without_channel.discard(peer.number)
        self._wake_all()

    def remove(self, peer: Peer) -> None:
        """A process is gone. Can be repeated."""
        if self.peers.get(peer.number) is peer:
            del self.peers[peer.number]

    def stop_waiting(self) -> None:
        """The server stops, and no process is started again: refuse those who wait for one."""
        self._is_stopping = True
        self._wake_all()

    def _wake_all(self) -> None:
        if self._changed is not None:
            _wake(self._changed)
            self._changed = None

    def at(self, number: int) -> Peer:
        """A process that is there. Raises ``CommandRejected`` (20010) while it is being restarted."""
        peer = self.peers.get(number)
        if peer is None:
            raise _unconnected() if number in self.without_channel else _restarting()
        return peer

    async def wait_for(self, number: int) -> Peer:
        """A process, once it is there. Raises ``CommandRejected`` (20010) if that takes too long."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + RESTART_PATIENCE
        # Not ``asyncio.timeout``: the beginning of a request is in no task.
        while number not in self.peers and not self._is_stopping and loop.time() < deadline:
            if self._changed is None or self._changed.done():
                self._changed = loop.create_future()
            changed = self._changed
            timer = loop.call_at(deadline, _wake, changed)
            await asyncio.wait((changed,))
            timer.cancel()
        return self.at(number)


def _wake(changed: "asyncio.Future[None]") -> None:
    if not changed.done():
        changed.set_result(None)


def _restarting() -> CommandRejected:
    reason = "the process of the server that owns this topic is being restarted; try again"
    return CommandRejected(ErrorCode.SERVER_BUSY, reason)


def _unconnected() -> CommandRejected:
    reason = (
        "this process of the server has as many files and connections open as it may have, and cannot reach the one "
        "that owns this topic; try again, or raise the limit of open files (LimitNOFILE, ulimit -n)"
    )
    return CommandRejected(ErrorCode.SERVER_BUSY, reason)
