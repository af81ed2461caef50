"""docs/cli: written from the commands, and current."""

from pathlib import Path

import pytest

from courser.cli.failures import ExitCode
from courser.cli.reference import INDEX, MARK, commands, main, pages, with_overview

DIRECTORY = Path(__file__).parents[2] / "docs" / "cli"


def test_the_pages_are_current() -> None:
    written = {path.name: path.read_text("utf-8") for path in DIRECTORY.glob("*.md")}
    index = written.pop(INDEX)
    assert {INDEX: index} | written == {INDEX: with_overview(index)} | pages(), "run: make reference"


def test_every_command_has_its_chapter_with_an_example() -> None:
    chapters = {chapter.partition("\n")[0]: chapter for page in pages().values() for chapter in page.split("\n## ")[1:]}
    for path, _ in commands():
        assert "courser " in chapters[" ".join(path)].partition("\nExample")[2]


def test_no_page_is_long() -> None:
    assert {name: text.count("\n") for name, text in pages().items() if text.count("\n") > 500} == {}


def test_every_exit_code_is_explained() -> None:
    head = (DIRECTORY / INDEX).read_text("utf-8").partition(MARK)[0]
    for code in ExitCode:
        assert f"| {int(code)} |" in head


def test_a_page_whose_commands_are_gone_is_removed(tmp_path: Path) -> None:
    (tmp_path / INDEX).write_text(f"# The command line\n\n{MARK}\n")
    (tmp_path / "gone.md").write_text("# courser gone\n")
    main(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {INDEX, *pages()}


def test_an_index_without_the_mark() -> None:
    with pytest.raises(ValueError, match="no line"):
        with_overview("# Commands\n")
