"""The fake disk: which names survive always, which sometimes: files, directories, renames, removals.

"Sometimes" is shown with many seeds: both outcomes have to come up, or the crash tests that stand on this prove less
than they seem to.
"""

import errno
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from courser.storage.files import write_all
from tests.fakes.disks import (
    DATA,
    FILE,
    SEEDS,
    assert_all_come_up,
    make_system,
    outcomes,
    read,
    synced,
    synced_without_name,
)
from tests.fakes.files import FakeFileSystem


def make_directory_with_file(system: FakeFileSystem) -> None:
    """Of a directory that is not durable itself, all that is in it is."""
    system.make_directory(DATA / "d")
    synced(system, DATA / "d" / "a", b"abc")


def test_a_synced_file_without_a_synced_directory_is_sometimes_gone() -> None:
    def prepare(system: FakeFileSystem) -> None:
        synced_without_name(system, FILE, b"abc")

    assert_all_come_up(outcomes(prepare), {}, {"a": b"abc"})


def test_a_synced_name_says_nothing_about_the_bytes() -> None:
    def prepare(system: FakeFileSystem) -> None:
        system.open(FILE, create=True).write_at(0, [b"abc"])
        system.sync_directory(DATA)

    results = outcomes(prepare)
    assert all(list(result) == ["a"] for result in results)
    assert {b"", b"abc"} <= {result["a"] for result in results}


def test_a_new_directory_is_gone_with_all_in_it_if_its_parent_was_not_synced() -> None:
    def prepare(system: FakeFileSystem) -> None:
        make_directory_with_file(system)

    results = outcomes(prepare)
    assert {} in results
    assert {"d/a": b"abc"} in results


def test_a_new_directory_with_synced_parent_survives() -> None:
    def prepare(system: FakeFileSystem) -> None:
        make_directory_with_file(system)
        system.sync_directory(DATA)

    assert all(result == {"d/a": b"abc"} for result in outcomes(prepare))


def test_an_unsynced_rename_is_done_or_not_done() -> None:
    def prepare(system: FakeFileSystem) -> None:
        synced(system, FILE, b"old")
        synced(system, DATA / "temporary", b"new")
        system.rename(DATA / "temporary", FILE)

    assert_all_come_up(outcomes(prepare), {"a": b"old", "temporary": b"new"}, {"a": b"new"})


def test_a_rename_without_a_sync_of_the_file_may_replace_it_by_rubbish() -> None:
    def prepare(system: FakeFileSystem) -> None:
        synced(system, FILE, b"old")
        system.open(DATA / "temporary", create=True).write_at(0, [b"new"])
        system.rename(DATA / "temporary", FILE)
        system.sync_directory(DATA)

    results = outcomes(prepare)
    assert all(list(result) == ["a"] for result in results)
    assert {b"", b"new"} <= {result["a"] for result in results}
    assert b"old" not in {result["a"] for result in results}


def test_a_synced_rename_always_survives() -> None:
    def prepare(system: FakeFileSystem) -> None:
        synced(system, FILE, b"old")
        synced_without_name(system, DATA / "temporary", b"new")
        system.rename(DATA / "temporary", FILE)
        system.sync_directory(DATA)

    assert all(result == {"a": b"new"} for result in outcomes(prepare))


def test_a_rename_whose_file_was_never_durable_leaves_the_old_one_or_nothing_else() -> None:
    def prepare(system: FakeFileSystem) -> None:
        synced(system, FILE, b"old")
        synced_without_name(system, DATA / "temporary", b"new")
        system.rename(DATA / "temporary", FILE)

    assert_all_come_up(outcomes(prepare), {"a": b"old"}, {"a": b"old", "temporary": b"new"}, {"a": b"new"})


def test_an_unlinked_file_may_come_back_with_what_it_had() -> None:
    def prepare(system: FakeFileSystem) -> None:
        file = synced(system, FILE, b"abc")
        file.write_at(0, [b"ABC"])
        system.unlink(FILE)
        del file

    results = outcomes(prepare)
    assert {} in results
    assert {"a": b"abc"} in results
    assert {"a": b"ABC"} in results


def test_a_synced_unlink_is_final() -> None:
    def prepare(system: FakeFileSystem) -> None:
        synced(system, FILE, b"abc")
        system.unlink(FILE)
        system.sync_directory(DATA)

    assert all(result == {} for result in outcomes(prepare))


def test_a_name_used_again_is_the_old_file_the_new_one_or_neither() -> None:
    def prepare(system: FakeFileSystem) -> None:
        synced(system, FILE, b"old")
        system.unlink(FILE)
        synced_without_name(system, FILE, b"new")

    assert_all_come_up(outcomes(prepare), {"a": b"old"}, {}, {"a": b"new"})


def test_a_removed_directory_may_come_back_with_files() -> None:
    def prepare(system: FakeFileSystem) -> None:
        make_directory_with_file(system)
        system.sync_directory(DATA)
        system.unlink(DATA / "d" / "a")
        system.remove_directory(DATA / "d")

    results = outcomes(prepare)
    assert {} in results
    assert {"d/a": b"abc"} in results


def test_a_synced_removal_of_a_directory_takes_its_files_along() -> None:
    def prepare(system: FakeFileSystem) -> None:
        make_directory_with_file(system)
        system.sync_directory(DATA)
        system.unlink(DATA / "d" / "a")
        system.remove_directory(DATA / "d")
        system.sync_directory(DATA)

    for seed in SEEDS:
        system = make_system(seed)
        prepare(system)
        system.power_cut()
        assert system.list_directory(DATA) == []


def test_a_synced_rename_over_a_directory_does_not_wait_for_the_unlinks_in_it() -> None:
    def prepare(system: FakeFileSystem) -> None:
        system.plant(DATA / "d/old", b"old")
        system.plant(DATA / "e/new", b"new")
        system.unlink(DATA / "d/old")
        system.rename(DATA / "e", DATA / "d")
        system.sync_directory(DATA)

    assert all(result == {"d/new": b"new"} for result in outcomes(prepare))


@pytest.mark.parametrize("side", ["from", "to"])
def test_a_rename_between_directories_is_durable_with_either_and_ties_what_came_before(side: str) -> None:
    def prepare(system: FakeFileSystem) -> None:
        system.plant_directory(DATA / "from")
        system.plant_directory(DATA / "to")
        for name in ("from/a", "to/b"):
            synced_without_name(system, DATA / name, name.encode())
        system.rename(DATA / "from/a", DATA / "to/b")
        system.sync_directory(DATA / side)

    assert all(result == {"to/b": b"from/a"} for result in outcomes(prepare))


def test_directories_that_swap_places_never_vanish_into_each_other() -> None:
    def prepare(system: FakeFileSystem) -> None:
        system.plant(DATA / "x/in_x", b"x")
        system.plant(DATA / "y/in_y", b"y")
        system.rename(DATA / "x", DATA / "y/x")
        system.rename(DATA / "y/x", DATA / "x")
        system.rename(DATA / "y", DATA / "x/y")

    results = outcomes(prepare)
    assert all({Path(name).name for name in result} == {"in_x", "in_y"} for result in results)
    assert {"x/in_x": b"x", "x/y/in_y": b"y"} in results
    assert {"x/in_x": b"x", "y/in_y": b"y"} in results


def test_the_root_of_the_tree_survives_any_random_history(seed: int) -> None:
    """The tree stays a tree, synced or not: no call on it fails with anything but an ordinary refusal."""
    for round_number in range(150):
        source = random.Random(f"{seed} {round_number}")
        system = make_system(source.randrange(2**32))
        for _ in range(40):
            random_name_change(system, source)
        for path in system.files():
            assert system.contents(path) == read(system.open(path))
        assert system.used == sum(len(system.contents(path)) for path in system.files())


def random_name_change(system: FakeFileSystem, source: random.Random) -> None:
    first = DATA.joinpath(*source.choices("abc", k=source.randint(1, 3)))
    second = DATA.joinpath(*source.choices("abc", k=source.randint(1, 3)))

    def create() -> None:
        write_all(system.open(first, create=True), 0, [b"x" * source.randrange(2000)])

    calls: list[Callable[[], object]] = [
        create,
        lambda: system.make_directory(first),
        lambda: system.make_directory(first),
        lambda: system.rename(first, second),
        lambda: system.rename(first, second),
        lambda: system.unlink(first),
        lambda: system.remove_directory(first),
        lambda: system.sync_directory(first),
        lambda: system.open(first).sync(),
        source.choice((system.kill, system.power_cut, lambda: None, lambda: None)),
    ]
    try:
        source.choice(calls)()
    except OSError as error:
        refusals = (errno.ENOENT, errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENOTEMPTY, errno.EINVAL)
        if error.errno not in refusals:
            raise
