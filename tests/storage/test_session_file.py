"""One server per directory, and how the last one left it."""

import os
import random
import signal
import struct
import subprocess
import sys
from pathlib import Path
from typing import cast

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from courser.errors import ErrorCode, StartRefused
from courser.storage.data_directory import DataDirectory
from courser.storage.files import DirectoryIdentity
from courser.storage.local_files import DirectoryLock
from courser.storage.paths import SESSION
from courser.storage.recovery_cases import StopKind
from courser.storage.session_file import (
    DIRECTORY_FORMAT,
    SessionRecord,
    begin_session,
    check_format,
    decode_session,
    end_session,
    how_it_stopped,
    read_session,
)
from tests.fakes.clocks import ManualClock
from tests.fakes.files import FakeFileSystem
from tests.storage.engine import flipped

DATA = Path("/data")
IDENTITY = DirectoryIdentity(bytes(range(1, 17)), 55, 66)
JUMPS = st.integers(-(10**15), 10**12)
"""Microseconds by which a clock is set."""


@pytest.fixture
def disk() -> FakeFileSystem:
    disk = FakeFileSystem(random.Random(1))
    disk.plant_directory(DATA)
    return disk


def test_a_directory_without_a_session_tells_nothing_so_it_counts_as_crashed(disk: FakeFileSystem) -> None:
    assert read_session(disk, DATA) is None
    assert how_it_stopped(disk, DATA) is StopKind.CRASHED
    check_format(disk, DATA)


def test_a_session_that_was_ended_stopped_cleanly(disk: FakeFileSystem) -> None:
    begin_session(disk, DATA)
    end_session(disk, DATA)
    assert how_it_stopped(disk, DATA) is StopKind.CLEAN
    disk.kill()
    assert how_it_stopped(disk, DATA) is StopKind.CLEAN


def test_a_clean_stop_survives_a_power_cut_and_a_remount(disk: FakeFileSystem) -> None:
    begin_session(disk, DATA)
    end_session(disk, DATA)
    disk.power_cut()
    assert how_it_stopped(disk, DATA) is StopKind.CLEAN
    disk.remount()
    assert how_it_stopped(disk, DATA) is StopKind.CLEAN


def test_a_session_that_was_not_ended_was_killed_if_the_machine_is_the_same(disk: FakeFileSystem) -> None:
    begin_session(disk, DATA)
    disk.kill()
    assert how_it_stopped(disk, DATA) is StopKind.KILLED


def test_another_boot_or_another_mount_is_a_crash(disk: FakeFileSystem) -> None:
    begin_session(disk, DATA)
    disk.remount()
    assert how_it_stopped(disk, DATA) is StopKind.CRASHED
    begin_session(disk, DATA)
    disk.power_cut()
    assert how_it_stopped(disk, DATA) is StopKind.CRASHED


@pytest.mark.parametrize("is_clean", [False, True])
def test_a_copied_directory_is_another_timeline(disk: FakeFileSystem, is_clean: bool) -> None:
    begin_session(disk, DATA)
    if is_clean:
        end_session(disk, DATA)
    disk.copy_directory(DATA, Path("/copy"))
    assert how_it_stopped(disk, Path("/copy")) is StopKind.CRASHED


@pytest.mark.parametrize(
    "unknown", [DirectoryIdentity(IDENTITY.boot_id, 0, 66), DirectoryIdentity(bytes(16), 55, 66)], ids=["mount", "boot"]
)
def test_not_knowing_counts_as_a_crash(disk: FakeFileSystem, unknown: DirectoryIdentity) -> None:
    """A kernel that cannot tell one mount from the next, before and after."""

    class Vague(FakeFileSystem):
        def identity(self, path: Path) -> DirectoryIdentity:
            return unknown

    vague = Vague(random.Random(1))
    vague.plant_directory(DATA)
    begin_session(vague, DATA)
    assert how_it_stopped(vague, DATA) is StopKind.CRASHED
    end_session(vague, DATA)
    assert how_it_stopped(vague, DATA) is StopKind.CLEAN


def test_every_flipped_byte_of_the_session_is_noticed(disk: FakeFileSystem) -> None:
    for is_clean in (False, True):
        good = SessionRecord(DIRECTORY_FORMAT, disk.identity(DATA), is_clean).encode()
        assert decode_session(good) == SessionRecord(DIRECTORY_FORMAT, disk.identity(DATA), is_clean)
        for position in range(len(good)):
            disk.plant(DATA / SESSION, flipped(good, position))
            assert read_session(disk, DATA) is None
            assert how_it_stopped(disk, DATA) is StopKind.CRASHED
        for size in range(len(good)):
            disk.plant(DATA / SESSION, good[:size])
            assert how_it_stopped(disk, DATA) is StopKind.CRASHED


def test_a_newer_format_is_refused_with_the_remedy(disk: FakeFileSystem) -> None:
    disk.plant(DATA / SESSION, SessionRecord(DIRECTORY_FORMAT + 1, disk.identity(DATA), True).encode())
    with pytest.raises(StartRefused, match="newer version") as refusal:
        check_format(disk, DATA)
    assert refusal.value.code == ErrorCode.START_REFUSED
    assert str(DIRECTORY_FORMAT + 1) in str(refusal.value)


def test_a_newer_format_whose_session_is_longer_is_refused_too(disk: FakeFileSystem) -> None:
    """A later version may have more to say in this file."""
    longer = SessionRecord(DIRECTORY_FORMAT + 1, disk.identity(DATA), True).encode()[8:] + bytes(range(100))
    disk.plant(DATA / SESSION, struct.pack("<Q", xxhash.xxh3_64_intdigest(longer)) + longer)
    with pytest.raises(StartRefused, match="newer version"):
        check_format(disk, DATA)


def test_a_directory_of_a_newer_version_is_left_exactly_as_it_is(tmp_path: Path) -> None:
    DataDirectory.open(tmp_path).close(is_clean=False)
    (tmp_path / "lock").unlink()
    newer = SessionRecord(DIRECTORY_FORMAT + 1, IDENTITY, False).encode()
    (tmp_path / SESSION).write_bytes(newer)
    before = {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    with pytest.raises(StartRefused, match="newer version"):
        DataDirectory.open(tmp_path)
    assert {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == before
    assert (tmp_path / SESSION).read_bytes() == newer


def test_a_session_survives_every_power_cut_as_the_old_one_or_the_new_one() -> None:
    for seed in range(50):
        disk = FakeFileSystem(random.Random(seed))
        disk.plant_directory(DATA)
        begin_session(disk, DATA)
        end_session(disk, DATA)
        disk.power_cut()
        assert how_it_stopped(disk, DATA) is StopKind.CLEAN
        begin_session(disk, DATA)
        disk.power_cut()
        assert how_it_stopped(disk, DATA) is StopKind.CRASHED


# --- numbers of logins --------------------------------------------------------------------------------


class _NoLock:
    def close(self) -> None:
        """Nothing is locked."""


def opened_at(disk: FakeFileSystem, clock: ManualClock, path: Path = DATA) -> DataDirectory:
    directory = DataDirectory(path, disk, cast("DirectoryLock", _NoLock()), how_it_stopped(disk, path), clock)
    directory.begin()
    return directory


@given(ends=st.lists(st.tuples(st.sampled_from(["clean", "kill", "cut", "restore"]), st.integers(0, 5), JUMPS)))
def test_no_login_ever_gets_the_number_of_another(ends: list[tuple[str, int, int]]) -> None:
    """A clock may be set, also back. Only where data is restored, without the file, it has to be right."""
    disk, clock, numbers, wrong_by = FakeFileSystem(random.Random(1)), ManualClock(), list[int](), 0
    disk.plant_directory(DATA)
    ahead = 0
    for end, count, jump in ends:
        directory = opened_at(disk, clock)
        numbers += [directory.number_login() for _ in range(count)]
        clock.advance(1_000_000)
        if end == "clean":
            directory.close(is_clean=True)
        elif end == "kill":
            disk.kill()
        elif end == "cut":
            disk.power_cut()
        else:
            directory.close(is_clean=True)
            disk.unlink(DATA / SESSION)
            clock.jump(-wrong_by)
            # Past the numbers that kills have passed over, and those of clocks that were ahead.
            clock.advance(2**20 * 1000 * len(ends) + ahead)
            wrong_by = 0
            continue
        clock.jump(jump)
        wrong_by += jump
        ahead += max(jump, 0)
    assert sorted(set(numbers)) == numbers
    assert all(0 < number < 2**43 for number in numbers)


def test_copies_of_a_directory_go_on_with_different_numbers(disk: FakeFileSystem) -> None:
    clock = ManualClock()
    original = opened_at(disk, clock)
    numbers = [original.number_login() for _ in range(3)]
    original.close(is_clean=True)
    disk.copy_directory(DATA, Path("/copy"))
    for path in (DATA, Path("/copy")):
        clock.advance(10_000)
        directory = opened_at(disk, clock, path)
        numbers += [directory.number_login() for _ in range(3)]
    assert len(set(numbers)) == 9


def test_a_clean_stop_passes_over_no_number(disk: FakeFileSystem) -> None:
    clock = ManualClock()
    first = opened_at(disk, clock)
    number = first.number_login()
    first.close(is_clean=True)
    second = opened_at(disk, clock)
    assert second.number_login() == number + 1


# --- the lock, with a real second process ---------------------------------------------------------------

SERVER = """
import sys
from pathlib import Path
from courser.storage.data_directory import DataDirectory
directory = DataDirectory.open(Path(sys.argv[1]))
directory.begin()
print(directory.stop.value, flush=True)
sys.stdin.read()
directory.close(is_clean=True)
"""


def start(path: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", SERVER, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )


def test_a_second_server_is_refused_and_the_next_one_learns_how_the_first_ended(tmp_path: Path) -> None:
    with start(tmp_path) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "crashed\n", "a new directory: nobody knows"
        with pytest.raises(StartRefused, match=f"in use by another server .process {first.pid}."):
            DataDirectory.open(tmp_path)
        with start(tmp_path) as second:
            _, errors = second.communicate(timeout=60)
            assert second.returncode != 0
            assert "in use by another server" in errors
        first.send_signal(signal.SIGKILL)
    directory = DataDirectory.open(tmp_path)
    knows_mounts = directory.file_system.identity(tmp_path).mount_id != 0
    assert directory.stop is (StopKind.KILLED if knows_mounts else StopKind.CRASHED)
    directory.close(is_clean=True)
    with start(tmp_path) as third:
        out, errors = third.communicate(timeout=60)
        assert (out, errors, third.returncode) == ("clean\n", "", 0)
