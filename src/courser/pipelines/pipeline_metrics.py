"""Serves the metrics of running pipelines to Prometheus on a loopback port."""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from courser.pipelines.state_folder import Status

HOST = "127.0.0.1"
"""Loopback only, because labels reveal names. To reach the metrics from elsewhere, put a proxy in front."""
_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECOND = 1_000_000


def render(statuses: Iterable[Status], now: int) -> str:
    """All metrics as text. ``now`` is microseconds since 1970."""
    listed = list(statuses)
    return "\n".join(_lines(listed, now)) + "\n"


def _lines(statuses: list[Status], now: int) -> Iterator[str]:
    for name, kind, text, value in _METRICS:
        yield from _head(name, kind, text)
        for status in statuses:
            figure = value(status, now)
            if figure is not None:
                yield _sample(name, {"pipeline": status.name}, figure)
    yield from _head("partition_lag_messages", "gauge", "Messages not read yet, by partition.")
    for status in statuses:
        for partition, lag in sorted(status.lag.items(), key=lambda item: int(item[0])):
            yield _sample("partition_lag_messages", {"pipeline": status.name, "partition": partition}, lag)
    yield from _head("batch_seconds", "gauge", "Duration of the last batch, by part.")
    for status in statuses:
        parts = {"all": status.batch_milliseconds, **status.milliseconds_by_part}
        for part, milliseconds in parts.items():
            yield _sample("batch_seconds", {"pipeline": status.name, "part": part}, milliseconds / 1000)


def _head(name: str, kind: str, text: str) -> Iterator[str]:
    yield f"# HELP courser_pipeline_{name} {text}"
    yield f"# TYPE courser_pipeline_{name} {kind}"


def _sample(name: str, labels: Mapping[str, str], value: float) -> str:
    inner = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels.items())
    return f"courser_pipeline_{name}{{{inner}}} {value:g}" if value % 1 else _whole(name, inner, value)


def _whole(name: str, inner: str, value: float) -> str:
    return f"courser_pipeline_{name}{{{inner}}} {int(value)}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _watermark_delay(status: Status, now: int) -> float | None:
    if status.watermark is None:
        return None
    with suppress(ValueError):
        moment = datetime.fromisoformat(status.watermark)
        delay = now / _SECOND - moment.astimezone(UTC).timestamp()
        # Before the first row, the watermark is the beginning of 1970.
        return delay if moment.year > 1970 else None
    return None


_Value = Callable[[Status, int], float | None]
_METRICS: tuple[tuple[str, str, str, _Value], ...] = (
    ("up", "gauge", "1 while it is running, 0 after it has ended.", lambda status, _: 0 if status.is_over else 1),
    ("rows_total", "counter", "Rows read since the start.", lambda status, _: status.rows),
    ("rows_per_second", "gauge", "Rows per second in the last batch.", lambda status, _: status.rows_per_second),
    ("batch_id", "gauge", "Number of the last batch.", lambda status, _: status.batch),
    ("lag_messages", "gauge", "Messages not read yet, all partitions.", lambda status, _: status.total_lag),
    ("lost_messages_total", "counter", "Messages gone before they were read.", lambda status, _: status.lost),
    ("bad_rows_total", "counter", "Rows that could not be decoded.", lambda status, _: status.bad_rows),
    ("restarts_total", "counter", "Restarts after failures.", lambda status, _: status.restarts),
    (
        "seconds_since_update",
        "gauge",
        "Seconds since its last status update.",
        lambda status, now: max(0, now - status.updated_at) / _SECOND,
    ),
    (
        "watermark_delay_seconds",
        "gauge",
        "How far the watermark is behind the clock.",
        _watermark_delay,
    ),
)


class MetricsServer:
    """Answers ``GET /metrics`` on loopback, in a thread of its own."""

    def __init__(self, port: int, text: Callable[[], str]) -> None:
        """Start listening. Port 0 means any free port. Raises ``OSError`` if that fails."""

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                is_known = self.path.partition("?")[0] in ("/metrics", "/")
                body = text().encode() if is_known else b"not found; try /metrics\n"
                self.send_response(200 if is_known else 404)
                self.send_header("Content-Type", _CONTENT_TYPE)
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
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
