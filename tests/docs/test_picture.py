"""The picture in the README shows what a session shows today."""

import html
import importlib.util
import re
from pathlib import Path
from types import ModuleType

from tests.docs.blocks import ROOT
from tests.docs.stage import steady

DIRECTORY = ROOT / "docs" / "images"


def terminal() -> ModuleType:
    specification = importlib.util.spec_from_file_location("terminal", DIRECTORY / "terminal.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def words_of(picture: str) -> list[str]:
    texts = re.findall(r"<text[^>]*>(.*?)</text>", picture)
    return [line for text in texts for line in steady(html.unescape(text).replace("\xa0", " "))]


def test_it_is_what_the_script_makes(tmp_path: Path) -> None:
    session = terminal().Session(tmp_path)
    try:
        made = terminal().draw(session)
    finally:
        session.kill()
    kept = (DIRECTORY / "terminal.svg").read_text()
    assert words_of(made) == words_of(kept), "make it anew: python docs/images/terminal.py"


def test_it_needs_nothing_from_elsewhere() -> None:
    kept = (DIRECTORY / "terminal.svg").read_text()
    assert "@font-face" not in kept
    assert re.findall(r"(?:href|src|url)\s*[=(]\s*[\"']?http", kept) == []
