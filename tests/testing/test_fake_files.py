"""Each promise of the fake disk: what survives always, what survives sometimes, and which traps are set.

"Sometimes" is shown with many seeds: both outcomes have to come up, or the crash tests that stand on this prove less
than they seem to.
"""

import errno
import random
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from courser.storage.files import DirectoryEntry, EntryKind, FileSystem, read_into, write_all
from courser.testing.files import CrashMoment, FakeFile, FakeFileSystem, FaultPlan, SimulatedCrash

DATA = Path("/data")
FILE = DATA / "a"
SEEDS = range(200)


def make_system(seed: int = 1) -> FakeFileSystem:
    system = FakeFileSystem(random.Random(seed))
    system.plant_directory(DATA)
    return system


def synced(system: FakeFileSystem, path: Path, content: bytes) -> FakeFile:
    """A file that is durable with its name."""
    file = system.open(path, create=True)
    write_all(file, 0, [content])
    file.sync()
    system.sync_directory(path.parent)
    return file


def read(file: FakeFile) -> bytes:
    buffer = bytearray(file.size())
    return bytes(buffer[: read_into(file, 0, memoryview(buffer))])


def tree(system: FakeFileSystem) -> dict[str, bytes]:
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


def test_it_is_a_file_system() -> None:
    system = make_system()
    stated: FileSystem = system
    assert stated is system


# --- bytes and sizes ----------------------------------------------------------------------------------


def test_synced_bytes_with_a_synced_name_always_survive() -> None:
    content = random.Random(3).randbytes(5000)
    assert all(result == {"a": content} for result in outcomes(lambda system: synced(system, FILE, content)))


def test_unsynced_bytes_survive_whole_in_part_or_not_at_all() -> None:
    content = b"\1" * 2000

    def prepare(system: FakeFileSystem) -> None:
        synced(system, FILE, b"kept").write_at(4, [content])

    results = [result["a"] for result in outcomes(prepare)]
    assert all(result.startswith(b"kept") and len(result) <= 2004 for result in results)
    assert b"kept" in results
    assert b"kept" + content in results
    assert any(0 < result.count(1) < 2000 for result in results)


def test_size_and_bytes_survive_independently() -> None:
    def prepare(system: FakeFileSystem) -> None:
        synced(system, FILE, b"kept").write_at(4, [b"\1" * 600])

    results = [result["a"] for result in outcomes(prepare)]
    assert b"kept" + bytes(600) in results, "the size without the bytes: a hole"
    assert any(len(result) < 604 and result[4:] == b"\1" * (len(result) - 4) for result in results)


def test_torn_writes_lose_sectors_and_sometimes_split_one() -> None:
    def prepare(system: FakeFileSystem) -> None:
        synced(system, FILE, bytes(2048)).write_at(0, [b"\1" * 2048])

    torn = [result["a"] for result in outcomes(prepare) if 0 < result["a"].count(1) < 2048]
    sectors = [[result[start : start + 512] for start in range(0, 2048, 512)] for result in torn]
    whole = (bytes(512), b"\1" * 512)
    assert any(all(sector in whole for sector in result) for result in sectors)
    assert any(any(sector not in whole for sector in result) for result in sectors)
    assert any(result[0] == whole[0] and result[-1] == whole[1] for result in sectors), "the end without the start"
    assert any(result[0] == whole[1] and result[-1] == whole[0] for result in sectors), "the start without the end"


def test_sectors_are_those_of_the_file_not_of_the_write() -> None:
    def prepare(system: FakeFileSystem) -> None:
        synced(system, FILE, bytes(1024)).write_at(500, [b"\1" * 24])

    results = {result["a"] for result in outcomes(prepare)}
    assert bytes(500) + b"\1" * 12 + bytes(512) in results
    assert bytes(512) + b"\1" * 12 + bytes(500) in results


def test_later_writes_may_survive_without_earlier_ones() -> None:
    def prepare(system: FakeFileSystem) -> None:
        file = synced(system, FILE, bytes(2))
        file.write_at(0, [b"\1"])
        file.write_at(1, [b"\2"])

    assert {result["a"] for result in outcomes(prepare)} == {b"\0\0", b"\1\0", b"\0\2", b"\1\2"}


def test_an_overwritten_byte_is_one_of_those_that_were_there() -> None:
    def prepare(system: FakeFileSystem) -> None:
        file = synced(system, FILE, b"0")
        for byte in (b"1", b"2", b"3"):
            file.write_at(0, [byte])

    assert {result["a"] for result in outcomes(prepare)} == {b"0", b"1", b"2", b"3"}


def test_an_unsynced_truncate_may_come_undone() -> None:
    def prepare(system: FakeFileSystem) -> None:
        synced(system, FILE, b"0123456789").truncate(4)

    assert {result["a"] for result in outcomes(prepare)} == {b"0123456789", b"0123"}


def test_what_a_durable_truncate_cut_does_not_come_back() -> None:
    def prepare(system: FakeFileSystem) -> None:
        file = synced(system, FILE, b"0123456789")
        file.truncate(4)
        file.sync()
        file.truncate(10)

    assert {result["a"] for result in outcomes(prepare)} == {b"0123", b"0123" + bytes(6)}


def test_a_cut_and_an_extension_that_both_survive_leave_zeros() -> None:
    def prepare(system: FakeFileSystem) -> None:
        file = synced(system, FILE, b"0123456789")
        file.truncate(4)
        file.truncate(10)

    assert {result["a"] for result in outcomes(prepare)} == {b"0123456789", b"0123", b"0123" + bytes(6)}


def test_an_unsynced_allocation_survives_or_not() -> None:
    def prepare(system: FakeFileSystem) -> None:
        synced(system, FILE, b"abc").allocate(0, 1000)

    results = [result["a"] for result in outcomes(prepare)]
    assert all(result == b"abc" + bytes(len(result) - 3) and len(result) <= 1000 for result in results)
    assert {3, 1000} < {len(result) for result in results}


def test_sync_makes_truncates_and_allocations_durable() -> None:
    def prepare(system: FakeFileSystem) -> None:
        file = synced(system, FILE, b"0123456789")
        file.truncate(4)
        file.allocate(0, 20)
        file.write_at(6, [b"x"])
        file.sync()

    assert all(result["a"] == b"0123\0\0x" + bytes(13) for result in outcomes(prepare))


def test_a_sync_through_another_open_file_counts() -> None:
    def prepare(system: FakeFileSystem) -> None:
        synced(system, FILE, b"").write_at(0, [b"abc"])
        system.open(FILE).sync()

    assert all(result == {"a": b"abc"} for result in outcomes(prepare))


def test_write_back_promises_nothing() -> None:
    def prepare(system: FakeFileSystem) -> None:
        file = synced(system, FILE, b"old")
        file.write_at(0, [b"new"])
        file.start_writeback(0, 3)

    assert {b"old", b"new"} <= {result["a"] for result in outcomes(prepare)}


# --- names --------------------------------------------------------------------------------------------


def test_a_synced_file_without_a_synced_directory_is_sometimes_gone() -> None:
    def prepare(system: FakeFileSystem) -> None:
        file = system.open(FILE, create=True)
        file.write_at(0, [b"abc"])
        file.sync()

    results = outcomes(prepare)
    assert {} in results
    assert {"a": b"abc"} in results
    assert all(result in ({}, {"a": b"abc"}) for result in results)


def test_a_synced_name_says_nothing_about_the_bytes() -> None:
    def prepare(system: FakeFileSystem) -> None:
        system.open(FILE, create=True).write_at(0, [b"abc"])
        system.sync_directory(DATA)

    results = outcomes(prepare)
    assert all(list(result) == ["a"] for result in results)
    assert {b"", b"abc"} <= {result["a"] for result in results}


def test_a_new_directory_is_gone_with_all_in_it_if_its_parent_was_not_synced() -> None:
    def prepare(system: FakeFileSystem) -> None:
        system.make_directory(DATA / "d")
        synced(system, DATA / "d" / "a", b"abc")

    results = outcomes(prepare)
    assert {} in results
    assert {"d/a": b"abc"} in results


def test_a_new_directory_with_synced_parent_survives() -> None:
    def prepare(system: FakeFileSystem) -> None:
        system.make_directory(DATA / "d")
        synced(system, DATA / "d" / "a", b"abc")
        system.sync_directory(DATA)

    assert all(result == {"d/a": b"abc"} for result in outcomes(prepare))


def test_an_unsynced_rename_is_done_or_not_done() -> None:
    def prepare(system: FakeFileSystem) -> None:
        synced(system, FILE, b"old")
        synced(system, DATA / "temporary", b"new")
        system.rename(DATA / "temporary", FILE)

    results = outcomes(prepare)
    before, after = {"a": b"old", "temporary": b"new"}, {"a": b"new"}
    assert before in results
    assert after in results
    assert all(result in (before, after) for result in results)


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
        file = system.open(DATA / "temporary", create=True)
        file.write_at(0, [b"new"])
        file.sync()
        system.rename(DATA / "temporary", FILE)
        system.sync_directory(DATA)

    assert all(result == {"a": b"new"} for result in outcomes(prepare))


def test_a_rename_whose_file_was_never_durable_leaves_the_old_one_or_nothing_else() -> None:
    def prepare(system: FakeFileSystem) -> None:
        synced(system, FILE, b"old")
        file = system.open(DATA / "temporary", create=True)
        file.write_at(0, [b"new"])
        file.sync()
        system.rename(DATA / "temporary", FILE)

    results = outcomes(prepare)
    possible = ({"a": b"old"}, {"a": b"old", "temporary": b"new"}, {"a": b"new"})
    assert all(result in possible for result in results)
    assert all(result in results for result in possible)


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
        file = system.open(FILE, create=True)
        file.write_at(0, [b"new"])
        file.sync()

    results = outcomes(prepare)
    possible: tuple[dict[str, bytes], ...] = ({"a": b"old"}, {}, {"a": b"new"})
    assert all(result in possible for result in results)
    assert all(result in results for result in possible)


def test_a_removed_directory_may_come_back_with_files() -> None:
    def prepare(system: FakeFileSystem) -> None:
        system.make_directory(DATA / "d")
        synced(system, DATA / "d" / "a", b"abc")
        system.sync_directory(DATA)
        system.unlink(DATA / "d" / "a")
        system.remove_directory(DATA / "d")

    results = outcomes(prepare)
    assert {} in results
    assert {"d/a": b"abc"} in results


def test_a_synced_removal_of_a_directory_takes_its_files_along() -> None:
    def prepare(system: FakeFileSystem) -> None:
        system.make_directory(DATA / "d")
        synced(system, DATA / "d" / "a", b"abc")
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
            file = system.open(DATA / name, create=True)
            file.write_at(0, [name.encode()])
            file.sync()
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


# --- crashes ------------------------------------------------------------------------------------------


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


# --- faults -------------------------------------------------------------------------------------------


def test_a_sync_after_a_failed_sync_succeeds_and_does_nothing() -> None:
    """The trap that gave "fsyncgate" its name."""

    def prepare(system: FakeFileSystem) -> None:
        file = synced(system, FILE, b"old")
        file.write_at(0, [b"new"])
        system.plan = FaultPlan().fail("sync", errno.EIO)
        with pytest.raises(OSError, match=r"Input/output") as caught:
            file.sync()
        assert caught.value.errno == errno.EIO
        file.sync()
        assert read(file) == b"new", "reads show what is lost"
        system.kill()
        assert tree(system) == {"a": b"new"}, "also to the next process"

    results = [result["a"] for result in outcomes(prepare)]
    assert results.count(b"old") > len(results) // 4
    assert b"new" in results


def test_what_is_written_after_a_failed_sync_can_be_synced() -> None:
    def prepare(system: FakeFileSystem) -> None:
        file = synced(system, FILE, b"")
        file.write_at(0, [b"lost"])
        system.plan = FaultPlan().fail("sync", errno.EIO)
        with pytest.raises(OSError, match=r"."):
            file.sync()
        file.write_at(4, [b"kept"])
        file.sync()

    results = {result["a"] for result in outcomes(prepare)}
    assert all(result[4:] == b"kept" for result in results)
    assert b"\0\0\0\0kept" in results


def test_a_failed_sync_of_a_directory_is_not_made_good_by_the_next() -> None:
    def prepare(system: FakeFileSystem) -> None:
        file = system.open(FILE, create=True)
        file.write_at(0, [b"abc"])
        file.sync()
        system.plan = FaultPlan().fail("sync_directory", errno.EIO)
        with pytest.raises(OSError, match=r"."):
            system.sync_directory(DATA)
        system.sync_directory(DATA)
        assert tree(system) == {"a": b"abc"}

    results = outcomes(prepare)
    assert {} in results
    assert {"a": b"abc"} in results


def test_a_name_made_after_a_failed_sync_can_be_synced() -> None:
    def prepare(system: FakeFileSystem) -> None:
        synced(system, FILE, b"old")
        system.unlink(FILE)
        system.plan = FaultPlan().fail("sync_directory", errno.EIO)
        with pytest.raises(OSError, match=r"."):
            system.sync_directory(DATA)
        synced(system, FILE, b"new")

    assert all(result == {"a": b"new"} for result in outcomes(prepare))


@pytest.mark.parametrize(
    "operation", ["write_at", "truncate", "allocate", "read_at", "rename", "unlink", "open", "make_directory", "size"]
)
def test_the_chosen_call_fails_once_and_changes_nothing(operation: str) -> None:
    system = make_system()
    file = synced(system, FILE, b"abc")
    calls: dict[str, Callable[[], object]] = {
        "write_at": lambda: file.write_at(0, [b"ABC"]),
        "truncate": lambda: file.truncate(0),
        "allocate": lambda: file.allocate(0, 100),
        "read_at": lambda: file.read_at(0, memoryview(bytearray(3))),
        "size": file.size,
        "open": lambda: system.open(FILE),
        "make_directory": lambda: system.make_directory(DATA / "d"),
        "rename": lambda: system.rename(FILE, DATA / "b"),
        "unlink": lambda: system.unlink(FILE),
    }
    system.plan = FaultPlan().fail(operation, errno.ENOSPC, name="[ad]")
    with pytest.raises(OSError, match=r"space") as caught:
        calls[operation]()
    assert caught.value.errno == errno.ENOSPC
    assert tree(system) == {"a": b"abc"}
    assert len(system.list_directory(DATA)) == 1
    calls[operation]()


def test_faults_count_calls_of_their_operation_and_name() -> None:
    system = make_system()
    log, other = synced(system, DATA / "a.log", b""), synced(system, DATA / "a.index", b"")
    system.plan = FaultPlan().fail("sync", errno.EIO, call=2, name="*.log")
    other.sync()
    log.sync()
    other.sync()
    with pytest.raises(OSError, match=r"a\.log"):
        log.sync()
    log.sync()


def test_faults_from_then_on_and_of_any_operation() -> None:
    system = make_system()
    file = synced(system, FILE, b"abc")
    system.plan = FaultPlan().fail(None, errno.EIO, call=3, onwards=True)
    file.sync()
    assert file.size() == 3
    for call in (file.sync, file.size, lambda: system.open(FILE), lambda: system.list_directory(DATA)):
        with pytest.raises(OSError, match=r"Input/output"):
            call()
    system.plan = FaultPlan()
    assert read(file) == b"abc"


def test_a_fault_of_an_unknown_operation_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="fsync"):
        FaultPlan().fail("fsync", errno.EIO)


def test_short_writes_and_reads() -> None:
    system = make_system()
    file = system.open(FILE, create=True)
    system.plan = FaultPlan().shorten(call=2, take=3).shorten("read_at", take=2)
    assert file.write_at(0, [b"0123456789"]) == 10
    assert file.write_at(10, [b"abc", b"def"]) == 3
    assert system.contents(FILE) == b"0123456789abc"
    buffer = bytearray(5)
    assert file.read_at(0, memoryview(buffer)) == 2
    assert file.read_at(0, memoryview(buffer)) == 5


def test_random_short_writes_always_take_something() -> None:
    system = make_system()
    file = system.open(FILE, create=True)
    system.plan = FaultPlan().shorten(onwards=True).shorten("read_at", onwards=True)
    content = random.Random(5).randbytes(3000)
    assert write_all(file, 0, [content]) == 3000
    assert system.calls["write_at"] > 1
    assert read(file) == content


def test_cold_reads_do_not_wait() -> None:
    system = make_system()
    file = synced(system, FILE, b"abc")
    buffer = memoryview(bytearray(3))
    assert file.read_at(0, buffer, wait=False) == 3
    system.cold = True
    with pytest.raises(BlockingIOError):
        file.read_at(0, buffer, wait=False)
    assert file.read_at(0, buffer) == 3


# --- the last call ------------------------------------------------------------------------------------


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


# --- a full disk --------------------------------------------------------------------------------------


def test_a_full_disk_takes_a_part_and_refuses_the_rest() -> None:
    system = make_system()
    system.capacity = 10
    file = system.open(FILE, create=True)
    assert file.write_at(0, [b"01234567"]) == 8
    assert file.write_at(8, [b"89abc"]) == 2
    with pytest.raises(OSError, match=r"space") as caught:
        file.write_at(10, [b"abc"])
    assert caught.value.errno == errno.ENOSPC
    assert file.write_at(0, [b"x"]) == 1, "what has its space already can be written"
    file.truncate(4)
    assert file.write_at(4, [b"4567"]) == 4


def test_allocated_space_is_taken_and_can_be_written() -> None:
    system = make_system()
    system.capacity = 10
    file = system.open(FILE, create=True)
    file.allocate(0, 10)
    with pytest.raises(OSError, match=r"space"):
        system.open(DATA / "b", create=True).write_at(0, [b"x"])
    assert file.write_at(0, [b"0123456789"]) == 10


def test_a_refused_allocation_may_leave_the_file_longer() -> None:
    sizes = set()
    for seed in SEEDS:
        system = make_system(seed)
        system.capacity = 10
        file = synced(system, FILE, b"0123456")
        with pytest.raises(OSError, match=r"space"):
            file.allocate(0, 100)
        assert system.contents(FILE).rstrip(b"\0") == b"0123456"
        sizes.add(file.size())
    assert sizes == {7, 8, 9, 10}


def test_space_comes_back_when_the_last_open_file_goes() -> None:
    system = make_system()
    system.capacity = 10
    file = synced(system, FILE, b"0123456789")
    other = system.open(DATA / "b", create=True)
    system.unlink(FILE)
    with pytest.raises(OSError, match=r"space"):
        other.write_at(0, [b"x"])
    file.close()
    assert system.used == 0
    assert other.write_at(0, [b"x"]) == 1
    system.rename(DATA / "b", DATA / "c")
    assert system.used == 1


def test_space_of_unlinked_files_comes_back_with_a_kill() -> None:
    system = make_system()
    file = synced(system, FILE, b"0123456789")
    system.unlink(FILE)
    assert system.used == 10
    system.kill()
    assert system.used == 0
    file.close()
    assert system.used == 0


# --- helpers ------------------------------------------------------------------------------------------


def test_planted_bytes_are_durable_and_seen_by_open_files() -> None:
    def prepare(system: FakeFileSystem) -> None:
        file = system.open(FILE, create=True)
        file.write_at(0, [b"abcdef"])
        system.plant(FILE, b"xyz")
        assert read(file) == b"xyz"
        system.plant(DATA / "d/e/f", b"deep")

    assert all(result == {"a": b"xyz", "d/e/f": b"deep"} for result in outcomes(prepare))


def test_planting_neither_counts_nor_fails() -> None:
    system = make_system()
    system.plan = FaultPlan().fail(None, errno.EIO, onwards=True).crash_at(1)
    system.plant(FILE, b"abc")
    assert system.contents(FILE) == b"abc"
    assert system.files() == [FILE]
    assert system.calls == {}
    assert system.mutations == 0


def test_a_clone_goes_its_own_way() -> None:
    system = make_system()
    file = synced(system, FILE, b"old")
    file.write_at(0, [b"new"])
    system.rename(FILE, DATA / "b")
    results = []
    for seed in SEEDS:
        clone = system.clone(random.Random(seed))
        assert clone.identity(DATA) == system.identity(DATA)
        assert tree(clone) == {"b": b"new"}
        clone.power_cut()
        results.append(tree(clone))
        write_all(clone.open(clone.files()[0], writable=True), 0, [b"???"])
    for expected in ({"a": b"old"}, {"a": b"new"}, {"b": b"old"}, {"b": b"new"}):
        assert expected in results
    assert tree(system) == {"b": b"new"}
    file.sync()
    system.sync_directory(DATA)
    system.power_cut()
    assert tree(system) == {"b": b"new"}


def test_a_clone_brings_back_unlinked_files_as_well() -> None:
    system = make_system()
    synced(system, FILE, b"abc")
    system.unlink(FILE)
    results = []
    for seed in SEEDS:
        clone = system.clone(random.Random(seed))
        clone.power_cut()
        results.append(tree(clone))
    assert {} in results
    assert {"a": b"abc"} in results


def test_export_writes_real_files(tmp_path: Path) -> None:
    system = make_system()
    system.plant(FILE, b"abc")
    system.plant_directory(DATA / "empty")
    system.export(tmp_path / "copy")
    assert (tmp_path / "copy/data/a").read_bytes() == b"abc"
    assert (tmp_path / "copy/data/empty").is_dir()


def test_a_copied_directory_is_durable_and_separate() -> None:
    system = make_system()
    system.open(FILE, create=True).write_at(0, [b"abc"])
    system.make_directory(DATA / "d")
    system.copy_directory(DATA, Path("/copy"))
    system.open(FILE, writable=True).write_at(0, [b"xyz"])
    system.power_cut()
    assert system.contents(Path("/copy/a")) == b"abc"
    assert DirectoryEntry("d", EntryKind.DIRECTORY, 0) in system.list_directory(Path("/copy"))


def test_threads_may_write_and_sync_at_once() -> None:
    system = make_system()
    file = synced(system, FILE, b"")
    threads = [
        threading.Thread(target=lambda start=start: [file.write_at(i, [b"x"]) for i in range(start, 2000, 4)])
        for start in range(4)
    ]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        file.sync()
    for thread in threads:
        thread.join()
    file.sync()
    system.power_cut()
    assert system.contents(FILE) == b"x" * 2000
