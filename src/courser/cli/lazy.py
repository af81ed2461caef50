"""Commands that are imported when they are called: help texts must not wait for numpy."""

from collections.abc import Mapping
from difflib import get_close_matches
from importlib import import_module

import click

from courser.cli.failures import UnknownCommand


class LazyGroup(click.Group):
    """A group that knows the names and summaries of its commands, and one module that has them.

    The command ``log`` is the attribute ``log_command`` of that module. ``other_modules`` names those that have the
    rest, by command.
    """

    def __init__(
        self,
        name: str,
        *,
        commands_module: str,
        summaries: Mapping[str, str],
        other_modules: Mapping[str, str] | None = None,
        groups: Mapping[str, click.Command] | None = None,
        description: str,
        epilog: str,
    ) -> None:
        super().__init__(
            name, help=description, epilog=epilog, context_settings={"help_option_names": ["-h", "--help"]}
        )
        self._commands_module = commands_module
        self._summaries = dict(summaries)
        self._other_modules = dict(other_modules or {})
        self._groups = dict(groups or {})

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names, in the order in which they are helpful."""
        del ctx
        return list(self._summaries)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command."""
        del ctx
        if cmd_name in self._groups:
            return self._groups[cmd_name]
        if cmd_name not in self._summaries:
            return None
        module = import_module(self._other_modules.get(cmd_name, self._commands_module))
        command = getattr(module, f"{cmd_name}_command")
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command, or say which one was perhaps meant."""
        name = args[0]
        if name not in self._summaries and not name.startswith("-"):
            alike = get_close_matches(name, self._summaries, n=1)
            hint = f'did you mean "{alike[0]}"?' if alike else f"the commands are {', '.join(self._summaries)}"
            shown = name if len(name) <= 40 else f"{name[:40]}..."
            raise UnknownCommand(f'there is no command "{shown}"', hint, ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list in the help text, without importing a single command."""
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl(list(self._summaries.items()))
