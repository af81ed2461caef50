"""The keys of OpenTelemetry, with Iggy's names."""

from urllib.parse import urlsplit

from courser.configuration.key import Key
from courser.model.quantities import SECOND
from courser.server.configuration import kinds

_COLLECTOR = "http://localhost:7281/v1"
HTTP, GRPC = "http", "grpc"
_TRANSPORT = "the protocol of OTLP; `grpc` needs the extra `otel-grpc` (Iggy: grpc)"


def _endpoint(value: object) -> str:
    if isinstance(value, str):
        parts = urlsplit(value)
        if not value or (parts.scheme in ("http", "https") and parts.hostname):
            return value
    raise ValueError(value)


_ENDPOINT = kinds.SettingKind(
    "URL", "an `http://` or `https://` URL, or an empty text", _endpoint, _endpoint, kinds.quoted
)

TELEMETRY_ENABLED = Key(
    path="telemetry.enabled",
    kind=kinds.BOOL,
    default=False,
    description="whether to export traces, metrics and logs with OpenTelemetry; needs the extra `otel`",
)
SERVICE_NAME = Key(
    path="telemetry.service_name",
    kind=kinds.TEXT,
    default="courser",
    description="the name of this server in what it exports (Iggy: iggy)",
)
TRACES_TRANSPORT = Key(
    path="telemetry.traces.transport", kind=kinds.choice(HTTP, GRPC), default=HTTP, description=_TRANSPORT
)
TRACES_ENDPOINT = Key(
    path="telemetry.traces.endpoint",
    kind=_ENDPOINT,
    default=f"{_COLLECTOR}/traces",
    description="where to send traces; empty means nowhere",
)
TRACES_SAMPLE = Key(
    path="telemetry.traces.one_in",
    kind=kinds.integer(1, 1_000_000_000),
    default=100,
    description="one request in this many is traced, chosen at random",
)
LOGS_TRANSPORT = Key(
    path="telemetry.logs.transport", kind=kinds.choice(HTTP, GRPC), default=HTTP, description=_TRANSPORT
)
LOGS_ENDPOINT = Key(
    path="telemetry.logs.endpoint",
    kind=_ENDPOINT,
    default=f"{_COLLECTOR}/logs",
    description="where to send the log; empty means nowhere",
)
METRICS_TRANSPORT = Key(
    path="telemetry.metrics.transport",
    kind=kinds.choice(HTTP, GRPC),
    default=HTTP,
    description="the protocol of OTLP; `grpc` needs the extra `otel-grpc`",
)
METRICS_ENDPOINT = Key(
    path="telemetry.metrics.endpoint",
    kind=_ENDPOINT,
    default=f"{_COLLECTOR}/metrics",
    description="where to send metrics; empty means nowhere",
)
METRICS_INTERVAL = Key(
    path="telemetry.metrics.interval",
    kind=kinds.duration(SECOND),
    default=60 * SECOND,
    description="time between two exports of metrics",
)
