"""``courser export``, ``replay``, ``compact``, ``backfill`` and ``merge``: ready-made jobs on Spark."""

from dataclasses import asdict
from pathlib import Path

import click

from courser.cli.failures import ExitCode, Failure
from courser.cli.fields import size_text
from courser.cli.job_support import (
    JOB_EXITS,
    LocalPath,
    SourceOptions,
    books_of,
    books_option,
    job_command,
    rate_text,
    reads,
    running_spark,
    topic_argument,
    write_options,
)
from courser.cli.lazy import completed_by
from courser.cli.options import option
from courser.cli.output import emit_deed
from courser.cli.quantity_words import BYTE_SIZE

_COMPRESSION = option(
    "--compression",
    "Compression of the Parquet files.",
    type=click.Choice(("zstd", "snappy", "lz4", "gzip", "none")),
    default="zstd",
)
_partitions_option = option(
    "--create PARTITIONS",
    "Create the topic with this many partitions if it does not exist.",
    "partitions",
    type=click.IntRange(min=1),
)


# --- export, merge ---


@job_command(
    "export",
    "courser export shop/orders lake",
    "courser export shop/orders lake --by hour --headers",
    "courser export shop/orders lake --data local_data",
    "courser export shop/orders lake --archive server.toml",
    "duckdb -c \"select count(*) from read_parquet('lake/**/*.parquet')\"",
)
@topic_argument()
@click.argument("lake", type=LocalPath(path_type=Path, file_okay=False))
@option("--by", "Folders.", type=click.Choice(("day", "hour", "none")), default="day")
@_COMPRESSION
@option("--headers", "Add a column for user headers.")
@option("--again", "Export everything again, to the same files.")
@reads
def export_command(
    *,
    topic: tuple[str, str],
    lake: Path,
    by: str,
    compression: str,
    headers: bool,
    again: bool,
    reading: SourceOptions,
    master: str,
    output: str,
) -> None:
    """Write a topic to Parquet files in LAKE, in folders that duckdb, polars and Spark understand.

    Continues where the last export of the topic to this folder ended; an interrupted export is finished first. Files
    are named after their offsets: a repeated run overwrites them, so every row is exported exactly once.
    """
    options = reading.options(topic)
    with running_spark("export", master) as spark:
        from courser.jobs.export import export  # noqa: PLC0415 -- needs Spark

        report = export(spark, options, lake, by=by, compression=compression, include_headers=headers, again=again)
    sentence = (
        f"exported {report.row_count} messages to {report.file_count} files ({size_text(report.size)}) in "
        f"{report.folder}, in {rate_text(report.size, report.seconds)}"
    )
    emit_deed(sentence, asdict(report), output)


@job_command(
    "merge",
    "courser merge lake",
    'courser merge lake/stream=shop/topic=orders --small "16 MiB"',
    exits="Exit codes: 0 done, 1 failed (the log named in the hint has the trace), 2 wrong usage, 5 not found.",
    needs_server=False,
)
@click.argument("lake", type=LocalPath(path_type=Path))
@option("--small SIZE", "Smaller files are merged.", type=BYTE_SIZE, default="64 MiB")
@option("--target SIZE", "Size of a merged file.", type=BYTE_SIZE, default="256 MiB")
@_COMPRESSION
def merge_command(*, lake: Path, small: int, target: int, compression: str, master: str, output: str) -> None:
    """Merge many small Parquet files into few large ones, folder by folder.

    A reader never misses a row. While a merged file replaces others, for some milliseconds, a reader that lists the
    folder may see their rows twice. If the machine fails at that moment, this lasts until the next merge.
    """
    with running_spark("merge", master) as spark:
        from courser.jobs.merge import merge  # noqa: PLC0415 -- needs Spark

        report = merge(spark, lake, small_size=small, target_size=target, compression=compression)
    sentence = (
        f"merged {report.merged_count} files ({size_text(report.size_before)}) of {report.folder_count} folders into "
        f"{report.file_count} ({size_text(report.size_after)}), in {report.seconds:.1f} s"
    )
    if report.finished_count:
        sentence += f"; finished {report.finished_count} from an earlier run"
    emit_deed(sentence, asdict(report), output)


# --- replay, compact, backfill ---


@job_command(
    "replay",
    "courser replay shop/orders shop/orders-copy --create 3",
    "courser replay shop/orders shop/orders --data backup --job restore",
    "courser replay shop/orders test/orders --from 2026-11-01 --to 2026-11-02",
)
@topic_argument("source", "SOURCE")
@topic_argument("target", "TARGET")
@_partitions_option
@option("--job NAME", 'The name of the job on the server. Default: "SOURCE to TARGET".')
@books_option
@reads
def replay_command(
    *,
    source: tuple[str, str],
    target: tuple[str, str],
    partitions: int | None,
    job: str | None,
    books: Path | None,
    reading: SourceOptions,
    master: str,
    output: str,
) -> None:
    """Send the messages of a topic, of segment files, or of an archive to another topic.

    SOURCE and TARGET are STREAM/TOPIC.

    Keeps ids, creation times, headers, keys, partitions, and the order in each partition. Each message is sent exactly
    once: a run with the same name continues after the messages already published, however the last run ended.
    """
    if source == target and reading.data is None and reading.archive is None:
        raise Failure("cannot replay a topic into itself", "choose another TARGET", ExitCode.USAGE)
    options, writing = reading.options(source), write_options(target, partitions)
    with running_spark("replay", master) as spark:
        from courser.jobs.replay import replay  # noqa: PLC0415 -- needs Spark

        name = job or f"{'/'.join(source)} to {'/'.join(target)}"
        report = replay(spark, options, writing, job=name, books=books_of(books))
    sentence = (
        f"replayed {report.message_count} messages ({size_text(report.size)}) in {report.step_count} steps, in "
        f"{rate_text(report.size, report.seconds)}"
    )
    emit_deed(sentence, asdict(report), output)


@job_command(
    "compact",
    "courser compact shop/accounts --into shop/accounts-latest --create 3",
    "courser compact shop/accounts --folder latest --empty-deletes",
)
@topic_argument()
@option(
    "--into STREAM/TOPIC", "Write to this topic, which must be empty.", shell_complete=completed_by("complete_topic")
)
@option("--folder DIR", "Write Parquet files to this folder, which must not exist.", type=LocalPath(path_type=Path))
@_partitions_option
@option("--empty-deletes", "Leave out keys whose latest message is empty.")
@reads
def compact_command(
    *,
    topic: tuple[str, str],
    into: str | None,
    folder: Path | None,
    partitions: int | None,
    empty_deletes: bool,
    reading: SourceOptions,
    master: str,
    output: str,
) -> None:
    """Write the latest message of each key to a new topic, or to Parquet. Messages without a key are left out."""
    if (into is None) == (folder is None):
        raise Failure("no target given", "pass either --into or --folder", ExitCode.USAGE)
    options, writing = reading.options(topic), None
    if into is not None:
        stream, _, name = into.partition("/")
        if not stream or not name:
            raise Failure(f'--into requires STREAM/TOPIC, not "{into}"', "for example shop/latest", ExitCode.USAGE)
        writing = write_options((stream, name), partitions)
    with running_spark("compact", master) as spark:
        from courser.jobs.compact import compact  # noqa: PLC0415 -- needs Spark

        report = compact(spark, options, topic=writing, folder=folder, empty_deletes=empty_deletes)
    sentence = (
        f"wrote the latest messages of {report.key_count} keys to {report.target}; read {report.read_count} messages "
        f"in {report.seconds:.1f} s; skipped {report.keyless_count} without key and {report.deleted_count} deleted keys"
    )
    emit_deed(sentence, asdict(report), output)


@job_command(
    "backfill",
    "courser backfill shop/orders orders/*.parquet --key customer --create 3",
    "courser backfill shop/orders old.csv --schema 'id INT, at DATE' --time at",
    exits=JOB_EXITS,
)
@topic_argument()
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=LocalPath(path_type=Path))
@option("--key COLUMN", "The column with the keys, which select the partition.")
@option("--payload COLUMN", "Send only this column. Default: the whole row as JSON.")
@option("--time COLUMN", "The column with the creation time. Default: now.", "origin_timestamp")
@option("--order COLUMN", "Send the rows ordered by this column.")
@option("--format", "Default: by the file names.", "file_format", type=click.Choice(("parquet", "csv", "json")))
@option("--schema DDL", "The schema of CSV and JSON files: 'id INT, name STRING'.")
@option("--no-header", "CSV files have no header line.")
@_partitions_option
@option("--job NAME", "The name of the job on the server. Default: the topic's name.")
@books_option
def backfill_command(
    *,
    topic: tuple[str, str],
    files: tuple[Path, ...],
    key: str | None,
    payload: str | None,
    origin_timestamp: str | None,
    order: str | None,
    file_format: str | None,
    schema: str | None,
    no_header: bool,
    partitions: int | None,
    job: str | None,
    books: Path | None,
    master: str,
    output: str,
) -> None:
    """Send the rows of Parquet, CSV or JSON files to a topic. A FILE may be a folder.

    Each file is sent exactly once: a run with the same name skips files that were already sent, however the last run
    ended.
    """
    writing = write_options(topic, partitions)
    with running_spark("backfill", master) as spark:
        from courser.jobs.backfill import ColumnMapping, backfill  # noqa: PLC0415 -- needs Spark

        report = backfill(
            spark,
            files,
            writing,
            job=job or "/".join(topic),
            books=books_of(books),
            mapped=ColumnMapping(key=key, payload=payload, origin_timestamp=origin_timestamp, order=order),
            file_format=file_format,
            schema=schema,
            csv_header=not no_header,
        )
    sentence = (
        f"sent {report.message_count} messages of {report.file_count} files to {'/'.join(topic)}, in "
        f"{report.seconds:.1f} s; skipped {report.skipped_count} files that were already sent"
    )
    emit_deed(sentence, asdict(report), output)
