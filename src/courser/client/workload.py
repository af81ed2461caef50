"""What a processor has to do: messages in strands, and how far each partition is done.

A strand is a sequence of messages that must be handled one after another: those of one key, or of one partition.
Strands are handled at the same time, so messages are finished in any order. Only what is finished without a hole is
committed. No event loop here.
"""

from collections import deque
from collections.abc import Collection, Iterable, Sequence
from typing import Literal, TypeAlias

from courser.client.messages import Message

Ordering: TypeAlias = Literal["key", "partition"]
"""Which messages are handled one after another: those of a key, or those of a partition."""


class PartitionProgress:
    """How far one partition is done."""

    __slots__ = ("_finished", "_taken", "begun_end")

    def __init__(self) -> None:
        self._taken: deque[int] = deque()
        """The offsets that were taken and may not be committed yet, in order."""
        self._finished: set[int] = set()
        self.begun_end = 0
        """No message from this offset on was handed to a handler."""

    def take(self, offset: int) -> None:
        """A message was taken. Offsets come in order."""
        self._taken.append(offset)

    def begin(self, offset: int) -> None:
        """A message is handed to a handler."""
        self.begun_end = max(self.begun_end, offset + 1)

    def finish(self, offset: int) -> int | None:
        """A message is done. Returns the offset up to which everything is done, if that has changed."""
        self._finished.add(offset)
        done = None
        while self._taken and self._taken[0] in self._finished:
            done = self._taken.popleft()
            self._finished.remove(done)
        return done

    @property
    def unfinished_count(self) -> int:
        """Messages that are taken and not done."""
        return len(self._taken) - len(self._finished)


class Strand:
    """Messages that are handled one after another."""

    __slots__ = ("_end", "is_pausing", "name", "partition_id", "progress", "waiting")

    def __init__(self, partition_id: int, name: object, progress: PartitionProgress) -> None:
        self.partition_id = partition_id
        self.name = name
        """What its messages have in common."""
        self.progress = progress
        """That of its partition."""
        self.waiting: deque[Message] = deque()
        """Messages that nobody handles yet."""
        self.is_pausing = False
        """Whether it waits before a retry."""
        self._end: int | None = None

    def take(self, count: int) -> list[Message]:
        """The next messages, at most ``count``."""
        return [self.waiting.popleft() for _ in range(min(count, len(self.waiting)))]

    @property
    def is_ending(self) -> bool:
        """Whether its partition was lost, or the processor stops."""
        return self._end is not None

    def may_begin(self, offset: int) -> bool:
        """Whether a handler may still be called with this message."""
        return self._end is None or offset < self._end

    def wind_down(self) -> None:
        """Begin only messages that lie before others which were begun: without them, the others would be repeated."""
        self._end = self.progress.begun_end
        self.waiting = deque(message for message in self.waiting if message.offset < self._end)


class Workload:
    """The messages that a processor has taken and not finished."""

    def __init__(self, ordering: Ordering) -> None:
        self._ordering = ordering
        self._strands: dict[tuple[int, object], Strand] = {}
        self._progress: dict[int, PartitionProgress] = {}
        self._count = 0

    @property
    def count(self) -> int:
        """Messages that are taken and not finished."""
        return self._count

    def add(self, messages: Iterable[Message]) -> list[Strand]:
        """Put messages into their strands. Returns the strands that had none."""
        fresh: list[Strand] = []
        for message in messages:
            name = (message.partition_id, self._name_of(message))
            strand = self._strands.get(name)
            if strand is None:
                progress = self._progress.setdefault(message.partition_id, PartitionProgress())
                strand = self._strands[name] = Strand(*name, progress)
                fresh.append(strand)
            strand.waiting.append(message)
            strand.progress.take(message.offset)
            self._count += 1
        return fresh

    def _name_of(self, message: Message) -> object:
        """Messages without a key have no order among each other."""
        if self._ordering == "partition":
            return None
        key = message.key
        return message.offset if key is None else key

    def finish(self, messages: Sequence[Message]) -> int | None:
        """Messages of one strand are done. Returns the offset to commit in their partition, if there is a new one."""
        progress = self._progress[messages[0].partition_id]
        self._count -= len(messages)
        offsets = [progress.finish(message.offset) for message in messages]
        return max((offset for offset in offsets if offset is not None), default=None)

    def close(self, strand: Strand) -> None:
        """Remove an empty strand."""
        if self._strands.get((strand.partition_id, strand.name)) is strand:
            del self._strands[strand.partition_id, strand.name]

    def strands(self, partition_ids: Collection[int] | None = None) -> list[Strand]:
        """The strands of some partitions, or all."""
        strands = self._strands.values()
        return [strand for strand in strands if partition_ids is None or strand.partition_id in partition_ids]

    def drop(self, partition_ids: Collection[int]) -> None:
        """Forget partitions. Their messages are not finished, and are read again by whoever gets the partition."""
        for strand in self.strands(partition_ids):
            self.close(strand)
        for partition_id in partition_ids:
            progress = self._progress.pop(partition_id, None)
            self._count -= 0 if progress is None else progress.unfinished_count
