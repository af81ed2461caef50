"""What a server exports with OpenTelemetry, as a collector receives it."""

import asyncio
import importlib.util
import logging
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from courser.api import commands as c
from courser.broker.access.sessions import Session
from courser.broker.partition.waiting import Waiting
from courser.client.sync import connect_sync
from courser.errors import CommandRejected, ConfigurationRefused, ErrorCode
from courser.model.messaging import Transport
from courser.model.metrics import Metric, MetricKind, Registry
from courser.model.trace_context import trace_context_of
from courser.server.configuration.checks import check
from courser.server.configuration.loading import load
from courser.server.configuration.settings import TelemetrySettings
from courser.server.telemetry import Telemetry
from tests.otlp_receiver import Receiver, attributes_of
from tests.servers import RunningServer

SESSION = Session(7, Transport.TCP, "10.0.0.1:5", now=0)
LOGIN = c.LoginUser("iggy", "secret")


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as receiver:
        yield receiver


def settings_for(receiver: Receiver) -> TelemetrySettings:
    return TelemetrySettings(
        service_name="tested",
        traces_endpoint=receiver.endpoint("traces"),
        one_in=10,
        logs_endpoint=receiver.endpoint("logs"),
        metrics_endpoint=receiver.endpoint("metrics"),
        metrics_interval=1_000_000,
    )


# --- traces -------------------------------------------------------------------------------------------


async def test_a_request_is_a_span_with_the_facts_about_it(receiver: Receiver) -> None:
    telemetry = Telemetry(settings_for(receiver), lambda: 0.0)
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def begin(_session: Session, command: c.Command) -> Any:
        return Waiting(future) if isinstance(command, c.GetTopic) else None

    traced = telemetry.traced(begin)
    traced(SESSION, c.Ping())
    waiting = traced(SESSION, c.GetTopic("shop", 3))
    assert isinstance(waiting, Waiting)
    future.set_result(None)
    await waiting
    await asyncio.sleep(0)  # The span ends with the callbacks of the future.
    await telemetry.close()
    spans = {span.name: span for span in receiver.spans}
    assert spans.keys() == {"Ping", "GetTopic"}
    assert receiver.services == {"tested"}
    facts = attributes_of(spans["GetTopic"])
    assert (facts["courser.stream"], facts["courser.topic"], facts["courser.transport"]) == ("shop", 3, "tcp")
    assert (facts["courser.client_id"], facts["client.address"]) == (7, "10.0.0.1:5")
    assert spans["Ping"].trace_id != spans["GetTopic"].trace_id


async def test_failures_are_in_the_span_and_a_mistake_of_the_client_is_no_error_of_the_server(
    receiver: Receiver,
) -> None:
    telemetry = Telemetry(settings_for(receiver), lambda: 0.0)
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def begin(_session: Session, command: c.Command) -> Any:
        if isinstance(command, c.Ping):
            raise CommandRejected(ErrorCode.UNAUTHENTICATED, "no")
        if isinstance(command, c.GetStats):
            raise ZeroDivisionError
        return Waiting(future)

    traced = telemetry.traced(begin)
    with pytest.raises(CommandRejected):
        traced(SESSION, c.Ping())
    with pytest.raises(ZeroDivisionError):
        traced(SESSION, c.GetStats())
    waiting = traced(SESSION, c.GetStreams())
    assert isinstance(waiting, Waiting)
    future.set_exception(CommandRejected(ErrorCode.UNAUTHORIZED, "no"))
    with pytest.raises(CommandRejected):
        await waiting
    await asyncio.sleep(0)
    await telemetry.close()
    spans = {span.name: span for span in receiver.spans}
    assert attributes_of(spans["Ping"])["courser.error_code"] == ErrorCode.UNAUTHENTICATED
    assert attributes_of(spans["GetStreams"])["error.type"] == "unauthorized"
    assert spans["Ping"].status.code == spans["GetStreams"].status.code == 0
    assert spans["GetStats"].status.code == 2


async def test_one_request_in_so_many_is_traced(receiver: Receiver) -> None:
    numbers = iter([0.5, 0.09, 0.1, 0.99])
    telemetry = Telemetry(settings_for(receiver), lambda: next(numbers))
    traced = telemetry.traced(lambda *_: None)
    for command in (c.Ping(), c.GetMe(), c.GetStats(), c.GetStreams()):
        assert traced(SESSION, command) is None
    await telemetry.close()
    assert [span.name for span in receiver.spans] == ["GetMe"]


@pytest.mark.parametrize(("flags", "is_traced"), [("01", True), ("00", False)])
async def test_a_request_with_a_trace_context_is_traced_as_its_sender_decided(
    receiver: Receiver, flags: str, is_traced: bool
) -> None:
    session = Session(0, Transport.HTTP, "10.0.0.1:5", now=0)
    session.trace = trace_context_of(f"00-{'a' * 32}-{'b' * 16}-{flags}", "vendor=1")
    telemetry = Telemetry(settings_for(receiver), lambda: 0.0 if flags == "00" else 0.99)
    telemetry.traced(lambda *_: None)(session, c.Ping())
    await telemetry.close()
    assert [(span.trace_id.hex(), span.parent_span_id.hex(), span.trace_state) for span in receiver.spans] == (
        [("a" * 32, "b" * 16, "vendor=1")] if is_traced else []
    )


# --- logs and metrics ---------------------------------------------------------------------------------


async def test_log_records_have_their_severity_and_facts(receiver: Receiver) -> None:
    telemetry = Telemetry(settings_for(receiver), lambda: 0.0)
    log = logging.getLogger("courser.test")
    log.warning("rolled stream=%d topic=%s", 3, "t")
    try:
        raise ZeroDivisionError
    except ZeroDivisionError:
        log.exception("broken")
    logging.getLogger("opentelemetry.exporter").error("would be exported for ever")
    await telemetry.close()
    log.warning("too late")
    rolled, broken = receiver.records
    assert (rolled.body.string_value, rolled.severity_text, rolled.severity_number) == (
        "rolled stream=3 topic=t",
        "WARNING",
        13,
    )
    facts = attributes_of(rolled)
    assert (facts["stream"], facts["topic"]) == (3, "t")
    assert attributes_of(broken)["exception.type"] == "ZeroDivisionError"


async def test_metrics_of_every_kind_are_exported_as_the_registry_has_them(receiver: Receiver) -> None:
    registry = Registry()
    sent = Metric("courser_sent_bytes_total", MetricKind.COUNTER, "Bytes sent.", ("kind",))
    registry.counters(sent).of("small").value = 7
    registry.value_of(Metric("courser_connections", MetricKind.GAUGE, "Connections."), lambda: 2.5)
    histogram = registry.histogram(Metric("courser_wait_seconds", MetricKind.HISTOGRAM, "Waits."), (0.1, 1.0))
    for value in (0.05, 0.5, 0.6, 9.0):
        histogram.observe(value)
    telemetry = Telemetry(settings_for(receiver), lambda: 0.0)
    await telemetry.export_metrics(registry.collect())
    await telemetry.close()
    counter = receiver.metrics["courser_sent_bytes_total"]
    (point,) = counter.sum.data_points
    assert (counter.unit, counter.description, counter.sum.is_monotonic) == ("By", "Bytes sent.", True)
    assert (point.as_int, attributes_of(point)) == (7, {"kind": "small"})
    assert receiver.metrics["courser_connections"].gauge.data_points[0].as_double == 2.5
    (buckets,) = receiver.metrics["courser_wait_seconds"].histogram.data_points
    assert (list(buckets.bucket_counts), list(buckets.explicit_bounds)) == ([1, 2, 1], [0.1, 1.0])
    assert (buckets.count, buckets.sum) == (4, 10.15)


async def test_what_has_no_endpoint_is_not_exported(receiver: Receiver) -> None:
    settings = replace(settings_for(receiver), traces_endpoint="", logs_endpoint="", metrics_endpoint="")
    telemetry = Telemetry(settings, lambda: 0.0)

    def begin(*_: Any) -> None:
        return None

    assert telemetry.traced(begin) is begin
    logging.getLogger("courser.test").warning("not exported")
    await telemetry.export_metrics(Registry().collect())
    await telemetry.close()
    assert not receiver.services


# --- a server -----------------------------------------------------------------------------------------


def server_settings(receiver: Receiver) -> dict[str, str]:
    return {
        "telemetry.enabled": "true",
        "telemetry.traces.one_in": "1",
        "telemetry.metrics.interval": "1 s",
        **{f"telemetry.{signal}.endpoint": receiver.endpoint(signal) for signal in ("traces", "logs", "metrics")},
    }


@pytest.mark.parametrize("transport", ["http", "grpc"])
def test_a_server_exports_all_three(tmp_path: Path, transport: str) -> None:
    with Receiver(is_grpc=transport == "grpc") as receiver:
        _export_all_three(receiver, tmp_path, transport)


def _export_all_three(receiver: Receiver, tmp_path: Path, transport: str) -> None:
    protocol = {f"telemetry.{signal}.transport": transport for signal in ("traces", "logs", "metrics")}
    with RunningServer(tmp_path, settings=server_settings(receiver) | protocol) as server:
        with connect_sync(f"iggy://iggy:iggy@{server.address}") as client:
            client.create_stream("shop")
        receiver.wait_for(lambda: "courser_connections" in receiver.metrics)
    receiver.wait_for(lambda: any(span.name == "CreateStream" for span in receiver.spans))
    receiver.wait_for(lambda: any(record.body.string_value.startswith("stopped") for record in receiver.records))
    assert receiver.services == {"courser"}


async def test_a_stop_does_not_wait_for_a_collector_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("courser.server.telemetry._CLOSE_TIMEOUT", 0.01)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}/v1/traces"
        settings = TelemetrySettings(
            service_name="tested",
            traces_endpoint=endpoint,
            one_in=1,
            logs_endpoint="",
            metrics_endpoint="",
            metrics_interval=1_000_000,
        )
        telemetry = Telemetry(settings, lambda: 0.0)
        telemetry.traced(lambda *_: None)(SESSION, c.Ping())
        await telemetry.close()
        # The export has begun, and nobody has answered it.
        silent.accept()[0].close()


def test_without_the_libraries_the_start_is_refused_in_plain_words(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name.startswith("opentelemetry") else find(name)
    )
    check(load(settings=["telemetry.enabled=false"]))
    with pytest.raises(ConfigurationRefused, match=r"telemetry.enabled .* pip install 'courser\[otel\]'"):
        check(load(settings=["telemetry.enabled=true"]))


@pytest.mark.parametrize("signal", ["traces", "logs", "metrics"])
def test_grpc_without_its_library_is_refused_in_plain_words(monkeypatch: pytest.MonkeyPatch, signal: str) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name.endswith(".grpc") else find(name))
    check(load(settings=[f"telemetry.{signal}.transport=grpc"]))
    expected = rf"telemetry.{signal}.transport .* pip install 'courser\[otel-grpc\]'"
    with pytest.raises(ConfigurationRefused, match=expected):
        check(load(settings=["telemetry.enabled=true", f"telemetry.{signal}.transport=grpc"]))


@pytest.mark.parametrize("endpoint", ["localhost:4318", "ftp://localhost", "http://", "7"])
def test_an_endpoint_must_be_a_url(endpoint: str) -> None:
    with pytest.raises(ConfigurationRefused, match=r"telemetry.logs.endpoint"):
        load(settings=[f"telemetry.logs.endpoint={endpoint}"])


def test_a_server_without_telemetry_does_not_load_the_libraries() -> None:
    program = "import sys, courser.server.entry_point; print([n for n in sys.modules if n.startswith('opentelemetry')])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
