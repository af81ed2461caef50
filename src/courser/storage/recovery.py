"""Opening a partition's directory: from whatever the last session left to a state that can take messages.

The cases are those of ``recovery_cases``. Running it twice gives the same as once: it may itself be interrupted at
any step. The cost does not grow with sealed segments; they are not read.
"""

from bisect import bisect_left, insort
from dataclasses import dataclass, replace
from itertools import pairwise
from operator import attrgetter
from pathlib import Path

from courser.errors import StorageFailure
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
from courser.storage.recovery_listing import PartitionListing, list_partition
from courser.storage.recovery_scan import ScannedSegment, SegmentEnd, scan_open_segment
from courser.storage.segment import Segment, SegmentState
from courser.storage.settings import LogSettings

_base_offset = attrgetter("base_offset")


@dataclass(slots=True)
class RecoveredPartition:
    """A partition as it was found and put in order."""

    ledger: Ledger
    offsets: OffsetTable
    segments: list[Segment]
    next_offset: int
    last_timestamp: int
    findings: list[RecoveryFinding]
    failure: str | None = None
    """Why nothing may be written here, if so: what should have been cut could not be, or the newest segment is
    another partition's."""
    is_incomplete: bool = False
    """Whether another partition's file stands where a file of this one may belong: if that comes back, it was left by
    an earlier session than the last one."""
    is_as_left: bool = False
    """Whether the last stop was clean: if nothing is written, the next one has nothing to put in order."""


def recover_partition(
    file_system: FileSystem, directory: Path, identity: PartitionIdentity, settings: LogSettings, stop: StopKind
) -> RecoveredPartition:
    """Open a partition.

    Raises:
        ForeignPartition: the directory is another partition's. Nothing in it was changed.
        StartRefused: something stands where a file belongs.
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
        self._stop = stop
        self._quarantine = Quarantine(file_system, directory, settings.limits.copy_size)
        self._findings: list[RecoveryFinding] = []
        self._events: list[Event] = []
        self._segments: list[Segment] = []
        self._is_directory_changed = False
        self._shown_end = 0
        """Where the messages end that the kernel shows: a sync may have failed, and nobody lived to report it."""
        self._failure: str | None = None
        self._foreign: dict[int, PartitionIdentity] = {}
        """Segments of other partitions, by first offset."""
        self._ledger: Ledger | None = None
        self._doubtful_end: int | None = None
        """Where the offsets end that may have been confirmed, of what was cut away; None if nothing was."""
        self._cut_finding: int | None = None
        """Which of the findings tells of the cut."""

    def run(self) -> RecoveredPartition:
        listing = list_partition(self._file_system, self._directory)
        self._settle()
        path = self._directory / LEDGER
        reading = read_ledger(self._file_system, path, self._identity)
        self._part_with_strangers(listing, reading)
        # Nothing was changed so far: from here on the directory is known to be ours.
        self._ledger = ledger = Ledger(self._file_system, path, self._identity, reading, self._settings.limits)
        self._tidy(listing)
        self._report_ledger(reading)
        if reading.state.sync_failed:
            # The kernel may show what the disk does not have: nothing unsynced can be believed.
            self._stop = StopKind.CRASHED
        self._remove_what_came_back(listing, reading.state.numbers.start_offset)
        self._take_sealed(listing, reading)
        self._take_unsealed(listing, reading)
        next_offset = self._number_on(reading)
        offsets = self._take_offsets(reading)
        if self._is_directory_changed:
            sync_directory(self._file_system, self._directory)
        self._write_ledger(ledger, reading)
        self._let_go_of_files()
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
            is_incomplete=bool(self._foreign),
            is_as_left=self._stop is StopKind.CLEAN,
        )

    def _let_go_of_files(self) -> None:
        """Close the segments: the first write or read opens them again.

        So a start holds a few files for each thread, however many partitions there are and whatever each of them was
        doing when the server was killed. It never needs more descriptors than the session before it.
        """
        for segment in self._segments:
            if segment.file is not None:
                segment.file.close()
                segment.file = None

    # --- what is there ---

    def _settle(self) -> None:
        """Make what the kernel shows of names, ledger and offsets durable, or see that it is not on the disk.

        After a kill they may not be synced. A power cut after this start would bring an earlier state back, while
        messages and stores rely on this one: reserved offsets, a new start, a consumer that was moved back.
        """
        if self._stop is StopKind.CLEAN:
            return
        # Another partition's directory is left exactly as it is: not even its files are synced.
        owner = read_ledger(self._file_system, self._directory / LEDGER, self._identity).foreign_owner
        if owner is not None:
            raise ForeignPartition(self._directory, self._identity, owner, LEDGER_TEXT)
        for name in (LEDGER, OFFSETS):
            try:
                file = self._file_system.open(self._directory / name, writable=True)
            except FileNotFoundError:
                continue
            sync_file(file)
            file.discard_cache()
            file.close()
        sync_directory(self._file_system, self._directory)

    def _part_with_strangers(self, listing: PartitionListing, reading: LedgerReading) -> None:
        """Find what belongs to another partition, and leave it out of the listing: nothing below touches it.

        Sealed segments are not read, unless they do not have the size of their seal; reads check every batch of them.

        Raises:
            ForeignPartition: the whole directory is another partition's.
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
            # It describes the other partition's segment, and goes where that goes.
            listing.index_bases.discard(base)

    def _tidy(self, listing: PartitionListing) -> None:
        for path in listing.leftovers:
            self._unlink(path)
            self._note(Oddity.LEFTOVER, path, "left by an interrupted step: removed", is_damage=False)
        for path in listing.strays:
            self._note(Oddity.STRAY, path, "not a file of this partition: left alone", is_damage=False)
        for base in listing.index_bases - listing.log_sizes.keys():
            # Derived from a log that is gone.
            self._unlink(index_path(self._directory, base))

    def _report_ledger(self, reading: LedgerReading) -> None:
        path = self._directory / LEDGER
        if not reading.exists:
            self._note(Oddity.NO_LEDGER, path, "missing: what it said is read from the segments again")
            return
        # A kill tears the record that was being written, a power cut any that was not synced: nobody relied on them.
        last_position = (reading.record_count - 1) * RECORD_SIZE
        torn_from = reading.synced_end if self._stop is StopKind.CRASHED else last_position
        for position, reason in reading.problems:
            is_torn = self._stop is not StopKind.CLEAN and position >= torn_from
            self._note(Oddity.NO_LEDGER, path, reason, position=position, is_damage=not is_torn)

    def _remove_what_came_back(self, listing: PartitionListing, start_offset: int) -> None:
        for base in sorted(listing.log_sizes):
            if base < start_offset:
                path = log_path(self._directory, base)
                self._unlink(path)
                self._unlink(index_path(self._directory, base))
                del listing.log_sizes[base]
                self._note(Oddity.BELOW_START, path, "deleted before, and back: removed again", is_damage=False)

    # --- sealed segments: not read ---

    def _take_sealed(self, listing: PartitionListing, reading: LedgerReading) -> None:
        for base, facts in sorted(reading.state.sealed.items()):
            path = log_path(self._directory, base)
            size = listing.log_sizes.pop(base, None)
            if base in self._foreign:
                text = f"{self._foreign_text(base)}; the sealed segment of this partition is gone"
                self._lose(Oddity.FOREIGN_SEGMENT, path, text, base, facts.end_offset, reading)
                continue
            if size is None:
                self._lose(Oddity.SEALED_MISSING, path, "the sealed segment is gone", base, facts.end_offset, reading)
                continue
            segment = Segment.from_facts(facts, self._identity, self._settings)
            segment.state = SegmentState.SEALED
            if size < facts.size:
                self._note(
                    Oddity.SEALED_SHORT,
                    path,
                    f"{size} bytes are left of {facts.size}",
                    position=size,
                    size=facts.size - size,
                    end_offset=facts.end_offset,
                )
                segment.size = size
            elif size > facts.size:
                self._note(
                    Oddity.SEALED_LONG,
                    path,
                    f"{size} bytes, of which {facts.size} were sealed: the rest is ignored",
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
            self._lose(Oddity.OPEN_MISSING, path, "the open segment is gone", *bounds, reading)
        is_cut = False
        for base in sorted(listing.log_sizes):
            path = log_path(self._directory, base)
            # Sealed segments may follow it: then only the record of its own seal was lost.
            number = bisect_left(self._segments, base, key=_base_offset)
            end = self._segments[number - 1].end_offset if number else reading.state.numbers.start_offset
            if is_cut or base < end or self._is_behind_a_hole(base, end, reading):
                oddity_text = "it lies behind a cut" if is_cut or base >= end else f"it begins below offset {end}"
                if base >= end:
                    # What was cut before it may be rot, and this one may have been confirmed.
                    self._retire(end, listing.offset_bound(base), reading, is_loss=False)
                self._set_aside(path, oddity_text, is_damage=base < end)
                is_cut = is_cut or base >= end
                continue
            is_synced = base < sealed_end or (progress is not None and base < progress.base_offset)
            is_cut = self._take_open(base, listing, reading, is_synced=is_synced)
        self._refuse_writes_before_strangers(reading)
        for before, after in pairwise(self._segments):
            first, end = before.end_offset, after.base_offset
            if first < end and not self._knows_gap(first, end, reading):
                path = log_path(self._directory, end)
                self._lose(Oddity.OFFSET_HOLE, path, "no segment holds the offsets before it", first, end, reading)

    def _report_foreign(self, reading: LedgerReading) -> None:
        """Segments of other partitions in the place of unsealed ones."""
        progress = reading.state.progress
        for base in self._foreign.keys() - reading.state.sealed.keys():
            path, text = log_path(self._directory, base), self._foreign_text(base)
            if progress is not None and progress.base_offset == base and progress.size:
                self._lose(Oddity.FOREIGN_SEGMENT, path, text, base, progress.end_offset, reading)
            else:
                self._note(Oddity.FOREIGN_SEGMENT, path, text)

    def _foreign_text(self, base: int) -> str:
        found, expected = str(self._foreign[base]), str(self._identity)
        return f"holds messages of {found} in the directory of {expected}: left as it is, and not served"

    def _refuse_writes_before_strangers(self, reading: LedgerReading) -> None:
        """Behind our last segment there may have been another one, with confirmed offsets that nobody knows now."""
        end = max([reading.state.numbers.start_offset, *(segment.end_offset for segment in self._segments)])
        later = [base for base in self._foreign if base >= end]
        if later and self._failure is None:
            path, found = log_path(self._directory, min(later)), str(self._foreign[min(later)])
            self._failure = (
                f"{path} holds messages of {found}, and the newest segment of this partition may be missing: stop the "
                "server, move that file to where it belongs, and put the right one back"
            )

    def _is_behind_a_hole(self, base: int, end: int, reading: LedgerReading) -> bool:
        """After a power cut a segment counts only if all before it is there."""
        if base == end or (not self._segments and base == reading.state.numbers.start_offset):
            return False
        gaps = (*reading.state.gaps, *self._gaps())
        # Numbering goes on right behind a gap. A segment that begins inside one was there before the gap was left.
        if any(gap.first_offset <= end and gap.end_offset == base for gap in gaps):
            return False
        is_replaced = any(end <= foreign < base for foreign in self._foreign)
        if self._stop is StopKind.CRASHED and reading.exists and base > reading.state.synced_base and not is_replaced:
            return True
        if self._segments or base > end:
            path = log_path(self._directory, base)
            self._lose(Oddity.OFFSET_HOLE, path, "no segment holds the offsets before it", end, base, reading)
        return False

    def _take_open(self, base: int, listing: PartitionListing, reading: LedgerReading, *, is_synced: bool) -> bool:
        """Read one segment and act on what is found. Return whether later ones must go."""
        path = log_path(self._directory, base)
        progress = reading.state.progress
        facts = progress if progress is not None and progress.base_offset == base else None
        if facts is not None and listing.log_sizes[base] < facts.size:
            size = listing.log_sizes[base]
            text = f"{size} bytes are left of {facts.size} that were synced"
            self._note(Oddity.SHORT_OF_RECOVERY_POINT, path, text, position=size, size=facts.size - size)
            facts = None
        # Without a ledger nobody knows what was synced: then nothing is cut away but a torn end.
        stop = self._stop if reading.exists and not is_synced else StopKind.KILLED
        scanned = scan_open_segment(
            self._file_system,
            path,
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
        # After a clean stop the ledger knows where the messages ended.
        is_known_end = stop is StopKind.CLEAN and facts is not None and facts.size == scanned.segment.size
        cut = SegmentEnd(stop, following, is_known_end, scanned.doubtful_end_offset)
        if stop is StopKind.CRASHED:
            # Later segments have to go too: their offsets with these, in one record. If the gap ended where one of
            # them begins, a start that is interrupted in between would take that one for the next after the gap.
            cut = SegmentEnd(stop, None, is_known_end, max(scanned.doubtful_end_offset, listing.offset_bound(base + 1)))
        is_cut = self._cut_end(scanned, path, cut, reading)
        if scanned.segment.batch_count:
            self._add(scanned.segment, reading)
        elif self._failure is None:
            self._unlink(path)
            self._unlink(index_path(self._directory, base))
            if scanned.bad_end is None:
                self._note(Oddity.EMPTY, path, "no message was ever in it: removed", is_damage=False)
        return is_cut

    def _mark_damages(self, scanned: ScannedSegment, path: Path, stop: StopKind, reading: LedgerReading) -> None:
        """Bad bytes with good batches behind them, where no crash explains them: keep all, pass over them in reads."""
        case = case_for(stop, Tail.BAD_IN_BETWEEN)
        for damage in scanned.segment.damages:
            self._findings.append(
                RecoveryFinding(
                    case.letter,
                    path,
                    "damaged; kept, and passed over by reads",
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
        """Deal with what follows the good part. Return whether later segments must go too."""
        size = scanned.segment.size
        if scanned.bad_end is None:
            case = case_for(cut.stop, Tail.ZEROS if scanned.has_zeros else Tail.NOTHING)
        else:
            # A kill does not tear a segment that another one follows.
            is_torn = scanned.is_torn and cut.next_base_offset is None
            at_end = Tail.TORN_AT_THE_END if is_torn else Tail.BAD_AT_THE_END
            case = case_for(cut.stop, at_end if scanned.bad_end.is_last else Tail.BAD_IN_BETWEEN)
            text = f"copied aside and cut: {scanned.bad_end.reason}"
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
                    # Whatever it was, it may have been confirmed: a batch that rotted, or whose end became zeros.
                    end_offset = scanned.segment.end_offset
                    self._retire(end_offset, cut.doubtful_end, reading, is_loss=case.is_damage)
            scanned.file.truncate(size)
            # Without this sync a power cut brings the bad bytes back, behind batches acknowledged since.
            scanned.file.sync()
        except (OSError, StorageFailure) as error:
            self._failure = f"{path} could not be cut at byte {size}: {error}"
            # The next start has to cut it too, even after a mere kill: what lies behind would come back to life.
            self._events.append(SyncFailure())
        return case.action is RecoveryAction.CUT_ALL_BEHIND

    # --- numbers ---

    def _retire(self, first_offset: int, doubtful_end: int, reading: LedgerReading, *, is_loss: bool) -> None:
        """Never use offsets again that bytes may have held which are about to be taken away.

        Durable before they are: a start that dies behind the cut is repeated by one that finds nothing to be cut.
        """
        end = self._doubtful_end = max(self._doubtful_end or 0, doubtful_end, reading.state.numbers.reserved_end)
        # Without a ledger every start leaves out more than that, until one has written it.
        if self._ledger is None or not reading.exists or first_offset >= end:
            return
        if not self._knows_gap(first_offset, end, reading):
            progress = reading.state.progress
            is_loss = is_loss or (progress is not None and first_offset < progress.end_offset)
            self._ledger.file.append(self._ledger.note(OffsetGap(first_offset, end, is_loss)), sync=True)

    def _number_on(self, reading: LedgerReading) -> int:
        """The offset of the next message: never one that was ever confirmed."""
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
            # The last reservation may be among what cannot be read: go as far as the largest one would, from the one
            # before it on, with the largest batch on top that it may have been made for.
            known.append(max(known) + self._settings.reservation_max + MESSAGE_COUNT_MAX)
        next_offset = max(known)
        if next_offset > end and not self._knows_gap(end, next_offset, reading):
            # Messages up to the recovery point were there: what is missing of them is a loss.
            is_loss = reading.state.progress is not None and end < reading.state.progress.end_offset
            self._events.append(OffsetGap(end, next_offset, is_loss))
        self._report_skipped_offsets(end, next_offset)
        for number, segment in enumerate(self._segments):
            is_last = number == len(self._segments) - 1
            if segment.state is SegmentState.OPEN and (not is_last or next_offset != segment.end_offset):
                # Numbering goes on elsewhere: a new segment begins there.
                segment.state = SegmentState.CLOSING
        return next_offset

    def _report_skipped_offsets(self, end: int, next_offset: int) -> None:
        """Say with the cut which offsets are left out because of it. After a power cut that is usual."""
        if self._cut_finding is None or next_offset == end or self._stop is StopKind.CRASHED:
            return
        finding = self._findings[self._cut_finding]
        text = f"{finding.text}; offsets {end} to {next_offset - 1} may have been confirmed and are not used again"
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
        # Not after a clean stop: interrupted, it would leave a torn record that only rot could explain.
        if self._stop is not StopKind.CLEAN and unsealed and unsealed[-1].facts() != reading.state.progress:
            events.append(Progress(unsealed[-1].facts()))
        draft = ledger.note(*events) if events else None
        if not reading.exists or reading.problems or was_sync_failed:
            ledger.file.rewrite(ledger.draft_snapshot())
        elif draft is not None:
            ledger.file.append(draft, sync=bool(self._events))

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
        self._quarantine.move(path)
        self._unlink(path.with_suffix(INDEX_SUFFIX))
        self._is_directory_changed = True
        letter = Oddity.OVERLAP.value if is_damage else "F"
        self._note_letter(letter, path, f"{reason}: set aside in {QUARANTINE}", 0, 0, is_damage=is_damage)

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
        self._note_letter(oddity.value, path, text, position, size, first_offset, end_offset, is_damage=is_damage)

    def _note_letter(
        self,
        letter: str,
        path: Path,
        text: str,
        position: int,
        size: int,
        first_offset: int | None = None,
        end_offset: int | None = None,
        *,
        is_damage: bool,
    ) -> None:
        self._findings.append(RecoveryFinding(letter, path, text, is_damage, position, size, first_offset, end_offset))
