"""docs/cli: every command, with an example."""

from courser.cli.failures import ExitCode
from tools.command_pages import INDEX, commands, pages
from tools.generated import ALL_BELOW, ROOT


def test_every_command_has_its_chapter_with_an_example() -> None:
    chapters = {chapter.partition("\n")[0]: chapter for page in pages().values() for chapter in page.split("\n## ")[1:]}
    for path, _ in commands():
        assert "courser " in chapters[" ".join(path)].partition("\nExample")[2]


def test_no_page_is_long() -> None:
    assert {name: text.count("\n") for name, text in pages().items() if text.count("\n") > 500} == {}


def test_every_exit_code_is_explained() -> None:
    head = (ROOT / "docs" / "cli" / INDEX).read_text("utf-8").partition(ALL_BELOW)[0]
    for code in ExitCode:
        assert f"| {int(code)} |" in head
