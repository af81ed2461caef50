"""Reads of a partition's log: from segment to segment, over gaps, by offset and by time.

``SegmentReader`` reads within a segment. Calls may come from several threads, beside the owner of the log.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator
from functools import wraps
from itertools import chain
from operator import attrgetter
from typing import ParamSpec, TypeVar

from courser.model.durability import Durability
from courser.records.layout import ProducerKind
from courser.records.stored_header import StoredHeader
from courser.storage.durable_files import storage_failure
from courser.storage.partition_log import PartitionLog
from courser.storage.paths import log_path
from courser.storage.producer_table import StoredBatch
from courser.storage.read_result import Collector, ReadBuffer, ReadResult, SkipReason
from courser.storage.sealed_files import SegmentGone
from courser.storage.segment import Segment
from courser.storage.segment_reader import ReadCounters, SegmentReader

_base_offset = attrgetter("base_offset")
_SYNCED = Durability.SYNCED


_P = ParamSpec("_P")
_T = TypeVar("_T")


def _on_present_segments(look: Callable[_P, _T]) -> Callable[_P, _T]:
    """Begin a read again if one of its segments is removed or replaced meanwhile."""

    @wraps(look)
    def looked(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        while True:
            try:
                return look(*args, **kwargs)
            except SegmentGone:
                continue

    return looked


class LogReader:
    """Reads the messages of one partition from its log, on any thread."""

    def __init__(self, log: PartitionLog) -> None:
        self._log = log
        self._segments = SegmentReader(log.identity, log.files, log.settings)

    @property
    def counters(self) -> ReadCounters:
        """What reads have met."""
        return self._segments.counters

    def read(
        self, offset: int, count: int, size_max: int, buffer: ReadBuffer | None = None, wait: bool = True
    ) -> ReadResult:
        """Messages from ``offset`` on: at most ``count``, at most ``size_max`` bytes, but at least one if there is one.

        Raises as ``SegmentReader.read`` does, and ``PartitionOffline`` or ``StorageFailure`` if nothing can be read.
        What raises ``BlockingIOError`` can be repeated on another thread.
        """
        log, first_offset = self._log, offset
        if log.is_offline:
            log.check_readable()
        collector = Collector(count, size_max)
        buffer = buffer or ReadBuffer(log.settings.limits.read_buffer_size)
        segments, marks = log.segments, log.marks
        # As ``visible_end``.
        end_offset = (marks.synced if log.settings.durability.level is _SYNCED else marks.written)[0]
        if offset < log.start_offset:
            collector.skip(offset, log.start_offset, SkipReason.TRIMMED)
            offset = log.start_offset
        if segments and offset >= segments[-1].base_offset:
            number = len(segments) - 1
        else:
            number = max(bisect_right(segments, offset, key=_base_offset) - 1, 0)
        while number < len(segments) and offset < end_offset and not collector.is_full:
            segment = segments[number]
            if offset < segment.base_offset:
                if not self._pass_gap(offset, segment.base_offset, collector):
                    break
                offset = segment.base_offset
            if offset < segment.end_offset and offset < end_offset:
                try:
                    offset = self._segments.read(segment, offset, end_offset, collector, buffer, wait)
                except SegmentGone:
                    return self.read(first_offset, count, size_max, buffer, wait)
                except BlockingIOError:
                    raise
                except OSError as error:
                    raise storage_failure("read", log_path(log.directory, segment.base_offset), error) from error
                if offset < segment.end_offset:
                    break
            number += 1
        return collector.result(offset)

    def _pass_gap(self, first_offset: int, end_offset: int, collector: Collector) -> bool:
        """Skip the offsets between two segments. Returns False if that must wait for the start of the next read."""
        log = self._log
        gaps = log.ledger.state.gaps
        is_loss = any(gap.is_loss for gap in gaps if gap.first_offset < end_offset and first_offset < gap.end_offset)
        if is_loss and collector.message_count:
            return False
        collector.skip(first_offset, end_offset, SkipReason.LOST if is_loss else SkipReason.RESERVED)
        return True

    @_on_present_segments
    def offset_at_time(self, timestamp: int, *, wait: bool = True) -> int:
        """The first offset whose message was appended at ``timestamp`` or later; the next offset if there is none.

        If the clock was wrong at the time, this uses the corrected time, not the one in the message.
        """
        log = self._log
        log.check_readable()
        for segment in log.segments:
            if segment.last_stored_at >= timestamp and segment.end_offset > log.start_offset:
                return self._segments.offset_at_time(segment, max(timestamp - segment.correction, 0), wait=wait)
        return log.next_offset

    @_on_present_segments
    def time_at(self, offset: int, *, wait: bool = True) -> int | None:
        """When the message at ``offset``, or else the next one, was appended; None if there is none.

        If the clock was wrong at the time, this uses the corrected time, not the one in the message.

        Raises:
            BlockingIOError: with ``wait=False``, if the disk has to be waited for.
            StorageFailure: the disk cannot be read.
        """
        log = self._log
        segments = log.segments
        first = max(bisect_right(segments, offset, key=_base_offset) - 1, 0)
        segment = next((segment for segment in segments[first:] if segment.end_offset > offset), None)
        if segment is None:
            return None
        try:
            return self._segments.time_at(segment, max(offset, segment.base_offset), wait=wait) + segment.correction
        except BlockingIOError:
            raise
        except OSError as error:
            raise storage_failure("read", log_path(log.directory, segment.base_offset), error) from error

    @_on_present_segments
    def last_sequence(self, producer: bytes, *, first_offset: int) -> int | None:
        """The highest sequence of a publish's batches from ``first_offset`` on; None if there are none.

        A start asks this to finish what the last session began. Damage is skipped: a publish's batches are in order,
        so a later one proves that the earlier ones were written. May wait for the disk.

        Raises:
            StorageFailure: a file cannot be read.
        """
        log = self._log
        found: int | None = None
        for segment in log.segments:
            if segment.end_offset <= first_offset:
                continue
            try:
                for header in self._segments.headers_from(segment, max(first_offset, segment.base_offset)):
                    if header.producer == producer and header.producer_kind == ProducerKind.PUBLISH:
                        found = header.sequence
            except OSError as error:
                raise storage_failure("read", log_path(log.directory, segment.base_offset), error) from error
        return found

    @_on_present_segments
    def newest_of_producers(self, stored_after: int) -> list[StoredBatch]:
        """The batches of idempotent producers among the newest batches, in the order of their offsets.

        Headers are read from the end back, until batches are older or enough were read. May wait for the disk.

        Raises:
            StorageFailure: a file cannot be read.
        """
        pieces: list[list[StoredBatch]] = []
        limits, count, size = self._log.settings.limits, 0, 0
        for segment, headers in self._headers_from_the_end():
            if headers[-1].base_timestamp + segment.correction < stored_after:
                break
            pieces.append(
                [
                    StoredBatch(
                        producer,
                        header.base_offset - producer.first_number,
                        header.base_timestamp + segment.correction,
                    )
                    for header in headers
                    if (producer := header.batch_producer) is not None
                ]
            )
            count += len(headers)
            size += sum(header.stored_length for header in headers)
            if count >= limits.producer_header_count or size >= limits.producer_log_size:
                break
        return list(chain.from_iterable(reversed(pieces)))

    def _headers_from_the_end(self) -> Iterator[tuple[Segment, list[StoredHeader]]]:
        """The headers of all batches, in pieces: the newest first, but each in the order of the offsets."""
        piece_size = self._log.settings.limits.header_piece_size
        for segment in reversed(self._log.segments):
            end = segment.end_offset
            message_size = max(segment.size // max(end - segment.base_offset, 1), 1)
            while end > segment.base_offset:
                start = max(end - max(piece_size // message_size, 1), segment.base_offset)
                headers: list[StoredHeader] = []
                try:
                    for header in self._segments.headers_from(segment, start):
                        if header.base_offset >= end:
                            break
                        headers.append(header)
                except OSError as error:
                    path = log_path(self._log.directory, segment.base_offset)
                    raise storage_failure("read", path, error) from error
                end = start
                if headers:
                    end = min(start, headers[0].base_offset)
                    yield segment, headers

    @_on_present_segments
    def offset_of_last(self, count: int, *, wait: bool = True) -> int:
        """The offset of the first of the newest ``count`` visible messages. Gaps in the numbering do not count.

        Raises:
            BlockingIOError: with ``wait=False``, if the disk has to be waited for.
            StorageFailure: the disk cannot be read.
        """
        log = self._log
        end = log.visible_end
        for segment in reversed(log.segments):
            segment_end = min(segment.end_offset, end)
            present = segment.message_count - (segment.end_offset - segment_end)
            if count <= present:
                if segment.missing_count:
                    return self._nth_last(segment, count + segment.end_offset - segment_end, wait=wait)
                return segment_end - count
            count -= max(present, 0)
        return log.start_offset

    def _nth_last(self, segment: Segment, count: int, *, wait: bool) -> int:
        log = self._log
        if not wait:
            # It looks at every header of the segment.
            raise BlockingIOError
        try:
            return self._segments.offset_of_last(segment, count)
        except OSError as error:
            raise storage_failure("read", log_path(log.directory, segment.base_offset), error) from error
