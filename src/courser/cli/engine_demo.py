"""``courser engine-demo``: run the log engine for two seconds in a temporary directory, and show what it survives."""

import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import click

from courser.cli.cells import Column, range_text
from courser.cli.engine_demo_partition import BATCH_COUNT, Owner, take_inventory
from courser.cli.failures import Failure
from courser.cli.output import Report, emit, output_option
from courser.cli.terminal import write
from courser.errors import CourserError
from courser.inspect.findings import Finding, Severity
from courser.inspect.log_file import BatchRow, LogInspection
from courser.inspect.verify import Verification
from courser.model.durability import Durability
from courser.records.layout import BATCH_HEADER_SIZE
from courser.storage.local_files import LocalFileSystem
from courser.storage.paths import LOG_SUFFIX
from courser.storage.read_result import SkipReason

_LEVEL_MESSAGE_COUNT = 3_000
_ACKNOWLEDGED_MIN = 5_000
"""Messages that the victim must have acknowledged before it is killed."""
_LEVEL_TIME_MAX = 0.5
"""Seconds for one level: a slow disk gets fewer messages, not more time."""

_PROMISES = {
    Durability.WRITTEN: "a kill loses nothing",
    Durability.BOUNDED: "a power cut loses at most 1,024 messages",
    Durability.SYNCED: "a power cut loses nothing",
}


@dataclass(frozen=True, slots=True)
class LevelRow:
    """How fast appends were at one durability level."""

    level: str
    message_count: int
    seconds: float
    promise: str


@dataclass(frozen=True, slots=True)
class KillRow:
    """Which messages of a killed process were recovered."""

    process_id: int
    acknowledged_count: int
    recovered_count: int
    """Acknowledged messages that were recovered."""
    unacknowledged_count: int
    """Recovered messages that had not been acknowledged."""
    stop: str


@dataclass(frozen=True, slots=True)
class FlipRow:
    """The effect of a flipped bit."""

    file: str
    position: int
    finding: str
    first_offset: int
    end_offset: int
    read_count: int
    """Messages that can still be read."""
    skipped: str
    """The offset ranges that reads skip, with the reason."""


@click.command(
    "engine-demo",
    epilog="\b\nExample:\n  courser engine-demo\n\nExit codes: 0 every promise was kept, 1 failed, 2 wrong usage.",
)
@output_option
def engine_demo_command(*, output: str) -> None:
    """Show how the log engine works: three durability levels, a killed process, a flipped bit.

    Takes about two seconds. Works in a temporary directory and deletes it at the end.
    """
    try:
        with TemporaryDirectory(prefix="courser-engine-demo-") as directory:
            rows = _run(Path(directory))
            if output == "table":
                _print_text(rows)
            else:
                head = {"directory": directory}
                report = Report((Column("row"),), lambda row: (str(row),), rows, lambda _: False, head, lambda: None)
                emit(report, output)
    except (CourserError, OSError) as error:
        raise Failure(f"the demo failed: {error}", "check the free space of the temporary directory") from error


def _run(directory: Path) -> Iterator[LevelRow | KillRow | FlipRow]:
    for level in Durability:
        yield _measure(directory / level.value, level)
    data_directory = directory / "killed"
    yield _kill(data_directory)
    yield _flip(data_directory)


def _measure(data_directory: Path, level: Durability) -> LevelRow:
    data_directory.mkdir()
    owner = Owner(data_directory, level)
    began = time.monotonic()
    while owner.log.next_offset < _LEVEL_MESSAGE_COUNT and time.monotonic() - began < _LEVEL_TIME_MAX:
        owner.send()
    seconds = time.monotonic() - began
    count = owner.log.next_offset
    owner.close()
    return LevelRow(level.value, count, seconds, _PROMISES[level])


def _kill(data_directory: Path) -> KillRow:
    data_directory.mkdir()
    command = [sys.executable, "-m", "courser.cli.engine_demo_partition", str(data_directory)]
    acknowledged = 0
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as victim:
        assert victim.stdout is not None
        try:
            for line in victim.stdout:
                acknowledged = int(line)
                if acknowledged >= _ACKNOWLEDGED_MIN:
                    break
        finally:
            victim.kill()
        # Count what it printed before it died, except for an incomplete last line.
        rest = victim.stdout.read()
        acknowledged = max([acknowledged, *map(int, rest[: rest.rfind("\n") + 1].split())])
    owner = Owner(data_directory, Durability.SYNCED)
    found = take_inventory(owner).offsets
    stop = owner.stop.value
    owner.close()
    recovered = sum(1 for offset in found if offset < acknowledged)
    if recovered < acknowledged:
        raise Failure(
            f"only {recovered} of {acknowledged} acknowledged messages were found", "this is a bug: please report it"
        )
    return KillRow(victim.pid, acknowledged, recovered, len(found) - recovered, stop)


def _flip(data_directory: Path) -> FlipRow:
    path = min(data_directory.rglob(f"*{LOG_SUFFIX}"))
    batches = [row for row in LogInspection(LocalFileSystem(), path).rows() if isinstance(row, BatchRow)]
    position = batches[len(batches) // 2].position + BATCH_HEADER_SIZE + BATCH_COUNT
    with path.open("r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ 1]))
    finding = _first_damage(data_directory)
    owner = Owner(data_directory, Durability.SYNCED)
    found, skipped = take_inventory(owner)
    owner.close()
    damaged = [skip for skip in skipped if skip.reason is SkipReason.DAMAGED]
    if finding.first_offset is None or finding.end_offset is None or not damaged:
        raise Failure("the flipped byte was not found", "this is a bug: please report it")
    return FlipRow(
        path.name,
        position,
        finding.reason,
        finding.first_offset,
        finding.end_offset,
        len(found),
        ", ".join(f"{range_text(skip.first_offset, skip.end_offset)} {skip.reason.value}" for skip in damaged),
    )


def _first_damage(data_directory: Path) -> Finding:
    for finding in Verification(LocalFileSystem(), data_directory).findings():
        if finding.severity is Severity.DAMAGE:
            return finding
    raise Failure("the flipped byte was not found", "this is a bug: please report it")


# --- printing ---


def _print_text(rows: Iterator[LevelRow | KillRow | FlipRow]) -> None:
    write("Courser's log engine, in a temporary directory\n\nDurability levels\n")
    for row in rows:
        match row:
            case LevelRow():
                rate = round(row.message_count / max(row.seconds, 1e-6), -3)
                write(f"  {row.level:<8} {row.message_count:>6,} messages, {rate:>9,.0f} per second: {row.promise}\n")
            case KillRow():
                count = f"{row.acknowledged_count:,}"
                write(
                    "\nA process is killed while it writes\n"
                    f"  process {row.process_id} had acknowledged {count} messages when it was killed (kill -9)\n"
                    f"  recovery found {row.recovered_count:,} of them, "
                    f"and {row.unacknowledged_count:,} that had not been acknowledged yet\n"
                )
            case FlipRow():
                offsets = range_text(row.first_offset, row.end_offset)
                write(
                    "\nOne bit flips on the disk\n"
                    f"  courser inspect verify reports: {row.file}, offsets {offsets}: {row.finding}\n"
                    f"  reads skip it ({row.skipped}) and return the other {row.read_count:,} messages\n"
                )
    write(
        "\nNext steps\n"
        "  courser inspect --help     inspect files on disk, check a directory\n"
        "  courser bench --help       measure the speed on this machine\n"
        "  courser dev                run a server for development\n"
    )
