"""What the broker of one process needs from its peers, the other processes of a server (docs/adr/0021).

With one process there are no peers, and none of this is used. The package ``processes`` implements it.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol, TypeAlias, TypeVar

from courser.catalog.changes import StreamPurge, TopicPurge
from courser.catalog.entities import PurgedTopic
from courser.catalog.store import PreparedChange
from courser.errors import CourserError
from courser.model.identifiers import TopicAddress
from courser.records.stored_header import PartitionIdentity
from courser.storage.staged_file import StagingTarget

Answer = TypeVar("Answer")

Owns: TypeAlias = Callable[[int, int], bool]
"""Whether this process owns a topic, by stream and topic id."""


def owns_all(_stream_id: int, _topic_id: int) -> bool:
    """The only process of a server owns everything."""
    return True


class RedoStep(Enum):
    """A step of a publish that every owner carries out for its own partitions."""

    APPEND = "append"
    SHOW = "show"
    SYNC = "sync"


@dataclass(frozen=True, slots=True)
class TopicSums:
    """The figures of a topic."""

    size: int
    message_count: int
    segment_count: int


class Peers(Protocol):
    """The other processes, as the first one sees them: they own partitions and follow its metadata.

    Methods raise ``CourserError``: what went wrong there, or 20010 if a process is being restarted.
    """

    async def apply(self, prepared: PreparedChange) -> CourserError | None:
        """Have a durable change applied by all processes, to the state and to their open partitions.

        Returns what the disk refused in one of them. Such a process tries again by itself.
        """

    def held_writes(self, change: StreamPurge | TopicPurge) -> AbstractAsyncContextManager[Mapping[int, PurgedTopic]]:
        """Hold the writes to topics that are purged, and give where their partitions end, by topic id."""

    async def open_new(self, stream_id: int, topic_id: int) -> None:
        """Have the new partitions of a topic opened by its owner."""

    async def wait_for_closed(self) -> None:
        """Wait until no process has files of deleted partitions open."""

    async def check_targets(self, targets: Mapping[StagingTarget, int]) -> Mapping[StagingTarget, int]:
        """Check that staged messages fit into partitions, by their bytes; give the synced offset of each."""

    async def redo(self, sink: str, step: RedoStep) -> None:
        """Have a step of the open publish of a sink carried out by all processes."""

    async def wait_for_all(self) -> None:
        """Wait for those that are being restarted. Raises ``CommandRejected`` (20010) if that takes too long."""

    def ask_archives(self, phase: Callable[[Any], Awaitable[Answer]]) -> Sequence[Awaitable[Answer]]:
        """Have each carry out a phase of the archiver: a method of ``ArchiveShare``, with some arguments."""

    def tell_archives(self, tell: Callable[[Any], None]) -> None:
        """Tell the ``ArchiveShare`` of each that is there something, in the order of phases."""

    async def take_over(self) -> bool:
        """The server stops: start no process again, and open here what those owned that have ended.

        Waits for a process that is recovering its partitions. Returns whether any were opened. May be repeated.
        """


class FirstProcess(Protocol):
    """The first process, as the others see it."""

    async def settle_below(self, identity: PartitionIdentity, before_offset: int) -> None:
        """Settle the publishes that have messages in a partition below an offset."""

    def hurry_archive(self) -> None:
        """Begin the next run of the archiver now."""


Sums: TypeAlias = Mapping[TopicAddress, TopicSums]
