"""The documentation site is built from docs/ without warnings, and finds every page."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from tests.docs.blocks import ROOT, text_of

PAGES = sorted(path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md"))
NAVIGATION = re.findall(r"^ +- (?:.+: )?(\S+\.md)$", text_of("mkdocs.yml").partition("\nnav:\n")[2], re.MULTILINE)
_BUILD_TIMEOUT = 120


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built beside a copy of the pages, because the builder keeps a cache there."""
    directory = tmp_path_factory.mktemp("site")
    shutil.copytree(ROOT / "docs", directory / "docs")
    shutil.copy(ROOT / "mkdocs.yml", directory)
    command = [str(Path(sys.executable).parent / "zensical"), "build", "--strict"]
    ran = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False, timeout=_BUILD_TIMEOUT)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "No issues found" in ran.stderr
    return directory / "build" / "site"


def location_of(page: Path) -> str:
    directory = page.parent if page.stem in ("README", "index") else page.with_suffix("")
    return "" if directory == Path() else f"{directory.as_posix()}/"


def test_every_page_is_built_and_can_be_searched(site: Path) -> None:
    index = msgspec.json.decode((site / "search.json").read_bytes(), type=dict[str, object])
    items = msgspec.convert(index["items"], list[dict[str, object]])
    found = {str(item["location"]).partition("#")[0] for item in items}
    assert {location_of(page) for page in PAGES} <= found
    assert [page for page in PAGES if not (site / location_of(page) / "index.html").exists()] == []


def test_no_page_loads_anything_from_elsewhere(site: Path) -> None:
    pages = [path.read_text() for path in site.rglob("index.html")]
    assert [found for page in pages for found in re.findall(r"<(?:script|img|link)[^>]+https?://[^>]*>", page)] == []


def test_code_in_tables_has_no_escapes(site: Path) -> None:
    pages = [path.read_text() for path in site.rglob("index.html")]
    assert [found for page in pages for found in re.findall(r"<td><code>[^<]*\\\|[^<]*</code>", page)] == []


def test_the_navigation_leads_to_every_page() -> None:
    """Decisions and formats have lists of their own."""
    listed = {"adr", "formats"}
    expected = {page.as_posix() for page in PAGES if page.name == "README.md" or page.parts[0] not in listed}
    assert sorted(NAVIGATION) == sorted(expected)
