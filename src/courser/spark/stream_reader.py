"""A streaming read: micro-batches between explicit offsets, which Spark keeps in its checkpoint.

Spark asks for the latest offsets about 200 times a second while nothing happens. So the request waits on the server for
a moment, and returns at once when a message arrives; if messages are held back, when enough may have arrived. An
exception here ends the query, so temporary failures, such as a server restart, are retried instead.
"""

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from courser.errors import CourserError
from courser.spark.admission import BatchLimits, admit, reconcile, waiting_messages
from courser.spark.background_clients import connection_to
from courser.spark.batch_reader import read_task, read_tasks
from courser.spark.errors import DataLost, ReadFailed, partition_gone, topic_left_out
from courser.spark.offsets import QueryOffsets, TopicOffsets, match_topics, offsets_json, parse_offsets
from courser.spark.option_kinds import LATEST, topic_text
from courser.spark.planning import TopicRead, resolve_start
from courser.spark.read_options import ReadOptions, StreamOptions
from courser.spark.releases import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from courser.spark.sent_to_tasks import SentToTasks
from courser.spark.source_choice import live_topic, sources_in
from courser.spark.sources import OffsetRange
from courser.spark.topic_metadata import Following, LiveTopic, TopicFacts

_log = logging.getLogger(__name__)

IDLE_WAIT = 0.1
"""Seconds that an idle query waits on the server for new messages, so that it asks 20 times a second, not 200. A query
that is stopped waits as long for its reader."""
HEADS_AGE_MAX = 0.1
"""Seconds for which partition heads are cached for lag reporting."""


Facts = Mapping[str, TopicFacts]
"""By topic."""


class StreamReader(SentToTasks, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads topics continuously. One driver-side process plans with it; another only pickles it to tasks."""

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
        self._topics: dict[str, LiveTopic] = {}
        self._facts: tuple[float, Facts] | None = None
        self._target: Facts | None = None
        """Where a run with the trigger ``availableNow`` ends."""
        self._held_since: float | None = None
        """When messages were first held back because there were too few."""
        self._stored: QueryOffsets | None = None
        """What was last stored on the server."""

    # --- topics ---------------------------------------------------------------------------------------

    def _metadata(self, topic: str) -> LiveTopic:
        if topic not in self._topics:
            self._topics[topic] = live_topic(self._reads[topic])
        return self._topics[topic]

    def _ask(self) -> Facts:
        """The bounds of all partitions now."""
        # Take the time before the request, so that the cached bounds are never older than they seem.
        now = self._clock()
        self._facts = now, {topic: self._metadata(topic).facts() for topic in self._reads}
        return self._facts[1]

    def _recent(self) -> Facts:
        """The bounds of all partitions, at most ``HEADS_AGE_MAX`` old."""
        if self._facts is None or self._clock() - self._facts[0] > HEADS_AGE_MAX:
            return self._ask()
        return self._facts[1]

    def _ask_or_wait(self, saved: QueryOffsets) -> Facts:
        """The bounds of all partitions. If nothing is new, wait a moment, or until a message arrives, and ask again."""
        facts = self._ask()
        reached = {progress.topic_uuid: progress.next for progress in saved.values()}
        heads = {topic.uuid: _heads(topic) for topic in facts.values()}
        return self._ask() if self._target is None and reached == heads and self._wait(facts) else facts

    def _wait(self, facts: Facts, count: int = 1) -> bool:
        """Wait a moment for ``count`` messages in all topics together. Returns whether there may be as many."""
        places = {topic: (options.stream, options.topic) for topic, options in self._reads.items()}
        # Among so many new messages, one partition has at least this share. Its last one ends the wait.
        share = -(-count // max(sum(len(found.partitions) for found in facts.values()), 1))
        following: Following = {
            places[topic]: {partition: head + share - 1 for partition, head in _heads(found).items()}
            for topic, found in facts.items()
        }
        # All topics of a query are on one server, or in one archive.
        return self._metadata(next(iter(facts))).wait(following, IDLE_WAIT)

    def _matched(self, saved: QueryOffsets, facts: Facts) -> QueryOffsets:
        """The saved offsets of the topics that the query reads now. Raises ``ReadFailed``."""
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
        """Where a query without a checkpoint starts. Raises ``ReadFailed``, ``DataLost``."""
        return offsets_json(self._starts(self._ask(), self._reads))

    def _starts(self, facts: Facts, topics: Iterable[str]) -> QueryOffsets:
        """Where to start in topics that the query has not read yet."""
        return {
            topic: TopicOffsets(
                facts[topic].uuid,
                resolve_start(self._reads[topic], self._metadata(topic), facts[topic], unnamed=LATEST),
            )
            for topic in topics
        }

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Spark accepts a single limit; the others are applied in ``latestOffset``."""
        if self._stream_options.max_count is not None:
            return ReadMaxRows(self._stream_options.max_count)
        return ReadMaxBytes(self._stream_options.max_size)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fix where this run ends."""
        self._target = self._ask()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Where the next micro-batch ends. Raises ``ReadFailed``, ``DataLost``."""
        saved = parse_offsets(start, self._name)
        facts = self._ask_or_wait(saved)
        progress = self._matched(saved, facts)
        # When Spark asks for the next batch, everything before it is processed. It does not always call `commit`.
        self._store(saved)
        # A micro-batch that adds a topic only records its starting offsets; the next one reads from there.
        added = self._starts(facts, self._reads.keys() - progress.keys())
        known, losses = self._reconciled(progress, facts)
        heads = self._target or facts
        if not losses and not added and (missing_count := self._missing_count(known, heads, limit)):
            self._wait(facts, missing_count)
            return offsets_json(progress)
        return offsets_json({**admit(known, heads, facts, self._limits(limit)), **added})

    def _reconciled(self, progress: QueryOffsets, facts: Facts) -> tuple[QueryOffsets, list[DataLost]]:
        found = {topic: reconcile(one, facts[topic], self._reads[topic].name) for topic, one in progress.items()}
        losses = [loss for one in found.values() for loss in one.losses]
        for loss in losses:
            self._report(loss)
        return {topic: one.progress for topic, one in found.items()}, losses

    def _limits(self, limit: ReadLimit) -> BatchLimits:
        if isinstance(limit, ReadAllAvailable):
            return BatchLimits()
        return BatchLimits(self._stream_options.max_count, self._stream_options.max_size)

    def _missing_count(self, progress: QueryOffsets, heads: Facts, limit: ReadLimit) -> int:
        """How many messages to wait for. None, once ``maxTriggerDelay`` has passed or ``minOffsetsPerTrigger`` wait."""
        wanted = self._stream_options.min_count
        if wanted is None or self._target is not None or isinstance(limit, ReadAllAvailable):
            return 0
        waiting = sum(waiting_messages(progress, heads).values())
        if not waiting:
            # Nothing new, or a gap without messages, which nobody has to wait for.
            return 0
        now = self._clock()
        if self._held_since is None:
            self._held_since = now
        if waiting < wanted and now - self._held_since < self._stream_options.max_delay:
            return wanted - waiting
        self._held_since = None
        return 0

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """The heads of the partitions, for lag reporting."""
        facts = self._recent()
        return offsets_json({topic: TopicOffsets(found.uuid, _heads(found)) for topic, found in facts.items()})

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The tasks of a micro-batch. Raises ``ReadFailed``, ``DataLost``."""
        facts = self._recent()
        before, after = (self._matched(parse_offsets(value, self._name), facts) for value in (start, end))
        reads = [
            TopicRead(
                topic,
                self._ranges(options, before[topic], after[topic], facts[topic]),
                facts[topic],
                sources_in(options, self._metadata(topic), facts[topic]),
            )
            for topic, options in self._reads.items()
            # A topic that is only in the second one starts there.
            if topic in before and topic in after
        ]
        return read_tasks(list(self._reads.values()), reads)

    def _ranges(
        self, options: ReadOptions, before: TopicOffsets, after: TopicOffsets, facts: TopicFacts
    ) -> list[OffsetRange]:
        """The ranges between two offsets, without messages that were counted as lost when the end was planned."""
        ranges = []
        for partition, last in sorted(after.next.items()):
            lost = after.lost.get(partition, 0) - before.lost.get(partition, 0)
            first = before.next.get(partition, 0) + lost
            if first >= last:
                continue
            if partition not in facts.partitions:
                # It existed when the micro-batch was planned: this is a replay after a restart.
                self._report(partition_gone(options.name, partition, first))
                continue
            ranges.append(OffsetRange(partition, first, last))
        return ranges

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return read_task(partition, list(self._reads.values()), self._schema)

    def commit(self, end: dict[str, Any]) -> None:
        """Everything before ``end`` is processed. Spark calls this with the next micro-batch, so not after the last."""
        self._store(parse_offsets(end, self._name))

    def _store(self, saved: QueryOffsets) -> None:
        """Store how far the query got on the server under its consumer's name. Used for lag reporting only."""
        consumer = self._stream_options.consumer
        if consumer is None or saved == self._stored:
            return
        try:
            for topic, progress in match_topics(saved, self._recent(), self._name).progress.items():
                store_progress(self._reads[topic], consumer, progress)
                report_query(self._reads[topic], consumer, self._name)
            self._stored = saved
        except CourserError as error:
            # Only the checkpoint matters for correctness. The next micro-batch stores its progress again.
            _log.warning("could not store the progress of %s for consumer %s: %s", self._name, consumer, error)

    def __getstate__(self) -> dict[str, Any]:
        # Tasks need only the options.
        return self.__dict__ | {"_topics": {}, "_facts": None, "_target": None}


def _heads(facts: TopicFacts) -> dict[int, int]:
    return {partition: bounds.next for partition, bounds in facts.partitions.items()}


def store_progress(options: ReadOptions, consumer: str, progress: TopicOffsets) -> None:
    """Store how far a query got on the server. Raises ``CourserError``."""
    assert options.target is not None, "streams read from a server"
    client = connection_to(options.target)
    for partition, following in progress.next.items():
        if following > 0:
            client.store_consumer_offset(options.stream, options.topic, partition, following - 1, consumer=consumer)


def report_query(options: ReadOptions, consumer: str, name: str) -> None:
    """Tell the server that a query is running, for those who look at the server. Raises ``CourserError``."""
    assert options.target is not None, "streams read from a server"
    connection_to(options.target).report_pipeline(
        consumer, "running", consumer=consumer, source=name, sink="a Spark query"
    )
