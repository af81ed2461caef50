"""The fake disk: kills, power cuts, and the call that a process dies in."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fakes.disks import DATA, FILE, SEEDS, make_system, outcomes, read, synced, tree
from tests.fakes.files import CrashMoment, FakeFileSystem, FaultPlan, SimulatedCrash


def test_a_kill_loses_nothing() -> None:
    for seed in SEEDS:
        system = make_system(seed)
        system.open(FILE, create=True).write_at(0, [b"abc"])
        system.rename(FILE, DATA / "b")
        system.kill()
        assert tree(system) == {"b": b"abc"}


def test_what_was_pending_at_a_kill_can_still_be_lost_or_synced() -> None:
    def prepare(system: FakeFileSystem) -> None:
        system.open(FILE, create=True).write_at(0, [b"abc"])
        system.kill()

    def prepare_and_sync(system: FakeFileSystem) -> None:
        prepare(system)
        system.open(FILE).sync()
        system.sync_directory(DATA)

    assert {} in outcomes(prepare)
    assert {"a": b"abc"} in outcomes(prepare)
    assert all(result == {"a": b"abc"} for result in outcomes(prepare_and_sync))


@pytest.mark.parametrize("crash", [FakeFileSystem.kill, FakeFileSystem.power_cut, FakeFileSystem.remount])
def test_open_files_die_with_the_process(crash: Callable[[FakeFileSystem], None]) -> None:
    system = make_system()
    file = synced(system, FILE, b"abc")
    crash(system)
    for call in (file.size, file.sync, lambda: file.write_at(0, [b"x"]), lambda: file.truncate(0)):
        with pytest.raises(RuntimeError, match="used after the crash"):
            call()
    file.close()
    assert tree(system) == {"a": b"abc"}


def test_the_identity_tells_kills_from_power_cuts_remounts_and_copies() -> None:
    system = make_system()
    identity = system.identity(DATA)
    system.kill()
    assert system.identity(DATA) == identity
    system.copy_directory(DATA, Path("/copy"))
    assert system.identity(Path("/copy")).inode != identity.inode
    system.remount()
    assert system.identity(DATA).boot_id == identity.boot_id
    assert system.identity(DATA).mount_id != identity.mount_id
    system.power_cut()
    assert system.identity(DATA).boot_id != identity.boot_id
    assert system.identity(DATA).inode == identity.inode


def test_the_same_seed_brings_the_same_outcome(seed: int) -> None:
    def run() -> dict[str, bytes]:
        system = make_system(seed)
        file = synced(system, FILE, bytes(4000))
        for index in range(20):
            file.write_at(index * 300, [bytes([index]) * 700])
            system.open(DATA / str(index), create=True)
        system.power_cut()
        return tree(system)

    assert run() == run()


# --- the last call ---


def test_a_crash_before_or_after_a_call() -> None:
    for moment, expected in ((CrashMoment.BEFORE, {}), (CrashMoment.AFTER, {"a": b""})):
        system = make_system()
        system.plan = FaultPlan().crash_at(1, moment)
        with pytest.raises(SimulatedCrash):
            system.open(FILE, create=True)
        system.kill()
        assert tree(system) == expected


def test_a_crash_in_the_middle_of_a_write_leaves_a_prefix() -> None:
    sizes = set()
    for seed in SEEDS:
        system = make_system(seed)
        file = synced(system, FILE, b"")
        system.plan = FaultPlan().crash_at(2, CrashMoment.MIDDLE)
        file.write_at(0, [b"01234"])
        with pytest.raises(SimulatedCrash):
            file.write_at(5, [b"56789"])
        system.kill()
        assert b"0123456789".startswith(system.contents(FILE))
        sizes.add(len(system.contents(FILE)))
    assert sizes == {5, 6, 7, 8, 9, 10}


def test_a_crash_in_the_middle_of_a_rename_has_done_it_or_not() -> None:
    results = []
    for seed in SEEDS:
        system = make_system(seed)
        synced(system, FILE, b"abc")
        system.plan = FaultPlan().crash_at(1, CrashMoment.MIDDLE)
        with pytest.raises(SimulatedCrash):
            system.rename(FILE, DATA / "b")
        system.kill()
        results.append(tree(system))
    assert {"a": b"abc"} in results
    assert {"b": b"abc"} in results


def test_without_a_moment_all_of_them_come_up() -> None:
    messages = set()
    for seed in SEEDS:
        system = make_system(seed)
        file = synced(system, FILE, b"")
        system.plan = FaultPlan().crash_at(1)
        with pytest.raises(SimulatedCrash) as caught:
            file.write_at(0, [b"abc"])
        messages.add(str(caught.value).split()[0])
    assert messages == {"before", "middle", "after"}


def test_a_dead_process_does_nothing_more() -> None:
    """Not in an ``except Exception`` that would swallow its death, and not in a ``finally``."""
    system = make_system()
    file = synced(system, FILE, b"abc")
    system.plan = FaultPlan().crash_at(1, CrashMoment.BEFORE)

    def careless() -> None:
        try:
            file.write_at(0, [b"x"])
        except Exception as error:
            raise AssertionError("survived its own death") from error
        finally:
            file.truncate(0)

    with pytest.raises(SimulatedCrash):
        careless()
    with pytest.raises(SimulatedCrash):
        system.list_directory(DATA)
    file.close()
    system.power_cut()
    assert system.contents(FILE) == b"abc"
    assert read(system.open(FILE)) == b"abc"


def test_every_position_of_a_crash_can_be_enumerated() -> None:
    def work(system: FakeFileSystem) -> None:
        file = system.open(FILE, create=True)
        file.allocate(0, 100)
        file.write_at(0, [b"abc"])
        assert file.size() == 100
        file.truncate(3)
        file.sync()
        system.open(FILE)
        system.rename(FILE, DATA / "b")
        system.sync_directory(DATA)

    system = make_system()
    work(system)
    assert system.mutations == 7
    assert system.calls == {
        "open": 2,
        "allocate": 1,
        "write_at": 1,
        "size": 1,
        "truncate": 1,
        "sync": 1,
        "rename": 1,
        "sync_directory": 1,
    }
    reached = set()
    for position in range(1, system.mutations + 1):
        system = make_system()
        system.plan = FaultPlan().crash_at(position, CrashMoment.BEFORE)
        with pytest.raises(SimulatedCrash) as caught:
            work(system)
        reached.add(str(caught.value).split()[1])
    assert reached == {"open", "allocate", "write_at", "truncate", "sync", "rename", "sync_directory"}
    system = make_system()
    system.plan = FaultPlan().crash_at(8)
    work(system)
