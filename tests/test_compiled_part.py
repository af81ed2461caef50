"""The compiled part is used where it works: with every Python, and only after it has been tried with a known batch."""

import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import FunctionType, ModuleType, SimpleNamespace
from typing import cast

import pytest

from courser.records import frame_walk, frame_walk_pure, known_batch
from tests.pythons import failure_with, installed_pythons

SOURCES = Path(known_batch.__file__).parent
COMPILED_ONLY = {
    "survey_classic",
    "frames_from_classic",
    "take_classic_send",
    "take_vsr_send",
    "classic_from_frames",
    "good_batches",
}
"""In Python, these leave the work to other modules."""


def copy_of(walk: ModuleType, **replacements: object) -> ModuleType:
    """A module with the same functions, except some."""
    return cast("ModuleType", SimpleNamespace(**vars(walk) | replacements))


# --- the known batch ---


@pytest.fixture
def compiled() -> ModuleType:
    found = frame_walk.find_compiled()
    return pytest.skip("it was not compiled") if found is None else found


def test_the_compiled_functions_return_the_results(compiled: ModuleType) -> None:
    assert known_batch.find_failure(compiled) is None


@pytest.mark.parametrize("name", sorted(known_batch.KNOWN.keys() - COMPILED_ONLY))
def test_the_functions_in_python_return_the_results(name: str) -> None:
    call, expected = known_batch.KNOWN[name]
    assert call(frame_walk_pure) == expected


def test_every_function_that_is_chosen_is_tried() -> None:
    fallback = vars(frame_walk_pure).items()
    functions = {name for name, value in fallback if isinstance(value, FunctionType) and hasattr(frame_walk, name)}
    assert known_batch.KNOWN.keys() == functions


@pytest.mark.parametrize("name", known_batch.KNOWN)
def test_a_function_that_fails_is_named(compiled: ModuleType, name: str) -> None:
    def raise_error(*_: object) -> None:
        raise SystemError("PY_SSIZE_T_CLEAN macro must be defined")

    found = known_batch.find_failure(copy_of(compiled, **{name: raise_error}))
    assert found == f"{name} raises SystemError('PY_SSIZE_T_CLEAN macro must be defined')"
    found = known_batch.find_failure(copy_of(compiled, **{name: lambda *_: b""}))
    assert found == f"{name} returns a wrong result"


# --- which one is used ---


def test_a_library_that_fails_is_reported_and_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = copy_of(frame_walk_pure, check_batch=lambda _: None)
    monkeypatch.setitem(sys.modules, frame_walk.COMPILED_NAME, broken)
    monkeypatch.delenv("COURSER_PURE", raising=False)
    with pytest.warns(RuntimeWarning, match="does not work, using Python code.*check_batch returns a wrong result"):
        assert frame_walk.choose() is frame_walk_pure


def test_a_library_that_cannot_be_loaded_is_reported_and_not_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / f"{frame_walk.COMPILED_NAME}.abi3.so").write_bytes(b"no library")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, frame_walk.COMPILED_NAME, raising=False)
    monkeypatch.delenv("COURSER_PURE", raising=False)
    with pytest.warns(RuntimeWarning, match="does not work, using Python code.*file too short"):
        assert frame_walk.choose() is frame_walk_pure


def test_a_library_of_other_sources_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    other = copy_of(frame_walk_pure, INTERFACE=frame_walk_pure.INTERFACE - 1)
    monkeypatch.setitem(sys.modules, frame_walk.COMPILED_NAME, other)
    monkeypatch.delenv("COURSER_PURE", raising=False)
    assert frame_walk.choose() is frame_walk_pure


def test_without_a_library_nothing_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, frame_walk.COMPILED_NAME, None)
    assert frame_walk.choose() is frame_walk_pure


# --- every Python ---


def compile_with(headers: Path, directory: Path) -> Path:
    library = directory / f"{frame_walk.COMPILED_NAME}.abi3.so"
    source = SOURCES / "_frame_walk.c"
    subprocess.run(["cc", "-O3", "-fPIC", "-shared", "-I", str(headers), str(source), "-o", str(library)], check=True)
    return library


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_one_library_works_with_every_python(tmp_path: Path) -> None:
    pythons = installed_pythons()
    newest = [python for python in pythons if python.has_headers][-1]
    library = compile_with(newest.headers, tmp_path)
    assert {str(python): failure_with([python.path], library) for python in pythons} == {
        str(it): None for it in pythons
    }


def test_no_format_depends_on_the_version_of_the_headers() -> None:
    """Also where only one Python is installed."""
    sources = [path.read_text() for path in SOURCES.glob("*.[ch]")]
    formats = [found for text in sources for found in re.findall(r'Py_BuildValue\(\s*"([^"]*)"', text)]
    assert len(formats) >= 5
    assert not [found for found in formats if "#" in found]
    assert not [text for text in sources if "PyArg_" in text or "PY_SSIZE_T_CLEAN" in text]
