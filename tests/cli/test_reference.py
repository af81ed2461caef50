"""docs/cli.md: written from the commands, and current."""

from pathlib import Path

import pytest

from courser.cli.failures import ExitCode
from courser.cli.reference import MARK, commands, reference_markdown, with_reference

DOCUMENT = Path(__file__).parents[2] / "docs" / "cli.md"


def test_the_document_is_current() -> None:
    text = DOCUMENT.read_text("utf-8")
    assert text == with_reference(text), "run: python -m courser.cli.reference docs/cli.md"


def test_every_command_has_its_chapter_with_an_example() -> None:
    chapters = {chapter.partition("\n")[0]: chapter for chapter in reference_markdown().split("\n### ")[1:]}
    for path, _ in commands():
        assert "courser " in chapters[" ".join(path)].partition("\nExample")[2]


def test_every_exit_code_is_explained() -> None:
    head = DOCUMENT.read_text("utf-8").partition(MARK)[0]
    for code in ExitCode:
        assert f"| {int(code)} |" in head


def test_a_document_without_the_mark() -> None:
    with pytest.raises(ValueError, match="no line"):
        with_reference("# Commands\n")
