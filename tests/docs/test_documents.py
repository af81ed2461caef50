"""What the documents show works as it stands there.

``console`` blocks are typed into a terminal, and print what they say. ``python`` blocks run; one that begins with the
name of a file is saved under it, one without imports is the body of ``async with courser.connect() as client``.
``toml`` blocks are configurations with which a server would start. Every other line that calls ``courser`` is
understood by it (docs/cli is generated, and has a test of its own). Links lead somewhere.
"""

import ast
import re
import shlex
import textwrap
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from courser.broker.partition.topic_settings import durability_of
from courser.cli.tree import root
from courser.model.topic_options import TopicOptions
from courser.server.configuration.checks import check
from courser.server.configuration.loading import load
from courser.server.configuration.settings import settings_of
from tests.docs.blocks import ROOT, Block, blocks_of, courser_lines, prose_lines, shown_in, text_of
from tests.docs.stage import Stage, agrees

_OTHER_PLACES = (
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "examples/**/*.md",
    "packaging/**/*.md",
    "tests/**/*.md",
)
GUIDES = (
    "README.md",
    "docs/README.md",
    "docs/getting-started.md",
    "docs/client.md",
    "docs/processing.md",
    "docs/reference/index.md",
    "docs/cli/index.md",
    "docs/concepts.md",
    "docs/durability.md",
    "docs/archive.md",
    "docs/runbooks.md",
    "docs/installing.md",
    "docs/operations.md",
    "docs/users.md",
    "docs/monitoring.md",
    "docs/sizing.md",
    "docs/damage.md",
    "docs/measuring.md",
    "docs/coming-from-iggy.md",
    "docs/coming-from-kafka.md",
    "docs/spark/getting-started.md",
    "docs/spark/cluster.md",
    "docs/spark/recipes.md",
)
ALL = ("README.md", *sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md")))
LINKING = (*ALL, *(path.relative_to(ROOT).as_posix() for name in _OTHER_PLACES for path in sorted(ROOT.glob(name))))
LINE_LENGTH_MAX = 140

_PAGE = re.compile(r"docs/[\w/-]+\.md")
_OTHER_PACKAGES = ("apache_iggy",)
"""What is imported by programs that other tests run, in environments of their own."""
_BODY = """
import asyncio
import courser

async def main():
    async with courser.connect() as client:
{body}

asyncio.run(main())
"""


def with_blocks(*kinds: str) -> list[str]:
    return [name for name in GUIDES if any(block.kind in kinds for block in blocks_of(name))]


# --- what runs ---


@pytest.mark.parametrize("document", with_blocks("console", "python"))
def test_what_it_shows_happens(document: str, tmp_path: Path) -> None:
    problems: list[str] = []
    with Stage(tmp_path) as stage:
        stage.start()
        for block in blocks_of(document):
            if block.kind == "console":
                problems += play(stage, block)
            elif block.kind == "python" and not any(name in block.text for name in _OTHER_PACKAGES):
                perform(stage, block)
    assert not problems, "\n" + "\n".join(problems)


def play(stage: Stage, block: Block) -> Iterator[str]:
    for shown in shown_in(block):
        actual = stage.type(shown.command)
        if not agrees(shown.output, actual):
            yield f"{shown.place}: $ {shown.command}\n{actual}"


def perform(stage: Stage, block: Block) -> None:
    if named := re.match(r"# (\w+\.py)\n", block.text):
        (stage.directory / named[1]).write_text(block.text)
    elif re.search(r"^(?:import|from) ", block.text, re.MULTILINE):
        stage.run_python(block.text)
    else:
        stage.run_python(_BODY.format(body=textwrap.indent(block.text, " " * 8)))


# --- what would run ---


def configurations() -> list[Block]:
    # Those of docs/spark are pipelines, and have tests of their own.
    documents = [document for document in ALL if not document.startswith("docs/spark/")]
    return [block for document in documents for block in blocks_of(document) if block.kind == "toml"]


@pytest.mark.parametrize("block", configurations(), ids=lambda block: block.place)
def test_a_server_would_start_with_the_configuration(block: Block, tmp_path: Path) -> None:
    path = tmp_path / "server.toml"
    path.write_text(block.text)
    configuration = load(path)
    check(configuration)
    assert configuration.warnings == ()
    if stated := re.search(r"^# level: (\w+)$", block.text, re.MULTILINE):
        policy = durability_of(TopicOptions(), settings_of(configuration).broker)
        assert policy.level.value == stated[1]


@pytest.mark.parametrize(
    "document", [name for name in ALL if not name.startswith("docs/cli/") or name == "docs/cli/index.md"]
)
def test_the_command_line_understands_every_line(
    document: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("server.toml", "FILE", "00000000000000000000.log", "00000000000000000000.index", "ledger", "offsets"):
        Path(name).touch()
    for name in ("DIR", "local_data"):
        Path(name).mkdir()
    problems = []
    for place, line in courser_lines(document):
        try:
            parse(line)
        except click.ClickException as error:
            # Paths of the reader's machine.
            if not error.format_message().endswith("does not exist."):
                problems.append(f"{place}: {line}: {error.format_message()}")
    assert problems == []


def parse(line: str) -> None:
    """Let click take the line apart, without running it."""
    words = shlex.split(line, comments=True)[1:]
    if not words or words[-1] == "--help":
        return
    command: click.Command = root
    context = command.make_context("courser", words)
    while isinstance(command, click.Group):
        # Click 8 keeps the name of the next command apart from the other words.
        rest = [*getattr(context, "_protected_args", ()), *context.args]
        name, found, words = command.resolve_command(context, rest)
        assert found is not None
        command = found
        context = command.make_context(name, words, parent=context)


@pytest.mark.parametrize("document", GUIDES)
def test_commands_in_sentences_exist_with_their_options(document: str) -> None:
    problems = []
    for span in re.findall(r"`(courser [^`\n]+)`", text_of(document)):
        command, words = command_of(span)
        options = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
        unknown = [word for word in words if word.startswith("--") and word not in options | {"--help"}]
        if isinstance(command, click.Group) and words:
            unknown += words[:1]
        problems += [f"{span}: {word}" for word in unknown]
    assert problems == []


def command_of(line: str) -> tuple[click.Command, list[str]]:
    """The command that a line names, as far as it goes, and the words behind it."""
    words = line.split()[1:]
    command: click.Command = root
    context = click.Context(root, info_name="courser")
    while isinstance(command, click.Group) and words:
        found = command.get_command(context, words[0])
        if found is None:
            break
        command, words = found, words[1:]
        context = click.Context(command, parent=context, info_name=command.name)
    return command, words


# --- what leads somewhere ---


def anchors_of(document: str) -> set[str]:
    """What GitHub makes of the headings: a second one with the same text gets a number."""
    anchors: set[str] = set()
    counts: dict[str, int] = {}
    for _, line in prose_lines(document):
        if not (heading := re.match(r"#+ (.*)$", line)):
            continue
        title = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading[1])
        anchor = re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
        count = counts[anchor] = counts.get(anchor, -1) + 1
        anchors.add(f"{anchor}-{count}" if count else anchor)
    return anchors


def links_of(document: str) -> Iterator[str]:
    """The targets of all links and pictures, also of those that are defined elsewhere in the document."""
    text = re.sub(r"^```.*?^```$", "", text_of(document), flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"`[^`\n]+`", "code", text)
    yield from re.findall(r"\]\(([^)\s]+)\)", text)
    yield from re.findall(r"^\[[^]]+\]: (\S+)", text, re.MULTILINE)


@pytest.mark.parametrize("document", LINKING)
def test_links_lead_to_something(document: str) -> None:
    broken = []
    for target in links_of(document):
        if target.startswith(("http:", "https:")):
            continue
        path, _, anchor = target.partition("#")
        linked = ((ROOT / document).parent / path).resolve() if path else ROOT / document
        if not linked.exists() or (anchor and anchor not in anchors_of(linked.relative_to(ROOT).as_posix())):
            broken.append(target)
    assert broken == []


def test_the_index_names_every_document() -> None:
    listed = {target.partition("#")[0] for target in links_of("docs/README.md")}
    documents = {path.name for path in (ROOT / "docs").glob("*.md")} - {"README.md"}
    chapters = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").glob("*/index.md")}
    assert documents | chapters <= listed


@pytest.mark.parametrize("document", [name for name in GUIDES if name != "docs/cli/index.md"])
def test_lines_fit_on_a_screen(document: str) -> None:
    assert [number for number, line in prose_lines(document) if len(line) > LINE_LENGTH_MAX] == []


def test_messages_do_not_point_to_pages_that_an_installation_lacks() -> None:
    """A wheel has no docs. Not checked here: the command line, the client, and generators of pages."""
    found = []
    for path in sorted((ROOT / "src").rglob("*.py")):
        source = path.read_text()
        if {"cli", "client"} & set(path.parts) or "__main__" in source or not _PAGE.search(source):
            continue
        tree = ast.parse(source)
        docstrings = {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        texts = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and node not in docstrings]
        found += [f"{path.name}:{text.lineno}" for text in texts if _PAGE.search(str(text.value))]
    assert found == []
