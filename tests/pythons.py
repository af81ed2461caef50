"""The Pythons of this machine that Courser supports: one library must work with all of them."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from courser.records import known_batch
from courser.records.frame_walk import COMPILED_NAME

OLDEST = (3, 11)
NEWEST = (3, 19)
"""The newest to look for; it need not exist yet."""
_QUESTION = (
    "import json, sys, sysconfig; "
    "print(json.dumps([sys.implementation.name, *sys.version_info[:2], sysconfig.get_path('include')]))"
)


@dataclass(frozen=True)
class Python:
    path: Path
    version: tuple[int, int]
    headers: Path

    @property
    def has_headers(self) -> bool:
        return (self.headers / "Python.h").exists()

    def __str__(self) -> str:
        return ".".join(map(str, self.version))


def installed_pythons() -> list[Python]:
    """One of each version, oldest first; the one that runs this is among them."""
    found: dict[tuple[int, int], Python] = {}
    for path in _candidates():
        answer = subprocess.run([path, "-c", _QUESTION], capture_output=True, text=True, check=False)
        # A name on the path may belong to a program that only tells which versions there are.
        if answer.returncode == 0:
            name, major, minor, headers = json.loads(answer.stdout)
            if name == "cpython" and (major, minor) >= OLDEST:
                found.setdefault((major, minor), Python(path, (major, minor), Path(headers)))
    return [found[version] for version in sorted(found)]


def _candidates() -> Iterator[Path]:
    yield Path(getattr(sys, "_base_executable", sys.executable))
    for minor in range(OLDEST[1], NEWEST[1] + 1):
        name = f"python3.{minor}"
        if on_path := shutil.which(name):
            yield Path(on_path)
        # Tools that install several versions keep them in directories side by side.
        yield from sorted(Path(sys.base_prefix).parent.glob(f"*/bin/{name}"))


_TRIAL = """
import importlib.util, json, sys
def load(name, path):
    specification = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module
known_batch, library = load("known_batch", sys.argv[1]), load(sys.argv[2], sys.argv[3])
print(json.dumps(known_batch.find_failure(library)))
"""


def failure_with(python: Sequence[str | Path], library: Path) -> object:
    """What fails when this command, a Python without packages, runs the compiled part; None if it works."""
    command = [*python, "-c", _TRIAL, known_batch.__file__, COMPILED_NAME, library]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
