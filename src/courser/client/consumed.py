"""The settings of a consumer, and the messages that it returns."""

import inspect
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from courser.client.messages import Message

Committer: TypeAlias = Callable[[Message], Awaitable[bool]]
PartitionsCallback: TypeAlias = Callable[[tuple[int, ...]], Awaitable[None] | None]
"""Told about partitions that were assigned or revoked; async or plain."""


async def call_back(callback: PartitionsCallback | None, partition_ids: Iterable[int]) -> None:
    """Tell a consumer's user about partitions, in order, and wait until the callback is done."""
    if callback is not None:
        result = callback(tuple(sorted(partition_ids)))
        if inspect.isawaitable(result):
            await result


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSettings:
    """The settings of a consumer. ``Client.consumer`` takes them as options.

    Example:
        consumer = client.consumer("shop/orders", commit="manual", wait=5)
        print(consumer.settings.commit, consumer.settings.on_gap)
    """

    batch_count: int = 1000
    """Maximum messages of one poll."""
    batch_size: int = 1024 * 1024
    """Maximum bytes of one poll; a single message may be larger. At most two polls are held in memory."""
    wait: float = 20.0
    """Seconds that one request waits for messages, at most 20. It returns earlier if messages arrive."""
    commit: Literal["auto", "manual"] = "auto"
    """``auto``: messages are committed in groups after the body of the loop has processed them."""
    commit_interval: float = 1.0
    """Seconds between automatic commits. They also happen when nothing is left to read, and at the end."""
    sync_interval: float = 1.0
    """Seconds after which a busy member asks for its assigned partitions."""
    on_gap: Literal["raise", "skip"] = "raise"
    """What to do about deleted or damaged messages."""
    stop_at_end: bool = False
    """Whether the iteration ends when nothing is left to read, instead of waiting."""
    create_group: bool = True
    """Whether to create the group if it does not exist."""

    def __post_init__(self) -> None:
        if min(self.batch_count, self.batch_size) < 1 or not 0 <= self.wait <= 20:
            raise ValueError("a consumer's batch_count and batch_size must be at least 1, its wait 0 to 20 seconds")
        if self.commit not in ("auto", "manual") or self.on_gap not in ("raise", "skip"):
            raise ValueError('a consumer\'s commit must be "auto" or "manual", its on_gap "raise" or "skip"')


class ConsumedMessage(Message, frozen=True):
    """A message that a consumer read: a ``Message`` that can be committed.

    Example:
        async for message in client.consumer("shop/orders", group="billing", commit="manual", stop_at_end=True):
            await message.commit()
    """

    committer: Committer | None = None
    """The consumer's part of ``commit``."""

    async def commit(self) -> bool:
        """Commit this message and all before it in its partition.

        Returns False if the partition now belongs to another member, which may read the message again.

        Raises:
            NotFound: the topic or the group no longer exists.

        Example:
            async for message in client.consumer("shop/orders", group="billing", commit="manual", stop_at_end=True):
                if not await message.commit():
                    print("another member may read this again:", message.offset)
        """
        assert self.committer is not None, "only a consumer creates such messages"
        return await self.committer(self)
