"""A Spark session as Courser needs it: UTC, this interpreter in the workers, small tasks, a quiet terminal.

Starting one sets JAVA_HOME, PYSPARK_PYTHON and the like in the environment of this process, because Spark's scripts
and workers read them there.
"""

import logging
import os
import signal
import sys
import threading
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import TYPE_CHECKING

from courser.errors import CourserError
from courser.spark.class_archive import archive_options
from courser.spark.java import Java, cache_directory, find_java

if TYPE_CHECKING:
    from py4j.java_gateway import JavaGateway  # type: ignore[import-untyped]
    from pyspark import SparkConf
    from pyspark.sql import SparkSession

DEFAULTS: Mapping[str, str] = {
    # Times of messages are UTC: a DataFrame must not show them in whatever zone this machine is in.
    "spark.sql.session.timeZone": "UTC",
    # Spark's own 200 cost a stateful stream ten seconds in each batch.
    "spark.sql.shuffle.partitions": "4",
    # What other tools read: they refuse the INT96 that Spark writes otherwise.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # Rows handed to Python at once: 2 MB for messages of 1 KB. The default of 10,000 takes twice the time.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "2000",
    # Java reads the rows of a Python source a third faster from such a socket than over TCP.
    "spark.python.unix.domain.socket.enabled": "true",
    # Without it Spark fails a reader that offers to look at filters.
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.driver.memory": "1g",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
}
"""What a session gets that was told nothing else."""

_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_LOOPBACK: Mapping[str, str] = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}
"""On one machine nothing has to be reachable from outside."""


class PackageMissing(CourserError):
    """A package that Spark needs is not installed."""

    def __init__(self, name: str, extra: str) -> None:
        super().__init__(name, extra)
        self.name = name
        self.extra = extra

    def __str__(self) -> str:
        return f"{self.name} is not installed: pip install 'courser[{self.extra}]'"


class JavaFailed(CourserError):
    """Java ended before Spark was up."""

    def __init__(self, reason: str, log: Path) -> None:
        super().__init__(reason, log)
        self.reason = reason
        self.log = log

    def __str__(self) -> str:
        return f"Spark does not start: {self.reason}; all that Java said is in {self.log}"


def spark_session(
    app_name: str = "courser",
    master: str = "local[*]",
    settings: Mapping[str, str] | None = None,
    *,
    log: Path | None = None,
    keep_interrupts: bool = False,
) -> "SparkSession":
    """Start Spark, or take the session that runs in this process already.

    Args:
        app_name: How Spark's own pages call it.
        master: Where it runs: ``local[2]``, ``spark://host:7077``...
        settings: Of Spark, over the defaults.
        log: Where Java's output goes, appended; None: ``spark.log`` in the user's cache directory.
        keep_interrupts: Leave Ctrl-C as it is. In a notebook it is good that pyspark cancels all jobs then; a command
            that waits for one would get an error of the call to Java that this happens in.

    Raises:
        PackageMissing: pyspark or pyarrow.
        JavaMissing: There is no Java that runs Spark.
        JavaFailed: There is one, and it did not start.
    """
    for name in ("pyspark", "pyarrow"):
        _import(name)
    from pyspark import SparkConf, SparkContext  # noqa: PLC0415 -- optional, and half a second
    from pyspark.logger import PySparkLogger  # noqa: PLC0415
    from pyspark.sql import SparkSession  # noqa: PLC0415

    running = SparkSession.getActiveSession()
    chosen = session_settings(app_name, master, settings or {})
    if running is None:
        java = prepare_environment(os.environ, master)
        _use_archive(chosen, java)
    configuration = SparkConf().setAll(list(chosen.items()))
    if running is None and SparkContext._gateway is None:
        SparkContext._ensure_initialized(gateway=_launch(configuration, log or default_log(os.environ)))
    interrupts = signal.getsignal(signal.SIGINT)
    session: SparkSession = SparkSession.builder.config(conf=configuration).getOrCreate()
    if keep_interrupts and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, interrupts)
    # It prints each error as a page of JSON at the moment it is made, before anybody could have handled it.
    PySparkLogger.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
    return session


def default_log(environment: Mapping[str, str]) -> Path:
    """Where Java's output goes if nobody says where."""
    return cache_directory(environment) / "spark.log"


def _launch(configuration: "SparkConf", log: Path) -> "JavaGateway":
    """Start Java. What it prints goes to the log: its warnings are for those who build Spark."""
    from pyspark.errors import PySparkRuntimeError  # noqa: PLC0415
    from pyspark.java_gateway import launch_gateway  # noqa: PLC0415

    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        begin = output.tell()
        try:
            return launch_gateway(configuration, {"stdout": output, "stderr": output})  # type: ignore[no-untyped-call]
        except PySparkRuntimeError as error:
            said = log.read_bytes()[begin:].decode(errors="replace").strip().splitlines()
            raise JavaFailed("; ".join(said[:3]) or "it said nothing", log) from error


def session_settings(app_name: str, master: str, settings: Mapping[str, str]) -> dict[str, str]:
    """All that a session is told."""
    return {
        "spark.app.name": app_name,
        "spark.master": master,
        **DEFAULTS,
        **(_LOOPBACK if is_on_loopback(master) else {}),
        **settings,
    }


def _use_archive(settings: dict[str, str], java: Java) -> None:
    """Classes from the archive, if one was made and nobody says anything about archives."""
    given = settings.get(_JAVA_OPTIONS, "")
    if "Archive" not in given and (options := archive_options(java, os.environ)):
        settings[_JAVA_OPTIONS] = f"{given} {options}".strip()


def end_java() -> None:
    """End the Java of this process and wait for it. By itself it ends some time after the process."""
    from pyspark import SparkContext  # noqa: PLC0415

    gateway = SparkContext._gateway
    if gateway is None:
        return
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait()
    SparkContext._gateway = None
    SparkContext._jvm = None


def prepare_environment(environment: MutableMapping[str, str], master: str) -> Java:
    """Name the Java and the Python that Spark has to use, as far as nobody else has. Returns the Java.

    Raises:
        JavaMissing: There is no Java that runs Spark.
    """
    java = find_java(environment)
    java.apply(environment)
    if is_on_loopback(master):
        environment["SPARK_LOCAL_IP"] = "127.0.0.1"
    if is_local(master):
        # Whatever python3 is on the path: it knows neither this environment nor its packages.
        environment["PYSPARK_PYTHON"] = sys.executable
    environment.setdefault("PYSPARK_PYTHON", sys.executable)
    environment["PYSPARK_DRIVER_PYTHON"] = sys.executable
    return java


def is_local(master: str) -> bool:
    """Whether the tasks run in the driver's own process."""
    return master == "local" or master.startswith("local[")


def is_on_loopback(master: str) -> bool:
    """Whether everything is on this machine and nothing has to be reached from another one."""
    return master.startswith(("local", "spark://127.0.0.1:", "spark://localhost:"))


def _import(name: str) -> None:
    try:
        __import__(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        raise PackageMissing(name, "spark") from error
