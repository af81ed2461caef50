"""Where a consumer is in each of its partitions, what it has fetched there, and which partition it polls next.

No requests are made here. Fetched messages are handed out in the order in which they arrived.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping

from courser.client.consumed import ConsumedMessage
from courser.errors import ErrorCode, NotAssigned


class Positions:
    """The assigned partitions of one consumer."""

    def __init__(self) -> None:
        self._next: dict[int, int] = {}
        """By partition, the next offset to poll."""
        self._readable: deque[int] = deque()
        """Partitions that may have messages, in the order of polling."""
        self._paused: set[int] = set()
        self.fetched: deque[ConsumedMessage] = deque()
        """Messages that were polled but not handed out."""

    # --- facts ----------------------------------------------------------------------------------------

    def __contains__(self, partition_id: int) -> bool:
        return partition_id in self._next

    @property
    def partition_ids(self) -> tuple[int, ...]:
        return tuple(self._next)

    @property
    def paused(self) -> tuple[int, ...]:
        return tuple(sorted(self._paused))

    @property
    def waiting(self) -> tuple[tuple[int, int], ...]:
        """The partitions that are not paused, with the next offset to poll."""
        return tuple(row for row in self._next.items() if row[0] not in self._paused)

    @property
    def next_poll(self) -> tuple[int, int] | None:
        """The partition to poll next, and the offset; None if no partition is known to have messages."""
        return (self._readable[0], self._next[self._readable[0]]) if self._readable else None

    def position(self, partition_id: int) -> int:
        """The offset of the next message that is handed out."""
        for message in self.fetched:
            if message.partition_id == partition_id:
                return message.offset
        return self._next[partition_id]

    def check(self, partition_id: int) -> None:
        """Raise ``NotAssigned`` for a partition that is not assigned."""
        if partition_id not in self._next:
            reason = f"partition {partition_id} is not assigned to this consumer"
            raise NotAssigned(ErrorCode.PARTITION_NOT_OWNED, reason)

    # --- assignment -----------------------------------------------------------------------------------

    def add(self, offsets: Mapping[int, int]) -> None:
        """Begin to read partitions."""
        self._next |= offsets
        self.mark_readable(offsets)

    def remove(self, partition_ids: Collection[int]) -> None:
        """Forget partitions and what was fetched of them."""
        for partition_id in partition_ids:
            self._next.pop(partition_id, None)
            self._paused.discard(partition_id)
            self.mark_drained(partition_id)
        self._keep(lambda message: message.partition_id not in partition_ids)

    # --- moving ---------------------------------------------------------------------------------------

    def move(self, partition_id: int, offset: int) -> None:
        """Continue at another offset."""
        self._keep(lambda message: message.partition_id != partition_id)
        self._next[partition_id] = offset
        self.mark_readable([partition_id])

    def put_back(self, partition_id: int) -> None:
        """Drop what was fetched of a partition. It is polled again if it stays assigned."""
        self.move(partition_id, self.position(partition_id))

    def advance(self, partition_id: int, offset: int) -> None:
        """Skip the messages before an offset, whether they were fetched or not."""
        self._keep(lambda message: message.partition_id != partition_id or message.offset >= offset)
        self._next[partition_id] = max(self._next[partition_id], offset)

    def fill(self, partition_id: int, offset: int, messages: Iterable[ConsumedMessage]) -> bool:
        """Add the messages of a poll that began at ``offset``. Returns False if it was paused or moved meanwhile."""
        if self._next.get(partition_id) != offset or partition_id in self._paused:
            return False
        self.fetched.extend(messages)
        self._next[partition_id] = self.fetched[-1].offset + 1
        return True

    def _keep(self, is_kept: Callable[[ConsumedMessage], bool]) -> None:
        self.fetched = deque(filter(is_kept, self.fetched))

    # --- the order of polling -------------------------------------------------------------------------

    def mark_readable(self, partition_ids: Iterable[int]) -> None:
        """These partitions may have messages."""
        for partition_id in partition_ids:
            if partition_id in self._next and partition_id not in self._readable and partition_id not in self._paused:
                self._readable.append(partition_id)

    def mark_drained(self, partition_id: int) -> None:
        """This partition has no messages now."""
        if partition_id in self._readable:
            self._readable.remove(partition_id)

    def turn(self) -> None:
        """Poll the next partition next time."""
        self._readable.rotate(-1)

    def pause(self, partition_ids: Collection[int]) -> None:
        """Hand out nothing more of these partitions."""
        for partition_id in partition_ids:
            self.check(partition_id)
            self.put_back(partition_id)
            self.mark_drained(partition_id)
            self._paused.add(partition_id)

    def resume(self, partition_ids: Collection[int]) -> None:
        """Continue with these partitions. Those that are not paused are ignored."""
        self._paused.difference_update(partition_ids)
        self.mark_readable(partition_ids)
