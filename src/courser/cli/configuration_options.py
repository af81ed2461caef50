"""Options of the commands that read a server's configuration, and the failure for an invalid one."""

import os
from pathlib import Path

import click

from courser.cli.failures import ExitCode, Failure
from courser.cli.options import option
from courser.cli.terminal import harmless
from courser.configuration.loading import Configuration
from courser.errors import ConfigurationRefused
from courser.server.entry_point import Wishes, load_configuration

config_option = option(
    "-c, --config FILE",
    "The TOML configuration file. Default: COURSER_CONFIG_PATH, else IGGY_CONFIG_PATH, else no file: "
    "built-in defaults apply.",
    "path",
    type=click.Path(path_type=Path, readable=False),
)


def _check_settings(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    for value in values:
        if not value.partition("=")[1]:
            raise click.BadParameter(f'"{harmless(value)[:80]}" is not of the form key=value', context, parameter)
    return values


set_option = option(
    "-s, --set KEY=VALUE",
    "One setting, such as tcp.address=127.0.0.1:0. Overrides file and environment; may be repeated.",
    "settings",
    multiple=True,
    callback=_check_settings,
)


def configuration_of(path: Path | None, settings: tuple[str, ...]) -> Configuration:
    """The configuration of a server with these options, in this environment. Raises ``Failure``."""
    try:
        return load_configuration(Wishes(environment=os.environ, path=path, settings=settings))
    except ConfigurationRefused as refusal:
        raise refused(refusal) from refusal


def refused(refusal: ConfigurationRefused) -> Failure:
    """One line per problem. Every command has the same exit codes for them.

    That of invalid values differs from other failures, so that a supervisor does not restart a server with an invalid
    configuration. A file that cannot be read may become readable.
    """
    problems = "\n       ".join(harmless(problem) for problem in refusal.problems)
    if isinstance(refusal.__cause__, OSError):
        return Failure(problems, "courser config example production prints a file to start from")
    return Failure(problems, "courser config keys lists and explains every key", ExitCode.USAGE)
