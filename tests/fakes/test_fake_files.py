"""The fake disk: which bytes and sizes survive always, which sometimes; and what tests do with it besides.

"Sometimes" is shown with many seeds: both outcomes have to come up, or the crash tests that stand on this prove less
than they seem to.
"""

import errno
import random
import threading
from pathlib import Path

from courser.storage.files import DirectoryEntry, EntryKind, FileSystem, write_all
from tests.fakes.disks import DATA, FILE, SEEDS, make_system, outcomes, read, synced, tree
from tests.fakes.files import FakeFileSystem, FaultPlan


def test_it_is_a_file_system() -> None:
    system = make_system()
    stated: FileSystem = system
    assert stated is system


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


# --- what tests do with it ---


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
