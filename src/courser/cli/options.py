"""Options and examples of commands, declared in the form in which the help shows them."""

import re
from collections.abc import Callable
from typing import Any, TypeVar

import click

FORMATS = ("table", "json", "jsonl", "csv")
_Function = TypeVar("_Function", bound=Callable[..., object])
_SPECIFICATION = re.compile(r"(-[^ ,]+(?:, -[^ ,]+)*)(?: (.+))?")


def make_option(specification: str, text: str, name: str | None = None, **settings: Any) -> click.Option:
    """Make an option from its names and its metavar: ``-p, --partition NUMBER``. Without metavar and type it is a flag.

    ``name`` is that of the argument of the function, if it is not that of the option. A default is shown.
    """
    found = _SPECIFICATION.fullmatch(specification)
    assert found is not None, specification
    names, metavar = found[1].split(", "), found[2]
    if metavar is None and "type" not in settings:
        settings["is_flag"] = True
    elif settings.get("default") is not None:
        settings.setdefault("show_default", True)
    return click.Option([*names, *([name] if name else [])], metavar=metavar, help=text, **settings)


def option(specification: str, text: str, name: str | None = None, **settings: Any) -> Callable[[_Function], _Function]:
    """Add the option of ``make_option`` to a command."""

    def add(function: _Function) -> _Function:
        # A click parameter belongs to one command: every use of the decorator makes its own.
        return add_parameter(function, make_option(specification, text, name, **settings))

    return add


def add_parameter(function: _Function, parameter: click.Parameter) -> _Function:
    """Add a parameter before those that decorators closer to the function have added."""
    parameters: list[click.Parameter] = function.__dict__.setdefault("__click_params__", [])
    parameters.append(parameter)
    return function


def output_parameter() -> click.Option:
    """Make the option ``-o``."""
    return make_option(
        "-o, --output",
        "The output format: a table, one JSON document, one JSON object per line, or CSV.",
        type=click.Choice(FORMATS),
        default="table",
    )


def examples(*lines: str, exits: str) -> str:
    """The epilog of a help text: examples and exit codes."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines) + f"\n\n{exits}"


def local_command(
    name: str, *lines: str, exits: str, before: str = ""
) -> Callable[[Callable[..., object]], click.Command]:
    """A command that needs no server and takes ``-o``; ``lines`` are examples, and ``before`` precedes them."""

    def decorate(function: Callable[..., object]) -> click.Command:
        command = click.command(name, epilog=before + examples(*lines, exits=exits))(function)
        command.params.append(output_parameter())
        return command

    return decorate


yes_option = option("-y, --yes", "Skip the confirmation.", "is_confirmed")
