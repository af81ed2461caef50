"""How a command fails: one sentence, one hint, one exit code."""

from collections.abc import Iterable
from enum import IntEnum

import click


class ExitCode(IntEnum):
    """What the shell sees."""

    OK = 0
    FAILED = 1
    USAGE = 2
    DAMAGE = 2
    """Of ``inspect verify``. The number of wrong usage too; that prints nothing to stdout."""
    CANNOT_CONNECT = 3
    NOT_ALLOWED = 4
    """Not logged in, or not allowed to do it."""
    NOT_FOUND = 5
    INTERRUPTED = 130
    OUTPUT_CLOSED = 141
    """Nobody reads the output any more (``| head``): as if SIGPIPE had ended the command."""


class Failure(click.ClickException):
    """The command could not do its work."""

    def __init__(self, message: str, hint: str, code: ExitCode = ExitCode.FAILED) -> None:
        super().__init__(message)
        self.hint = hint
        self.code = code


class UnknownCommand(click.UsageError):
    """There is no such command; the hint names one that is spelled alike."""

    def __init__(self, message: str, hint: str, context: click.Context) -> None:
        super().__init__(message, context)
        self.hint = hint


def closest(word: str, known: Iterable[str]) -> str | None:
    """What was perhaps meant."""
    from difflib import get_close_matches  # noqa: PLC0415 -- only mistakes pay for it

    lowered = {name.lower(): name for name in known}
    alike = get_close_matches(word.lower(), lowered, n=1)
    return lowered[alike[0]] if alike else None


class OutputClosed(Exception):
    """The reader of stdout is gone. Not an ``OSError``, which click would take for its own business."""


def unreadable(path: str, error: OSError) -> Failure:
    """A file or directory that cannot be read."""
    reason = error.strerror or str(error)
    match error:
        case FileNotFoundError():
            hint = "check the name; segments that retention has deleted are gone for good"
        case PermissionError():
            hint = "run it as the user that the server runs as"
        case IsADirectoryError():
            hint = f"to check a whole directory: courser inspect verify {path}"
        case NotADirectoryError():
            hint = f"to look into a single file: courser inspect log {path}"
        case _:
            hint = "see the kernel's log for errors of the disk"
    return Failure(f"cannot read {path}: {reason}", hint)
