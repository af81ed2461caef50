"""``courser pipeline``: what it says, and with which code it ends. The runs themselves are tested elsewhere."""

import json
import os
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from courser.cli.main import run
from courser.cli.pipeline_views import LineView, LiveView, View, make_view
from courser.pipelines.locking import Lock, this_process
from courser.pipelines.state_folder import StateFolder, Status
from tests.servers import RunningServer

TEXT = """
[pipeline]
name = "orders"
[server]
url = "{url}"
[source]
stream = "shop"
topic = "orders"
[transform]
sql = "SELECT offset FROM source"
[sink]
type = "parquet"
path = "lake"
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in [name for name in os.environ if name.startswith(("COURSER_", "IGGY_")) and name != "COURSER_SEED"]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("COURSER_STATE_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def define(folder: Path, url: str = "127.0.0.1:1") -> Path:
    path = folder / "orders.toml"
    path.write_text(TEXT.format(url=url))
    return path


def ran(folder: Path, **changes: object) -> StateFolder:
    """As if it had run, or ran."""
    me = this_process("orders")
    status = Status(
        name="orders",
        file=str(folder / "orders.toml"),
        checkpoint="c",
        mode="continuous",
        source="shop/orders",
        sink="parquet lake",
        pid=me.pid,
        process_started=me.started,
        host=me.host,
        started_at=1,
        updated_at=2,
        lag={"0": 4, "1": 3},
    )
    state = StateFolder(folder / "home" / "pipelines", "orders")
    state.write(replace(status, **changes))  # type: ignore[arg-type]
    return state


def test_nothing_has_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["pipeline", "list"]) == 0
    assert "no pipeline has run on this machine yet" in capsys.readouterr().err
    assert run(["pipeline", "status", "orders"]) == 5
    assert 'pipeline "orders" has not run on this machine' in capsys.readouterr().err


def test_list_and_status(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ran(folder, state="running", rows=10)
    assert run(["pipeline", "list", "-o", "json"]) == 0
    (record,) = json.loads(capsys.readouterr().out)
    assert (record["name"], record["state"], record["total_lag"]) == ("orders", "running", 7)
    assert run(["pipeline", "status", "orders"]) == 0
    assert "shop/orders" in capsys.readouterr().out
    define(folder)
    assert run(["pipeline", "status", "orders.toml", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == 10
    assert run(["pipeline", "status", "order"]) == 5
    assert 'did you mean "orders"?' in capsys.readouterr().err


def test_stop_asks_and_waits(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state = ran(folder, state="finished")
    assert run(["pipeline", "stop", "orders"]) == 1
    assert "orders is not running: it is finished" in capsys.readouterr().err
    ran(folder, state="running", process_started=1)
    assert run(["pipeline", "stop", "orders"]) == 1
    assert "it is killed" in capsys.readouterr().err
    ran(folder, state="running")
    assert run(["pipeline", "stop", "orders", "--timeout", "0.2"]) == 1
    assert "did not stop within 0.2 seconds" in capsys.readouterr().err
    assert state.is_stop_requested()


def test_reset(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = define(folder)
    ran(folder)
    assert run(["pipeline", "reset", "orders", "--to", "earliest"]) == 2, "nobody is there to be asked"
    assert run(["pipeline", "reset", "orders", "--to", "earliest", "--yes"]) == 0
    told = capsys.readouterr().err
    assert "the next run of orders starts at earliest" in told
    assert "will be written again" in told
    assert run(["pipeline", "reset", str(path), "--to", "noon", "--yes"]) == 1
    assert "--to must be" in capsys.readouterr().err
    with Lock(folder / "checkpoints" / "orders" / "lock", this_process("orders")).acquire():
        assert run(["pipeline", "reset", "orders", "--to", "latest", "--yes"]) == 1
    assert f"process {os.getpid()}" in capsys.readouterr().err


def test_check_without_spark(folder: Path, server: RunningServer, capsys: pytest.CaptureFixture[str]) -> None:
    import courser  # noqa: PLC0415

    url = f"iggy://iggy:iggy@{server.address}"
    path = define(folder, url)
    with courser.connect_sync(url) as client:
        client.create_stream("shop")
        client.create_topic("shop", "order", 2)
        assert run(["pipeline", "check", str(path), "--without-spark"]) == 5
        assert 'topic "shop/orders" does not exist; did you mean "shop/order"?' in capsys.readouterr().err
        client.create_topic("shop", "orders", 2)
    assert run(["pipeline", "check", str(path), "--without-spark", "-o", "json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert found["goes_on"] == "at earliest"
    assert [part["partition"] for part in found["partitions"]] == [0, 1]
    define(folder, url.replace("iggy@", "wrong@"))
    assert run(["pipeline", "check", str(path), "--without-spark"]) == 4
    assert "\n" not in capsys.readouterr().err.removesuffix("\n").partition("\nhint")[0]
    assert sorted(entry.name for entry in folder.iterdir()) == ["orders.toml"], "it writes nothing"


def test_mistakes_end_a_run_before_spark_is_started(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = define(folder)
    path.write_text(path.read_text().replace('type = "parquet"', 'type = "parket"').replace("topic =", "topik ="))
    assert run(["pipeline", "run", str(path)]) == 2
    told = capsys.readouterr().err
    assert told.count("error: ") == 2
    assert "did you mean source.topic?" in told
    path = define(folder)
    path.write_text(path.read_text().replace("SELECT offset", "SELECT count(*) AS n"))
    assert run(["pipeline", "run", str(path)]) == 1
    assert "no group ever closes" in capsys.readouterr().err
    define(folder)
    with Lock(folder / "checkpoints" / "orders" / "lock", this_process("orders")).acquire():
        assert run(["pipeline", "run", str(path)]) == 1
    assert "is in use by process" in capsys.readouterr().err


def test_changes_are_lines_where_no_terminal_is(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status = ran(folder, state="running").read()
    assert status is not None
    view = make_view("table", is_terminal=False)
    assert isinstance(view, LineView)
    with view:
        view.update([status])
        view.update([status])
        view.update([replace(status, rows=5)])
        view.show_batch("orders", 0, "+--+")
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line.get("rows") for line in lines] == [0, 5, None]
    assert lines[0].items() >= (asdict(status) | {"total_lag": 7}).items()
    assert type(make_view("json", is_terminal=True)) is View


def test_a_terminal_has_a_table(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status = ran(folder, state="restarting", error="it broke \x1b[2J").read()
    assert status is not None
    view = make_view("table", is_terminal=True)
    assert isinstance(view, LiveView)
    with view:
        view.update([status])
        view.show_batch("orders", 3, "| a |")
    shown = capsys.readouterr().out
    assert "restarting" in shown
    assert "it broke" in shown
    assert "\x1b[2J" not in shown
    assert "orders, batch 3" in shown
