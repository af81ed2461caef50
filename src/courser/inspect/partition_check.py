"""Check one partition: its ledger, its segments and their order, its stored consumer offsets."""

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from courser.inspect.findings import Finding, Severity, VerifySummary, reading_failure
from courser.inspect.segment_check import SegmentOutcome, SegmentPlan, SegmentResult
from courser.inspect.small_files import BadRecordRow, LedgerInspection, OffsetsInspection, RecordRow, stopped_cleanly
from courser.records.stored_header import PartitionIdentity
from courser.storage.files import FileSystem
from courser.storage.identity_search import first_header, log_owner, owner_of
from courser.storage.ledger import RECORD_SIZE, LedgerReading, LedgerState, SegmentFacts, read_ledger
from courser.storage.offset_table import GRANULE, OffsetsReading
from courser.storage.paths import LEDGER, LOG_SUFFIX, OFFSETS, QUARANTINE, base_offset_of, log_path

_NO_LEDGER = LedgerReading(LedgerState(), 0, 0, (), exists=False)

CheckSegment: TypeAlias = Callable[[SegmentPlan], SegmentOutcome]
"""Checks a segment, or returns the outcome of a check done elsewhere."""


def is_partition(names: list[str]) -> bool:
    """Whether a directory with these files is that of a partition."""
    return LEDGER in names or any(base_offset_of(name, LOG_SUFFIX) is not None for name in names)


@dataclass(frozen=True, slots=True)
class PartitionSurvey:
    """A partition's directory at one moment: its segments, and the ledger's facts about them."""

    bases: tuple[int, ...]
    """First offsets of the segments, ascending."""
    has_quarantine: bool
    ledger_findings: tuple[Finding, ...]
    identity: PartitionIdentity | None
    reading: LedgerReading

    def is_deleted(self, base: int) -> bool:
        """Whether the segment is below the start offset."""
        return base < self.reading.state.numbers.start_offset

    def plans(self, directory: Path, data_directory: Path | None) -> Iterator[SegmentPlan]:
        """Every segment to check, in order."""
        if self.identity is None:
            return
        state = self.reading.state
        progress = state.progress
        sealed_end = max((facts.end_offset for facts in state.sealed.values()), default=0)
        for number, base in enumerate(self.bases):
            if self.is_deleted(base):
                continue
            is_synced = base < sealed_end or (progress is not None and base < progress.base_offset)
            yield SegmentPlan(
                directory=directory,
                identity=self.identity,
                base_offset=base,
                sealed=state.sealed.get(base),
                synced=progress if progress is not None and progress.base_offset == base else None,
                is_synced=is_synced,
                data_directory=data_directory,
                next_base_offset=self.bases[number + 1] if number + 1 < len(self.bases) else None,
                known_damages=tuple(damage for damage in state.damages if damage.base_offset == base),
            )


class PartitionCheck:
    """Checks one partition directory. The session file in its data directory tells how its server stopped."""

    def __init__(
        self, file_system: FileSystem, directory: Path, data_directory: Path | None, summary: VerifySummary
    ) -> None:
        self._file_system = file_system
        self._directory = directory
        self._data_directory = data_directory
        self._summary = summary
        self._end_offset: int | None = None

    def survey(self) -> PartitionSurvey:
        """Read the file names and the ledger."""
        # First the names, then the ledger: a segment exists before the ledger records it as sealed.
        entries = self._file_system.list_directory(self._directory)
        bases = sorted(base for entry in entries if (base := base_offset_of(entry.name, LOG_SUFFIX)) is not None)
        findings = tuple(self._check_ledger())
        identity = self._find_identity(bases)
        reading = self._read_ledger(identity) if identity is not None else _NO_LEDGER
        has_quarantine = any(entry.name == QUARANTINE for entry in entries)
        return PartitionSurvey(tuple(bases), has_quarantine, findings, identity, reading)

    def findings(self, check: CheckSegment, survey: PartitionSurvey | None = None) -> Iterator[Finding]:
        """All findings in the directory, in its current state or in that of the survey."""
        survey = survey or self.survey()
        self._summary.partition_count += 1
        yield from survey.ledger_findings
        if survey.identity is None:
            if survey.bases:
                text = "the owner of the segments is unknown: neither the ledger nor a batch header is readable"
                yield Finding(Severity.DAMAGE, "ledger", self._directory, text)
            return
        yield from self._find_missing(survey.bases, survey.reading, survey.identity)
        yield from self._check_segments(check, survey)
        yield from self._check_consumers(survey.reading, survey.identity)
        if survey.has_quarantine:
            text = "contains files quarantined by earlier starts: not checked"
            yield Finding(Severity.NOTE, "files", self._directory / QUARANTINE, text)

    # --- ledger ---

    def _check_ledger(self) -> Iterator[Finding]:
        path = self._directory / LEDGER
        try:
            ledger = LedgerInspection(self._file_system, path)
            if any(isinstance(row, BadRecordRow) for row in ledger.rows()):
                # The file may have been written at that moment.
                ledger = LedgerInspection(self._file_system, path)
        except FileNotFoundError:
            text = "the ledger is missing: the next start recovers what it can from the segments"
            yield Finding(Severity.DAMAGE, "ledger", path, text)
            return
        except OSError as error:
            yield reading_failure(path, error)
            return
        self._summary.size += len(ledger.data)
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
        """A bad record is torn if it is the last one and incomplete; otherwise it is damage."""
        tail = data[row.position :]
        is_last = row.end_position == len(data)
        is_incomplete = is_last and (len(data) % unit != 0 or not any(tail))
        is_torn = is_incomplete and not stopped_cleanly(self._file_system, self._data_directory)
        severity = Severity.NOTE if is_torn else Severity.DAMAGE
        reason = f"incomplete tail: {row.reason}" if is_torn else row.reason
        return Finding(severity, check, path, reason, row.position, row.end_position)

    def _read_ledger(self, identity: PartitionIdentity) -> LedgerReading:
        try:
            return read_ledger(self._file_system, self._directory / LEDGER, identity)
        except OSError:
            # ``_check_ledger`` reports it; check the segments without it.
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
                with closing(self._file_system.open(log_path(self._directory, base))) as file:
                    found = first_header(file, file.size())
            except OSError:
                continue
            identity = owner_of(found[1]) if found is not None else None
        return identity

    # --- segments ---

    def _find_missing(
        self, bases: tuple[int, ...], reading: LedgerReading, identity: PartitionIdentity
    ) -> Iterator[Finding]:
        """Segments in the ledger that are missing in the directory."""
        known = dict(reading.state.sealed)
        progress = reading.state.progress
        if progress is not None and progress.size:
            known.setdefault(progress.base_offset, progress)
        suspects = [facts for base, facts in sorted(known.items()) if base not in bases]
        if not suspects:
            return
        # It may have been created or deleted since the names were listed: read the ledger and the directory again.
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

    def _check_segments(self, check: CheckSegment, survey: PartitionSurvey) -> Iterator[Finding]:
        state = survey.reading.state
        self._end_offset = state.numbers.start_offset if survey.reading.exists else None
        for base in filter(survey.is_deleted, survey.bases):
            text = "below the start offset: being deleted, or deleted at the next start"
            yield Finding(Severity.NOTE, "files", log_path(self._directory, base), text)
        for base, correction in state.corrections.items():
            text = f"the clock was wrong when it was written: its times are corrected by {correction // 1_000_000} s"
            yield Finding(Severity.NOTE, "times", log_path(self._directory, base), text)
        for plan in survey.plans(self._directory, self._data_directory):
            outcome = check(plan)
            self._summary.size += outcome.size
            if outcome.result is None:
                yield from outcome.findings
                self._end_offset = None
                continue
            if not outcome.result.batch_count and (stranger := self._stranger(plan)) is not None:
                yield stranger
                self._end_offset = None
                continue
            yield from self._check_order(plan.path, plan.base_offset, state)
            yield from outcome.findings
            self._take(outcome.result, plan.sealed)

    def _stranger(self, plan: SegmentPlan) -> Finding | None:
        """The finding for a segment that contains only batches of another partition."""
        owner = log_owner(self._file_system, plan.path, plan.identity)
        if owner in (None, plan.identity):
            return None
        assert owner is not None
        text = (
            f"contains messages of {owner} in the directory of {plan.identity}: the "
            "server leaves it unchanged and does not serve it; move it to its own directory and restore the right file"
        )
        sealed = plan.sealed or plan.synced
        bounds = (sealed.base_offset, sealed.end_offset) if sealed is not None else (None, None)
        return Finding(Severity.DAMAGE, "files", plan.path, text, None, None, *bounds)

    def _take(self, result: SegmentResult, sealed: SegmentFacts | None) -> None:
        summary = self._summary
        summary.segment_count += 1
        summary.batch_count += result.batch_count
        summary.message_count += result.message_count
        end_offset = sealed.end_offset if sealed is not None else result.end_offset
        # The end of a segment that ends in damage is unknown; the loss was reported with the damage.
        is_unknown = result.ends_in_damage and sealed is None
        self._end_offset = None if is_unknown else max(end_offset, self._end_offset or 0)

    def _check_order(self, path: Path, base: int, state: LedgerState) -> Iterator[Finding]:
        """Check that the offsets continue after the previous segment, unless the ledger explains the gap."""
        end = self._end_offset
        if end is None or base == end:
            return
        if base < end:
            text = f"starts at offset {base}, below {end}, where the previous segment ends"
            yield Finding(Severity.DAMAGE, "continuity", path, text, first_offset=base, end_offset=end)
            return
        # Known gaps, and sealed segments: a missing segment was already reported.
        known = [(gap.first_offset, gap.end_offset) for gap in state.gaps]
        known += [(facts.base_offset, facts.end_offset) for facts in state.sealed.values()]
        missing = end
        for first_offset, end_offset in sorted(known):
            if first_offset <= missing:
                missing = max(missing, end_offset)
        if missing < base:
            text = "no segment contains the offsets before this one"
            yield Finding(Severity.DAMAGE, "continuity", path, text, first_offset=end, end_offset=base)

    # --- stored consumer offsets ---

    def _check_consumers(self, reading: LedgerReading, identity: PartitionIdentity) -> Iterator[Finding]:
        path = self._directory / OFFSETS
        try:
            offsets = OffsetsInspection(self._file_system, path)
            if any(isinstance(row, BadRecordRow) for row in offsets.rows()):
                offsets = OffsetsInspection(self._file_system, path)
        except FileNotFoundError:
            yield from self._check_offsets_mark(path, reading, reading.state.numbers.epoch)
            return
        except OSError as error:
            yield reading_failure(path, error)
            return
        self._summary.size += len(offsets.data)
        head = offsets.head
        if head.identity is not None and head.identity != identity:
            text = f"the file belongs to partition {head.identity}: the next start moves it to quarantine"
            yield Finding(Severity.DAMAGE, "consumers", path, text)
            return
        if head.epoch is not None:
            yield from self._check_offsets_mark(path, reading, head.epoch, head.generation, head.size)
        for row in offsets.rows():
            if isinstance(row, BadRecordRow):
                yield self._bad_record(path, "consumers", row, offsets.data, GRANULE)
        epoch = head.epoch
        if epoch is not None and reading.exists and epoch < reading.state.numbers.epoch:
            text = "the stored offsets are from before a purge: the next start drops them"
            yield Finding(Severity.NOTE, "consumers", path, text)

    @staticmethod
    def _check_offsets_mark(
        path: Path, reading: LedgerReading, epoch: int, generation: int = 0, size: int = 0
    ) -> Iterator[Finding]:
        """Compare with the synced size in the ledger. Without a generation there is no file."""
        mark = reading.state.offsets_mark
        if mark is not None and mark.epoch == epoch == reading.state.numbers.epoch:
            text = OffsetsReading({}, size, (), generation=generation).loss(size, mark)
            if text is not None:
                yield Finding(Severity.DAMAGE, "consumers", path, text)
