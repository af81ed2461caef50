"""A small fake disk, and what power cuts leave of it."""

import random
from collections.abc import Callable
from pathlib import Path

from courser.storage.files import read_into, write_all
from tests.fakes.files import FakeFile, FakeFileSystem

DATA = Path("/data")
FILE = DATA / "a"
SEEDS = range(200)


def make_system(seed: int = 1) -> FakeFileSystem:
    """An empty folder."""
    system = FakeFileSystem(random.Random(seed))
    system.plant_directory(DATA)
    return system


def synced_without_name(system: FakeFileSystem, path: Path, content: bytes) -> FakeFile:
    """A new file whose bytes are durable; its directory is not synced."""
    file = system.open(path, create=True)
    write_all(file, 0, [content])
    file.sync()
    return file


def synced(system: FakeFileSystem, path: Path, content: bytes) -> FakeFile:
    """A file that is durable with its name."""
    file = synced_without_name(system, path, content)
    system.sync_directory(path.parent)
    return file


def read(file: FakeFile) -> bytes:
    """All of it."""
    buffer = bytearray(file.size())
    return bytes(buffer[: read_into(file, 0, memoryview(buffer))])


def tree(system: FakeFileSystem) -> dict[str, bytes]:
    """All files with their contents."""
    return {str(path.relative_to(DATA)): system.contents(path) for path in system.files()}


def outcomes(prepare: Callable[[FakeFileSystem], object], seeds: range = SEEDS) -> list[dict[str, bytes]]:
    """What power cuts with many seeds leave after the same calls."""
    results = []
    for seed in seeds:
        system = make_system(seed)
        prepare(system)
        system.power_cut()
        results.append(tree(system))
    return results


def assert_all_come_up(results: list[dict[str, bytes]], *possible: dict[str, bytes]) -> None:
    """Each of these outcomes comes up, and no other one."""
    assert all(result in possible for result in results)
    assert all(result in results for result in possible)
