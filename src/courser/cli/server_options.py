"""Which server, and as whom: options of ``courser`` itself and, unseen in their help, of every command that needs one.

``courser --context prod ls`` and ``courser ls --context prod`` mean the same; what stands last wins. Also the decorator
that makes a command out of a function that talks to a server.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields

import click

from courser.cli.lazy import completed_by

_META = "courser.server"
_PREFIX = "server_"
"""Of the parameters' names: commands have parameters called ``user`` and so on themselves."""

SERVER_EXITS = (
    "Exit codes: 0 done, 1 failed, 2 wrong usage, 3 cannot connect, 4 login or permission missing, 5 not found."
)
SERVER_NOTE = "Which server: --url, --context and the others of courser --help may stand here too."
"""In the help of every command that takes them unseen; the document says it once."""


@dataclass(frozen=True, slots=True)
class ServerChoice:
    """What the command line says about the server; None is "look elsewhere"."""

    url: str | None = None
    context: str | None = None
    user: str | None = None
    password: str | None = None
    token: str | None = None


_NAMES = frozenset(entry.name for entry in fields(ServerChoice))


def server_choice() -> ServerChoice:
    """What was said, wherever it stood."""
    found: dict[str, str] = click.get_current_context().meta.get(_META, {})
    return ServerChoice(**found)


def _note(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    name = (param.name or "").removeprefix(_PREFIX)
    assert name in _NAMES
    if value is not None:
        ctx.meta.setdefault(_META, {})[name] = value


def server_parameters(*, hidden: bool) -> list[click.Option]:
    """The options, made anew: a parameter belongs to one command."""

    def option(*names: str, metavar: str, text: str) -> click.Option:
        is_context = "--context" in names
        return click.Option(
            (*names, _PREFIX + names[-1].removeprefix("--")),
            metavar=metavar,
            help=text,
            hidden=hidden,
            expose_value=False,
            callback=_note,
            shell_complete=completed_by("complete_context") if is_context else None,
        )

    return [
        option("--context", metavar="NAME", text="A saved context (courser context list); else COURSER_CONTEXT."),
        option(
            "-u",
            "--url",
            metavar="URL",
            text="iggy://USER:PASSWORD@HOST:PORT or HOST:PORT; else COURSER_URL, else the selected context.",
        ),
        option("--user", metavar="NAME", text="Who logs in; else COURSER_USERNAME."),
        option(
            "--password",
            metavar="TEXT",
            text="Of that user. Others can see it in the list of processes: COURSER_PASSWORD is better.",
        ),
        option("--token", metavar="TEXT", text="A personal access token in place of both; else COURSER_TOKEN."),
    ]


def examples(*lines: str, exits: str = SERVER_EXITS) -> str:
    """The end of a help text."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines) + f"\n\n{exits}"


def server_command(
    name: str, *lines: str, exits: str = SERVER_EXITS
) -> Callable[[Callable[..., object]], click.Command]:
    """A command that talks to a server and takes ``-o``; ``lines`` are examples."""

    def decorate(function: Callable[..., object]) -> click.Command:
        from courser.cli.output import output_parameter  # noqa: PLC0415 -- the tree needs only the options above

        command = click.command(name, epilog=examples(*lines, exits=f"{SERVER_NOTE}\n\n{exits}"))(function)
        command.params += [output_parameter(), *server_parameters(hidden=True)]
        return command

    return decorate


yes_option = click.option("-y", "--yes", "is_confirmed", is_flag=True, help="Do not ask.")
