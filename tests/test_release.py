"""The archives that ``make release`` has built, in clean environments of every Python that is installed."""

import json
import os
import shlex
import zipfile
from pathlib import Path

import pytest

from courser import __version__
from courser.records.frame_walk import COMPILED_NAME
from tests.pythons import Python, failure_with, installed_pythons
from tests.release import TARGETS, Target
from tests.servers import ROOT, RunningServer
from tests.wheels import make_environment, run

pytestmark = pytest.mark.release

DIST = ROOT / "dist"
PURE = f"courser-{__version__}-py3-none-any.whl"
ARM_PYTHON = "COURSER_ARM_PYTHON"
"""The environment variable with the command that runs a Python for ARM, such as an emulator."""


def name_of(target: Target) -> str:
    return f"courser-{__version__}-cp311-abi3-{target.platform}.whl"


def native_wheel() -> str:
    (name,) = (name_of(target) for target in TARGETS if target.processor == os.uname().machine)
    return name


def library_of(wheel: str, directory: Path) -> Path:
    with zipfile.ZipFile(DIST / wheel) as archive:
        return Path(archive.extract(f"{COMPILED_NAME}.abi3.so", directory))


def test_all_archives_are_there() -> None:
    compiled = {name_of(target) for target in TARGETS}
    assert {path.name for path in DIST.iterdir()} == {f"courser-{__version__}.tar.gz", PURE} | compiled


def test_the_wheels_differ_in_the_compiled_part_only() -> None:
    names = {wheel: set(zipfile.ZipFile(DIST / wheel).namelist()) for wheel in (PURE, *map(name_of, TARGETS))}
    for target in TARGETS:
        assert names[name_of(target)] - names[PURE] == {f"{COMPILED_NAME}.abi3.so"}


def test_one_library_works_with_every_python(tmp_path: Path) -> None:
    pythons, library = installed_pythons(), library_of(native_wheel(), tmp_path)
    assert {str(it): failure_with([it.path], library) for it in pythons} == {str(it): None for it in pythons}


@pytest.mark.skipif(ARM_PYTHON not in os.environ, reason=f"{ARM_PYTHON} does not name a Python for ARM")
def test_the_library_for_arm_works(tmp_path: Path) -> None:
    assert failure_with(shlex.split(os.environ[ARM_PYTHON]), library_of(name_of(Target("aarch64")), tmp_path)) is None


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", ["compiled", "pure"])
def test_clean_environments_of_every_python_serve_send_and_poll(kind: str, tmp_path: Path) -> None:
    wheel = DIST / (native_wheel() if kind == "compiled" else PURE)
    for python in installed_pythons():
        try_wheel(wheel, python, tmp_path / str(python), is_compiled=kind == "compiled")


def try_wheel(wheel: Path, python: Python, directory: Path, *, is_compiled: bool) -> None:
    directory.mkdir()
    environment = make_environment(directory / "environment", str(wheel), python=python.path)
    program = "from courser.records import frame_walk; print(frame_walk.is_compiled)"
    assert run(environment.python, "-c", program, cwd=directory).stdout.strip() == str(is_compiled)
    with RunningServer(directory / "server", program=environment.courser) as server:
        url = ("--url", f"iggy://iggy:iggy@{server.address}")
        run(environment.courser, "send", "shop/orders", "first", "second", "--create", *url, cwd=directory)
        poll = ("message", "poll", "shop/orders", "0", "--first", "--message-count", "10", "-o", "json")
        polled = run(environment.courser, *poll, *url, cwd=directory)
        assert [message["payload"] for message in json.loads(polled.stdout)] == ["first", "second"]
        assert server.stop() == 0
