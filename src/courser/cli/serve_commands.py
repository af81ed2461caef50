"""``courser serve`` and ``courser config``."""

import os
import sys
from pathlib import Path

import click

from courser.cli.cells import harmless
from courser.cli.failures import Failure
from courser.cli.output import write
from courser.errors import AddressRefused, ConfigurationRefused, CourserError, StartRefused
from courser.server.configuration.checks import check
from courser.server.configuration.effective import to_toml
from courser.server.configuration.reference import reference_markdown
from courser.server.starting import Wishes, load_configuration, serve

_config_option = click.option(
    "-c",
    "--config",
    "path",
    metavar="FILE",
    type=click.Path(path_type=Path, readable=False),
    help="A TOML file: server.toml, config.toml or any other. COURSER_CONFIG_PATH and IGGY_CONFIG_PATH name one too; "
    "without any, built-in defaults hold.",
)


def _check_settings(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    for value in values:
        if not value.partition("=")[1]:
            raise click.BadParameter(f'"{harmless(value)[:80]}" is not of the form key=value', context, parameter)
    return values


_set_option = click.option(
    "-s",
    "--set",
    "settings",
    metavar="KEY=VALUE",
    multiple=True,
    callback=_check_settings,
    help="One setting, such as tcp.address=127.0.0.1:0. Comes before file and environment; may be repeated.",
)


@click.command(
    "serve",
    epilog="\b\nExamples:\n"
    "  courser serve\n"
    "  courser serve --config server.toml\n"
    "  courser serve --set tcp.address=127.0.0.1:0 --set system.path=data\n\n"
    "Exit codes: 0 stopped as asked, 1 could not start or stop cleanly, 2 wrong usage.",
)
@_config_option
@_set_option
@click.option(
    "--with-default-root-credentials",
    "use_default_root",
    is_flag=True,
    help="At the first start, make the root user iggy with the password iggy. For development only.",
)
def serve_command(*, path: Path | None, settings: tuple[str, ...], use_default_root: bool) -> int:
    """Run the server, until SIGTERM or Ctrl-C.

    At its first start it makes the root user: from COURSER_ROOT_USERNAME and COURSER_ROOT_PASSWORD (or IGGY_...), else
    "iggy" with a password that is printed once. Logs go to stderr.
    """
    wishes = Wishes(environment=os.environ, path=path, settings=settings, use_default_root=use_default_root)
    try:
        is_clean = serve(wishes, announce=_announce, stream=sys.stderr)
    except ConfigurationRefused as refusal:
        raise _refused(refusal) from refusal
    except StartRefused as refusal:
        raise _cannot_start(f"{refusal.path}: {refusal.reason}", refusal.remedy) from refusal
    except AddressRefused as refusal:
        raise _cannot_start(refusal.reason, refusal.remedy) from refusal
    except CourserError as error:
        raise _cannot_start(str(error), "see the log, and the kernel's for errors of the disk") from error
    except OSError as error:
        # Not to be taken for an error of the output.
        raise Failure(f"the server failed: {harmless(str(error))}", "see the log; a restart may help") from error
    return 0 if is_clean else 1


def _cannot_start(reason: str, remedy: str) -> Failure:
    return Failure(f"the server cannot start: {harmless(reason)}", harmless(remedy))


def _announce(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


@click.command(
    "show",
    epilog="\b\nExamples:\n"
    "  courser config show\n"
    "  courser config show --config server.toml\n\n"
    "Exit codes: 0 a server would start with it, 1 it would not, 2 wrong usage.",
)
@_config_option
@_set_option
def show_command(*, path: Path | None, settings: tuple[str, ...]) -> None:
    """Print the effective configuration as TOML: defaults, file, environment and --set together, secrets masked.

    A comment says where a value comes from, if it is not the default. Warnings go to stderr.
    """
    try:
        configuration = load_configuration(Wishes(environment=os.environ, path=path, settings=settings))
        write(to_toml(configuration, with_sources=True))
        for warning in configuration.warnings:
            click.echo(f"warning: {harmless(warning)}", err=True)
        check(configuration)
    except ConfigurationRefused as refusal:
        raise _refused(refusal) from refusal


@click.command(
    "keys",
    epilog="\b\nExample:\n  courser config keys\n\nExit codes: 0 printed, 2 wrong usage.",
)
def keys_command() -> None:
    """Print the reference of all keys as Markdown: default, grammar, environment variable, other spellings."""
    write(reference_markdown())


def _refused(refusal: ConfigurationRefused) -> Failure:
    problems = "\n       ".join(harmless(problem) for problem in refusal.problems)
    return Failure(problems, "courser config keys lists every key; docs/configuration.md explains them")
