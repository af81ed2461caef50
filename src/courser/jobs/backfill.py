"""Backfill: sends Parquet, CSV or JSON files to a topic, partitioned by a key column.

The files are grouped into steps, in order of their names, and each step is published exactly once. A job that is run
again under the same name continues after the last step that the server has published (docs/spark/jobs.md).
"""

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as f

from courser.api.replies import SinkInfo
from courser.errors import ClientFailure
from courser.jobs.job_book import BookRefused, JobBook, book_path, open_book
from courser.jobs.tasks import steps_of
from courser.lake.locks import only_writer
from courser.spark.addresses import check_local
from courser.spark.background_clients import connection_to, with_retries
from courser.spark.options import Use, closest, parse_options, required, required_topic, target_of

FORMATS = {".parquet": "parquet", ".csv": "csv", ".json": "json", ".jsonl": "json", ".ndjson": "json"}
"""By file extension; may be followed by ``.gz`` and the like if Spark can read it."""
STEP_SIZE = 256 * 1024 * 1024
"""Approximate bytes of files that are published per step."""
_COMPRESSIONS = (".gz", ".bz2", ".zst", ".lz4", ".snappy")


class BackfillRefused(ClientFailure):
    """The files cannot be sent as requested."""


class FileMissing(BackfillRefused):
    """A file or folder to send does not exist."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnMapping:
    """Which columns are used for what."""

    key: str | None = None
    """The column with the message key, which selects the partition; None: rotate over the partitions."""
    payload: str | None = None
    """The column to send; None: the whole row as JSON."""
    origin_timestamp: str | None = None
    """The column with the creation time; None: the time of the backfill."""
    order: str | None = None
    """The column to sort the rows of a step by; None: rows keep their order only within a split of a file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillReport:
    """What a backfill did."""

    job: str
    file_count: int
    skipped_count: int
    """Files that an earlier run of the job sent."""
    message_count: int
    step_count: int
    seconds: float


def backfill(
    spark: SparkSession,
    files: Sequence[Path],
    target: Mapping[str, str],
    *,
    job: str,
    books: Path,
    mapped: ColumnMapping | None = None,
    file_format: str | None = None,
    schema: str | None = None,
    csv_header: bool = True,
    step_size: int = STEP_SIZE,
) -> BackfillReport:
    """Send everything that no run of this job has sent yet.

    Args:
        spark: The session to use; all its workers must see the files.
        files: Files, or folders with files; hidden ones are ignored.
        target: Options of a write: stream, topic, server; ``createTopic`` creates the topic if it is missing.
        job: A name that must be the same for every run. The server uses it to recognize what is published.
        books: A folder for the job's book, the same for every run.
        mapped: Which columns are used for what.
        file_format: ``parquet``, ``csv`` or ``json``; None: by file extension.
        schema: Of CSV and JSON; None: all CSV columns are text, the JSON schema is inferred.
        csv_header: Whether the first line of a CSV file names the columns.
        step_size: Approximate bytes of files to publish per step.

    Raises:
        AddressGiven: a file is an address.
        BackfillRefused: there are no files, files of several formats, or a column is missing.
        BookRefused: the job's name was used for something else, or some of its files have changed.
        OptionRefused, WriteFailed: as for a write.
        FolderInUse: a job of this name is already running.
    """
    for file in files:
        check_local(file, "what a backfill sends")
    began = time.monotonic()
    found = _find(files)
    reading = _Reading(spark, file_format or _kind_of(found), schema, csv_header, mapped or ColumnMapping())
    values = parse_options(target, Use.WRITE)
    server = target_of(values)
    subject = {"target": f"{server.address}/{required(values, 'stream')}/{required_topic(values)}"}
    path = book_path(books, job)
    with only_writer(path.with_suffix(".d")):
        book = open_book(path, subject)
        client = connection_to(server)
        _note_published(book, job, lambda sink: with_retries(lambda: client.get_sink(sink), values["retries"]))
        first = book.done_count
        book.add_steps(_steps(_unknown(found, book), step_size))
        message_count = 0
        for number in range(first, len(book.steps)):
            message_count += _send(reading.rows(_unchanged(book, number)), {**target, "jobId": _sink(job, number)})
            book.done_count = number + 1
            book.save()
    sent = {name for step in book.steps[first:] for name, _, _ in step}
    return BackfillReport(
        job=job,
        file_count=len(sent),
        skipped_count=len({str(file) for file in found} - sent),
        message_count=message_count,
        step_count=len(book.steps) - first,
        seconds=time.monotonic() - began,
    )


def _sink(job: str, number: int) -> str:
    """To the server, every step is a batch job of its own."""
    return f"backfill {job} {number}"


def _note_published(book: JobBook, job: str, look: Callable[[str], SinkInfo]) -> None:
    """Record steps that an earlier run published but did not record before it died.

    Raises:
        BookRefused: the server has published a step that is not in the book.
    """
    while look(_sink(job, book.done_count)).batch is not None:
        if book.done_count == len(book.steps):
            raise BookRefused(book.path, f"the server has published step {book.done_count}, which is not in the book")
        book.done_count += 1


# --- files --------------------------------------------------------------------------------------------


def _find(places: Sequence[Path]) -> list[Path]:
    """All files, by name. Raises ``BackfillRefused`` if there are none."""
    found: list[Path] = []
    for place in places:
        if place.is_dir():
            inside = (path for path in place.rglob("*") if path.is_file())
            found += [path for path in inside if not _is_hidden(path.relative_to(place))]
        elif place.is_file():
            if _is_hidden(Path(place.name)):
                # Spark would silently read no rows from it, and the file would count as sent.
                raise BackfillRefused(f'Spark ignores files whose names begin with "." or "_"; rename {place}')
            found.append(place)
        else:
            raise FileMissing(f"file {place} does not exist")
    if not found:
        raise BackfillRefused(f"no files found in {', '.join(map(str, places))}")
    return sorted({path.absolute() for path in found})


def _is_hidden(path: Path) -> bool:
    return any(part.startswith((".", "_")) for part in path.parts)


def _kind_of(files: Sequence[Path]) -> str:
    kinds = {_ending(path): path for path in files}
    unknown = [path for ending, path in kinds.items() if ending not in FORMATS]
    if unknown:
        raise BackfillRefused(f"unknown format of {unknown[0]}; specify parquet, csv or json")
    formats = {FORMATS[ending]: path for ending, path in kinds.items()}
    if len(formats) > 1:
        one, other = list(formats.items())[:2]
        raise BackfillRefused(f"{one[1]} is {one[0]}, but {other[1]} is {other[0]}; backfill one format at a time")
    return next(iter(formats))


def _ending(path: Path) -> str:
    name = path.name.lower()
    for compression in _COMPRESSIONS:
        name = name.removesuffix(compression)
    return Path(name).suffix


def _unknown(files: Sequence[Path], book: JobBook) -> list[Path]:
    """Files that no run has planned yet."""
    known = {name for step in book.steps for name, _, _ in step}
    return [file for file in files if str(file) not in known]


def _steps(files: Sequence[Path], step_size: int) -> list[list[Any]]:
    """Group files into steps. Each file is recorded with its size and time, so that changes are noticed."""
    facts = [(file, file.stat()) for file in files]
    recorded = [[str(file), found.st_size, found.st_mtime_ns] for file, found in facts]
    return steps_of(recorded, step_size, weight=lambda entry: entry[1])


def _unchanged(book: JobBook, number: int) -> list[str]:
    """The files of a step. Raises ``BookRefused`` if one has changed: some of its rows may already be staged."""
    for name, size, changed_at in book.steps[number]:
        path = Path(name)
        facts = path.stat() if path.exists() else None
        if facts is None or (facts.st_size, facts.st_mtime_ns) != (size, changed_at):
            raise BookRefused(
                book.path, f"{name} was {'removed' if facts is None else 'changed'} after the job started"
            )
    return [name for name, _, _ in book.steps[number]]


# --- rows ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Reading:
    """How files become messages."""

    spark: SparkSession
    kind: str
    schema: str | None
    csv_header: bool
    mapped: ColumnMapping

    def rows(self, names: list[str]) -> DataFrame:
        """The messages of some files. Raises ``BackfillRefused`` if a column is missing."""
        reader = self.spark.read.format(self.kind)
        if self.schema is not None:
            reader = reader.schema(self.schema)
        if self.kind == "csv":
            reader = reader.option("header", str(self.csv_header).lower())
        if self.kind != "parquet":
            # A malformed line stops the job: otherwise nobody would ever notice it.
            reader = reader.option("mode", "FAILFAST")
        rows = reader.load([_literally(name) for name in names])
        if self.mapped.order is not None:
            rows = rows.orderBy(self._column(rows, self.mapped.order))
        return rows.select(*self._columns(rows))

    def _columns(self, rows: DataFrame) -> list[Column]:
        mapped = self.mapped
        if mapped.payload is not None:
            payload = _bytes(rows, self._column(rows, mapped.payload), mapped.payload)
        else:
            payload = f.to_json(f.struct(*(f.col(f"`{name}`") for name in rows.columns)))
        columns = [payload.alias("payload")]
        if mapped.key is not None:
            columns.append(_bytes(rows, self._column(rows, mapped.key), mapped.key).alias("key"))
        if mapped.origin_timestamp is not None:
            time_column = self._column(rows, mapped.origin_timestamp)
            columns.append(time_column.cast("timestamp").alias("origin_timestamp"))
        return columns

    def _column(self, rows: DataFrame, name: str) -> Column:
        if name not in rows.columns:
            alike = closest(name, rows.columns)
            hint = f'did you mean "{alike}"?' if alike else f"the columns are {', '.join(rows.columns)}"
            raise BackfillRefused(f'the files have no column "{name}"; {hint}')
        return f.col(f"`{name}`")


def _literally(name: str) -> str:
    """Escape the characters of a file name that Spark would treat as a glob pattern."""
    return re.sub(r"[][{}*?\\]", r"\\\g<0>", name)


def _bytes(rows: DataFrame, column: Column, name: str) -> Column:
    """Text and bytes unchanged, structures as JSON, everything else as text."""
    kind = rows.schema[name].dataType.typeName()
    if kind in ("struct", "map", "array"):
        return f.to_json(column)
    return column if kind in ("binary", "string") else column.cast("string")


def _send(rows: DataFrame, options: Mapping[str, str]) -> int:
    """Publish the rows and return how many there were."""
    counting = Observation()
    counted = rows.observe(counting, f.count(f.lit(1)).alias("count"))
    counted.write.format("courser").options(**options).mode("append").save()
    return int(counting.get["count"])
