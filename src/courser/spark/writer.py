"""Writes to topics: tasks stage their rows on the server, and the driver publishes all of them together, exactly once.

What a task stages belongs to its attempt and is invisible. When all tasks of a batch are done, Spark calls ``commit``
in the driver with one attempt of each task. The server appends those and remembers the number of the batch. If Spark
repeats a batch, because the driver died or the reply to a commit was lost, the server recognizes its number.

The sink is named after the id of the streaming query, which is kept in the checkpoint. A batch job has an id of its
own.
"""

import logging
import secrets
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol
from uuid import uuid4

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from courser.api import commands as c
from courser.client.sync import SyncClient
from courser.errors import AlreadyExists, CourserError, ErrorCode, NotFound, Uncertain
from courser.model.messaging import ToPartition
from courser.records.batch import Batch
from courser.spark.background_clients import BackgroundClient, connection_to, freeze_loaded_modules, with_retries
from courser.spark.errors import TargetMissing, WriteFailed
from courser.spark.releases import DataSourceStreamArrowWriter
from courser.spark.routing import Destination, ReadyRows, RowRouter
from courser.spark.row_encoding import make_batches
from courser.spark.sent_to_tasks import SentToTasks
from courser.spark.write_options import WriteOptions

_log = logging.getLogger(__name__)

_IN_FLIGHT_MAX = 4
"""Batches in flight: the server writes one while the next is encoded."""
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


# --- tasks --------------------------------------------------------------------------------------------


class TaskDelivery(Protocol):
    """Delivers the batches of one task."""

    def send(self, destination: Destination, batch: Batch) -> None:
        """Deliver a batch. It may still be in flight on return; its error is then raised by a later call."""

    def finish(self) -> int:
        """Wait until the server has everything. Returns the number of batches."""


class StagedDelivery:
    """Stages the batches of one task attempt."""

    def __init__(
        self, connection: BackgroundClient, options: WriteOptions, *, sink: str, batch: int, part: int, attempt: int
    ) -> None:
        self._connection = connection
        self._options = options
        self._name = (sink, batch, part, attempt)
        self._chunk_count = 0
        self._under_way: deque[tuple[int, Destination, Batch, Future[None]]] = deque()

    def send(self, destination: Destination, batch: Batch) -> None:
        chunk = self._chunk_count
        self._chunk_count += 1
        self._under_way.append((chunk, destination, batch, self._begin(chunk, destination, batch)))
        if len(self._under_way) >= _IN_FLIGHT_MAX:
            self._await_first()

    def finish(self) -> int:
        """The staged part is durable on return."""
        while self._under_way:
            self._await_first()
        if self._chunk_count:
            finish = self._connection.finish_stage
            with_retries(lambda: finish(*self._name, self._chunk_count), self._options.retries)
        return self._chunk_count

    def _begin(self, chunk: int, destination: Destination, batch: Batch) -> "Future[None]":
        place = destination.stream, destination.topic, destination.partition
        return self._connection.begin(lambda client: client.stage(*self._name, chunk, *place, batch))

    def _await_first(self) -> None:
        chunk, destination, batch, future = self._under_way.popleft()
        try:
            future.result()
        except CourserError as error:
            # After a reconnect, batches may arrive out of order. Those before this one have arrived by now.
            if error.code not in (ErrorCode.STAGED_PART_INCOMPLETE, ErrorCode.DISCONNECTED):
                raise
            with_retries(lambda: self._begin(chunk, destination, batch).result(), self._options.retries)


class DirectDelivery:
    """Sends batches that are visible immediately: at least once, because a retried task sends again."""

    def __init__(self, connection: BackgroundClient, options: WriteOptions) -> None:
        self._connection = connection
        self._options = options
        self._count = 0
        self._under_way: deque[tuple[c.SendMessages, Future[Any]]] = deque()

    def send(self, destination: Destination, batch: Batch) -> None:
        partition = ToPartition(destination.partition)
        command = c.SendMessages(destination.stream, destination.topic, partition, [batch])
        self._count += 1
        self._under_way.append((command, self._connection.begin(lambda client: client.request(command))))
        if len(self._under_way) >= _IN_FLIGHT_MAX:
            self._await_first()

    def finish(self) -> int:
        while self._under_way:
            self._await_first()
        return self._count

    def _await_first(self) -> None:
        command, future = self._under_way.popleft()
        try:
            future.result()
        except Uncertain:
            # The message may be stored twice then, as "at least once" allows.
            with_retries(lambda: self._connection.request(command), self._options.retries)


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


# --- the driver ---------------------------------------------------------------------------------------


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


class CourserBatchWriter(SentToTasks, DataSourceArrowWriter):
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


class CourserStreamWriter(SentToTasks, DataSourceStreamArrowWriter):
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
