"""Disks for the tests here, each gone again when its test is over."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.power.disks import FILE_SYSTEMS, IMAGE_SIZE, Disk

NewDisk = Callable[..., Disk]


@pytest.fixture
def new_disk(tmp_path: Path) -> Iterator[NewDisk]:
    """Makes and mounts disks."""
    disks: list[Disk] = []

    def make(
        kind: str, name: str = "disk", *, size: int = IMAGE_SIZE, below: Path = tmp_path, backed_size: int = 0
    ) -> Disk:
        disk = Disk(kind, below / f"{name}.image", tmp_path / name)
        disks.append(disk)
        disk.make_thin(size, backed_size) if backed_size else disk.make(size)
        disk.mount()
        return disk

    yield make
    for disk in reversed(disks):
        disk.remove()


@pytest.fixture(params=FILE_SYSTEMS)
def disk(request: pytest.FixtureRequest, new_disk: NewDisk) -> Disk:
    """One of each kind."""
    return new_disk(request.param)


@pytest.fixture
def cut_count() -> int:
    """Cuts per file system and level: ``COURSER_CUTS=100`` for the figure that we promise."""
    return int(os.environ.get("COURSER_CUTS", "10"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The figures of the tests that passed; those of the others are shown with their failure."""
    for report in terminalreporter.getreports("passed"):
        if report.when == "call" and "tests/power/" in report.nodeid and report.capstdout:
            terminalreporter.section(report.nodeid.removeprefix("tests/power/"), sep="-")
            terminalreporter.line(report.capstdout.strip())
