"""The entry point of ``courser``: runs one command and reports its errors. ``tree`` defines the commands."""

import contextlib
import gc
import os
import re
import sys
from collections.abc import Sequence

import click

from courser.cli.failures import ExitCode, Failure, OutputClosed, closest
from courser.cli.tree import root

_OTHER_NAMES = {"--since": "--from", "--start": "--from", "--offset": "--from"}
"""Options that other tools call by another name."""
_ALLOCATIONS_BETWEEN_COLLECTIONS = 10_000
"""A command imports hundreds of modules, which stay. With Python's default of 700, it would search them for garbage 150
times, which is a tenth of the CPU time that a server needs to start."""


def main() -> None:
    """Run the command that the arguments of the process name."""
    gc.set_threshold(_ALLOCATIONS_BETWEEN_COLLECTIONS)
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code. Only a bug ends in a traceback."""
    _open_what_is_closed()
    for stream in (sys.stdout, sys.stderr):
        # Escape characters that the terminal cannot encode instead of failing.
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
        # This is from the flush above: commands report their own errors.
        from courser.cli.terminal import unwritable  # noqa: PLC0415 -- help needs less

        _silence_stdout()
        _explain(unwritable(error))
        return ExitCode.FAILED
    return result if isinstance(result, int) else ExitCode.OK


def _open_what_is_closed() -> None:
    """If stdout or stderr is closed (``>&-``), discard what is written to it."""
    # The interpreter sets closed streams to None; the type stubs do not know that.
    if getattr(sys, "stdout", None) is None:
        sys.stdout = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", encoding="utf-8")
    if getattr(sys, "stderr", None) is None:
        sys.stderr = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", encoding="utf-8")


def _explain(error: click.ClickException) -> None:
    """Print an error and its hint."""
    hint = getattr(error, "hint", None)
    message = _sentence(error)
    if isinstance(error, click.UsageError) and error.ctx is not None:
        if type(error).__name__ == "NoArgsIsHelpError":
            click.echo(error.ctx.get_help(), err=True)
            return
        if isinstance(error, click.NoSuchOption):
            message, hint = f'no such option "{error.option_name}"', _similar_option(error.option_name, error.ctx)
        hint = hint or f"for usage, run {error.ctx.command_path} --help"
    click.echo(f"error: {message}", err=True)
    click.echo(f"hint:  {hint or 'for a list of commands, run courser --help'}", err=True)


def _sentence(error: click.ClickException) -> str:
    """The message of an error. Those of click are brought into the form of the others."""
    if isinstance(error, click.BadParameter) and error.param is not None:
        name = _parameter_name(error.param)
        if isinstance(error, click.MissingParameter):
            choices = getattr(error.param.type, "choices", None)
            return f"missing {name}" + (f": one of {', '.join(choices)}" if choices else "")
        return f"{name}: {_in_our_form(error.message)}"
    return _in_our_form(error.format_message())


def _parameter_name(parameter: click.Parameter) -> str:
    if isinstance(parameter, click.Option):
        return max(parameter.opts, key=len)
    return parameter.metavar or (parameter.name or "").upper()


def _in_our_form(message: str) -> str:
    """No capital at the start, no full stop at the end, double quotation marks."""
    if message[:1].isupper() and message[1:2].islower():
        message = message[0].lower() + message[1:]
    message = message.removesuffix(".").replace("valid integer range", "valid integer")
    return re.sub(r"(?<!\w)'([^']*)'(?!\w)", r'"\1"', message)


def _similar_option(name: str, context: click.Context) -> str | None:
    """The hint for an option that the command does not have."""
    known = {option for parameter in context.command.params for option in parameter.opts}
    if name in ("-o", "--output") and name not in known:
        return "put it after the command: courser ls -o json"
    meant = _OTHER_NAMES.get(name)
    if meant not in known:
        # Without the dashes, which all of them share.
        alike = closest(name.lstrip("-"), (option[2:] for option in known if option.startswith("--")))
        meant = f"--{alike}" if alike else None
    return f'did you mean "{meant}"?' if meant else None


def _silence_stdout() -> None:
    """Discard the interpreter's final flush: it would report the same error again."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
