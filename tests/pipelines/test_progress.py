"""Figures: from Spark's records to statuses, Prometheus text and files that other terminals read."""

import json
import os
import urllib.request
from dataclasses import replace
from pathlib import Path
from urllib.error import HTTPError

import pytest
from pyspark.sql import Row

from courser.pipelines.locking import this_process
from courser.pipelines.pipeline_metrics import MetricsServer, render
from courser.pipelines.progress import offsets_of, parse_progress
from courser.pipelines.state_folder import StateFolder, Status, all_statuses, pipelines_home

RECORD = {
    "batchId": 4,
    "timestamp": "2026-11-15T10:00:00.000Z",
    "durationMs": {"addBatch": 1500, "triggerExecution": 2000},
    "eventTime": {"watermark": "2026-11-15T09:59:00.000Z"},
    "observedMetrics": {"courser": {"rows": 120, "bad": 3}},
    "sources": [
        {
            "endOffset": '{"v": 1, "topic_id": "ab", "p": {"0": 100, "1": 20}, "lost": {"0": 5}}',
            "latestOffset": {"v": 1, "topic_id": "ab", "p": {"0": 130, "1": 20, "2": 7}},
            "numInputRows": 240,
        }
    ],
}


def status(**changes: object) -> Status:
    me = this_process("p")
    first = Status(
        name="p",
        file="p.toml",
        checkpoint="c",
        mode="continuous",
        source="s/t",
        sink="parquet lake",
        pid=me.pid,
        process_started=me.started,
        host=me.host,
        started_at=1_000_000,
        updated_at=2_000_000,
    )
    return replace(first, **changes)  # type: ignore[arg-type]


def test_a_record_in_our_words() -> None:
    found = parse_progress(RECORD)
    assert (found.batch, found.rows, found.rows_per_second, found.milliseconds) == (4, 120, 60.0, 2000)
    assert found.ends == {"0": 100, "1": 20}
    assert found.lag == {"0": 30, "1": 0, "2": 7}
    assert (found.lost, found.bad_rows) == (5, 3)
    assert found.milliseconds_by_part == {"addBatch": 1500}
    assert found.is_batch


def test_a_record_of_a_spark_server() -> None:
    schema = {"type": "struct", "fields": [{"name": "rows", "type": "long"}, {"name": "bad", "type": "long"}]}
    parts = Row("values", "schema")([120, 3], schema)
    found = parse_progress(RECORD | {"numInputRows": None, "observedMetrics": {"courser": parts}})
    assert (found.rows, found.bad_rows) == (120, 3)


def test_rows_that_nobody_observes_are_those_of_all_sources() -> None:
    assert parse_progress(RECORD | {"observedMetrics": {}}).rows == 240


def test_records_of_other_sources() -> None:
    found = parse_progress({"batchId": 0, "sources": [{"endOffset": {"logOffset": 0}, "latestOffset": None}]})
    assert (found.rows, found.lag, found.lost, found.bad_rows) == (0, {}, 0, 0)
    assert not found.is_batch
    assert not offsets_of("not JSON")
    assert not offsets_of(None)


def test_figures_for_prometheus() -> None:
    shown = render(
        [
            status(
                state="running",
                rows=120,
                batch=4,
                lag={"10": 1, "2": 30},
                bad_rows=3,
                lost=5,
                batch_milliseconds=2000,
                milliseconds_by_part={"addBatch": 1500},
                watermark="1970-01-01T00:00:00.000Z",
            ),
            status(name='a"b', state="failed"),
        ],
        now=5_500_000,
    )
    lines = shown.splitlines()
    assert 'courser_pipeline_up{pipeline="p"} 1' in lines
    assert 'courser_pipeline_up{pipeline="a\\"b"} 0' in lines
    assert 'courser_pipeline_rows_total{pipeline="p"} 120' in lines
    assert 'courser_pipeline_lag_messages{pipeline="p"} 31' in lines
    assert 'courser_pipeline_bad_rows_total{pipeline="p"} 3' in lines
    assert 'courser_pipeline_lost_messages_total{pipeline="p"} 5' in lines
    assert 'courser_pipeline_seconds_since_update{pipeline="p"} 3.5' in lines
    assert 'courser_pipeline_batch_seconds{pipeline="p",part="addBatch"} 1.5' in lines
    assert [line.split('"')[3] for line in lines if line.startswith("courser_pipeline_partition_lag")] == ["2", "10"]
    assert not [line for line in lines if line.startswith("courser_pipeline_watermark_delay")], "no row has come yet"
    types = {line.split()[2] for line in lines if line.startswith("# TYPE")}
    assert {line.partition("{")[0] for line in lines if not line.startswith("#")} <= types


def test_the_watermark_as_a_delay() -> None:
    shown = render([status(watermark="2026-11-15T09:59:00.000Z")], now=1_794_736_800_000_000)
    assert 'courser_pipeline_watermark_delay_seconds{pipeline="p"} 60' in shown


def test_figures_are_served_on_loopback_only() -> None:
    server = MetricsServer(0, lambda: render([status()], 0))
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics") as answer:
            assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
            assert b'courser_pipeline_up{pipeline="p"} 1' in answer.read()
        with pytest.raises(HTTPError, match="404"):
            urllib.request.urlopen(f"http://127.0.0.1:{server.port}/secrets")
        with pytest.raises(OSError, match="in use"):
            MetricsServer(server.port, str)
    finally:
        server.close()


def test_other_terminals_see_the_status(tmp_path: Path) -> None:
    folder = StateFolder(tmp_path, "p")
    assert folder.read() is None
    assert all_statuses(tmp_path / "nowhere") == []
    folder.write(status(state="running", lag={"0": 3}))
    (tmp_path / "rubbish").mkdir()
    (found,) = all_statuses(tmp_path)
    assert (found.state_now, found.total_lag) == ("running", 3)


def test_a_status_of_a_newer_version_is_understood_as_far_as_it_goes(tmp_path: Path) -> None:
    folder = StateFolder(tmp_path, "p")
    folder.write(status())
    path = folder.path / "status.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"new": 1}))
    assert folder.read() == status()
    path.write_text("{")
    assert folder.read() is None


def test_a_process_that_is_gone_was_killed() -> None:
    gone = status(state="running", process_started=1)
    assert gone.state_now == "killed"
    assert replace(gone, state="failed").state_now == "failed"
    assert replace(gone, host="elsewhere").state_now == "running"


def test_a_stop_is_asked_for_through_the_folder(tmp_path: Path) -> None:
    folder = StateFolder(tmp_path, "p")
    folder.write(status())
    assert not folder.is_stop_requested()
    StateFolder(tmp_path, "p").request_stop()
    assert folder.is_stop_requested()
    folder.clear_stop()
    assert not folder.is_stop_requested()


def test_where_the_folder_is() -> None:
    assert pipelines_home({"COURSER_STATE_HOME": "/a", "XDG_STATE_HOME": "/b"}) == Path("/a/pipelines")
    assert pipelines_home({"XDG_STATE_HOME": "/b", "HOME": "/c"}) == Path("/b/courser/pipelines")
    assert pipelines_home({"HOME": "/c"}) == Path("/c/.local/state/courser/pipelines")
    assert os.fspath(pipelines_home({"HOME": "/c"})).endswith("pipelines")
