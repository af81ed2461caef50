"""A stream: micro-batches between explicit offsets, which Spark keeps in its checkpoint.

Spark asks for the heads about 200 times a second when nothing happens, so the question waits at the server for a
moment, and is answered at once when a message arrives. An exception here ends the query: what may pass, such as a
server that restarts, is waited for.
"""

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from courser.errors import CourserError
from courser.spark.admission import Limits, Reconciled, admit, reconcile
from courser.spark.batch_reader import ReadTask, read_task
from courser.spark.connections import connection_to
from courser.spark.offsets import Progress, check_identity, parse_progress
from courser.spark.options import LATEST
from courser.spark.planning import Range, plan_tasks, resolve_start
from courser.spark.read_options import ReadOptions, StreamOptions
from courser.spark.sources import places_in, server_topic
from courser.spark.topics import ServerTopic, TopicFacts

_log = logging.getLogger(__name__)

IDLE_WAIT = 0.1
"""Seconds that a query without new messages waits at the server for some: so it asks 20 times a second, not 200."""
HEADS_AGE_MAX = 0.1
"""Seconds for which the heads of the partitions are remembered for views of lag."""


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a topic for ever. Lives in one driver-side process; another one builds it only to pickle it to tasks."""

    def __init__(
        self,
        options: ReadOptions,
        stream_options: StreamOptions,
        schema: StructType,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._options = options
        self._stream_options = stream_options
        self._schema = schema
        self._clock = clock
        self._source: ServerTopic | None = None
        self._facts: tuple[float, TopicFacts] | None = None
        self._target: TopicFacts | None = None
        """Where a run with ``availableNow`` ends."""
        self._held_since: float | None = None
        """When messages were first held back, because there were too few."""
        self._stored: Progress | None = None
        """What the server was last told."""

    # --- what is there --------------------------------------------------------------------------------

    def _topic(self) -> ServerTopic:
        if self._source is None:
            self._source = server_topic(self._options)
        return self._source

    def _ask(self) -> TopicFacts:
        """Bounds of all partitions now."""
        # The age counts from before the question: what is remembered is never older than it seems.
        now = self._clock()
        self._facts = now, self._topic().facts()
        return self._facts[1]

    def _recent(self) -> TopicFacts:
        """Bounds of all partitions, at most a moment old."""
        if self._facts is None or self._clock() - self._facts[0] > HEADS_AGE_MAX:
            return self._ask()
        return self._facts[1]

    def _ask_patiently(self, progress: Progress) -> TopicFacts:
        """Bounds of all partitions; if nothing is new, those of a moment later, or of when something arrives."""
        facts = self._ask()
        following = {partition: bounds.next for partition, bounds in facts.partitions.items()}
        if self._target is None and following == progress.next and self._topic().wait(following, IDLE_WAIT):
            return self._ask()
        return facts

    def _progress(self, value: Mapping[str, Any], facts: TopicFacts) -> Progress:
        progress = parse_progress(value, self._options.name)
        check_identity(progress, facts.uuid, self._options.name)
        return progress

    # --- what Spark calls -----------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Where a query without a checkpoint begins. Raises ``ReadFailed``, ``DataLost``."""
        facts = self._topic().facts()
        starts = resolve_start(self._options, self._topic(), facts, unnamed=LATEST)
        return Progress(facts.uuid, starts).as_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Spark takes one limit only; the others are applied in ``latestOffset``."""
        if self._stream_options.max_count is not None:
            return ReadMaxRows(self._stream_options.max_count)
        return ReadMaxBytes(self._stream_options.max_size)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Remember where this run ends."""
        self._target = self._topic().facts()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Where the next micro-batch ends. Raises ``ReadFailed``, ``DataLost``."""
        progress = parse_progress(start, self._options.name)
        facts = self._ask_patiently(progress)
        check_identity(progress, facts.uuid, self._options.name)
        # Spark asks what comes next when all before it is processed; it does not always say so by `commit`.
        self._store(progress)
        found = reconcile(progress, facts, self._options.name)
        self._report(found)
        heads = {partition: bounds.next for partition, bounds in (self._target or facts).partitions.items()}
        if not found.losses and not self._is_enough(found.progress, heads, limit):
            return progress.as_json()
        return admit(found.progress, heads, facts.partitions, self._limits(limit)).as_json()

    def _report(self, found: Reconciled) -> None:
        for loss in found.losses:
            if self._options.fail_on_data_loss:
                raise loss
            _log.warning("%s", loss)

    def _limits(self, limit: ReadLimit) -> Limits:
        if isinstance(limit, ReadAllAvailable):
            return Limits()
        return Limits(self._stream_options.max_count, self._stream_options.max_size)

    def _is_enough(self, progress: Progress, heads: Mapping[int, int], limit: ReadLimit) -> bool:
        """Whether a micro-batch is worth it: ``minOffsetsPerTrigger``, but not for longer than ``maxTriggerDelay``."""
        wanted = self._stream_options.min_count
        if wanted is None or self._target is not None or isinstance(limit, ReadAllAvailable):
            return True
        waiting = sum(max(heads.get(partition, 0) - start, 0) for partition, start in progress.next.items())
        now = self._clock()
        if waiting and self._held_since is None:
            self._held_since = now
        is_late = self._held_since is not None and now - self._held_since >= self._stream_options.max_delay
        if waiting < wanted and not is_late:
            return False
        self._held_since = None
        return True

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """The heads, for views of lag."""
        facts = self._recent()
        return Progress(
            facts.uuid, {partition: bounds.next for partition, bounds in facts.partitions.items()}
        ).as_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The tasks of a micro-batch. Raises ``ReadFailed``, ``DataLost``."""
        facts = self._recent()
        before, after = self._progress(start, facts), self._progress(end, facts)
        ranges = self._ranges(before, after, facts)
        tasks = plan_tasks(
            ranges,
            facts,
            places_in(self._options, self._topic(), facts),
            size_max=self._options.partition_size_max,
            min_count=self._options.min_partitions,
        )
        return [ReadTask(spans) for spans in tasks]

    def _ranges(self, before: Progress, after: Progress, facts: TopicFacts) -> list[Range]:
        """What lies between two offsets, without what was counted as lost when the second one was made."""
        ranges = []
        for partition, last in sorted(after.next.items()):
            lost = after.lost.get(partition, 0) - before.lost.get(partition, 0)
            first = before.next.get(partition, 0) + lost
            if first >= last:
                continue
            if partition not in facts.partitions:
                # It was there when the micro-batch was planned: this is a repetition after a restart.
                reconciled = reconcile(Progress(facts.uuid, {partition: first}), facts, self._options.name)
                self._report(reconciled)
                continue
            ranges.append(Range(partition, first, last))
        return ranges

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """See ``read_task``."""
        return read_task(partition, self._options, self._schema)

    def commit(self, end: dict[str, Any]) -> None:
        """Everything below was processed. Comes with the next micro-batch only, never for the last one of a run."""
        self._store(parse_progress(end, self._options.name))

    def _store(self, progress: Progress) -> None:
        """Store how far the query got at the server, under the name of its consumer: for views of lag only."""
        consumer = self._stream_options.consumer
        if consumer is None or progress == self._stored:
            return
        try:
            store_progress(self._options, consumer, progress)
            self._stored = progress
        except CourserError as error:
            # The checkpoint is what counts. The next micro-batch stores it again.
            _log.warning("progress of %s could not be stored as consumer %s: %s", self._options.name, consumer, error)

    def __getstate__(self) -> dict[str, Any]:
        # Tasks need the options only.
        return self.__dict__ | {"_source": None, "_facts": None, "_target": None}


def store_progress(options: ReadOptions, consumer: str, progress: Progress) -> None:
    """Store how far a query got at the server. Raises ``CourserError``."""
    assert options.target is not None, "streams read from a server"
    client = connection_to(options.target).sync
    for partition, following in progress.next.items():
        if following > 0:
            client.store_consumer_offset(options.stream, options.topic, partition, following - 1, consumer=consumer)
