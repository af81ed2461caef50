"""``courser inspect``: what the offline tools find, printed."""

import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from pathlib import Path

import click

from courser.cli import presentation
from courser.cli.cells import Column, size_text
from courser.cli.failures import ExitCode, Failure
from courser.cli.inspect_support import emit_report, emit_small, epilog, file_argument, open_file
from courser.cli.output import Report, output_option
from courser.cli.terminal import say
from courser.inspect.findings import VerifySummary
from courser.inspect.identity import parse_identity
from courser.inspect.index_file import IndexInspection
from courser.inspect.log_file import LogInspection
from courser.inspect.small_files import LedgerInspection, OffsetsInspection, SessionInspection
from courser.inspect.verify import Verification
from courser.records.stored_header import PartitionIdentity

_OFFSET = click.IntRange(min=0)


def _owner(identity: PartitionIdentity | None) -> str:
    return f"identity {identity}" if identity is not None else "identity unknown"


# --- log and index ---


@click.command(
    "log",
    epilog=epilog(
        "courser inspect log 00000000000000000000.log",
        "courser inspect log FILE --messages --from-offset 500 --limit 10 -o jsonl",
    ),
)
@file_argument
@click.option("--messages", is_flag=True, help="Show the messages of each batch too.")
@click.option("--from-offset", type=_OFFSET, default=0, help="Begin with the batch (or message) that has this offset.")
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    metavar="COUNT",
    help="Stop after so many batches, or messages with --messages.",
)
@click.option("--payload-size", type=_OFFSET, default=48, show_default=True, help="Bytes of each payload to show.")
@output_option
def log_command(
    path: Path, *, messages: bool, from_offset: int, limit: int | None, payload_size: int, output: str
) -> None:
    """Print each batch of a segment's log: place, offsets, times, producer, and whether its checksums hold.

    Damaged stretches are shown in between, and zeros at the end. The log may be any file: whose it is and where its
    offsets begin is found in the file and its name.
    """
    log = open_file(path, LogInspection)
    head = log.head
    if output == "table":
        start = f"from offset {head.base_offset} ({head.base_offset_source})"
        say(f"{path}: {head.size} bytes, {_owner(head.identity)}, {start}")
    report = Report(
        columns=presentation.MESSAGE_COLUMNS if messages else presentation.LOG_COLUMNS,
        cells=presentation.message_cells if messages else presentation.log_cells,
        rows=log.rows(messages=messages, from_offset=from_offset, limit=limit, payload_size=payload_size),
        is_alarming=presentation.is_alarming,
        head=head,
        summary=lambda: log.summary,
    )
    emit_report(path, report, output)
    summary = log.summary
    if output == "table" and limit is None:
        counts = f"{summary.batch_count} batches, {summary.message_count} messages"
        say(f"{counts}, {summary.damage_count} damaged stretches")


@click.command(
    "index",
    epilog=epilog("courser inspect index 00000000000000000000.index", "courser inspect index FILE --blocks -o json"),
)
@file_argument
@click.option("--blocks", is_flag=True, help="Show only the blocks, not their entries.")
@click.option("--from-offset", type=_OFFSET, default=0, help="Begin with the entry that has this offset, or the next.")
@click.option(
    "--limit", type=click.IntRange(min=1), metavar="COUNT", help="Stop after so many entries, or blocks with --blocks."
)
@click.option(
    "--identity",
    "identity_option",
    metavar="UUID:PARTITION-INCARNATION",
    help="Whose index it is, if no log lies beside it.",
)
@output_option
def index_command(
    path: Path, *, blocks: bool, from_offset: int, limit: int | None, identity_option: str | None, output: str
) -> None:
    """Print each block of a segment's index, and its entries.

    The checksums depend on whose index it is. That is read from the .log file beside it, or given with --identity, as
    "courser inspect log" prints it; without either, checksums are not checked.
    """
    identity = parse_identity(identity_option) if identity_option is not None else None
    if identity_option is not None and identity is None:
        raise click.BadParameter("not of the form UUID:PARTITION-INCARNATION", param_hint="--identity")
    index = open_file(path, lambda file_system, name: IndexInspection(file_system, name, identity))
    head = index.head
    if head.identity is None:
        say(f"{path}: no log lies beside it, so checksums could not be checked (--identity helps)")
    elif output == "table":
        say(f"{path}: {head.block_count} blocks, {_owner(head.identity)} ({head.identity_source})")
    report = Report(
        columns=presentation.INDEX_COLUMNS,
        cells=presentation.index_cells,
        rows=index.rows(entries=not blocks, from_offset=from_offset, limit=limit),
        is_alarming=presentation.is_alarming,
        head=head,
        summary=lambda: index.summary,
    )
    emit_report(path, report, output)


# --- small files ---


def _emit_small(
    path: Path,
    inspection: LedgerInspection | OffsetsInspection | SessionInspection,
    columns: tuple[Column, ...],
    cells: Callable[[object], tuple[str, ...]],
    output: str,
) -> None:
    emit_small(path, inspection, columns, cells, presentation.is_alarming, output)


@click.command("ledger", epilog=epilog("courser inspect ledger ledger", "courser inspect ledger FILE -o jsonl"))
@file_argument
@output_option
def ledger_command(path: Path, *, output: str) -> None:
    """Print the records of a partition's ledger: seals, recovery points, reservations, gaps, damage."""
    ledger = open_file(path, LedgerInspection)
    if output == "table":
        say(f"{path}: {ledger.head.size} bytes, {_owner(ledger.head.identity)}")
    _emit_small(path, ledger, presentation.LEDGER_COLUMNS, presentation.ledger_cells, output)


@click.command("offsets", epilog=epilog("courser inspect offsets offsets", "courser inspect offsets FILE -o json"))
@file_argument
@output_option
def offsets_command(path: Path, *, output: str) -> None:
    """Print the stored offsets of a partition's consumers and groups, history included."""
    offsets = open_file(path, OffsetsInspection)
    _emit_small(path, offsets, presentation.OFFSETS_COLUMNS, presentation.offsets_cells, output)


@click.command("session", epilog=epilog("courser inspect session local_data/session"))
@file_argument
@output_option
def session_command(path: Path, *, output: str) -> None:
    """Print how the last server left a data directory: its format, where it ran, whether it stopped cleanly."""
    session = open_file(path, SessionInspection)
    _emit_small(path, session, presentation.SESSION_COLUMNS, presentation.session_cells, output)


# --- verify ---

_VERIFY_EXITS = "Exit codes: 0 no damage, 1 something cannot be read, 2 damage (or wrong usage), 130 interrupted."


@click.command(
    "verify",
    epilog=epilog("courser inspect verify local_data", "courser inspect verify DIR -o json", exits=_VERIFY_EXITS),
)
@click.argument("path", metavar="DIR", type=click.Path(path_type=Path, readable=False))
@output_option
def verify_command(path: Path, *, output: str) -> int:
    """Check every partition below a directory, and the metadata of a data directory.

    That is: stored hashes, message checksums, offsets and times, indexes, the ledger, stored consumer offsets. Of a
    data directory also: snapshot and journal, the directories, descriptors and ledgers against the state that they
    give, file modes.

    Reads only and takes no lock: a server may be running. Files that are being written or deleted meanwhile are no
    damage. An absent or stale index or descriptor is a warning, since it can be made again.
    """
    began = time.monotonic()
    advance: list[Callable[[int], None]] = []

    def on_progress(size: int) -> None:
        for step in advance:
            step(size)

    verification = open_file(path, lambda files, name: Verification(files, name, on_progress))
    if verification.is_pointless:
        raise Failure(f"no partition lies below {path}", "name a data directory, or a directory inside one")
    with _progress(verification.head.size) as step:
        if step is not None:
            advance.append(step)
        # Shown when the bar is gone: a table must not be drawn across it.
        findings = list(verification.findings())
    seconds = time.monotonic() - began
    report = Report(
        columns=presentation.FINDING_COLUMNS,
        cells=presentation.finding_cells,
        rows=findings,
        is_alarming=presentation.is_alarming,
        head=verification.head,
        summary=lambda: with_rate(verification.summary, seconds),
        names=("directory", "findings"),
    )
    emit_report(path, report, output)
    summary = verification.summary
    say(verdict(summary, seconds))
    if summary.damage_count:
        return ExitCode.DAMAGE
    return ExitCode.FAILED if summary.unreadable_count else ExitCode.OK


def _progress(size: int) -> AbstractContextManager[Callable[[int], None] | None]:
    """A bar where a person looks on."""
    if not sys.stderr.isatty():
        return nullcontext()
    # Rich takes a while to import: only a terminal pays for it.
    from courser.cli.drawing import progress_bar  # noqa: PLC0415

    return progress_bar("verifying", size)


def with_rate(summary: VerifySummary, seconds: float) -> dict[str, object]:
    """The summary for programs."""
    return {**asdict(summary), "seconds": round(seconds, 3), "megabytes_per_second": _rate(summary, seconds)}


def _rate(summary: VerifySummary, seconds: float) -> float:
    return round(summary.size / 1e6 / max(seconds, 1e-6), 1)


def verdict(summary: VerifySummary, seconds: float) -> str:
    """The summary for people."""
    counts = (
        ("damage", summary.damage_count),
        ("unreadable", summary.unreadable_count),
        ("warnings", summary.warning_count),
        ("notes", summary.note_count),
    )
    found = ", ".join(f"{name}: {count}" for name, count in counts if count)
    is_sound = not summary.damage_count and not summary.unreadable_count
    verdict = ", ".join(part for part in ("no damage" if is_sound else "", found) if part)
    return (
        f"{summary.partition_count} partitions, {summary.segment_count} segments, {summary.message_count} messages, "
        f"{size_text(summary.size)} in {seconds:.1f} s ({_rate(summary, seconds)} MB/s): {verdict}"
    )
