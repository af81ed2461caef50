"""A collector for OTLP over HTTP or gRPC on loopback: keeps what it receives, decoded."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

import grpc  # type: ignore[import-untyped]
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

_KINDS: dict[str, Any] = {
    "/v1/traces": ExportTraceServiceRequest,
    "/v1/logs": ExportLogsServiceRequest,
    "/v1/metrics": ExportMetricsServiceRequest,
}
_SERVICES: dict[str, Any] = {
    "opentelemetry.proto.collector.trace.v1.TraceService": ExportTraceServiceRequest,
    "opentelemetry.proto.collector.logs.v1.LogsService": ExportLogsServiceRequest,
    "opentelemetry.proto.collector.metrics.v1.MetricsService": ExportMetricsServiceRequest,
}
PATIENCE = 120.0
"""Seconds after which a test gives up."""


class Receiver:
    """Receives from the begin to the end of the block."""

    def __init__(self, *, is_grpc: bool = False) -> None:
        self._requests: list[Any] = []
        self._changed = threading.Condition()
        self._listener = _GrpcListener(self._take) if is_grpc else _HttpListener(self._take)

    def __enter__(self) -> Self:
        self._listener.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.stop()

    def endpoint(self, signal: str) -> str:
        """Where ``traces``, ``logs`` or ``metrics`` go."""
        return f"http://127.0.0.1:{self._listener.port}/v1/{signal}"

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


class _HttpListener:
    def __init__(self, take: Callable[[Any], None]) -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                take(_KINDS[self.path].FromString(body))
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]

    def start(self) -> None:
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class _GrpcListener:
    def __init__(self, take: Callable[[Any], None]) -> None:
        def export(request: Any, _: grpc.ServicerContext) -> bytes:
            take(request)
            # An empty reply accepts everything.
            return b""

        self._server = grpc.server(ThreadPoolExecutor(2))
        for service, kind in _SERVICES.items():
            handler = grpc.unary_unary_rpc_method_handler(export, request_deserializer=kind.FromString)
            self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {"Export": handler}),))
        self.port = self._server.add_insecure_port("127.0.0.1:0")

    def start(self) -> None:
        self._server.start()

    def stop(self) -> None:
        self._server.stop(None).wait()


def attributes_of(entry: Any) -> dict[str, Any]:
    """The attributes of a span, a log record, a data point or a resource."""
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in entry.attributes}
