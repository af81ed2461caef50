"""One pipeline from its start to its end: checked, started, watched, restarted after failures, given up.

Runs in a thread of its own. What others need to know about it is in ``status``, and in the state folder.
"""

import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from courser.errors import ClientFailure
from courser.model.clock import Clock
from courser.pipelines.checkpoint import Checkpoint
from courser.pipelines.definition import Definition, TopicSource
from courser.pipelines.failing import is_final, is_java_gone
from courser.pipelines.locking import this_process
from courser.pipelines.origin import claim
from courser.pipelines.progress import Progress, parse_progress
from courser.pipelines.queries import Outlets, start_queries
from courser.pipelines.reading import target_of
from courser.pipelines.server_side import SourceFacts, check_topics, lakes_by_offset, needs_server, store_progress
from courser.pipelines.state_folder import StateFolder, Status
from courser.spark.failures import keep_trace, one_line

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

LOOK_INTERVAL = 0.25
"""Seconds between two looks at a running query, and at whether somebody wants it to stop."""
STOP_PATIENCE = 30.0
"""Seconds that a batch under way gets to end before it is interrupted; it is repeated at the next start."""
BEGIN_PATIENCE = 30.0
"""Seconds that one pipeline may keep the others of the process from starting."""
_SECOND = 1_000_000


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a pipeline needs of the process it runs in."""

    spark: "Callable[[], SparkSession]"
    clock: Clock
    environment: Mapping[str, str]
    show: Callable[[str, int, str], None]
    """Told name, batch and table of a console sink."""
    java_log: Path
    """What Java prints."""
    starting: threading.Lock = field(default_factory=threading.Lock)
    """Held while queries begin: each starts several Python processes, and Spark gives them ten seconds to report."""


class Supervisor:
    """Runs one pipeline. ``run`` is for a thread of its own; everything else may be called from any other."""

    def __init__(
        self,
        definition: Definition,
        checkpoint: Checkpoint,
        folder: StateFolder,
        surroundings: Surroundings,
        *,
        once: bool,
    ) -> None:
        self._definition = definition
        self._checkpoint = checkpoint
        self._folder = folder
        self._surroundings = surroundings
        self._once = once
        self._stop = threading.Event()
        self._counted: dict[str, int] = {}
        """Batches whose figures are in the status, by run of a query."""
        self._written: dict[int, int] = {}
        """Rows by batch, where Spark counts files."""
        self._attempt_batches = 0
        me = this_process(definition.name)
        now = surroundings.clock.now()
        self.status = Status(
            name=definition.name,
            file=str(definition.path),
            checkpoint=str(definition.checkpoint),
            generation=checkpoint.generation,
            mode="once" if once else "continuous",
            source=str(definition.source),
            sink=str(definition.sink),
            pid=me.pid,
            process_started=me.started,
            host=me.host,
            started_at=now,
            updated_at=now,
        )
        self._ends: Mapping[str, int] = {}
        self.failure: Exception | None = None
        """What ended it, if it failed."""

    def stop(self) -> None:
        """Ask it to end."""
        self._stop.set()

    # --- life ---

    def run(self) -> None:
        """Run it to its end, and say in the status how it ended."""
        self._folder.clear_stop()
        self._show_status()
        failures = 0
        while True:
            self._attempt_batches = 0
            try:
                finished = self._attempt()
            except Exception as error:  # noqa: BLE001 -- whatever it is, the supervisor decides what becomes of it
                failures = failures + 1 if self._attempt_batches == 0 else 1
                if not self._survives(error, failures):
                    return
                continue
            self._note(state="finished" if finished else "stopped")
            return

    def _survives(self, error: Exception, failures: int) -> bool:
        """Whether to try again, after the pause that goes before it."""
        rules = self._definition.supervision
        with suppress(OSError):
            keep_trace(error, self._folder.log_path, datetime.now(UTC))
        line = one_line(error)
        if is_java_gone(error):
            line = f"Spark's Java process has ended; {self._surroundings.java_log} may say why"
        if is_final(error) or failures > rules.restarts or self._wants_stop():
            gave_up = failures > rules.restarts and failures > 1
            self.failure = error
            self._note(state="failed", error=f"{line} (gave up after {failures} failures)" if gave_up else line)
            return False
        pause = min(rules.delay * 2 ** min(failures - 1, 30), rules.delay_max)
        self._note(state="restarting", error=line, restarts=self.status.restarts + 1)
        waited = 0.0
        while waited < pause / _SECOND and not self._wants_stop():
            waited += LOOK_INTERVAL
            self._stop.wait(min(LOOK_INTERVAL, pause / _SECOND))
        if self._wants_stop():
            self._note(state="stopped")
            return False
        return True

    def _attempt(self) -> bool:
        """Run the queries once; True if they came to their end by themselves."""
        definition = self._definition
        target = target_of(definition.server, self._surroundings.environment) if needs_server(definition) else None
        facts = check_topics(definition, target) if target is not None else SourceFacts()
        for lake, origin in lakes_by_offset(definition, facts):
            claim(lake, origin)
        spark = self._surroundings.spark()
        for name, value in definition.spark.items():
            # Those of the whole process were given to it when it began, and cannot be set again.
            if name.startswith("spark.sql.") and spark.conf.get(name, None) != value:
                spark.conf.set(name, value)
        outlets = Outlets(
            lambda batch, text: self._surroundings.show(definition.name, batch, text), self._written.__setitem__
        )
        with self._surroundings.starting:
            partitions = [fact.partition for fact in facts.partitions]
            queries = start_queries(
                spark, definition, self._checkpoint, target, outlets, once=self._once, partitions=partitions
            )
            self._await_beginning(queries)
        self._note(state="running")
        try:
            finished = self._watch(queries)
        finally:
            for query in queries:
                query.stop()
            self._look(queries)
        if target is not None and isinstance(definition.source, TopicSource) and self._ends:
            # Spark says that a batch is done when it plans the next one: of the last one it never does.
            store_progress(target, definition.source, self._ends)
        return finished

    def _await_beginning(self, queries: "list[StreamingQuery]") -> None:
        """Wait until Spark has found its sources, or a query has ended; not for longer than the others can wait."""
        waited = 0.0
        while waited < BEGIN_PATIENCE and any(
            query.isActive and query.status["message"].startswith("Initializing") for query in queries
        ):
            self._stop.wait(LOOK_INTERVAL)
            waited += LOOK_INTERVAL

    def _watch(self, queries: "list[StreamingQuery]") -> bool:
        waited = 0.0
        while True:
            self._look(queries)
            if _have_ended(queries):
                return True
            if self._wants_stop():
                self._note(state="stopping")
                if waited >= STOP_PATIENCE or not any(query.status["isTriggerActive"] for query in queries):
                    return False
                waited += LOOK_INTERVAL

    def _wants_stop(self) -> bool:
        return self._stop.is_set() or self._folder.is_stop_requested()

    # --- figures ---

    def _look(self, queries: "list[StreamingQuery]") -> None:
        """Take in what Spark has to say since the last look."""
        run = str(queries[0].runId)
        records = [parse_progress(_plain(record)) for record in queries[0].recentProgress]
        for progress in records:
            if progress.is_batch and progress.batch > self._counted.get(run, -1):
                self._counted[run] = progress.batch
                self._attempt_batches += 1
                self._take(progress)
        # While nothing happens, only the last record is of today.
        if records and not records[-1].is_batch and records[-1].lag:
            self._note(lag=records[-1].lag)

    def _take(self, progress: Progress) -> None:
        self._ends = progress.ends or self._ends
        rows, rate = progress.rows, progress.rows_per_second
        if progress.batch in self._written:
            rows = self._written.pop(progress.batch)
            rate = rows * 1000 / max(1, progress.milliseconds)
        self._note(
            batch=progress.batch,
            rows=self.status.rows + rows,
            rows_per_second=round(rate, 1),
            batch_milliseconds=progress.milliseconds,
            milliseconds_by_part=progress.milliseconds_by_part,
            lag=progress.lag,
            lost=max(self.status.lost, progress.lost),
            bad_rows=self.status.bad_rows + progress.bad_rows,
            watermark=progress.watermark,
            # Whatever it was, it has passed; the log keeps it.
            error=None,
        )

    def _note(self, **values: object) -> None:
        now = self._surroundings.clock.now()
        changed = replace(self.status, **values)  # type: ignore[arg-type]  # by the fields' names
        if changed != self.status:
            self.status = replace(changed, updated_at=now)
            self._show_status()

    def _show_status(self) -> None:
        # Nobody needs it to go on: a full disk must not end the thread that waits for room on it.
        with suppress(OSError):
            self._folder.write(self.status)


def _have_ended(queries: "list[StreamingQuery]") -> bool:
    """Wait a moment for each of them, so that a failure of any is raised."""
    # It takes parts of a second too, which its annotation does not say.
    ended = [query.awaitTermination(LOOK_INTERVAL) for query in queries]  # type: ignore[arg-type]
    return all(ended)


def _plain(record: object) -> Mapping[str, object]:
    """Spark 4 hands over objects that are dictionaries too, and some that are not."""
    if isinstance(record, dict):
        return record
    raise ClientFailure(f"Spark's progress is a {type(record).__name__}: this version of it is not known")
