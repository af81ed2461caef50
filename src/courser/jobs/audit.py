"""Audit: checks every segment below a directory in parallel, with the checks of ``courser inspect verify``.

The driver checks metadata, ledgers and names. Each task reads a segment from end to end and checks stored hashes,
message checksums, offsets, times, and the index against the log. The driver then checks what spans segments. The job is
read-only and takes no lock, so the server may be running.
"""

import time
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession

from courser.errors import ClientFailure
from courser.inspect.findings import Finding, VerifySummary
from courser.inspect.segment_check import SegmentOutcome, SegmentPlan, check_segment
from courser.inspect.verify import Verification, VerifyHead
from courser.jobs.tasks import run_in_tasks
from courser.records.encryption import NO_KEYS, KeyRing
from courser.storage.local_files import LocalFileSystem


@dataclass(frozen=True, slots=True)
class AuditReport:
    """What was checked, and what is wrong."""

    head: VerifyHead
    findings: tuple[Finding, ...]
    summary: VerifySummary
    seconds: float


class NothingToAudit(ClientFailure):
    """The directory contains no partitions."""


@dataclass(frozen=True, slots=True)
class _Work:
    """A segment to check."""

    plan: SegmentPlan
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
    verification = Verification(LocalFileSystem(), directory.absolute())
    if verification.is_pointless:
        raise NothingToAudit(f"no partitions found below {directory}")
    work = [_Work(plan, _size_of(plan.path), keys) for plan in verification.plan()]
    found = run_in_tasks(spark, _check, work, weight=lambda item: item.size)
    outcomes = {item.plan.path: outcome for item, outcome in zip(work, found, strict=True)}
    findings = tuple(verification.findings(check=lambda plan: outcomes[plan.path]))
    return AuditReport(verification.head, findings, verification.summary, time.monotonic() - began)


def _size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        # Gone or unreadable: the check will report it.
        return 0


def _check(work: _Work) -> SegmentOutcome:
    """Check one segment; runs in a task."""
    return check_segment(LocalFileSystem(), work.plan, work.keys, lambda _size: None)
