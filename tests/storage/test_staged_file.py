"""The file of a staged part: space that is allocated ahead of its writes, whatever becomes of it."""

import errno
import random
from pathlib import Path

import pytest

from courser.errors import DamagedData, StorageFailure
from courser.records.batch import NewMessage, build_batch, parse_batch
from courser.storage.local_files import LocalFileSystem
from courser.storage.settings import EngineLimits
from courser.storage.staged_file import (
    DamagedPart,
    PartIdentity,
    StagedFile,
    StagedFileReader,
    StagedFileWriter,
    StagingTarget,
    read_staged_file,
)
from tests.fakes.faults import CrashMoment
from tests.fakes.files import FakeFileSystem, FaultPlan, SimulatedCrash

DIRECTORY = Path("/data/staging")
PATH = DIRECTORY / "a.part"
IDENTITY = PartIdentity(1, "a sink", 0, 0, 7)
TARGET = StagingTarget(1, 1, bytes(16), 0, 1)
COUNT = 6


LIMITS = EngineLimits(staged_allocation_min=200, staged_allocation_max=1500, staged_writeback_size=500)


def fresh_disk(seed: int) -> FakeFileSystem:
    disk = FakeFileSystem(random.Random(seed))
    disk.plant_directory(DIRECTORY)
    return disk


def write_part(disk: FakeFileSystem) -> StagedFileWriter:
    writer = StagedFileWriter.create(disk, PATH, IDENTITY, 1, LIMITS)
    for number in range(COUNT):
        writer.append(TARGET, build_batch([NewMessage(b"%d" % number * 100)]))
        if (work := writer.take_upkeep()) is not None:
            work()
    return writer


def finish_part(disk: FakeFileSystem) -> StagedFileWriter:
    writer = write_part(disk)
    writer.finish()
    disk.sync_directory(DIRECTORY)
    return writer


def payloads(disk: FakeFileSystem, file_size: int, digest: int) -> list[bytes]:
    reader = StagedFileReader(disk, PATH, file_size=file_size, digest=digest)
    found = []
    for record in reader.records():
        memory = memoryview(bytearray(record.size))
        reader.read(record, memory)
        found.append(bytes(parse_batch(memory).body[48:]))
    return found


EXPECTED = [b"%d" % number * 100 for number in range(COUNT)]


def test_space_is_allocated_ahead_and_given_back_at_the_end() -> None:
    disk = fresh_disk(1)
    writer = write_part(disk)
    assert disk.calls["allocate"] >= 2
    assert len(disk.contents(PATH)) > writer.contents.file_size
    writer.finish()
    assert len(disk.contents(PATH)) == writer.contents.file_size
    assert payloads(disk, writer.contents.file_size, writer.contents.digest) == EXPECTED


def test_a_small_part_allocates_nothing() -> None:
    disk = fresh_disk(1)
    writer = StagedFileWriter.create(disk, PATH, IDENTITY, 1, LIMITS)
    assert writer.take_upkeep() is None


def test_a_part_of_an_earlier_session_goes_on_over_what_was_allocated() -> None:
    disk = fresh_disk(1)
    write_part(disk).close()
    found = read_staged_file(disk, PATH)
    assert isinstance(found, StagedFile)
    assert (found.contents.chunk_count, found.contents.is_finished) == (COUNT, False)
    writer = StagedFileWriter.reopen(disk, PATH, found.contents, LIMITS)
    writer.append(TARGET, build_batch([NewMessage(b"more")]))
    writer.finish()
    contents = writer.contents
    assert payloads(disk, contents.file_size, contents.digest) == [*EXPECTED, b"more"]


def test_zeros_behind_the_end_do_no_harm() -> None:
    """As after a power cut that took the cut of the file, and nothing else."""
    disk = fresh_disk(1)
    contents = finish_part(disk).contents
    disk.plant(PATH, disk.contents(PATH) + bytes(1000))
    found = read_staged_file(disk, PATH)
    assert isinstance(found, StagedFile)
    assert (found.contents.is_finished, found.contents.file_size) == (True, contents.file_size)
    assert payloads(disk, contents.file_size, contents.digest) == EXPECTED


@pytest.mark.parametrize("is_crashed", [False, True])
def test_every_flipped_bit_of_a_finished_part_is_damage(is_crashed: bool) -> None:
    disk = fresh_disk(1)
    finish_part(disk)
    good = disk.contents(PATH)
    for position in range(len(good)):
        data = bytearray(good)
        data[position] ^= 1 << position % 8
        disk.plant(PATH, data)
        found = read_staged_file(disk, PATH, is_crashed=is_crashed)
        assert isinstance(found, DamagedPart), (position, found)
        assert found.identity is not None
        assert found.identity == IDENTITY or found.reason == "the header is damaged"


def test_a_bit_flipped_in_the_middle_of_an_unfinished_part_is_damage_unless_the_power_failed() -> None:
    disk = fresh_disk(1)
    write_part(disk).close()
    data = bytearray(disk.contents(PATH))
    data[data.index(b"3" * 100)] ^= 1
    disk.plant(PATH, data)
    found = read_staged_file(disk, PATH)
    assert isinstance(found, DamagedPart)
    assert found.reason == "chunk 3 is damaged"
    torn = read_staged_file(disk, PATH, is_crashed=True)
    assert isinstance(torn, StagedFile)
    assert (torn.contents.chunk_count, torn.contents.is_finished) == (3, False)


@pytest.mark.parametrize("is_allocated", [False, True])
def test_a_write_that_a_kill_cut_short_is_no_damage(is_allocated: bool) -> None:
    """Wherever it was cut: in the last batch, in its record, or in the closing record."""
    disk = fresh_disk(1)
    finish_part(disk)
    good = disk.contents(PATH)
    last_record = good.rindex(b"CRSR\x01")
    for end in range(last_record, len(good)):
        if good[end - 1] == 0 and end > last_record:
            continue
        disk.plant(PATH, good[:end] + bytes(500 if is_allocated else 0))
        found = read_staged_file(disk, PATH)
        assert isinstance(found, StagedFile), (end, found)
        assert (found.contents.chunk_count, found.contents.is_finished) == (COUNT - (end < len(good) - 80), False)


@pytest.mark.parametrize(("size", "zeros"), [(0, 0), (0, 60), (1, 0), (30, 0), (30, 1000)])
@pytest.mark.parametrize("is_crashed", [False, True])
def test_a_file_whose_creation_was_interrupted_is_no_part(size: int, zeros: int, is_crashed: bool) -> None:
    disk = fresh_disk(1)
    finish_part(disk)
    disk.plant(PATH, disk.contents(PATH)[:size] + bytes(zeros))
    assert read_staged_file(disk, PATH, is_crashed=is_crashed) is None


def test_an_end_that_reached_the_disk_before_a_message_is_no_end() -> None:
    """As after a power cut in the sync of the end: allocated space reads as zeros where pages are missing."""
    disk = fresh_disk(1)
    finish_part(disk)
    data = bytearray(disk.contents(PATH))
    position = data.index(b"3" * 100)
    data[position : position + 50] = bytes(50)
    disk.plant(PATH, data)
    found = read_staged_file(disk, PATH, is_crashed=True)
    # It may be that, or rot in a part that a task relies on: nobody can tell, so it is reported.
    assert isinstance(found, DamagedPart)
    assert "unless the power failed before it was synced" in found.reason


def test_a_failed_write_beside_an_allocation_leaves_no_space_behind() -> None:
    disk = fresh_disk(1)
    writer = StagedFileWriter.create(disk, PATH, IDENTITY, 1, LIMITS)
    writer.append(TARGET, build_batch([NewMessage(bytes(300))]))
    work = writer.take_upkeep()
    assert work is not None
    disk.plan = FaultPlan().fail("write_at", errno.ENOSPC, call=1)
    with pytest.raises(StorageFailure):
        writer.append(TARGET, build_batch([NewMessage(b"refused")]))
    work()
    assert len(disk.contents(PATH)) > writer.contents.file_size
    writer.finish()
    assert len(disk.contents(PATH)) == writer.contents.file_size


def test_a_part_that_lacks_a_byte_is_not_published() -> None:
    disk = fresh_disk(1)
    contents = finish_part(disk).contents
    disk.plant(PATH, disk.contents(PATH)[:-1])
    with pytest.raises(DamagedData):
        payloads(disk, contents.file_size, contents.digest)


def test_a_crash_at_every_call_leaves_whole_records_only(seed: int) -> None:
    source = random.Random(seed)
    finished_count = 0
    for position in range(1, 40):
        disk = fresh_disk(source.getrandbits(32))
        disk.plan = FaultPlan().crash_at(position, source.choice(tuple(CrashMoment)))
        is_told = False
        try:
            finish_part(disk)
            is_told = True
        except SimulatedCrash:
            pass
        disk.plan = FaultPlan()
        is_crashed = source.random() < 0.5
        if is_crashed:
            disk.power_cut()
        else:
            disk.kill()
        if PATH not in disk.files():
            assert not is_told
            continue
        found = read_staged_file(disk, PATH, is_crashed=is_crashed)
        assert found is not None or not is_told
        if found is None:
            continue
        if isinstance(found, DamagedPart):
            # An end that reached the disk before what comes before it looks like rot. A kill never does.
            assert is_crashed
            assert not is_told
            continue
        contents = found.contents
        assert contents.is_finished or not is_told
        assert contents.chunk_count == COUNT or not contents.is_finished
        finished_count += contents.is_finished
        if not contents.is_finished:
            writer = StagedFileWriter.reopen(disk, PATH, contents, LIMITS)
            writer.finish()
        assert payloads(disk, contents.file_size, contents.digest) == EXPECTED[: contents.chunk_count]
    assert finished_count > 5


def test_on_a_real_disk(tmp_path: Path) -> None:
    system, path = LocalFileSystem(), tmp_path / "a.part"
    writer = StagedFileWriter.create(system, path, IDENTITY, 1, LIMITS)
    for number in range(COUNT):
        writer.append(TARGET, build_batch([NewMessage(b"%d" % number * 100)]))
        if (work := writer.take_upkeep()) is not None:
            work()
    writer.finish()
    writer.close()
    assert path.stat().st_size == writer.contents.file_size
    found = read_staged_file(system, path)
    assert isinstance(found, StagedFile)
    assert found.contents.is_finished
