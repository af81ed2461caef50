"""Runs several pipelines in one process with one Spark session, each in a thread of its own, until all have ended."""

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from courser.errors import ConfigurationRefused
from courser.jobs.folders import folder_at
from courser.model.clock import Clock
from courser.pipelines.checkpoint import lock_of, open_checkpoint
from courser.pipelines.definition import Definition
from courser.pipelines.leases import Lease
from courser.pipelines.locking import Lock, this_process
from courser.pipelines.server_side import needs_server
from courser.pipelines.source_frames import target_of
from courser.pipelines.state_folder import StateFolder, Status
from courser.pipelines.supervision import RunnerEnvironment, Supervisor
from courser.spark.addresses import is_address
from courser.spark.connect import is_remote, remote_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PROGRESS_COUNT = "20"
"""Progress records that Spark keeps for each query: more than are created between two checks."""


class Runner:
    """Runs pipelines. A context manager: it holds all locks inside the block and waits for all threads at its end."""

    def __init__(
        self,
        definitions: Sequence[Definition],
        *,
        home: Path,
        clock: Clock,
        master: str = "local[*]",
        pack: str | None = None,
        once: bool | None = None,
        session: "SparkSession | None" = None,
        environment: Mapping[str, str] = os.environ,
        show: Callable[[str, int, str], None] = lambda name, batch, text: None,  # noqa: ARG005
        tell: Callable[[str], object] = lambda text: None,  # noqa: ARG005
    ) -> None:
        """Prepare the runner. Nothing starts before the block is entered.

        Args:
            definitions: The pipelines to run.
            home: The folder of the state folders.
            clock: For times in statuses.
            master: Where Spark runs: a master, or ``sc://host:port``.
            pack: An archive for its workers: ``spark_session``.
            once: Overrides the mode of all definitions; None does not.
            session: A running session, which is not stopped at the end; None: start one.
            environment: Variables that specify servers and logins.
            show: Called with name, batch and table of console sinks.
            tell: Called with a sentence while a start has to wait.

        Raises:
            ConfigurationRefused: the pipelines cannot run together.
        """
        check_together(definitions)
        check_master(definitions, master)
        self._definitions = tuple(definitions)
        self._home = home
        self._master = master
        self._pack = pack
        self._once = once
        self._session = session
        self._owns_session = session is None
        self._session_lock = threading.Lock()
        self._tell = tell
        self._java_log = StateFolder(home, definitions[0].name).spark_log_path
        self._process = RunnerEnvironment(self._pipeline_session, clock, environment, show, self._java_log)
        self._java_pid: int | None = None
        self._locks: list[Lock | Lease] = []
        self._stack = ExitStack()
        self._threads: list[threading.Thread] = []
        self.supervisors: list[Supervisor] = []

    # --- life ---

    def __enter__(self) -> Self:
        """Acquire all locks, check all checkpoints, then start everything.

        Raises:
            LockTaken: another process runs one of the pipelines.
            ResetNeeded: a definition does not match its checkpoint.
        """
        try:
            for definition in self._definitions:
                self._prepare(definition)
        except BaseException:
            self._stack.close()
            self._end_session()
            raise
        for supervisor in self.supervisors:
            thread = threading.Thread(target=supervisor.run, name=f"pipeline {supervisor.status.name}")
            self._threads.append(thread)
            thread.start()
        return self

    def _prepare(self, definition: Definition) -> None:
        folder = StateFolder(self._home, definition.name)
        me = this_process(definition.name)
        # At an address, this starts Java: the lock is in the same file system as the checkpoint.
        root = folder_at(definition.checkpoint, self._own_session)
        own = Lock(folder.lock_path, me)
        # A table that stores the position needs no lock: it refuses whoever comes second.
        lock = own if definition.has_table else lock_of(root, me, self._tell)
        for needed in dict.fromkeys((lock, own)):
            self._hold(needed)
        checkpoint = open_checkpoint(root)
        if not definition.has_table:
            checkpoint.check(definition)
        once = definition.mode == "once" if self._once is None else self._once
        self.supervisors.append(Supervisor(definition, checkpoint, lock, folder, self._process, once=once))

    def _hold(self, lock: Lock | Lease) -> None:
        self._stack.enter_context(lock.acquire())
        self._locks.append(lock)
        if self._java_pid is not None:
            lock.note_java(self._java_pid)

    def stop(self) -> None:
        """Ask all pipelines to stop."""
        for supervisor in self.supervisors:
            supervisor.stop()

    def wait(self, seconds: float) -> bool:
        """Wait up to ``seconds`` for all pipelines to end. Returns whether they have."""
        for thread in self._threads:
            thread.join(seconds / max(1, len(self._threads)))
        return not any(thread.is_alive() for thread in self._threads)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        try:
            for thread in self._threads:
                thread.join()
        finally:
            # Locks at addresses need Java to be released.
            self._stack.close()
            self._end_session()

    def _end_session(self) -> None:
        if self._owns_session and self._session is not None:
            self._session.stop()

    # --- facts ---

    @property
    def statuses(self) -> list[Status]:
        """The status of every pipeline."""
        return [supervisor.status for supervisor in self.supervisors]

    @property
    def failed(self) -> list[Supervisor]:
        """The pipelines that have failed permanently."""
        return [supervisor for supervisor in self.supervisors if supervisor.failure is not None]

    # --- Spark ---

    @contextmanager
    def _pipeline_session(self) -> "Iterator[SparkSession]":
        """A session for one pipeline, with its own views and SQL settings."""
        if is_remote(self._master):
            from courser.spark.session import remote_settings  # noqa: PLC0415

            # One for each attempt: a Spark server that was started again does not know older ones.
            settings = remote_settings(self._settings)
            session = remote_session(self._master, settings, pack=self._pack, is_supervised=True)
            try:
                yield session
            finally:
                session.stop()
            return
        # All share one Java process.
        session = self._own_session().newSession()
        # When a query starts, Spark looks for Python data sources only in the active session of the thread.
        jvm: Any = session._jvm
        jvm.SparkSession.setActiveSession(session._jsparkSession)
        yield session

    def _own_session(self) -> "SparkSession":
        """The session of this process."""
        with self._session_lock:
            if self._session is None:
                self._session = self._start_session()
            return self._session

    @property
    def _settings(self) -> dict[str, str]:
        settings = {"spark.sql.streaming.numRecentProgressUpdates": _PROGRESS_COUNT}
        for definition in self._definitions:
            settings |= definition.spark
        return settings

    def _start_session(self) -> "SparkSession":
        from pyspark import SparkContext  # noqa: PLC0415 -- optional

        from courser.spark.session import spark_session  # noqa: PLC0415

        name = "courser " + " ".join(definition.name for definition in self._definitions)
        session = spark_session(name, self._master, self._settings, pack=self._pack, log=self._java_log)
        process = getattr(SparkContext._gateway, "proc", None)
        if process is not None:
            self._java_pid = process.pid
            for lock in self._locks:
                lock.note_java(process.pid)
        return session


def default_master(definitions: Sequence[Definition], environment: Mapping[str, str], cores: int) -> str:
    """The default master: this machine. Leaves a core to a server on the same machine, if there are enough."""
    is_shared = any(
        needs_server(definition) and target_of(definition.server, environment).is_local for definition in definitions
    )
    return f"local[{cores - 1}]" if is_shared and cores > 2 else "local[*]"


def check_master(definitions: Sequence[Definition], master: str) -> None:
    """Check that definitions can run there. Raises ``ConfigurationRefused``."""
    if is_remote(master):
        problems = [
            f'{definition.path}: sink.type = "console" cannot be used with a Spark server, where nobody sees it'
            for definition in definitions
            if definition.sink.type == "console"
        ]
        problems += [
            f"{definition.path}: pipeline.checkpoint must be a folder with a Spark server, not the address "
            f"{definition.checkpoint}: only a Java of this process could lock it"
            for definition in definitions
            if is_address(definition.checkpoint)
        ]
        if problems:
            raise ConfigurationRefused(problems)


def check_together(definitions: Sequence[Definition]) -> None:
    """Check that definitions can run in one process. Raises ``ConfigurationRefused``."""
    problems: list[str] = []
    by_name: dict[str, Definition] = {}
    by_checkpoint: dict[str, Definition] = {}
    settings: dict[str, tuple[str, Definition]] = {}
    for definition in definitions:
        other = by_name.setdefault(definition.name, definition)
        if other is not definition:
            problems.append(f"{other.path} and {definition.path} have the same name, {definition.name}")
        other = by_checkpoint.setdefault(definition.checkpoint, definition)
        if other is not definition:
            problems.append(f"{other.path} and {definition.path} have the same checkpoint, {definition.checkpoint}")
        for name, value in definition.spark.items():
            known, first = settings.setdefault(name, (value, definition))
            if known != value and not name.startswith("spark.sql."):
                problems.append(
                    f"{name} is {known} in {first.path} but {value} in {definition.path}; run them separately"
                )
    if problems:
        raise ConfigurationRefused(problems)
