"""The examples run as they are, against a real server."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import duckdb
import pyspark
import pytest

import courser
from courser.spark.session import prepare_environment
from tests.servers import ROOT, RunningServer
from tests.spark_fixtures import JAVA_OPTIONS

EXAMPLES = ROOT / "examples"
PATIENCE = 600.0
"""Seconds: below the limit of a test, so that what was said is shown."""


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with RunningServer(tmp_path_factory.mktemp("server")) as server:
        yield f"iggy://iggy:iggy@{server.address}"


def run(command: list[str], place: Path, variables: Mapping[str, str]) -> str:
    done = subprocess.run(
        command,
        cwd=place,
        env={**os.environ, **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def test_the_engine(tmp_path: Path) -> None:
    said = run([sys.executable, str(EXAMPLES / "engine.py")], tmp_path, {"TMPDIR": str(tmp_path)})
    for word in ("written", "bounded", "synced", "killed", "the body hash does not match", "courser inspect"):
        assert word in said
    acknowledged, recovered, more, readable = (
        int(re.search(pattern, said)[1].replace(",", ""))  # type: ignore[index]  # it has to be there
        for pattern in ("acknowledged (.*) messages", "found (.*) of them", "and (.*) that", "the other (.*) messages")
    )
    first, last = map(int, re.search(r"offsets (\d+) to (\d+)", said).groups())  # type: ignore[union-attr]  # likewise
    assert acknowledged == recovered >= 5_000
    assert readable + last - first + 1 == recovered + more
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_the_notebook(url: str, tmp_path: Path) -> None:
    variables = {"COURSER_URL": url, "TMPDIR": str(tmp_path), "JDK_JAVA_OPTIONS": JAVA_OPTIONS}
    said = run([sys.executable, str(EXAMPLES / "notebook.py")], tmp_path, variables)
    assert "|    cleo|   250|" in said
    assert "lines: 1000\n" in said
    assert "lines after one more order: 1001\n" in said
    assert "['customer=ada', 'customer=bob', 'customer=cleo', 'customer=dora']" in said


@pytest.mark.slow
def test_the_declarative_pipeline(url: str, tmp_path: Path) -> None:
    project = tmp_path / "project"
    shutil.copytree(EXAMPLES / "declarative_pipeline", project)
    specification = project / "spark-pipeline.yml"
    text = specification.read_text()
    assert "storage: file:///tmp/courser-orders-pipeline/checkpoints" in text
    specification.write_text(text.replace("/tmp/courser-orders-pipeline", str(tmp_path)))
    variables = {"COURSER_URL": url, "PATH": os.environ["PATH"], "JDK_JAVA_OPTIONS": JAVA_OPTIONS}
    prepare_environment(variables, "local[2]")
    program = str(Path(pyspark.__file__).parent / "bin" / "spark-pipelines")
    with courser.connect_sync(url) as client:
        client.create_stream("shop")
        client.create_topic("shop/orders", partitions_count=2)
        send_orders(client, range(200))
        run([program, "run", "--conf", "spark.ui.enabled=false"], project, variables)
        large = client.poll_messages("shop/large-orders", partition_id=0, count=1000)
        assert sorted(message.json()["order_id"] for message in large) == list(range(100, 200))
    warehouse = project / "spark-warehouse"
    assert rows(warehouse / "orders", "count(*), count(DISTINCT order_id)") == [(200, 200)]
    assert rows(warehouse / "best_category", "category, revenue::INT") == [("coffee", 10_000)]


def send_orders(client: courser.SyncClient, numbers: range) -> None:
    with client.producer("shop/orders") as producer:
        for number in numbers:
            category = "coffee" if number % 2 else "tea"
            producer.send({"order_id": number, "category": category, "total": number}, key=str(number))


def rows(table: Path, columns: str) -> list[tuple[object, ...]]:
    found: list[tuple[object, ...]] = (
        duckdb.connect().execute(f"SELECT {columns} FROM read_parquet('{table}/*.parquet')").fetchall()
    )
    return found
