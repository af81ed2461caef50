"""Serves the metrics of running pipelines to Prometheus on a loopback port."""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from courser.model.metrics import Family, Metric, MetricKind, Sample
from courser.pipelines.state_folder import Status
from courser.wire.prometheus import CONTENT_TYPE, encode_families

HOST = "127.0.0.1"
"""Loopback only, because labels reveal names. To reach the metrics from elsewhere, put a proxy in front."""
_SECOND = 1_000_000


def render(statuses: Iterable[Status], now: int) -> str:
    """All metrics as text. ``now`` is microseconds since 1970."""
    listed = list(statuses)
    return "".join(encode_families(_families(listed, now)))


def _families(statuses: list[Status], now: int) -> Iterator[Family]:
    for metric, value in _METRICS:
        figures = [(status.name, value(status, now)) for status in statuses]
        yield Family(metric, (_sample(metric, figure, name) for name, figure in figures if figure is not None))
    lags = [(lag, status.name, partition) for status in statuses for partition, lag in _by_number(status.lag)]
    yield Family(_PARTITION_LAG, (_sample(_PARTITION_LAG, *each) for each in lags))
    durations = [
        (milliseconds / 1000, status.name, part)
        for status in statuses
        for part, milliseconds in {"all": status.batch_milliseconds, **status.milliseconds_by_part}.items()
    ]
    yield Family(_BATCH_SECONDS, (_sample(_BATCH_SECONDS, *each) for each in durations))


def _sample(metric: Metric, value: float, *labels: str) -> Sample:
    return Sample(metric.labeled(*labels), int(value) if value % 1 == 0 else value)


def _by_number(lag: Mapping[str, int]) -> list[tuple[str, int]]:
    return sorted(lag.items(), key=lambda item: int(item[0]))


def _watermark_delay(status: Status, now: int) -> float | None:
    if status.watermark is None:
        return None
    with suppress(ValueError):
        moment = datetime.fromisoformat(status.watermark)
        delay = now / _SECOND - moment.astimezone(UTC).timestamp()
        # Before the first row, the watermark is the beginning of 1970.
        return delay if moment.year > 1970 else None
    return None


def _metric(name: str, text: str, *labels: str) -> Metric:
    kind = MetricKind.COUNTER if name.endswith("_total") else MetricKind.GAUGE
    return Metric(f"courser_pipeline_{name}", kind, text, ("pipeline", *labels))


_Value = Callable[[Status, int], float | None]
_METRICS: tuple[tuple[Metric, _Value], ...] = (
    (_metric("up", "1 while it is running, 0 after it has ended."), lambda status, _: not status.is_over),
    (_metric("rows_total", "Rows read since the start."), lambda status, _: status.rows),
    (_metric("rows_per_second", "Rows per second in the last batch."), lambda status, _: status.rows_per_second),
    (_metric("batch_id", "Number of the last batch."), lambda status, _: status.batch),
    (_metric("lag_messages", "Messages not read yet, all partitions."), lambda status, _: status.total_lag),
    (_metric("lost_messages_total", "Messages gone before they were read."), lambda status, _: status.lost),
    (_metric("bad_rows_total", "Rows that could not be decoded."), lambda status, _: status.bad_rows),
    (_metric("files_total", "Files added to a table since the start."), lambda status, _: status.files),
    (
        _metric("freshness_seconds", "The age of the oldest message that a table may still lack."),
        lambda status, now: None if status.fresh_at is None else max(0, now - status.fresh_at) / _SECOND,
    ),
    (
        _metric("seconds_since_commit", "Seconds since the last commit to a table."),
        lambda status, now: None if status.committed_at is None else max(0, now - status.committed_at) / _SECOND,
    ),
    (_metric("restarts_total", "Restarts after failures."), lambda status, _: status.restarts),
    (
        _metric("seconds_since_update", "Seconds since its last status update."),
        lambda status, now: max(0, now - status.updated_at) / _SECOND,
    ),
    (_metric("watermark_delay_seconds", "How far the watermark is behind the clock."), _watermark_delay),
)
_PARTITION_LAG = _metric("partition_lag_messages", "Messages not read yet, by partition.", "partition")
_BATCH_SECONDS = _metric("batch_seconds", "Duration of the last batch, by part.", "part")


class MetricsServer:
    """Answers ``GET /metrics`` on loopback, in a thread of its own."""

    def __init__(self, port: int, text: Callable[[], str]) -> None:
        """Start listening. Port 0 means any free port. Raises ``OSError`` if that fails."""

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                is_known = self.path.partition("?")[0] in ("/metrics", "/")
                body = text().encode() if is_known else b"not found; try /metrics\n"
                self.send_response(200 if is_known else 404)
                self.send_header("Content-Type", CONTENT_TYPE)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 -- the base class's name
                del format, arguments

        self._server = ThreadingHTTPServer((HOST, port), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return int(self._server.server_address[1])

    def close(self) -> None:
        """Stop listening, and wait for the thread."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
