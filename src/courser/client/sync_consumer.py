"""The sync twin of the consumer. It takes messages from the event loop in chunks, as they were polled."""

import time
from collections import deque
from collections.abc import Iterator
from types import TracebackType
from typing import Self

from courser.client.blocking import LoopThread
from courser.client.consumer import ConsumedMessage, Consumer
from courser.client.messages import Message


class SyncConsumedMessage(Message, frozen=True):
    """A message that a sync consumer read: a ``Message`` that can be committed.

    Example:
        for message in client.consumer("shop/orders", group="billing", commit="manual", stop_at_end=True):
            message.commit()
    """

    consumer: "SyncConsumer | None" = None
    """The consumer that read it."""

    def commit(self) -> bool:
        """Commit this message and all before it in its partition. See ``ConsumedMessage``."""
        assert self.consumer is not None, "only a consumer creates such messages"
        return self.consumer.commit(self)


class SyncConsumer:
    """Reads one topic: ``for message in client.consumer("stream/topic", group="app")``. See ``Consumer``.

    Example:
        with client.consumer("shop/orders", group="billing", stop_at_end=True) as consumer:
            for message in consumer:
                print(message.partition_id, message.offset, message.text())
    """

    def __init__(self, original: Consumer, thread: LoopThread) -> None:
        self._original = original
        self._thread = thread
        self._buffer: deque[SyncConsumedMessage] = deque()
        self._current: SyncConsumedMessage | None = None
        self._done: dict[int, int] = {}
        self._told_at = time.monotonic()

    def __enter__(self) -> Self:
        self._thread.call(self._original.open())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(failed=kind is not None)

    def __iter__(self) -> Iterator[SyncConsumedMessage]:
        return self

    def __next__(self) -> SyncConsumedMessage:
        self._finish_current()
        if not self._buffer:
            taken = self._thread.call(self._take())
            if not taken:
                raise StopIteration
            self._buffer.extend(taken)
        elif self._done and time.monotonic() - self._told_at >= self._original.settings.commit_interval:
            self._thread.call(self._tell())
        self._current = message = self._buffer.popleft()
        return message

    @property
    def partitions(self) -> tuple[int, ...]:
        """The assigned partitions."""
        return self._original.partitions

    @property
    def skipped_count(self) -> int:
        """Offsets that were skipped because their messages are deleted or damaged."""
        return self._original.skipped_count

    def position(self, partition_id: int) -> int:
        """The offset of the next message."""
        for message in self._buffer:
            if message.partition_id == partition_id:
                return message.offset
        return self._original.position(partition_id)

    def seek(self, partition_id: int, offset: int) -> None:
        """Continue at another offset of an assigned partition."""
        self._thread.call(self._original.seek(partition_id, offset))
        self._buffer = deque(message for message in self._buffer if message.partition_id != partition_id)

    def commit(self, message: Message) -> bool:
        """See ``SyncConsumedMessage.commit``."""
        if self._done.get(message.partition_id, -1) <= message.offset:
            self._done.pop(message.partition_id, None)
        if self._current is message:
            self._current = None
        return self._thread.call(self._original.commit(message))

    def commit_done(self) -> None:
        """Commit all processed messages."""
        self._thread.call(self._tell())

    def close(self, *, failed: bool = False) -> None:
        """Commit processed messages, leave the group, close the connection. See ``Consumer.close``."""
        if self._thread.loop.is_closed():
            return
        if not failed:
            self._finish_current()
        self._thread.call(self._close())

    def _finish_current(self) -> None:
        message, self._current = self._current, None
        if message is not None and self._original.commits_by_itself:
            self._done[message.partition_id] = message.offset

    # --- on the event loop ----------------------------------------------------------------------------

    async def _take(self) -> list[SyncConsumedMessage]:
        """All available messages, at least one; empty if there will be no more."""
        self._give_done()
        return [self._made(message) for message in await self._original.take()]

    def _made(self, message: ConsumedMessage) -> SyncConsumedMessage:
        return SyncConsumedMessage(
            message.payload,
            message.offset,
            message.partition_id,
            message.timestamp,
            message.origin_timestamp,
            message.id,
            message.raw_headers,
            self,
        )

    async def _tell(self) -> None:
        self._give_done()
        await self._original.commit_done()

    async def _close(self) -> None:
        self._give_done()
        await self._original.close()

    def _give_done(self) -> None:
        self._told_at = time.monotonic()
        done, self._done = self._done, {}
        self._original.note_done(done)
