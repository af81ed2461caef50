"""Views of running pipelines: a live table at a terminal, one JSON object per line elsewhere."""

import json
import shutil
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from types import TracebackType
from typing import Self

from courser.cli.fields import Record, fields
from courser.cli.output import fitting
from courser.cli.terminal import flush, harmless, write
from courser.pipelines.state_folder import Status

STATUS_LIST_FIELDS = fields(
    "name, state, mode/2, source/1, sink/2, batch#/1, rows#, rows_per_second=rows/s#, total_lag=lag#, "
    "bad_rows=bad#/1, lost#/1, restarts#/2, error"
)
STATUS_FIELDS = fields(
    "name, state, mode, file, source, sink, checkpoint, generation, pid=process, started_at=started, "
    "updated_at=updated, batch, rows, rows_per_second, batch_milliseconds, total_lag=lag, lag=lag by partition, "
    "watermark, bad_rows, lost=lost messages, files, committed_at=last commit, fresh_at=fresh at, restarts, error"
)
_LIVE_FIELDS = tuple(field for field in STATUS_LIST_FIELDS if field.key not in ("mode", "restarts"))


def record_of(status: Status) -> Record:
    return {**asdict(status), "state": status.state_now, "total_lag": status.total_lag}


class View:
    """Shows statuses as they change; this one shows nothing. A context manager."""

    def update(self, statuses: Sequence[Status]) -> None:
        """Show the current statuses."""

    def show_batch(self, name: str, batch: int, text: str) -> None:
        """Show rows of a console sink."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None


class LineView(View):
    """Prints one line per change."""

    def __init__(self) -> None:
        self._shown: dict[str, Status] = {}

    def update(self, statuses: Sequence[Status]) -> None:
        """Write the statuses that have changed."""
        for status in statuses:
            if self._shown.get(status.name) != status:
                self._shown[status.name] = status
                write(json.dumps(dict(record_of(status))) + "\n")
        flush()

    def show_batch(self, name: str, batch: int, text: str) -> None:
        """Write one object with the rows as text."""
        write(json.dumps({"name": name, "batch": batch, "rows_text": text}) + "\n")
        flush()


class LiveView(View):
    """A table that is redrawn in place."""

    def __init__(self) -> None:
        from courser.cli.drawing import live_table  # noqa: PLC0415 -- rich, only where something is drawn

        self._table: AbstractContextManager[object]
        self._table, self._draw, self._print = live_table()

    def update(self, statuses: Sequence[Status]) -> None:
        """Draw the table of all statuses anew."""
        records = [record_of(status) for status in statuses]
        lines = [tuple(harmless(field.show(record)) for field in _LIVE_FIELDS) for record in records]
        width = shutil.get_terminal_size().columns
        self._draw(
            *fitting(_LIVE_FIELDS, lines, width), [status.state in ("failed", "restarting") for status in statuses]
        )

    def show_batch(self, name: str, batch: int, text: str) -> None:
        """Print the rows above the table."""
        lines = "\n".join(harmless(line) for line in text.splitlines())
        self._print(f"{name}, batch {batch}\n{lines}")

    def __enter__(self) -> Self:
        self._table.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._table.__exit__(kind, error, trace)


def make_view(output: str, *, is_terminal: bool) -> View:
    """The view for this output format and kind of stdout."""
    if output in ("json", "csv"):
        return View()
    return LiveView() if output == "table" and is_terminal else LineView()
