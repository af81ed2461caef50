"""``courser demo`` as somebody runs it; what it leaves is checked by tools that are not Spark."""

import json
import os
import signal
from collections import Counter
from datetime import datetime, timedelta
from pathlib import Path

import duckdb
import pytest

import courser
from courser.cli import demo_commands
from courser.cli.main import run
from courser.demo.demonstration import SEED, DemoResult, WindowSales
from courser.demo.flows import ProductSales
from courser.demo.orders import LATE_MAX, Order, make_orders
from tests.cli.commands import courser as command
from tests.cli.commands import start
from tests.servers import RunningServer

COUNT = 3000
WINDOW = timedelta(minutes=10)


def start_of(order: Order) -> datetime:
    return order.at - timedelta(
        minutes=order.at.minute % 10, seconds=order.at.second, microseconds=order.at.microsecond
    )


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str]:
    """What a run left, and what it said."""
    keep = tmp_path_factory.mktemp("demo") / "kept"
    done = command("demo", "--orders", COUNT, "--keep", keep)
    assert done.returncode == 0, done.stderr
    return keep, done.stdout, done.stderr


def test_it_shows_a_chart_both_results_and_the_sums(kept: tuple[Path, str, str]) -> None:
    _, out, err = kept
    assert "19:30  ██" in out
    for word in ("coffee", "tableware", "best sellers", "espresso beans 1 kg"):
        assert word in out
    assert f"{COUNT:,} in the lake" in err
    # Neither Java nor Spark talks.
    assert "WARN" not in err


def test_the_lake_has_every_order_once(kept: tuple[Path, str, str]) -> None:
    order = f"SELECT decode(payload) AS one FROM read_parquet('{kept[0]}/lake/**/*.parquet')"
    totals = "sum((one->>'$.total')::DECIMAL(11,2))::VARCHAR"
    question = f"SELECT count(*), count(DISTINCT one->>'$.order_id'), {totals} FROM ({order})"
    found = duckdb.connect().execute(question).fetchone()
    cents = sum(order.total_cents for order in make_orders(COUNT, SEED))
    assert found == (COUNT, COUNT, f"{cents // 100}.{cents % 100:02}")


def test_the_topic_has_each_closed_window_once_with_the_right_sums(kept: tuple[Path, str, str], tmp_path: Path) -> None:
    orders = list(make_orders(COUNT, SEED))
    newest = max(order.at for order in orders)
    counts: Counter[tuple[datetime, str]] = Counter()
    cents: Counter[tuple[datetime, str]] = Counter()
    for order in orders:
        if start_of(order) + WINDOW <= newest - LATE_MAX:
            counts[start_of(order), order.product.category] += 1
            cents[start_of(order), order.product.category] += order.total_cents
    (tmp_path / "local_data").symlink_to(kept[0] / "server" / "data")
    with (
        RunningServer(tmp_path) as server,
        courser.connect_sync(f"iggy://iggy:iggy@{server.address}") as client,
    ):
        messages = [
            json.loads(found.payload) for found in client.poll_messages("shop/revenue", partition_id=0, count=1000)
        ]
    rows = [(datetime.fromisoformat(row["start"]), row["category"]) for row in messages]
    assert len(rows) == len(set(rows))
    assert {key: row["orders"] for key, row in zip(rows, messages, strict=True)} == counts
    assert {key: int(row["revenue"].replace(".", "")) for key, row in zip(rows, messages, strict=True)} == cents


@pytest.mark.slow
def test_without_keep_nothing_stays(tmp_path: Path) -> None:
    done = command("demo", "--orders", 500, "-o", "json", TMPDIR=str(tmp_path), XDG_CACHE_HOME=str(tmp_path / "cache"))
    assert done.returncode == 0, done.stderr
    outcome = json.loads(done.stdout)
    assert outcome["lake_count"] == outcome["order_count"] == 500
    assert sum(window["orders"] for window in outcome["windows"]) + outcome["open_count"] == 500
    left = [path.name for path in tmp_path.iterdir() if path.name != "cache"]
    assert left == []


@pytest.mark.slow
def test_an_interrupt_ends_it_without_a_trace_or_a_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with start("demo", "--orders", 500) as process:
        assert process.stderr is not None
        said: list[str] = []
        while "summing up" not in (line := process.stderr.readline()):
            assert line, f"it ended: {said}"
            said.append(line)
        process.send_signal(signal.SIGINT)
        rest = process.stderr.read()
    assert process.returncode == 130
    assert rest.strip() == "interrupted"
    assert list(tmp_path.iterdir()) == []


def test_programs_get_one_document(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    outcome = DemoResult(
        order_count=3,
        order_cents=900,
        windows=(WindowSales("2026-01-30T18:00:00.000Z", "tea", 2, 600),),
        batch_count=1,
        lake_count=3,
        file_count=1,
        best=(ProductSales("teapot", "Kiel", 3, "9.00"),),
        seconds={"orders": 0.1},
    )
    monkeypatch.setattr(demo_commands, "run_demo", lambda say, **options: outcome)
    assert run(["demo", "-o", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["open_count"], document["windows"][0]["revenue_cents"]) == (1, 600)
    assert run(["demo"]) == 0
    assert "18:00  ██" in capsys.readouterr().out


def test_a_directory_with_something_in_it_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "thesis.txt").write_text("")
    assert run(["demo", "--keep", str(tmp_path)]) == 2
    assert "not empty" in capsys.readouterr().err
    assert os.listdir(tmp_path) == ["thesis.txt"]  # noqa: PTH208
