"""The book of a job that publishes in steps: a small file that records the planned steps.

Each step is one batch of a sink on the server, which publishes it exactly once. The book records the steps, so that a
run after a crash repeats the same ones. Which of them are published is known for certain only by the server.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from courser.api.replies import SinkInfo
from courser.errors import ClientFailure
from courser.lake.atomic_files import write_atomically
from courser.lake.file_names import folder_name
from courser.spark.addresses import check_local

_VERSION = 1
_STATE_VARIABLE = "COURSER_STATE_HOME"


class BookRefused(ClientFailure):
    """The job cannot continue from its book."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{reason} (book: {path}); to start over, give the job another name")


@dataclass(slots=True)
class JobBook:
    """The steps of one job, in order. Each is a list of JSON values."""

    path: Path
    subject: dict[str, Any]
    """What the job works on. Another subject under the same name is an error."""
    steps: list[list[Any]] = field(default_factory=list)
    done_count: int = 0
    """Steps that the server had published when it was last asked."""

    def save(self) -> None:
        """Save it durably. Called before any of the planned steps is started."""
        values = {"v": _VERSION, "subject": self.subject, "steps": self.steps, "done_count": self.done_count}
        write_atomically(self.path, json.dumps(values).encode())

    def note_published(self, sink: SinkInfo) -> None:
        """Update the book from what the server has published.

        Raises:
            BookRefused: the book does not match the server.
        """
        published = 0 if sink.batch is None else sink.batch + 1
        if published < self.done_count:
            raise BookRefused(
                self.path, f"the server has published {published} steps, but the book has {self.done_count}"
            )
        if published > len(self.steps):
            reason = f"the server has published {published} steps, but only {len(self.steps)} are in the book"
            raise BookRefused(self.path, reason)
        self.done_count = published

    def add_steps(self, steps: Sequence[list[Any]]) -> None:
        """Plan more steps, durably."""
        self.steps += steps
        self.save()


def book_path(folder: Path, job: str) -> Path:
    """The path of a job's book. Raises ``AddressGiven``."""
    check_local(folder, "the folder for the progress of jobs")
    return folder / f"{folder_name('job', job)}.json"


def open_book(path: Path, subject: dict[str, Any]) -> JobBook:
    """The book of a job, or a new one.

    Raises:
        BookRefused: it is for something else, or cannot be read.
    """
    try:
        values = json.loads(path.read_bytes())
        version, known = values["v"], values["subject"]
        book = JobBook(path, known, values["steps"], values["done_count"])
    except FileNotFoundError:
        return JobBook(path, subject)
    except (ValueError, KeyError, TypeError) as error:
        raise BookRefused(path, f"could not read the book of the job: {error!r}") from error
    if version != _VERSION:
        raise BookRefused(path, f"the book of the job has version {version}, not {_VERSION}")
    for name, value in subject.items():
        if known.get(name) != value:
            raise BookRefused(path, f"a job of this name already exists for {name} {known.get(name)}, not {value}")
    return book


def default_books(environment: Mapping[str, str]) -> Path:
    """The default folder for the books of jobs."""
    return state_home(environment) / "jobs"


def state_home(environment: Mapping[str, str] = os.environ) -> Path:
    """The folder for the state of jobs and pipelines: ``COURSER_STATE_HOME``, else a folder in that of the system.

    Raises:
        AddressGiven: the variable contains an address.
    """
    if home := environment.get(_STATE_VARIABLE):
        check_local(home, _STATE_VARIABLE)
        return Path(home)
    if home := environment.get("XDG_STATE_HOME"):
        return Path(home) / "courser"
    return Path(environment.get("HOME") or Path.home()) / ".local" / "state" / "courser"
