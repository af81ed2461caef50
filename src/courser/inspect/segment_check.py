"""Check one segment: every batch, every message, and its index."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from courser.inspect.findings import Finding, Severity, reading_failure
from courser.inspect.index_check import IndexCheck
from courser.inspect.log_file import check_batch
from courser.inspect.small_files import stopped_cleanly
from courser.records.encryption import KeyRing
from courser.records.stored_header import PartitionIdentity
from courser.storage.files import File, FileSystem
from courser.storage.ledger import DamagedRange, SegmentFacts
from courser.storage.paths import index_path, log_path
from courser.storage.recovery_scan import judge_end
from courser.storage.scan import BadRange, GoodBatch, ZeroTail, scan


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentPlan:
    """A segment to check, possibly in another process, and what the rest of its partition implies for it."""

    directory: Path
    identity: PartitionIdentity
    base_offset: int
    sealed: SegmentFacts | None = None
    synced: SegmentFacts | None = None
    """The recovery point, if it is in this segment."""
    is_synced: bool = False
    """Whether all of it was synced, according to the ledger."""
    data_directory: Path | None = None
    """Its session file tells whether a crash may have torn the end of the segment."""
    next_base_offset: int | None = None
    """The first offset of the next segment."""
    known_damages: tuple[DamagedRange, ...] = ()

    @property
    def path(self) -> Path:
        """The log of the segment."""
        return log_path(self.directory, self.base_offset)


@dataclass(slots=True)
class SegmentResult:
    """The counts of a check."""

    end_offset: int
    good_size: int = 0
    """Bytes up to the end of the last good batch."""
    batch_count: int = 0
    message_count: int = 0
    first_timestamp: int = 0
    last_timestamp: int = 0
    is_whole: bool = True
    """Whether all bytes are good batches, or zeros after the last one."""
    ends_in_damage: bool = False
    """Whether ``end_offset`` is only the end of the good part."""


@dataclass(frozen=True, slots=True)
class SegmentOutcome:
    """The outcome of the check of one segment."""

    findings: tuple[Finding, ...]
    result: SegmentResult | None
    """None if it could not be read, or was deleted."""
    size: int = 0
    """Bytes that were read."""


def check_segment(
    file_system: FileSystem, plan: SegmentPlan, keys: KeyRing, on_progress: Callable[[int], None]
) -> SegmentOutcome:
    """Check one segment to its end. A deleted or unreadable segment is an outcome too."""
    sizes: list[int] = []

    def note_size(size: int) -> None:
        sizes.append(size)
        on_progress(size)

    try:
        check = _SegmentCheck(file_system, plan, keys)
        findings = tuple(check.findings(note_size))
    except FileNotFoundError:
        gone = Finding(Severity.NOTE, "files", plan.path, "deleted since the directory was listed: skipped")
        return SegmentOutcome((gone,), None, sum(sizes))
    except OSError as error:
        return SegmentOutcome((reading_failure(plan.path, error),), None, sum(sizes))
    return SegmentOutcome(findings, check.result, sum(sizes))


class _SegmentCheck:
    """Checks one segment up to its size when it is opened. Call ``findings`` once, then ``result``."""

    def __init__(self, file_system: FileSystem, plan: SegmentPlan, keys: KeyRing) -> None:
        self._keys = keys
        self._unchecked: dict[str, int] = {}
        """Why messages were not checked, and in how many batches."""
        self._path = plan.path
        self._plan = plan
        self._file_system = file_system
        self._file: File = file_system.open(self._path)
        self._size = self._file.size()
        index = index_path(plan.directory, plan.base_offset)
        is_sealed = plan.sealed is not None
        self._index = IndexCheck(file_system, index, plan.identity, plan.base_offset, is_sealed=is_sealed)
        self.result = SegmentResult(plan.base_offset)

    def findings(self, on_progress: Callable[[int], None]) -> Iterator[Finding]:
        sealed = self._plan.sealed
        reported = 0
        end = self._size if sealed is None else min(self._size, sealed.size)
        for found in self._scan(end):
            match found:
                case GoodBatch():
                    yield from self._check_batch(found)
                    on_progress(found.end_position - reported)
                    reported = found.end_position
                case BadRange() if found.end_offset is not None:
                    self.result.is_whole = False
                    yield self._damage(found, found.end_offset)
                case BadRange() | ZeroTail():
                    yield from self._check_end(found)
        for reason, count in self._unchecked.items():
            text = f"the hashes of {count} batches are right, but their messages were not checked: {reason}"
            yield Finding(Severity.NOTE, "frames", self._path, text)
        is_condensed = self._is_condensed()
        if not is_condensed:
            yield from self._check_size()
            yield from self._check_facts()
        if self._index.size or self._is_still_there():
            sealed_size = self._size if is_condensed else sealed.size if sealed is not None else None
            yield from self._index.findings(sealed_size=sealed_size, is_log_whole=self.result.is_whole)
        on_progress(self._size - reported + self._index.size)

    def _scan(self, end: int) -> Iterator[GoodBatch | BadRange | ZeroTail]:
        """Scan the log. Bad bytes of a segment that may be growing are read twice before they are reported.

        The first read may have seen a batch that was being written, and a moment later good batches after it.
        """
        start, offset, suspect = 0, self._plan.base_offset, -1
        while start < end:
            restart = False
            for found in scan(self._file, self._plan.identity, start=start, end=end, offset=offset):
                if isinstance(found, BadRange) and self._plan.sealed is None and found.position != suspect:
                    start = suspect = found.position
                    restart = True
                    break
                yield found
                if isinstance(found, GoodBatch):
                    offset = found.header.end_offset
            if not restart:
                return

    def _is_still_there(self) -> bool:
        """Whether the segment has not been deleted since it was opened."""
        try:
            self._file_system.open(self._path).close()
        except FileNotFoundError:
            return False
        return True

    def _check_batch(self, batch: GoodBatch) -> Iterator[Finding]:
        header, result = batch.header, self.result
        bounds = (batch.position, batch.end_position, header.base_offset, header.end_offset)
        check = check_batch(batch, self._keys)
        if check.unchecked:
            self._unchecked[check.unchecked] = self._unchecked.get(check.unchecked, 0) + 1
        for problem in check.problems:
            yield Finding(Severity.DAMAGE, "log", self._path, problem, *bounds)
            result.is_whole = False
        if check.lying_frames:
            first = header.base_offset + check.lying_frames[0]
            count = len(check.lying_frames)
            text = f"messages with a wrong checksum: {count}, the first at offset {first}; sent by the client that way"
            yield Finding(Severity.WARNING, "frames", self._path, text, *bounds)
        if header.base_timestamp < result.last_timestamp:
            text = f"time goes back from {result.last_timestamp} to {header.base_timestamp}"
            yield Finding(Severity.DAMAGE, "times", self._path, text, *bounds)
        self._index.observe(batch)
        if not result.batch_count:
            result.first_timestamp = header.base_timestamp
        result.last_timestamp = max(header.base_timestamp, result.last_timestamp)
        result.batch_count += 1
        result.message_count += header.message_count
        result.end_offset = header.end_offset
        result.good_size = batch.end_position

    def _check_end(self, found: BadRange | ZeroTail) -> Iterator[Finding]:
        """Check the bytes after the last good batch: preallocated, torn, or damaged."""
        plan, result = self._plan, self.result
        if plan.sealed is not None:
            if self._size < plan.sealed.size:
                # The file was truncated: report that once, not twice.
                return
            synced_size = plan.sealed.size
        else:
            synced_size = plan.synced.size if plan.synced is not None else 0
        is_zero = isinstance(found, ZeroTail)
        if found.position < synced_size or (not is_zero and self._is_settled()):
            result.is_whole = False
            result.ends_in_damage = True
            if self._size < synced_size:
                return
            yield self._damage(found, self._end_of_loss())
        elif is_zero:
            return
        elif not judge_end(self._file, self._plan.identity, found.position, found.end_position, result.end_offset)[0]:
            # The batch is complete but wrong: neither a write in progress nor a kill explains that.
            result.is_whole = False
            result.ends_in_damage = True
            yield self._damage(found, self._end_of_loss())
        else:
            text = f"incomplete tail, from a write in progress or a kill: {_reason(found)}"
            bounds = (found.position, found.end_position, result.end_offset, None)
            yield Finding(Severity.NOTE, "log", self._path, text, *bounds)

    def _is_settled(self) -> bool:
        """Whether no crash explains a torn end: everything was synced, or the server stopped cleanly."""
        return self._plan.is_synced or stopped_cleanly(self._file_system, self._plan.data_directory)

    def _end_of_loss(self) -> int | None:
        """The offset after the missing ones at the end of the segment."""
        plan = self._plan
        if plan.sealed is not None:
            return plan.sealed.end_offset
        if plan.next_base_offset is not None:
            return plan.next_base_offset
        synced = plan.synced
        return synced.end_offset if synced is not None and synced.end_offset > self.result.end_offset else None

    def _is_condensed(self) -> bool:
        """Whether the server has condensed the segment since the ledger was read, or crashed before it wrote that."""
        sealed, result = self._plan.sealed, self.result
        is_shorter = sealed is not None and self._size < sealed.size
        return is_shorter and result.is_whole and sealed is not None and result.end_offset == sealed.end_offset

    def _check_size(self) -> Iterator[Finding]:
        facts = self._plan.sealed or self._plan.synced
        if facts is None:
            return
        result = self.result
        if self._size < facts.size:
            result.is_whole = False
            result.ends_in_damage = True
            verb = "sealed" if self._plan.sealed is not None else "synced"
            text = f"the file was truncated: {self._size} of {facts.size} {verb} bytes are left"
            bounds = (result.good_size, facts.size, result.end_offset, facts.end_offset)
            yield Finding(Severity.DAMAGE, "log", self._path, text, *bounds)
        elif self._plan.sealed is not None and self._size > facts.size:
            text = f"{self._size - facts.size} bytes follow the {facts.size} sealed bytes: reads ignore them"
            yield Finding(Severity.DAMAGE, "log", self._path, text, facts.size, self._size)

    def _check_facts(self) -> Iterator[Finding]:
        """Compare the facts of the seal with the log."""
        facts, result = self._plan.sealed, self.result
        if facts is None or not result.is_whole:
            return
        pairs = (
            ("end offset", facts.end_offset, result.end_offset),
            ("number of messages", facts.message_count, result.message_count),
            ("number of batches", facts.batch_count, result.batch_count),
            ("first time", facts.first_timestamp, result.first_timestamp),
            ("last time", facts.last_timestamp, result.last_timestamp),
        )
        for name, claimed, counted in pairs:
            if claimed != counted:
                text = f"the {name} is {claimed} in the seal, but {counted} in the log"
                yield Finding(Severity.DAMAGE, "ledger", self._path, text)

    def _damage(self, found: BadRange | ZeroTail, end_offset: int | None) -> Finding:
        bounds = (found.position, found.end_position, found.first_offset, end_offset)
        known = any(
            damage.position < found.end_position and found.position < damage.end_position
            for damage in self._plan.known_damages
        )
        reason = _reason(found) + (" (known to the ledger, skipped by reads)" if known else "")
        return Finding(Severity.DAMAGE, "log", self._path, reason, *bounds)


def _reason(found: BadRange | ZeroTail) -> str:
    return found.reason if isinstance(found, BadRange) else "only zeros where batches were"
