"""The command ``courser``: runs one command, and says what becomes of its errors. ``tree`` has the commands."""

import contextlib
import os
import sys
from collections.abc import Sequence

import click

from courser.cli.failures import ExitCode, Failure, OutputClosed
from courser.cli.tree import root


def main() -> None:
    """The entry point."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code. No error leaves here as a traceback, unless it is a bug."""
    _open_what_is_closed()
    for stream in (sys.stdout, sys.stderr):
        # A letter that the terminal does not know is shown as its number instead of ending the command.
        with contextlib.suppress(AttributeError):
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    try:
        result = root.main(args=list(arguments), prog_name="courser", standalone_mode=False)
        sys.stdout.flush()
    except click.ClickException as error:
        _explain(error)
        return error.code if isinstance(error, Failure) else error.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        return ExitCode.INTERRUPTED
    except (OutputClosed, BrokenPipeError):
        _silence_stdout()
        return ExitCode.OUTPUT_CLOSED
    except OSError as error:
        # The flush above: commands explain their own errors.
        _silence_stdout()
        _explain(Failure(f"cannot write the output: {error.strerror or error}", "make room, or write it elsewhere"))
        return ExitCode.FAILED
    return result if isinstance(result, int) else ExitCode.OK


def _open_what_is_closed() -> None:
    """Without a stdout (``>&-``) there is none to write to: what is printed goes nowhere."""
    # The stubs say that the streams are always there; the interpreter sets them to None.
    if getattr(sys, "stdout", None) is None:
        sys.stdout = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", encoding="utf-8")
    if getattr(sys, "stderr", None) is None:
        sys.stderr = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", encoding="utf-8")


def _explain(error: click.ClickException) -> None:
    """What went wrong, and what to do about it."""
    hint = getattr(error, "hint", None)
    if isinstance(error, click.UsageError) and error.ctx is not None:
        if type(error).__name__ == "NoArgsIsHelpError":
            click.echo(error.ctx.get_help(), err=True)
            return
        if isinstance(error, click.NoSuchOption) and error.option_name in ("-o", "--output"):
            hint = "it stands behind the command: courser ls -o json"
        hint = hint or f"{error.ctx.command_path} --help shows how it is used"
    click.echo(f"error: {error.format_message()}", err=True)
    click.echo(f"hint:  {hint or 'courser --help shows the commands'}", err=True)


def _silence_stdout() -> None:
    """Let the interpreter's last flush go nowhere: it would complain about the same thing again."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
