"""The command ``courser``: which commands there are, and what becomes of their errors."""

import contextlib
import os
import sys
from collections.abc import Sequence

import click

from courser import __version__
from courser.cli.failures import ExitCode, Failure, OutputClosed
from courser.cli.lazy import LazyGroup

_EXIT_CODES = """\b
Exit codes:
  0    done
  1    failed: the last line on stderr says what to try
  2    wrong usage; damage found (inspect verify)
  130  interrupted
  141  nobody read the output to its end
"""

_INSPECT_EXAMPLES = """\b
Examples:
  courser inspect verify local_data
  courser inspect log 00000000000000000000.log --messages --limit 10
"""

_INSPECT = LazyGroup(
    "inspect",
    commands_module="courser.cli.inspect_commands",
    summaries={
        "log": "Print the batches and messages of a segment's log.",
        "index": "Print the blocks and entries of a segment's index.",
        "ledger": "Print the records of a partition's ledger.",
        "offsets": "Print the stored consumer offsets of a partition.",
        "session": "Print how the last server left a data directory.",
        "journal": "Print the commands in a metadata journal, secrets masked.",
        "snapshot": "Print what a metadata snapshot holds, secrets masked.",
        "descriptor": "Print what a stream's or topic's descriptor says.",
        "verify": "Check every partition below a directory, and the metadata.",
    },
    other_modules=dict.fromkeys(("journal", "snapshot", "descriptor"), "courser.cli.metadata_commands"),
    description="Look into files on disk. Reads only; safe beside a running server.",
    epilog=_INSPECT_EXAMPLES,
)

_CONFIG_EXAMPLES = """\b
Examples:
  courser config show --config server.toml
  courser config keys
"""

_CONFIG = LazyGroup(
    "config",
    commands_module="courser.cli.serve_commands",
    summaries={
        "show": "Print the effective configuration, secrets masked.",
        "keys": "Print the reference of all keys.",
    },
    description="See what the server would be told. Starts nothing.",
    epilog=_CONFIG_EXAMPLES,
)

root = LazyGroup(
    "courser",
    commands_module="courser.cli.demonstration",
    summaries={
        "serve": "Run the server.",
        "config": _CONFIG.get_short_help_str(limit=100),
        "demonstrate": "Show the log engine at work, in a temporary directory.",
        "inspect": _INSPECT.get_short_help_str(limit=100),
    },
    other_modules={"serve": "courser.cli.serve_commands"},
    groups={"config": _CONFIG, "inspect": _INSPECT},
    description="Courser, a durable message streaming server.",
    epilog=_EXIT_CODES,
)
click.version_option(__version__, prog_name="courser", message="%(prog)s %(version)s")(root)


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
        return error.exit_code
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
        hint = hint or f"{error.ctx.command_path} --help shows how it is used"
    click.echo(f"error: {error.format_message()}", err=True)
    click.echo(f"hint:  {hint or 'courser --help shows the commands'}", err=True)


def _silence_stdout() -> None:
    """Let the interpreter's last flush go nowhere: it would complain about the same thing again."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
