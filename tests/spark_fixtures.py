"""What tests with Spark share: one local session for the whole run, a server for each module, and a real cluster.

The session lives in this process, so all tests that use it have to run in one (``conftest`` sees to it), and tests
must not stop it. The cluster is a standalone master with two workers, as separate processes on loopback; its drivers
are processes of their own too, because a process has at most one session: ``Cluster.run``.

The workers are in file systems of their own, in which the driver's environment, its interpreter and this checkout are
empty folders: nothing but Spark and Java is installed there. They get Courser from an archive, as on a real cluster.
"""

import contextlib
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import textwrap
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Self

import pytest

from courser.spark.class_archive import archive_options, make_archive
from courser.spark.java import find_java, wheel_program
from courser.spark.packing import make_pack
from courser.spark.session import end_java, prepare_environment, spark_session
from tests.servers import ROOT, RunningServer, free_port

if TYPE_CHECKING:
    # Loaded by every run of pytest: pyspark is not, unless a test asks for it.
    from pyspark.sql import SparkSession

PATIENCE = 600.0
"""Seconds that a start or a driver may take before the test gives up: less than ``SPARK_TIMEOUT`` of conftest. On a
busy machine Java takes minutes to start."""

JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""A session of a test lives for a minute: the best machine code would be ready when it ends."""

PYTHON_PATIENCE = {"spark.python.authenticate.socketTimeout": "300s"}
"""Spark gives a Python process 15 seconds to start, and fails the query after that. A busy machine needs longer."""

TEST_SETTINGS = {
    **PYTHON_PATIENCE,
    "spark.driver.extraJavaOptions": JAVA_OPTIONS,
    "spark.sql.shuffle.partitions": "2",
}


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator["SparkSession"]:
    """The session of this process: two tasks at a time."""
    make_archive(os.environ, print)
    place = tmp_path_factory.mktemp("spark")
    settings = TEST_SETTINGS | {
        "spark.sql.warehouse.dir": str(place / "warehouse"),
        "spark.local.dir": str(place / "local"),
    }
    session = spark_session("tests", "local[2]", settings, log=place / "java.log")
    yield session
    session.stop()
    end_java()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """One server for the tests of a module: each takes topics of its own, and none kills it."""
    with RunningServer(tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator["Cluster"]:
    """A master and two workers. Who kills a worker takes a cluster of its own: ``running_cluster``."""
    with running_cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@dataclass
class Cluster:
    """A standalone Spark cluster on loopback."""

    directory: Path
    master: str
    """What ``--master`` takes."""
    environment: dict[str, str]
    pack: Path
    """What ``--pack`` takes."""
    workers: "list[subprocess.Popen[bytes]]" = field(default_factory=list)

    def start_driver(self, code: str, *arguments: str, python: Path | None = None) -> "subprocess.Popen[str]":
        """Run Python code as a driver of its own; ``spark`` is its session, ``arguments`` are in ``sys.argv[1:]``.

        The workers run the interpreter at the path ``python``; None: the one of the archive, which they get.
        """
        chosen = TEST_SETTINGS | _EXECUTORS
        chosen["spark.executor.extraJavaOptions"] = self.environment["SPARK_DAEMON_JAVA_OPTS"]
        if python is not None:
            chosen["spark.pyspark.python"] = str(python)
        pack = str(self.pack) if python is None else None
        program = _DRIVER.format(master=self.master, settings=chosen, pack=pack) + textwrap.dedent(code)
        return subprocess.Popen(
            [sys.executable, "-c", program, *arguments],
            cwd=self.directory,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, code: str, *arguments: str, python: Path | None = None) -> str:
        """Run Python code as a driver to its end; return what it printed."""
        driver = self.start_driver(code, *arguments, python=python)
        try:
            output, errors = driver.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            driver.kill()
            output, errors = driver.communicate()
            raise AssertionError(f"the driver does not end:\n{output}\n{errors}") from None
        assert driver.returncode == 0, f"the driver ended with {driver.returncode}:\n{output}\n{errors}"
        return output


_EXECUTORS = {
    "spark.executor.memory": "512m",
    "spark.executor.cores": "1",
    # On a busy machine one executor could do all of the work before the other one is there.
    "spark.cores.max": "2",
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "300s",
}
_DRIVER = """\
import sys
from courser.spark.session import spark_session
spark = spark_session("driver", {master!r}, {settings!r}, pack={pack!r})
"""


@contextlib.contextmanager
def running_cluster(directory: Path, workers: int = 2) -> Iterator[Cluster]:
    """Start one, wait until its workers are known to the master, and end its processes by their ids."""
    # Somebody who runs the tests may have chosen interpreters.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK_")} | {
        "SPARK_LOCAL_DIRS": str(directory / "local"),
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": JAVA_OPTIONS,
        # For drivers: workers see neither.
        "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}",
    }
    port = free_port()
    master = f"spark://127.0.0.1:{port}"
    java = find_java(environment)
    java.apply(environment)
    environment["SPARK_LOCAL_IP"] = "127.0.0.1"
    environment["SPARK_DAEMON_JAVA_OPTS"] += f" {archive_options(java, environment)}"
    running = Cluster(directory, master, environment, make_pack(directory / "environment.tar.gz").path)
    processes: list[subprocess.Popen[bytes]] = []
    try:
        on_loopback = ("--host", "127.0.0.1", "--webui-port", "0")
        main_class = "org.apache.spark.deploy.master.Master"
        processes.append(_start(running, "master", main_class, *on_loopback, "--port", str(port)))
        for number in range(workers):
            place = directory / f"worker-{number}"
            main_class = "org.apache.spark.deploy.worker.Worker"
            limits = ("--cores", "1", "--memory", "1g", "-d", str(place))
            worker = _start(running, place.name, main_class, *on_loopback, *limits, master)
            processes.append(worker)
            running.workers.append(worker)
        for number, process in enumerate(running.workers):
            _wait_for_words(process, directory / f"worker-{number}.log", "Successfully registered with master")
        yield running
    finally:
        for process in reversed(processes):
            process.terminate()
        for process in processes:
            process.wait(PATIENCE)


# --- a Spark server ---


class SparkServer:
    """Spark Connect in a process of its own, on loopback. As a context manager it runs until the end of the block."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """What ``--remote`` takes."""
        return f"sc://127.0.0.1:{self._port}"

    def start(self) -> Self:
        """Start it, also again, and wait until it answers."""
        environment = dict(os.environ) | {
            "SPARK_LOCAL_DIRS": str(self._directory / "local"),
            "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}",
        }
        java = prepare_environment(environment, "local[2]")
        settings = {
            **PYTHON_PATIENCE,
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": str(self._port),
            "spark.driver.extraJavaOptions": f"{JAVA_OPTIONS} {archive_options(java, environment)}",
            "spark.driver.host": "127.0.0.1",
            "spark.ui.enabled": "false",
            "spark.sql.warehouse.dir": str(self._directory / "warehouse"),
        }
        named = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
        self._directory.mkdir(parents=True, exist_ok=True)
        self._process = start_spark_program(
            "spark-submit",
            *("--master", "local[2]", "--driver-memory", "1g", *named),
            *("--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"),
            directory=self._directory,
            environment=environment,
            log=self._log,
        )
        _wait_for_words(self._process, self._log, "Spark Connect server started")
        return self

    def kill(self) -> None:
        """End it without notice."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(PATIENCE)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(PATIENCE)

    @property
    def _log(self) -> Path:
        return self._directory / "server.log"


_WITH_PARENT = """\
import ctypes, os, signal, sys
# The kernel ends this process when the one that started it is gone: tests that are interrupted leave no cluster behind.
ctypes.CDLL(None).prctl(1, signal.SIGTERM)
os.execv(sys.argv[1], sys.argv[1:])
"""


def _start(cluster: Cluster, name: str, main_class: str, *arguments: str) -> "subprocess.Popen[bytes]":
    log = cluster.directory / f"{name}.log"
    words = ("spark-class", main_class, *arguments)
    return start_spark_program(
        *words, directory=cluster.directory, environment=cluster.environment, log=log, is_blind=True
    )


def start_spark_program(
    *words: str, directory: Path, environment: dict[str, str], log: Path, is_blind: bool = False
) -> "subprocess.Popen[bytes]":
    """Start a program of ``bin`` that ends with this process; a blind one sees nothing else of this environment."""
    import pyspark  # noqa: PLC0415

    home = Path(pyspark.__file__).parent
    command = [str(home / "bin" / words[0]), *words[1:]]
    if is_blind:
        command = _blind(directory / f"{log.stem}.kept", home, command)
    with log.open("wb") as output:
        return subprocess.Popen(
            [sys.executable, "-c", _WITH_PARENT, *command],
            cwd=directory,
            env=environment | {"SPARK_HOME": str(home)},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )


def _blind(aside: Path, spark: Path, command: list[str]) -> list[str]:
    """The command, in a file system where nothing is left of the driver's Python but Spark, and the Java of a wheel.

    It takes root, or a system where users may have namespaces of their own.
    """
    unshare = shutil.which("unshare")
    assert unshare, "unshare (of util-linux) hides the driver's Python from the workers of a cluster"
    java = wheel_program()
    kept = {aside / "spark": spark} | ({} if java is None else {aside / "java": java.parents[1]})
    hidden = dict.fromkeys(map(str, (ROOT, sys.prefix, sysconfig.get_path("stdlib"))))
    lines = ["set -e"]
    for place, original in kept.items():
        place.mkdir(parents=True)
        lines.append(shlex.join(["mount", "--bind", str(original), str(place)]))
    # One may be in another one, and gone with that.
    lines += [f"[ ! -d {place} ] || mount -t tmpfs none {place}" for place in map(shlex.quote, hidden)]
    for place, original in kept.items():
        lines.append(shlex.join(["mkdir", "-p", str(original)]))
        lines.append(shlex.join(["mount", "--bind", str(place), str(original)]))
    lines.append('exec "$@"')
    user = [] if os.geteuid() == 0 else ["--map-root-user"]
    return [unshare, "--mount", *user, shutil.which("sh") or "/bin/sh", "-c", "\n".join(lines), "sh", *command]


def _wait_for_words(process: "subprocess.Popen[bytes]", log: Path, words: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while words not in log.read_text(errors="replace"):
        assert time.monotonic() < deadline, f"it does not get ready:\n{log.read_text(errors='replace')}"
        try:
            code = process.wait(0.05)
        except subprocess.TimeoutExpired:
            continue
        raise AssertionError(f"it ended with {code}:\n{log.read_text(errors='replace')}")
