"""One segment: a log file, its index, and what is known about them.

A segment is *open* while it takes batches, *closing* from the moment a newer one takes over, and *sealed* once it is
synced to its end and the ledger says so. The partition's owner changes it. Readers on other threads see numbers that
only grow, and never look behind ``size``. They replace an index that is missing or wrong, and add the damage they find.
"""

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import TypeAlias

from courser.model.clock import CLOCK_LEAD_MAX
from courser.records.stored_header import PartitionIdentity
from courser.storage.files import File
from courser.storage.index_entries import BatchEntries
from courser.storage.ledger import DamagedRange, SegmentFacts, TimeCorrection
from courser.storage.segment_index import SegmentIndex
from courser.storage.settings import LogSettings

SegmentKey: TypeAlias = tuple[int, int]
"""Base offset, and how often the file was replaced in this session."""


class SegmentState(Enum):
    """Where a segment stands in its life."""

    OPEN = "open"
    CLOSING = "closing"
    SEALED = "sealed"


class Segment:
    """A run of batches in one file."""

    __slots__ = (
        "_damages",
        "allocated_size",
        "base_offset",
        "batch_count",
        "correction",
        "end_offset",
        "file",
        "first_timestamp",
        "has_unsynced_cut",
        "index",
        "is_gone",
        "is_index_ready",
        "key",
        "last_timestamp",
        "message_count",
        "size",
        "state",
        "synced_size",
        "writeback_size",
    )

    def __init__(self, base_offset: int, index: SegmentIndex, generation: int = 0) -> None:
        self.base_offset = base_offset
        self.key: SegmentKey = (base_offset, generation)
        """What caches use: a condensed segment has the offsets of its predecessor, but other positions."""
        self.index = index
        self.is_index_ready = True
        """False for a sealed segment whose index file was not checked yet."""
        self.is_gone = False
        """Whether it was removed or replaced. Its files are closed then."""
        self.state = SegmentState.OPEN
        self.file: File | None = None
        """Open while the segment is written. A sealed one is opened when it is read; see ``SealedFiles.retire``."""
        self.end_offset = base_offset
        self.size = 0
        """Bytes of batches in the file, whether or not more was allocated behind them."""
        self.synced_size = 0
        self.has_unsynced_cut = False
        """Part of a failed write was cut off behind ``size``; a power cut before the next sync brings it back."""
        self.writeback_size = 0
        """Bytes that the kernel was asked to write back."""
        self.allocated_size = 0
        self.first_timestamp = 0
        self.last_timestamp = 0
        self.correction = 0
        """Microseconds to add to the times of its messages: the clock was wrong when they were stored (ADR 0014)."""
        self.message_count = 0
        self.batch_count = 0
        self._damages: dict[int, DamagedRange] = {}
        """By position."""

    @classmethod
    def from_facts(
        cls, facts: SegmentFacts, identity: PartitionIdentity, settings: LogSettings, generation: int = 0
    ) -> "Segment":
        """A segment that the ledger knows. Its index is checked when it is first read."""
        index = SegmentIndex(identity, facts.base_offset, settings.index_interval, settings.limits.index_block_size)
        segment = cls(facts.base_offset, index, generation)
        segment.is_index_ready = False
        segment.end_offset = facts.end_offset
        segment.size = segment.synced_size = segment.writeback_size = segment.allocated_size = facts.size
        segment.first_timestamp = facts.first_timestamp
        segment.last_timestamp = facts.last_timestamp
        segment.message_count = facts.message_count
        segment.batch_count = facts.batch_count
        return segment

    def replaced_by(self, facts: SegmentFacts, identity: PartitionIdentity, settings: LogSettings) -> "Segment":
        """The segment after its file was replaced by a condensed one, which ``facts`` describe."""
        segment = Segment.from_facts(facts, identity, settings, self.key[1] + 1)
        segment.state = SegmentState.SEALED
        segment.correction = self.correction
        return segment

    @property
    def damages(self) -> tuple[DamagedRange, ...]:
        """What is known to be damaged."""
        return tuple(self._damages.values())

    @damages.setter
    def damages(self, damages: Iterable[DamagedRange]) -> None:
        self._damages = {damage.position: damage for damage in damages}

    def note_damage(self, damage: DamagedRange) -> bool:
        """Let all readers know of damage. Returns whether nobody knew of it.

        For any thread: one step of the dict, so that two readers that find damage at the same time lose none of it.
        """
        return self._damages.setdefault(damage.position, damage) is damage

    @property
    def missing_count(self) -> int:
        """Offsets in its range that have no message in the file: they were removed, or damaged when it was sealed."""
        return max(self.end_offset - self.base_offset - self.message_count, 0)

    @property
    def first_stored_at(self) -> int:
        """When its first message was stored, as far as it is known now."""
        return self.first_timestamp + self.correction

    @property
    def last_stored_at(self) -> int:
        """When the last message was stored."""
        return self.last_timestamp + self.correction

    def facts(self) -> SegmentFacts:
        """What the ledger records of it."""
        return SegmentFacts(
            self.base_offset,
            self.end_offset,
            self.size,
            self.first_timestamp,
            self.last_timestamp,
            self.message_count,
            self.batch_count,
        )

    def note_batch(
        self, base_offset: int, position: int, size: int, timestamp: int, count: int, entries: BatchEntries | None
    ) -> None:
        """A batch was written at ``position``. ``size`` moves last: a reader that sees it finds all the rest."""
        if entries is not None:
            self.index.add(entries, position, timestamp)
        if not self.batch_count:
            self.first_timestamp = timestamp
        self.last_timestamp = timestamp
        self.batch_count += 1
        self.message_count += count
        self.size = position + size
        self.end_offset = base_offset + count

    def note_synced(self, size: int) -> None:
        """The first ``size`` bytes survive a power cut."""
        self.synced_size = max(self.synced_size, size)

    def note_allocated(self, size: int) -> None:
        """The file has room for ``size`` bytes."""
        self.allocated_size = max(self.allocated_size, size)

    def seal(self) -> None:
        """End writing. A reader opens the file again, or finds it in ``SealedFiles``."""
        self.synced_size = self.size
        self.state = SegmentState.SEALED
        self.file = None

    @property
    def average_message_size(self) -> int:
        """Bytes per message, headers of the batches included: to guess how much a read of so many needs."""
        return self.size // self.message_count + 1 if self.message_count else 0


class TimeCorrections:
    """The times of a partition's segments, as one session finds them wrong after the clock was set (ADR 0014).

    Owner's thread only.
    """

    def __init__(self, session_start: int) -> None:
        """``session_start`` is the first offset of this session: the monotonic clock tells the age of its messages."""
        self._session_start = session_start
        self.are_unrecorded = False
        """Whether there are corrections that the ledger does not have yet."""

    def follow(self, segments: Iterable[Segment], *, now: int, moved: int) -> None:
        """The clock says ``now`` and was moved by ``moved`` microseconds since the last call.

        What this session stored is younger or older by as much as the clock was moved. Of what earlier sessions stored,
        only times in the future are known to be wrong. Those messages count as stored now, the latest time that is
        possible.
        """
        for segment in segments:
            if not segment.batch_count:
                # A refused write left it empty: what goes into it comes after the step.
                continue
            correction = segment.correction
            if segment.end_offset > self._session_start:
                correction += moved
            elif correction < 0 < moved:
                # This clock was behind; the clock of that time was not ahead.
                correction = min(correction + moved, 0)
            if segment.last_timestamp + correction > now + CLOCK_LEAD_MAX:
                correction = now - segment.last_timestamp
            if correction != segment.correction:
                segment.correction = correction
                self.are_unrecorded = True

    def begin_recording(self, segments: Iterable[Segment], known: Mapping[int, int]) -> list[TimeCorrection]:
        """The corrections that differ from those ``known`` to the ledger, by base offset."""
        self.are_unrecorded = False
        return [
            TimeCorrection(segment.base_offset, segment.correction)
            for segment in segments
            if segment.correction != known.get(segment.base_offset, 0)
        ]

    def fail_recording(self) -> None:
        """The ledger could not take them: they are due again."""
        self.are_unrecorded = True
