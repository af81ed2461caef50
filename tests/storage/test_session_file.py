"""One server per directory, and how the last one left it."""

import os
import random
import signal
import struct
import subprocess
import sys
from pathlib import Path

import pytest
import xxhash

from courser.errors import ErrorCode, StartRefused
from courser.storage.data_directory import DataDirectory
from courser.storage.files import DirectoryIdentity
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
from tests.fakes.files import FakeFileSystem
from tests.storage.engine import flipped

DATA = Path("/data")
IDENTITY = DirectoryIdentity(bytes(range(1, 17)), 55, 66)


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
