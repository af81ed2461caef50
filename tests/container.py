"""The Dockerfile, as instructions, and carried out outside a container.

Each stage gets a directory in place of ``/``, and a virtual environment in place of Python. ``COPY`` copies there;
``RUN`` runs in a shell with every absolute path moved there, and with ``pip``, ``useradd`` and ``groupadd`` that work
on that directory. What differs from a container: the base image, and that the commands see this machine.
"""

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import pytest

from tests.wheels import PATIENCE, ROOT, Environment, clean_variables, make_environment

ACCOUNT_FILES = ("passwd", "group", "shadow", "gshadow")
ACCOUNT_TOOLS = ("useradd", "groupadd")


def instructions() -> list[tuple[str, str]]:
    """The Dockerfile: its instructions with their arguments, continuation lines joined."""
    text = re.sub(r"\\\n\s*", "", (ROOT / "Dockerfile").read_text())
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in lines)]


def last_stage() -> list[tuple[str, str]]:
    found = instructions()
    start = max(number for number, (word, _) in enumerate(found) if word == "FROM")
    return found[start:]


def argument_of(instruction: str) -> str:
    """Of an instruction that the last stage has once."""
    (argument,) = (argument for word, argument in last_stage() if word == instruction)
    return argument


@dataclass(frozen=True)
class Stage:
    """What one stage has made so far."""

    root: Path
    """In place of ``/``."""
    environment: Environment

    @classmethod
    def make(cls, directory: Path) -> Self:
        """An empty one, with the tools of its base image."""
        (directory / "root" / "etc").mkdir(parents=True)
        (directory / "tools").mkdir()
        stage = cls(directory / "root", make_environment(directory / "environment"))
        for name in ACCOUNT_FILES:
            (stage.root / "etc" / name).touch()
        pip = f"{sys.executable} -m pip --python {stage.environment.python} --quiet --disable-pip-version-check"
        stage._add_tool("pip", f'exec {pip} "$@"')
        for name in ACCOUNT_TOOLS:
            program = shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
            # Only root may create users, even in a directory of its own.
            is_able = program is not None and os.geteuid() == 0
            stage._add_tool(name, f'exec {program} --prefix {stage.root} "$@"' if is_able else ":")
        return stage

    def _add_tool(self, name: str, command: str) -> None:
        tool = self.tools / name
        tool.write_text(f"#!/bin/sh\n{command}\n")
        tool.chmod(0o755)

    @property
    def tools(self) -> Path:
        return self.root.parent / "tools"

    def copy(self, arguments: str) -> None:
        """COPY: the contents of directories, and files into a directory."""
        *sources, place = arguments.split()
        for source in (ROOT / name for name in sources):
            if source.is_dir():
                shutil.copytree(source, self.inside(place), ignore=shutil.ignore_patterns("__pycache__", "*.so"))
            else:
                self.inside(place).mkdir(parents=True, exist_ok=True)
                shutil.copy(source, self.inside(place))

    def run(self, arguments: str, others: dict[str, "Stage"]) -> None:
        """RUN: in a shell; a directory that it mounts from another stage is a link to that directory."""
        while option := re.match(r"--mount=(\S+)\s+", arguments):
            mount = dict(pair.split("=", 1) for pair in option[1].split(","))
            assert mount["type"] == "bind"
            self.inside(mount["target"]).symlink_to(others[mount["from"]].inside(mount["source"]))
            arguments = arguments[option.end() :]
        script = re.sub(r'(?<=[\s"])/(?=wheels|source)', f"{self.root}/", arguments)
        variables = clean_variables() | {
            "PATH": f"{self.tools}:{self.environment.directory}/bin:{os.environ['PATH']}",
            # The tests import a small part of what is installed, and Python compiles that part.
            "PIP_COMPILE": "0",
        }
        result = subprocess.run(
            ["/bin/sh", "-euc", script],
            env=variables,
            cwd=self.root,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert result.returncode == 0, f"{script}: {result.stdout}{result.stderr}"

    def inside(self, path: str) -> Path:
        """A path of the image, on this machine."""
        return self.root / path.lstrip("/")


def build_image(directory: Path) -> dict[str, Stage]:
    """Carry out all steps. The stages by their names; the last one is ``""``."""
    stages: dict[str, Stage] = {}
    current = None
    for word, arguments in instructions():
        if word == "FROM":
            name = arguments.partition(" AS ")[2]
            current = stages[name] = Stage.make(directory / (name or "last"))
            continue
        assert current is not None, "a Dockerfile begins with FROM"
        if word == "COPY":
            current.copy(arguments)
        elif word == "RUN":
            current.run(arguments, stages)
    return stages


@pytest.fixture(scope="session")
def image(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Stage]:
    """The stages of the image by their names."""
    return build_image(tmp_path_factory.mktemp("image"))


@pytest.fixture(scope="session")
def wheel(image: dict[str, Stage]) -> Path:
    """The wheel as a machine with a C compiler builds it, if this is one."""
    (wheel,) = image["build"].inside("/wheels").glob("courser-*.whl")
    return wheel


@pytest.fixture(scope="session")
def installed(image: dict[str, Stage]) -> Environment:
    """An environment with the wheel and its dependencies: that of the image. Tests must not change it."""
    return image[""].environment
