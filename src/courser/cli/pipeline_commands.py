"""``courser pipeline``: run and manage pipelines, each defined by one TOML file."""

import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from functools import cache
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import click

from courser.cli.failures import ExitCode, Failure, closest
from courser.cli.fields import Record, fields
from courser.cli.job_support import (
    LocalPath,
    chosen_pack,
    install_option,
    pack_option,
    prepare_spark,
    spark_failures,
)
from courser.cli.options import local_command, option, yes_option
from courser.cli.output import emit_deed, emit_list, emit_thing
from courser.cli.pipeline_views import STATUS_FIELDS, STATUS_LIST_FIELDS, View, make_view, record_of
from courser.cli.terminal import confirm, say
from courser.errors import ConfigurationRefused, CourserError
from courser.jobs.folders import folder_at
from courser.pipelines.checking import Findings, check_without_query, plan_columns, refuse_endless_groups
from courser.pipelines.checkpoint import reset
from courser.pipelines.definition import Definition
from courser.pipelines.definition_file import load_definition
from courser.pipelines.failing import kind_of
from courser.pipelines.pipeline_metrics import HOST, MetricsServer, render
from courser.pipelines.running import Runner, check_master, default_master
from courser.pipelines.state_folder import StateFolder, Status, all_statuses, pipelines_home
from courser.spark.addresses import is_address
from courser.spark.connect import is_remote
from courser.spark.failures import one_line
from courser.storage.watched_clock import SystemClock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_RUN_EXITS = (
    "Exit codes: 0 all ended normally, 1 one failed (its log has the trace), 2 wrong usage or an invalid file, "
    "3 cannot connect, 4 login failed or permission denied, 5 topic not found."
)
_EXITS = "Exit codes: 0 done, 1 failed, 2 wrong usage or an invalid file, 5 not found."
_CODES = {
    "ConnectionFailed": ExitCode.CANNOT_CONNECT,
    "AuthenticationFailed": ExitCode.NOT_ALLOWED,
    "NotAllowed": ExitCode.NOT_ALLOWED,
    "NotFound": ExitCode.NOT_FOUND,
    "TopicMissing": ExitCode.NOT_FOUND,
    "SparkUnreachable": ExitCode.CANNOT_CONNECT,
}
_HINTS = {
    ExitCode.CANNOT_CONNECT: "check the server with courser ping, or set another one in [server] of the file",
    ExitCode.NOT_ALLOWED: "check [server] in the file; without a login there, courser context show prints the one used",
    ExitCode.NOT_FOUND: "courser ls lists all streams and topics; create_partitions creates a sink's topic",
}
"""Hints for failures before a pipeline runs."""
_LOOK_INTERVAL = 0.2
"""Seconds between two updates of the view."""
_STOP_LOOK_INTERVAL = 0.1

_state_option = option(
    "--state DIR",
    "The state directory of pipelines. Default: COURSER_STATE_HOME, else ~/.local/state/courser/pipelines.",
    "home",
    type=LocalPath(path_type=Path, file_okay=False),
)
_files_argument = click.argument(
    "files", metavar="FILE...", nargs=-1, required=True, type=LocalPath(path_type=Path, exists=True, dir_okay=False)
)
_name_argument = click.argument("name", metavar="NAME")


# --- run ---


@local_command(
    "run",
    "courser pipeline run orders.toml",
    "courser pipeline run *.toml --once",
    "courser pipeline run orders.toml --master spark://10.0.0.5:7077",
    "courser pipeline run orders.toml --remote sc://10.0.0.5:15002",
    "courser pipeline run orders.toml --master yarn --pack courser.tar.gz",
    "courser pipeline run orders.toml --metrics-port 9102",
    exits=_RUN_EXITS,
)
@_files_argument
@option("--once/--continuous", "Override the mode in the files.", "once", default=None)
@option(
    "--master, --remote URL",
    "The Spark master, or a Spark server (sc://host:port). Default: local[*], without one core if there are more than "
    "two, for a local server.",
)
@pack_option
@option(
    "--metrics-port PORT",
    "Serve Prometheus metrics on this loopback port; 0 picks a free port.",
    type=click.IntRange(0, 65_535),
)
@install_option
@_state_option
def run_command(
    *,
    files: tuple[Path, ...],
    once: bool | None,
    master: str | None,
    metrics_port: int | None,
    home: Path | None,
    output: str,
) -> None:
    """Run pipelines until they end, fail permanently, or are stopped (Ctrl-C, or courser pipeline stop).

    At a terminal, a table shows progress and lag. Otherwise, and with -o jsonl, every change is printed as one JSON
    object per line. With -o json and -o csv, only the final status is printed.
    """
    definitions = [_load(path) for path in files]
    for definition in definitions:
        with _explained():
            refuse_endless_groups(definition)
    prepare_spark(*_extras(definitions), master=master or "local[*]")
    folder = home or pipelines_home()
    view = make_view(output, is_terminal=sys.stdout.isatty())
    with _explained(), ExitStack() as stack:
        where = master or default_master(definitions, os.environ, os.cpu_count() or 1)
        runner = Runner(
            definitions,
            home=folder,
            clock=SystemClock(),
            master=where,
            pack=chosen_pack(),
            once=once,
            show=view.show_batch,
            tell=say,
        )
        # First the checks that can fail at once.
        if metrics_port is not None:
            stack.callback(_serve_metrics(metrics_port, runner).close)
        stack.enter_context(runner)
        with _stopped_by_signals(runner), view:
            _watch(runner, view)
    if output in ("json", "csv"):
        emit_list(STATUS_LIST_FIELDS, map(record_of, runner.statuses), output)
    _explain_failed(runner, folder)


def _watch(runner: Runner, view: View) -> None:
    while not runner.wait(_LOOK_INTERVAL):
        view.update(runner.statuses)
    view.update(runner.statuses)


def _serve_metrics(port: int, runner: Runner) -> MetricsServer:
    clock = SystemClock()
    try:
        server = MetricsServer(port, lambda: render(runner.statuses, clock.now()))
    except OSError as error:
        reason = error.strerror or error
        raise Failure(f"cannot listen on {HOST}:{port}: {reason}", "choose another port with --metrics-port") from error
    say(f"metrics: http://{HOST}:{server.port}/metrics")
    return server


@contextmanager
def _stopped_by_signals(runner: Runner) -> Iterator[None]:
    def stop(number: int, frame: FrameType | None) -> None:
        del number, frame
        runner.stop()

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _explain_failed(runner: Runner, folder: Path) -> None:
    failed = runner.failed
    if not failed:
        return
    for supervisor in failed[:-1]:
        say(f"error: {supervisor.status.name}: {supervisor.status.error}")
    last = failed[-1]
    assert last.failure is not None
    hint = f"the full trace is in {StateFolder(folder, last.status.name).log_path}"
    raise Failure(
        f"{last.status.name}: {last.status.error}", hint, _CODES.get(kind_of(last.failure), ExitCode.FAILED)
    ) from last.failure


# --- check ---

_FINDING_FIELDS = fields("name, file/2, mode, source, sink, generation#/1, goes_on=begins, columns/1")


@local_command(
    "check",
    "courser pipeline check orders.toml",
    "courser pipeline check orders.toml --without-spark -o json",
    exits="Exit codes: 0 it would run, 1 it would not, 2 wrong usage or an invalid file, 3 cannot connect, "
    "4 login failed or permission denied, 5 topic not found.",
)
@_files_argument
@option("--without-spark", "Skip planning the query with Spark: faster, and needs no Java.")
@option("--master, --remote URL", "Where to plan: a Spark master or a Spark server.", default="local[1]")
def check_command(*, files: tuple[Path, ...], without_spark: bool, master: str, output: str) -> None:
    """Check whether pipelines would run: keys, server, topics, checkpoint, schema and SQL. Writes nothing."""
    definitions = [_load(path) for path in files]
    columns: list[list[str]] = [[] for _ in definitions]
    with _borrowed_spark("check", definitions, master, is_allowed=not without_spark) as session:
        with _explained("correct what the message names, then check again"):
            check_master(definitions, master)
            roots = [folder_at(definition.checkpoint, session) for definition in definitions]
            found = list(map(check_without_query, definitions, roots))
        if not without_spark:
            with spark_failures(None):
                columns = [plan_columns(session(), definition) for definition in definitions]
    emit_list(_FINDING_FIELDS, map(_finding_record, found, columns), output)


@contextmanager
def _borrowed_spark(
    name: str, definitions: Sequence[Definition], master: str, *, is_allowed: bool = True
) -> Iterator[Callable[[], "SparkSession"]]:
    """A function that starts Spark when it is called for the first time. The end of the block stops it."""
    with ExitStack() as stack:

        @cache
        def session() -> "SparkSession":
            if not is_allowed:
                place = next(one.checkpoint for one in definitions if is_address(one.checkpoint))
                raise Failure(
                    f"only Spark can read the checkpoint {place}", "leave out --without-spark", ExitCode.USAGE
                )
            prepare_spark(*_extras(definitions), master=master, may_install=False)
            from courser.spark.session import spark_session  # noqa: PLC0415 -- only if it is asked for

            # What Java prints and what Spark would put into the current folder goes away with this folder.
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix=f"courser-{name}-"))
            settings = {} if is_remote(master) else {"spark.sql.warehouse.dir": folder}
            for definition in definitions:
                settings |= definition.spark
            with spark_failures(None):
                started = spark_session(f"courser {name}", master, settings, log=Path(folder, "java.log"))
            stack.callback(started.stop)
            return started

        yield session


def _finding_record(findings: Findings, columns: list[str]) -> Record:
    begins = f"at {findings.starting}" if findings.is_fresh else "where it stopped"
    return {**asdict(findings), "goes_on": begins, "columns": columns}


# --- list, status, stop, reset ---


@local_command("list", "courser pipeline list", "courser pipeline list -o json", exits=_EXITS)
@_state_option
def list_command(*, home: Path | None, output: str) -> None:
    """List current and past pipelines on this machine."""
    records = (record_of(status) for status in all_statuses(home or pipelines_home()))
    emit_list(STATUS_LIST_FIELDS, records, output, empty="no pipeline has run on this machine yet")


@local_command("status", "courser pipeline status orders_to_lake -o json", exits=_EXITS)
@_name_argument
@_state_option
def status_command(*, name: str, home: Path | None, output: str) -> None:
    """Show the status of a pipeline: state, batch, rows, lag, bad rows, last error. NAME may be its file."""
    emit_thing(STATUS_FIELDS, record_of(_status_of(name, home or pipelines_home())), output)


@local_command("stop", "courser pipeline stop orders_to_lake", exits=_EXITS)
@_name_argument
@option("--timeout SECONDS", "How long to wait until it has stopped.", default=90.0)
@_state_option
def stop_command(*, name: str, timeout: float, home: Path | None, output: str) -> None:
    """Stop a running pipeline from any terminal, and wait until it has stopped. NAME may be its file."""
    folder = home or pipelines_home()
    status = _status_of(name, folder)
    if status.is_over or status.state_now == "killed":
        raise Failure(f"{status.name} is not running: it is {status.state_now}", "courser pipeline list shows all")
    state = StateFolder(folder, status.name)
    state.request_stop()
    deadline = time.monotonic() + timeout
    while not (status := state.read() or status).is_over and status.state_now != "killed":
        if time.monotonic() > deadline:
            raise Failure(
                f"{status.name} did not stop within {timeout:g} seconds", "check it with courser pipeline status"
            )
        time.sleep(_STOP_LOOK_INTERVAL)
    emit_deed(f"{status.name} is {status.state_now}", record_of(status), output)


@local_command(
    "reset",
    "courser pipeline reset orders.toml --to earliest --yes",
    "courser pipeline reset orders_to_lake --to 2026-11-01T00:00:00Z",
    'courser pipeline reset orders_to_lake --to \'{"0": 1200, "1": 987}\'',
    exits=_EXITS,
)
@_name_argument
@option(
    "--to WHERE",
    "earliest, latest, current (where the last batch ended), a time, or offsets by partition as JSON.",
    required=True,
)
@_state_option
@yes_option
def reset_command(*, name: str, to: str, home: Path | None, is_confirmed: bool, output: str) -> None:
    """Start a new checkpoint, to read from another position or after an incompatible change.

    The old checkpoint is kept. NAME may be the pipeline's file.
    """
    definition = _definition_of(name, home or pipelines_home())
    confirm(f"start a new checkpoint of {definition.name} at {to}", is_confirmed=is_confirmed)
    with _borrowed_spark("reset", [definition], "local[1]") as session, _explained():
        report = reset(folder_at(definition.checkpoint, session), definition, to)
    if report.warning is not None:
        say(f"warning: {report.warning}")
    sentence = f"the next run of {report.name} starts at {report.starting}; {report.kept} is kept"
    emit_deed(sentence, asdict(report), output)


# --- shared ---


def _load(path: Path) -> Definition:
    try:
        return load_definition(path)
    except ConfigurationRefused as refusal:
        for problem in refusal.problems[:-1]:
            say(f"error: {problem}")
        hint = f"correct {path}"
        raise Failure(refusal.problems[-1], hint, ExitCode.USAGE) from refusal


def _extras(definitions: Sequence[Definition]) -> list[str]:
    needs_lake = any(
        definition.sink.type in ("delta", "iceberg") or definition.decoding.format == "avro"
        for definition in definitions
    )
    return ["lake"] if needs_lake else []


@contextmanager
def _explained(advice: str = "courser pipeline check FILE says whether it would run") -> Iterator[None]:
    """Turn errors before a pipeline runs into one line."""
    try:
        yield
    except ConfigurationRefused as refusal:
        raise Failure("; ".join(refusal.problems), "correct the files", ExitCode.USAGE) from refusal
    except CourserError as error:
        code = _CODES.get(kind_of(error), ExitCode.FAILED)
        hint = _HINTS.get(code, advice)
        raise Failure(one_line(error), hint, code) from error


def _is_file(name: str) -> bool:
    return name.endswith(".toml") or "/" in name


def _status_of(name: str, home: Path) -> Status:
    wanted = _load(Path(name)).name if _is_file(name) else name
    status = StateFolder(home, wanted).read() if wanted == Path(wanted).name else None
    if status is None:
        alike = closest(wanted, [other.name for other in all_statuses(home)])
        hint = f'did you mean "{alike}"?' if alike else "courser pipeline list shows all pipelines"
        raise Failure(f'pipeline "{wanted}" has not run on this machine', hint, ExitCode.NOT_FOUND)
    return status


def _definition_of(name: str, home: Path) -> Definition:
    return _load(Path(name) if _is_file(name) else Path(_status_of(name, home).file))
