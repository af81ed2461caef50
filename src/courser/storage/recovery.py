"""Recover a partition: turn whatever the last session left in its directory into a log that accepts messages.

The cases are those of ``recovery_cases``. Recovery may be interrupted at any step; running it again gives the same
result. Sealed segments are not read, so their number does not matter.
"""

import contextlib
from bisect import bisect_left, insort
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from operator import attrgetter
from pathlib import Path

from courser.errors import DiskFull, StorageFailure
from courser.records.layout import MESSAGE_COUNT_MAX
from courser.records.stored_header import PartitionIdentity
from courser.storage.durable_files import storage_failure, sync_directory, sync_file, unlink_if_there
from courser.storage.files import FileSystem
from courser.storage.identity_search import LEDGER_TEXT, ForeignPartition, find_log_owners
from courser.storage.ledger import (
    RECORD_SIZE,
    Event,
    Ledger,
    LedgerReading,
    OffsetGap,
    Progress,
    Sealed,
    SyncFailure,
    read_ledger,
)
from courser.storage.offset_table import OffsetTable
from courser.storage.paths import (
    INDEX_SUFFIX,
    LEDGER,
    OFFSETS,
    QUARANTINE,
    index_path,
    log_path,
)
from courser.storage.quarantine import Quarantine
from courser.storage.recovery_cases import Oddity, RecoveryAction, RecoveryFinding, StopKind, Tail, case_for
from courser.storage.recovery_scan import (
    PartitionListing,
    ScannedSegment,
    SegmentEnd,
    condensed_facts,
    list_partition,
    scan_open_segment,
)
from courser.storage.segment import Segment, SegmentState
from courser.storage.settings import LogSettings

_base_offset = attrgetter("base_offset")
_HOLE_TEXT = "the offsets before this segment are missing"


@dataclass(slots=True)
class RecoveredPartition:
    """The result of recovering a partition."""

    ledger: Ledger
    offsets: OffsetTable
    segments: list[Segment]
    next_offset: int
    last_timestamp: int
    findings: list[RecoveryFinding]
    failure: str | None = None
    """Why the partition is read-only, or None. Either a file could not be truncated, or the newest segment belongs to
    another partition."""
    is_incomplete: bool = False
    """Whether another partition's file is in the place of one of this partition's files. If that file is restored, it
    was not written by the last session but by an earlier one."""
    is_offline: bool = False
    """Whether the directory is another partition's, so that nothing can be read or written."""
    stop: StopKind = StopKind.CRASHED
    """How the session before ended."""
    lack_of_room: str | None = None
    """What could not be written, because the disk is full; or None. The files are not changed as they should be, and
    nothing may be appended to them until the recovery was repeated. Messages and offsets can be read."""
    is_as_left: bool = False
    """Whether the last stop was clean. If nothing is written, the next stop then has nothing to do."""


def recover_partition(
    file_system: FileSystem, directory: Path, identity: PartitionIdentity, settings: LogSettings, stop: StopKind
) -> RecoveredPartition:
    """Open a partition.

    Raises:
        ForeignPartition: the directory belongs to another partition. Nothing in it was changed.
        StartRefused: something that is not a file has the name of one.
        StorageFailure: the disk cannot be read or written.
    """
    try:
        return _Recovery(file_system, directory, identity, settings, stop).run()
    except OSError as error:
        path = Path(error.filename) if isinstance(error.filename, str) else directory
        raise storage_failure("recover", path, error) from error


class _Recovery:
    def __init__(
        self,
        file_system: FileSystem,
        directory: Path,
        identity: PartitionIdentity,
        settings: LogSettings,
        stop: StopKind,
    ) -> None:
        self._file_system = file_system
        self._directory = directory
        self._identity = identity
        self._settings = settings
        self._stop = self._first_stop = stop
        self._quarantine = Quarantine(file_system, directory, settings.limits.copy_size)
        self._findings: list[RecoveryFinding] = []
        self._events: list[Event] = []
        self._segments: list[Segment] = []
        self._is_directory_changed = False
        self._shown_end = 0
        """The end of the messages in the page cache. They may not be on disk: a sync may have failed unreported."""
        self._failure: str | None = None
        self._lack_of_room: str | None = None
        self._foreign: dict[int, PartitionIdentity] = {}
        """Segments of other partitions, by first offset."""
        self._ledger: Ledger | None = None
        self._doubtful_end: int | None = None
        """The end of the offsets that were removed but may have been confirmed; None if nothing was removed."""
        self._cut_finding: int | None = None
        """The index of the finding that reports the removal."""

    def run(self) -> RecoveredPartition:
        listing = list_partition(self._file_system, self._directory)
        self._settle()
        path = self._directory / LEDGER
        reading = read_ledger(self._file_system, path, self._identity)
        self._exclude_foreign_files(listing, reading)
        # Nothing has been changed so far. From here on, the directory is known to belong to this partition.
        self._ledger = ledger = Ledger(self._file_system, path, self._identity, reading, self._settings.limits)
        self._tidy(listing)
        self._report_ledger(reading)
        if reading.state.sync_failed:
            # The page cache may differ from the disk, so unsynced data cannot be trusted.
            self._stop = StopKind.CRASHED
        self._remove_deleted_again(listing, reading.state.numbers.start_offset)
        self._take_sealed(listing, reading)
        self._take_unsealed(listing, reading)
        next_offset = self._choose_next_offset(reading)
        offsets = self._take_offsets(reading)
        if self._is_directory_changed:
            sync_directory(self._file_system, self._directory)
        self._write_ledger(ledger, reading)
        timestamps = [segment.last_timestamp for segment in self._segments]
        last_timestamp = max(timestamps, default=0)
        return RecoveredPartition(
            ledger,
            offsets,
            self._segments,
            next_offset,
            max(last_timestamp, reading.state.numbers.last_timestamp),
            self._findings,
            self._failure,
            # If the recovery is not repeated before the next start, that one must do what this one could not. A kill in
            # between does not make less of a crash.
            is_incomplete=bool(self._foreign) or (self._lack_of_room is not None and self._stop is StopKind.CRASHED),
            stop=self._first_stop,
            lack_of_room=self._lack_of_room,
            is_as_left=self._stop is StopKind.CLEAN,
        )

    def _note_lack(self, failure: StorageFailure) -> None:
        """Go on without what the full disk has refused. Raises any other failure."""
        if not isinstance(failure, DiskFull):
            raise failure
        self._lack_of_room = self._lack_of_room or str(failure)

    @contextmanager
    def _if_there_is_room(self, path: Path) -> Iterator[None]:
        """A step that needs room on the disk. Without it, the partition takes no messages until there is room."""
        try:
            yield
        except OSError as error:
            self._note_lack(storage_failure("recover", path, error))
        except StorageFailure as failure:
            self._note_lack(failure)

    # --- files by name ---

    def _settle(self) -> None:
        """Sync file names, ledger and offsets, then read them from the disk instead of the page cache.

        After a kill they may not be synced. This session relies on what they say: reserved offsets, the start offset,
        the offsets of consumers. Without the sync, a power cut could restore an earlier version.
        """
        if self._stop is StopKind.CLEAN:
            return
        # Another partition's directory is left untouched: not even its files are synced.
        owner = read_ledger(self._file_system, self._directory / LEDGER, self._identity).foreign_owner
        if owner is not None:
            raise ForeignPartition(self._directory, self._identity, owner, LEDGER_TEXT)
        for name in (LEDGER, OFFSETS):
            try:
                file = self._file_system.open(self._directory / name, writable=True)
            except FileNotFoundError:
                continue
            with closing(file):
                sync_file(file)
                file.discard_cache()
        sync_directory(self._file_system, self._directory)

    def _exclude_foreign_files(self, listing: PartitionListing, reading: LedgerReading) -> None:
        """Remove files of other partitions from the listing, so that recovery does not touch them.

        Sealed segments are read only if their size differs from the one in the ledger. Reads check every batch anyway.

        Raises:
            ForeignPartition: the whole directory belongs to another partition.
        """
        if reading.foreign_owner is not None:
            raise ForeignPartition(self._directory, self._identity, reading.foreign_owner, LEDGER_TEXT)
        sealed = reading.state.sealed.items()
        known = frozenset(base for base, facts in sealed if listing.log_sizes.get(base) == facts.size)
        paths = {base: log_path(self._directory, base) for base in sorted(listing.log_sizes)}
        owners = find_log_owners(self._file_system, paths, self._identity, known=known)
        if owners.stranger is not None and not reading.sequence:
            raise ForeignPartition(self._directory, self._identity, *owners.stranger)
        self._foreign = owners.foreign
        for base in owners.foreign:
            del listing.log_sizes[base]
            # The index belongs to the other partition too.
            listing.index_bases.discard(base)

    def _tidy(self, listing: PartitionListing) -> None:
        for path in listing.leftovers:
            self._unlink(path)
            self._note(Oddity.LEFTOVER, path, "removed a temporary file of an interrupted operation", is_damage=False)
        for path in listing.strays:
            self._note(Oddity.STRAY, path, "ignoring a file that does not belong here", is_damage=False)
        for base in listing.index_bases - listing.log_sizes.keys():
            # The log that this index was derived from no longer exists.
            self._unlink(index_path(self._directory, base))

    def _report_ledger(self, reading: LedgerReading) -> None:
        path = self._directory / LEDGER
        if not reading.exists:
            self._note(Oddity.NO_LEDGER, path, "the ledger is missing; rebuilding it from the segments")
            return
        # A kill can tear the record that was being written, and a power cut every record that was not synced. Nothing
        # relied on these records.
        last_position = (reading.record_count - 1) * RECORD_SIZE
        torn_from = reading.synced_end if self._stop is StopKind.CRASHED else last_position
        for position, reason in reading.problems:
            is_torn = self._stop is not StopKind.CLEAN and position >= torn_from
            self._note(Oddity.NO_LEDGER, path, reason, position=position, is_damage=not is_torn)

    def _remove_deleted_again(self, listing: PartitionListing, start_offset: int) -> None:
        for base in sorted(listing.log_sizes):
            if base < start_offset:
                path = log_path(self._directory, base)
                self._unlink(path)
                self._unlink(index_path(self._directory, base))
                del listing.log_sizes[base]
                text = "removed a deleted segment that a crash had restored"
                self._note(Oddity.BELOW_START, path, text, is_damage=False)

    # --- sealed segments: not read ---

    def _take_sealed(self, listing: PartitionListing, reading: LedgerReading) -> None:
        for base, facts in sorted(reading.state.sealed.items()):
            path = log_path(self._directory, base)
            size = listing.log_sizes.pop(base, None)
            if base in self._foreign:
                text = f"{self._foreign_text(base)}; the sealed segment of this partition is missing"
                self._lose(Oddity.FOREIGN_SEGMENT, path, text, base, facts.end_offset, reading)
                continue
            if size is None:
                text = "the sealed segment is missing"
                self._lose(Oddity.SEALED_MISSING, path, text, base, facts.end_offset, reading)
                continue
            if size < facts.size and (found := condensed_facts(self._file_system, path, self._identity, facts)):
                # The crash came after the file was replaced and before the ledger said so.
                facts = found
                self._events.append(Sealed(found))
            segment = Segment.from_facts(facts, self._identity, self._settings)
            segment.state = SegmentState.SEALED
            if size < facts.size:
                text, missing = f"the sealed segment has {size} bytes instead of {facts.size}", facts.size - size
                self._note(Oddity.SEALED_SHORT, path, text, position=size, size=missing, end_offset=facts.end_offset)
                segment.size = size
            elif size > facts.size:
                self._note(
                    Oddity.SEALED_LONG,
                    path,
                    f"the sealed segment has {size} bytes instead of {facts.size}; ignoring the rest",
                    position=facts.size,
                    size=size - facts.size,
                )
            self._add(segment, reading)

    # --- unsealed segments: read from the recovery point on ---

    def _take_unsealed(self, listing: PartitionListing, reading: LedgerReading) -> None:
        progress = reading.state.progress
        sealed_end = max((facts.end_offset for facts in reading.state.sealed.values()), default=0)
        self._report_foreign(reading)
        known = listing.log_sizes.keys() | reading.state.sealed.keys() | self._foreign.keys()
        if progress is not None and progress.size and progress.base_offset not in known:
            path = log_path(self._directory, progress.base_offset)
            bounds = progress.base_offset, progress.end_offset
            self._lose(Oddity.OPEN_MISSING, path, "the open segment is missing", *bounds, reading)
        is_cut = False
        for base in sorted(listing.log_sizes):
            path = log_path(self._directory, base)
            # Sealed segments may follow: then only the record of this segment's seal was lost.
            number = bisect_left(self._segments, base, key=_base_offset)
            end = self._segments[number - 1].end_offset if number else reading.state.numbers.start_offset
            if is_cut or base < end or self._follows_a_hole(base, end, reading):
                follows_loss = is_cut or base >= end
                reason = "it follows lost messages" if follows_loss else f"it starts below offset {end}"
                with self._if_there_is_room(path):
                    if base >= end:
                        # The loss before it may be bit rot, and the messages in this segment may have been confirmed.
                        self._retire(end, listing.offset_bound(base), reading, is_loss=False)
                    self._set_aside(path, reason, is_damage=base < end)
                is_cut = is_cut or base >= end
                continue
            is_synced = base < sealed_end or (progress is not None and base < progress.base_offset)
            is_cut = self._take_open(base, listing, reading, is_synced=is_synced)
        self._refuse_writes_before_foreign_segments(reading)
        for before, after in pairwise(self._segments):
            first, end = before.end_offset, after.base_offset
            if first < end and not self._knows_gap(first, end, reading):
                path = log_path(self._directory, end)
                self._lose(Oddity.OFFSET_HOLE, path, _HOLE_TEXT, first, end, reading)

    def _report_foreign(self, reading: LedgerReading) -> None:
        """Report segments of other partitions in the place of unsealed ones."""
        progress = reading.state.progress
        for base in self._foreign.keys() - reading.state.sealed.keys():
            path, text = log_path(self._directory, base), self._foreign_text(base)
            if progress is not None and progress.base_offset == base and progress.size:
                self._lose(Oddity.FOREIGN_SEGMENT, path, text, base, progress.end_offset, reading)
            else:
                self._note(Oddity.FOREIGN_SEGMENT, path, text)

    def _foreign_text(self, base: int) -> str:
        found, expected = str(self._foreign[base]), str(self._identity)
        return f"ignoring a segment of partition {found} in the directory of partition {expected}"

    def _refuse_writes_before_foreign_segments(self, reading: LedgerReading) -> None:
        """Make the partition read-only if its newest segment may have been replaced: its offsets may be confirmed."""
        end = max([reading.state.numbers.start_offset, *(segment.end_offset for segment in self._segments)])
        later = [base for base in self._foreign if base >= end]
        if later and self._failure is None:
            path, found = log_path(self._directory, min(later)), str(self._foreign[min(later)])
            self._failure = (
                f"{path} belongs to partition {found}, and the newest segment of this partition may be missing; stop "
                "the server, move that file to its own directory, and restore the missing segment"
            )

    def _follows_a_hole(self, base: int, end: int, reading: LedgerReading) -> bool:
        """Whether a segment must go because messages before it are missing, as a power cut can leave them."""
        if base == end or (not self._segments and base == reading.state.numbers.start_offset):
            return False
        gaps = (*reading.state.gaps, *self._gaps())
        # Numbering continues right after a gap. A segment that starts inside a gap is older than the gap.
        if any(gap.first_offset <= end and gap.end_offset == base for gap in gaps):
            return False
        is_replaced = any(end <= foreign < base for foreign in self._foreign)
        if self._stop is StopKind.CRASHED and reading.exists and base > reading.state.synced_base and not is_replaced:
            return True
        if self._segments or base > end:
            path = log_path(self._directory, base)
            self._lose(Oddity.OFFSET_HOLE, path, _HOLE_TEXT, end, base, reading)
        return False

    def _take_open(self, base: int, listing: PartitionListing, reading: LedgerReading, *, is_synced: bool) -> bool:
        """Read one segment and repair it. Return whether later segments must go."""
        path = log_path(self._directory, base)
        progress = reading.state.progress
        facts = progress if progress is not None and progress.base_offset == base else None
        if facts is not None and listing.log_sizes[base] < facts.size:
            size = listing.log_sizes[base]
            text = f"the segment has {size} bytes, but {facts.size} were synced"
            self._note(Oddity.SHORT_OF_RECOVERY_POINT, path, text, position=size, size=facts.size - size)
            facts = None
        # Without a ledger, it is unknown what was synced. Only a torn end is removed then.
        stop = self._stop if reading.exists and not is_synced else StopKind.KILLED
        # The first write or read opens it again: a start then needs only a few descriptors per thread, however many
        # partitions there are, and never more than the session before it.
        with closing(self._file_system.open(path, writable=True)) as file:
            scanned = scan_open_segment(
                self._file_system,
                file,
                self._identity,
                base_offset=base,
                facts=facts,
                settings=self._settings,
                stop_at_first_bad=stop is StopKind.CRASHED,
                from_disk=self._stop is not StopKind.CLEAN,
                look_first=self._stop is StopKind.KILLED,
            )
            self._shown_end = max(self._shown_end, scanned.shown_end_offset)
            self._mark_damages(scanned, path, stop, reading)
            bases = listing.log_sizes.keys() | reading.state.sealed.keys() | self._foreign.keys()
            following = min((later for later in bases if later > base), default=None)
            # After a clean stop, the ledger records where the messages end.
            is_known_end = stop is StopKind.CLEAN and facts is not None and facts.size == scanned.segment.size
            cut = SegmentEnd(stop, following, is_known_end, scanned.doubtful_end_offset)
            if stop is StopKind.CRASHED:
                # Later segments must go too. One record covers their offsets and these: if the gap ended where one of
                # them starts, and this start were interrupted, the next start would keep that segment.
                doubtful_end = max(scanned.doubtful_end_offset, listing.offset_bound(base + 1))
                cut = SegmentEnd(stop, None, is_known_end, doubtful_end)
            is_cut = self._cut_end(scanned, path, cut, reading)
        if scanned.segment.batch_count:
            self._add(scanned.segment, reading)
        elif self._failure is None and self._lack_of_room is None:
            self._unlink(path)
            self._unlink(index_path(self._directory, base))
            if scanned.bad_end is None:
                self._note(Oddity.EMPTY, path, "removed an empty segment", is_damage=False)
        return is_cut

    def _mark_damages(self, scanned: ScannedSegment, path: Path, stop: StopKind, reading: LedgerReading) -> None:
        """Record damage inside a segment that no crash explains. All bytes are kept; reads skip the damage."""
        case = case_for(stop, Tail.BAD_IN_BETWEEN)
        for damage in scanned.segment.damages:
            self._findings.append(
                RecoveryFinding(
                    case.letter,
                    path,
                    "damaged; reads skip this range",
                    case.is_damage,
                    damage.position,
                    damage.end_position - damage.position,
                    damage.first_offset,
                    damage.end_offset,
                )
            )
            if damage not in reading.state.damages:
                self._events.append(damage)

    def _cut_end(self, scanned: ScannedSegment, path: Path, cut: SegmentEnd, reading: LedgerReading) -> bool:
        """Remove what follows the last good batch. Return whether later segments must go too."""
        size = scanned.segment.size
        if scanned.bad_end is None:
            case = case_for(cut.stop, Tail.ZEROS if scanned.has_zeros else Tail.NOTHING)
        else:
            # A kill can tear only the last segment.
            is_torn = scanned.is_torn and cut.next_base_offset is None
            at_end = Tail.TORN_AT_THE_END if is_torn else Tail.BAD_AT_THE_END
            case = case_for(cut.stop, at_end if scanned.bad_end.end_offset is None else Tail.BAD_IN_BETWEEN)
            text = f"moved the end of the segment to {QUARANTINE}: {scanned.bad_end.reason}"
            if cut.next_base_offset is None:
                self._cut_finding = len(self._findings)
            self._findings.append(
                RecoveryFinding(case.letter, path, text, case.is_damage, size, scanned.file_size - size)
            )
        if case.action is RecoveryAction.KEEP:
            return False
        try:
            if case.action is not RecoveryAction.CUT_ZEROS:
                self._quarantine.copy(scanned.file, size, scanned.file_size)
                if not cut.is_known_end and cut.next_base_offset is None:
                    # It may be a confirmed batch that rotted, or whose end became zeros.
                    end_offset = scanned.segment.end_offset
                    self._retire(end_offset, cut.doubtful_end, reading, is_loss=case.is_damage)
            scanned.file.truncate(size)
            # Without this sync, a power cut could restore the bad bytes after batches that were acknowledged since.
            scanned.file.sync()
        except (OSError, StorageFailure) as error:
            failure = error if isinstance(error, StorageFailure) else storage_failure("truncate", path, error)
            if isinstance(failure, DiskFull):
                self._note_lack(failure)
                if (
                    case.action is not RecoveryAction.CUT_ZEROS
                    and not cut.is_known_end
                    and cut.next_base_offset is None
                ):
                    # Offsets of what is removed later are not used either.
                    self._doubt(cut.doubtful_end, reading)
                return case.action is RecoveryAction.CUT_ALL_BEHIND
            self._failure = f"could not truncate {path} to {size} bytes: {error}"
            # Makes the next start truncate it too, even after a mere kill. Otherwise the removed batches would return.
            self._events.append(SyncFailure())
        return case.action is RecoveryAction.CUT_ALL_BEHIND

    # --- numbers ---

    def _retire(self, first_offset: int, doubtful_end: int, reading: LedgerReading, *, is_loss: bool) -> None:
        """Make sure that the offsets of bytes that are about to be removed are never used again.

        The gap is durable before the bytes are removed. If this start is interrupted after that, the next one finds
        nothing to remove and could not know.
        """
        end = self._doubt(doubtful_end, reading)
        # Without a ledger, every start skips more offsets than that until one has written a ledger.
        if self._ledger is None or not reading.exists or first_offset >= end:
            return
        if not self._knows_gap(first_offset, end, reading):
            progress = reading.state.progress
            is_loss = is_loss or (progress is not None and first_offset < progress.end_offset)
            self._ledger.file.append(self._ledger.note(OffsetGap(first_offset, end, is_loss)), sync=True)

    def _doubt(self, doubtful_end: int, reading: LedgerReading) -> int:
        self._doubtful_end = max(self._doubtful_end or 0, doubtful_end, reading.state.numbers.reserved_end)
        return self._doubtful_end

    def _choose_next_offset(self, reading: LedgerReading) -> int:
        """The offset of the next message. It was never confirmed for another message."""
        numbers = reading.state.numbers
        end = max([numbers.start_offset, *(segment.end_offset for segment in self._segments)])
        known = [end, self._shown_end, *(gap.end_offset for gap in (*reading.state.gaps, *self._gaps()))]
        if reading.state.progress is not None:
            known.append(reading.state.progress.end_offset)
        if self._stop is StopKind.CRASHED:
            known.append(numbers.reserved_end)
        if self._doubtful_end is not None:
            known.append(self._doubtful_end)
        if self._segments and (not reading.exists or (self._stop is StopKind.CRASHED and reading.problems)):
            # The last reservation may be unreadable. Skip the largest possible one, counted from the last that can be
            # read, and the largest batch that it may have been made for.
            known.append(max(known) + self._settings.reservation_max + MESSAGE_COUNT_MAX)
        next_offset = max(known)
        if next_offset > end and not self._knows_gap(end, next_offset, reading):
            # Messages up to the recovery point were synced. If some are missing, they are lost.
            is_loss = reading.state.progress is not None and end < reading.state.progress.end_offset
            self._events.append(OffsetGap(end, next_offset, is_loss))
        self._report_skipped_offsets(end, next_offset)
        for number, segment in enumerate(self._segments):
            is_last = number == len(self._segments) - 1
            if segment.state is SegmentState.OPEN and (not is_last or next_offset != segment.end_offset):
                # Numbering continues elsewhere, in a new segment.
                segment.state = SegmentState.CLOSING
        return next_offset

    def _report_skipped_offsets(self, end: int, next_offset: int) -> None:
        """Add the offsets that are skipped because of a removal to its finding. After a power cut that is usual."""
        if self._cut_finding is None or next_offset == end or self._stop is StopKind.CRASHED:
            return
        finding = self._findings[self._cut_finding]
        text = f"{finding.text}; offsets {end} to {next_offset - 1} may have been confirmed and are never reused"
        self._findings[self._cut_finding] = replace(
            finding, text=text, is_warning=not finding.is_damage, first_offset=end, end_offset=next_offset
        )

    def _knows_gap(self, first: int, end: int, reading: LedgerReading) -> bool:
        return any(gap.first_offset <= first and end <= gap.end_offset for gap in (*reading.state.gaps, *self._gaps()))

    def _gaps(self) -> list[OffsetGap]:
        return [event for event in self._events if isinstance(event, OffsetGap)]

    def _write_ledger(self, ledger: Ledger, reading: LedgerReading) -> None:
        was_sync_failed, ledger.state.sync_failed = ledger.state.sync_failed, False
        events = list(self._events)
        unsealed = [segment for segment in self._segments if segment.state is not SegmentState.SEALED]
        # Not after a clean stop: if this write were interrupted, the torn record would count as damage.
        if self._stop is not StopKind.CLEAN and unsealed and unsealed[-1].facts() != reading.state.progress:
            events.append(Progress(unsealed[-1].facts()))
        draft = ledger.note(*events) if events else None
        if not reading.exists or reading.problems or was_sync_failed:
            with self._if_there_is_room(ledger.file.path):
                ledger.file.rewrite(ledger.draft_snapshot())
        elif self._events and draft is not None:
            with self._if_there_is_room(ledger.file.path):
                ledger.file.append(draft, sync=True)
        elif draft is not None:
            # The recovery point may be missing: the next start then reads more.
            with contextlib.suppress(DiskFull):
                ledger.file.append(draft, sync=False)

    # --- stored consumer offsets ---

    def _take_offsets(self, reading: LedgerReading) -> OffsetTable:
        path = self._directory / OFFSETS
        table, problems = OffsetTable.load(
            self._file_system,
            path,
            self._identity,
            reading.state.numbers.epoch,
            self._stop,
            mark=reading.state.offsets_mark,
            limits=self._settings.limits,
            keep_aside=self._quarantine.copy,
            set_aside=self._quarantine.move,
            if_there_is_room=self._if_there_is_room,
        )
        for position, reason, is_damage in problems:
            self._note(Oddity.OFFSETS_DAMAGED, path, reason, position=position, is_damage=is_damage)
        return table

    # --- small steps ---

    def _add(self, segment: Segment, reading: LedgerReading) -> None:
        known = {damage.position: damage for damage in segment.damages}
        for damage in reading.state.damages:
            if damage.base_offset == segment.base_offset and damage.end_position <= segment.size:
                known[damage.position] = damage
        segment.damages = tuple(known.values())
        segment.correction = reading.state.corrections.get(segment.base_offset, 0)
        insort(self._segments, segment, key=_base_offset)

    def _lose(
        self, oddity: Oddity, path: Path, text: str, first_offset: int, end_offset: int, reading: LedgerReading
    ) -> None:
        self._note(oddity, path, text, first_offset=first_offset, end_offset=end_offset)
        if not self._knows_gap(first_offset, end_offset, reading):
            self._events.append(OffsetGap(first_offset, end_offset, is_loss=True))

    def _set_aside(self, path: Path, reason: str, *, is_damage: bool) -> None:
        if self._lack_of_room is None:
            # Otherwise the gap that ends behind it may not be durable, and only its file says which offsets were used.
            self._quarantine.move(path)
            self._unlink(path.with_suffix(INDEX_SUFFIX))
            self._is_directory_changed = True
        letter = Oddity.OVERLAP.value if is_damage else "F"
        self._findings.append(RecoveryFinding(letter, path, f"moved the segment to {QUARANTINE}: {reason}", is_damage))

    def _unlink(self, path: Path) -> None:
        if unlink_if_there(self._file_system, path):
            self._is_directory_changed = True

    def _note(
        self,
        oddity: Oddity,
        path: Path,
        text: str,
        *,
        position: int = 0,
        size: int = 0,
        first_offset: int | None = None,
        end_offset: int | None = None,
        is_damage: bool = True,
    ) -> None:
        self._findings.append(
            RecoveryFinding(oddity.value, path, text, is_damage, position, size, first_offset, end_offset)
        )
