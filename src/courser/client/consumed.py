"""How a consumer reads, and the messages that it hands out."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from courser.client.messages import Message

Committer: TypeAlias = Callable[[Message], Awaitable[bool]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSettings:
    """How a consumer reads."""

    batch_count: int = 1000
    """Messages of one poll."""
    batch_size: int = 1024 * 1024
    """Bytes of one poll; a single message may have more. At most two polls are held in memory."""
    wait: float = 20.0
    """Seconds that one request waits for messages, at most 20. Arrivals end it."""
    commit: Literal["auto", "manual"] = "auto"
    """``auto``: a message is committed after the body of the loop is done with it, together with others."""
    commit_interval: float = 1.0
    """Seconds between automatic commits; also when nothing is left to read, and at the end."""
    sync_interval: float = 1.0
    """Seconds after which a busy member asks which partitions are its own."""
    on_gap: Literal["raise", "skip"] = "raise"
    """What to do about messages that are gone or damaged."""
    stop_at_end: bool = False
    """Whether the iteration ends when nothing is left to read, instead of waiting for more."""
    create_group: bool = True
    """Whether a group that is not there is made."""

    def __post_init__(self) -> None:
        if min(self.batch_count, self.batch_size) < 1 or not 0 <= self.wait <= 20:
            raise ValueError("a consumer's batch_count and batch_size are at least 1, its wait 0 to 20 seconds")
        if self.commit not in ("auto", "manual") or self.on_gap not in ("raise", "skip"):
            raise ValueError('a consumer\'s commit is "auto" or "manual", its on_gap "raise" or "skip"')


class ConsumedMessage(Message, frozen=True):
    """A message that a consumer read."""

    committer: Committer | None = None

    async def commit(self) -> bool:
        """Store that this message, and all before it in its partition, are done with.

        Returns False if the partition has become another member's: that one may read the message again.
        """
        assert self.committer is not None, "only a consumer makes such messages"
        return await self.committer(self)
