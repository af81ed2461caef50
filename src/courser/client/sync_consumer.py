"""The sync twin of the consumer. It takes fetched messages without a visit to the event loop."""

import asyncio
import inspect
from collections.abc import Iterator
from types import TracebackType
from typing import Self

from courser.client.blocking import LoopThread, blocking
from courser.client.consumed import PartitionsCallback
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


def in_thread(callback: PartitionsCallback | None) -> PartitionsCallback | None:
    """A callback that may call the sync client: it runs on its own thread while the event loop goes on."""
    if callback is None:
        return None

    async def call(partition_ids: tuple[int, ...]) -> None:
        result = await asyncio.to_thread(callback, partition_ids)
        if inspect.isawaitable(result):
            await result

    return call


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
        # The event loop touches the fetched messages only while this thread waits for it.
        message = self._original.pop() or self._thread.call(self._fetch())
        if message is None:
            raise StopIteration
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

    async def _fetch(self) -> ConsumedMessage | None:
        """The next message, after waiting for it; None if there will be no more."""
        return await anext(self._original, None)

    @property
    def partitions(self) -> tuple[int, ...]:
        """The assigned partitions."""
        return self._original.partitions

    @property
    def paused(self) -> tuple[int, ...]:
        """The paused partitions."""
        return self._original.paused

    @property
    def skipped_count(self) -> int:
        """Offsets that were skipped because their messages are deleted or damaged."""
        return self._original.skipped_count

    def position(self, partition_id: int) -> int:
        """The offset of the next message."""
        return self._original.position(partition_id)

    seek = blocking(Consumer.seek)
    pause = blocking(Consumer.pause)
    resume = blocking(Consumer.resume)
    commit = blocking(Consumer.commit)
    commit_done = blocking(Consumer.commit_done)

    def close(self, *, failed: bool = False) -> None:
        """Commit processed messages, leave the group, close the connection. See ``Consumer.close``."""
        if not self._thread.loop.is_closed():
            self._thread.call(self._original.close(failed=failed))
