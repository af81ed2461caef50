"""Audit: every segment below a directory checked in parallel, with the checks of ``courser inspect verify``.

The driver looks at metadata, ledgers and names; a task reads a segment from end to end: stored hashes, message
checksums, offsets, times, the index against the log. What lies between segments is put together in the driver again.
Reads only and takes no lock: a server may be at work.
"""

import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from pyspark.sql import SparkSession

from courser.errors import CourserError
from courser.inspect.findings import Finding, VerifySummary
from courser.inspect.segment_check import Expectation, SegmentOutcome, SegmentPlan, check_segment
from courser.inspect.verify import Verification, VerifyHead, is_clean
from courser.jobs.tasks import run_in_tasks
from courser.storage.local_files import LocalFileSystem
from courser.storage.paths import log_path


@dataclass(frozen=True, slots=True)
class AuditReport:
    """What was looked at, and what is wrong."""

    head: VerifyHead
    findings: tuple[Finding, ...]
    summary: VerifySummary
    seconds: float

    @property
    def is_damaged(self) -> bool:
        """Whether something that was stored is not there, or not what it was."""
        return self.summary.damage_count > 0


class NothingToAudit(CourserError):
    """No partition lies below the directory."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.directory = directory

    def __str__(self) -> str:
        return f"no partition lies below {self.directory}"


@dataclass(frozen=True, slots=True)
class _Work:
    """A segment for a task."""

    plan: SegmentPlan
    data_directory: Path | None
    """Whose session says whether a torn end is damage."""
    size: int


def audit(spark: SparkSession, directory: Path) -> AuditReport:
    """Check everything below ``directory``: a data directory, or one inside it. All workers must see it.

    Raises:
        OSError: the directory itself cannot be read.
        NothingToAudit: there is nothing in it that could be checked.
    """
    began = time.monotonic()
    outcomes: dict[Path, SegmentOutcome] = {}

    def outcome_of(plan: SegmentPlan, _expected: Expectation) -> SegmentOutcome:
        return outcomes[_path(plan)]

    verification = Verification(LocalFileSystem(), directory.absolute(), check=outcome_of)
    if verification.is_pointless:
        raise NothingToAudit(directory)
    work = [
        _Work(plan, verification.data_directory_of(plan.directory), _size_of(_path(plan)))
        for plan in verification.plan()
    ]
    found = run_in_tasks(spark, _check, work, weight=lambda item: item.size)
    outcomes.update(zip((_path(item.plan) for item in work), found, strict=True))
    findings = tuple(verification.findings())
    return AuditReport(verification.head, findings, verification.summary, time.monotonic() - began)


def _path(plan: SegmentPlan) -> Path:
    return log_path(plan.directory, plan.expected.base_offset)


def _size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        # Gone or unreadable: whoever checks it says so.
        return 0


def _check(work: _Work) -> SegmentOutcome:
    """What a task does with a segment."""
    files, plan = LocalFileSystem(), work.plan
    if plan.is_synced:
        is_settled = _always
    else:
        is_settled = partial(_is_settled, work.data_directory)
    expected = replace(plan.expected, is_settled=is_settled)
    return check_segment(files, plan.directory, plan.identity, expected, _ignore)


def _always() -> bool:
    return True


def _is_settled(data_directory: Path | None) -> bool:
    return data_directory is not None and is_clean(LocalFileSystem(), data_directory)


def _ignore(_size: int) -> None:
    pass
