"""The registries have no newer SDK than the newest that the tests run.

A new release may speak another protocol. The nightly run says so, before a user does.
"""

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.sdk.environments import RELEASES

pytestmark = pytest.mark.languages

PATIENCE = 300.0
_ABSENT = ("E404", "403 Forbidden", "404 Not Found")
"""What a registry says that does not have a package: then there is nothing new in it."""


@dataclass(frozen=True)
class Registry:
    """Where the SDK of a language comes from."""

    language: str
    newest: str
    """The newest release that the tests run."""
    command: tuple[str, ...]
    """Asks for the newest release. It is run in an empty directory."""
    found: str
    """An expression whose group is that release."""
    answer: Callable[[Path], str] = lambda _: ""
    """What the command has left in its directory, if it does not print the answer."""

    def __str__(self) -> str:
        return self.language


def maven_metadata(directory: Path) -> str:
    return "".join(path.read_text() for path in directory.rglob("org/apache/iggy/iggy/maven-metadata*.xml"))


REGISTRIES = (
    Registry(
        "python",
        RELEASES[-1],
        (sys.executable, "-m", "pip", "index", "versions", "apache-iggy", "--pre"),
        r"apache-iggy \((.+)\)",
    ),
    Registry("rust", "0.11.1-edge.9", ("cargo", "info", "iggy", "--color=never"), r"(?m)^version: (\S+)"),
    Registry(
        "java",
        "0.8.0",
        (
            "mvn",
            "-q",
            "-B",
            "-Dmaven.repo.local=repository",
            "dependency:get",
            "-Dartifact=org.apache.iggy:iggy:LATEST",
            "-Dtransitive=false",
        ),
        r"<latest>(.+)</latest>",
        maven_metadata,
    ),
    Registry("node", "0.8.0", ("npm", "view", "apache-iggy", "version"), r"(?m)^(\d\S+)$"),
    Registry(
        "go",
        "v0.8.0",
        ("go", "list", "-mod=mod", "-m", "-versions", "github.com/apache/iggy/foreign/go"),
        r"(v\S+)\s*$",
    ),
)


@pytest.mark.parametrize("registry", REGISTRIES, ids=str)
def test_there_is_no_newer_sdk(registry: Registry, tmp_path: Path) -> None:
    assert shutil.which(registry.command[0]), f"{registry.command[0]} is missing"
    (tmp_path / "go.mod").write_text("module courser.test/newest\n\ngo 1.25.0\n")
    done = subprocess.run(registry.command, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE, check=False)
    said = f"{done.stdout}\n{done.stderr}"
    if done.returncode:
        assert any(absent in said for absent in _ABSENT), said
        return
    match = re.search(registry.found, done.stdout + registry.answer(tmp_path))
    assert match is not None, said
    assert match.group(1) == registry.newest, "the SDK has a release that no test runs: add it to the tests"
