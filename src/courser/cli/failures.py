"""Failures of commands: one sentence, one hint, one exit code."""

from collections.abc import Iterable
from enum import IntEnum

import click


class ExitCode(IntEnum):
    """The exit codes of ``courser``."""

    OK = 0
    FAILED = 1
    USAGE = 2
    DAMAGE = 2
    """Returned by ``inspect verify``. Wrong usage has the same code, but prints nothing to stdout."""
    CANNOT_CONNECT = 3
    NOT_ALLOWED = 4
    """Login failed or permission denied."""
    NOT_FOUND = 5
    INTERRUPTED = 130
    OUTPUT_CLOSED = 141
    """The reader of the output closed it (``| head``): the code of a process ended by SIGPIPE."""


class Failure(click.ClickException):
    """A command has failed: what happened, what to do about it, and its exit code."""

    def __init__(self, message: str, hint: str, code: ExitCode = ExitCode.FAILED) -> None:
        super().__init__(message)
        self.hint = hint
        self.code = code


class UnknownCommand(click.UsageError):
    """The command does not exist; the hint names a similar one."""

    def __init__(self, message: str, hint: str, context: click.Context) -> None:
        super().__init__(message, context)
        self.hint = hint


def closest(word: str, known: Iterable[str]) -> str | None:
    """The known word that is most similar, if any is similar."""
    from difflib import get_close_matches  # noqa: PLC0415 -- only mistakes pay for it

    lowered = {name.lower(): name for name in known}
    alike = get_close_matches(word.lower(), lowered, n=1)
    return lowered[alike[0]] if alike else None


class OutputClosed(Exception):
    """The reader of stdout is gone. Not an ``OSError``, because click would handle that itself."""


def unreadable(path: str, error: OSError) -> Failure:
    """A file or directory that cannot be read."""
    reason = error.strerror or str(error)
    match error:
        case FileNotFoundError():
            hint = "check the path; retention may have deleted the segment"
        case PermissionError():
            hint = "run the command as the user that runs the server"
        case IsADirectoryError():
            hint = f"to check a whole directory: courser inspect verify {path}"
        case NotADirectoryError():
            hint = f"to inspect a single file: courser inspect log {path}"
        case _:
            hint = "check the kernel log for disk errors"
    return Failure(f"cannot read {path}: {reason}", hint)
