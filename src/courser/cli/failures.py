"""How a command fails: one sentence, one hint, one exit code."""

from enum import IntEnum

import click


class ExitCode(IntEnum):
    """What the shell sees."""

    OK = 0
    FAILED = 1
    USAGE = 2
    DAMAGE = 2
    """Of ``inspect verify``. The number of wrong usage too; that prints nothing to stdout."""
    INTERRUPTED = 130
    OUTPUT_CLOSED = 141
    """Nobody reads the output any more (``| head``): as if SIGPIPE had ended the command."""


class Failure(click.ClickException):
    """The command could not do its work."""

    exit_code = ExitCode.FAILED

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


class UnknownCommand(click.UsageError):
    """There is no such command; the hint names one that is spelled alike."""

    def __init__(self, message: str, hint: str, context: click.Context) -> None:
        super().__init__(message, context)
        self.hint = hint


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
