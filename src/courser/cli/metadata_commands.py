"""``courser inspect`` for metadata: journal, snapshot, descriptors. Secrets are never printed."""

from pathlib import Path

import click

from courser.cli import metadata_presentation as presentation
from courser.cli.cells import time_text
from courser.cli.inspect_support import emit_report, emit_small, epilog, file_argument, open_file
from courser.cli.output import Report, output_option
from courser.cli.terminal import say
from courser.inspect.journal_file import JournalInspection
from courser.inspect.metadata_files import DescriptorInspection, SnapshotHead, SnapshotInspection


@click.command(
    "journal",
    epilog=epilog(
        "courser inspect journal local_data/metadata/journal.wal",
        "courser inspect journal FILE --from-op 500 --limit 10 -o jsonl",
    ),
)
@file_argument
@click.option("--from-op", type=click.IntRange(min=0), default=0, help="Start at the entry with this op number.")
@click.option("--limit", type=click.IntRange(min=1), metavar="COUNT", help="Stop after COUNT entries.")
@output_option
def journal_command(path: Path, *, from_op: int, limit: int | None, output: str) -> None:
    """Print each entry of a metadata journal: position, op number, time, command, and whether the chain is intact.

    Also shows damage, gaps, breaks in the chain, duplicates, and a torn tail. The first entry can be checked only if
    the snapshot is in the same directory as the journal.
    """
    journal = open_file(path, JournalInspection)
    head = journal.head
    if output == "table":
        snapshot = "no snapshot" if head.snapshot_op is None else f"snapshot at op {head.snapshot_op}"
        say(f"{path}: {head.size} bytes, {snapshot}")
    report = Report(
        columns=presentation.JOURNAL_COLUMNS,
        cells=presentation.journal_cells,
        rows=journal.rows(from_op=from_op, limit=limit),
        is_alarming=presentation.is_alarming,
        head=head,
        summary=lambda: journal.summary,
    )
    emit_report(path, report, output)
    if output == "table" and limit is None:
        say(f"{journal.summary.entry_count} entries, {journal.summary.fault_count} faults")


@click.command(
    "snapshot",
    epilog=epilog("courser inspect snapshot local_data/metadata/snapshot.bin", "courser inspect snapshot FILE -o json"),
)
@file_argument
@output_option
def snapshot_command(path: Path, *, output: str) -> None:
    """Print the contents of a metadata snapshot: streams, topics, partitions, groups, users, permissions, tokens.

    For a password only the algorithm is shown; for a token, its name and times. A damaged state is not shown.
    """
    snapshot = open_file(path, SnapshotInspection)
    if output == "table":
        say(f"{path}: {snapshot.head.size} bytes, {_snapshot_text(snapshot.head)}")
    columns, cells = presentation.CATALOG_COLUMNS, presentation.catalog_cells
    emit_small(path, snapshot, columns, cells, presentation.is_alarming, output)


def _snapshot_text(head: SnapshotHead) -> str:
    verdicts = f"header: {head.header}, body: {head.body}, state: {head.state}"
    if head.fields is None:
        return verdicts
    fields = head.fields
    hashes = f"entry {fields.entry_checksum}, state {fields.state_hash}"
    return f"op {fields.op}, taken {time_text(fields.timestamp)}, {hashes}; {verdicts}"


@click.command(
    "descriptor",
    epilog=epilog(
        "courser inspect descriptor local_data/streams/1/descriptor", "courser inspect descriptor FILE -o json"
    ),
)
@file_argument
@output_option
def descriptor_command(path: Path, *, output: str) -> None:
    """Print the descriptor of a stream or topic. The metadata can be rebuilt from descriptors."""
    descriptor = open_file(path, DescriptorInspection)
    if output == "table":
        say(f"{path}: {descriptor.head.size} bytes, describes: {descriptor.head.describes}")
    columns, cells = presentation.CATALOG_COLUMNS, presentation.catalog_cells
    emit_small(path, descriptor, columns, cells, presentation.is_alarming, output)
