"""Building the package, and virtual environments that hold nothing else.

The fixtures here and in ``tests.container`` build each archive once per run; ``conftest`` keeps the tests that use them
on one worker.
"""

import os
import subprocess
import sys
import venv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PATIENCE = 600.0
"""Seconds: the package index may be slow."""
_BUILD_REQUIREMENTS = ("hatchling>=1.27", "editables")


@dataclass(frozen=True)
class Environment:
    """A virtual environment. It has no pip: that of the tests works for it."""

    directory: Path

    @property
    def python(self) -> Path:
        return self.directory / "bin" / "python"

    @property
    def courser(self) -> Path:
        return self.directory / "bin" / "courser"

    def install(self, *requirements: str) -> None:
        """What pip takes: names, files."""
        # The tests import a small part of what is installed: Python compiles that part when it is first imported.
        options = ("--quiet", "--no-compile", "--disable-pip-version-check")
        run(sys.executable, "-m", "pip", "--python", self.python, "install", *options, *requirements)


def make_environment(directory: Path, *requirements: str, python: Path | None = None) -> Environment:
    """A new one with these packages, of this Python or another one."""
    if python is None:
        venv.create(directory, with_pip=False, symlinks=True)
    else:
        run(python, "-m", "venv", "--without-pip", directory)
    environment = Environment(directory)
    if requirements:
        environment.install(*requirements)
    return environment


def run(
    *command: str | Path, cwd: Path | None = None, variables: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end; if it fails, so does the test, with what it said."""
    environment = clean_variables() | dict(variables or {})
    result = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert result.returncode == 0, f"{command}: {result.stdout}{result.stderr}"
    return result


def clean_variables() -> dict[str, str]:
    """Without settings of ours, and without ways to modules outside an environment."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("COURSER_", "IGGY_", "PYTHON", "VIRTUAL_ENV"))
    }


@dataclass(frozen=True)
class Builder:
    """What makes archives: an environment with the build backend."""

    environment: Environment

    def make_sdist(self, directory: Path) -> Path:
        """The source archive of the tree as it is now."""
        run(self.environment.python, "-m", "hatchling", "build", "-t", "sdist", "-d", directory, cwd=ROOT)
        (archive,) = directory.glob("*.tar.gz")
        return archive

    def make_wheel(self, sdist: Path, directory: Path, variables: Mapping[str, str] | None = None) -> Path:
        """The wheel that ``pip wheel`` makes of a source archive."""
        command = (sys.executable, "-m", "pip", "--python", self.environment.python, "wheel", "--quiet", "--no-deps")
        run(*command, "--no-build-isolation", "--wheel-dir", directory, sdist, variables=variables)
        (wheel,) = directory.glob("*.whl")
        return wheel

    def make_editable_wheel(self, tree: Path, directory: Path) -> Path:
        """What ``pip install --editable`` installs: it refers to the tree."""
        program = "import sys; from hatchling.build import build_editable; build_editable(sys.argv[1])"
        run(self.environment.python, "-c", program, directory, cwd=tree)
        (wheel,) = directory.glob("*.whl")
        return wheel


def make_builder(directory: Path) -> Builder:
    """A new one."""
    return Builder(make_environment(directory, *_BUILD_REQUIREMENTS, "pip"))


@pytest.fixture(scope="session")
def builder(tmp_path_factory: pytest.TempPathFactory) -> Builder:
    return make_builder(tmp_path_factory.mktemp("builder"))


@pytest.fixture(scope="session")
def sdist(builder: Builder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return builder.make_sdist(tmp_path_factory.mktemp("sdist"))
