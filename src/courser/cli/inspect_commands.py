"""``courser inspect``: print the results of the offline tools. Secrets are never printed."""

import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

import click

from courser.cli import inspect_rows as tables
from courser.cli.failures import ExitCode, Failure, unreadable
from courser.cli.fields import size_text, time_text
from courser.cli.inspect_rows import RowTable, is_alarming
from courser.cli.options import local_command, option
from courser.cli.output import Report, emit
from courser.cli.terminal import harmless, progress, say
from courser.inspect.findings import Finding, VerifySummary
from courser.inspect.index_file import IndexInspection, parse_identity
from courser.inspect.journal_file import JournalInspection
from courser.inspect.log_file import LogInspection
from courser.inspect.metadata_files import DescriptorInspection, SnapshotHead, SnapshotInspection
from courser.inspect.small_files import LedgerInspection, OffsetsInspection, SessionInspection
from courser.inspect.verify import Verification
from courser.records.encryption import KEY_VARIABLE, OLD_KEYS_VARIABLE, KeyRing, keys_from
from courser.records.stored_header import PartitionIdentity
from courser.storage.files import FileSystem
from courser.storage.local_files import LocalFileSystem

_Inspection = TypeVar("_Inspection")
_OFFSET = click.IntRange(min=0)
_EXITS = "Exit codes: 0 printed (damage is shown among the rows), 1 the file cannot be read, 2 wrong usage."

_file_argument = click.argument("path", metavar="FILE", type=click.Path(path_type=Path, readable=False))


def environment_keys() -> KeyRing:
    """The keys of encrypted messages, from the variables that the server reads. Raises ``Failure``."""
    try:
        return keys_from(os.environ)
    except ValueError as error:
        raise Failure(f"{KEY_VARIABLE} or {OLD_KEYS_VARIABLE} is wrong: {error}", "correct it, or unset it") from None


def _open(path: Path, inspect: Callable[[FileSystem, Path], _Inspection]) -> _Inspection:
    """Open a file for inspection. A symbolic link is followed."""
    try:
        return inspect(LocalFileSystem(), path.resolve(strict=True) if path.is_symlink() else path)
    except (OSError, ValueError) as error:
        raise unreadable(harmless(str(path)), error if isinstance(error, OSError) else OSError(str(error))) from error


def _emit(
    path: Path,
    table: RowTable,
    rows: Iterable[object],
    output: str,
    *,
    head: object,
    summary: Callable[[], object],
    names: tuple[str, str] = ("file", "rows"),
) -> None:
    """Write rows while they are read from the file."""
    try:
        emit(Report(table.columns, table.cells, rows, is_alarming, head, summary, names), output)
    except OSError as error:
        raise unreadable(harmless(str(path)), error) from error


def _owner(identity: PartitionIdentity | None) -> str:
    return f"identity {identity}" if identity is not None else "identity unknown"


# --- log and index ---


@local_command(
    "log",
    "courser inspect log 00000000000000000000.log",
    "courser inspect log FILE --messages --from-offset 500 --limit 10 -o jsonl",
    exits=_EXITS,
)
@_file_argument
@option("--messages", "Also show the messages of each batch.")
@option(
    "--from-offset", "Start at the batch (or message) with this offset.", type=_OFFSET, default=0, show_default=False
)
@option("--limit COUNT", "Stop after COUNT batches, or messages with --messages.", type=click.IntRange(min=1))
@option("--payload-size", "Bytes of each payload to show.", type=_OFFSET, default=48)
def log_command(
    path: Path, *, messages: bool, from_offset: int, limit: int | None, payload_size: int, output: str
) -> None:
    """Print each batch of a segment's log: position, offsets, times, producer, and whether its checksums match.

    Also shows damaged ranges between batches, and zeros at the end. The file may be anywhere: its partition and its
    first offset are read from the file and its name. The keys of encrypted messages are taken from the environment, as
    the server takes them: COURSER_SYSTEM_ENCRYPTION_KEY and COURSER_SYSTEM_ENCRYPTION_OLD_KEYS.
    """
    keys = environment_keys()
    log = _open(path, lambda files, name: LogInspection(files, name, keys))
    head = log.head
    if output == "table":
        start = f"from offset {head.base_offset} ({head.base_offset_source})"
        say(f"{path}: {head.size} bytes, {_owner(head.identity)}, {start}")
    table = tables.MESSAGE if messages else tables.LOG
    rows = log.rows(messages=messages, from_offset=from_offset, limit=limit, payload_size=payload_size)
    _emit(path, table, rows, output, head=head, summary=lambda: log.summary)
    summary = log.summary
    if output == "table" and limit is None:
        counts = f"{summary.batch_count} batches, {summary.message_count} messages"
        say(f"{counts}, {summary.damage_count} damaged ranges")


@local_command(
    "index",
    "courser inspect index 00000000000000000000.index",
    "courser inspect index FILE --blocks -o json",
    exits=_EXITS,
)
@_file_argument
@option("--blocks", "Show only the blocks, not their entries.")
@option(
    "--from-offset",
    "Start at the entry with this offset, or the next one.",
    type=_OFFSET,
    default=0,
    show_default=False,
)
@option("--limit COUNT", "Stop after COUNT entries, or blocks with --blocks.", type=click.IntRange(min=1))
@option(
    "--identity UUID:PARTITION-INCARNATION",
    "The partition of the index, if its log is not in the same directory.",
    "identity_option",
)
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
    index = _open(path, lambda file_system, name: IndexInspection(file_system, name, identity))
    head = index.head
    if head.identity is None:
        say(f"{path}: its log is not in the same directory, so checksums were not verified (pass --identity)")
    elif output == "table":
        say(f"{path}: {head.block_count} blocks, {_owner(head.identity)} ({head.identity_source})")
    rows = index.rows(entries=not blocks, from_offset=from_offset, limit=limit)
    _emit(path, tables.INDEX, rows, output, head=head, summary=lambda: index.summary)


# --- small files ---


class _SmallInspection(Protocol):
    """A small file that is shown as rows."""

    @property
    def head(self) -> object:
        """Facts about the whole file."""

    def rows(self) -> Iterator[object]:
        """The contents of the file."""


def _emit_small(path: Path, inspection: _SmallInspection, table: RowTable, output: str) -> None:
    """Write all rows of a small file, and the number of bad rows."""
    counts = {"row_count": 0, "bad_count": 0}

    def rows() -> Iterator[object]:
        for row in inspection.rows():
            counts["row_count"] += 1
            counts["bad_count"] += is_alarming(row)
            yield row

    _emit(path, table, rows(), output, head=inspection.head, summary=lambda: counts)


@local_command("ledger", "courser inspect ledger ledger", "courser inspect ledger FILE -o jsonl", exits=_EXITS)
@_file_argument
def ledger_command(path: Path, *, output: str) -> None:
    """Print the records of a partition's ledger: seals, recovery points, reservations, gaps, damage."""
    ledger = _open(path, LedgerInspection)
    if output == "table":
        say(f"{path}: {ledger.head.size} bytes, {_owner(ledger.head.identity)}")
    _emit_small(path, ledger, tables.LEDGER, output)


@local_command("offsets", "courser inspect offsets offsets", "courser inspect offsets FILE -o json", exits=_EXITS)
@_file_argument
def offsets_command(path: Path, *, output: str) -> None:
    """Print the stored offsets of a partition's consumers and groups, including their history."""
    offsets = _open(path, OffsetsInspection)
    _emit_small(path, offsets, tables.OFFSETS, output)


@local_command("session", "courser inspect session local_data/session", exits=_EXITS)
@_file_argument
def session_command(path: Path, *, output: str) -> None:
    """Print how the last server stopped in a data directory: format, machine, and whether it stopped cleanly."""
    session = _open(path, SessionInspection)
    _emit_small(path, session, tables.SESSION, output)


# --- metadata ---


@local_command(
    "journal",
    "courser inspect journal local_data/metadata/journal.wal",
    "courser inspect journal FILE --from-op 500 --limit 10 -o jsonl",
    exits=_EXITS,
)
@_file_argument
@option(
    "--from-op", "Start at the entry with this op number.", type=click.IntRange(min=0), default=0, show_default=False
)
@option("--limit COUNT", "Stop after COUNT entries.", type=click.IntRange(min=1))
def journal_command(path: Path, *, from_op: int, limit: int | None, output: str) -> None:
    """Print each entry of a metadata journal: position, op number, time, command, and whether the chain is intact.

    Also shows damage, gaps, breaks in the chain, duplicates, and a torn tail. The first entry can be checked only if
    the snapshot is in the same directory as the journal.
    """
    journal = _open(path, JournalInspection)
    head = journal.head
    if output == "table":
        snapshot = "no snapshot" if head.snapshot_op is None else f"snapshot at op {head.snapshot_op}"
        say(f"{path}: {head.size} bytes, {snapshot}")
    rows = journal.rows(from_op=from_op, limit=limit)
    _emit(path, tables.JOURNAL, rows, output, head=head, summary=lambda: journal.summary)
    if output == "table" and limit is None:
        say(f"{journal.summary.entry_count} entries, {journal.summary.fault_count} faults")


@local_command(
    "snapshot",
    "courser inspect snapshot local_data/metadata/snapshot.bin",
    "courser inspect snapshot FILE -o json",
    exits=_EXITS,
)
@_file_argument
def snapshot_command(path: Path, *, output: str) -> None:
    """Print the contents of a metadata snapshot: streams, topics, partitions, groups, users, permissions, tokens.

    For a password only the algorithm is shown; for a token, its name and times. A damaged state is not shown.
    """
    snapshot = _open(path, SnapshotInspection)
    if output == "table":
        say(f"{path}: {snapshot.head.size} bytes, {_snapshot_text(snapshot.head)}")
    _emit_small(path, snapshot, tables.CATALOG, output)


def _snapshot_text(head: SnapshotHead) -> str:
    verdicts = f"header: {head.header}, body: {head.body}, state: {head.state}"
    if head.fields is None:
        return verdicts
    fields = head.fields
    hashes = f"entry {fields['entry_checksum']}, state {fields['state_hash']}"
    return f"op {fields['op']}, taken {time_text(fields['timestamp'])}, {hashes}; {verdicts}"


@local_command(
    "descriptor",
    "courser inspect descriptor local_data/streams/1/descriptor",
    "courser inspect descriptor FILE -o json",
    exits=_EXITS,
)
@_file_argument
def descriptor_command(path: Path, *, output: str) -> None:
    """Print the descriptor of a stream or topic. The metadata can be rebuilt from descriptors."""
    descriptor = _open(path, DescriptorInspection)
    if output == "table":
        say(f"{path}: {descriptor.head.size} bytes, describes: {descriptor.head.describes}")
    _emit_small(path, descriptor, tables.CATALOG, output)


# --- verify ---

_VERIFY_EXITS = "Exit codes: 0 no damage, 1 a file cannot be read, 2 damage (or wrong usage), 130 interrupted."


@local_command("verify", "courser inspect verify local_data", "courser inspect verify DIR -o json", exits=_VERIFY_EXITS)
@click.argument("path", metavar="DIR", type=click.Path(path_type=Path, readable=False))
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
    verification = _open(path, partial(Verification, keys=environment_keys()))
    if verification.is_pointless:
        raise Failure(f"no partition found in {path}", "pass a data directory, or a directory inside one")
    with progress("verifying", verification.head.size) as step:
        # Show the table after the progress bar has disappeared.
        findings = list(verification.findings(step))
    return emit_findings(path, verification.head, findings, verification.summary, time.monotonic() - began, output)


def emit_findings(
    path: Path, head: object, findings: Iterable[Finding], summary: VerifySummary, seconds: float, output: str
) -> ExitCode:
    """Write the findings of a check and its verdict. Returns the exit code of the command."""
    speed = round(summary.size / 1e6 / max(seconds, 1e-6), 1)
    whole = {**asdict(summary), "seconds": round(seconds, 3), "megabytes_per_second": speed}
    names = ("directory", "findings")
    _emit(path, tables.FINDINGS, findings, output, head=head, summary=lambda: whole, names=names)
    read = f"{size_text(summary.size)} in {seconds:.1f} s ({speed} MB/s)"
    say(
        f"{summary.partition_count} partitions, {summary.segment_count} segments, {summary.message_count} messages, "
        f"{read}: {_verdict(summary)}"
    )
    if summary.damage_count:
        return ExitCode.DAMAGE
    return ExitCode.FAILED if summary.unreadable_count else ExitCode.OK


def _verdict(summary: VerifySummary) -> str:
    counts = (
        ("damage", summary.damage_count),
        ("unreadable", summary.unreadable_count),
        ("warnings", summary.warning_count),
        ("notes", summary.note_count),
    )
    is_sound = not summary.damage_count and not summary.unreadable_count
    found = [f"{name}: {count}" for name, count in counts if count]
    return ", ".join(["no damage", *found] if is_sound else found)
