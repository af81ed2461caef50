"""The fake disk: calls that fail, syncs that cannot be made good, and a disk that is full."""

import errno
import random
from collections.abc import Callable

import pytest

from courser.storage.files import write_all
from tests.fakes.disks import DATA, FILE, SEEDS, make_system, outcomes, read, synced, tree
from tests.fakes.files import FakeFileSystem, FaultPlan


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


# --- a full disk ---


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
