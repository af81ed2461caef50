"""The keys of OpenTelemetry, with Iggy's names."""

from urllib.parse import urlsplit

from courser.configuration.key import Key
from courser.model.quantities import SECOND
from courser.server.configuration import kinds

_COLLECTOR = "http://localhost:7281/v1"
HTTP, GRPC = "http", "grpc"


def _url(value: object) -> str:
    if isinstance(value, str):
        parts = urlsplit(value)
        if not value or (parts.scheme in ("http", "https") and parts.hostname):
            return value
    raise ValueError(value)


_URL = kinds.SettingKind("URL", "an `http://` or `https://` URL, or an empty text", _url, _url, kinds.quoted)


def _transport(signal: str, note: str = "") -> Key[str]:
    return Key(
        path=f"telemetry.{signal}.transport",
        kind=kinds.choice(HTTP, GRPC),
        default=HTTP,
        description=f"the protocol of OTLP; `grpc` needs the extra `otel-grpc`{note}",
    )


def _endpoint(signal: str, what: str) -> Key[str]:
    return Key(
        path=f"telemetry.{signal}.endpoint",
        kind=_URL,
        default=f"{_COLLECTOR}/{signal}",
        description=f"where to send {what}; empty means nowhere",
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
TRACES_TRANSPORT = _transport("traces", " (Iggy: grpc)")
TRACES_ENDPOINT = _endpoint("traces", "traces")
TRACES_SAMPLE = Key(
    path="telemetry.traces.one_in",
    kind=kinds.integer(1, 1_000_000_000),
    default=100,
    description="one request in this many is traced, chosen at random",
)
LOGS_TRANSPORT = _transport("logs", " (Iggy: grpc)")
LOGS_ENDPOINT = _endpoint("logs", "the log")
METRICS_TRANSPORT = _transport("metrics")
METRICS_ENDPOINT = _endpoint("metrics", "metrics")
METRICS_INTERVAL = Key(
    path="telemetry.metrics.interval",
    kind=kinds.duration(SECOND),
    default=60 * SECOND,
    description="time between two exports of metrics",
)
