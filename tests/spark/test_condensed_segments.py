"""Segment files from which superseded messages were removed, read without a server and without Spark."""

from dataclasses import replace
from pathlib import Path

import pytest

from courser.records.encryption import NO_KEYS
from courser.records.stored_header import blank_extension
from courser.spark.segment_scan import ScanOptions
from courser.spark.segment_source import SegmentSource
from courser.spark.sources import LossRule, OffsetRange, read_range
from courser.storage.jobs import perform
from courser.storage.local_files import LocalFileSystem
from courser.storage.log_reader import LogReader
from courser.storage.partition_log import PartitionLog
from courser.storage.paths import index_path
from courser.storage.recovery_cases import StopKind
from courser.storage.settings import LogSettings
from courser.storage.upkeep import close, plan_seal
from tests.fakes.clocks import ManualClock
from tests.records.reference import read_wire
from tests.storage.condensed import condense, keyed
from tests.storage.engine import IDENTITY

COUNT = 60
RULE = LossRule("s/t", fails=True)


@pytest.fixture
def sources(tmp_path: Path) -> tuple[SegmentSource, bytes, list[int]]:
    """A condensed segment with the size that it had before, its old index, and the offsets that are left."""
    files, directory = LocalFileSystem(), tmp_path / "partition"
    PartitionLog.create(files, directory, IDENTITY, below=tmp_path)
    settings = LogSettings(index_interval=64, reservation_min=1000)
    log = PartitionLog.open(files, directory, IDENTITY, settings=settings, clock=ManualClock(), stop=StopKind.CLEAN)
    log.reserved_end = 1000
    for number in range(0, COUNT, 2):
        log.append(keyed([(b"%d" % (number % 14), bytes(number)), (b"other" if number % 6 else None, b"x")]))
    log.roll()
    seal = plan_seal(log)
    assert seal is not None
    assert perform(seal)
    log.append(keyed([(None, b"open")]))
    size, old_index = log.segments[0].size, index_path(directory, 0).read_bytes()
    assert condense(log) == 1
    left = [message.offset for message in read_wire(b"".join(LogReader(log).read(0, 1000, 2**20).pieces))][:-1]
    close(log)
    source = SegmentSource(
        directory=str(directory),
        identity=IDENTITY,
        base_offset=0,
        size=size,
        options=ScanOptions(read_size=2000, verify=True, skip_corrupt=False, quarantine=None, keys=NO_KEYS),
    )
    return source, old_index, left


def offsets(source: SegmentSource, start: int, end: int) -> list[int]:
    found: list[int] = []
    for fetched in read_range(OffsetRange(IDENTITY.partition_id, start, end, (source,)), RULE):
        data, position = bytearray(fetched.records), 0
        while position < len(data):
            blank_extension(memoryview(data), position)
            position += int.from_bytes(data[position + 32 : position + 40], "little")
        found += [message.offset for message in read_wire(bytes(data)) if start <= message.offset < end]
    return found


@pytest.mark.parametrize("has_new_index", [True, False])
@pytest.mark.parametrize("has_new_size", [True, False])
def test_every_range_is_read_without_a_loss(
    sources: tuple[SegmentSource, bytes, list[int]], has_new_index: bool, has_new_size: bool
) -> None:
    """A task may meet the new file with what was known of the old one."""
    source, old_index, left = sources
    assert len(left) < COUNT // 2
    if has_new_size:
        source = replace(source, size=source.path.stat().st_size)
    if not has_new_index:
        index_path(Path(source.directory), 0).write_bytes(old_index)
    for start in range(COUNT):
        for end in (start + 1, start + 3, COUNT):
            if end <= COUNT:
                assert offsets(source, start, end) == [offset for offset in left if start <= offset < end]
