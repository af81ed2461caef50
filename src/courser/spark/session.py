"""Starts Spark sessions with Courser's defaults: UTC, the right interpreters, small tasks, a quiet terminal.

Starting a session sets JAVA_HOME, PYSPARK_PYTHON and the like in this process's environment, because Spark's scripts
read them from there.

Spark runs Python in two places. The driver's machine plans reads and commits writes of a Python data source, on
PYSPARK_DRIVER_PYTHON; Spark finds such sources by themselves only there. Tasks would run on the same path, even if
PYSPARK_PYTHON names another one, which only tasks of the older interface (RDD) heed. Those of SQL heed
``spark.sql.execution.pyspark.python``, which Spark's documentation does not mention. So all three are set.
"""

import logging
import os
import signal
import sys
import threading
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from courser.errors import CourserError
from courser.spark.class_archive import archive_options
from courser.spark.connect import SparkMissing, is_client_only, is_remote, remote_session
from courser.spark.java import Java, cache_directory, find_java
from courser.spark.packing import SQL_PYTHON, pack_settings

if TYPE_CHECKING:
    from py4j.java_gateway import JavaGateway  # type: ignore[import-untyped]
    from pyspark import SparkConf
    from pyspark.sql import SparkSession

DEFAULTS: Mapping[str, str] = {
    # Message timestamps are UTC and must not be shown in the machine's local time zone.
    "spark.sql.session.timeZone": "UTC",
    # Spark's default of 200 costs a stateful stream ten seconds per batch.
    "spark.sql.shuffle.partitions": "4",
    # Other tools do not read the INT96 that Spark writes by default.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # Rows passed to Python at a time: 2 MB for messages of 1 KB. The default of 10,000 takes twice as long.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "2000",
    # Java reads the rows of a Python data source a third faster through a Unix domain socket than over TCP.
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.driver.memory": "1g",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
}
"""Settings of a session unless the caller overrides them."""

_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_PYTHON = "spark.pyspark.python"
"""The interpreter of tasks. Only ``spark-submit`` and ``spark_session`` heed it."""
_LOOPBACK: Mapping[str, str] = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}
"""On a single machine, nothing has to be reachable from outside."""


@dataclass(eq=False)
class PackageMissing(CourserError):
    """A package that Spark needs is not installed."""

    name: str
    extra: str

    def __str__(self) -> str:
        return f"{self.name} is not installed; run: pip install 'courser[{self.extra}]'"


@dataclass(eq=False)
class JavaFailed(CourserError):
    """Java exited before Spark was running."""

    reason: str
    log: Path

    def __str__(self) -> str:
        return f"could not start Spark: {self.reason}; see Java's output in {self.log}"


def spark_session(
    app_name: str = "courser",
    master: str = "local[*]",
    settings: Mapping[str, str] | None = None,
    *,
    pack: str | None = None,
    log: Path | None = None,
    keep_interrupts: bool = False,
) -> "SparkSession":
    """Start Spark, or return the session that is already running in this process.

    Args:
        app_name: The name on Spark's web pages.
        master: Where Spark runs: ``local[2]``, ``spark://host:7077``..., or ``sc://host:15002``, a Spark server.
        settings: Spark settings that override the defaults. ``spark.pyspark.python`` is the Python of the workers;
            without it, it is PYSPARK_PYTHON of the environment, or the path of this Python.
        pack: An archive of ``courser spark pack``, for workers without Courser. Ignored if there are no workers.
        log: File to append Java's output to; None: ``spark.log`` in the user's cache directory.
        keep_interrupts: Do not let pyspark handle Ctrl-C. Its handler cancels all jobs, which suits a notebook. In a
            command that waits for a job, the running call to Java would fail instead.

    Raises:
        PackageMissing: pyspark or pyarrow is not installed.
        SparkRefused: Courser does not work with the installed pyspark.
        JavaMissing: no Java was found that can run Spark.
        JavaFailed: Java did not start.
        SparkUnreachable: no Spark server answers.
        RefusedBySparkServer: a setting can only be set where the Spark server is started.
    """
    _check_packages()
    if is_remote(master):
        return remote_session(master, remote_settings(settings or {}), pack=pack)
    if is_client_only():
        raise SparkMissing
    from pyspark import SparkConf, SparkContext  # noqa: PLC0415 -- optional, and half a second
    from pyspark.logger import PySparkLogger  # noqa: PLC0415
    from pyspark.sql import SparkSession  # noqa: PLC0415

    running = SparkSession.getActiveSession()
    chosen = session_settings(app_name, master, settings or {}, pack)
    if running is None:
        java = prepare_environment(os.environ, master, chosen.get(_PYTHON))
        _use_archive(chosen, java)
        if not is_local(master):
            chosen.setdefault(SQL_PYTHON, os.environ["PYSPARK_PYTHON"])
    configuration = SparkConf().setAll(list(chosen.items()))
    if running is None and SparkContext._gateway is None:
        SparkContext._ensure_initialized(gateway=_launch(configuration, log or default_log(os.environ)))
    interrupts = signal.getsignal(signal.SIGINT)
    session: SparkSession = SparkSession.builder.config(conf=configuration).getOrCreate()
    if keep_interrupts and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, interrupts)
    # This logger prints every error as a page of JSON when it is created, before anyone can handle it.
    PySparkLogger.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
    return session


def default_log(environment: Mapping[str, str]) -> Path:
    """Where Java's output goes by default."""
    return cache_directory(environment) / "spark.log"


def _launch(configuration: "SparkConf", log: Path) -> "JavaGateway":
    """Start Java with its output in the log: its warnings are of interest to Spark developers only."""
    from pyspark.errors import PySparkRuntimeError  # noqa: PLC0415
    from pyspark.java_gateway import launch_gateway  # noqa: PLC0415

    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        begin = output.tell()
        try:
            return launch_gateway(configuration, {"stdout": output, "stderr": output})  # type: ignore[no-untyped-call]
        except PySparkRuntimeError as error:
            said = log.read_bytes()[begin:].decode(errors="replace").strip().splitlines()
            raise JavaFailed("; ".join(said[:3]) or "Java printed nothing", log) from error


def session_settings(
    app_name: str, master: str, settings: Mapping[str, str], pack: str | None = None
) -> dict[str, str]:
    """All settings of a session."""
    return {
        "spark.app.name": app_name,
        "spark.master": master,
        **DEFAULTS,
        **(_LOOPBACK if is_on_loopback(master) else {}),
        **(pack_settings(pack, master) if pack and not is_local(master) else {}),
        **settings,
    }


def remote_settings(settings: Mapping[str, str]) -> dict[str, str]:
    """Settings of a session on a Spark server, which has all others from its own start."""
    return {name: value for name, value in DEFAULTS.items() if name.startswith("spark.sql.")} | dict(settings)


def _use_archive(settings: dict[str, str], java: Java) -> None:
    """Use the class archive if there is one and the settings do not mention another."""
    given = settings.get(_JAVA_OPTIONS, "")
    if "Archive" not in given and (options := archive_options(java, os.environ)):
        settings[_JAVA_OPTIONS] = f"{given} {options}".strip()


def end_java() -> None:
    """Stop this process's Java and wait for it. Left alone, it exits some time after the process."""
    from pyspark import SparkContext  # noqa: PLC0415

    gateway = SparkContext._gateway
    if gateway is None:
        return
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait()
    SparkContext._gateway = None
    SparkContext._jvm = None


def prepare_environment(environment: MutableMapping[str, str], master: str, python: str | None = None) -> Java:
    """Set the variables that tell Spark which Java and Python to use. Returns the Java.

    ``python`` is the path on the workers; None: PYSPARK_PYTHON, or the path of this one.

    Raises:
        JavaMissing: no Java was found that can run Spark.
    """
    java = find_java(environment)
    java.apply(environment)
    if is_on_loopback(master):
        environment["SPARK_LOCAL_IP"] = "127.0.0.1"
    # Spark's default is the python3 on the PATH, which may lack this environment's packages.
    if is_local(master):
        environment["PYSPARK_PYTHON"] = sys.executable
    elif python:
        environment["PYSPARK_PYTHON"] = python
    else:
        environment.setdefault("PYSPARK_PYTHON", sys.executable)
    environment["PYSPARK_DRIVER_PYTHON"] = sys.executable
    return java


def is_local(master: str) -> bool:
    """Whether tasks run on the driver's machine, started by the driver itself."""
    return master == "local" or master.startswith("local[")


def is_on_loopback(master: str) -> bool:
    """Whether everything runs on this machine."""
    return master.startswith(("local", "spark://127.0.0.1:", "spark://localhost:"))


def _check_packages() -> None:
    for name in ("pyspark", "pyarrow"):
        _import(name)
    import courser.spark.releases  # noqa: F401, PLC0415 -- refuses releases on which Courser does not work


def _import(name: str) -> None:
    try:
        __import__(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        raise PackageMissing(name, "spark") from error
