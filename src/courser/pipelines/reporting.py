"""Tells the server how a pipeline is doing, from a thread of its own: a server that hangs does not delay it."""

import re
import threading
from contextlib import suppress

from courser.client.targets import Target
from courser.errors import CourserError
from courser.pipelines.definition import Definition, TopicSource
from courser.pipelines.state_folder import Status
from courser.spark.background_clients import connection_to

_PAUSE = 1.0
"""Seconds between two reports."""
_CLOSE_PATIENCE = 5.0
"""Seconds in which the last report must be sent."""
_TEXT_LENGTH_MAX = 8_000
"""Letters of a text: the server takes four times as many bytes."""
_LOGIN_IN_URL = re.compile(r"(://)[^/@\s\"']+@")
_SECRET = re.compile(
    r"^(\s*[\w.\"-]*(?:password|secret|token|access_key)[\w.\"-]*\s*=\s*).*$", re.IGNORECASE | re.MULTILINE
)


def masked(text: str) -> str:
    """A definition without logins in addresses and values of secret keys."""
    return _SECRET.sub(r'\1"***"', _LOGIN_IN_URL.sub(r"\1***@", text))


class Reporter:
    """Sends the newest status, at most once a second. A server that cannot be reached gets the next one."""

    def __init__(self, definition: Definition, target: Target) -> None:
        self._target = target
        self._consumer = definition.source.consumer if isinstance(definition.source, TopicSource) else ""
        self._text = ""
        with suppress(OSError, UnicodeDecodeError):
            self._text = masked(definition.path.read_text("utf-8"))[:_TEXT_LENGTH_MAX]
        self._newest: Status | None = None
        self._changed = threading.Condition()
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name=f"reports of {definition.name}", daemon=True)
        self._thread.start()

    def note(self, status: Status) -> None:
        """There is something new."""
        with self._changed:
            self._newest = status
            self._changed.notify()

    def close(self) -> None:
        """Send what is left, and end."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._thread.join(_CLOSE_PATIENCE)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._newest is not None or self._is_closed)
                status, self._newest = self._newest, None
                if status is None:
                    return
            # An older server does not know the command.
            with suppress(CourserError):
                self._send(status)
            with self._changed:
                self._changed.wait_for(lambda: self._is_closed, _PAUSE)

    def _send(self, status: Status) -> None:
        connection_to(self._target).report_pipeline(
            status.name,
            status.state,
            consumer=self._consumer or "",
            host=status.host[:_HOST_LENGTH_MAX],
            started_at=status.started_at,
            batch_count=0 if status.batch is None else status.batch + 1,
            rows=status.rows,
            rows_per_second=int(status.rows_per_second),
            lag=status.total_lag,
            lost=status.lost,
            bad_rows=status.bad_rows,
            restarts=status.restarts,
            source=status.source[:_TEXT_LENGTH_MAX],
            sink=status.sink[:_TEXT_LENGTH_MAX],
            error=(status.error or "")[:_TEXT_LENGTH_MAX],
            definition=self._text,
        )


_HOST_LENGTH_MAX = 60
"""Letters of the name of a host: at most 255 bytes."""
