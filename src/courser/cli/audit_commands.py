"""``courser audit`` and ``courser usage``: check and measure a data directory with parallel Spark tasks."""

from dataclasses import asdict
from pathlib import Path

import click

from courser.cli.fields import ABSENT, as_size, fields, size_text
from courser.cli.inspect_commands import emit_findings, environment_keys
from courser.cli.job_support import LocalPath, job_command, running_spark
from courser.cli.options import option
from courser.cli.output import emit_list, emit_thing
from courser.cli.quantity_words import DURATION
from courser.cli.terminal import say

_AUDIT_EXITS = "Exit codes: 0 no damage, 1 a file cannot be read, 2 damage (or wrong usage), 5 not found."
_HOUR = 3_600_000_000

_directory = click.argument("directory", metavar="DIR", type=LocalPath(path_type=Path, file_okay=False))


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
    return emit_findings(directory, found.head, found.findings, found.summary, found.seconds, output)


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


_TOPIC_FIELDS = fields(
    "stream, topic, partition_count=partitions#/3, segment_count=segments#/3, message_count=messages#, size#, "
    "message_size=payloads#/3, bytes_per_second=growth#, messages_per_second=messages/s#/1, "
    "first_timestamp=oldest/2, last_timestamp=newest/2, expiry_seconds=kept for/2, size_max=limit#/2, "
    "kept_size=will keep#/1, seconds_to_limit=full in/1, damaged_count=damaged#/4",
    bytes_per_second=_rate,
    messages_per_second=_number,
    expiry_seconds=_span,
    size_max=as_size,
    seconds_to_limit=_span,
)
_SIZE_FIELDS = fields("message=message size, message_count=messages#, share=%#", share=_number)


@job_command(
    "usage",
    "courser usage local_data",
    "courser usage local_data --topic shop/orders --window 1h",
    "courser usage local_data -o json",
    exits="Exit codes: 0 shown, 1 failed, 2 wrong usage, 5 not found.",
    needs_server=False,
)
@_directory
@option("--topic STREAM[/TOPIC]", "Only this stream or topic.")
@option("--window DURATION", "The period for computing rates, in whole hours.", type=DURATION, default="1 day")
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
