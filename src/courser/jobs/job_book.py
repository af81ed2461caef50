"""What a job that publishes in steps has planned: one small file, and the server's memory of what is published.

Each step is one batch of a sink at the server, and is published there exactly once. The book says what the steps are,
so that a run after a crash does the same steps again; which of them are done, the server knows for certain.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from courser.api.replies import SinkInfo
from courser.errors import CourserError
from courser.jobs.state_home import state_home
from courser.lake.naming import folder_name
from courser.lake.whole_files import write_whole

_VERSION = 1


class BookRefused(CourserError):
    """The job cannot go on from what is written down."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(path, reason)
        self.path = path
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.reason} (its book is {self.path}); give the job another name to begin anew"


@dataclass(slots=True)
class JobBook:
    """The steps of one job, in order; each is a list of whatever JSON can hold."""

    path: Path
    subject: dict[str, Any]
    """What the job is about: another subject under the same name is a mistake."""
    steps: list[list[Any]] = field(default_factory=list)
    done_count: int = 0
    """Steps that the server was known to have published at the last look."""

    def save(self) -> None:
        """Write it down, durably, before any of it is done."""
        values = {"v": _VERSION, "subject": self.subject, "steps": self.steps, "done_count": self.done_count}
        write_whole(self.path, json.dumps(values).encode())

    def note_published(self, sink: SinkInfo) -> None:
        """Take over what the server says is published.

        Raises:
            BookRefused: book and server do not belong together.
        """
        published = 0 if sink.batch is None else sink.batch + 1
        if published < self.done_count:
            raise BookRefused(self.path, f"the server knows of {published} steps of the job, not of {self.done_count}")
        if published > len(self.steps):
            reason = f"the server knows of {published} steps of the job, and {len(self.steps)} are written down"
            raise BookRefused(self.path, reason)
        self.done_count = published

    def add_steps(self, steps: Sequence[list[Any]]) -> None:
        """Plan more."""
        self.steps += steps
        self.save()


def book_path(folder: Path, job: str) -> Path:
    """Where the book of a job lies."""
    return folder / f"{folder_name('job', job)}.json"


def open_book(path: Path, subject: dict[str, Any]) -> JobBook:
    """The book of a job, or a new one.

    Raises:
        BookRefused: it is about something else, or cannot be read.
    """
    try:
        values = json.loads(path.read_bytes())
        version, known = values["v"], values["subject"]
        book = JobBook(path, known, values["steps"], values["done_count"])
    except FileNotFoundError:
        return JobBook(path, subject)
    except (ValueError, KeyError, TypeError) as error:
        raise BookRefused(path, f"the book of the job cannot be read: {error!r}") from error
    if version != _VERSION:
        raise BookRefused(path, f"the book of the job has version {version}, not {_VERSION}")
    for name, value in subject.items():
        if known.get(name) != value:
            raise BookRefused(path, f"a job of this name is about {name} {known.get(name)}, not {value}")
    return book


def default_books(environment: Mapping[str, str]) -> Path:
    """Where the books of jobs lie if nobody says otherwise."""
    return state_home(environment) / "jobs"
