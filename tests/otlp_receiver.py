"""A collector for OTLP over HTTP on loopback: keeps what it receives, decoded."""

import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

_KINDS: dict[str, Any] = {
    "/v1/traces": ExportTraceServiceRequest,
    "/v1/logs": ExportLogsServiceRequest,
    "/v1/metrics": ExportMetricsServiceRequest,
}
PATIENCE = 120.0
"""Seconds after which a test gives up."""


class Receiver:
    """Receives from the begin to the end of the block."""

    def __init__(self) -> None:
        self._requests: list[Any] = []
        self._changed = threading.Condition()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver._take(_KINDS[self.path].FromString(body))
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()

    def endpoint(self, signal: str) -> str:
        """Where ``traces``, ``logs`` or ``metrics`` go."""
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1/{signal}"

    def _take(self, request: Any) -> None:
        with self._changed:
            self._requests.append(request)
            self._changed.notify_all()

    def wait_for(self, condition: Callable[[], bool]) -> None:
        """Wait until enough has come."""
        with self._changed:
            assert self._changed.wait_for(condition, PATIENCE), "the exports do not come"

    @property
    def spans(self) -> list[Any]:
        """All spans so far."""
        return [
            span
            for request in self._requests
            if isinstance(request, ExportTraceServiceRequest)
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    @property
    def records(self) -> list[Any]:
        """All log records so far."""
        return [
            record
            for request in self._requests
            if isinstance(request, ExportLogsServiceRequest)
            for resource in request.resource_logs
            for scope in resource.scope_logs
            for record in scope.log_records
        ]

    @property
    def metrics(self) -> dict[str, Any]:
        """The metrics by name, as they came last."""
        return {
            metric.name: metric
            for request in self._requests
            if isinstance(request, ExportMetricsServiceRequest)
            for resource in request.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }

    @property
    def services(self) -> set[str]:
        """The names of the services that sent something."""
        found = set()
        for request in self._requests:
            for resource in next(iter(request.ListFields()))[1]:
                found.add(attributes_of(resource.resource)["service.name"])
        return found


def attributes_of(entry: Any) -> dict[str, Any]:
    """The attributes of a span, a log record, a data point or a resource."""
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in entry.attributes}
