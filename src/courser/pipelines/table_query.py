"""Fills an Iceberg or Delta table from a topic. The table is the checkpoint (``docs/adr/0027``): nothing else is kept.

In rounds: look how far the topic goes, and take what is new in steps. A step is written by tasks, and committed by this
process together with the position behind it. A crash repeats the step that was not committed; what its tasks have
written stays unseen. Two runners cannot harm the table: the second commit of a step is refused.
"""

import json
import logging
import math
import os
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from courser.client.targets import Target as Server
from courser.errors import ClientFailure, CourserError, NotAllowed
from courser.jobs.source_topic import SourceTopic, open_topic
from courser.jobs.tasks import run_in_tasks
from courser.lake.tables import (
    Commit,
    CommitUnsettled,
    LayoutMoved,
    MessageRange,
    PartitionPosition,
    Patience,
    PositionMoved,
    Table,
    TopicPosition,
    WrittenFile,
)
from courser.model.clock import Clock
from courser.pipelines.checkpoint import Checkpoint
from courser.pipelines.definition import Definition, TopicSource
from courser.pipelines.locking import LockHolder, this_process
from courser.pipelines.progress import QueryProgress
from courser.pipelines.server_side import store_progress
from courser.pipelines.source_frames import batch_options
from courser.pipelines.table_opening import OpenTables, earlier_ends, open_tables
from courser.pipelines.table_rows import TopicRows
from courser.pipelines.table_tasks import RangeWork, StepWork, Target, WriteRows, write_range
from courser.spark.admission import BatchLimits, admit, reconcile
from courser.spark.background_clients import connection_to
from courser.spark.offsets import TopicOffsets

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logging.getLogger(__name__)

STEP_SIZE = 2 * 1024 * 1024 * 1024
"""Bytes of messages of a commit. A crash repeats as many; smaller ones would leave many states of the table behind."""
COMMIT_PATIENCE = 60.0
"""Seconds for which a commit is tried before the status tells that the catalog or the store gives no clear answer."""
STOP_PATIENCE = 60.0
"""Seconds to wait for the end of an interrupted step. One that ends later than that is refused by the next one's."""
_RECORDS = 20
_RUN = "run"
"""The note of a commit that says who made it."""


class OtherRunner(ClientFailure):
    """Another process fills the table from the same topic."""

    def __init__(self, table: str, holder: LockHolder | None) -> None:
        who = "another run"
        if holder is not None:
            who = f"process {holder.pid} on {holder.host}, which runs {holder.name}"
        super().__init__(f"the table {table} is filled from this topic by {who}; stop one of the two")


class BadRow(ClientFailure):
    """A payload that is no row, and the definition wants to stop there."""

    def __init__(self, where: str) -> None:
        super().__init__(f'{where}; to continue without it, set source.on_bad_row to "drop" or "quarantine"')


@dataclass(frozen=True, slots=True)
class StepResult:
    """What the tasks of a step have done."""

    files: Sequence[WrittenFile]
    bad_files: Sequence[WrittenFile]
    message_count: int
    bad_count: int
    rows: Target
    bad: Target | None


class TableQuery:
    """Implements ``Query``, in a thread of its own."""

    def __init__(
        self,
        spark: "SparkSession",
        definition: Definition,
        server: Server,
        checkpoint: Checkpoint,
        *,
        once: bool,
        clock: Clock,
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        assert isinstance(definition.source, TopicSource)
        self._spark, self._definition, self._source, self._server = spark, definition, definition.source, server
        self._checkpoint = checkpoint
        self._once, self._clock, self._environment = once, clock, environment
        self.run = str(uuid4())
        self._stopping, self._ended = threading.Event(), threading.Event()
        self._failure: BaseException | None = None
        self._records: deque[QueryProgress] = deque(maxlen=_RECORDS)
        self._holder = this_process(definition.name)
        self.is_beginning, self.is_busy = True, False
        self._options = batch_options(definition.source, server)
        self._number = 0
        self._lost = 0
        self._fresh_at: int | None = None
        self._committed_at: int | None = None
        self._tables: OpenTables
        self._rows: TopicRows
        self._topic = ""
        """The uuid of the topic."""
        self._position: TopicPosition | None = None
        self._bad_position: TopicPosition | None = None
        self._incarnations: Mapping[int, int] = {}
        self._thread = threading.Thread(target=self._run, name=f"table of {definition.name}", daemon=True)
        self._thread.start()

    # --- for the supervisor ---

    def progress(self) -> Sequence[QueryProgress]:
        return list(self._records)

    def await_end(self, seconds: float) -> bool:
        if not self._ended.wait(seconds):
            return False
        if self._failure is not None:
            raise self._failure
        return True

    def stop(self) -> None:
        self._stopping.set()
        with suppress(Exception):
            # It may have ended, and so may Java.
            self._spark.interruptTag(self.run)
        self._thread.join(STOP_PATIENCE)

    # --- rounds ---

    def _run(self) -> None:
        try:
            _activate(self._spark)
            self._spark.addTag(self.run)
            self._fill()
        except BaseException as error:  # noqa: BLE001 -- whoever waits gets it
            # A step that is interrupted fails, and that is no failure.
            if not self._stopping.is_set():
                self._failure = error
        finally:
            self.is_beginning = self.is_busy = False
            self._ended.set()

    def _fill(self) -> None:
        while not self._stopping.is_set():
            began = time.monotonic()
            try:
                self._round()
            except PositionMoved as moved:
                self._after_move(moved)
                continue
            if self._once:
                return
            self._stopping.wait(max(0.0, began + self._definition.trigger / 1_000_000 - time.monotonic()))

    def _round(self) -> None:
        """Take everything that is in the topic now."""
        moment = self._clock.now()
        topic = open_topic(self._options)
        if topic.facts.uuid.hex() != self._topic:
            self._begin(topic)
        self.is_beginning = False
        name, heads = topic.options.topic, topic.facts.partitions
        following = self._following(topic)
        limits = BatchLimits(self._source.max_messages_per_trigger, self._source.max_bytes_per_trigger or STEP_SIZE)
        while not self._stopping.is_set():
            facts = {name: topic.facts}
            ends = admit({name: TopicOffsets(topic.facts.uuid, following)}, facts, facts, limits)[name].next
            if ends == following:
                break
            self.is_busy = True
            is_last = all(end >= heads[partition].next for partition, end in ends.items())
            # Behind the last step, the table has all that was there when the round began.
            self._step(topic, following, ends, moment if is_last else self._fresh_at)
            self.is_busy = False
            following = ends
        else:
            return
        self._fresh_at = moment
        self._record(topic, following)

    def _begin(self, topic: SourceTopic) -> None:
        """Open the tables, and find out where to go on."""
        self._topic = topic.facts.uuid.hex()
        self._rows = TopicRows(self._spark, self._definition, self._options)
        patience = Patience(limit=COMMIT_PATIENCE, sleep=self._sleep, clock=self._monotonic)
        self._tables = open_tables(self._rows, self._definition, topic, patience, self._environment)
        self._incarnations = self._ask_incarnations(topic)
        self._read_positions()
        starts = self._starts() if self._position is None else None
        if starts is not None:
            # Recorded at once: messages that come from now on are not skipped if the first step fails.
            stop = self._behind(starts)
            self._settle(self._tables.rows, self._commit(None, stop, (), _target(self._tables.rows)))
            self._position = stop

    def _starts(self) -> Mapping[int, int] | None:
        """Where a topic begins that the table has no position of; None: where it begins itself."""
        if (ends := earlier_ends(self._tables.rows, self._checkpoint, self._topic)) is not None:
            return ends
        start = self._source.start
        if start.timestamp is not None:
            return open_topic({**self._options, "startingTimestamp": start.timestamp}).starts
        if start.offsets == "earliest":
            return None
        return open_topic({**self._options, "startingOffsets": start.offsets}).starts

    def _sleep(self, seconds: float) -> None:
        self._stopping.wait(seconds)

    def _monotonic(self) -> float:
        """The clock of commits: their time is over when this is to stop."""
        return math.inf if self._stopping.is_set() else time.monotonic()

    def _read_positions(self) -> None:
        self._position = self._tables.rows.standing(self._topic).position
        self._bad_position = None if self._tables.bad is None else self._tables.bad.standing(self._topic).position

    def _ask_incarnations(self, topic: SourceTopic) -> Mapping[int, int]:
        """Which partitions these are: some may have been deleted and created again. Empty if we may not know."""
        client, place = connection_to(self._server), self._source.place
        found = {}
        with suppress(NotAllowed):
            for partition in topic.facts.partitions:
                directory = client.get_segments(place.stream, place.topic, partition).directory
                found[partition] = int(directory.rpartition("-")[2])
        return found

    def _following(self, topic: SourceTopic) -> Mapping[int, int]:
        """The next offset of each partition. Raises ``DataLost`` unless that is allowed."""
        known = {each.partition: each for each in self._position.partitions} if self._position is not None else {}
        if any(known[part].next_offset > there.next for part, there in topic.facts.partitions.items() if part in known):
            self._incarnations = self._ask_incarnations(topic)
        following = {}
        for partition, start in topic.starts.items():
            found, incarnation = known.get(partition), self._incarnations.get(partition, 0)
            is_same = found is not None and (not incarnation or found.incarnation in (0, incarnation))
            following[partition] = found.next_offset if found is not None and is_same else start
        reconciled = reconcile(TopicOffsets(topic.facts.uuid, following), topic.facts, topic.options.name)
        if reconciled.losses and self._source.fail_on_data_loss:
            raise reconciled.losses[0]
        for loss in reconciled.losses:
            _log.warning("%s", loss)
            self._lost += loss.lost
        return reconciled.progress.next

    def _behind(self, ends: Mapping[int, int]) -> TopicPosition:
        """The position with these next offsets. Partitions that are gone stay in it."""
        found = {each.partition: each for each in self._position.partitions} if self._position is not None else {}
        for partition, end in ends.items():
            before = found[partition].incarnation if partition in found else 0
            found[partition] = PartitionPosition(partition, self._incarnations.get(partition, before), end)
        return TopicPosition(topic=self._topic, partitions=tuple(found[number] for number in sorted(found)))

    # --- steps ---

    def _step(
        self, topic: SourceTopic, following: Mapping[int, int], ends: Mapping[int, int], fresh_at: int | None
    ) -> None:
        began = time.monotonic()
        stop = self._behind(ends)
        while True:
            result = self._write(topic, following, ends)
            written = time.monotonic()
            try:
                # First the bad ones: their table may then be ahead, and what it has is not written again.
                if result.bad_files and self._tables.bad is not None and result.bad is not None:
                    bad_stop = _later(self._bad_position, stop)
                    commit = self._commit(self._bad_position, bad_stop, result.bad_files, result.bad)
                    self._settle(self._tables.bad, commit)
                    self._bad_position = bad_stop
                self._settle(self._tables.rows, self._commit(self._position, stop, result.files, result.rows))
                break
            except LayoutMoved:
                self._tables.fit()
        self._position = stop
        self._committed_at, self._fresh_at = self._clock.now(), fresh_at
        with suppress(CourserError):
            store_progress(self._server, self._source, {str(partition): end for partition, end in ends.items()})
        now = time.monotonic()
        parts = {"tasks": written - began, "commit": now - written}
        self._record(topic, ends, result=result, seconds=now - began, parts=parts)
        self._number += 1

    def _commit(
        self, start: TopicPosition | None, stop: TopicPosition, files: Sequence[WrittenFile], target: Target
    ) -> Commit:
        notes = {_RUN: json.dumps(asdict(self._holder))}
        return Commit(
            start=start, stop=stop, token=uuid4().hex, files=files, description=target.description, notes=notes
        )

    def _settle(self, table: Table, commit: Commit) -> None:
        while True:
            try:
                table.commit(commit)
            except CommitUnsettled as error:
                # It may have landed. The same commit again is the only safe way on.
                if self._stopping.is_set():
                    raise
                _log.warning("%s", error)
                self._records.append(replace(self._newest(), trouble=str(error)))
            else:
                return

    def _after_move(self, moved: PositionMoved) -> None:
        """Go on from what the table says, if nobody else is at work."""
        self.is_busy = False
        standing = self._tables.rows.standing(self._topic)
        told = standing.notes.get(_RUN)
        other = None if told is None else LockHolder(**json.loads(told))
        is_over = other is not None and (other == self._holder or not other.is_alive)
        if not standing.is_rolled_back and not is_over:
            raise OtherRunner(self._tables.rows.name, other) from moved
        _log.warning("%s; going on from there", moved)
        self._read_positions()

    def _write(self, topic: SourceTopic, following: Mapping[int, int], ends: Mapping[int, int]) -> StepResult:
        rows = _target(self._tables.rows)
        bad = None if self._tables.bad is None else _target(self._tables.bad)
        known = self._bad_position.partitions if self._bad_position is not None else ()
        bad_from = {
            each.partition: each.next_offset
            for each in known
            if each.incarnation == self._incarnations.get(each.partition, each.incarnation)
        }
        if self._definition.transform.sql is not None:
            first = min(partition for partition, end in ends.items() if end > following[partition])
            source = MessageRange(
                topic=self._topic,
                partition=first,
                incarnation=self._incarnations.get(first, 0),
                first_offset=following[first],
                last_offset=ends[first] - 1,
                attempt="0",
            )
            write_bad = None if bad is None else WriteRows(bad, source)
            found = self._rows.write(following, ends, WriteRows(rows, source), write_bad, bad_from)
            self._check_bad(found.bad_count, found.first_bad)
            return StepResult(found.files, found.bad_files, found.message_count, found.bad_count, rows, bad)
        step = StepWork(
            options=topic.options,
            topic=self._topic,
            reading=self._tables.reading,
            rows=rows,
            bad=bad,
            bad_from=bad_from,
        )
        work = [
            RangeWork(
                part=part,
                ranges=topic.sources_of(part),
                incarnation=self._incarnations.get(part.partition, 0),
                size=topic.size_of(part),
            )
            for part in replace(topic, starts=following, ends=ends).ranges({})
        ]
        results = run_in_tasks(self._spark, partial(write_range, step), work, weight=lambda item: item.size)
        bad_count = sum(result.bad_count for result in results)
        self._check_bad(bad_count, next((result.first_bad for result in results if result.first_bad), ""))
        return StepResult(
            [file for result in results for file in result.files],
            [file for result in results for file in result.bad_files],
            sum(result.message_count for result in results),
            bad_count,
            rows,
            bad,
        )

    def _check_bad(self, count: int, first: str) -> None:
        if count and self._definition.decoding.on_bad_row == "fail":
            raise BadRow(first)

    # --- records ---

    def _newest(self) -> QueryProgress:
        return self._records[-1] if self._records else QueryProgress(self._number, 0, 0.0, 0)

    def _record(
        self,
        topic: SourceTopic,
        ends: Mapping[int, int],
        *,
        result: StepResult | None = None,
        seconds: float = 0.0,
        parts: Mapping[str, float] | None = None,
    ) -> None:
        count = 0 if result is None else result.message_count
        bounds = topic.facts.partitions
        self._records.append(
            QueryProgress(
                batch=self._number,
                rows=count,
                rows_per_second=count / max(seconds, 0.001),
                milliseconds=round(seconds * 1000),
                milliseconds_by_part={name: round(value * 1000) for name, value in (parts or {}).items()},
                ends={str(partition): end for partition, end in ends.items()},
                lag={str(part): bounds[part].count_between(end, bounds[part].next) for part, end in ends.items()},
                lost=self._lost,
                bad_rows=0 if result is None else result.bad_count,
                moment=datetime.now(UTC).isoformat(),
                files=0 if result is None else len(result.files),
                fresh_at=self._fresh_at,
                committed_at=self._committed_at,
            )
        )


def _target(table: Table) -> Target:
    # The access first: it looks at the newest state of the table, and the description is of the last look.
    access = table.access()
    return Target(description=table.describe(), access=access)


def _later(position: TopicPosition | None, other: TopicPosition) -> TopicPosition:
    """The later of two positions, by partition."""
    found = {each.partition: each for each in other.partitions}
    for each in position.partitions if position is not None else ():
        there = found.get(each.partition)
        if there is None or (each.incarnation, each.next_offset) > (there.incarnation, there.next_offset):
            found[each.partition] = each
    return TopicPosition(topic=other.topic, partitions=tuple(found[number] for number in sorted(found)))


def _activate(spark: "SparkSession") -> None:
    """Make it the session of this thread: Spark looks for Python data sources only there."""
    from courser.spark.connect import runs_remotely  # noqa: PLC0415

    if not runs_remotely(spark):
        jvm: Any = spark._jvm
        jvm.SparkSession.setActiveSession(spark._jsparkSession)
