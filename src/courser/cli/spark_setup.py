"""Prepare Spark for a command: install its packages and Java, and explain failures in one line."""

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from courser.cli.failures import Failure
from courser.cli.terminal import say
from courser.errors import CourserError
from courser.spark.failures import keep_trace, one_line
from courser.spark.java import JavaMissing
from courser.spark.preparing import InstallationFailed, prepare
from courser.spark.session import PackageMissing, default_log


def prepare_spark(*extras: str) -> None:
    """Install missing packages for Spark and for extras of Courser (``lake``), and show what is installed.

    Raises:
        Failure: the installation failed.
    """
    # py4j logs the trace of every call that Ctrl-C interrupts, and installs a handler if there is none.
    logging.getLogger().addHandler(logging.NullHandler())
    try:
        terminal = sys.stderr if sys.stderr.isatty() else None
        prepare(os.environ, say, extras=("spark", *extras), terminal=terminal)
    except (InstallationFailed, JavaMissing, PackageMissing) as error:
        raise Failure(str(error), "courser doctor shows what is missing") from error


def spark_log() -> Path:
    """The log file for Java's output and for traces of failures."""
    return default_log(os.environ)


@contextmanager
def spark_failures(log: Path) -> Iterator[None]:
    """Turn errors of Spark into one line; the full trace goes to the log.

    Raises:
        Failure: replaces every error except failures of commands and interrupts.
    """
    try:
        yield
    except (Failure, OSError):
        raise
    except CourserError as error:
        raise Failure(one_line(error), "courser doctor shows whether Spark is set up") from error
    except Exception as error:
        if not type(error).__module__.startswith(("pyspark", "py4j")):
            raise
        keep_trace(error, log, datetime.now(UTC))
        raise Failure(one_line(error), f"the full trace is in {log}") from error
