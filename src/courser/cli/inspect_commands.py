"""``courser inspect``: print the results of the offline tools."""

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
from courser.cli.inspect_support import emit_report, emit_small, environment_keys, epilog, file_argument, open_file
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
@click.option("--messages", is_flag=True, help="Also show the messages of each batch.")
@click.option("--from-offset", type=_OFFSET, default=0, help="Start at the batch (or message) with this offset.")
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    metavar="COUNT",
    help="Stop after COUNT batches, or messages with --messages.",
)
@click.option("--payload-size", type=_OFFSET, default=48, show_default=True, help="Bytes of each payload to show.")
@output_option
def log_command(
    path: Path, *, messages: bool, from_offset: int, limit: int | None, payload_size: int, output: str
) -> None:
    """Print each batch of a segment's log: position, offsets, times, producer, and whether its checksums match.

    Also shows damaged ranges between batches, and zeros at the end. The file may be anywhere: its partition and its
    first offset are read from the file and its name. The keys of encrypted messages are taken from the environment, as
    the server takes them: COURSER_SYSTEM_ENCRYPTION_KEY and COURSER_SYSTEM_ENCRYPTION_OLD_KEYS.
    """
    keys = environment_keys()
    log = open_file(path, lambda files, name: LogInspection(files, name, keys))
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
        say(f"{counts}, {summary.damage_count} damaged ranges")


@click.command(
    "index",
    epilog=epilog("courser inspect index 00000000000000000000.index", "courser inspect index FILE --blocks -o json"),
)
@file_argument
@click.option("--blocks", is_flag=True, help="Show only the blocks, not their entries.")
@click.option("--from-offset", type=_OFFSET, default=0, help="Start at the entry with this offset, or the next one.")
@click.option(
    "--limit", type=click.IntRange(min=1), metavar="COUNT", help="Stop after COUNT entries, or blocks with --blocks."
)
@click.option(
    "--identity",
    "identity_option",
    metavar="UUID:PARTITION-INCARNATION",
    help="The partition of the index, if its log is not in the same directory.",
)
@output_option
def index_command(
    path: Path, *, blocks: bool, from_offset: int, limit: int | None, identity_option: str | None, output: str
) -> None:
    """Print each block of a segment's index, and its entries.

    The checksums depend on the partition. It is read from the .log file in the same directory, or given with --identity
    as "courser inspect log" prints it. Without either, checksums are not verified.
    """
    identity = parse_identity(identity_option) if identity_option is not None else None
    if identity_option is not None and identity is None:
        raise click.BadParameter("not of the form UUID:PARTITION-INCARNATION", param_hint="--identity")
    index = open_file(path, lambda file_system, name: IndexInspection(file_system, name, identity))
    head = index.head
    if head.identity is None:
        say(f"{path}: its log is not in the same directory, so checksums were not verified (pass --identity)")
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
    """Print the stored offsets of a partition's consumers and groups, including their history."""
    offsets = open_file(path, OffsetsInspection)
    _emit_small(path, offsets, presentation.OFFSETS_COLUMNS, presentation.offsets_cells, output)


@click.command("session", epilog=epilog("courser inspect session local_data/session"))
@file_argument
@output_option
def session_command(path: Path, *, output: str) -> None:
    """Print how the last server stopped in a data directory: format, machine, and whether it stopped cleanly."""
    session = open_file(path, SessionInspection)
    _emit_small(path, session, presentation.SESSION_COLUMNS, presentation.session_cells, output)


# --- verify ---

_VERIFY_EXITS = "Exit codes: 0 no damage, 1 a file cannot be read, 2 damage (or wrong usage), 130 interrupted."


@click.command(
    "verify",
    epilog=epilog("courser inspect verify local_data", "courser inspect verify DIR -o json", exits=_VERIFY_EXITS),
)
@click.argument("path", metavar="DIR", type=click.Path(path_type=Path, readable=False))
@output_option
def verify_command(path: Path, *, output: str) -> int:
    """Check every partition in a directory, and the metadata of a data directory.

    Checks stored hashes, message checksums, offsets and times, indexes, the ledger, and stored consumer offsets. For a
    data directory it also checks the snapshot and the journal, compares directories, descriptors and ledgers with the
    state in them, and checks file modes.

    Read-only and takes no lock: a server may be running. Files that change during the check are not damage. A missing
    or stale index or descriptor is a warning, since it can be rebuilt. The messages in encrypted batches are checked if
    their key is in the environment (COURSER_SYSTEM_ENCRYPTION_KEY, COURSER_SYSTEM_ENCRYPTION_OLD_KEYS), and otherwise
    only the hashes of what is stored.
    """
    began = time.monotonic()
    advance: list[Callable[[int], None]] = []

    def on_progress(size: int) -> None:
        for step in advance:
            step(size)

    keys = environment_keys()
    verification = open_file(path, lambda files, name: Verification(files, name, on_progress, keys=keys))
    if verification.is_pointless:
        raise Failure(f"no partition found in {path}", "pass a data directory, or a directory inside one")
    with _progress(verification.head.size) as step:
        if step is not None:
            advance.append(step)
        # Show the table after the progress bar has disappeared.
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
    """A progress bar, if stderr is a terminal."""
    if not sys.stderr.isatty():
        return nullcontext()
    # rich is slow to import: import it only at a terminal.
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
