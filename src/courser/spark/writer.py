"""Writes to topics: tasks stage their rows on the server, and the driver publishes all of them together, exactly once.

What a task stages belongs to its attempt and is invisible. When all tasks of a batch are done, Spark calls ``commit``
in the driver with one attempt of each task. The server appends those and remembers the number of the batch. If Spark
repeats a batch, because the driver died or the reply to a commit was lost, the server recognizes its number.

The sink is named after the id of the streaming query, which is kept in the checkpoint. A batch job has an id of its
own.
"""

import logging
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from courser.client.sync import SyncClient
from courser.errors import AlreadyExists, CourserError, ErrorCode, NotFound
from courser.spark.background_clients import connection_to, freeze_loaded_modules, with_retries
from courser.spark.errors import TargetMissing, WriteFailed
from courser.spark.routing import ReadyRows, RowRouter
from courser.spark.row_encoding import make_batches
from courser.spark.task_delivery import DirectDelivery, StagedDelivery, TaskDelivery
from courser.spark.write_options import WriteOptions

_log = logging.getLogger(__name__)

JOB_KEPT = 7 * 24 * 3600.0
"""Seconds for which the server remembers a batch job, so that its id is published only once."""
_QUERY_ID = "sql.streaming.queryId"
_BATCH_ID = "streaming.sql.batchId"
"""Local properties that Spark sets for the tasks of a streaming query. Undocumented; a test checks them."""


class TopicLookup:
    """How many partitions the target topics have. Asks the server once per topic, and creates topics if told to."""

    def __init__(self, client: SyncClient, options: WriteOptions) -> None:
        self._client = client
        self._options = options
        self._counts: dict[tuple[str, str], int] = {}

    def partition_count(self, stream: str, topic: str) -> int:
        """How many partitions a topic has.

        Raises:
            TargetMissing: the topic does not exist.
            WriteFailed: the topic has no partitions.
        """
        count = self._counts.get((stream, topic))
        if count is None:
            count = with_retries(lambda: self._ask(stream, topic), self._options.retries)
            self._counts[stream, topic] = count
        return count

    def _ask(self, stream: str, topic: str) -> int:
        try:
            count = len(self._client.get_partition_bounds(stream, topic).partitions)
        except NotFound:
            if self._options.create_partitions is None:
                raise TargetMissing(f"{stream}/{topic}") from None
            return self._create(stream, topic, self._options.create_partitions)
        if not count:
            raise WriteFailed(f"topic {stream}/{topic} has no partitions")
        return count

    def _create(self, stream: str, topic: str, count: int) -> int:
        for create in (
            lambda: self._client.create_stream(stream),
            lambda: self._client.create_topic(stream, topic, count),
        ):
            try:
                create()
            except AlreadyExists:
                # Another task was faster, or only the topic was missing.
                continue
        return len(self._client.get_partition_bounds(stream, topic).partitions)


@dataclass(frozen=True)
class TaskWritten(WriterCommitMessage):
    """What a task reports to the driver."""

    sink: str
    part: int
    attempt: int
    chunk_count: int
    row_count: int


def write_task(options: WriteOptions, sink: str, batch: int, part: int, rows: Iterator[Any]) -> TaskWritten:
    """Send the rows of one task to the server."""
    connection = connection_to(options.target)
    lookup = TopicLookup(connection, options)
    router = RowRouter(options, lookup.partition_count, first_turn=part)
    # Unique for every attempt, even after a restarted driver numbers its attempts from the start again.
    attempt = secrets.randbits(32) << 32 | _task_attempt()
    delivery: TaskDelivery
    if options.is_exactly_once:
        delivery = StagedDelivery(connection, options, sink=sink, batch=batch, part=part, attempt=attempt)
    else:
        delivery = DirectDelivery(connection, options)
    row_count = 0

    def deliver(ready: ReadyRows) -> None:
        for messages in make_batches(ready.rows):
            delivery.send(ready.destination, messages)

    try:
        for batch_of_rows in rows:
            row_count += batch_of_rows.num_rows
            for ready in router.add(batch_of_rows):
                deliver(ready)
        for ready in router.rest():
            deliver(ready)
        chunk_count = delivery.finish()
    except CourserError as error:
        if error.code is not ErrorCode.BATCH_ALREADY_PUBLISHED:
            raise
        # Spark repeats a batch whose rows are already in the topic. Spark expects the input to be consumed anyway.
        chunk_count = 0
        for _ in rows:
            pass
    freeze_loaded_modules()
    return TaskWritten(sink, part, attempt, chunk_count, row_count)


def _task_attempt() -> int:
    context = TaskContext.get()
    return 0 if context is None else context.taskAttemptId() & 0xFFFFFFFF


class _Publisher:
    """The driver's part of batch and streaming writes."""

    def __init__(self, options: WriteOptions) -> None:
        self.options = options

    def publish(self, messages: Sequence[Any], batch: int, *, keep: float) -> None:
        written = [message for message in messages if isinstance(message, TaskWritten)]
        sinks = {message.sink for message in written}
        parts = {message.part: message.attempt for message in written if message.chunk_count}
        if not self.options.is_exactly_once or not sinks:
            return
        (sink,) = sinks
        if not parts and not any(message.row_count for message in written):
            # Nothing to publish. A repetition of this batch would have nothing either.
            return
        client = connection_to(self.options.target)
        with_retries(lambda: client.publish_staged(sink, batch, parts, keep=keep), self.options.retries)

    def discard(self, sink: str | None, batch: int) -> None:
        """Remove staged messages. If that fails, the next publish removes them, or they expire."""
        if not self.options.is_exactly_once or sink is None:
            return
        try:
            connection_to(self.options.target).discard_staged(sink, batch)
        except CourserError as error:
            _log.warning("could not discard staged messages yet: %s", error)


class CourserBatchWriter(DataSourceArrowWriter):
    """Writes a frame with ``df.write.format("courser")``."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options
        self._sink = options.job_id or f"job-{uuid4()}"

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Runs in a task."""
        context = TaskContext.get()
        part = 0 if context is None else context.partitionId()
        return write_task(self._options, self._sink, 0, part, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Runs in the driver when all tasks are done."""
        _Publisher(self._options).publish(messages, 0, keep=JOB_KEPT)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Runs in the driver when the job failed."""
        del messages
        _Publisher(self._options).discard(self._sink, 0)


class CourserStreamWriter(DataSourceStreamArrowWriter):
    """Writes a stream with ``df.writeStream.format("courser")``."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Runs in a task."""
        context = TaskContext.get()
        query = None if context is None else context.getLocalProperty(_QUERY_ID)
        batch = None if context is None else context.getLocalProperty(_BATCH_ID)
        if self._options.is_exactly_once and (query is None or batch is None):
            raise WriteFailed(
                "this version of Spark does not tell a task which query and batch it belongs to, which exactly-once "
                "delivery needs; set the option delivery=at-least-once"
            )
        part = 0 if context is None else context.partitionId()
        # Direct sends need neither.
        return write_task(self._options, query or "", int(batch or 0), part, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Runs in the driver when all tasks of a batch are done."""
        _Publisher(self._options).publish(messages, batchId, keep=0)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Runs in the driver when a batch failed, or the query was stopped during one."""
        sink = next((message.sink for message in messages if isinstance(message, TaskWritten)), None)
        _Publisher(self._options).discard(sink, batchId)
