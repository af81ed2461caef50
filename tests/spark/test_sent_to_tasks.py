"""What the Python of a task says that cannot take what the driver sends it."""

import pickle
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark import cloudpickle
from pyspark.sql.types import StructType

from courser import __version__
from courser.spark.batch_reader import BatchReader
from courser.spark.data_source import CourserSource
from courser.spark.failures import one_line
from courser.spark.writer import CourserStreamWriter
from tests.servers import ROOT

ZIPS = sorted(map(str, Path(pyspark.__path__[0], "python", "lib").glob("*.zip")))
TASK = """
import pickle, sys
sys.path += sys.argv[1:]
pickle.loads(sys.stdin.buffer.read())
print("received")
"""


def receive(*folders: str) -> str:
    """The last line of a Python in which nothing is installed, but which finds modules in these folders."""
    sent = cloudpickle.dumps(CourserSource({"topic": "orders"}))  # type: ignore[no-untyped-call]
    command = [sys.executable, "-I", "-S", "-c", TASK, *ZIPS, *folders]
    done = subprocess.run(command, input=sent, capture_output=True, check=False)
    text: str = (done.stdout + done.stderr).decode()
    return text.strip().splitlines()[-1]


def start_of(line: str) -> str:
    version = ".".join(map(str, sys.version_info[:3]))
    begin = f"ImportError: the Python {version} that Spark runs on {socket.gethostname()}, {sys.executable}, "
    assert line.startswith(begin)
    assert "courser spark pack" in line
    return line.removeprefix(begin).partition(";")[0]


def test_a_complete_one_receives_it() -> None:
    assert receive(*sys.path) == "received"


def test_one_without_courser_says_so() -> None:
    assert start_of(receive()) == "has no courser"


def test_one_with_another_version_names_both(tmp_path: Path) -> None:
    (tmp_path / "courser.py").write_text('__version__ = "0.0.9"\n')
    assert start_of(receive(str(tmp_path))) == f"has Courser 0.0.9, but the driver has {__version__}"


def test_one_without_pyarrow_says_so() -> None:
    assert start_of(receive(str(ROOT / "src"))) == "has no pyarrow"


@pytest.mark.parametrize("kind", [BatchReader, CourserStreamWriter])
def test_readers_and_writers_arrive_as_they_were(kind: type) -> None:
    """With pickle of Python too."""
    sent: Any = object.__new__(kind)
    sent.__dict__.update(schema=StructType(), other=[1, 2])
    received = pickle.loads(pickle.dumps(sent))
    assert type(received) is kind
    assert received.__dict__ == sent.__dict__


LOST = (
    "Job aborted due to stage failure: Task 0 in stage 3.0 failed 4 times, most recent failure: Lost task 0.3 in stage "
    "3.0 (TID 9) (10.0.0.2 executor 1): "
)
NO_PYTHON = f"""{LOST}java.io.IOException: Cannot run program "/opt/x/bin/python": error=2, No such file or directory
\tat java.base/java.lang.ProcessBuilder.start(ProcessBuilder.java:1143)"""
NO_PYARROW = """An exception was thrown from the Python worker. Please see the stack trace below.
Traceback (most recent call last):
ModuleNotFoundError: No module named 'pyarrow'"""
OTHER_PYTHON = f"""{LOST}org.apache.spark.api.python.PythonException: Traceback (most recent call last):
pyspark.errors.exceptions.base.PySparkRuntimeError: [PYTHON_VERSION_MISMATCH] Python in worker has different version: \
3.12 than that in driver: 3.11, PySpark cannot run with different minor versions."""


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (NO_PYTHON, "the worker 10.0.0.2 cannot run /opt/x/bin/python: No such file or directory; "),
        (NO_PYARROW, "the Python of a worker has no pyarrow; "),
        (OTHER_PYTHON, "the worker 10.0.0.2 runs Python 3.12, but the driver runs Python 3.11, "),
    ],
)
def test_a_python_that_spark_cannot_use_is_said_with_its_machine(text: str, says: str) -> None:
    line = one_line(RuntimeError(text))
    assert line.startswith(says)
    assert "courser spark pack" in line
