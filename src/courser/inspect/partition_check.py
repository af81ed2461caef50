"""One partition: its ledger, its segments and how they follow one another, its stored consumer offsets."""

import errno
from collections.abc import Callable, Iterator
from pathlib import Path

from courser.inspect.findings import Finding, Severity, VerifySummary
from courser.inspect.identity import find_first_header, identity_of
from courser.inspect.segment_check import Expectation, SegmentCheck, SegmentResult
from courser.inspect.small_files import BadRecordRow, LedgerInspection, OffsetsInspection, RecordRow
from courser.records.stored_header import PartitionIdentity
from courser.storage.files import FileSystem
from courser.storage.ledger import RECORD_SIZE, LedgerReading, LedgerState, SegmentFacts, read_ledger
from courser.storage.offset_table import GRANULE
from courser.storage.paths import LEDGER, LOG_SUFFIX, OFFSETS, QUARANTINE, base_offset_of, log_path

_NO_LEDGER = LedgerReading(LedgerState(), 0, 0, (), exists=False)


def _always() -> bool:
    return True


def is_partition(names: list[str]) -> bool:
    """Whether a directory with these files is a partition's."""
    return LEDGER in names or any(base_offset_of(name, LOG_SUFFIX) is not None for name in names)


def reading_failure(path: Path, error: OSError) -> Finding:
    """What to report for a file that cannot be read: a bad disk is damage, missing rights are not."""
    severity = Severity.DAMAGE if error.errno == errno.EIO else Severity.UNREADABLE
    return Finding(severity, "files", path, f"cannot be read: {error.strerror or error}")


class PartitionCheck:
    """Checks one partition directory. ``is_settled`` says whether its server stopped cleanly."""

    def __init__(
        self,
        file_system: FileSystem,
        directory: Path,
        summary: VerifySummary,
        *,
        is_settled: Callable[[], bool],
        on_progress: Callable[[int], None],
    ) -> None:
        self._file_system = file_system
        self._directory = directory
        self._summary = summary
        self._is_settled = is_settled
        self._on_progress = on_progress
        self._end_offset: int | None = None
        self._last_timestamp = 0

    def findings(self) -> Iterator[Finding]:
        """Everything that is wrong in the directory."""
        # First the names, then the ledger: a segment that the ledger calls sealed was there before it said so.
        entries = self._file_system.list_directory(self._directory)
        bases = sorted(base for entry in entries if (base := base_offset_of(entry.name, LOG_SUFFIX)) is not None)
        self._summary.partition_count += 1
        yield from self._check_ledger()
        identity = self._find_identity(bases)
        if identity is None:
            if bases:
                text = "nobody knows whose segments these are: neither the ledger nor a batch header is readable"
                yield Finding(Severity.DAMAGE, "ledger", self._directory, text)
            return
        reading = self._read_ledger(identity)
        yield from self._find_missing(bases, reading, identity)
        yield from self._check_segments(bases, reading, identity)
        yield from self._check_consumers(reading)
        if any(entry.name == QUARANTINE for entry in entries):
            text = "holds what earlier starts set aside: not checked"
            yield Finding(Severity.NOTE, "files", self._directory / QUARANTINE, text)

    # --- ledger ---

    def _check_ledger(self) -> Iterator[Finding]:
        path = self._directory / LEDGER
        try:
            ledger = LedgerInspection(self._file_system, path)
            if any(isinstance(row, BadRecordRow) for row in ledger.rows()):
                # Perhaps it was being written at that moment.
                ledger = LedgerInspection(self._file_system, path)
        except FileNotFoundError:
            text = "the ledger is missing: the next start reads what it can from the segments"
            yield Finding(Severity.DAMAGE, "ledger", path, text)
            return
        except OSError as error:
            yield reading_failure(path, error)
            return
        self._note_size(len(ledger.data))
        sequence = 0
        for row in ledger.rows():
            match row:
                case RecordRow():
                    if row.sequence <= sequence:
                        text = f"record {row.sequence} follows record {sequence}"
                        yield Finding(Severity.WARNING, "ledger", path, text, row.position, row.position + RECORD_SIZE)
                    sequence = row.sequence
                case BadRecordRow():
                    yield self._bad_record(path, "ledger", row, ledger.data, RECORD_SIZE)

    def _bad_record(self, path: Path, check: str, row: BadRecordRow, data: bytes, unit: int) -> Finding:
        """A bad record is torn if it is the last one and was not written to its end; else it is damage."""
        tail = data[row.position :]
        is_last = row.end_position == len(data)
        is_torn = is_last and (len(data) % unit != 0 or not any(tail)) and not self._is_settled()
        severity = Severity.NOTE if is_torn else Severity.DAMAGE
        reason = f"incomplete tail: {row.reason}" if is_torn else row.reason
        return Finding(severity, check, path, reason, row.position, row.end_position)

    def _read_ledger(self, identity: PartitionIdentity) -> LedgerReading:
        try:
            return read_ledger(self._file_system, self._directory / LEDGER, identity)
        except OSError:
            # Reported by ``_check_ledger``; the segments are checked without it.
            return _NO_LEDGER

    def _find_identity(self, bases: list[int]) -> PartitionIdentity | None:
        try:
            identity = LedgerInspection(self._file_system, self._directory / LEDGER).head.identity
        except OSError:
            identity = None
        for base in bases:
            if identity is not None:
                break
            try:
                file = self._file_system.open(log_path(self._directory, base))
                found = find_first_header(file, file.size())
            except OSError:
                continue
            identity = identity_of(found[1]) if found is not None else None
        return identity

    # --- segments ---

    def _find_missing(self, bases: list[int], reading: LedgerReading, identity: PartitionIdentity) -> Iterator[Finding]:
        """Segments that the ledger knows and the directory does not have."""
        known = dict(reading.state.sealed)
        progress = reading.state.progress
        if progress is not None and progress.size:
            known.setdefault(progress.base_offset, progress)
        suspects = [facts for base, facts in sorted(known.items()) if base not in bases]
        if not suspects:
            return
        # It may have come or gone since the names were listed: the newest ledger and another look decide.
        state = self._read_ledger(identity).state
        for facts in suspects:
            path = log_path(self._directory, facts.base_offset)
            if facts.base_offset < state.numbers.start_offset or self._is_there(path):
                continue
            if facts.base_offset not in state.sealed and facts != state.progress:
                continue
            text = "the segment is missing"
            yield Finding(
                Severity.DAMAGE, "files", path, text, first_offset=facts.base_offset, end_offset=facts.end_offset
            )

    def _is_there(self, path: Path) -> bool:
        try:
            self._file_system.open(path).close()
        except FileNotFoundError:
            return False
        except OSError:
            return True
        return True

    def _check_segments(
        self, bases: list[int], reading: LedgerReading, identity: PartitionIdentity
    ) -> Iterator[Finding]:
        state = reading.state
        self._end_offset = state.numbers.start_offset if reading.exists else None
        sealed_end = max((facts.end_offset for facts in state.sealed.values()), default=0)
        for number, base in enumerate(bases):
            path = log_path(self._directory, base)
            if base < state.numbers.start_offset:
                text = "below the start offset: being deleted, or deleted at the next start"
                yield Finding(Severity.NOTE, "files", path, text)
                continue
            progress = state.progress
            is_synced = base < sealed_end or (progress is not None and base < progress.base_offset)
            expected = Expectation(
                base_offset=base,
                sealed=state.sealed.get(base),
                synced=progress if progress is not None and progress.base_offset == base else None,
                is_settled=_always if is_synced else self._is_settled,
                next_base_offset=bases[number + 1] if number + 1 < len(bases) else None,
                last_timestamp=self._last_timestamp,
                known_damages=tuple(damage for damage in state.damages if damage.base_offset == base),
            )
            try:
                check = SegmentCheck(self._file_system, self._directory, identity, expected, self._note_size)
                yield from self._check_order(path, base, state)
                yield from check.findings()
            except FileNotFoundError:
                yield Finding(Severity.NOTE, "files", path, "gone since the directory was listed: skipped")
                self._end_offset = None
                continue
            except OSError as error:
                yield reading_failure(path, error)
                self._end_offset = None
                continue
            self._take(check.result, expected.sealed)

    def _take(self, result: SegmentResult, sealed: SegmentFacts | None) -> None:
        summary = self._summary
        summary.segment_count += 1
        summary.batch_count += result.batch_count
        summary.message_count += result.message_count
        self._last_timestamp = result.last_timestamp
        end_offset = sealed.end_offset if sealed is not None else result.end_offset
        # Of a segment that ends in damage nobody knows where it ended; the loss has been reported with it.
        is_unknown = result.ends_in_damage and sealed is None
        self._end_offset = None if is_unknown else max(end_offset, self._end_offset or 0)

    def _check_order(self, path: Path, base: int, state: LedgerState) -> Iterator[Finding]:
        """The offsets go on where the segment before ended, unless the ledger knows why not."""
        end = self._end_offset
        if end is None or base == end:
            return
        if base < end:
            text = f"begins at offset {base}, below {end}, where the segment before it ends"
            yield Finding(Severity.DAMAGE, "continuity", path, text, first_offset=base, end_offset=end)
            return
        # Gaps that the ledger knows, and sealed segments: one that is missing was reported under its own name.
        known = [(gap.first_offset, gap.end_offset) for gap in state.gaps]
        known += [(facts.base_offset, facts.end_offset) for facts in state.sealed.values()]
        missing = end
        for first_offset, end_offset in sorted(known):
            if first_offset <= missing:
                missing = max(missing, end_offset)
        if missing < base:
            text = "no segment holds the offsets before this one"
            yield Finding(Severity.DAMAGE, "continuity", path, text, first_offset=end, end_offset=base)

    # --- stored consumer offsets ---

    def _check_consumers(self, reading: LedgerReading) -> Iterator[Finding]:
        path = self._directory / OFFSETS
        try:
            offsets = OffsetsInspection(self._file_system, path)
            if any(isinstance(row, BadRecordRow) for row in offsets.rows()):
                offsets = OffsetsInspection(self._file_system, path)
        except FileNotFoundError:
            return
        except OSError as error:
            yield reading_failure(path, error)
            return
        self._note_size(len(offsets.data))
        for row in offsets.rows():
            if isinstance(row, BadRecordRow):
                yield self._bad_record(path, "consumers", row, offsets.data, GRANULE)
        epoch = offsets.head.epoch
        if epoch is not None and reading.exists and epoch < reading.state.numbers.epoch:
            text = "the stored offsets are of before a purge: the next start drops them"
            yield Finding(Severity.NOTE, "consumers", path, text)

    def _note_size(self, size: int) -> None:
        self._summary.size += size
        self._on_progress(size)
