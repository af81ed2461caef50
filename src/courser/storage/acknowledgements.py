"""How far a partition is written and synced, when a send may be acknowledged, and when a sync is due.

These are the rules of the durability levels, without I/O.

A send whose messages end at mark *m* may be acknowledged

* at ``written``: at once;
* at ``synced``: when the synced mark has reached *m*;
* at ``bounded``: when the distance between the synced mark and *m* is within the bounds, and no sync is overdue.

At ``bounded``, a power cut therefore loses at most N messages, S bytes, or what was sent in two intervals.
"""

from collections import deque
from typing import Generic, NamedTuple, TypeVar

from courser.model.durability import Durability, DurabilityPolicy

Waiter = TypeVar("Waiter")
_NOTHING_FREE = (0, 0, 0)


class Mark(NamedTuple):
    """A point in the log of a partition. A tuple, because one is created per append."""

    offset: int
    """The offset of the next message."""
    message_count: int
    """Messages appended since the partition was opened."""
    size: int
    """Bytes appended since the partition was opened."""


_new_mark = tuple.__new__
"""Creates a ``Mark`` faster than its constructor."""


class Watermarks:
    """``synced`` is never larger than ``written``.

    Up to ``written``, offsets are assigned and the kernel has the bytes. Everything up to ``synced`` survives a power
    cut.
    """

    __slots__ = ("synced", "written")

    def __init__(self, offset: int) -> None:
        self.written = self.synced = Mark(offset, 0, 0)

    def write(self, message_count: int, size: int) -> None:
        """Note that the next ``message_count`` messages are written."""
        offset, count, written_size = self.written
        self.written = _new_mark(Mark, (offset + message_count, count + message_count, written_size + size))

    def sync(self, mark: Mark) -> None:
        """Note that everything up to ``mark`` is synced."""
        assert self.synced.offset <= mark.offset <= self.written.offset, (self.synced, mark, self.written)
        self.synced = mark


class Acknowledgements(Generic[Waiter]):
    """The sends that wait for acknowledgement, in the order of their offsets. Times are monotonic microseconds."""

    def __init__(self, policy: DurabilityPolicy) -> None:
        self.policy = policy
        self._waiting: deque[tuple[Mark, Waiter]] = deque()
        self._unsynced_since: int | None = None
        """The time of the oldest write that no sync covers yet."""
        self._syncing_since: int | None = None
        """The time of the oldest write that the running sync covers."""
        self._syncing_to: Mark | None = None
        """The running sync is complete when the synced mark reaches this offset."""
        self._free = _NOTHING_FREE
        """The message count, size and time up to which ``admits`` would return True and no sync is due."""

    def __len__(self) -> int:
        return len(self._waiting)

    def is_free(self, mark: Mark, now: int) -> bool:
        """At ``bounded``: whether a send up to ``mark`` is so far from all bounds that nothing else has to be asked."""
        message_count, size, time = self._free
        return mark[1] < message_count and mark[2] < size and now < time

    def write_began(self, time: int) -> None:
        """Before ``admits``: note that the write began at ``time``, and that nothing else was written since then.

        A large write may take longer than the interval, and the kernel may have it long before its job is complete.
        """
        if self._unsynced_since is None:
            self._unsynced_since = time

    def admits(self, mark: Mark, synced: Mark, now: int) -> bool:
        """Note that a send was written up to ``mark``. Returns whether it may be acknowledged at once."""
        if self._unsynced_since is None:
            self._unsynced_since = now
        if self._waiting or not self._may_release(mark, synced, now):
            return False
        if self.policy.level is Durability.BOUNDED:
            self._free = self._next_look(synced, self._unsynced_since)
        return True

    def _next_look(self, synced: Mark, unsynced_since: int) -> tuple[int, int, int]:
        """When the next sync is due, or overdue: by the number of messages, by their size, and by time."""
        policy, oldest_since = self.policy, self._oldest_since(synced)
        time = unsynced_since + policy.interval
        if oldest_since is not None:
            time = min(time, oldest_since + 2 * policy.interval)
        return (
            synced.message_count + (policy.message_count_max + 1) // 2,
            synced.size + (policy.size_max + 1) // 2,
            time,
        )

    def use(self, policy: DurabilityPolicy) -> None:
        """Another policy holds from now on. Nothing is unsynced, and nobody waits."""
        self.policy = policy
        self._free = _NOTHING_FREE

    def wait(self, mark: Mark, waiter: Waiter) -> None:
        """Keep a send that ``admits`` did not allow until ``releasable`` returns it."""
        self._waiting.append((mark, waiter))
        self._free = _NOTHING_FREE

    def sync_began(self, written: Mark) -> None:
        """Note that a sync of everything up to ``written`` starts. Later writes need the next sync."""
        if self._syncing_since is None:
            # Otherwise the last sync did not complete, and the write that it should have covered is still the oldest.
            self._syncing_since = self._unsynced_since
        self._syncing_to = written
        self._unsynced_since = None
        self._free = _NOTHING_FREE

    def releasable(self, synced: Mark, now: int) -> list[Waiter]:
        """Remove and return the sends that may be acknowledged now, oldest first."""
        if self._syncing_to is not None and synced.offset >= self._syncing_to.offset:
            self._syncing_since = self._syncing_to = None
        released, waiting, synced_offset = [], self._waiting, synced[0]
        # Synced sends need no further check. Most sends are released here, many at a time.
        while waiting and (waiting[0][0][0] <= synced_offset or self._may_release(waiting[0][0], synced, now)):
            released.append(waiting.popleft()[1])
        return released

    def _may_release(self, mark: Mark, synced: Mark, now: int) -> bool:
        policy = self.policy
        if policy.level is Durability.WRITTEN or mark.offset <= synced.offset:
            return True
        if policy.level is Durability.SYNCED:
            return False
        return (
            mark.message_count - synced.message_count <= policy.message_count_max
            and mark.size - synced.size <= policy.size_max
            and not self._is_overdue(synced, now)
        )

    def _is_overdue(self, synced: Mark, now: int) -> bool:
        """Whether messages older than two intervals are still not synced, because the disk is slow."""
        since = self._oldest_since(synced)
        return since is not None and now - since > 2 * self.policy.interval

    def _oldest_since(self, synced: Mark) -> int | None:
        """The time of the oldest unsynced write, whether or not a sync of it has started."""
        is_syncing = self._syncing_to is not None and synced.offset < self._syncing_to.offset
        return self._syncing_since if is_syncing and self._syncing_since is not None else self._unsynced_since

    def is_sync_due(self, synced: Mark, written: Mark, now: int) -> bool:
        """Whether a sync should start now."""
        policy = self.policy
        if policy.level is Durability.WRITTEN or written.offset == synced.offset:
            return False
        if policy.level is Durability.SYNCED or self._waiting:
            return True
        since = self._oldest_since(synced)
        is_old = since is not None and now - since >= policy.interval
        # At half of the bound, so that the sync is complete before a send has to wait for it.
        is_many = 2 * (written.message_count - synced.message_count) >= policy.message_count_max
        return is_old or is_many or 2 * (written.size - synced.size) >= policy.size_max

    def sync_due_at(self, synced: Mark) -> int | None:
        """When a sync is due by time alone. A sync that failed for a while leaves the time of what it should cover."""
        since = self._oldest_since(synced)
        if self.policy.level is not Durability.BOUNDED or since is None:
            return None
        return since + self.policy.interval

    def drain(self) -> list[Waiter]:
        """Remove and return all waiting sends. The sync failed, so none of them may be acknowledged."""
        waiters = [waiter for _, waiter in self._waiting]
        self._waiting.clear()
        return waiters
