"""`validate_checksum`: verify each sealed segment once, before it is first read after a start.

Every read checks what it returns anyway. This checks the whole segment first, so that damage anywhere in it is logged
before it is read. A start is not delayed.
"""

import logging
from bisect import bisect_right
from collections.abc import Iterator
from operator import attrgetter

from courser.errors import StorageFailure
from courser.storage.durable_files import storage_failure
from courser.storage.ledger import DamagedRange
from courser.storage.partition_log import PartitionLog
from courser.storage.scan import GoodBatch, scan
from courser.storage.segment import Segment, SegmentState

_log = logging.getLogger(__name__)
_end_offset = attrgetter("end_offset")


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
        file, damages = self._log.files.file_of(segment), []
        offset, bad = segment.base_offset, None
        try:
            for found in scan(
                file,
                self._log.identity,
                start=0,
                end=segment.size,
                offset=segment.base_offset,
                window_size=self._log.settings.limits.scan_window_size,
            ):
                if not isinstance(found, GoodBatch):
                    bad = found
                    continue
                if bad is not None:
                    place = bad.position, bad.end_position, offset, found.header.base_offset
                    damages.append(DamagedRange(segment.base_offset, *place))
                    bad = None
                offset = found.header.end_offset
        except OSError as error:
            raise storage_failure("read", file.path, error) from error
        if bad is not None:
            damages.append(
                DamagedRange(segment.base_offset, bad.position, bad.end_position, offset, segment.end_offset)
            )
        return damages

    def note(self, segment: Segment, damages: list[DamagedRange]) -> None:
        """Record a verified segment. Readers know about its damage from now on."""
        self._pending.discard(segment.base_offset)
        known = {damage.position for damage in segment.damages}
        for damage in damages:
            if damage.position not in known:
                segment.damages = (*segment.damages, damage)
            _log.error(
                "damage found in a sealed segment directory=%s segment=%d first_offset=%d end_offset=%d position=%d",
                self._log.directory,
                segment.base_offset,
                damage.first_offset,
                damage.end_offset,
                damage.position,
            )

    def give_up(self, segment: Segment, failure: StorageFailure) -> None:
        """Skip a segment that cannot be read now: the read itself reports it. The next start verifies it again."""
        self._pending.discard(segment.base_offset)
        _log.error("could not verify a sealed segment: %s", failure)
