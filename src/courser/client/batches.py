"""Whole batches as received: for programs that move many messages, such as bulk reads, Arrow tables, Spark."""

from collections.abc import Iterator
from typing import Any

from courser.api.replies import Polled
from courser.client.batch_view import BatchView, batches_of
from courser.client.messages import Message
from courser.client.polling import messages_of


class PolledBatches:
    """The result of a bulk poll."""

    def __init__(self, polled: Polled) -> None:
        self._polled = polled
        self.partition_id = polled.partition_id
        self.current_offset = polled.current_offset
        """The offset of the newest message of the partition."""
        self.message_count = polled.message_count
        self.size = polled.size
        """Bytes of all batches."""
        self._views: list[BatchView] | None = None

    @property
    def pieces(self) -> tuple[memoryview, ...]:
        """The bytes: whole batch records, one after another. Valid as long as a reference to them exists."""
        return self._polled.pieces

    @property
    def views(self) -> list[BatchView]:
        """The batches."""
        # Not a cached_property: that of Python 3.11 takes a lock.
        if self._views is None:
            self._views = list(batches_of(self._polled))
        return self._views

    def __iter__(self) -> Iterator[BatchView]:
        return iter(self.views)

    def __len__(self) -> int:
        return len(self.views)

    @property
    def next_offset(self) -> int | None:
        """The offset for the next poll; None if the result is empty."""
        views = self.views
        return views[-1].next_offset if views else None

    def messages(self) -> list[Message]:
        """The messages, one object each."""
        return messages_of(self._polled)

    def to_arrow(self, *, headers: bool = False) -> Any:
        """A ``pyarrow.Table`` with a row per message. Needs ``pyarrow``: install ``courser[arrow]``."""
        from courser.client.arrow import table_of  # noqa: PLC0415 - pyarrow is large, and not everybody has it

        return table_of(self.views, headers=headers)
