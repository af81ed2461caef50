"""Backfill: Parquet, CSV or JSON files into a topic; a column of keys decides about partitions.

The files are put together to steps, in the order of their names, and each step is published exactly once: a run that
is repeated under the same name goes on behind the last step that the server has (docs/spark/jobs.md).
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
from courser.errors import CourserError
from courser.jobs.job_book import BookRefused, JobBook, book_path, open_book
from courser.lake.locks import only_writer
from courser.spark.connections import connection_to, with_retries
from courser.spark.options import Use, closest, parse_options, required, required_topic, target_of

FORMATS = {".parquet": "parquet", ".csv": "csv", ".json": "json", ".jsonl": "json", ".ndjson": "json"}
"""By the ending of a file's name; ``.gz`` and the like may follow where Spark reads it."""
STEP_SIZE = 256 * 1024 * 1024
"""Bytes of files that are published at a time, about."""
_COMPRESSIONS = (".gz", ".bz2", ".zst", ".lz4", ".snappy")


class BackfillRefused(CourserError):
    """The files cannot be sent as they are asked for."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return self.reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Mapped:
    """Which columns become what."""

    key: str | None = None
    """The column that decides about the partition; None: partitions in turn."""
    payload: str | None = None
    """The column that is sent; None: the whole row, as JSON."""
    origin_timestamp: str | None = None
    """The column with the creation time; None: the time of the backfill."""
    order: str | None = None
    """The column by which the rows of a step are sorted first; None: in no order but that inside a piece of a file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillReport:
    """What a backfill did."""

    job: str
    file_count: int
    skipped_count: int
    """Files that an earlier run of the job has sent."""
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
    mapped: Mapped | None = None,
    file_format: str | None = None,
    schema: str | None = None,
    csv_header: bool = True,
    step_size: int = STEP_SIZE,
) -> BackfillReport:
    """Send what no run of this job has sent yet.

    Args:
        spark: Where the tasks run; all of them must see the files.
        files: Files, or folders with files; hidden ones are passed over.
        target: Options of a write: stream, topic, where they are; ``createTopic`` makes the topic if it is missing.
        job: A name, the same for every run: the server knows by it what is published.
        books: A folder for the job's book, the same for every run.
        mapped: Which columns become what.
        file_format: ``parquet``, ``csv`` or ``json``; None: by the endings of the names.
        schema: Of CSV and JSON; None: CSV is all text, JSON is looked through.
        csv_header: Whether the first line of a CSV file names the columns.
        step_size: Bytes of files that are published at a time.

    Raises:
        BackfillRefused: no files, files of several kinds, or a column that is not there.
        BookRefused: the job's name stands for something else, or files of it have changed.
        OptionRefused, WriteFailed: as a write does.
        FolderInUse: a job of this name runs already.
    """
    began = time.monotonic()
    found = _find(files)
    reading = _Reading(spark, file_format or _kind_of(found), schema, csv_header, mapped or Mapped())
    values = parse_options(target, Use.WRITE)
    server = target_of(values)
    subject = {"target": f"{server.address}/{required(values, 'stream')}/{required_topic(values)}"}
    path = book_path(books, job)
    with only_writer(path.with_suffix(".d")):
        book = open_book(path, subject)
        client = connection_to(server).sync
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
    """Every step is a batch job of its own for the server."""
    return f"backfill {job} {number}"


def _note_published(book: JobBook, job: str, look: Callable[[str], SinkInfo]) -> None:
    """A run may have died behind a publish, before it wrote that down.

    Raises:
        BookRefused: the server has published a step that is not in the book.
    """
    while look(_sink(job, book.done_count)).batch is not None:
        if book.done_count == len(book.steps):
            raise BookRefused(book.path, f"the server has published step {book.done_count}, which is not written down")
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
                # It would count as sent, without a single row.
                raise BackfillRefused(f"Spark passes over files whose names begin like that of {place}: rename it")
            found.append(place)
        else:
            raise BackfillRefused(f"there is no file {place}")
    if not found:
        raise BackfillRefused(f"there are no files in {', '.join(map(str, places))}")
    return sorted({path.absolute() for path in found})


def _is_hidden(path: Path) -> bool:
    return any(part.startswith((".", "_")) for part in path.parts)


def _kind_of(files: Sequence[Path]) -> str:
    kinds = {_ending(path): path for path in files}
    unknown = [path for ending, path in kinds.items() if ending not in FORMATS]
    if unknown:
        raise BackfillRefused(f"nobody knows of what kind {unknown[0]} is: say parquet, csv or json")
    formats = {FORMATS[ending]: path for ending, path in kinds.items()}
    if len(formats) > 1:
        one, other = list(formats.items())[:2]
        raise BackfillRefused(f"{one[1]} is {one[0]} and {other[1]} is {other[0]}: one kind at a time")
    return next(iter(formats))


def _ending(path: Path) -> str:
    name = path.name.lower()
    for compression in _COMPRESSIONS:
        name = name.removesuffix(compression)
    return Path(name).suffix


def _unknown(files: Sequence[Path], book: JobBook) -> list[Path]:
    """Files that no run has planned."""
    known = {name for step in book.steps for name, _, _ in step}
    return [file for file in files if str(file) not in known]


def _steps(files: Sequence[Path], step_size: int) -> list[list[Any]]:
    """Files of about one size together: name, size and time, so that a change is noticed."""
    steps: list[list[Any]] = []
    size = step_size
    for file in files:
        facts = file.stat()
        if size >= step_size:
            steps.append([])
            size = 0
        steps[-1].append([str(file), facts.st_size, facts.st_mtime_ns])
        size += facts.st_size
    return steps


def _unchanged(book: JobBook, number: int) -> list[str]:
    """The files of a step. Raises ``BookRefused`` if one is not what it was: half of it may be sent already."""
    for name, size, changed_at in book.steps[number]:
        path = Path(name)
        facts = path.stat() if path.exists() else None
        if facts is None or (facts.st_size, facts.st_mtime_ns) != (size, changed_at):
            raise BookRefused(book.path, f"{name} is {'gone' if facts is None else 'changed'} since the job began")
    return [name for name, _, _ in book.steps[number]]


# --- rows ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Reading:
    """How files become messages."""

    spark: SparkSession
    kind: str
    schema: str | None
    csv_header: bool
    mapped: Mapped

    def rows(self, names: list[str]) -> DataFrame:
        """The messages of some files. Raises ``BackfillRefused`` for a column that is not there."""
        reader = self.spark.read.format(self.kind)
        if self.schema is not None:
            reader = reader.schema(self.schema)
        if self.kind == "csv":
            reader = reader.option("header", str(self.csv_header).lower())
        if self.kind != "parquet":
            # A line that cannot be read stops the job: nobody would look for it later.
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
            hint = f'the closest is "{alike}"' if alike else f"there are {', '.join(rows.columns)}"
            raise BackfillRefused(f'the files have no column "{name}": {hint}')
        return f.col(f"`{name}`")


def _literally(name: str) -> str:
    """A file's name as Spark has to be told it: by itself it takes some letters for patterns."""
    return re.sub(r"[][{}*?\\]", r"\\\g<0>", name)


def _bytes(rows: DataFrame, column: Column, name: str) -> Column:
    """Text and bytes as they are, numbers and the like as text."""
    kind = rows.schema[name].dataType.typeName()
    if kind in ("struct", "map", "array"):
        return f.to_json(column)
    return column if kind in ("binary", "string") else column.cast("string")


def _send(rows: DataFrame, options: Mapping[str, str]) -> int:
    """Publish the rows, and count them on the way."""
    counting = Observation()
    counted = rows.observe(counting, f.count(f.lit(1)).alias("count"))
    counted.write.format("courser").options(**options).mode("append").save()
    return int(counting.get["count"])
