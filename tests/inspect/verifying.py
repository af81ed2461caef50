"""What ``verify`` finds in a directory of these tests."""

from pathlib import Path

from courser.inspect.findings import Finding, Severity
from courser.inspect.verify import Verification
from courser.storage.local_files import LocalFileSystem


def findings_of(directory: Path) -> list[Finding]:
    return list(Verification(LocalFileSystem(), directory).findings())


def damages_of(directory: Path) -> list[Finding]:
    return [finding for finding in findings_of(directory) if finding.severity is Severity.DAMAGE]


def only_finding(directory: Path) -> Finding:
    findings = findings_of(directory)
    assert len(findings) == 1, findings
    return findings[0]
