"""What a start found and did: damage as an error, things that an operator may want to check as a warning."""

import logging
from collections.abc import Iterator, Sequence

from courser.api.operating_replies import StartFinding, StartReport
from courser.broker.partition.partition_registry import PartitionRegistry
from courser.catalog.opening import OpenedCatalog
from courser.storage.recovery_cases import StopKind

_log = logging.getLogger(__name__)

_FINDING_COUNT_MAX = 1000
"""Findings that are kept for the report. The log has all of them."""
_INFO, _WARNING, _ERROR = "info", "warning", "error"
_LEVELS = {_INFO: logging.INFO, _WARNING: logging.WARNING, _ERROR: logging.ERROR}


class StartFindings:
    """Everything that a start found, logged and kept."""

    def __init__(self, started_at: int, stop: StopKind) -> None:
        self._started_at = started_at
        self._stop = stop
        self._count = 0
        self._findings: dict[str, list[StartFinding]] = {_ERROR: [], _WARNING: [], _INFO: []}

    def note_catalog(self, opened: OpenedCatalog) -> None:
        """What was found in the metadata and the directories."""
        self._note(_catalog_findings(opened))

    def note_partitions(self, partitions: PartitionRegistry) -> None:
        """What was found in the partitions."""
        self._note(_partition_findings(partitions))

    def _note(self, findings: Iterator[tuple[str, str]]) -> None:
        for level, text in findings:
            _log.log(_LEVELS[level], "%s", text)
            self._count += 1
            if len(self._findings[level]) < _FINDING_COUNT_MAX:
                self._findings[level].append(StartFinding(level, text))

    def add(self, report: StartReport) -> None:
        """What another process of the server found in its partitions, and has logged."""
        self._count += report.finding_count
        for finding in report.findings:
            rows = self._findings[finding.level]
            if len(rows) < _FINDING_COUNT_MAX:
                rows.append(finding)

    def report(self) -> StartReport:
        """The report as operators see it."""
        findings: Sequence[StartFinding] = [row for rows in self._findings.values() for row in rows]
        return StartReport(self._started_at, self._stop.value, self._count, list(findings[:_FINDING_COUNT_MAX]))


def _catalog_findings(opened: OpenedCatalog) -> Iterator[tuple[str, str]]:
    found, rebuild = opened.reconciliation, opened.rebuild
    if rebuild is not None:
        for problem in rebuild.problems:
            yield _WARNING, f"metadata rebuilt reason={problem}"
        for path in rebuild.adopted:
            yield _WARNING, f"directory adopted path={path}"
        for loss in rebuild.lost:
            yield _ERROR, f"metadata lost what={loss}"
    for lost in found.lost:
        place = f"stream={lost.stream_id} topic={lost.topic_id} partition={lost.partition_id}"
        yield _ERROR, f"partition lost {place} path={lost.path}"
    for path in found.unknown:
        yield _WARNING, f"leaving a directory that is not in the metadata path={path}"
    for path, reason in found.bad_descriptors:
        yield _WARNING, f"rewrote a descriptor from the metadata path={path} reason={reason}"
    for path in found.remade:
        yield _INFO, f"recreated a directory whose creation was interrupted path={path}"
    for removed in found.removed:
        yield _INFO, f"removed a deleted directory path={removed}"


def _partition_findings(partitions: PartitionRegistry) -> Iterator[tuple[str, str]]:
    for topic in partitions:
        for partition in topic.partitions:
            log = partition.log
            for finding in log.findings:
                level = _ERROR if finding.is_damage else _WARNING if finding.is_warning else _INFO
                yield level, f"recovery case={finding.letter} path={finding.path}: {finding.text}"
            if log.is_offline:
                place = f"stream={topic.stream_id} topic={topic.topic_id} partition={log.identity.partition_id}"
                yield _ERROR, f"partition is offline {place} path={log.directory}"
            elif log.failure is not None:
                yield _ERROR, f"partition is read-only path={log.directory} reason={log.failure}"
            elif log.lack_of_room is not None:
                yield (
                    _ERROR,
                    f"partition takes no messages until there is room path={log.directory} reason={log.lack_of_room}",
                )
