"""What only the real file system has: modes, links, descriptors, kernels, and the lock between processes."""

import ctypes
import errno
import gc
import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import NoReturn

import pytest

from courser.errors import ErrorCode, StartRefused
from courser.model.clock import Clock
from courser.storage import local_files
from courser.storage.files import DirectoryEntry, EntryKind, FileSystem, read_exactly, write_all
from courser.storage.local_files import KernelCalls, LocalFile, LocalFileSystem, lock_directory
from courser.storage.watched_clock import SystemClock

HOLDER = """
import sys
from pathlib import Path
from courser.storage.local_files import lock_directory
lock = lock_directory(Path(sys.argv[1]))
print("locked", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def system() -> LocalFileSystem:
    return LocalFileSystem()


def open_descriptors() -> int:
    gc.collect()
    return len(list(Path("/proc/self/fd").iterdir()))


def test_it_is_a_file_system(system: LocalFileSystem) -> None:
    stated: FileSystem = system
    assert stated is system


def test_nobody_else_may_read(system: LocalFileSystem, tmp_path: Path) -> None:
    system.open(tmp_path / "a", create=True)
    system.make_directory(tmp_path / "d")
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "d").stat().st_mode & 0o777 == 0o700


def test_symbolic_links_are_not_followed(system: LocalFileSystem, tmp_path: Path) -> None:
    (tmp_path / "target").write_bytes(b"secret")
    (tmp_path / "link").symlink_to(tmp_path / "target")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    for writable in (False, True):
        with pytest.raises(OSError, match=r"link") as caught:
            system.open(tmp_path / "link", writable=writable)
        assert caught.value.errno == errno.ELOOP
    with pytest.raises(FileExistsError):
        system.open(tmp_path / "dangling", create=True)
    assert not (tmp_path / "nowhere").exists()


def test_a_listing_does_not_look_through_links(system: LocalFileSystem, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"abc")
    (tmp_path / "file_link").symlink_to(tmp_path / "file")
    (tmp_path / "directory_link").symlink_to(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    assert sorted(system.list_directory(tmp_path), key=lambda entry: entry.name) == [
        DirectoryEntry("directory_link", EntryKind.OTHER, 0),
        DirectoryEntry("file", EntryKind.FILE, 3),
        DirectoryEntry("file_link", EntryKind.OTHER, 0),
        DirectoryEntry("pipe", EntryKind.OTHER, 0),
    ]


def test_a_pipe_is_refused_without_waiting_for_its_other_end(system: LocalFileSystem, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for writable in (False, True):
        with pytest.raises(OSError, match=r"not a regular file"):
            system.open(tmp_path / "pipe", writable=writable)


def test_descriptors_are_closed_with_the_last_reference(system: LocalFileSystem, tmp_path: Path) -> None:
    before = open_descriptors()
    file = system.open(tmp_path / "a", create=True)
    system.sync_directory(tmp_path)
    with pytest.raises(IsADirectoryError):
        system.open(tmp_path)
    assert open_descriptors() == before + 1
    del file
    assert open_descriptors() == before


def test_descriptors_are_not_inherited(system: LocalFileSystem, tmp_path: Path) -> None:
    file = system.open(tmp_path / "a", create=True)
    assert not os.get_inheritable(file._descriptor)
    with lock_directory(tmp_path) as lock:
        assert not os.get_inheritable(lock._descriptor)


def test_more_buffers_than_the_kernel_takes_are_a_short_write(system: LocalFileSystem, tmp_path: Path) -> None:
    file = system.open(tmp_path / "a", create=True)
    buffers = [bytes([index % 256]) for index in range(3000)]
    assert file.write_at(0, buffers) == 1024
    assert write_all(file, 0, buffers) == 3000
    assert read_exactly(file, 0, 3000) == bytearray().join(buffers)


def test_a_file_system_that_cannot_but_wait_counts_as_cold(
    system: LocalFileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = system.open(tmp_path / "a", create=True)
    file.write_at(0, [b"abc"])
    real = os.preadv

    def refuse(descriptor: int, buffers: Iterable[memoryview], position: int, flags: int = 0) -> int:
        if flags:
            raise OSError(errno.EOPNOTSUPP, "not supported")
        return real(descriptor, list(buffers), position)

    monkeypatch.setattr(os, "preadv", refuse)
    with pytest.raises(BlockingIOError):
        file.read_at(0, memoryview(bytearray(3)), wait=False)
    assert read_exactly(file, 0, 3) == bytearray(b"abc")


def allocating(path: Path, number: int) -> LocalFile:
    """A file on a file system that answers every reservation with this error."""

    def refuse(descriptor: int, mode: int, position: int, size: int) -> int:
        ctypes.set_errno(number)
        return -1

    return LocalFile(path, os.open(path, os.O_RDWR | os.O_CREAT), KernelCalls(None, refuse))


@pytest.mark.parametrize("number", [errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS, errno.EINTR])
def test_without_reservations_nothing_is_written_instead(tmp_path: Path, number: int) -> None:
    file = allocating(tmp_path / "a", number)
    file.write_at(0, [b"abc"])
    file.allocate(0, 10)
    assert file.size() == 3
    assert read_exactly(file, 0, 3) == bytearray(b"abc")


def test_a_full_disk_is_told(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"space") as caught:
        allocating(tmp_path / "a", errno.ENOSPC).allocate(0, 10)
    assert caught.value.errno == errno.ENOSPC


def test_reserved_space_is_zeros_behind_what_was_written(system: LocalFileSystem, tmp_path: Path) -> None:
    file = system.open(tmp_path / "a", create=True)
    file.write_at(0, [b"abc"])
    file.allocate(0, 10)
    assert read_exactly(file, 0, 10) == bytearray(b"abc" + bytes(7))


def test_write_back_and_reservations_are_optional(tmp_path: Path) -> None:
    file = LocalFile(tmp_path / "a", os.open(tmp_path / "a", os.O_RDWR | os.O_CREAT), KernelCalls(None, None))
    file.start_writeback(0, 10)
    file.allocate(0, 10)
    assert file.size() == 0


def test_the_identity_is_that_of_the_kernel(system: LocalFileSystem, tmp_path: Path) -> None:
    identity = system.identity(tmp_path)
    assert identity == system.identity(tmp_path)
    assert identity.inode == tmp_path.stat().st_ino
    assert identity.boot_id.hex() == Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", "")
    release = tuple(int(part) for part in os.uname().release.split(".")[:2])
    if release >= (6, 8):
        assert identity.mount_id != 0
        assert identity.mount_id != system.identity(Path("/proc")).mount_id


def test_a_library_without_statx_cannot_tell_mounts_apart(tmp_path: Path) -> None:
    class OldLibrary(ctypes.CDLL):
        def __getattr__(self, name: str) -> NoReturn:
            raise AttributeError(name)

    assert local_files._read_mount_id(OldLibrary(None), tmp_path) == 0
    assert local_files._find_calls(OldLibrary(None)) == KernelCalls(None, None)


def test_without_a_boot_id_nothing_is_claimed(tmp_path: Path) -> None:
    for content in ("", "not hexadecimal"):
        (tmp_path / "boot_id").write_text(content)
        identity = LocalFileSystem(tmp_path / "boot_id").identity(tmp_path)
        assert (identity.boot_id, identity.mount_id) == (bytes(16), 0)


# --- the lock -----------------------------------------------------------------------------------------


def test_a_second_lock_is_refused_with_the_number_of_the_holder(tmp_path: Path) -> None:
    with lock_directory(tmp_path):
        with pytest.raises(StartRefused) as caught:
            lock_directory(tmp_path)
        assert caught.value.code == ErrorCode.START_REFUSED
        assert f"process {os.getpid()})" in str(caught.value)
        assert str(tmp_path) in str(caught.value)
    lock_directory(tmp_path).close()


def test_a_refused_lock_leaves_the_holder_alone(tmp_path: Path) -> None:
    lock = lock_directory(tmp_path)
    before = open_descriptors()
    for _ in range(3):
        with pytest.raises(StartRefused):
            lock_directory(tmp_path)
    assert open_descriptors() == before
    assert (tmp_path / "lock").read_text() == f"{os.getpid()}\n"
    lock.close()
    lock.close()


def test_a_dropped_lock_is_released(tmp_path: Path) -> None:
    lock = lock_directory(tmp_path)
    del lock
    gc.collect()
    lock_directory(tmp_path).close()


def test_a_longer_number_of_an_earlier_holder_leaves_no_digits(tmp_path: Path) -> None:
    (tmp_path / "lock").write_text("9" * 15)
    with lock_directory(tmp_path):
        assert (tmp_path / "lock").read_text() == f"{os.getpid()}\n"


def test_another_process_holds_the_lock_until_it_is_killed(tmp_path: Path) -> None:
    source = Path(local_files.__file__).parents[2]
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(source)},
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"locked\n"
        with pytest.raises(StartRefused, match=rf"process {holder.pid}\)"):
            lock_directory(tmp_path)
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    lock_directory(tmp_path).close()


def test_the_lock_is_no_link_to_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StartRefused, match=r"link"):
        lock_directory(tmp_path)
    assert not (tmp_path / "elsewhere").exists()


# --- the clock ----------------------------------------------------------------------------------------


def test_the_clock_counts_microseconds() -> None:
    clock: Clock = SystemClock()
    assert 1_500_000_000_000_000 < clock.now() < 10_000_000_000_000_000
    first = clock.monotonic()
    assert clock.monotonic() >= first
