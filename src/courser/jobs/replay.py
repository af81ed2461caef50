"""Replay: copies a topic, or its segment files, to another topic; keeps ids, creation times, headers and partitions.

Ranges of offsets are grouped into steps. The tasks of a step stage their messages on the target's server, and the
driver publishes the step exactly once, even if processes are killed in between (docs/spark/jobs.md).
"""

import secrets
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark import TaskContext
from pyspark.sql import SparkSession

from courser.errors import InvalidBatch
from courser.jobs.job_book import JobBook, book_path, open_book
from courser.jobs.source_topic import SourceTopic, fetch_ranges, open_topic
from courser.jobs.tasks import run_in_tasks, steps_of
from courser.lake.locks import only_writer
from courser.records import layout
from courser.records.batch import Batch, batch_of, merge_batches
from courser.spark.background_clients import BackgroundClient, connection_to, with_retries
from courser.spark.errors import WriteFailed
from courser.spark.options import Use, parse_options, required, required_topic, target_of
from courser.spark.read_options import ReadOptions
from courser.spark.routing import Destination
from courser.spark.sources import OffsetRange
from courser.spark.write_options import WriteOptions
from courser.spark.writer import JOB_KEPT, StagedDelivery, TopicLookup

STEP_SIZE = 512 * 1024 * 1024
"""Approximate bytes per step: well below the server's limit for staged data, and little to repeat after a crash."""
_SMALL_SIZE = 128 * 1024
"""Bytes below which a batch is joined with others."""
_JOINED_SIZE = 1024 * 1024
"""Bytes of a joined batch: the default maximum of producers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayReport:
    """What a replay did."""

    job: str
    message_count: int
    size: int
    """Bytes of published messages."""
    step_count: int
    resumed_count: int
    """Steps that an earlier run had planned but not published."""
    ends: Mapping[int, int]
    """The source offset that the next run starts with, by partition."""
    seconds: float


@dataclass(frozen=True, slots=True)
class _Work:
    """The work of one task."""

    part: int
    ranges: tuple[OffsetRange, ...]
    start: int
    end: int
    read: ReadOptions
    write: WriteOptions
    sink: str
    batch: int
    size: int


@dataclass(frozen=True, slots=True)
class _Staged:
    part: int
    attempt: int
    chunk_count: int
    message_count: int
    size: int


def replay(
    spark: SparkSession,
    source: Mapping[str, str],
    target: Mapping[str, str],
    *,
    job: str,
    books: Path,
    step_size: int = STEP_SIZE,
) -> ReplayReport:
    """Publish everything that no run of this job has published yet.

    Args:
        spark: The session to use.
        source: Options of a read: stream, topic, server, start and end.
        target: Options of a write: stream, topic, server; ``createTopic`` creates the topic if it is missing.
        job: A name that must be the same for every run. The server uses it to recognize what is published.
        books: A folder for the job's book, the same for every run.
        step_size: Approximate bytes to publish per step.

    Raises:
        OptionRefused, ReadFailed, DataLost: as for a read.
        WriteFailed: the target has too few partitions.
        BookRefused: the job's name was used for something else.
        FolderInUse: a job of this name is already running.
    """
    began = time.monotonic()
    topic = open_topic(source)
    write = _write_options(target)
    path = book_path(books, job)
    with only_writer(path.with_suffix(".d")):
        _check_target(topic, write)
        book = open_book(path, _subject(topic, write))
        sink = f"replay {job}"
        client = connection_to(write.target)
        book.note_published(with_retries(lambda: client.get_sink(sink), write.retries))
        resumed_count = len(book.steps) - book.done_count
        book.add_steps(_steps(topic, topic.ranges(_ends(book)), step_size))
        counted = [
            _publish_step(spark, topic, write, sink, number, book) for number in range(book.done_count, len(book.steps))
        ]
    return ReplayReport(
        job=job,
        message_count=sum(count for count, _ in counted),
        size=sum(size for _, size in counted),
        step_count=len(counted),
        resumed_count=resumed_count,
        ends=_ends(book),
        seconds=time.monotonic() - began,
    )


def _write_options(given: Mapping[str, str]) -> WriteOptions:
    values = parse_options(given, Use.WRITE)
    return WriteOptions(
        target=target_of(values),
        stream=required(values, "stream"),
        topic=required_topic(values),
        partitioning="column",
        is_exactly_once=True,
        create_partitions=values["createTopic"],
        job_id=None,
        batch_size=values["batchBytes"],
        retries=values["retries"],
    )


def _subject(topic: SourceTopic, write: WriteOptions) -> dict[str, Any]:
    return {
        "source": topic.options.name,
        "topic_uuid": topic.facts.uuid.hex(),
        "target": f"{write.target.address}/{write.stream}/{write.topic}",
    }


def _check_target(topic: SourceTopic, write: WriteOptions) -> None:
    """Check that the target has all partitions of the source, because messages keep their partition."""
    assert write.stream is not None
    assert write.topic is not None
    lookup = TopicLookup(connection_to(write.target), write)
    count = lookup.partition_count(write.stream, write.topic)
    needed = max(topic.facts.partitions, default=-1) + 1
    if count < needed:
        raise WriteFailed(
            f"{write.stream}/{write.topic} has {count} partitions, but {topic.options.name} has {needed}; add some "
            "with: courser partition create"
        )


def _steps(topic: SourceTopic, ranges: list[OffsetRange], step_size: int) -> list[list[Any]]:
    """Group ranges into steps. The ranges of a partition stay in order."""
    ordered = sorted(ranges, key=lambda part: (part.start, part.partition))
    steps = steps_of(ordered, step_size, weight=topic.size_of)
    return [[[part.partition, part.start, part.end] for part in step] for step in steps]


def _ends(book: JobBook) -> dict[int, int]:
    ends: dict[int, int] = {}
    for step in book.steps:
        for partition, _, end in step:
            ends[partition] = max(end, ends.get(partition, 0))
    return ends


def _publish_step(
    spark: SparkSession, topic: SourceTopic, write: WriteOptions, sink: str, number: int, book: JobBook
) -> tuple[int, int]:
    """Stage and publish a step. Returns the number of messages and their size in bytes."""
    parts = sorted((OffsetRange(*part) for part in book.steps[number]), key=lambda part: (part.partition, part.start))
    work = [
        _Work(
            index, topic.sources_of(part), part.start, part.end, topic.options, write, sink, number, topic.size_of(part)
        )
        for index, part in enumerate(parts)
    ]
    client = connection_to(write.target)
    # Messages that an earlier attempt at this step staged would count against the server's limit.
    with_retries(lambda: client.discard_staged(sink, number), write.retries)
    staged = run_in_tasks(spark, _stage_range, work, weight=lambda item: item.size)
    chosen = {part.part: part.attempt for part in staged if part.chunk_count}
    # If the reply is lost, this is repeated; the server recognizes the repetition.
    with_retries(lambda: client.publish_staged(sink, number, chosen, keep=JOB_KEPT), write.retries)
    book.done_count = number + 1
    book.save()
    return sum(part.message_count for part in staged), sum(part.size for part in staged)


# --- in a task ----------------------------------------------------------------------------------------


def _stage_range(work: _Work) -> _Staged:
    connection: BackgroundClient = with_retries(lambda: connection_to(work.write.target), work.write.retries)
    context = TaskContext.get()
    # Unique for every attempt of the task, even if attempts run at the same time.
    attempt = secrets.randbits(32) << 32 | (context.taskAttemptId() & 0xFFFFFFFF if context is not None else 0)
    delivery = StagedDelivery(connection, work.write, sink=work.sink, batch=work.batch, part=work.part, attempt=attempt)
    assert work.write.stream is not None
    assert work.write.topic is not None
    message_count = size = 0
    for wanted, fetched in fetch_ranges(work.ranges, work.read):
        destination = Destination(work.write.stream, work.write.topic, wanted.partition)
        joiner = _BatchJoiner(wanted.start, wanted.end)
        for batch in (*joiner.add(fetched.records), *joiner.rest()):
            delivery.send(destination, batch)
            message_count += batch.count
            size += batch.size
    return _Staged(work.part, attempt, delivery.finish(), message_count, size)


class _BatchJoiner:
    """Takes the records of a range in order, and returns batches that keep everything that the producer set.

    Whole batches pass unchanged. Batches that a range cuts are renumbered. Small batches are joined: a topic that was
    written message by message is not staged message by message.
    """

    def __init__(self, start: int, end: int) -> None:
        self._start = start
        self._end = end
        self._waiting: list[Batch] = []
        self._waiting_size = 0

    def add(self, records: memoryview) -> Iterator[Batch]:
        """Add records, whose memory may be reused afterwards. Returns the batches that are ready."""
        position = 0
        while position < len(records):
            length = layout.WIRE_HEADER.unpack_from(records, position)[4]
            batch = self._wanted(records[position : position + length])
            position += length
            if batch is None:
                continue
            if batch.size >= _SMALL_SIZE:
                yield from self.rest()
                yield batch
                continue
            self._waiting.append(batch)
            self._waiting_size += batch.size
            if self._waiting_size >= _JOINED_SIZE:
                yield from self.rest()

    def rest(self) -> Iterator[Batch]:
        """The batches that are still waiting."""
        waiting, self._waiting, self._waiting_size = self._waiting, [], 0
        if len(waiting) < 2:
            yield from waiting
            return
        try:
            yield merge_batches(waiting)
        except InvalidBatch:
            # Their creation times are too far apart for one batch.
            yield from waiting

    def _wanted(self, record: memoryview) -> Batch | None:
        """A copy of the messages of a batch that are in the range."""
        _, base_offset, _, origin, _, _, count = layout.WIRE_HEADER.unpack_from(record)
        body = memoryview(bytes(record[layout.BATCH_HEADER_SIZE :]))
        batch = batch_of(origin, count, body)
        # A poll may already have trimmed the batch, so that its first message has an offset delta above 0.
        first = base_offset + int.from_bytes(body[layout.FRAME_OFFSET_DELTA_POSITION :][:4], "little")
        skipped, wanted_end = max(self._start - first, 0), min(self._end - first, count)
        if skipped >= wanted_end:
            return None
        if skipped == 0 and wanted_end == count and first == base_offset:
            return batch
        starts = batch.frames.starts
        begin = int(starts[skipped])
        behind = int(starts[wanted_end]) if wanted_end < count else len(body)
        return merge_batches([batch_of(origin, wanted_end - skipped, body[begin:behind])])
