"""What commands that run Spark share: its installation, options for sources and targets, and failures."""

import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from courser.cli.connecting import find_target
from courser.cli.explaining import explain_login
from courser.cli.failures import ExitCode, Failure
from courser.cli.lazy import completed_by
from courser.cli.options import add_parameter, examples, make_option, option, output_parameter
from courser.cli.server_options import server_parameters
from courser.cli.terminal import confirmed, say
from courser.client.contexts import Resolved
from courser.client.targets import Target
from courser.errors import (
    AuthenticationFailed,
    ConnectionFailed,
    CourserError,
    NotAllowed,
    NotFound,
    TargetRefused,
)
from courser.pipelines.source_frames import connection_url
from courser.spark.addresses import AddressGiven, check_local
from courser.spark.connect import SparkMissing, SparkUnreachable
from courser.spark.errors import TargetMissing
from courser.spark.failures import keep_trace, one_line
from courser.spark.installing import InstallationFailed, NotInstalled, Unsuitable, never, prepare
from courser.spark.java import JavaMissing
from courser.spark.option_kinds import topic_text
from courser.spark.session import PackageMissing, default_log

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JOB_EXITS = (
    "Exit codes: 0 done, 1 failed (the log named in the hint has the trace), 2 wrong usage, 3 cannot connect, "
    "4 login failed or permission denied, 5 not found."
)
_REFUSED = frozenset(
    {"OptionRefused", "BackfillRefused", "ManifestRefused", "BookRefused", "TargetInUse", "AddressGiven"}
)
"""Class names of errors that mean wrong usage. Names, because the help text must not import the modules."""
_MISSING = {
    "SourceMissing": "courser ls lists all streams and topics",
    "NoSuchTopic": "courser usage without --topic lists all topics",
    "NotADataDirectory": "check the path",
    "NothingToAudit": "check the path",
    "FileMissing": "check the path",
}
"""Hints by class name of errors that mean that something does not exist."""
_CONNECTION = (ConnectionFailed, AuthenticationFailed, NotAllowed, NotFound)

_Function = TypeVar("_Function", bound=Callable[..., object])


_INSTALL = "courser.install"
"""The key of the context under which ``--install`` is noted."""


def _install_parameter() -> click.Option:
    return make_option(
        "--install",
        "Install missing packages, and a Java if there is none, without asking.",
        expose_value=False,
        callback=_note_install,
    )


def _note_install(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    del param
    ctx.meta[_INSTALL] = value


def install_option(function: _Function) -> _Function:
    """Add the option ``--install``, which ``prepare_spark`` looks for."""
    return add_parameter(function, _install_parameter())


class LocalPath(click.Path):
    """A path of this machine. Without this, an address would become a folder that is named like it."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Refuse addresses."""
        try:
            check_local(value, f'"{value}"')
        except AddressGiven as error:
            self.fail(str(error), param, ctx)
        return super().convert(value, param, ctx)


_PACK = "courser.pack"
"""The key of the context under which ``--pack`` is noted."""


def _pack_parameter() -> click.Option:
    return make_option(
        "--pack FILE",
        "An archive of courser spark pack, for workers of the master without Courser.",
        type=LocalPath(path_type=Path, dir_okay=False, exists=True),
        expose_value=False,
        callback=_note_pack,
    )


def _note_pack(ctx: click.Context, param: click.Parameter, value: Path | None) -> None:
    del param
    ctx.meta[_PACK] = None if value is None else str(value.absolute())


def pack_option(function: _Function) -> _Function:
    """Add the option ``--pack``: ``chosen_pack``."""
    return add_parameter(function, _pack_parameter())


def chosen_pack() -> str | None:
    """The archive for workers that the user named."""
    return click.get_current_context().meta.get(_PACK)


def job_command(
    name: str, *lines: str, exits: str = JOB_EXITS, needs_server: bool = True
) -> Callable[[Callable[..., object]], click.Command]:
    """A command that runs a job; ``lines`` are examples."""

    def decorate(function: Callable[..., object]) -> click.Command:
        command = click.command(name, epilog=examples(*lines, exits=exits))(function)
        master = make_option(
            "--master, --remote URL",
            "The Spark master, or a Spark server (sc://host:port). Its workers must have access to the same files.",
            default="local[*]",
        )
        command.params += [master, _pack_parameter(), _install_parameter(), output_parameter()]
        if needs_server:
            command.params += server_parameters(hidden=True)
        return command

    return decorate


def topic_argument(name: str = "topic", metavar: str = "STREAM/TOPIC") -> Callable[[_Function], _Function]:
    """An argument of the form STREAM/TOPIC."""
    return click.argument(name, metavar=metavar, callback=_two_names, shell_complete=completed_by("complete_topic"))


def _two_names(ctx: click.Context, param: click.Parameter, value: str) -> tuple[str, str] | None:
    del param
    if ctx.resilient_parsing:
        return None
    stream, _, topic = value.partition("/")
    if not stream or not topic:
        raise click.UsageError(f'"{value}" is not of the form STREAM/TOPIC', ctx)
    return stream, topic


books_option = option(
    "--books DIR",
    "The directory for the progress of jobs. Default: COURSER_STATE_HOME, else ~/.local/state/courser/jobs.",
    type=LocalPath(path_type=Path, file_okay=False),
)
_READ_OPTIONS = (
    option("--allow-loss", "Skip deleted and damaged messages instead of stopping."),
    option("--to WHERE", "Where to end, exclusive. Default: after the newest message.", "end"),
    option(
        "--from WHERE",
        'earliest, a time such as 2026-11-01T00:00:00Z, or offsets by partition: {"0": 1200, "1": 987}.',
        "start",
    ),
    option(
        "--archive CONFIG",
        "Read the archive that this configuration file of a server names, instead of a server.",
        type=LocalPath(path_type=Path, dir_okay=False, exists=True),
    ),
    option(
        "--data DIR",
        "Read the segment files of this data directory instead of a server.",
        type=LocalPath(path_type=Path, file_okay=False, exists=True),
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """What a job reads of a topic, and from where."""

    data: Path | None
    archive: Path | None
    start: str | None
    end: str | None
    allow_loss: bool

    def options(self, place: tuple[str, str]) -> dict[str, str]:
        """The options of the data source for a topic. Raises ``Failure``."""
        stream, topic = place
        options = {"stream": stream, "topic": topic_text(topic)}
        if self.data is not None and self.archive is not None:
            raise Failure("--data and --archive exclude each other", "pass only one of them", ExitCode.USAGE)
        if self.data is not None:
            options |= {"path": str(self.data.absolute()), "source": "segments"}
        elif self.archive is not None:
            options |= {"archiveConfig": str(self.archive.absolute()), "source": "archive"}
        else:
            options |= server_options_of()
        options |= _bound("starting", self.start) | _bound("ending", self.end)
        return options | ({"failOnDataLoss": "false", "onCorrupt": "skip"} if self.allow_loss else {})


def reads(function: Callable[..., object]) -> Callable[..., object]:
    """Add the options that say what a job reads. The command gets them as one value, ``reading``."""

    @wraps(function)
    def read(**given: Any) -> object:
        reading = SourceOptions(**{entry.name: given.pop(entry.name) for entry in fields(SourceOptions)})
        return function(reading=reading, **given)

    for add in _READ_OPTIONS:
        add(read)
    return read


def _bound(side: str, text: str | None) -> dict[str, str]:
    if text is None:
        return {}
    is_offset = text in ("earliest", "latest") or text.lstrip().startswith("{")
    return {f"{side}Offsets": text} if is_offset else {f"{side}Timestamp": text}


def write_options(place: tuple[str, str], partitions: int | None) -> dict[str, str]:
    """Options for writing to the data source."""
    stream, topic = place
    made = {} if partitions is None else {"createTopic": str(partitions)}
    return {"stream": stream, "topic": topic_text(topic), **made, **server_options_of()}


def server_options_of() -> dict[str, str]:
    """Options for the selected server. Spark masks options of these names when it shows plans."""
    return {"url": connection_url(find_target().target)}


def prepare_spark(*extras: str, master: str = "local[*]", may_install: bool = True) -> None:
    """Install missing packages for Spark and for extras of Courser (``lake``) if the user agrees, and show what.

    Raises:
        Failure: something is missing, or of a version that does not do, or the installation failed.
    """
    # py4j logs the trace of every call that Ctrl-C interrupts, and installs a handler if there is none.
    logging.getLogger().addHandler(logging.NullHandler())
    try:
        terminal = sys.stderr if sys.stderr.isatty() else None
        agrees = _agrees_to_install if may_install else never
        prepare(os.environ, say, extras=("spark", *extras), master=master, agrees=agrees, terminal=terminal)
    except NotInstalled as error:
        hint = "run that command, or pass --install" if may_install else "this command installs nothing"
        raise Failure(str(error), hint) from error
    except Unsuitable as error:
        raise Failure(str(error), "Courser never changes a version that is installed") from error
    except SparkMissing as error:
        raise Failure(str(error), "with a Spark server, pass --remote sc://host:port") from error
    except (InstallationFailed, JavaMissing, PackageMissing) as error:
        raise Failure(str(error), "courser doctor shows what is missing") from error


def _agrees_to_install(question: str) -> bool:
    return click.get_current_context().meta.get(_INSTALL, False) or confirmed(question)


def spark_log() -> Path:
    """The log file for Java's output and for traces of failures."""
    return default_log(os.environ)


@contextmanager
def spark_failures(log: Path | None) -> Iterator[None]:
    """Turn errors of Spark into one line; the full trace goes to the log if there is one.

    Raises:
        Failure: replaces every error except failures of commands and interrupts.
    """
    try:
        yield
    except (Failure, OSError):
        raise
    except SparkUnreachable as error:
        raise Failure(str(error), "check the address that --remote names", ExitCode.CANNOT_CONNECT) from error
    except CourserError as error:
        raise Failure(one_line(error), "courser doctor shows whether Spark is set up") from error
    except Exception as error:
        if not type(error).__module__.startswith(("pyspark", "py4j")):
            raise
        if log is None:
            raise Failure(one_line(error), "courser pipeline run writes the full trace to a log") from error
        keep_trace(error, log, datetime.now(UTC))
        raise Failure(one_line(error), f"the full trace is in {log}") from error


@contextmanager
def running_spark(name: str, master: str) -> Iterator["SparkSession"]:
    """A Spark session for one job; each failure becomes one line. A session that already runs is not stopped.

    Raises:
        Failure: explains any error.
    """
    prepare_spark(master=master)
    # The import takes half a second, and needs the packages installed above.
    from pyspark.sql import SparkSession  # noqa: PLC0415

    from courser.spark.session import spark_session  # noqa: PLC0415

    log = spark_log()
    is_ours = SparkSession.getActiveSession() is None
    with job_failures(), spark_failures(log):
        spark = spark_session(f"courser {name}", master, pack=chosen_pack(), log=log, keep_interrupts=True)
        try:
            yield spark
        finally:
            if is_ours:
                spark.stop()


@contextmanager
def job_failures() -> Iterator[None]:
    """Turn errors of jobs in the driver into failures with the right exit code."""
    try:
        yield
    except Failure as failure:
        cause = failure.__cause__
        if isinstance(cause, CourserError):
            raise _explained(cause, failure) from cause
        raise
    except FileNotFoundError as error:
        raise Failure(str(error), "check the name", ExitCode.NOT_FOUND) from error
    except OSError as error:
        hint = "check the permissions of the directory, and the free space of the disk"
        raise Failure(f"{error.filename or 'a file'}: {error.strerror or error}", hint) from error


def _explained(cause: CourserError, failure: Failure) -> Failure:
    name = type(cause).__name__
    if isinstance(cause, _CONNECTION):
        try:
            return explain_login(cause, find_target())
        except TargetRefused:
            return explain_login(cause, Resolved(Target(), "nowhere"))
    if isinstance(cause, TargetMissing):
        hint = "pass --create PARTITIONS to create it"
        return Failure(f"topic {cause.name} does not exist", hint, ExitCode.NOT_FOUND)
    if name in _MISSING:
        return Failure(str(cause), _MISSING[name], ExitCode.NOT_FOUND)
    if name in _REFUSED:
        usage = f"for usage, run {click.get_current_context().command_path} --help"
        return Failure(str(cause), usage, ExitCode.USAGE)
    return failure


def books_of(books: Path | None) -> Path:
    """The directory for the progress of jobs."""
    from courser.jobs.job_book import default_books  # noqa: PLC0415 -- Spark is installed by now

    return books or default_books(os.environ)


def rate_text(size: int, seconds: float) -> str:
    """How fast it was."""
    return f"{seconds:.1f} s ({size / 1e6 / max(seconds, 1e-6):.1f} MB/s)"
