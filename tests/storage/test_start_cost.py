"""What a start costs: it grows with what was not sealed, never with what was. Calls are counted, nothing is timed."""

import random
from collections import Counter
from pathlib import Path

import pytest

from courser.storage.files import DirectoryEntry, EntryKind
from courser.storage.ledger import LedgerNumbers, Sealed, SegmentFacts, encode_record
from courser.storage.log_reader import LogReader
from courser.storage.partition_log import PartitionLog
from courser.storage.paths import LEDGER, index_path, log_path
from courser.storage.recovery_cases import StopKind
from courser.storage.settings import LogSettings
from tests.fakes.clocks import ManualClock
from tests.fakes.files import FakeFile, FakeFileSystem
from tests.storage.engine import ALL, DIRECTORY, IDENTITY, Engine, messages_of

SEGMENT_SIZE = 16 * 1024 * 1024
MESSAGES_PER_SEGMENT = 10_000
SETTINGS = LogSettings(segment_size=SEGMENT_SIZE)


class CountingFileSystem(FakeFileSystem):
    """Counts calls by kind of file, and shows sealed segments of a size that they do not take in memory."""

    def __init__(self) -> None:
        super().__init__(random.Random(1))
        self.sparse: dict[str, int] = {}
        self.counted: Counter[tuple[str, str]] = Counter()

    def list_directory(self, path: Path) -> list[DirectoryEntry]:
        self.counted["list_directory", ""] += 1
        entries = super().list_directory(path)
        return [*entries, *(DirectoryEntry(name, EntryKind.FILE, size) for name, size in self.sparse.items())]

    def open(self, path: Path, *, writable: bool = False, create: bool = False) -> FakeFile:
        assert path.name not in self.sparse, f"{path.name} is sealed: a start has no business in it"
        self.counted["open", path.suffix] += 1
        return super().open(path, writable=writable, create=create)


def sealed_facts(number: int) -> SegmentFacts:
    first = number * MESSAGES_PER_SEGMENT
    time = 1_600_000_000_000_000 + number
    return SegmentFacts(first, first + MESSAGES_PER_SEGMENT, SEGMENT_SIZE, time, time, MESSAGES_PER_SEGMENT, 100)


def partition_with(sealed_count: int) -> CountingFileSystem:
    """As many sealed segments as wanted, and behind them an open one with 30 messages that was really written."""
    disk = CountingFileSystem()
    disk.plant_directory(DIRECTORY)
    first = sealed_count * MESSAGES_PER_SEGMENT
    numbers = LedgerNumbers(reserved_end=first)
    records = [
        encode_record(IDENTITY, number + 1, numbers, Sealed(sealed_facts(number))) for number in range(sealed_count)
    ]
    disk.plant(DIRECTORY / LEDGER, b"".join(records))
    for number in range(sealed_count):
        disk.sparse[log_path(DIRECTORY, number * MESSAGES_PER_SEGMENT).name] = SEGMENT_SIZE
        disk.sparse[index_path(DIRECTORY, number * MESSAGES_PER_SEGMENT).name] = 16 * 1024
    log = opened(disk, StopKind.CLEAN)
    log_with(log, disk)
    disk.counted.clear()
    disk.calls.clear()
    return disk


def opened(disk: FakeFileSystem, stop: StopKind) -> PartitionLog:
    return PartitionLog.open(disk, DIRECTORY, IDENTITY, settings=SETTINGS, clock=ManualClock(), stop=stop)


def log_with(log: PartitionLog, disk: FakeFileSystem) -> None:
    engine = Engine.__new__(Engine)
    engine.settings, engine.clock, engine.disk, engine.log = SETTINGS, ManualClock(), disk, log
    engine.directory, engine.identity = DIRECTORY, IDENTITY
    engine.fill(10)
    engine.stop(StopKind.KILLED)


@pytest.mark.parametrize("stop", [StopKind.CLEAN, StopKind.KILLED, StopKind.CRASHED], ids=lambda stop: stop.value)
def test_a_start_with_100_gib_makes_the_calls_of_a_start_with_1_gib(stop: StopKind) -> None:
    """64 sealed segments of 16 MiB against 6,400: not one of them is opened or read."""
    small, large = partition_with(64), partition_with(6400)
    for disk, count in ((small, 64), (large, 6400)):
        log = opened(disk, stop)
        assert len(log.segments) == count + 1
        first = count * MESSAGES_PER_SEGMENT
        result = LogReader(log).read(first, count=ALL, size_max=ALL)
        assert [message.offset for message in messages_of(result)] == list(range(first, first + 30))
        assert log.findings == ()
        assert log.size >= count * SEGMENT_SIZE
    assert small.counted == large.counted
    assert dict(small.calls) == dict(large.calls)
    # The last one by the read: a start closes what it has opened.
    assert sum(count for (operation, _), count in large.counted.items() if operation == "open") <= 9
    assert sum(large.calls.values()) < 40


def test_a_start_reads_the_open_segment_only_from_its_recovery_point_on() -> None:
    class Meter(FakeFileSystem):
        read = 0

        def open(self, path: Path, *, writable: bool = False, create: bool = False) -> FakeFile:
            file = super().open(path, writable=writable, create=create)
            if path.suffix == ".log":
                original = file.read_at

                def counted(position: int, buffer: memoryview, *, wait: bool = True) -> int:
                    size = original(position, buffer, wait=wait)
                    Meter.read += size
                    return size

                file.read_at = counted  # type: ignore[method-assign]
            return file

    engine = Engine(LogSettings(segment_size=10**7, reservation_min=100_000), disk=Meter(random.Random(1)))
    for _ in range(100):
        engine.append_numbered(100, size=100)
    engine.restart()
    engine.append_numbered(100, size=100)
    tail = engine.log.segments[0].size // 101
    Meter.read = 0
    engine.restart(StopKind.KILLED)
    assert engine.log.next_offset == 10_100
    assert tail <= Meter.read < 5 * tail


def test_a_recovery_point_is_set_while_running() -> None:
    """After a kill the most that a start has to read is the recovery point's size."""
    settings = LogSettings(segment_size=10**7, recovery_point_size=20_000, reservation_min=100_000)
    engine = Engine(settings)
    for _ in range(100):
        engine.append_numbered(20, size=50)
        engine.sync()
        engine.upkeep()
        progress = engine.log.ledger.state.progress
        known = progress.size if progress is not None else 0
        assert engine.log.segments[0].size - known <= 20_000 + 3000
