"""Metrics as others use them: a real Prometheus with our alerts, the dashboard, the documentation."""

import asyncio
import json
import re
import subprocess
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from courser.api import commands as c
from courser.broker.access.sessions import Session
from courser.handlers.dispatcher import Dispatcher
from courser.model import metric_table as m
from courser.model.messaging import ToPartition, Transport
from courser.model.topic_options import TopicOptions
from courser.records.batch import NewMessage, build_batch
from tests.http.serving import HttpServer, serving
from tests.monitoring.prometheus import Prometheus, find_program, running
from tests.servers import PATIENCE, ROOT, RunningServer
from tools import monitoring

RULES = ROOT / "packaging" / "monitoring" / "courser-rules.yml"
DASHBOARD = ROOT / "packaging" / "monitoring" / "grafana-dashboard.json"
PAGE = ROOT / "docs" / "metrics.md"
METRICS = {metric.name for section in m.SECTIONS for metric in section.metrics}
SERIES = METRICS | {f"{name}_{part}" for name in METRICS for part in ("bucket", "sum", "count")}
GIGABYTE = 10**9


def rules() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load(RULES.read_text())["groups"]
    found: list[dict[str, Any]] = group["rules"]
    return found


# --- files ---


def test_no_file_names_a_metric_that_does_not_exist() -> None:
    expressions = [rule["expr"] for rule in rules()]
    expressions += [
        target["expr"] for panel in json.loads(DASHBOARD.read_text())["panels"] for target in panel.get("targets", ())
    ]
    assert len(expressions) > len(METRICS)
    for text in (*expressions, PAGE.read_text()):
        assert set(re.findall(r"\bcourser_[a-z_]+", text)) <= SERIES


def test_the_dashboard_shows_every_metric() -> None:
    text = DASHBOARD.read_text()
    assert {name for name in METRICS if not re.search(rf"\b{name}(_bucket)?\b", text)} == set()


def test_panels_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in monitoring.dashboard()["panels"]:
        place = panel["gridPos"]
        fields = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not fields & taken, panel["title"]
        taken |= fields


def test_every_alert_is_explained() -> None:
    page = PAGE.read_text()
    for rule in rules():
        assert {"summary", "action"} == rule["annotations"].keys()
        assert f"| `{rule['alert']}` |" in page


def test_a_server_has_exactly_the_metrics_of_the_table(tmp_path: Path) -> None:
    settings = {
        "http.enabled": "true",
        "http.address": "127.0.0.1:0",
        "data_maintenance.archiver.enabled": "true",
        "data_maintenance.archiver.disk.path": str(tmp_path / "archive"),
    }
    with RunningServer(tmp_path, settings=settings) as server:
        url = f"http://{server.address_of('http')}/metrics"
        with urllib.request.urlopen(url, timeout=PATIENCE) as reply:
            text = reply.read().decode()
    assert set(re.findall(r"^# TYPE (\S+)", text, re.MULTILINE)) == METRICS
    assert 'courser_connections{transport="http",sdk="unknown"} 1\n' in text
    assert "courser_event_loop_delay_seconds_bucket" in text


# --- a real Prometheus ---


@pytest.fixture(scope="module")
def program() -> str:
    found = find_program("prometheus")
    if found is None:
        pytest.skip("Prometheus is not installed, and Debian's package cannot be fetched")
    return found


def test_promtool_accepts_the_rules() -> None:
    promtool = find_program("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed, and Debian's package cannot be fetched")
    checked = subprocess.run([promtool, "check", "rules", RULES], capture_output=True, text=True, check=False)
    assert (checked.returncode, "SUCCESS" in checked.stdout) == (0, True), checked.stdout + checked.stderr


async def test_alerts_fire_when_the_disk_fills_and_when_lag_grows(
    program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = 900 * GIGABYTE
    monkeypatch.setattr("courser.broker.figures.statistics._disk_space", lambda _: (free, 1000 * GIGABYTE))
    (tmp_path / "rules.yml").write_text(json.dumps({"groups": [{"name": "at once", "rules": rules_at_once()}]}))
    async with serving(tmp_path / "data") as server:
        await add_topic_with_a_group(server)
        with running(program, tmp_path, configuration(server)) as prometheus:
            await until(prometheus, lambda: prometheus.values("courser_group_lag_messages") == [0])
            assert not {"CourserLagGrows", "CourserDiskUsage"} & (await asyncio.to_thread(prometheus.firing)).keys()
            await send(server, 2000)
            await until(prometheus, lambda: "CourserLagGrows" in prometheus.firing())
            labels = (await asyncio.to_thread(prometheus.firing))["CourserLagGrows"]
            assert (labels["stream"], labels["topic"], labels["group"]) == ("shop", "orders", "billing")
            free = 100 * GIGABYTE
            await until(prometheus, lambda: "CourserDiskUsage" in prometheus.firing())
            assert "CourserDiskFull" not in await asyncio.to_thread(prometheus.firing)
            server.broker.disk_watch.note_refusal(Path("00000000000000000000.log"))
            await until(prometheus, lambda: "CourserDiskFull" in prometheus.firing())


def rules_at_once() -> list[dict[str, Any]]:
    """The alerts as they are, except that they fire at the first sight."""
    return [{key: value for key, value in rule.items() if key != "for"} for rule in rules()]


def configuration(server: HttpServer) -> dict[str, object]:
    return {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "200ms"},
        "rule_files": ["rules.yml"],
        "scrape_configs": [{"job_name": "courser", "static_configs": [{"targets": [f"127.0.0.1:{server.port}"]}]}],
    }


async def until(prometheus: Prometheus, condition: Callable[[], bool]) -> None:
    """Prometheus looks again and again by itself; so does this, on another thread than the server."""
    deadline = time.monotonic() + PATIENCE
    while not await asyncio.to_thread(condition):
        alerts = await asyncio.to_thread(prometheus.ask, "alerts")
        assert time.monotonic() < deadline, alerts
        await asyncio.sleep(0.05)


async def add_topic_with_a_group(server: HttpServer) -> None:
    dispatcher, session = Dispatcher(server.broker), root_session()
    await dispatcher.dispatch(session, c.CreateStream("shop"))
    await dispatcher.dispatch(session, c.CreateTopic("shop", "orders", 1, TopicOptions()))
    await dispatcher.dispatch(session, c.CreateConsumerGroup("shop", "orders", "billing"))


async def send(server: HttpServer, count: int) -> None:
    batch = build_batch([NewMessage(b"x")] * count)
    command = c.SendMessages("shop", "orders", ToPartition(0), [batch])
    await Dispatcher(server.broker).dispatch(root_session(), command)


def root_session() -> Session:
    session = Session(1, Transport.TCP, "127.0.0.1:1", now=0)
    session.user_id = 0
    return session
