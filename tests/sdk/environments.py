"""One virtual environment per release of the SDK, made when it is first needed and kept beside ``.venv``.

Two workers of pytest may want the same environment at once: a file lock makes one of them wait. A stamp inside the
environment says what it holds, so that a finished one costs nothing, and a half-made one is made anew.
"""

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
HOME = ROOT / ".venv-sdks"

RELEASES = ("0.5.0", "0.6.0", "0.7.0", "0.8.0", "0.9.0", "0.9.1.dev5")
PYTHON_VERSIONS = ((3, 11), (3, 12), (3, 13))
"""For these, every release has a wheel on the package index. None of them can be built without a Rust compiler."""


def python_of(release: str) -> Path:
    """The interpreter whose environment holds this release."""
    assert release in RELEASES
    environment = HOME / release
    python = environment / "bin" / "python"
    stamp = environment / ".installed"
    interpreter = suitable_interpreter()
    contents = f"{interpreter} {release}"
    HOME.mkdir(exist_ok=True)
    with locked(HOME / f"{release}.lock"):
        if not (python.exists() and stamp.exists() and stamp.read_text() == contents):
            shutil.rmtree(environment, ignore_errors=True)
            run(interpreter, "-m", "venv", "--without-pip", str(environment))
            run(*PIP, "--python", str(python), "install", "--only-binary", ":all:", f"apache-iggy=={release}")
            stamp.write_text(contents)
    return python


PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "--no-input")


def suitable_interpreter() -> str:
    """This interpreter if there are wheels for it, else the first on the path that has them."""
    if sys.version_info[:2] in PYTHON_VERSIONS:
        return getattr(sys, "_base_executable", sys.executable)
    for major, minor in PYTHON_VERSIONS:
        if found := shutil.which(f"python{major}.{minor}"):
            return found
    names = ", ".join(f"{major}.{minor}" for major, minor in PYTHON_VERSIONS)
    raise RuntimeError(f"the tests of the SDK need one of Python {names}: install it, it only has to be on the path")


def run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Only one process at a time gets in. The kernel lets go of the lock when its holder dies."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
