"""``courser audit`` and ``courser usage``: check and measure a data directory with parallel Spark tasks."""

from dataclasses import asdict
from pathlib import Path

import click

from courser.cli import presentation
from courser.cli.cells import ABSENT, size_text
from courser.cli.failures import ExitCode
from courser.cli.inspect_commands import verdict, with_rate
from courser.cli.inspect_support import emit_report, environment_keys
from courser.cli.job_support import job_command, running_spark
from courser.cli.output import Report
from courser.cli.quantity_words import DURATION
from courser.cli.records import Field, as_size, as_time, emit_list, emit_thing
from courser.cli.terminal import say

_AUDIT_EXITS = "Exit codes: 0 no damage, 1 a file cannot be read, 2 damage (or wrong usage), 5 not found."
_HOUR = 3_600_000_000

_directory = click.argument("directory", metavar="DIR", type=click.Path(path_type=Path, file_okay=False))


@job_command(
    "audit",
    "courser audit local_data",
    "courser audit local_data -o json > report.json",
    "courser audit /srv/courser --master spark://10.0.0.5:7077",
    exits=_AUDIT_EXITS,
    needs_server=False,
)
@_directory
def audit_command(*, directory: Path, master: str, output: str) -> int:
    """Check every segment in a directory in parallel: the checks of inspect verify, on Spark.

    Checks stored hashes, message checksums, offsets and times, indexes against logs, missing segments, the ledger,
    stored consumer offsets, and the metadata of a data directory.

    Read-only and takes no lock: a server may be running. Files that change during the check are not damage.
    """
    with running_spark("audit", master) as spark:
        from courser.jobs.audit import audit  # noqa: PLC0415 -- needs Spark

        found = audit(spark, directory, environment_keys())
    report = Report(
        columns=presentation.FINDING_COLUMNS,
        cells=presentation.finding_cells,
        rows=found.findings,
        is_alarming=presentation.is_alarming,
        head=found.head,
        summary=lambda: with_rate(found.summary, found.seconds),
        names=("directory", "findings"),
    )
    emit_report(directory, report, output)
    say(verdict(found.summary, found.seconds))
    if found.is_damaged:
        return ExitCode.DAMAGE
    return ExitCode.FAILED if found.summary.unreadable_count else ExitCode.OK


# --- usage ---


def _rate(value: object) -> str:
    return f"{size_text(round(value))}/s" if isinstance(value, float) else ABSENT


def _number(value: object) -> str:
    return f"{value:.1f}" if isinstance(value, float) else ABSENT


def _span(value: object) -> str:
    """Seconds in a readable unit."""
    if not isinstance(value, int | float):
        return ABSENT
    for size, unit in ((86_400, "days"), (3_600, "hours"), (60, "minutes")):
        if value >= 2 * size:
            return f"{value / size:,.0f} {unit}"
    return f"{value:.0f} seconds"


_TOPIC_FIELDS = (
    Field("stream"),
    Field("topic"),
    Field("partition_count", "partitions", is_number=True, rank=3),
    Field("segment_count", "segments", is_number=True, rank=3),
    Field("message_count", "messages", is_number=True),
    Field("size", text=as_size, is_number=True),
    Field("message_size", "payloads", text=as_size, is_number=True, rank=3),
    Field("bytes_per_second", "growth", text=_rate, is_number=True),
    Field("messages_per_second", "messages/s", text=_number, is_number=True, rank=1),
    Field("first_timestamp", "oldest", text=as_time, rank=2),
    Field("last_timestamp", "newest", text=as_time, rank=2),
    Field("expiry_seconds", "kept for", text=_span, rank=2),
    Field("size_max", "limit", text=as_size, is_number=True, rank=2),
    Field("kept_size", "will keep", text=as_size, is_number=True, rank=1),
    Field("seconds_to_limit", "full in", text=_span, rank=1),
    Field("damaged_count", "damaged", is_number=True, rank=4),
)
_SIZE_FIELDS = (
    Field("message", "message size"),
    Field("message_count", "messages", is_number=True),
    Field("share", "%", text=_number, is_number=True),
)


@job_command(
    "usage",
    "courser usage local_data",
    "courser usage local_data --topic shop/orders --window 1h",
    "courser usage local_data -o json",
    exits="Exit codes: 0 shown, 1 failed, 2 wrong usage, 5 not found.",
    needs_server=False,
)
@_directory
@click.option("--topic", metavar="STREAM[/TOPIC]", help="Only this stream or topic.")
@click.option(
    "--window",
    type=DURATION,
    default="1 day",
    show_default=True,
    metavar="DURATION",
    help="The period for computing rates, in whole hours.",
)
def usage_command(*, directory: Path, topic: str | None, window: int, master: str, output: str) -> None:
    """Show the size and growth of each topic, the sizes of messages, and when limits are reached.

    Reads the batch headers in the segment files, not the payloads. A server may be running; it is not involved.
    "Will keep" and "full in" are computed from the topic's own limits and the current rate. The server's default
    limits are not known to this command.
    """
    stream, _, name = (topic or "").partition("/")
    with running_spark("usage", master) as spark:
        from courser.jobs.usage import usage  # noqa: PLC0415 -- needs Spark

        hours = max(round(window / _HOUR), 1)
        report = usage(spark, directory, stream=stream or None, topic=name or None, window_hours=hours)
    record = asdict(report)
    if output == "json":
        emit_thing((), record, output)
        return
    emit_list(_TOPIC_FIELDS, record["topics"], output)
    if output == "table":
        sizes = _sizes(record["topics"])
        if sizes:
            say("")
            emit_list(_SIZE_FIELDS, sizes, output)
        free = f"{size_text(report.disk_free)} free on the disk"
        growing = f", full in {_span(report.seconds_to_full_disk)} at this rate if nothing is deleted"
        say(free + (growing if report.seconds_to_full_disk is not None else ""))


def _sizes(topics: list[dict[str, object]]) -> list[dict[str, object]]:
    """The histogram of message sizes over all topics."""
    counts: dict[tuple[int, int], int] = {}
    for topic in topics:
        sizes = topic["sizes"]
        assert isinstance(sizes, tuple)
        for row in sizes:
            bounds = (row["size_min"], row["size_max"])
            counts[bounds] = counts.get(bounds, 0) + row["message_count"]
    total = sum(counts.values())
    return [
        {
            "message": f"{size_text(low)} to {size_text(high)}",
            "message_count": count,
            "share": 100 * count / total,
        }
        for (low, high), count in sorted(counts.items())
    ]
