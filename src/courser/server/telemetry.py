"""Export traces, metrics and logs with OpenTelemetry. Imported only if it is enabled: the libraries are an extra.

Requests are traced around the dispatcher, so all transports are covered. Which requests are traced is decided before
anything else: the others cost one random number. Whoever sends a trace context with a request over HTTP has decided it.
Exports run on the library's threads; the event loop only collects.
"""

import asyncio
import importlib
import logging
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.context import Context
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor, LogRecordExporter
from opentelemetry.sdk.metrics.export import MetricExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Span, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from courser import __version__
from courser.api.commands import Command
from courser.api.replies import Reply
from courser.broker.access.sessions import Session
from courser.broker.partition.waiting import Waiting
from courser.errors import CourserError
from courser.model.metrics import Family
from courser.server.configuration.settings import GRPC, TelemetrySettings
from courser.server.log_format import facts_of
from courser.server.telemetry_metrics import metric_of, metrics_data

Begin = Callable[[Session, Command], Reply | Waiting[Any] | None]

_PROPAGATOR = TraceContextTextMapPropagator()
_SCOPE = "courser"
_EXPORT_TIMEOUT = 5.0
"""Seconds that one export may take."""
_CLOSE_TIMEOUT = 3.0
"""Seconds that a stop waits for the last exports. What a collector does not accept by then is lost."""
_OWN_LOGGERS = ("opentelemetry", "urllib3", "requests", "grpc")
"""Loggers of the exporter itself. Exporting their lines would cause further lines."""


class Telemetry:
    """The exports of one server.

    Args:
        settings: what to export, and where to.
        draw: returns a random number from 0 to 1, to choose the requests that are traced.
    """

    def __init__(self, settings: TelemetrySettings, draw: Callable[[], float]) -> None:
        self._settings = settings
        self._draw = draw
        self._started_at = time.time_ns()
        self._resource = Resource.create({"service.name": settings.service_name, "service.version": __version__})
        self._tracers: TracerProvider | None = None
        self._loggers: LoggerProvider | None = None
        self._log_handler: ExportingHandler | None = None
        self._metrics: MetricExporter | None = None
        if settings.traces_endpoint:
            self._tracers = TracerProvider(sampler=ALWAYS_ON, resource=self._resource, shutdown_on_exit=False)
            spans: SpanExporter = _exporter(
                settings.traces_transport, "trace_exporter", "OTLPSpanExporter", settings.traces_endpoint
            )
            self._tracers.add_span_processor(BatchSpanProcessor(spans))
        if settings.logs_endpoint:
            self._loggers = LoggerProvider(resource=self._resource, shutdown_on_exit=False)
            records: LogRecordExporter = _exporter(
                settings.logs_transport, "_log_exporter", "OTLPLogExporter", settings.logs_endpoint
            )
            self._loggers.add_log_record_processor(BatchLogRecordProcessor(records))
            self._log_handler = ExportingHandler(self._loggers)
            logging.getLogger().addHandler(self._log_handler)
        if settings.metrics_endpoint:
            self._metrics = _exporter(
                settings.metrics_transport, "metric_exporter", "OTLPMetricExporter", settings.metrics_endpoint
            )

    def traced(self, begin: Begin) -> Begin:
        """``Dispatcher.begin`` with a span around some requests."""
        if self._tracers is None:
            return begin
        tracer, draw, ratio = self._tracers.get_tracer(_SCOPE, __version__), self._draw, 1 / self._settings.one_in

        def begin_traced(session: Session, command: Command) -> Reply | Waiting[Any] | None:
            trace = session.trace
            if draw() >= ratio if trace is None else not trace.is_sampled:
                return begin(session, command)
            span = tracer.start_span(
                type(command).__name__,
                context=None if trace is None else _PROPAGATOR.extract(trace.headers, Context()),
                kind=SpanKind.SERVER,
                attributes=_facts(session, command),
            )
            try:
                answer = begin(session, command)
            except BaseException as error:
                _end(span, error)
                raise
            if isinstance(answer, Waiting):
                answer.future.add_done_callback(lambda _: _end_waiting(span, answer))
            else:
                span.end()
            return answer

        return begin_traced

    async def export_metrics(self, families: Iterable[Family]) -> None:
        """Export the current values of metrics."""
        if self._metrics is None:
            return
        metrics, now = [], time.time_ns()
        for family in families:
            metrics.append(metric_of(family, self._started_at, now))
            # Some names have a time series for each partition. Others come in between.
            await asyncio.sleep(0)
        data = metrics_data(metrics, self._resource, InstrumentationScope(_SCOPE, __version__))
        await asyncio.to_thread(self._metrics.export, data)

    async def close(self) -> None:
        """Export what is left, and stop. A collector that does not answer delays this only for some seconds."""
        if self._log_handler is not None:
            logging.getLogger().removeHandler(self._log_handler)
        # A daemon, because the end of the process would wait for any other thread.
        closing = threading.Thread(target=self._shut_down, name="telemetry", daemon=True)
        closing.start()
        await asyncio.to_thread(closing.join, _CLOSE_TIMEOUT)

    def _shut_down(self) -> None:
        for part in (self._tracers, self._loggers, self._metrics):
            if part is not None:
                part.shutdown()


def only_traces(settings: TelemetrySettings) -> TelemetrySettings:
    """The settings of a process that exports no more: the first one has the logs and metrics of all."""
    return replace(settings, logs_endpoint="", metrics_endpoint="")


def _exporter(transport: str, module: str, name: str, endpoint: str) -> Any:
    """An exporter of one of the two libraries, which use the same names."""
    kind = getattr(importlib.import_module(f"opentelemetry.exporter.otlp.proto.{transport}.{module}"), name)
    # Over gRPC, only the scheme of the endpoint tells whether the collector is reached with TLS.
    options = {"insecure": endpoint.startswith("http://")} if transport == GRPC else {}
    return kind(endpoint=endpoint, timeout=_EXPORT_TIMEOUT, **options)


# --- spans --------------------------------------------------------------------------------------------


def _facts(session: Session, command: Command) -> dict[str, str | int]:
    facts: dict[str, str | int] = {
        "courser.transport": session.transport.name.lower(),
        "courser.client_id": session.client_id,
        "client.address": session.address,
    }
    if session.user_id is not None:
        facts["user.id"] = str(session.user_id)
    if session.request_id is not None:
        facts["courser.request_id"] = session.request_id
    for name in ("stream", "topic"):
        value = getattr(command, name, None)
        if isinstance(value, int | str):
            facts[f"courser.{name}"] = value
    return facts


def _end_waiting(span: Span, waiting: Waiting[Any]) -> None:
    try:
        waiting.result()
    except BaseException as error:  # noqa: BLE001 - whoever waits handles it
        _end(span, error)
    else:
        span.end()


def _end(span: Span, error: BaseException) -> None:
    """End the span of a request that failed. What a client did wrong is no error of the server."""
    if isinstance(error, CourserError):
        span.set_attribute("courser.error_code", int(error.code))
        span.set_attribute("error.type", error.code.name.lower())
    elif not isinstance(error, asyncio.CancelledError):
        span.set_status(Status(StatusCode.ERROR, str(error)))
        span.record_exception(error)
    span.end()


# --- logs ---------------------------------------------------------------------------------------------

_SEVERITIES = (
    (logging.CRITICAL, SeverityNumber.FATAL),
    (logging.ERROR, SeverityNumber.ERROR),
    (logging.WARNING, SeverityNumber.WARN),
    (logging.INFO, SeverityNumber.INFO),
    (logging.DEBUG, SeverityNumber.DEBUG),
)


class ExportingHandler(logging.Handler):
    """Hands log records to the exporter. The facts of a record become attributes."""

    def __init__(self, provider: LoggerProvider) -> None:
        super().__init__()
        self._provider = provider

    def emit(self, record: logging.LogRecord) -> None:
        """Queue one record. Never waits: if the queue is full, the oldest records are dropped."""
        if record.name.startswith(_OWN_LOGGERS):
            return
        severity = next((number for level, number in _SEVERITIES if record.levelno >= level), SeverityNumber.TRACE)
        self._provider.get_logger(record.name).emit(
            LogRecord(
                timestamp=int(record.created * 1_000_000_000),
                observed_timestamp=time.time_ns(),
                severity_number=severity,
                severity_text=record.levelname,
                body=record.getMessage(),
                attributes=facts_of(record),
                exception=record.exc_info[1] if record.exc_info else None,
            )
        )
