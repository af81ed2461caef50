"""The reference of all commands: one page for each group, and a list of all for the index."""

import re
from collections.abc import Iterator, Mapping

import click

from courser.cli.lazy import LazyGroup
from courser.cli.naming import TopicPathArgument
from courser.cli.server_options import SERVER_EXITS, SERVER_NOTE
from courser.cli.tree import root

INDEX = "index.md"

_PAGES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "server": ("Servers", ("dev", "serve", "doctor", "ping", "stats", "options", "cluster", "snapshot")),
    "send-and-tail": ("Sending and reading", ("send", "tail", "ls")),
    "login": ("Logging in", ("login", "logout", "me")),
    "jobs": ("Spark jobs", ("export", "replay", "compact", "backfill", "merge", "audit", "usage", "demo")),
}
"""Pages of commands that are not in a group, with their titles."""
_OTHER_PAGE, _OTHER_TITLE = "other", "Other commands"


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


def pages() -> dict[str, str]:
    """The generated pages by file name."""
    chapters: dict[str, list[str]] = {}
    for path, command in commands():
        page = _page_of(path[0])
        chapters.setdefault(page, list(_head(page, path[0]))).extend(_chapter(path, command))
    return {f"{page}.md": "\n".join(lines) for page, lines in chapters.items()}


def _page_of(name: str) -> str:
    if _group(name) is not None:
        return name
    return next((page for page, (_, names) in _PAGES.items() if name in names), _OTHER_PAGE)


def _group(name: str) -> LazyGroup | None:
    command = root.get_command(click.Context(root), name)
    return command if isinstance(command, LazyGroup) else None


def _head(page: str, name: str) -> Iterator[str]:
    group = _group(name)
    title = f"courser {name}" if group is not None else _PAGES.get(page, (_OTHER_TITLE,))[0]
    yield from (f"# {title}", "")
    if group is not None:
        yield from _paragraphs(group.help or "")
        yield from _epilog(group.epilog or "")
    yield f"[The command line]({INDEX}) describes what all commands have in common: output formats, exit codes, logins."
    yield ""


def overview() -> str:
    """A table of all commands with their short names and links to their pages."""
    return "\n".join(_overview())


def _overview() -> Iterator[str]:
    yield "## Commands"
    yield ""
    yield "| command | short | what it does |"
    yield "| --- | --- | --- |"
    short = {name: alias for alias, name in root.aliases.items()}
    for name, summary in root.summaries.items():
        group = _group(name)
        verbs = ", ".join(f"[{verb}]({name}.md#{name}-{verb})" for verb in group.summaries) if group else ""
        link = f"[`{name}`]({name}.md): {verbs}" if group else f"[`{name}`]({_page_of(name)}.md#{name})"
        alias = f"`{short[name]}`" if name in short else ""
        yield f"| {link} | {alias} | {summary} |".replace("|  |", "| |")
    yield ""


def _chapter(path: tuple[str, ...], command: click.Command) -> Iterator[str]:
    name = " ".join(path)
    yield f"## {name}"
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
    # The parts that all commands share are in the index.
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
    """The option as it is typed. Choices are in the other cell: in a table, Markdown dialects disagree about ``|``."""
    names = ", ".join((*option.opts, *option.secondary_opts))
    if option.is_flag:
        return f"`{names}`"
    is_choice = isinstance(option.type, click.Choice) and option.metavar is None
    value = "CHOICE" if is_choice else option.make_metavar(click.Context(click.Command("courser")))
    return f"`{names} {value}`"


def _cell(option: click.Option) -> str:
    text = (option.help or "").replace("\n", " ")
    if isinstance(option.type, click.Choice):
        text += f" One of {', '.join(f'`{choice}`' for choice in option.type.choices)}."
    if option.show_default and not option.is_flag:
        text += f" Default: `{option.default}`."
    return text.strip()


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
