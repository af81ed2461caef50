"""The reference of all commands as Markdown, generated from the commands so that it is never out of date.

``python -m courser.cli.reference docs/cli.md`` writes it into that file, after the line ``MARK``.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from courser.cli.lazy import LazyGroup
from courser.cli.naming import TopicPathArgument
from courser.cli.server_options import SERVER_EXITS, SERVER_NOTE
from courser.cli.tree import root

MARK = "<!-- everything below is written by: python -m courser.cli.reference docs/cli.md -->"


def commands(group: LazyGroup = root, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Every command that is not a group, with its path."""
    context = click.Context(group, info_name=" ".join(path) or "courser")
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, LazyGroup):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name), command


def reference_markdown() -> str:
    """A table of all commands with their short names, then one chapter per command."""
    return "\n".join((*_overview(), *(line for path, command in commands() for line in _chapter(path, command))))


def _overview() -> Iterator[str]:
    yield "## Commands"
    yield ""
    yield "| command | short | what it does |"
    yield "| --- | --- | --- |"
    short = {name: alias for alias, name in root.aliases.items()}
    context = click.Context(root)
    for name, summary in root.summaries.items():
        command = root.get_command(context, name)
        verbs = f": {', '.join(command.summaries)}" if isinstance(command, LazyGroup) else ""
        alias = f"`{short[name]}`" if name in short else ""
        yield f"| `{name}`{verbs} | {alias} | {summary} |"
    yield ""


def _chapter(path: tuple[str, ...], command: click.Command) -> Iterator[str]:
    name = " ".join(path)
    yield f"### {name}"
    yield ""
    yield from _paragraphs(command.help or "")
    yield "```"
    yield f"courser {name} {_usage(command)}".rstrip()
    yield "```"
    yield ""
    options = [param for param in command.params if isinstance(param, click.Option) and not param.hidden]
    rows = [f"| {_names(option)} | {_cell(option)} |" for option in options if option.name != "output"]
    if rows:
        yield from ("| option | |", "| --- | --- |", *rows, "")
    # The parts that all commands share are at the top of the document.
    yield from _epilog((command.epilog or "").replace(SERVER_NOTE, "").removesuffix(SERVER_EXITS))


def _usage(command: click.Command) -> str:
    words = ["[OPTIONS]"]
    for param in command.params:
        if isinstance(param, TopicPathArgument):
            words.append(param.metavar or "")
        elif isinstance(param, click.Argument):
            words.append(param.make_metavar(click.Context(command)))
    return " ".join(words)


def _names(option: click.Option) -> str:
    names = [*option.opts, *option.secondary_opts]
    context = click.Context(click.Command("courser"))
    value = "" if option.is_flag else f" {option.make_metavar(context)}"
    return f"`{', '.join(names)}{value}`".replace("|", "\\|")


def _cell(option: click.Option) -> str:
    text = (option.help or "").replace("|", "\\|").replace("\n", " ")
    if option.show_default and not option.is_flag:
        text += f" Default: `{option.default}`."
    return text


def _paragraphs(text: str) -> Iterator[str]:
    for paragraph in re.split(r"\n\s*\n", text.strip()):
        yield " ".join(paragraph.split())
        yield ""


def _epilog(text: str) -> Iterator[str]:
    """Examples as code blocks, the rest unchanged."""
    for block in re.split(r"\n\s*\n", text.strip()):
        lines = block.removeprefix("\b\n").splitlines()
        if len(lines) > 1 and lines[0].endswith(":"):
            yield lines[0]
            yield ""
            yield "```"
            yield from (line.removeprefix("  ") for line in lines[1:])
            yield "```"
        else:
            yield " ".join(line.strip() for line in lines)
        yield ""


def with_reference(document: str) -> str:
    """The document with the part after ``MARK`` replaced."""
    before, mark, _ = document.partition(MARK)
    if not mark:
        raise ValueError(f"the document has no line {MARK}")
    return f"{before}{MARK}\n\n{reference_markdown()}"


if __name__ == "__main__":
    for name in sys.argv[1:]:
        file = Path(name)
        file.write_text(with_reference(file.read_text("utf-8")), "utf-8")
