"""Writing to topics: tasks stage their rows on the server, the driver publishes all of them at once, exactly once.

What a task stages belongs to its attempt, and nobody sees it. When all tasks of a batch are done, Spark calls
``commit`` in the driver with the attempt that it chose of each: the server appends those, and remembers the number of
the batch. A batch that Spark repeats, because a driver died or a commit's answer was lost, is known by its number.

The name of the sink is the id of the streaming query, which its checkpoint keeps; for a batch job an id of its own.
"""

import logging
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from courser.errors import CourserError, ErrorCode
from courser.spark.connections import connection_to, patiently
from courser.spark.delivery import Delivery, DirectDelivery, StagedDelivery
from courser.spark.encoding import make_batches
from courser.spark.errors import WriteFailed
from courser.spark.routing import Ready, Router
from courser.spark.topic_lookup import TopicLookup
from courser.spark.worker_memory import spare_collections
from courser.spark.write_options import WriteOptions

_log = logging.getLogger(__name__)

JOB_KEPT = 7 * 24 * 3600.0
"""Seconds that the server remembers a batch job: for so long its id is published once."""
_QUERY_ID = "sql.streaming.queryId"
_BATCH_ID = "streaming.sql.batchId"
"""Properties that Spark sets for the tasks of a streaming query. Not documented; a test looks for them."""


@dataclass(frozen=True)
class TaskWritten(WriterCommitMessage):
    """What a task tells the driver."""

    sink: str
    part: int
    attempt: int
    chunk_count: int
    row_count: int


def write_task(options: WriteOptions, sink: str, batch: int, part: int, rows: Iterator[Any]) -> TaskWritten:
    """Bring the rows of one task to the server."""
    connection = connection_to(options.target)
    lookup = TopicLookup(connection.sync, options)
    router = Router(options, lookup.partition_count, first_turn=part)
    # Another one for every try, also after a driver began to count its tasks anew.
    attempt = secrets.randbits(32) << 32 | _task_attempt()
    delivery: Delivery
    if options.is_exactly_once:
        delivery = StagedDelivery(connection, options, sink=sink, batch=batch, part=part, attempt=attempt)
    else:
        delivery = DirectDelivery(connection, options)
    row_count = 0

    def deliver(ready: Ready) -> None:
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
        # A batch that Spark repeats: its rows are in the topic. They have to be read to their end all the same.
        chunk_count = 0
        for _ in rows:
            pass
    spare_collections()
    return TaskWritten(sink, part, attempt, chunk_count, row_count)


def _task_attempt() -> int:
    context = TaskContext.get()
    return 0 if context is None else context.taskAttemptId() & 0xFFFFFFFF


class _Publisher:
    """What batch and streaming writers do in the driver."""

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
            # Nothing to publish. A repetition of this batch has nothing either.
            return
        client = connection_to(self.options.target).sync
        patiently(lambda: client.publish_staged(sink, batch, parts, keep=keep), self.options.retries)

    def discard(self, sink: str | None, batch: int) -> None:
        """Remove what was staged. If that fails, it goes with the next publish, or by its age."""
        if not self.options.is_exactly_once or sink is None:
            return
        try:
            connection_to(self.options.target).sync.discard_staged(sink, batch)
        except CourserError as error:
            _log.warning("staged messages are not discarded yet: %s", error)


class CourserBatchWriter(DataSourceArrowWriter):
    """``df.write.format("courser")``."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options
        self._sink = options.job_id or f"job-{uuid4()}"

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """In a task."""
        context = TaskContext.get()
        part = 0 if context is None else context.partitionId()
        return write_task(self._options, self._sink, 0, part, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """In the driver, when all tasks are done."""
        _Publisher(self._options).publish(messages, 0, keep=JOB_KEPT)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """In the driver, when the job failed."""
        del messages
        _Publisher(self._options).discard(self._sink, 0)


class CourserStreamWriter(DataSourceStreamArrowWriter):
    """``df.writeStream.format("courser")``."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """In a task."""
        context = TaskContext.get()
        query = None if context is None else context.getLocalProperty(_QUERY_ID)
        batch = None if context is None else context.getLocalProperty(_BATCH_ID)
        if self._options.is_exactly_once and (query is None or batch is None):
            raise WriteFailed(
                "this version of Spark does not tell a task which query and batch it belongs to, so nothing can be "
                "written exactly once: set the option delivery=at-least-once"
            )
        part = 0 if context is None else context.partitionId()
        # Sends that are visible at once have no use for either.
        return write_task(self._options, query or "", int(batch or 0), part, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """In the driver, when all tasks of a batch are done."""
        _Publisher(self._options).publish(messages, batchId, keep=0)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """In the driver, when a batch failed or the query is stopped in it."""
        sink = next((message.sink for message in messages if isinstance(message, TaskWritten)), None)
        _Publisher(self._options).discard(sink, batchId)
