"""The fake disk beside the real ones: the same steps, the same cut. What a real disk does, the fake one can do too.

The fake may be harsher; that is its purpose. It must never be kinder.
"""

import random
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest

from courser.storage.files import FileSystem, read_exactly, write_all
from courser.storage.local_files import LocalFileSystem
from tests.fakes.files import FakeFileSystem
from tests.power.conftest import NewDisk
from tests.power.disks import FILE_SYSTEMS

pytestmark = [pytest.mark.root, pytest.mark.timeout(600)]

OLD, NEW = b"o" * 12_000, b"n" * 12_000
ZERO = b"\0"
FAKE_CUT_COUNT = 500

Outcomes = dict[str, set[str]]


def make_durable(file_system: FileSystem, path: Path, data: bytes) -> None:
    file = file_system.open(path, writable=True, create=True)
    write_all(file, 0, [data])
    file.sync()
    file.close()
    file_system.sync_directory(path.parent)


def write(file_system: FileSystem, path: Path, position: int, data: bytes, *, start: bool = False) -> None:
    file = file_system.open(path, writable=True)
    write_all(file, position, [data])
    if start:
        file.start_writeback(position, len(data))
    file.close()


def before_the_cut(file_system: FileSystem, root: Path, *, start_writeback: bool, commit: bool) -> None:
    """Everything durable, and then one change of each kind that is not.

    ``start_writeback`` lets the kernel begin with the data; ``commit`` syncs an unrelated file, and with it, on a
    file system with one journal, all names and sizes.
    """
    for name in ("unlinked", "truncated", "replaced", "replaced.tmp", "grown", "overwritten", "extended", "bystander"):
        make_durable(file_system, root / name, NEW if name == "replaced.tmp" else OLD)
    allocated = file_system.open(root / "allocated", writable=True, create=True)
    allocated.allocate(0, len(OLD))
    allocated.sync()
    file_system.sync_directory(root)
    file_system.unlink(root / "unlinked")
    cut = file_system.open(root / "truncated", writable=True)
    cut.truncate(len(OLD) // 2)
    extended = file_system.open(root / "extended", writable=True)
    extended.truncate(2 * len(OLD))
    file_system.rename(root / "replaced.tmp", root / "replaced")
    created = file_system.open(root / "created", writable=True, create=True)
    write_all(created, 0, [NEW])
    write(file_system, root / "grown", len(OLD), NEW, start=start_writeback)
    write(file_system, root / "overwritten", 0, NEW, start=start_writeback)
    write(file_system, root / "allocated", 0, NEW, start=start_writeback)
    file_system.make_directory(root / "directory")
    for file in (cut, extended, created, allocated):
        file.close()
    if commit:
        file = file_system.open(root / "bystander", writable=True)
        write_all(file, len(OLD), [NEW])
        file.sync()
        file.close()


def look(file_system: FileSystem, root: Path) -> dict[str, str]:
    """The class of what became of each change."""
    sizes = {entry.name: entry.size for entry in file_system.list_directory(root)}

    def contents(name: str) -> bytes | None:
        if name not in sizes:
            return None
        file = file_system.open(root / name)
        data = read_exactly(file, 0, sizes[name])
        file.close()
        return bytes(data or b"")

    replaced = contents("replaced")
    return {
        "unlink": "undone" if "unlinked" in sizes else "done",
        "truncate": {len(OLD): "undone", len(OLD) // 2: "done"}.get(sizes["truncated"], "other"),
        "extension": {len(OLD): "undone", 2 * len(OLD): "done"}.get(sizes["extended"], "other"),
        "rename": "done" if replaced == NEW else "undone" if "replaced.tmp" in sizes else "temporary lost",
        "new file": describe(contents("created"), NEW),
        "append": describe_end(contents("grown")),
        "overwrite": describe(contents("overwritten"), NEW),
        "write into allocated": describe(contents("allocated"), NEW),
        "new directory": "there" if "directory" in sizes else "lost",
    }


def describe(data: bytes | None, wanted: bytes) -> str:
    if data is None:
        return "file lost"
    if data == wanted:
        return "whole"
    if not data:
        return "empty file"
    if len(data) < len(wanted):
        return "short file"
    return {OLD: "old bytes", bytes(len(wanted)): "zeros"}.get(data, "torn")


def describe_end(data: bytes | None) -> str:
    assert data is not None
    assert data[: len(OLD)] == OLD, "synced bytes are gone"
    end = data[len(OLD) :]
    return "nothing of it" if not end else describe(end, NEW)


def collect(cut: Callable[[bool, bool], dict[str, str]], repetitions: int) -> Outcomes:
    outcomes: Outcomes = defaultdict(set)
    for _ in range(repetitions):
        for start_writeback in (False, True):
            for commit in (False, True):
                for change, outcome in cut(start_writeback, commit).items():
                    outcomes[change].add(outcome)
    return outcomes


def test_what_a_real_cut_does_the_fake_one_can_do(new_disk: NewDisk, seed: int) -> None:
    source = random.Random(seed)

    def cut_fake(start_writeback: bool, commit: bool) -> dict[str, str]:
        file_system = FakeFileSystem(random.Random(source.randrange(1 << 62)))
        before_the_cut(file_system, Path("/"), start_writeback=start_writeback, commit=commit)
        file_system.power_cut()
        return look(file_system, Path("/"))

    real: dict[str, Outcomes] = {}
    for kind in FILE_SYSTEMS:
        disk = new_disk(kind, kind)
        numbers = iter(range(1000))

        def cut_real(start_writeback: bool, commit: bool) -> dict[str, str]:
            root = disk.path / str(next(numbers))  # noqa: B023 - called in this turn of the loop
            root.mkdir()
            file_system = LocalFileSystem()
            file_system.sync_directory(disk.path)  # noqa: B023
            before_the_cut(file_system, root, start_writeback=start_writeback, commit=commit)
            disk.cut_power()  # noqa: B023
            disk.restore_power()  # noqa: B023
            return look(file_system, root)

        real[kind] = collect(cut_real, 2)
    fake = collect(cut_fake, FAKE_CUT_COUNT)
    print_table({**real, "fake": fake})
    unknown = {
        (kind, change, outcome)
        for kind, outcomes in real.items()
        for change, seen in outcomes.items()
        for outcome in seen - fake[change]
    }
    assert not unknown, f"the fake disk is kinder than a real one: {sorted(unknown)}"
    # The real cuts must have cut something, or they calibrate nothing.
    for outcomes in real.values():
        assert "undone" in outcomes["unlink"] & outcomes["rename"], outcomes


def print_table(columns: dict[str, Outcomes]) -> None:
    print()
    for change in columns["fake"]:
        for name, outcomes in columns.items():
            print(f"{change if name == next(iter(columns)) else '':22} {name:5} {', '.join(sorted(outcomes[change]))}")
