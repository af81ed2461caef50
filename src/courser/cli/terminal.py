"""Output and questions: data goes to stdout, messages to stderr; questions are asked only at a terminal."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click

from courser.cli.failures import ExitCode, Failure, OutputClosed

_NEW_PASSWORD_VARIABLE = "COURSER_NEW_PASSWORD"


def write(text: str) -> None:
    """Write to stdout. Raises ``OutputClosed`` if the reader is gone, and ``Failure`` for other errors."""
    try:
        sys.stdout.write(text)
    except BrokenPipeError as error:
        raise OutputClosed from error
    except OSError as error:
        raise unwritable(error) from error


def flush() -> None:
    """Flush stdout, so that the reader gets the output now."""
    try:
        sys.stdout.flush()
    except BrokenPipeError as error:
        raise OutputClosed from error
    except OSError as error:
        raise unwritable(error) from error


def unwritable(error: OSError) -> Failure:
    """The failure for output that cannot be written."""
    return Failure(f"cannot write the output: {error.strerror or error}", "free disk space, or write it elsewhere")


def harmless(text: str) -> str:
    """Text without control characters: a payload or a file name must not control the terminal."""
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else _escape(letter) for letter in text)


def _escape(letter: str) -> str:
    return letter.encode("unicode_escape", "surrogatepass").decode("ascii")


def say(text: str) -> None:
    """Write a message to stderr."""
    click.echo(harmless(text), err=True)


@contextmanager
def progress(text: str, size: int) -> Iterator[Callable[[int], None]]:
    """A progress bar that counts bytes, if stderr is a terminal."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    # rich is slow to import: import it only at a terminal.
    from courser.cli.drawing import progress_bar  # noqa: PLC0415

    with progress_bar(text, size) as step:
        yield step


def confirm(question: str, *, is_confirmed: bool) -> None:
    """Ask before a destructive action. Without a terminal, ``--yes`` is required.

    Raises:
        Failure: there is no terminal, or the answer is no.
    """
    if is_confirmed:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        problem = f"cannot ask for confirmation without a terminal: {question}?"
        raise Failure(harmless(problem), "pass --yes to skip the confirmation", ExitCode.USAGE)
    if not click.confirm(f"{harmless(question)}?", err=True):
        raise Failure("canceled, nothing was changed", "answer y to continue, or pass --yes")


def confirmed(question: str) -> bool:
    """Ask a question whose answer is no without a terminal."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    return click.confirm(f"{harmless(question)}?", err=True)


def ask_secret(name: str, remedy: str, *, is_new: bool = False, code: ExitCode = ExitCode.FAILED) -> str:
    """Ask for a password without echo. Without a terminal this fails with ``code``, and ``remedy`` as the hint."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise Failure(f"{name} is required, and there is no terminal to ask for it", remedy, code)
    answer = click.prompt(name, hide_input=True, confirmation_prompt=is_new, err=True)
    assert isinstance(answer, str)
    return answer


def ask_new_password(owner: str, other_remedy: str = "") -> str:
    """The new password of a user: from the environment, or asked for twice."""
    variable = os.environ.get(_NEW_PASSWORD_VARIABLE)
    remedy = f"set {_NEW_PASSWORD_VARIABLE}{other_remedy}"
    return variable or ask_secret(f"the new password of {owner}", remedy, is_new=True)
