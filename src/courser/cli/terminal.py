"""What goes where: data to stdout, talk to stderr, questions to a person at a terminal and to nobody else."""

import sys

import click

from courser.cli.cells import harmless
from courser.cli.failures import ExitCode, Failure, OutputClosed


def write(text: str) -> None:
    """Write to stdout, telling a reader that went away from a full disk."""
    try:
        sys.stdout.write(text)
    except BrokenPipeError as error:
        raise OutputClosed from error
    except OSError as error:
        raise unwritable(error) from error


def flush() -> None:
    """Hand over what was written: a reader waits for it."""
    try:
        sys.stdout.flush()
    except BrokenPipeError as error:
        raise OutputClosed from error
    except OSError as error:
        raise unwritable(error) from error


def unwritable(error: OSError) -> Failure:
    """The output cannot be written."""
    return Failure(f"cannot write the output: {error.strerror or error}", "make room, or write it elsewhere")


def say(text: str) -> None:
    """Talk goes to stderr."""
    click.echo(harmless(text), err=True)


def confirm(question: str, *, is_confirmed: bool) -> None:
    """Ask before something is lost for good. Without a terminal nobody is asked: ``--yes`` has to be there.

    Raises:
        Failure: nobody can be asked, or the answer is no.
    """
    if is_confirmed:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        problem = f"there is no terminal to ask at: {question}?"
        raise Failure(harmless(problem), "--yes does it without being asked", ExitCode.USAGE)
    if not click.confirm(f"{harmless(question)}?", err=True):
        raise Failure("nothing was done", "answer y to go on, or add --yes")


def ask_secret(name: str, remedy: str, *, is_new: bool = False) -> str:
    """Ask for a password, which is not shown. Without a terminal that is an error, and ``remedy`` its hint."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise Failure(f"{name} is needed, and there is no terminal to ask at", remedy)
    answer = click.prompt(name, hide_input=True, confirmation_prompt=is_new, err=True)
    assert isinstance(answer, str)
    return answer
