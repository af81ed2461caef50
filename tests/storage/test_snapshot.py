"""The metadata snapshot: replaced in one step, its failures named by stage, its bytes checked when they are read."""

import errno
import random
import struct
from pathlib import Path

import pytest
import xxhash

from courser.errors import MetadataDamaged
from courser.storage.journal_entries import SnapshotMark
from courser.storage.snapshot import (
    HEADER_SIZE,
    Snapshot,
    SnapshotFailure,
    SnapshotStage,
    decode_snapshot,
    encode_snapshot,
    read_snapshot,
    write_snapshot,
)
from tests.fakes.files import CrashMoment, FakeFileSystem, FaultPlan, SimulatedCrash

PATH = Path("/data/metadata/snapshot.bin")
TEMPORARY = PATH.with_name("snapshot.bin.tmp")
OLD = Snapshot(SnapshotMark(4, b"4" * 16), b"h" * 16, 1, b"the old state")
NEW = Snapshot(SnapshotMark(9, b"9" * 16), b"k" * 16, 2, b"the new state, which is longer" * 50)


def disk_with(snapshot: Snapshot | None, seed: int = 1) -> FakeFileSystem:
    disk = FakeFileSystem(random.Random(seed))
    disk.plant_directory(PATH.parent)
    if snapshot is not None:
        write_snapshot(disk, PATH, snapshot)
    return disk


def failure_of(disk: FakeFileSystem, plan: FaultPlan) -> SnapshotFailure:
    disk.plan = plan
    with pytest.raises(SnapshotFailure) as caught:
        write_snapshot(disk, PATH, NEW)
    disk.plan = FaultPlan()
    assert caught.value.stage.value in str(caught.value)
    return caught.value


def test_no_snapshot_is_none() -> None:
    assert read_snapshot(disk_with(None), PATH) is None


def test_a_snapshot_of_an_empty_body_is_no_missing_one() -> None:
    disk = disk_with(Snapshot(SnapshotMark(0, bytes(16)), bytes(16), 0, b""))
    found = read_snapshot(disk, PATH)
    assert found is not None
    assert found.mark.op == 0


def test_no_temporary_file_stays_behind() -> None:
    assert disk_with(NEW).files() == [PATH]


# --- stages ---


@pytest.mark.parametrize(
    ("plan", "stage"),
    [
        (FaultPlan().fail("open", errno.EMFILE), SnapshotStage.WRITE),
        (FaultPlan().fail("write_at", errno.EIO), SnapshotStage.WRITE),
        (FaultPlan().shorten(take=10).fail("write_at", errno.ENOSPC, call=2), SnapshotStage.WRITE),
        (FaultPlan().fail("sync", errno.EIO), SnapshotStage.SYNC),
        (FaultPlan().fail("rename", errno.EIO, onwards=True), SnapshotStage.RENAME),
    ],
    ids=["open", "write", "full disk", "sync", "rename"],
)
def test_a_failure_names_its_stage_and_leaves_the_old_snapshot(plan: FaultPlan, stage: SnapshotStage) -> None:
    disk = disk_with(OLD)
    assert failure_of(disk, plan).stage is stage
    assert read_snapshot(disk, PATH) == OLD
    disk.power_cut()
    assert read_snapshot(disk, PATH) == OLD
    write_snapshot(disk, PATH, NEW)
    disk.power_cut()
    assert read_snapshot(disk, PATH) == NEW


@pytest.mark.parametrize("seed", range(10))
def test_after_a_failed_directory_sync_either_snapshot_is_there_whole(seed: int) -> None:
    disk = disk_with(OLD, seed)
    assert failure_of(disk, FaultPlan().fail("sync_directory", errno.EIO)).stage is SnapshotStage.DIRECTORY_SYNC
    disk.power_cut()
    assert read_snapshot(disk, PATH) in (OLD, NEW)


def test_the_rename_alone_is_tried_again() -> None:
    disk = disk_with(OLD)
    calls = dict(disk.calls)
    disk.plan = FaultPlan().fail("rename", errno.EIO, call=1).fail("rename", errno.EIO, call=2)
    write_snapshot(disk, PATH, NEW)
    assert {name: disk.calls[name] - calls[name] for name in ("write_at", "sync", "rename")} == {
        "write_at": 1,
        "sync": 1,
        "rename": 3,
    }
    assert read_snapshot(disk, PATH) == NEW


def test_a_failed_sync_is_not_tried_again() -> None:
    disk = disk_with(OLD)
    calls = disk.calls["sync"]
    failure_of(disk, FaultPlan().fail("sync", errno.EIO))
    assert disk.calls["sync"] == calls + 1


@pytest.mark.parametrize("seed", range(10))
def test_after_a_failed_sync_the_next_try_takes_a_new_file(seed: int) -> None:
    disk = disk_with(OLD, seed)
    failure_of(disk, FaultPlan().fail("sync", errno.EIO))
    # The bytes of the first try never get to the disk, and a second sync of that file would not say so.
    write_snapshot(disk, PATH, NEW)
    disk.power_cut()
    assert read_snapshot(disk, PATH) == NEW


# --- crashes ---


@pytest.mark.parametrize("moment", CrashMoment)
def test_a_crash_leaves_the_old_one_or_the_new_one(moment: CrashMoment) -> None:
    counted = disk_with(OLD)
    before = counted.mutations
    write_snapshot(counted, PATH, NEW)
    positions = counted.mutations - before
    assert positions == 6
    for position in range(1, positions + 1):
        for seed in range(10):
            disk = disk_with(OLD, seed)
            disk.plan = FaultPlan().crash_at(position, moment)
            with pytest.raises(SimulatedCrash):
                write_snapshot(disk, PATH, NEW)
            disk.power_cut()
            disk.plan = FaultPlan()
            assert read_snapshot(disk, PATH) in (OLD, NEW)
            # A leftover of the first try does not hinder the second.
            write_snapshot(disk, PATH, NEW)
            disk.power_cut()
            assert read_snapshot(disk, PATH) == NEW


def test_a_leftover_beside_the_snapshot_is_not_read() -> None:
    disk = disk_with(OLD)
    disk.plant(TEMPORARY, encode_snapshot(NEW))
    assert read_snapshot(disk, PATH) == OLD


# --- damage ---


def test_every_flipped_byte_is_found() -> None:
    data = encode_snapshot(OLD)
    for position in range(len(data)):
        for bit in (0x01, 0x80):
            damaged = bytearray(data)
            damaged[position] ^= bit
            with pytest.raises(MetadataDamaged) as caught:
                decode_snapshot(damaged, PATH)
            assert caught.value.position == (0 if position < HEADER_SIZE else HEADER_SIZE)
            assert str(PATH) in str(caught.value)
            assert "recreate_missing_state" in str(caught.value)


def test_every_cut_and_every_added_byte_is_found() -> None:
    data = encode_snapshot(OLD)
    for size in range(len(data)):
        with pytest.raises(MetadataDamaged):
            decode_snapshot(data[:size], PATH)
    with pytest.raises(MetadataDamaged, match="bytes follow the header"):
        decode_snapshot(data + b"!", PATH)


def test_a_later_format_is_refused_by_its_number() -> None:
    header = bytearray(encode_snapshot(OLD))
    header[36:38] = struct.pack("<H", 2)
    header[:16] = xxhash.xxh3_128_digest(header[16:HEADER_SIZE])
    with pytest.raises(MetadataDamaged, match="format 2 is not supported"):
        decode_snapshot(header, PATH)


def test_a_size_that_the_header_claims_takes_no_memory() -> None:
    header = bytearray(encode_snapshot(OLD))
    header[40:48] = struct.pack("<Q", 2**63)
    header[:16] = xxhash.xxh3_128_digest(header[16:HEADER_SIZE])
    with pytest.raises(MetadataDamaged, match="instead of"):
        decode_snapshot(header, PATH)


def test_the_bytes_of_a_snapshot_are_these() -> None:
    assert encode_snapshot(OLD).hex() == GOLDEN


GOLDEN = (
    "b24fe3b43dd3fcc13d94aa98c0a075ee70b698d90dc849f4dd6f58ce1e25e4d84352534e010000000d000000000000000400"
    "0000000000003434343434343434343434343434343468686868686868686868686868686868010000000000000000000000"
    "00000000000000000000000000000000000000000000000000000000746865206f6c64207374617465"
)
