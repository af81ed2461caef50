"""``courser user reset-root``: set the root user's password while no server is running."""

from pathlib import Path

import click

from courser.cli.configuration_options import config_option, configuration_of, set_option
from courser.cli.failures import ExitCode, Failure, unreadable
from courser.cli.options import local_command, option
from courser.cli.output import emit_deed
from courser.cli.terminal import ask_new_password, harmless, write
from courser.errors import CommandRejected, CourserError, StartRefused
from courser.server.configuration.settings import PATH
from courser.server.root_user import generate_password, reset_root_password


@local_command(
    "reset-root",
    "courser user reset-root --data local_data",
    "courser user reset-root --config server.toml --generate",
    "COURSER_NEW_PASSWORD=... courser user reset-root",
    exits="Exit codes: 0 done, 1 failed, 2 wrong usage or configuration.",
)
@config_option
@set_option
@option(
    "--data DIRECTORY", "The data directory, if it differs from the configuration.", type=click.Path(path_type=Path)
)
@option("--generate", "Generate a password and print it.")
def reset_root_command(
    *, path: Path | None, settings: tuple[str, ...], data: Path | None, generate: bool, output: str
) -> None:
    """Set a new password for the root user. Works on the data directory, and only while no server is running.

    For a password that is lost; "courser user password" changes one that is known. Without --generate, the new password
    is taken from COURSER_NEW_PASSWORD, or asked for at a terminal. Tokens of the root user stay valid.
    """
    directory = data or Path(configuration_of(path, settings)[PATH])
    generated = generate_password() if generate else None
    try:
        name = reset_root_password(
            directory, lambda: generated or ask_new_password("the root user", ", or pass --generate")
        )
    except CommandRejected as refusal:
        raise Failure(str(refusal), "choose another password, or pass --generate", ExitCode.USAGE) from refusal
    except StartRefused as refusal:
        raise Failure(harmless(f"{refusal.path}: {refusal.reason}"), harmless(refusal.remedy)) from refusal
    except CourserError as error:
        raise Failure(harmless(str(error)), "check the free space, and the kernel log for disk errors") from error
    except OSError as error:
        raise unreadable(str(directory), error) from error
    record = {"username": name, "data": str(directory), "password": generated}
    emit_deed(f'changed the password of the root user "{name}" in {directory}', record, output)
    if generated is not None and output == "table":
        write(f"{generated}\n")
