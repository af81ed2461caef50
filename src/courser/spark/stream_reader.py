"""A stream: micro-batches between explicit offsets, which Spark keeps in its checkpoint.

Spark asks for the heads about 200 times a second when nothing happens, so the question waits at the server for a
moment, and is answered at once when a message arrives. An exception here ends the query: what may pass, such as a
server that restarts, is waited for.
"""

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
from courser.spark.admission import Limits, admit, reconcile, waiting_messages
from courser.spark.batch_reader import read_task, read_tasks
from courser.spark.connections import connection_to
from courser.spark.errors import DataLost, ReadFailed, partition_gone, topic_left_out
from courser.spark.offsets import Progress, TopicProgress, match_topics, parse_progress, progress_json
from courser.spark.option_kinds import LATEST
from courser.spark.planning import Part, Range, resolve_start
from courser.spark.read_options import ReadOptions, StreamOptions
from courser.spark.sources import places_in, server_topic
from courser.spark.topic_names import topic_text
from courser.spark.topics import ServerTopic, TopicFacts

_log = logging.getLogger(__name__)

IDLE_WAIT = 0.1
"""Seconds that a query without new messages waits at the server for some: so it asks 20 times a second, not 200."""
HEADS_AGE_MAX = 0.1
"""Seconds for which the heads of the partitions are remembered for views of lag."""


Facts = Mapping[str, TopicFacts]
"""By topic."""


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads topics for ever. Lives in one driver-side process; another one builds it only to pickle it to tasks."""

    def __init__(
        self,
        reads: Sequence[ReadOptions],
        stream_options: StreamOptions,
        schema: StructType,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._reads = {options.topic: options for options in reads}
        self._name = f"{reads[0].stream}/{topic_text(*self._reads)}"
        self._fails_on_loss = reads[0].fail_on_data_loss
        self._stream_options = stream_options
        self._schema = schema
        self._clock = clock
        self._sources: dict[str, ServerTopic] = {}
        self._facts: tuple[float, Facts] | None = None
        self._target: Facts | None = None
        """Where a run with ``availableNow`` ends."""
        self._held_since: float | None = None
        """When messages were first held back, because there were too few."""
        self._stored: Progress | None = None
        """What the server was last told."""

    # --- what is there --------------------------------------------------------------------------------

    def _source(self, topic: str) -> ServerTopic:
        if topic not in self._sources:
            self._sources[topic] = server_topic(self._reads[topic])
        return self._sources[topic]

    def _ask(self) -> Facts:
        """Bounds of all partitions now."""
        # The age counts from before the question: what is remembered is never older than it seems.
        now = self._clock()
        self._facts = now, {topic: self._source(topic).facts() for topic in self._reads}
        return self._facts[1]

    def _recent(self) -> Facts:
        """Bounds of all partitions, at most a moment old."""
        if self._facts is None or self._clock() - self._facts[0] > HEADS_AGE_MAX:
            return self._ask()
        return self._facts[1]

    def _ask_patiently(self, saved: Progress) -> Facts:
        """Bounds of all partitions; if nothing is new, those of a moment later, or of when something arrives."""
        facts = self._ask()
        reached = {progress.topic_uuid: progress.next for progress in saved.values()}
        heads = {topic.uuid: _heads(topic) for topic in facts.values()}
        return self._ask() if self._target is None and reached == heads and self._wait(facts) else facts

    def _wait(self, facts: Facts) -> bool:
        """Wait for a message, but not for long. Whether one has come.

        A connection waits for one topic at a time, so each has its turn. What comes to a topic after its turn is seen
        with the next question: Spark asks it at once.
        """
        return any(self._source(topic).wait(_heads(found), IDLE_WAIT / len(facts)) for topic, found in facts.items())

    def _matched(self, saved: Progress, facts: Facts) -> Progress:
        """How far the query got in the topics that it reads. Raises ``ReadFailed``."""
        found = match_topics(saved, facts, self._name)
        for topic in found.left_out:
            self._report(topic_left_out(self._name, topic))
        return found.progress

    def _report(self, loss: ReadFailed) -> None:
        if self._fails_on_loss:
            raise loss
        _log.warning("%s", loss)

    # --- what Spark calls -----------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Where a query without a checkpoint begins. Raises ``ReadFailed``, ``DataLost``."""
        return progress_json(self._starts(self._ask(), self._reads))

    def _starts(self, facts: Facts, topics: Iterable[str]) -> Progress:
        """Where topics begin of which the query has read nothing yet."""
        return {
            topic: TopicProgress(
                facts[topic].uuid,
                resolve_start(self._reads[topic], self._source(topic), facts[topic], unnamed=LATEST),
            )
            for topic in topics
        }

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Spark takes one limit only; the others are applied in ``latestOffset``."""
        if self._stream_options.max_count is not None:
            return ReadMaxRows(self._stream_options.max_count)
        return ReadMaxBytes(self._stream_options.max_size)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Remember where this run ends."""
        self._target = self._ask()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Where the next micro-batch ends. Raises ``ReadFailed``, ``DataLost``."""
        saved = parse_progress(start, self._name)
        facts = self._ask_patiently(saved)
        progress = self._matched(saved, facts)
        # Spark asks what comes next when all before it is processed; it does not always say so by `commit`.
        self._store(saved)
        # A micro-batch that brings a new topic only says where it begins: the next one has a start to read from.
        added = self._starts(facts, self._reads.keys() - progress.keys())
        known, losses = self._reconciled(progress, facts)
        heads = self._target or facts
        if not losses and not added and not self._is_enough(known, heads, limit):
            return progress_json(progress)
        return progress_json({**admit(known, heads, facts, self._limits(limit)), **added})

    def _reconciled(self, progress: Progress, facts: Facts) -> tuple[Progress, list[DataLost]]:
        found = {topic: reconcile(one, facts[topic], self._reads[topic].name) for topic, one in progress.items()}
        losses = [loss for one in found.values() for loss in one.losses]
        for loss in losses:
            self._report(loss)
        return {topic: one.progress for topic, one in found.items()}, losses

    def _limits(self, limit: ReadLimit) -> Limits:
        if isinstance(limit, ReadAllAvailable):
            return Limits()
        return Limits(self._stream_options.max_count, self._stream_options.max_size)

    def _is_enough(self, progress: Progress, heads: Facts, limit: ReadLimit) -> bool:
        """Whether a micro-batch is worth it: ``minOffsetsPerTrigger``, but not for longer than ``maxTriggerDelay``."""
        wanted = self._stream_options.min_count
        if wanted is None or self._target is not None or isinstance(limit, ReadAllAvailable):
            return True
        waiting = sum(waiting_messages(progress, heads).values())
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
        return progress_json({topic: TopicProgress(found.uuid, _heads(found)) for topic, found in facts.items()})

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The tasks of a micro-batch. Raises ``ReadFailed``, ``DataLost``."""
        facts = self._recent()
        before, after = (self._matched(parse_progress(value, self._name), facts) for value in (start, end))
        parts = [
            Part(
                topic,
                self._ranges(options, before[topic], after[topic], facts[topic]),
                facts[topic],
                places_in(options, self._source(topic), facts[topic]),
            )
            for topic, options in self._reads.items()
            # One that is new in the second begins there.
            if topic in before and topic in after
        ]
        return read_tasks(list(self._reads.values()), parts)

    def _ranges(
        self, options: ReadOptions, before: TopicProgress, after: TopicProgress, facts: TopicFacts
    ) -> list[Range]:
        """What lies between two offsets, without what was counted as lost when the second one was made."""
        ranges = []
        for partition, last in sorted(after.next.items()):
            lost = after.lost.get(partition, 0) - before.lost.get(partition, 0)
            first = before.next.get(partition, 0) + lost
            if first >= last:
                continue
            if partition not in facts.partitions:
                # It was there when the micro-batch was planned: this is a repetition after a restart.
                self._report(partition_gone(options.name, partition, first))
                continue
            ranges.append(Range(partition, first, last))
        return ranges

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """See ``read_task``."""
        return read_task(partition, list(self._reads.values()), self._schema)

    def commit(self, end: dict[str, Any]) -> None:
        """Everything below was processed. Comes with the next micro-batch only, never for the last one of a run."""
        self._store(parse_progress(end, self._name))

    def _store(self, saved: Progress) -> None:
        """Store how far the query got at the server, under the name of its consumer: for views of lag only."""
        consumer = self._stream_options.consumer
        if consumer is None or saved == self._stored:
            return
        try:
            for topic, progress in match_topics(saved, self._recent(), self._name).progress.items():
                store_progress(self._reads[topic], consumer, progress)
            self._stored = saved
        except CourserError as error:
            # The checkpoint is what counts. The next micro-batch stores it again.
            _log.warning("progress of %s could not be stored as consumer %s: %s", self._name, consumer, error)

    def __getstate__(self) -> dict[str, Any]:
        # Tasks need the options only.
        return self.__dict__ | {"_sources": {}, "_facts": None, "_target": None}


def _heads(facts: TopicFacts) -> dict[int, int]:
    return {partition: bounds.next for partition, bounds in facts.partitions.items()}


def store_progress(options: ReadOptions, consumer: str, progress: TopicProgress) -> None:
    """Store how far a query got at the server. Raises ``CourserError``."""
    assert options.target is not None, "streams read from a server"
    client = connection_to(options.target).sync
    for partition, following in progress.next.items():
        if following > 0:
            client.store_consumer_offset(options.stream, options.topic, partition, following - 1, consumer=consumer)
