"""The fenced blocks of a Markdown file, and the commands that it shows."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """One fenced block."""

    document: str
    line: int
    kind: str
    """What stands behind the opening fence."""
    text: str

    @property
    def place(self) -> str:
        return f"{self.document}:{self.line}"


@dataclass(frozen=True)
class Shown:
    """A command of a ``console`` block, and what the document says it prints."""

    place: str
    command: str
    output: str


@cache
def text_of(document: str) -> str:
    return (ROOT / document).read_text(encoding="utf-8")


@cache
def blocks_of(document: str) -> tuple[Block, ...]:
    text = text_of(document)
    return tuple(
        Block(document, text.count("\n", 0, found.start()) + 2, found[1], found[2]) for found in _FENCE.finditer(text)
    )


def shown_in(block: Block) -> Iterator[Shown]:
    """``$`` begins a command, ``>`` continues it, the rest is output."""
    commands: list[tuple[int, list[str], list[str]]] = []
    for number, line in enumerate(block.text.splitlines(), block.line):
        if line.startswith("$ "):
            commands.append((number, [line[2:]], []))
        elif line.startswith("> ") and commands and not commands[-1][2]:
            commands[-1][1].append(line[2:])
        else:
            assert commands, f"{block.document}:{number}: output before the first command"
            commands[-1][2].append(line)
    for number, command, output in commands:
        yield Shown(f"{block.document}:{number}", "\n".join(command), "\n".join(output))


def courser_lines(document: str) -> Iterator[tuple[str, str]]:
    """Every line that calls ``courser``, in whatever block, with its place. What stands two blanks behind is talk."""
    for block in blocks_of(document):
        if block.kind in ("python", "toml"):
            continue
        for number, line in enumerate(block.text.splitlines(), block.line):
            for part in line.removeprefix("$ ").split(" | "):
                if found := re.match(r"\s*(?:\w+=\S+ )*(courser .*?)(?: {2,}.*| [>&].*)?$", part):
                    yield f"{document}:{number}", found[1]


def prose_lines(document: str) -> Iterator[tuple[int, str]]:
    """Lines outside of blocks and tables, with their numbers."""
    is_inside = False
    for number, line in enumerate(text_of(document).splitlines(), 1):
        if line.startswith("```"):
            is_inside = not is_inside
        elif not is_inside and not line.startswith("|"):
            yield number, line
