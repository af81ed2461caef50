"""Condense sealed segments: of the messages with the same key, only the newest stays. Offsets never change.

A ``KeySurvey`` reads the sealed segments with the newest offset of each key in memory, and marks ``Removals``. If there
are many keys, it takes several surveys, each with a slice of the keys. ``CondensedCopy`` then writes a segment without
these messages to a temporary file, and ``plan_condensed`` gives that file the segment's name. The first two only read
the partition, in small steps on any thread; the last is a short upkeep job.

What stays in any case: messages without a key; the last message of a segment, so that its file alone shows where it
ends; and every segment that has damage, or that would not become smaller. A message without a payload is a *tombstone*:
it goes too once it is old enough, but never before the older messages of its key.

Messages that remain side by side form a batch, so a batch has consecutive offsets as always. Its header counts the
messages that were removed before it, and everything that walks over a file checks that.
"""

import errno
import hashlib
import os
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise
from operator import attrgetter

from courser.errors import InvalidBatch, StorageFailure
from courser.model.buffers import Buffer
from courser.records.batch import Batch, batch_of, select_messages
from courser.records.compression import CodecMissing
from courser.records.encryption import KeyMissing
from courser.records.frames import FrameLayout, iterate_frames
from courser.records.layout import BATCH_HEADER_SIZE
from courser.records.message_keys import key_of
from courser.records.producers import with_producer
from courser.records.stored_body import EncodedBatch, decode, encode, stamp_encoded
from courser.records.stored_header import BadBatch, StoredHeader, blank_header, stamp, with_removed_count
from courser.storage.durable_files import heals, storage_failure, unlink_if_there
from courser.storage.files import File, write_all
from courser.storage.jobs import Job
from courser.storage.ledger import Sealed, SegmentFacts
from courser.storage.partition_log import PartitionLog
from courser.storage.paths import index_path, log_path, temporary_path
from courser.storage.scan import GoodBatch, facts_of_file, scan
from courser.storage.sealed_files import SegmentGone, write_index_file
from courser.storage.segment import Segment, SegmentKey, SegmentState
from courser.storage.segment_index import SegmentIndex

_base_offset = attrgetter("base_offset")
_DIGEST_SIZE = 16
"""Bytes of the digest that stands for a key. It is cryptographic: two keys with one digest would lose a message."""
_UNREADABLE = (BadBatch, InvalidBatch, KeyMissing, CodecMissing)


class TooManyKeys(Exception):
    """The keys of a slice exceed the limit. The survey must be repeated with more slices."""


@dataclass(frozen=True, slots=True)
class KeySlice:
    """The keys that one pass looks at. All passes together look at all keys."""

    number: int = 0
    count: int = 1

    def has(self, digest: bytes) -> bool:
        """Whether the key with this digest belongs to the slice."""
        return int.from_bytes(digest[:4], "little") % self.count == self.number


def _digest(user_headers: memoryview) -> bytes | None:
    """What stands for the key in these headers; None if there is no key."""
    key = key_of(user_headers)
    return None if key is None else hashlib.blake2b(key, digest_size=_DIGEST_SIZE).digest()


def condensable_segments(log: PartitionLog, *, end_offset: int, stored_before: int) -> tuple[Segment, ...]:
    """The sealed segments at the start of the log that may be condensed.

    The newest segment is never one of them, so the newest message always stays. ``end_offset`` is where messages begin
    that must be left alone. Segments with messages that were stored at ``stored_before`` or later do not count either.
    """
    found: list[Segment] = []
    for segment in log.segments[:-1]:
        is_sealed = segment.state is SegmentState.SEALED
        if not is_sealed or segment.end_offset > end_offset or segment.last_stored_at >= stored_before:
            break
        found.append(segment)
    return tuple(found)


class _OffsetSet:
    """Offsets of one segment, one bit each."""

    def __init__(self, segment: Segment) -> None:
        self._base_offset = segment.base_offset
        self._bits = bytearray((segment.end_offset - segment.base_offset + 7) // 8)

    def add(self, offset: int) -> None:
        number = offset - self._base_offset
        self._bits[number // 8] |= 1 << number % 8

    def __contains__(self, offset: int) -> bool:
        number = offset - self._base_offset
        return bool(self._bits[number // 8] & 1 << number % 8)


class Removals:
    """What to remove from some segments: a bit for every message of a segment from which any can go."""

    def __init__(self, log: PartitionLog, segments: Sequence[Segment]) -> None:
        self.segments = tuple(segments)
        self._key_count_max = log.settings.limits.condensed_key_count_max
        self._superseded: dict[int, _OffsetSet] = {}
        self._tombstones: dict[int, _OffsetSet] = {}
        """By the base offset of the segment."""
        self._fixed: set[SegmentKey] = set()
        """Segments that cannot be rewritten."""
        self._lingering: set[bytes] = set()
        """Keys of superseded messages that stay: the last of a segment, or in one that would not become smaller."""
        self._doubtful_from: int | None = None
        """Tombstones from this offset on stay: older messages of their keys may have to stay too."""
        self.next_tombstone_at: int | None = None
        """When the oldest tombstone was stored that is too young to go; None if there is none."""
        self.has_waiting_tombstones = False
        """Whether tombstones stay only because older messages of their keys are still there."""

    # --- what the survey finds ---

    def fix(self, segment: Segment) -> None:
        """A segment cannot be read in full or not be rewritten, so it stays as it is."""
        self._fixed.add(segment.key)
        self._doubt(segment)

    def _doubt(self, segment: Segment) -> None:
        if self._doubtful_from is None or segment.base_offset < self._doubtful_from:
            self._doubtful_from = segment.base_offset

    def add_superseded(self, digest: bytes, offset: int) -> None:
        """A message has a successor, and can go."""
        if not self._add(self._superseded, offset):
            self._lingering.add(digest)

    def add_tombstone(self, offset: int) -> None:
        """A tombstone is old enough, and can go after all older messages of its key."""
        self._add(self._tombstones, offset)

    def _add(self, sets: dict[int, _OffsetSet], offset: int) -> bool:
        """Returns False for the last message of a segment, which stays."""
        segment = self.segments[bisect_right(self.segments, offset, key=_base_offset) - 1]
        if offset == segment.end_offset - 1:
            return False
        if segment.base_offset not in sets:
            sets[segment.base_offset] = _OffsetSet(segment)
        sets[segment.base_offset].add(offset)
        return True

    def note_young_tombstone(self, stored_at: int) -> None:
        """A tombstone must stay for now."""
        if self.next_tombstone_at is None or stored_at < self.next_tombstone_at:
            self.next_tombstone_at = stored_at

    # --- what the copies ask ---

    def concern(self, segment: Segment) -> bool:
        """Whether messages of the segment can go."""
        is_marked = segment.base_offset in self._superseded or segment.base_offset in self._tombstones
        return is_marked and segment.key not in self._fixed and not segment.damages

    def include(self, segment: Segment, offset: int, user_headers: memoryview) -> bool:
        """Whether the message at ``offset`` goes. Ask for older segments first."""
        if offset in self._superseded.get(segment.base_offset, ()):
            return True
        if offset not in self._tombstones.get(segment.base_offset, ()):
            return False
        is_doubtful = self._doubtful_from is not None and offset >= self._doubtful_from
        return not is_doubtful and _digest(user_headers) not in self._lingering

    def keep(self, segment: Segment, digests: set[bytes]) -> None:
        """A segment stays as it is, with superseded messages of these keys. So their tombstones must stay too."""
        if len(self._lingering) + len(digests) > self._key_count_max:
            self._doubt(segment)
        else:
            self._lingering |= digests


class KeySurvey:
    """Finds the newest offset of each key of a slice, and with it the messages that are superseded."""

    def __init__(
        self,
        log: PartitionLog,
        removals: Removals,
        key_slice: KeySlice,
        *,
        tombstones_before: int,
        tombstones_wait: bool = False,
    ) -> None:
        """Tombstones that were stored before ``tombstones_before`` may go.

        ``tombstones_wait``: only those of keys without older messages, which a survey before this one has removed.
        """
        self._log = log
        self._removals = removals
        self._slice = key_slice
        self._horizon = tombstones_before
        self._tombstones_wait = tombstones_wait
        self._latest: dict[bytes, int] = {}
        self._old_tombstones: dict[bytes, int] = {}

    def steps(self) -> Iterator[int]:
        """Read the segments, and yield the size of each batch. The removals are complete after the last step.

        Raises:
            TooManyKeys: the slice has more keys than ``condensed_key_count_max``.
            StorageFailure: a file cannot be read.
        """
        removals = self._removals
        for segment in removals.segments:
            for batch in _batches(self._log, segment):
                if batch is None:
                    removals.fix(segment)
                    continue
                if batch.header.encryption_key_id and self._log.settings.encoding.encryption is None:
                    # It could only be written without encryption.
                    removals.fix(segment)
                try:
                    self._add(segment, batch)
                except _UNREADABLE:
                    removals.fix(segment)
                yield batch.header.stored_length
        for offset in self._old_tombstones.values():
            removals.add_tombstone(offset)

    def _add(self, segment: Segment, batch: GoodBatch) -> None:
        header, latest = batch.header, self._latest
        stored_at = header.base_timestamp + segment.correction
        body = _frames(self._log, batch)
        for offset, frame in enumerate(iterate_frames(body, header.message_count), header.base_offset):
            digest = _digest(frame.user_headers)
            if digest is None or not self._slice.has(digest):
                continue
            if (superseded := latest.get(digest)) is not None:
                self._removals.add_superseded(digest, superseded)
                self._old_tombstones.pop(digest, None)
            elif len(latest) >= self._log.settings.limits.condensed_key_count_max:
                raise TooManyKeys
            latest[digest] = offset
            if not frame.payload:
                if stored_at >= self._horizon:
                    self._removals.note_young_tombstone(stored_at)
                elif superseded is not None and self._tombstones_wait:
                    self._removals.has_waiting_tombstones = True
                else:
                    self._old_tombstones[digest] = offset


def _batches(log: PartitionLog, segment: Segment) -> Iterator[GoodBatch | None]:
    """The batches of a segment; None for damage. Raises ``StorageFailure``, also if the segment was removed."""
    window_size = log.settings.limits.scan_window_size
    path = log_path(log.directory, segment.base_offset)
    try:
        with log.files.reading(segment) as file:
            for found in scan(
                file, log.identity, start=0, end=segment.size, offset=segment.base_offset, window_size=window_size
            ):
                yield found if isinstance(found, GoodBatch) else None
    except SegmentGone:
        gone = FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        raise storage_failure("read", path, gone) from None
    except OSError as error:
        raise storage_failure("read", path, error) from error


def _frames(log: PartitionLog, batch: GoodBatch) -> memoryview:
    return decode(batch.header, batch.stored, log.settings.keys) if batch.header.flags else batch.body


class CondensedCopy:
    """A segment without its superseded messages, in temporary files."""

    def __init__(self, log: PartitionLog, segment: Segment, removals: Removals) -> None:
        self._log = log
        self.segment = segment
        self._removals = removals
        self.log_path = temporary_path(log_path(log.directory, segment.base_offset))
        self.index_path = temporary_path(index_path(log.directory, segment.base_offset))
        settings = log.settings
        self._index = SegmentIndex(
            log.identity, segment.base_offset, settings.index_interval, settings.limits.index_block_size
        )
        self._size = 0
        self._end_offset = segment.base_offset
        self._kept_count = 0
        self._removed_keys: set[bytes] = set()
        self.facts: SegmentFacts | None = None
        """The facts about the copy once it is complete, synced and verified; None if it was not worth keeping."""

    def steps(self) -> Iterator[int]:
        """Write and verify the copy, and yield the size of each batch that was read.

        Raises:
            StorageFailure: the disk cannot be read or written. ``discard`` removes what was written.
        """
        file_system = self._log.file_system
        try:
            self.discard()
            file = file_system.open(self.log_path, writable=True, create=True)
        except OSError as error:
            raise storage_failure("create", self.log_path, error) from error
        with closing(file):
            yield from self._steps(file)

    def _steps(self, file: File) -> Iterator[int]:
        for batch in _batches(self._log, self.segment):
            if batch is None:
                # The survey found none, so the disk has changed since. Leave the evidence alone.
                raise StorageFailure("read", log_path(self._log.directory, self.segment.base_offset), None)
            self._copy(file, batch)
            yield batch.header.stored_length
        if self._size >= self.segment.size:
            self._removals.keep(self.segment, self._removed_keys)
            self.discard()
            return
        # The data must be on disk before it has the segment's name: a power cut would otherwise leave an empty segment.
        self._log.syncs.sync_file(file)
        self.facts = self._verified(file)
        _, blocks = self._index.unflushed(covered_size=self._size)
        write_index_file(self._log.file_system, self.index_path, 0, blocks).close()

    def discard(self) -> None:
        """Remove the temporary files. The next start would do it too."""
        for path in (self.log_path, self.index_path):
            try:
                unlink_if_there(self._log.file_system, path)
            except OSError as error:
                raise storage_failure("remove", path, error) from error

    def _copy(self, file: File, batch: GoodBatch) -> None:
        header = batch.header
        body = _frames(self._log, batch)
        kept: list[int] = []
        for number, frame in enumerate(iterate_frames(body, header.message_count)):
            if not self._removals.include(self.segment, header.base_offset + number, frame.user_headers):
                kept.append(number)
            elif (digest := _digest(frame.user_headers)) is not None:
                self._removed_keys.add(digest)
        removed_count = header.base_offset - self._end_offset
        if len(kept) == header.message_count and (
            not header.encryption_key_id or removed_count == header.removed_count
        ):
            # Only the count before the batch may differ, and it is not part of a tag.
            head = with_removed_count(batch.stored[:BATCH_HEADER_SIZE], removed_count)
            self._write(file, header, header.base_offset, (head, batch.body), batch.frames, header.message_count)
            return
        whole = batch_of(header.origin_timestamp, header.message_count, body)
        for first, end in _runs(kept):
            self._write_run(file, header, whole, range(first, end))

    def _write_run(self, file: File, header: StoredHeader, whole: Batch, numbers: range) -> None:
        """Write messages that remain side by side as a batch."""
        base_offset = header.base_offset + numbers.start
        batch = encode(select_messages(whole, numbers), self._log.settings.encoding)
        removed_count = base_offset - self._end_offset
        # Producer and sequence stay: a publish that is not finished looks for them, and so may a batch's repeat.
        producer, identity = header.batch_producer, self._log.identity
        if producer is None:
            blank = blank_header(identity, header.producer, header.sequence, removed_count)
        else:
            first_number = producer.first_number + numbers.start
            blank = blank_header(identity, removed_count=removed_count)
            blank = with_producer(blank, producer._replace(first_number=first_number))
        if isinstance(batch, EncodedBatch):
            head = stamp_encoded(batch, blank, base_offset, header.base_timestamp)
        else:
            head = stamp(batch, blank, base_offset, header.base_timestamp)
        self._write(file, header, base_offset, (head, batch.body), batch.frames, batch.count)

    def _write(
        self,
        file: File,
        header: StoredHeader,
        base_offset: int,
        buffers: tuple[Buffer, Buffer],
        frames: FrameLayout,
        count: int,
    ) -> None:
        try:
            size = write_all(file, self._size, buffers)
        except OSError as error:
            raise storage_failure("write", self.log_path, error) from error
        self._index.add_batch(base_offset, self._size, header.base_timestamp, frames)
        self._size += size
        self._end_offset = base_offset + count
        self._kept_count += count

    def _verified(self, file: File) -> SegmentFacts:
        """Read the copy from the disk, not from the page cache, and compare it with what was written."""
        try:
            file.discard_cache()
            limits = self._log.settings.limits
            facts = facts_of_file(file, self._log.identity, self.segment.base_offset, limits.scan_window_size)
        except OSError as error:
            raise storage_failure("read", self.log_path, error) from error
        expected = self.segment.end_offset, self._size, self._kept_count
        if facts is None or (facts.end_offset, facts.size, facts.message_count) != expected:
            raise StorageFailure("verify", self.log_path, OSError("the copy differs from what was written"))
        return facts


def _runs(numbers: list[int]) -> Iterator[tuple[int, int]]:
    """Runs of consecutive numbers: the first one, and the one after the last."""
    breaks = [0, *(place for place, (a, b) in enumerate(pairwise(numbers), 1) if b != a + 1), len(numbers)]
    return ((numbers[start], numbers[end - 1] + 1) for start, end in pairwise(breaks) if start < end)


def plan_condensed(log: PartitionLog, copy: CondensedCopy) -> Job | None:
    """Give the copy the name of its segment. None if the segment was deleted meanwhile.

    What a power cut leaves:

    - before the rename: the old file. The start removes the copy.
    - after the rename, before the sync of the directory: the old or the new file, whichever; both were synced.
    - before the record in the ledger: the new file may be shorter than its seal says. The start reads it, finds that it
      reaches the end of the segment, and writes the record.
    - old and new index may be swapped in all cases: an index that covers another size is rebuilt.
    """
    facts, old = copy.facts, copy.segment
    if facts is None or log.failure is not None or log.lack_of_room is not None:
        return None
    if not any(segment is old for segment in log.segments):
        return None
    draft = log.ledger.draft(Sealed(facts))
    path = log_path(log.directory, old.base_offset)
    is_renamed = False

    def run() -> None:
        nonlocal is_renamed
        log.files.retire(old)
        try:
            log.file_system.rename(copy.log_path, path)
            is_renamed = True
            log.file_system.rename(copy.index_path, index_path(log.directory, old.base_offset))
        except OSError as error:
            raise storage_failure("rename", path, error) from error
        # The new name must be durable first: the ledger would otherwise describe a file that a power cut takes away.
        log.syncs.sync_names()
        log.ledger.file.append(draft, sync=True)

    def fail(failure: StorageFailure) -> None:
        if is_renamed:
            # What is not durable or not recorded, the next start finds out.
            log.complete_condensing(old, facts, None)
        else:
            log.files.reinstate(old)
        if not heals(failure):
            log.fail(str(failure), is_sync=failure.operation == "sync")

    return Job("condensing", log.syncs.watch(run), lambda: log.complete_condensing(old, facts, draft), fail)


def advance(steps: Iterator[int], size: int) -> int:
    """Take steps until about ``size`` bytes were read. Returns how many were; 0 if there are no more steps."""
    done = 0
    while done < size and (step := next(steps, 0)):
        done += step
    return done
