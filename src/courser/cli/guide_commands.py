"""``courser help`` and ``courser completion``: find and type commands."""

from collections.abc import Sequence

import click
from click.shell_completion import CompletionItem, get_completion_class

from courser.cli.fields import fields
from courser.cli.options import local_command
from courser.cli.output import emit_thing
from courser.cli.terminal import write

_SHELLS = ("bash", "zsh", "fish")


# --- help ---


def _described(ctx: click.Context, words: Sequence[str]) -> click.Context:
    """The context of the command that the words name. Raises ``click.UsageError`` if there is none."""
    found = ctx.find_root()
    for word in words:
        if not isinstance(found.command, click.Group):
            raise click.UsageError(f'"{found.command_path}" has no commands, so "{word}" is not one', ctx)
        name, command, _ = found.command.resolve_command(found, [word])
        assert command is not None
        found = click.Context(command, parent=found, info_name=name)
    return found


def _complete_command(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    try:
        found = _described(ctx, ctx.params.get(param.name or "") or ())
    except click.UsageError:
        return []
    return found.command.shell_complete(found, incomplete) if isinstance(found.command, click.Group) else []


@local_command(
    "help",
    "courser help",
    "courser help send",
    "courser help group reset",
    exits="Exit codes: 0 printed, 2 unknown command.",
)
@click.argument("words", metavar="[COMMAND]...", nargs=-1, shell_complete=_complete_command)
@click.pass_context
def help_command(ctx: click.Context, *, words: tuple[str, ...], output: str) -> None:
    """Print the help of a command, or the list of all commands. The same as COMMAND --help."""
    described = _described(ctx, words)
    text = described.get_help()
    if output == "table":
        write(f"{text}\n")
        return
    emit_thing(fields("command, text"), {"command": described.command_path, "text": text}, output)


# --- completion ---


@local_command(
    "completion",
    "courser completion bash >> ~/.bashrc",
    "courser completion zsh >> ~/.zshrc",
    "courser completion fish > ~/.config/fish/completions/courser.fish",
    exits="Exit codes: 0 printed, 2 wrong usage.",
)
@click.argument("shell", type=click.Choice(_SHELLS))
def completion_command(*, shell: str, output: str) -> None:
    """Print a completion script for a shell. It also completes names of streams, topics, groups, users and contexts."""
    kind = get_completion_class(shell)
    assert kind is not None
    script = kind(click.Command("courser"), {}, "courser", "_COURSER_COMPLETE").source()
    if output == "table":
        write(f"{script}\n")
        return
    emit_thing(fields("shell, script"), {"shell": shell, "script": script}, output)
