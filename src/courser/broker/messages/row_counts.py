"""Counts the partitions that users wait for, against the limits of the server."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from courser.broker.settings import BrokerLimits
from courser.errors import CommandRejected, ErrorCode


class RowCounts:
    """The partitions of all users."""

    def __init__(self, limits: BrokerLimits) -> None:
        self._limits = limits
        self.by_user: Counter[int | None] = Counter()

    def reserve(self, user_id: int | None, count: int) -> None:
        """Count so many partitions against the limits until they are released. Raises 20010."""
        limits, count_of_all, count_of_user = self._limits, self.by_user.total(), self.by_user[user_id]
        if count_of_all + count > limits.row_count_max or count_of_user + count > limits.row_count_of_user_max:
            reason = (
                f"this user already waits for {count_of_user} partitions, all users for {count_of_all}; "
                "wait for fewer partitions, or try again later"
            )
            raise CommandRejected(ErrorCode.SERVER_BUSY, reason)
        self.by_user[user_id] += count

    def release(self, user_id: int | None, count: int) -> None:
        """So many partitions are not waited for any more."""
        self.by_user[user_id] -= count
        if not self.by_user[user_id]:
            del self.by_user[user_id]

    @contextmanager
    def counted(self, user_id: int | None, count: int) -> Iterator[None]:
        """Reserve so many partitions for as long as the context lasts."""
        self.reserve(user_id, count)
        try:
            yield
        finally:
            self.release(user_id, count)
