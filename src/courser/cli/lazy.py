"""Commands that are imported when they are called, so that help and completion do not wait for slow imports."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import TypeAlias

import click
from click.shell_completion import CompletionItem

from courser.cli.failures import UnknownCommand, closest

Completion: TypeAlias = Callable[[click.Context, click.Parameter, str], list[str]]
_REQUESTS_MODULE = "courser.cli.requests"
_COMPLETION_MODULE = "courser.cli.completion"
_NAME_WIDTH_MAX = 20
"""Columns of names in a help text; the summary of a longer name starts on the next line."""


def completed_by(name: str) -> Completion:
    """Complete a parameter with names that a function finds, which is imported when the user presses Tab."""

    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
        find_names = getattr(import_module(_COMPLETION_MODULE), name)
        with ctx.scope(cleanup=False):
            names: list[str] = find_names(ctx, param, incomplete)
        return [name for name in names if name.startswith(incomplete)]

    return complete


@dataclass(frozen=True, slots=True)
class Verb:
    """A verb that is one request. ``requests`` makes a command of it when it is called."""

    command: str
    """The name of the command's class in ``api.commands``. Its fields are the arguments."""
    help: str
    examples: tuple[str, ...]
    summary: str = ""
    """In the list of verbs. Empty: the first sentence of the help."""
    confirm: str = ""
    """What it asks about before it does it. Here and in ``done``, ``{place}`` and ``{name}`` stand for arguments."""
    done: str = ""
    """What it says after it has changed something. Empty: it shows the reply."""
    effect: str = ""
    """What the output for programs says of the things: that they are ``deleted``, or how many."""
    words: Mapping[str, str] = field(default_factory=dict)
    """Arguments that are not called as the fields."""
    sought: Mapping[str, str] = field(default_factory=dict)
    """What those fields name that are not called as what they name, for the message about a missing one."""
    empty: str = ""
    """What it says instead of an empty table."""
    also: tuple[str, ...] = ()
    """Fields of the reply that the output for programs has in each record."""

    @property
    def in_short(self) -> str:
        """The text in the list of verbs."""
        return self.summary or self.help.split(".", 1)[0] + "."


@dataclass(frozen=True, slots=True)
class Function:
    """A command that another module than that of its group contains, or that is named otherwise there."""

    module: str
    summary: str
    name: str = ""
    """The name of the function without ``_command``. Empty: the name of the command."""


Entry: TypeAlias = "str | Function | Verb | LazyGroup"
"""A command in a group. A text is the summary of one that the module of the group contains."""


class LazyGroup(click.Group):
    """A group that knows the names and summaries of its commands, and the modules that contain them.

    The command ``log`` is the attribute ``log_command`` of a module. ``sections`` divide the list of commands in the
    help text. ``aliases`` are short names; ``ls`` is one of every ``list``.
    """

    def __init__(
        self,
        name: str,
        module: str,
        description: str,
        sections: Mapping[str, Mapping[str, Entry]],
        *,
        aliases: Mapping[str, str],
        epilog: str,
        params: Sequence[click.Parameter] = (),
    ) -> None:
        super().__init__(
            name,
            help=description,
            epilog=epilog,
            params=list(params),
            context_settings={"help_option_names": ["-h", "--help"]},
        )
        self._module = module
        self.sections = sections
        self.entries = {entry: found for section in sections.values() for entry, found in section.items()}
        self.summaries = {entry: _summary(found) for entry, found in self.entries.items()}
        self.aliases = {**({"ls": "list"} if "list" in self.entries else {}), **aliases}

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names in the order of the help text, which is not alphabetical."""
        del ctx
        return list(self.summaries)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the module of a command when it is needed."""
        del ctx
        name = self.aliases.get(cmd_name, cmd_name)
        entry = self.entries.get(name)
        if entry is None or isinstance(entry, LazyGroup):
            return entry
        if isinstance(entry, Verb):
            command = import_module(_REQUESTS_MODULE).request_command(name, entry)
        else:
            found = entry if isinstance(entry, Function) else Function(self._module, entry)
            module = import_module(f"courser.cli.{found.module}")
            command = getattr(module, f"{found.name or name.replace('-', '_')}_command")
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command, or suggest a similar one."""
        name = args[0]
        if name not in self.summaries and name not in self.aliases and not name.startswith("-"):
            alike = closest(name, self.summaries)
            hint = f'did you mean "{alike}"?' if alike else f"the commands are {', '.join(self.summaries)}"
            shown = name if len(name) <= 40 else f"{name[:40]}..."
            raise UnknownCommand(f'unknown command "{shown}"', hint, ctx)
        # Use the long name in messages even if the user typed an alias.
        return super().resolve_command(ctx, [self.aliases.get(name, name), *args[1:]])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """The names that start with ``incomplete``, without importing any command."""
        found = [
            CompletionItem(name, help=summary)
            for name, summary in self.summaries.items()
            if name.startswith(incomplete)
        ]
        return [*found, *click.Command.shell_complete(self, ctx, incomplete)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands for the help text, without importing any command."""
        del ctx
        shown = {name: ", ".join((name, *self._aliases_of(name))) for name in self.summaries}
        width = min(max(map(len, shown.values())), _NAME_WIDTH_MAX)
        for title, names in self.sections.items():
            with formatter.section(title):
                # The same width everywhere, so that the summaries of all sections are aligned.
                rows = [(shown[name].ljust(width), self.summaries[name]) for name in names]
                formatter.write_dl(rows, col_max=_NAME_WIDTH_MAX)

    def _aliases_of(self, name: str) -> list[str]:
        return [alias for alias, command in self.aliases.items() if command == name]


def _summary(entry: Entry) -> str:
    match entry:
        case str():
            return entry
        case Verb():
            return entry.in_short
        case Function():
            return entry.summary
    return entry.get_short_help_str(limit=100)
