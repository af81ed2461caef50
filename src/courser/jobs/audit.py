"""Audit: checks every segment below a directory in parallel, with the checks of ``courser inspect verify``.

The driver checks metadata, ledgers and names. Each task reads a segment from end to end and checks stored hashes,
message checksums, offsets, times, and the index against the log. The driver then checks what spans segments. The job is
read-only and takes no lock, so the server may be running.
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
from courser.records.encryption import NO_KEYS, KeyRing
from courser.storage.local_files import LocalFileSystem
from courser.storage.paths import log_path


@dataclass(frozen=True, slots=True)
class AuditReport:
    """What was checked, and what is wrong."""

    head: VerifyHead
    findings: tuple[Finding, ...]
    summary: VerifySummary
    seconds: float

    @property
    def is_damaged(self) -> bool:
        """Whether stored data is missing or altered."""
        return self.summary.damage_count > 0


class NothingToAudit(CourserError):
    """The directory contains no partitions."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.directory = directory

    def __str__(self) -> str:
        return f"no partitions found below {self.directory}"


@dataclass(frozen=True, slots=True)
class _Work:
    """A segment to check."""

    plan: SegmentPlan
    data_directory: Path | None
    """Its session file tells whether a torn end counts as damage."""
    size: int
    keys: KeyRing


def audit(spark: SparkSession, directory: Path, keys: KeyRing = NO_KEYS) -> AuditReport:
    """Check everything below ``directory``: a data directory or a part of one. All workers must see it.

    Without their ``keys``, only the hashes of encrypted messages are checked.

    Raises:
        OSError: the directory cannot be read.
        NothingToAudit: there is nothing to check in it.
    """
    began = time.monotonic()
    outcomes: dict[Path, SegmentOutcome] = {}

    def outcome_of(plan: SegmentPlan, _expected: Expectation) -> SegmentOutcome:
        return outcomes[_path(plan)]

    verification = Verification(LocalFileSystem(), directory.absolute(), check=outcome_of)
    if verification.is_pointless:
        raise NothingToAudit(directory)
    work = [
        _Work(plan, verification.data_directory_of(plan.directory), _size_of(_path(plan)), keys)
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
        # Gone or unreadable: the check will report it.
        return 0


def _check(work: _Work) -> SegmentOutcome:
    """Check one segment; runs in a task."""
    files, plan = LocalFileSystem(), work.plan
    if plan.is_synced:
        is_settled = _always
    else:
        is_settled = partial(_is_settled, work.data_directory)
    expected = replace(plan.expected, is_settled=is_settled)
    return check_segment(files, plan.directory, plan.identity, expected, _ignore, work.keys)


def _always() -> bool:
    return True


def _is_settled(data_directory: Path | None) -> bool:
    return data_directory is not None and is_clean(LocalFileSystem(), data_directory)


def _ignore(_size: int) -> None:
    pass
