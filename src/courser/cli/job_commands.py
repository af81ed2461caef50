"""``courser export``, ``replay``, ``compact``, ``backfill`` and ``merge``: ready-made jobs on Spark."""

from pathlib import Path

import click

from courser.cli.cells import size_text
from courser.cli.failures import ExitCode, Failure
from courser.cli.job_support import (
    JOB_EXITS,
    books_of,
    books_option,
    data_option,
    from_option,
    job_command,
    loss_option,
    rate_text,
    read_options,
    record_of,
    running_spark,
    to_option,
    topic_argument,
    write_options,
)
from courser.cli.quantity_words import BYTE_SIZE
from courser.cli.records import emit_deed

_COMPRESSION = click.option(
    "--compression",
    type=click.Choice(("zstd", "snappy", "lz4", "gzip", "none")),
    default="zstd",
    show_default=True,
    help="Of the Parquet files.",
)
_partitions_option = click.option(
    "--create",
    "partitions",
    type=click.IntRange(min=1),
    metavar="PARTITIONS",
    help="Make the topic with so many partitions if it is missing.",
)


# --- export, merge ---


@job_command(
    "export",
    "courser export shop/orders lake",
    "courser export shop/orders lake --by hour --headers",
    "courser export shop/orders lake --data local_data",
    "duckdb -c \"select count(*) from read_parquet('lake/**/*.parquet')\"",
)
@topic_argument()
@click.argument("lake", type=click.Path(path_type=Path, file_okay=False))
@data_option
@click.option("--by", type=click.Choice(("day", "hour", "none")), default="day", show_default=True, help="Folders.")
@_COMPRESSION
@click.option("--headers", is_flag=True, help="With a column for user headers.")
@click.option("--again", is_flag=True, help="Write what was exported before once more, to the same files.")
@from_option
@to_option
@loss_option
def export_command(
    *,
    topic: tuple[str, str],
    lake: Path,
    data: Path | None,
    by: str,
    compression: str,
    headers: bool,
    again: bool,
    start: str | None,
    end: str | None,
    allow_loss: bool,
    master: str,
    output: str,
) -> None:
    """Write a topic to Parquet files below LAKE, in folders that duckdb, polars and Spark understand.

    Goes on where the last export of the topic into this folder ended, and finishes first what one left half-done. Files
    are named after the offsets in them: whatever runs twice overwrites, so every row is there once.
    """
    options = read_options(topic, data, start=start, end=end, allow_loss=allow_loss)
    with running_spark("export", master) as spark:
        from courser.jobs.export import export  # noqa: PLC0415 -- needs Spark

        report = export(spark, options, lake, by=by, compression=compression, include_headers=headers, again=again)
    sentence = (
        f"exported {report.row_count} messages to {report.file_count} files ({size_text(report.size)}) below "
        f"{report.folder}, in {rate_text(report.size, report.seconds)}"
    )
    emit_deed(sentence, record_of(report), output)


@job_command(
    "merge",
    "courser merge lake",
    'courser merge lake/stream=shop/topic=orders --small "16 MiB"',
    exits="Exit codes: 0 done, 1 failed (the log that is named has the trace), 2 wrong usage, 5 not found.",
    needs_server=False,
)
@click.argument("lake", type=click.Path(path_type=Path))
@click.option(
    "--small", type=BYTE_SIZE, default="64 MiB", show_default=True, metavar="SIZE", help="Smaller files are merged."
)
@click.option(
    "--target", type=BYTE_SIZE, default="256 MiB", show_default=True, metavar="SIZE", help="Size of a merged file."
)
@_COMPRESSION
def merge_command(*, lake: Path, small: int, target: int, compression: str, master: str, output: str) -> None:
    """Make few large Parquet files of many small ones, folder by folder.

    No row is ever missing for a reader. For some milliseconds, while a merged file takes the place of others, a reader
    that lists the folder may see the rows of these twice; if the machine fails just then, until the next merge.
    """
    with running_spark("merge", master) as spark:
        from courser.jobs.merge import merge  # noqa: PLC0415 -- needs Spark

        report = merge(spark, lake, small_size=small, target_size=target, compression=compression)
    sentence = (
        f"merged {report.merged_count} files ({size_text(report.size_before)}) of {report.folder_count} folders into "
        f"{report.file_count} ({size_text(report.size_after)}), in {report.seconds:.1f} s"
    )
    if report.finished_count:
        sentence += f"; finished {report.finished_count} that an earlier run had begun"
    emit_deed(sentence, record_of(report), output)


# --- replay, compact, backfill ---


@job_command(
    "replay",
    "courser replay shop/orders shop/orders-copy --create 3",
    "courser replay shop/orders shop/orders --data backup --job restore",
    "courser replay shop/orders test/orders --from 2026-11-01 --to 2026-11-02",
)
@topic_argument("source", "SOURCE")
@topic_argument("target", "TARGET")
@data_option
@_partitions_option
@click.option("--job", metavar="NAME", help='What the server knows it by; else "SOURCE to TARGET".')
@books_option
@from_option
@to_option
@loss_option
def replay_command(
    *,
    source: tuple[str, str],
    target: tuple[str, str],
    data: Path | None,
    partitions: int | None,
    job: str | None,
    books: Path | None,
    start: str | None,
    end: str | None,
    allow_loss: bool,
    master: str,
    output: str,
) -> None:
    """Send the messages of a topic, or of segment files, to another topic: SOURCE and TARGET are STREAM/TOPIC.

    Ids, creation times, headers, keys and partitions are kept, and the order in each partition. Exactly once: a run
    under the same name goes on behind what is published, however the last one ended.
    """
    if source == target and data is None:
        raise Failure("a topic cannot be replayed into itself", "name another TARGET", ExitCode.USAGE)
    reading = read_options(source, data, start=start, end=end, allow_loss=allow_loss)
    writing = write_options(target, partitions)
    with running_spark("replay", master) as spark:
        from courser.jobs.replay import replay  # noqa: PLC0415 -- needs Spark

        name = job or f"{'/'.join(source)} to {'/'.join(target)}"
        report = replay(spark, reading, writing, job=name, books=books_of(books))
    sentence = (
        f"replayed {report.message_count} messages ({size_text(report.size)}) in {report.step_count} steps, in "
        f"{rate_text(report.size, report.seconds)}"
    )
    emit_deed(sentence, record_of(report), output)


@job_command(
    "compact",
    "courser compact shop/accounts --into shop/accounts-latest --create 3",
    "courser compact shop/accounts --folder latest --empty-deletes",
)
@topic_argument()
@click.option("--into", metavar="STREAM/TOPIC", help="Write to this topic, which must be empty.")
@click.option(
    "--folder",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Write Parquet files to this folder, which must not be there yet.",
)
@_partitions_option
@click.option("--empty-deletes", is_flag=True, help="A key whose latest message is empty is gone.")
@data_option
@from_option
@to_option
@loss_option
def compact_command(
    *,
    topic: tuple[str, str],
    into: str | None,
    folder: Path | None,
    partitions: int | None,
    empty_deletes: bool,
    data: Path | None,
    start: str | None,
    end: str | None,
    allow_loss: bool,
    master: str,
    output: str,
) -> None:
    """Write the latest message of each key to a new topic, or to Parquet. Messages without a key are left out."""
    if (into is None) == (folder is None):
        raise Failure("either --into or --folder says where to write", "give one of them", ExitCode.USAGE)
    reading = read_options(topic, data, start=start, end=end, allow_loss=allow_loss)
    writing = None
    if into is not None:
        stream, _, name = into.partition("/")
        if not stream or not name:
            raise Failure(f'--into takes STREAM/TOPIC, not "{into}"', "such as shop/latest", ExitCode.USAGE)
        writing = write_options((stream, name), partitions)
    with running_spark("compact", master) as spark:
        from courser.jobs.compact import compact  # noqa: PLC0415 -- needs Spark

        report = compact(spark, reading, topic=writing, folder=folder, empty_deletes=empty_deletes)
    sentence = (
        f"wrote the latest of {report.key_count} keys to {report.target}, of {report.read_count} messages, in "
        f"{report.seconds:.1f} s; {report.keyless_count} without a key and {report.deleted_count} deleted keys left out"
    )
    emit_deed(sentence, record_of(report), output)


@job_command(
    "backfill",
    "courser backfill shop/orders orders/*.parquet --key customer --create 3",
    "courser backfill shop/orders old.csv --schema 'id INT, at DATE' --time at",
    exits=JOB_EXITS,
)
@topic_argument()
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--key", metavar="COLUMN", help="Its values are the keys: they decide about the partition.")
@click.option("--payload", metavar="COLUMN", help="Send this column alone; else the whole row, as JSON.")
@click.option("--time", "origin_timestamp", metavar="COLUMN", help="When a message was made; else now.")
@click.option("--order", metavar="COLUMN", help="Send the rows in the order of this column.")
@click.option("--format", "file_format", type=click.Choice(("parquet", "csv", "json")), help="Else by the names.")
@click.option("--schema", metavar="DDL", help="Of CSV and JSON: 'id INT, name STRING'.")
@click.option("--no-header", is_flag=True, help="The first line of a CSV file is a row like the others.")
@_partitions_option
@click.option("--job", metavar="NAME", help="What the server knows it by; else the topic's name.")
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

    Exactly once: a run under the same name sends only files that none has sent before, however the last one ended.
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
        f"{report.seconds:.1f} s; {report.skipped_count} files were sent before"
    )
    emit_deed(sentence, record_of(report), output)
