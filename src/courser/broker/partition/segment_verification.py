"""Verify whole segments: in steps, for the scrubber, and before their first read after a start (`validate_checksum`).

Every read checks what it returns anyway. `validate_checksum` checks the whole segment first, so that damage anywhere in
it is logged before it is read. A start is not delayed.
"""

import logging
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from operator import attrgetter
from pathlib import Path

from courser.api import replies as r
from courser.errors import StorageFailure
from courser.storage.durable_files import storage_failure
from courser.storage.ledger import DamagedRange
from courser.storage.partition_log import PartitionLog
from courser.storage.paths import log_path
from courser.storage.scan import GoodBatch, scan
from courser.storage.segment import Segment, SegmentState

_log = logging.getLogger(__name__)
_end_offset = attrgetter("end_offset")


class SegmentCheck:
    """Reads a sealed segment from end to end, in steps. Any thread may take a step, but only one at a time."""

    def __init__(self, log: PartitionLog, segment: Segment, path: Path | None = None) -> None:
        """``path`` is that of a copy to read instead of the segment's own file."""
        self._log = log
        self._segment = segment
        self._path = path or log_path(log.directory, segment.base_offset)
        self._positions = self._read()
        self._position = 0
        self.end_offset = segment.base_offset
        """The offset after the last good batch so far."""
        self.damages: list[DamagedRange] = []
        """What was found so far."""

    def advance(self, size: int) -> int:
        """Read at least so many bytes, if there are as many. Returns how many were read: 0 at the end. Blocks.

        Raises:
            StorageFailure: the disk cannot be read.
        """
        before = self._position
        try:
            for position in self._positions:
                self._position = position
                if position - before >= size:
                    break
        except OSError as error:
            raise storage_failure("read", self._path, error) from error
        return self._position - before

    def _read(self) -> Iterator[int]:
        """The positions up to which the file was read."""
        segment, limits = self._segment, self._log.settings.limits
        # Not one of the files that readers share: those are few, and opened for what is read now.
        file = self._log.file_system.open(self._path)
        try:
            for found in scan(
                file,
                self._log.identity,
                start=0,
                end=segment.size,
                offset=segment.base_offset,
                window_size=limits.scan_window_size,
            ):
                if isinstance(found, GoodBatch):
                    self.end_offset = found.header.end_offset
                else:
                    self.damages.append(found.damage(segment.base_offset, segment.end_offset))
                yield found.end_position
        finally:
            file.close()


def note_damages(log: PartitionLog, segment: Segment, damages: Sequence[DamagedRange]) -> int:
    """Log damage in a segment, and let readers know of it. Returns how much of it was not known before."""
    new_count = 0
    for damage in damages:
        new_count += segment.note_damage(damage)
        _log.error(
            "damage found in a sealed segment directory=%s segment=%d first_offset=%d end_offset=%d position=%d",
            log.directory,
            segment.base_offset,
            damage.first_offset,
            damage.end_offset,
            damage.position,
        )
    return new_count


class SegmentVerification:
    """The unverified segments of one partition. Call ``verify`` in a pool, everything else on the owner's thread."""

    def __init__(self, log: PartitionLog) -> None:
        self._log = log
        self._pending = {segment.base_offset for segment in log.segments if segment.state is SegmentState.SEALED}

    @property
    def is_done(self) -> bool:
        """Whether all segments are verified."""
        return not self._pending

    def due_before(self, offset: int, count: int) -> Segment | None:
        """The next segment to verify before ``count`` messages are read from ``offset`` on."""
        return next((segment for segment, _ in self._read_by(offset, count) if self._is_due(segment)), None)

    def limit(self, offset: int, count: int) -> int:
        """How many of ``count`` messages from ``offset`` on can be read before the next unverified segment."""
        readable = 0
        for segment, present in self._read_by(offset, count):
            if self._is_due(segment):
                return readable
            readable += present
        return count

    def _is_due(self, segment: Segment) -> bool:
        return segment.base_offset in self._pending

    def _read_by(self, offset: int, count: int) -> Iterator[tuple[Segment, int]]:
        """The segments that a read needs, each with its number of readable messages."""
        segments = self._log.segments
        for segment in segments[bisect_right(segments, offset, key=_end_offset) :]:
            first = max(offset, segment.base_offset)
            damaged = sum(max(damage.end_offset - max(damage.first_offset, first), 0) for damage in segment.damages)
            # At least so many: of the offsets without messages, some may be before the first.
            present = max(segment.end_offset - first - damaged - segment.missing_count, 0)
            yield segment, present
            count -= present
            if count <= 0:
                return

    def verify(self, segment: Segment) -> list[DamagedRange]:
        """Read a segment from end to end. Blocks.

        Raises:
            StorageFailure: the disk cannot be read.
        """
        check = SegmentCheck(self._log, segment)
        while check.advance(segment.size):
            pass
        return check.damages

    def note(self, segment: Segment, damages: list[DamagedRange]) -> None:
        """Record a verified segment. Readers know about its damage from now on."""
        self._pending.discard(segment.base_offset)
        note_damages(self._log, segment, damages)

    def give_up(self, segment: Segment, failure: StorageFailure) -> None:
        """Skip a segment that cannot be read now: the read itself reports it. The next start verifies it again."""
        self._pending.discard(segment.base_offset)
        _log.error("could not verify a sealed segment: %s", failure)


def damage_of(log: PartitionLog, damage: DamagedRange) -> r.Damage:
    """As clients are told it."""
    return r.Damage(
        log.identity.partition_id,
        damage.base_offset,
        damage.first_offset,
        damage.end_offset,
        damage.position,
        damage.end_position - damage.position,
    )
