"""What the real and the fake file system have to agree on: a test against the fake is worth no more than this."""

import errno
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from courser.storage.files import DirectoryEntry, EntryKind, File, FileSystem, read_exactly, read_into, write_all
from courser.storage.local_files import LocalFileSystem
from tests.fakes.files import FakeFileSystem


@pytest.fixture(params=["local", "fake"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[FileSystem, Path]:
    """A file system, and an empty directory in it."""
    if request.param == "local":
        return LocalFileSystem(), tmp_path
    fake = FakeFileSystem(random.Random(1))
    fake.plant_directory(tmp_path)
    return fake, tmp_path


def fill(system: FileSystem, path: Path, data: bytes) -> File:
    file = system.open(path, create=True, writable=True)
    assert write_all(file, 0, [data]) == len(data)
    return file


def read_whole(file: File) -> bytes:
    data = bytearray(file.size() + 10)
    return bytes(data[: read_into(file, 0, memoryview(data))])


def test_reads_return_what_was_written(disk: tuple[FileSystem, Path]) -> None:
    system, directory = disk
    file = fill(system, directory / "a", b"0123456789")
    assert file.path == directory / "a"
    assert read_exactly(file, 3, 4) == bytearray(b"3456")
    buffer = bytearray(4)
    assert file.read_at(0, memoryview(buffer), wait=False) == 4
    assert buffer == b"0123"


def test_buffers_of_all_kinds_are_written_behind_one_another(disk: tuple[FileSystem, Path]) -> None:
    system, directory = disk
    file = system.open(directory / "a", create=True)
    assert file.write_at(2, [b"ab", bytearray(b"cd"), b"", memoryview(b"xefx")[1:3]]) == 6
    assert read_whole(file) == b"\0\0abcdef"


def test_reads_fall_short_at_the_end(disk: tuple[FileSystem, Path]) -> None:
    system, directory = disk
    file = fill(system, directory / "a", b"0123456789")
    buffer = bytearray(b"........")
    assert file.read_at(7, memoryview(buffer)) == 3
    assert buffer == b"789....."
    assert file.read_at(10, memoryview(buffer)) == 0
    assert file.read_at(1000, memoryview(buffer)) == 0
    assert read_exactly(file, 7, 4) is None


def test_an_empty_write_or_read_does_nothing(disk: tuple[FileSystem, Path]) -> None:
    system, directory = disk
    file = fill(system, directory / "a", b"abc")
    assert file.write_at(100, []) == 0
    assert file.write_at(100, [b"", b""]) == 0
    assert file.read_at(0, memoryview(bytearray())) == 0
    assert file.size() == 3


def test_a_write_beyond_the_end_leaves_zeros(disk: tuple[FileSystem, Path]) -> None:
    system, directory = disk
    file = fill(system, directory / "a", b"abc")
    assert file.write_at(6, [b"def"]) == 3
    assert read_whole(file) == b"abc\0\0\0def"


def test_a_write_replaces_what_it_covers(disk: tuple[FileSystem, Path]) -> None:
    system, directory = disk
    file = fill(system, directory / "a", b"0123456789")
    file.write_at(8, [b"abcd"])
    file.write_at(1, [b"x"])
    assert read_whole(file) == b"0x234567abcd"


def test_truncate_cuts_and_extends_with_zeros(disk: tuple[FileSystem, Path]) -> None:
    system, directory = disk
    file = fill(system, directory / "a", b"0123456789")
    file.truncate(4)
    assert file.size() == 4
    file.truncate(6)
    file.sync()
    assert read_whole(file) == b"0123\0\0"


def test_allocate_extends_with_zeros_and_never_cuts(disk: tuple[FileSystem, Path]) -> None:
    system, directory = disk
    file = fill(system, directory / "a", b"0123456789")
    file.allocate(0, 4)
    assert read_whole(file) == b"0123456789"
    file.allocate(8, 4)
    assert read_whole(file) == b"0123456789\0\0"
    file.start_writeback(0, 12)


def test_discarding_the_cache_changes_no_byte(disk: tuple[FileSystem, Path]) -> None:
    system, directory = disk
    file = fill(system, directory / "a", b"0123456789")
    file.discard_cache()
    assert read_whole(file) == b"0123456789", "not synced, so not clean: it stays"
    file.sync()
    file.write_at(10, [b"abc"])
    file.discard_cache()
    file.discard_cache(4)
    assert read_whole(file) == b"0123456789abc"
    assert file.size() == 13
    file.close()
    with pytest.raises(OSError, match=r"."):
        file.discard_cache()


def test_negative_positions_are_refused(disk: tuple[FileSystem, Path]) -> None:
    system, directory = disk
    file = fill(system, directory / "a", b"abc")
    with pytest.raises(OSError, match=r"."):
        file.write_at(-1, [b"x"])
    with pytest.raises(OSError, match=r"."):
        file.read_at(-1, memoryview(bytearray(1)))
    with pytest.raises(OSError, match=r"."):
        file.truncate(-1)
    with pytest.raises(OSError, match=r"."):
        file.allocate(-1, 10)
    assert read_whole(file) == b"abc"


def test_a_file_opened_for_reading_takes_no_writes(disk: tuple[FileSystem, Path]) -> None:
    system, directory = disk
    fill(system, directory / "a", b"abc")
    file = system.open(directory / "a")
    with pytest.raises(OSError, match=r"."):
        file.write_at(0, [b"x"])
    with pytest.raises(OSError, match=r"."):
        file.truncate(0)
    with pytest.raises(OSError, match=r"."):
        file.allocate(0, 100)
    file.sync()
    assert read_whole(file) == b"abc"


def test_a_created_file_takes_writes(disk: tuple[FileSystem, Path]) -> None:
    system, directory = disk
    assert system.open(directory / "a", create=True).write_at(0, [b"abc"]) == 3


def test_two_open_files_see_each_others_writes(disk: tuple[FileSystem, Path]) -> None:
    system, directory = disk
    writer = fill(system, directory / "a", b"abc")
    reader = system.open(directory / "a")
    again = system.open(directory / "a", writable=True)
    writer.write_at(3, [b"d"])
    again.write_at(4, [b"e"])
    assert read_whole(reader) == b"abcde"


def test_a_closed_file_is_closed(disk: tuple[FileSystem, Path]) -> None:
    system, directory = disk
    file = fill(system, directory / "a", b"abc")
    file.close()
    file.close()
    calls: list[Callable[[], object]] = [
        file.size,
        file.sync,
        lambda: file.write_at(0, [b"x"]),
        lambda: file.read_at(0, memoryview(bytearray(1))),
        lambda: file.truncate(0),
    ]
    for call in calls:
        with pytest.raises(OSError, match=r"."):
            call()
    assert read_whole(system.open(directory / "a")) == b"abc"


def test_create_demands_that_nothing_is_there(disk: tuple[FileSystem, Path]) -> None:
    system, directory = disk
    fill(system, directory / "a", b"abc")
    system.make_directory(directory / "d")
    for name in ("a", "d"):
        with pytest.raises(FileExistsError):
            system.open(directory / name, create=True)
        with pytest.raises(FileExistsError):
            system.make_directory(directory / name)
    assert read_whole(system.open(directory / "a")) == b"abc"


def test_what_is_missing_is_not_found(disk: tuple[FileSystem, Path]) -> None:
    system, directory = disk
    missing, below = directory / "missing", directory / "missing" / "a"
    calls: list[Callable[[], object]] = [
        lambda: system.open(missing),
        lambda: system.open(missing, writable=True),
        lambda: system.open(below, create=True),
        lambda: system.make_directory(below),
        lambda: system.list_directory(missing),
        lambda: system.unlink(missing),
        lambda: system.remove_directory(missing),
        lambda: system.rename(missing, directory / "b"),
        lambda: system.sync_directory(missing),
        lambda: system.identity(missing),
    ]
    for call in calls:
        with pytest.raises(FileNotFoundError) as caught:
            call()
        assert str(missing) in str(caught.value)
    assert system.list_directory(directory) == []


def test_a_file_is_no_directory_and_a_directory_no_file(disk: tuple[FileSystem, Path]) -> None:
    system, directory = disk
    fill(system, directory / "a", b"abc")
    system.make_directory(directory / "d")
    not_directories: list[Callable[[], object]] = [
        lambda: system.open(directory / "a" / "b", create=True),
        lambda: system.list_directory(directory / "a"),
        lambda: system.remove_directory(directory / "a"),
        lambda: system.sync_directory(directory / "a"),
        lambda: system.rename(directory / "d", directory / "a"),
    ]
    for call in not_directories:
        with pytest.raises(NotADirectoryError):
            call()
    not_files: list[Callable[[], object]] = [
        lambda: system.open(directory / "d"),
        lambda: system.open(directory / "d", writable=True),
        lambda: system.unlink(directory / "d"),
        lambda: system.rename(directory / "a", directory / "d"),
    ]
    for call in not_files:
        with pytest.raises(IsADirectoryError):
            call()


def test_a_listing_tells_kinds_and_sizes(disk: tuple[FileSystem, Path]) -> None:
    system, directory = disk
    fill(system, directory / "a", b"abc")
    system.open(directory / "empty", create=True).allocate(0, 100)
    system.make_directory(directory / "d")
    fill(system, directory / "d" / "below", b"not listed")
    assert sorted(system.list_directory(directory), key=lambda entry: entry.name) == [
        DirectoryEntry("a", EntryKind.FILE, 3),
        DirectoryEntry("d", EntryKind.DIRECTORY, 0),
        DirectoryEntry("empty", EntryKind.FILE, 100),
    ]


def test_a_rename_moves_the_name_and_not_the_open_file(disk: tuple[FileSystem, Path]) -> None:
    system, directory = disk
    file = fill(system, directory / "a", b"abc")
    system.rename(directory / "a", directory / "b")
    file.write_at(3, [b"d"])
    assert file.path == directory / "a"
    assert [entry.name for entry in system.list_directory(directory)] == ["b"]
    assert read_whole(system.open(directory / "b")) == b"abcd"


def test_a_rename_replaces_its_target_which_stays_readable_where_it_is_open(disk: tuple[FileSystem, Path]) -> None:
    system, directory = disk
    old = fill(system, directory / "b", b"old")
    fill(system, directory / "a", b"new")
    system.rename(directory / "a", directory / "b")
    system.sync_directory(directory)
    assert read_whole(system.open(directory / "b")) == b"new"
    assert read_whole(old) == b"old"
    with pytest.raises(FileNotFoundError):
        system.open(directory / "a")


def test_a_rename_to_itself_changes_nothing(disk: tuple[FileSystem, Path]) -> None:
    system, directory = disk
    fill(system, directory / "a", b"abc")
    system.rename(directory / "a", directory / "a")
    assert read_whole(system.open(directory / "a")) == b"abc"


def test_directories_move_with_all_that_is_in_them(disk: tuple[FileSystem, Path]) -> None:
    system, directory = disk
    for name in ("from", "to", "from/d", "to/d"):
        system.make_directory(directory / name)
    fill(system, directory / "from" / "d" / "a", b"abc")
    system.rename(directory / "from" / "d", directory / "to" / "d")
    assert system.list_directory(directory / "from") == []
    assert read_whole(system.open(directory / "to" / "d" / "a")) == b"abc"


def test_a_directory_moves_neither_into_itself_nor_over_a_filled_one(disk: tuple[FileSystem, Path]) -> None:
    system, directory = disk
    for name in ("a", "a/b", "c"):
        system.make_directory(directory / name)
    with pytest.raises(OSError, match=r".") as caught:
        system.rename(directory / "a", directory / "a" / "b" / "c")
    assert caught.value.errno == errno.EINVAL
    with pytest.raises(OSError, match=r".") as caught:
        system.rename(directory / "c", directory / "a")
    assert caught.value.errno == errno.ENOTEMPTY


def test_an_unlinked_file_stays_readable_where_it_is_open(disk: tuple[FileSystem, Path]) -> None:
    system, directory = disk
    file = fill(system, directory / "a", b"abc")
    system.unlink(directory / "a")
    file.write_at(3, [b"d"])
    file.sync()
    assert read_whole(file) == b"abcd"
    assert system.list_directory(directory) == []
    assert read_whole(fill(system, directory / "a", b"another")) == b"another"
    assert read_whole(file) == b"abcd"


def test_only_an_empty_directory_can_be_removed(disk: tuple[FileSystem, Path]) -> None:
    system, directory = disk
    system.make_directory(directory / "d")
    fill(system, directory / "d" / "a", b"abc")
    with pytest.raises(OSError, match=r".") as caught:
        system.remove_directory(directory / "d")
    assert caught.value.errno == errno.ENOTEMPTY
    system.unlink(directory / "d" / "a")
    system.remove_directory(directory / "d")
    assert system.list_directory(directory) == []


def test_a_directory_keeps_its_identity_over_changes_and_renames(disk: tuple[FileSystem, Path]) -> None:
    system, directory = disk
    for name in ("a", "b"):
        system.make_directory(directory / name)
    before = system.identity(directory / "a")
    assert len(before.boot_id) == 16
    assert before != system.identity(directory / "b")
    fill(system, directory / "a" / "x", b"abc")
    system.rename(directory / "a", directory / "c")
    assert system.identity(directory / "c") == before


def test_random_changes_read_the_same_as_in_memory(disk: tuple[FileSystem, Path], seed: int) -> None:
    system, directory = disk
    source = random.Random(seed)
    file = system.open(directory / "a", create=True)
    expected = bytearray()
    for _ in range(200):
        position, size = source.randrange(3000), source.randrange(800)
        match source.randrange(5):
            case 0:
                file.truncate(position)
                del expected[position:]
                expected.extend(bytes(position - len(expected)))
            case 1:
                file.allocate(position, size + 1)
                expected.extend(bytes(max(0, position + size + 1 - len(expected))))
            case 2:
                file.sync()
            case _:
                data = source.randbytes(size)
                write_all(file, position, [data])
                if data:
                    expected.extend(bytes(max(0, position - len(expected))))
                    expected[position : position + size] = data
        assert file.size() == len(expected)
        assert read_exactly(file, 0, len(expected)) == expected
