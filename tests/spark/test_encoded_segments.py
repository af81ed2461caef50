"""Segment files whose batches are compressed or encrypted, read without a server and without Spark."""

from dataclasses import replace
from pathlib import Path

import pytest

from courser.records.encryption import NO_KEYS, KeyRing
from courser.records.stored_body import encode
from courser.records.stored_header import blank_extension
from courser.spark.segment_scan import ScanOptions
from courser.spark.segment_source import SegmentSource
from courser.spark.sources import SourceUnavailable
from courser.storage.local_files import LocalFileSystem
from courser.storage.partition_log import PartitionLog
from courser.storage.recovery_cases import StopKind
from courser.storage.settings import LogSettings
from courser.storage.upkeep import close
from tests.fakes.clocks import ManualClock
from tests.records.reference import read_wire
from tests.storage.engine import ENCODINGS, IDENTITY, KEY, numbered, payload_of

ORDER = ["plain", "zstd", "zstd", "plain", "lz4, encrypted", "encrypted", "plain"]
PER_BATCH = 20


@pytest.fixture
def source(tmp_path: Path) -> SegmentSource:
    """A segment in which encoded and other batches take turns."""
    files, directory = LocalFileSystem(), tmp_path / "partition"
    PartitionLog.create(files, directory, IDENTITY, below=tmp_path)
    settings = LogSettings(index_interval=256, reservation_min=1000)
    log = PartitionLog.open(files, directory, IDENTITY, settings=settings, clock=ManualClock(), stop=StopKind.CLEAN)
    log.reserved_end = 1000
    for number, name in enumerate(ORDER):
        log.append(encode(numbered(number * PER_BATCH, PER_BATCH, mixed=True), ENCODINGS[name]))
    size = log.size
    close(log)
    return SegmentSource(
        directory=str(directory),
        identity=IDENTITY,
        base_offset=0,
        size=size,
        options=ScanOptions(read_size=2000, verify=False, skip_corrupt=False, quarantine=None, keys=KeyRing([KEY])),
    )


def as_sent(records: memoryview) -> bytes:
    """Batches without what only files have in their headers."""
    data, position = bytearray(records), 0
    while position < len(data):
        blank_extension(memoryview(data), position)
        position += int.from_bytes(data[position + 32 : position + 40], "little")
    return bytes(data)


@pytest.mark.parametrize("start", [0, 19, 20, 61, 99, 139])
@pytest.mark.parametrize("read_size", [300, 2000, 1_000_000])
def test_every_message_is_read_once(source: SegmentSource, start: int, read_size: int) -> None:
    source = replace(source, options=replace(source.options, read_size=read_size))
    messages = [
        message
        for fetched in source.fetch(IDENTITY.partition_id, start, 140)
        for message in read_wire(as_sent(fetched.records))
    ]
    assert [message.offset for message in messages if message.offset >= start] == list(range(start, 140))
    assert all(message.payload == payload_of(message.offset, mixed=True) for message in messages)


def test_a_source_without_the_key_is_none(source: SegmentSource) -> None:
    """The task falls back to the server, if there is one."""
    keyless = replace(source.options, keys=NO_KEYS)
    with pytest.raises(SourceUnavailable, match="which is not configured"):
        list(replace(source, options=keyless).fetch(IDENTITY.partition_id, 0, 140))
