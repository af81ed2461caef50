"""Supervises one pipeline: checks it, starts it, watches it, restarts it after failures, and finally gives up.

Runs in a thread of its own. Other threads read ``status``; other processes read the state folder.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from courser.client.targets import Target
from courser.errors import ClientFailure, CourserError
from courser.model.clock import Clock
from courser.pipelines.checkpoint import Checkpoint
from courser.pipelines.definition import Definition, TopicSource
from courser.pipelines.failing import is_final, is_java_gone
from courser.pipelines.lake_publishing import claim
from courser.pipelines.leases import Lease
from courser.pipelines.locking import Lock, this_process
from courser.pipelines.progress import QueryProgress
from courser.pipelines.queries import start_queries
from courser.pipelines.query import Query
from courser.pipelines.reporting import Reporter
from courser.pipelines.server_side import (
    SourceFacts,
    ask_lag,
    check_topics,
    lakes_by_offset,
    needs_server,
    store_progress,
)
from courser.pipelines.source_frames import target_of
from courser.pipelines.state_folder import StateFolder, Status
from courser.spark.failures import keep_trace, one_line

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOOK_INTERVAL = 0.25
"""Seconds between checks of a running query and of requests to stop it."""
STOP_PATIENCE = 30.0
"""Seconds that a running batch gets to finish before it is interrupted. It is repeated at the next start."""
BEGIN_PATIENCE = 30.0
"""Seconds for which one pipeline may delay the start of the others in the process."""
_SECOND = 1_000_000


@dataclass(frozen=True, slots=True)
class RunnerEnvironment:
    """What a pipeline needs from the process it runs in."""

    spark: "Callable[[], AbstractContextManager[SparkSession]]"
    """A session for one attempt of a pipeline."""
    clock: Clock
    environment: Mapping[str, str]
    show: Callable[[str, int, str], None]
    """Called with name, batch and table of a console sink."""
    java_log: Path
    """The file with Java's output."""
    starting: threading.Lock = field(default_factory=threading.Lock)
    """Held while queries start: each one starts several Python processes, and Spark gives them only ten seconds."""


class Supervisor:
    """Runs one pipeline. ``run`` needs a thread of its own; everything else can be called from any thread."""

    def __init__(
        self,
        definition: Definition,
        checkpoint: Checkpoint,
        lock: Lock | Lease,
        folder: StateFolder,
        process: RunnerEnvironment,
        *,
        once: bool,
    ) -> None:
        self._definition = definition
        self._checkpoint = checkpoint
        self._lock = lock
        self._folder = folder
        self._process = process
        self._once = once
        self._stop = threading.Event()
        self._counted: dict[str, int] = {}
        """The last batch that is counted in the status, by run of a query."""
        self._attempt_batches = 0
        me = this_process(definition.name)
        now = process.clock.now()
        self.status = Status(
            name=definition.name,
            file=str(definition.path),
            checkpoint=definition.checkpoint,
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
        self._idle_since = ""
        """The moment of the last progress record of the idle query."""
        self._reporter: Reporter | None = None
        self.failure: Exception | None = None
        """The final error, if it failed."""

    def stop(self) -> None:
        """Ask it to stop."""
        self._stop.set()

    # --- life ---

    def run(self) -> None:
        """Run it until it ends. The status then tells how it ended."""
        self._folder.clear_stop()
        definition = self._definition
        if needs_server(definition):
            with suppress(ClientFailure, ValueError):
                # An address that is wrong is explained by the first attempt.
                self._reporter = Reporter(definition, target_of(definition.server, self._process.environment))
        try:
            self._run()
        finally:
            if self._reporter is not None:
                self._reporter.close()

    def _run(self) -> None:
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
        """Whether to retry. If so, waits for the pause before the retry."""
        rules = self._definition.supervision
        with suppress(OSError):
            keep_trace(error, self._folder.log_path, datetime.now(UTC))
        line = one_line(error)
        if is_java_gone(error):
            line = f"Spark's Java process exited unexpectedly; see {self._process.java_log}"
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
        """Run the queries once. Returns True if they finished by themselves."""
        self._lock.check()
        definition = self._definition
        target = target_of(definition.server, self._process.environment) if needs_server(definition) else None
        facts = check_topics(definition, target) if target is not None else SourceFacts()
        for lake, origin in lakes_by_offset(definition, facts):
            claim(lake, origin)
        with self._process.spark() as spark:
            finished = self._run_queries(spark, target, [fact.partition for fact in facts.partitions])
        if target is not None and isinstance(definition.source, TopicSource) and self._ends:
            # Spark reports a batch as done when it plans the next one, so never for the last batch.
            store_progress(target, definition.source, self._ends)
        return finished

    def _run_queries(self, spark: "SparkSession", target: Target | None, partitions: Sequence[int]) -> bool:
        definition = self._definition
        for name, value in definition.spark.items():
            # Settings of the whole process were set at its start and cannot be changed.
            if name.startswith("spark.sql.") and spark.conf.get(name, None) != value:
                spark.conf.set(name, value)
        show = partial(self._process.show, definition.name)
        with self._process.starting:
            if definition.has_table:
                queries: list[Query] = [self._table_query(spark, target)]
            else:
                queries = start_queries(
                    spark, definition, self._checkpoint, target, show, once=self._once, partitions=partitions
                )
            self._await_beginning(queries)
        self._note(state="running")
        try:
            finished = self._watch(queries)
        except BaseException:
            # If a Spark server is gone, this fails too, and must not hide what went wrong first.
            with suppress(Exception):
                self._end(queries)
            raise
        self._end(queries)
        return finished

    def _end(self, queries: list[Query]) -> None:
        for query in queries:
            query.stop()
        self._look(queries)

    def _table_query(self, spark: "SparkSession", target: Target | None) -> Query:
        from courser.pipelines.table_query import TableQuery  # noqa: PLC0415 -- needs pyspark and pyarrow

        assert target is not None, "a topic has a server"
        process = self._process
        return TableQuery(
            spark,
            self._definition,
            target,
            self._checkpoint,
            once=self._once,
            clock=process.clock,
            environment=process.environment,
        )

    def _await_beginning(self, queries: list[Query]) -> None:
        """Wait until Spark has initialized its sources, or a query has ended, but no longer than ``BEGIN_PATIENCE``."""
        waited = 0.0
        while waited < BEGIN_PATIENCE and any(query.is_beginning for query in queries):
            self._stop.wait(LOOK_INTERVAL)
            waited += LOOK_INTERVAL

    def _watch(self, queries: list[Query]) -> bool:
        waited = 0.0
        while True:
            self._lock.check()
            self._look(queries)
            if _have_ended(queries):
                return True
            if self._wants_stop():
                self._note(state="stopping")
                if waited >= STOP_PATIENCE or not any(query.is_busy for query in queries):
                    return False
                waited += LOOK_INTERVAL

    def _wants_stop(self) -> bool:
        return self._stop.is_set() or self._folder.is_stop_requested()

    # --- status ---

    def _look(self, queries: list[Query]) -> None:
        """Update the status from the progress records since the last check."""
        run = queries[0].run
        records = queries[0].progress()
        for progress in records:
            if progress.is_batch and progress.batch > self._counted.get(run, -1):
                self._counted[run] = progress.batch
                self._attempt_batches += 1
                self._take(progress)
        # While the query is idle, only the last record is current.
        if records and not records[-1].is_batch and records[-1].moment != self._idle_since:
            self._idle_since = records[-1].moment
            if lag := self._lag(records[-1]):
                self._note(lag=lag, fresh_at=records[-1].fresh_at)
        if records and records[-1].trouble is not None:
            self._note(error=records[-1].trouble)

    def _lag(self, progress: QueryProgress) -> Mapping[str, int]:
        """The lag that a progress record tells, or that the server knows."""
        source = self._definition.source
        if progress.lag or not progress.ends or not isinstance(source, TopicSource):
            return progress.lag
        try:
            return ask_lag(target_of(self._definition.server, self._process.environment), source, progress.ends)
        except CourserError:
            return {}

    def _take(self, progress: QueryProgress) -> None:
        self._ends = progress.ends or self._ends
        self._note(
            batch=progress.batch,
            rows=self.status.rows + progress.rows,
            rows_per_second=round(progress.rows_per_second, 1),
            batch_milliseconds=progress.milliseconds,
            milliseconds_by_part=progress.milliseconds_by_part,
            lag=self._lag(progress),
            lost=max(self.status.lost, progress.lost),
            bad_rows=self.status.bad_rows + progress.bad_rows,
            watermark=progress.watermark,
            files=self.status.files + progress.files,
            fresh_at=progress.fresh_at,
            committed_at=progress.committed_at,
            # A finished batch clears the last error; the log keeps it.
            error=None,
        )

    def _note(self, **values: object) -> None:
        now = self._process.clock.now()
        changed = replace(self.status, **values)  # type: ignore[arg-type]  # by the fields' names
        if changed != self.status:
            self.status = replace(changed, updated_at=now)
            self._show_status()

    def _show_status(self) -> None:
        # The status file is not essential: a full disk must not end the thread that waits for space on it.
        with suppress(OSError):
            self._folder.write(self.status)
        if self._reporter is not None:
            self._reporter.note(self.status)


def _have_ended(queries: list[Query]) -> bool:
    """Wait a moment for each query, so that a failure of any is raised."""
    ended = [query.await_end(LOOK_INTERVAL) for query in queries]
    return all(ended)
