"""The state folder of a pipeline: its status and log, and a way to ask it to stop from another terminal.

``$COURSER_STATE_HOME/pipelines/NAME``, else ``$XDG_STATE_HOME/courser/pipelines/NAME``, else
``~/.local/state/courser/pipelines/NAME``:

* ``status.json``: the last status, replaced atomically;
* ``stop``: created by ``courser pipeline stop``; the runner stops when it sees it;
* ``lock``: held by the runner;
* ``log.txt``: errors with full traces; ``spark.txt``: Java's output.

Nothing in it is needed to continue after a restart: that is what the checkpoint is for.
"""

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from courser.jobs.job_book import state_home
from courser.pipelines.locking import process_started


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """The status of a pipeline. Times are microseconds since 1970."""

    name: str
    file: str
    checkpoint: str
    generation: int = 1
    state: str = "starting"
    """starting, running, restarting, stopping; or stopped, finished, failed when it has ended."""
    mode: str
    source: str
    sink: str
    pid: int
    process_started: int
    host: str
    started_at: int
    updated_at: int
    batch: int | None = None
    """The last finished batch."""
    rows: int = 0
    """Read since the start."""
    rows_per_second: float = 0.0
    batch_milliseconds: int = 0
    milliseconds_by_part: Mapping[str, int] = field(default_factory=dict)
    lag: Mapping[str, int] = field(default_factory=dict)
    """Messages that are not read yet, by partition."""
    lost: int = 0
    """Messages that were gone before they were read."""
    bad_rows: int = 0
    watermark: str | None = None
    files: int = 0
    """Of a table, that were added since the start."""
    committed_at: int | None = None
    """When a table got its newest rows."""
    fresh_at: int | None = None
    """A table has all messages from before this time."""
    restarts: int = 0
    """Since the start."""
    error: str | None = None
    """The last error, in one line."""

    @property
    def total_lag(self) -> int:
        """The messages of all partitions that are not read yet."""
        return sum(self.lag.values())

    @property
    def is_over(self) -> bool:
        """Whether it has ended and said so."""
        return self.state in ("stopped", "finished", "failed")

    @property
    def state_now(self) -> str:
        """The state, or ``killed`` if the process is gone without having said so."""
        if not self.is_over and self.host == os.uname().nodename and not self._runs:
            return "killed"
        return self.state

    @property
    def _runs(self) -> bool:
        return process_started(self.pid) == self.process_started


_FIELDS = {entry.name for entry in fields(Status)}


def pipelines_home(environment: Mapping[str, str] = os.environ) -> Path:
    """The folder that contains the state folders of all pipelines."""
    return state_home(environment) / "pipelines"


@dataclass(frozen=True, slots=True)
class StateFolder:
    """The folder of one pipeline."""

    home: Path
    name: str

    @property
    def path(self) -> Path:
        return self.home / self.name

    @property
    def lock_path(self) -> Path:
        """Held by the runner."""
        return self.path / "lock"

    @property
    def log_path(self) -> Path:
        """Errors with full traces."""
        return self.path / "log.txt"

    @property
    def spark_log_path(self) -> Path:
        """The file with Java's output."""
        return self.path / "spark.txt"

    @property
    def _stop_path(self) -> Path:
        return self.path / "stop"

    def write(self, status: Status) -> None:
        """Replace the status atomically."""
        self.path.mkdir(parents=True, exist_ok=True)
        unfinished = self.path / f".status.{os.getpid()}"
        unfinished.write_text(json.dumps(asdict(status), indent=1), "utf-8")
        unfinished.replace(self.path / "status.json")

    def read(self) -> Status | None:
        """The last status; None if there is none, or if this version cannot parse it."""
        with suppress(OSError, ValueError, TypeError):
            values: dict[str, Any] = json.loads((self.path / "status.json").read_text("utf-8"))
            return Status(**{name: value for name, value in values.items() if name in _FIELDS})
        return None

    def request_stop(self) -> None:
        """Ask the runner to stop."""
        self._stop_path.touch()

    def is_stop_requested(self) -> bool:
        """Whether the runner was asked to stop."""
        return self._stop_path.exists()

    def clear_stop(self) -> None:
        """Clear the request at the start of a new run."""
        self._stop_path.unlink(missing_ok=True)


def all_statuses(home: Path) -> list[Status]:
    """The status of every pipeline that ever ran here, by name."""
    names = sorted(path.name for path in home.iterdir() if path.is_dir()) if home.is_dir() else []
    found = (StateFolder(home, name).read() for name in names)
    return [status for status in found if status is not None]
