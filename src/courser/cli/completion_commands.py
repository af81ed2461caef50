"""``courser completion``: completion scripts for shells."""

import click
from click.shell_completion import get_completion_class

from courser.cli.output import output_option
from courser.cli.records import Field, emit_thing
from courser.cli.server_options import examples
from courser.cli.terminal import write

_SHELLS = ("bash", "zsh", "fish")


@click.command(
    "completion",
    epilog=examples(
        "courser completion bash >> ~/.bashrc",
        "courser completion zsh >> ~/.zshrc",
        "courser completion fish > ~/.config/fish/completions/courser.fish",
        exits="Exit codes: 0 printed, 2 wrong usage.",
    ),
)
@click.argument("shell", type=click.Choice(_SHELLS))
@output_option
def completion_command(*, shell: str, output: str) -> None:
    """Print a completion script for a shell. It also completes names of streams, topics, users and contexts."""
    kind = get_completion_class(shell)
    assert kind is not None
    script = kind(click.Command("courser"), {}, "courser", "_COURSER_COMPLETE").source()
    if output == "table":
        write(f"{script}\n")
        return
    emit_thing((Field("shell"), Field("script")), {"shell": shell, "script": script}, output)
