"""What differs between releases of Spark: streams that must remember, and releases that are refused."""

import logging
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from courser.spark.releases import (
    HAS_ADMISSION_CONTROL,
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SparkRefused,
    check_release,
    release_of,
)
from courser.spark.remembering_reader import RememberingReader, reader_for_this_spark
from courser.spark.stream_reader import StreamReader
from tests.servers import ROOT


@pytest.mark.parametrize("version", ["4.0.0", "4.0.5", "4.3.0.dev1", "4.10.0"])
def test_releases_that_are_known(version: str) -> None:
    check_release(version, "/there")
    assert release_of(version)[0] == 4


@pytest.mark.parametrize("version", ["3.5.6", "5.0.0.dev2"])
def test_other_releases_are_refused_with_a_sentence(version: str) -> None:
    with pytest.raises(SparkRefused, match=f"Spark 4.0 to 4.3, but this is Spark {version} .in /there.; use"):
        check_release(version, "/there")


def test_all_tests_are_about_the_release_that_is_installed() -> None:
    import pyspark  # noqa: PLC0415

    assert (release_of(pyspark.__version__) >= (4, 2)) is HAS_ADMISSION_CONTROL


# --- streams that must remember -----------------------------------------------------------------------


class Counting(StreamReader):
    """A topic that grows by one message with every look."""

    def __init__(self) -> None:
        self.head = 100
        self.asked: list[tuple[int, ReadLimit]] = []

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        self.head += 1
        return {"at": self.head}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxRows(7)

    def latestOffset(self, start: Mapping[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        self.asked.append((start["at"], limit))
        self.head += 1
        return {"at": self.head}

    def partitions(self, start: object, end: object) -> list[Any]:
        return []


def test_a_stream_starts_where_it_was_said_first() -> None:
    """Spark asks for the end of the first micro-batch before its start."""
    reader = RememberingReader(Counting(), is_limited=False)
    assert reader.latestOffset() == {"at": 102}
    assert reader.initialOffset() == {"at": 101}


def test_a_stream_goes_on_where_the_last_micro_batch_ends() -> None:
    counting = Counting()
    reader = RememberingReader(counting, is_limited=False)
    # What Spark does after a restart: it names the end of the last batch in its checkpoint.
    reader.partitions({"at": 50}, {"at": 50})
    reader.latestOffset()
    reader.partitions({"at": 50}, {"at": 60})
    reader.latestOffset()
    assert [start for start, _ in counting.asked] == [50, 60]
    assert all(isinstance(limit, ReadAllAvailable) for _, limit in counting.asked)


def test_limits_hold_only_if_they_are_given_and_the_user_is_warned(caplog: pytest.LogCaptureFixture) -> None:
    counting = Counting()
    reader = RememberingReader(counting, is_limited=True)
    with caplog.at_level(logging.WARNING):
        reader.latestOffset()
        reader.latestOffset()
    assert all(isinstance(limit, ReadMaxRows) for _, limit in counting.asked)
    (record,) = caplog.records
    assert "availableNow" in record.getMessage()


@pytest.mark.parametrize(("given", "is_limited"), [({}, False), ({"maxoffsetspertrigger": "5"}, True)])
def test_only_the_readers_of_old_releases_have_to_remember(given: dict[str, str], is_limited: bool) -> None:
    counting = Counting()
    reader = reader_for_this_spark(counting, given)
    if HAS_ADMISSION_CONTROL:
        assert reader is counting
    else:
        assert isinstance(reader, RememberingReader)
        assert reader._is_limited is is_limited


# --- the format where Courser cannot work -------------------------------------------------------------

_USE = """
import sys
sys.path[:0] = {path!r}
{trouble}
import pyspark_courser
from pyspark.sql.datasource import DataSource
source = pyspark_courser.DefaultSource
assert issubclass(source, DataSource) and source.name() == "courser"
try:
    source({{}})
except ImportError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("trouble", "words"),
    [
        (
            "import pyspark; pyspark.__version__ = '5.0.0'",
            "Courser works with Spark 4.0 to 4.3, but this is Spark 5.0.0",
        ),
        (
            "import pyspark.sql.datasource; sys.version_info = (3, 10, 1)",
            "Courser needs Python 3.11 or newer, but Spark runs ",
        ),
        ("sys.modules['msgspec'] = None", "Courser is not complete in the Python that Spark runs, "),
    ],
)
def test_the_format_is_there_and_says_why_it_cannot_be_used(trouble: str, words: str, tmp_path: Path) -> None:
    code = _USE.format(path=[str(ROOT / "src")], trouble=trouble)
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert answer.stdout.startswith(words)


def test_spark_without_python_data_sources_is_refused_where_somebody_imports_the_format(tmp_path: Path) -> None:
    code = (
        f"import sys; sys.path[:0] = [{str(ROOT / 'src')!r}]; import pyspark; pyspark.__version__ = '3.5.6'\n"
        "sys.modules['pyspark.sql.datasource'] = None\nimport pyspark_courser"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path)
    last = answer.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError: Courser works with Spark 4.0 to 4.3, but this is Spark 3.5.6 (in ")
    assert "During handling" not in answer.stderr
