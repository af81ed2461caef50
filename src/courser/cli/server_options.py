"""Options that select the server and the login. ``courser`` itself and every command that needs a server take them.

``courser --context prod ls`` and ``courser ls --context prod`` are equivalent; the last option wins. The commands hide
them in their help. Also the decorator for commands that connect to a server.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import click

from courser.cli.lazy import completed_by
from courser.cli.options import examples, make_option, output_parameter

_META = "courser.server"
_PREFIX = "server_"
"""Prefix of the parameter names: commands have their own parameters called ``user`` and so on."""

SERVER_EXITS = (
    "Exit codes: 0 done, 1 failed, 2 wrong usage, 3 cannot connect, 4 login failed or permission denied, 5 not found."
)
SERVER_NOTE = "To select the server, use --url, --context or the other options of courser --help."
"""Part of the help of every command that hides these options; the reference says it once."""


@dataclass(frozen=True, slots=True)
class ServerChoice:
    """The server and login given on the command line; None means not given."""

    url: str | None = None
    context: str | None = None
    user: str | None = None
    password: str | None = None
    token: str | None = None


_NAMES = frozenset(entry.name for entry in fields(ServerChoice))


def server_choice() -> ServerChoice:
    """The options of ``courser`` and of the command, combined."""
    found: dict[str, str] = click.get_current_context().meta.get(_META, {})
    return ServerChoice(**found)


def _note(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    name = (param.name or "").removeprefix(_PREFIX)
    assert name in _NAMES
    if value is not None:
        ctx.meta.setdefault(_META, {})[name] = value


def server_parameters(*, hidden: bool) -> list[click.Option]:
    """Create the options anew: a click parameter belongs to one command."""

    def hidden_option(specification: str, text: str, **settings: Any) -> click.Option:
        name = _PREFIX + specification.partition("--")[2].partition(" ")[0]
        return make_option(specification, text, name, hidden=hidden, expose_value=False, callback=_note, **settings)

    completion = completed_by("complete_context")
    return [
        hidden_option(
            "--context NAME",
            "A saved context (courser context list). Default: COURSER_CONTEXT.",
            shell_complete=completion,
        ),
        hidden_option(
            "-u, --url URL",
            "iggy://USER:PASSWORD@HOST:PORT or HOST:PORT. Default: COURSER_URL, else the selected context.",
        ),
        hidden_option("--user NAME", "The user to log in as. Default: COURSER_USERNAME."),
        hidden_option("--password TEXT", "The user's password. Visible in the process list; prefer COURSER_PASSWORD."),
        hidden_option("--token TEXT", "A personal access token instead of both. Default: COURSER_TOKEN."),
    ]


def server_command(
    name: str, *lines: str, exits: str = SERVER_EXITS
) -> Callable[[Callable[..., object]], click.Command]:
    """A command that connects to a server and takes ``-o``; ``lines`` are examples."""

    def decorate(function: Callable[..., object]) -> click.Command:
        command = click.command(name, epilog=examples(*lines, exits=f"{SERVER_NOTE}\n\n{exits}"))(function)
        command.params += [output_parameter(), *server_parameters(hidden=True)]
        return command

    return decorate
