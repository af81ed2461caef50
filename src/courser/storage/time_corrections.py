"""Correct the times of segments after the clock was set (ADR 0014)."""

from collections.abc import Iterable, Mapping

from courser.model.clock import CLOCK_LEAD_MAX
from courser.storage.ledger import TimeCorrection
from courser.storage.segment import Segment


class TimeCorrections:
    """What one session finds out about the times of a partition's segments. Owner's thread only."""

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
