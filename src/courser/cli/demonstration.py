"""``courser demonstrate``: the log engine at work for two seconds, in a directory that is gone afterwards."""

import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import click

from courser.cli.cells import Column, range_text
from courser.cli.demonstration_engine import BATCH_COUNT, Owner, take_inventory
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
    """What was left of the messages of a killed process."""

    process_id: int
    acknowledged_count: int
    recovered_count: int
    """Of the acknowledged ones."""
    unacknowledged_count: int
    """Messages that were written, but nobody was told of them."""
    stop: str


@dataclass(frozen=True, slots=True)
class FlipRow:
    """What a flipped byte did."""

    file: str
    position: int
    finding: str
    first_offset: int
    end_offset: int
    read_count: int
    """Messages that are still read."""
    skipped: str
    """What reads say of the others."""


@click.command(
    "demonstrate",
    epilog="\b\nExample:\n  courser demonstrate\n\nExit codes: 0 all went as promised, 1 it did not, 2 wrong usage.",
)
@output_option
def demonstrate_command(*, output: str) -> None:
    """Show the log engine at work: three durability levels, a killed process, a flipped byte.

    Takes two seconds or so, works in a temporary directory, and leaves nothing behind.
    """
    try:
        with TemporaryDirectory(prefix="courser-demonstration-") as directory:
            rows = _demonstrate(Path(directory))
            if output == "table":
                _tell(rows)
            else:
                head = {"directory": directory}
                report = Report((Column("row"),), lambda row: (str(row),), rows, lambda _: False, head, lambda: None)
                emit(report, output)
    except (CourserError, OSError) as error:
        raise Failure(f"the demonstration failed: {error}", "is there room in the temporary directory?") from error


def _demonstrate(directory: Path) -> Iterator[LevelRow | KillRow | FlipRow]:
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
    command = [sys.executable, "-m", "courser.cli.demonstration_engine", str(data_directory)]
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
        # What it said before it died counts too; a line that was cut in the middle does not.
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


# --- telling it ---


def _tell(rows: Iterator[LevelRow | KillRow | FlipRow]) -> None:
    write("The log engine of Courser, in a temporary directory\n\nDurability: when a send is acknowledged\n")
    for row in rows:
        match row:
            case LevelRow():
                rate = round(row.message_count / max(row.seconds, 1e-6), -3)
                write(f"  {row.level:<8} {row.message_count:>6,} messages, {rate:>9,.0f} a second: {row.promise}\n")
            case KillRow():
                count = f"{row.acknowledged_count:,}"
                write(
                    "\nA process is killed while it writes\n"
                    f"  process {row.process_id} had acknowledged {count} messages when it was killed (kill -9)\n"
                    f"  recovery found {row.recovered_count:,} of them, "
                    f"and {row.unacknowledged_count:,} that nobody had been told of\n"
                )
            case FlipRow():
                offsets = range_text(row.first_offset, row.end_offset)
                write(
                    "\nOne bit flips on the disk\n"
                    f"  verify says: {row.file}, offsets {offsets}: {row.finding}\n"
                    f"  reads pass over it ({row.skipped}) and still give the other {row.read_count:,} messages\n"
                )
    write(
        "\nWhere to look next\n"
        "  courser inspect --help     look into files on disk, check a directory\n"
        "  make bench                 how fast it is on this machine\n"
        "  docs/ARCHITECTURE.md       how it works\n"
    )
