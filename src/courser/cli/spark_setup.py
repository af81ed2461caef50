"""What commands do before they run Spark: have its packages and a Java, and explain a failure in one line."""

import logging
import os
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
    """Install what is missing for Spark and for these extras of Courser (``lake``), saying so.

    Raises:
        Failure: It cannot be installed.
    """
    # The bridge to Java logs the trace of every call that Ctrl-C ends, and makes a handler for it if there is none.
    logging.getLogger().addHandler(logging.NullHandler())
    try:
        prepare(os.environ, say, extras=("spark", *extras))
    except (InstallationFailed, JavaMissing, PackageMissing) as error:
        raise Failure(str(error), "courser doctor shows what is there and what is missing") from error


def spark_log() -> Path:
    """Where Java's output and the traces of failures go."""
    return default_log(os.environ)


@contextmanager
def spark_failures(log: Path) -> Iterator[None]:
    """Turn what Spark raises into one line; the pages around it go to the log.

    Raises:
        Failure: In place of everything but failures of commands and interrupts.
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
        raise Failure(one_line(error), f"the whole trace is in {log}") from error
