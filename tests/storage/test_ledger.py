"""The ledger: numbers that only grow, events that survive, and no bad record taken for a good one."""

import contextlib
import errno
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from courser.errors import DiskFull, StorageFailure
from courser.records.stored_header import PartitionIdentity
from courser.storage.ledger import (
    RECORD_SIZE,
    DamagedRange,
    Event,
    Ledger,
    LedgerNumbers,
    LedgerReading,
    LedgerState,
    OffsetGap,
    Progress,
    Sealed,
    SegmentFacts,
    SyncFailure,
    encode_record,
    read_ledger,
)
from tests.fakes.faults import FaultPlan, SimulatedCrash
from tests.fakes.files import FakeFileSystem
from tests.storage.engine import IDENTITY, Engine, flipped

PATH = Path("/data/ledger")
numbers_64 = st.integers(0, 2**64 - 1)
facts = st.builds(SegmentFacts, *[numbers_64] * 7)
events = st.one_of(
    st.none(),
    st.builds(Sealed, facts),
    st.builds(Progress, facts),
    st.builds(OffsetGap, numbers_64, numbers_64, st.booleans()),
    st.builds(DamagedRange, *[numbers_64] * 5),
    st.just(SyncFailure()),
)


@pytest.fixture
def disk() -> FakeFileSystem:
    disk = FakeFileSystem(random.Random(1))
    disk.plant_directory(PATH.parent)
    return disk


def read(disk: FakeFileSystem) -> LedgerReading:
    return read_ledger(disk, PATH, IDENTITY)


def created(disk: FakeFileSystem) -> Ledger:
    ledger = Ledger(disk, PATH, IDENTITY, LedgerReading(LedgerState(), 0, 0, (), exists=False))
    ledger.file.rewrite(ledger.draft_snapshot())
    return ledger


def some_facts(base: int, end: int) -> SegmentFacts:
    return SegmentFacts(base, end, 100 * (end - base), 5, 6, end - base, 1)


@given(event=events, start=numbers_64, reserved=numbers_64, time=numbers_64, epoch=numbers_64)
def test_a_record_says_what_it_was_told(event: Event | None, start: int, reserved: int, time: int, epoch: int) -> None:
    disk = FakeFileSystem(random.Random(1))
    numbers = LedgerNumbers(start_offset=start, reserved_end=reserved, last_timestamp=time, epoch=epoch)
    record = encode_record(IDENTITY, 3, numbers, event)
    assert len(record) == RECORD_SIZE
    disk.plant(PATH, record)
    reading = read(disk)
    assert (reading.state.numbers, reading.sequence, reading.problems) == (numbers, 3, ())
    expected = LedgerState()
    expected.take(numbers, event)
    expected.forget_the_past()
    assert reading.state == expected


def test_every_flipped_byte_of_a_record_is_noticed_and_the_others_count(disk: FakeFileSystem) -> None:
    records = [encode_record(IDENTITY, number, LedgerNumbers(reserved_end=number)) for number in (1, 2, 3)]
    for position in range(RECORD_SIZE):
        for number in range(3):
            damaged = [*records]
            damaged[number] = flipped(records[number], position)
            disk.plant(PATH, b"".join(damaged))
            reading = read(disk)
            assert [where for where, _ in reading.problems] == [number * RECORD_SIZE]
            assert reading.state.numbers.reserved_end == (2 if number == 2 else 3)


def test_a_file_that_ends_inside_a_record_says_so(disk: FakeFileSystem) -> None:
    records = b"".join(encode_record(IDENTITY, number, LedgerNumbers(epoch=number)) for number in (1, 2))
    for size in range(len(records) + 1):
        disk.plant(PATH, records[:size])
        reading = read(disk)
        assert reading.state.numbers.epoch == size // RECORD_SIZE
        assert bool(reading.problems) == bool(size % RECORD_SIZE)


@pytest.mark.parametrize(
    "other",
    [
        PartitionIdentity(bytes(16), IDENTITY.partition_id, IDENTITY.incarnation),
        PartitionIdentity(IDENTITY.topic_uuid, 99, IDENTITY.incarnation),
        PartitionIdentity(IDENTITY.topic_uuid, IDENTITY.partition_id, 99),
    ],
    ids=["topic", "partition", "incarnation"],
)
def test_a_record_of_another_partition_is_not_believed(disk: FakeFileSystem, other: PartitionIdentity) -> None:
    disk.plant(PATH, encode_record(other, 1, LedgerNumbers(start_offset=1000)))
    reading = read(disk)
    assert reading.state.numbers.start_offset == 0
    assert "belongs to" in reading.problems[0][1]


@given(order=st.permutations(range(6)))
def test_no_number_gets_smaller_whatever_order_the_records_come_in(order: list[int]) -> None:
    state = LedgerState()
    for number in order:
        state.take(
            LedgerNumbers(start_offset=number, reserved_end=10 - number, last_timestamp=number, epoch=number), None
        )
    assert state.numbers == LedgerNumbers(start_offset=5, reserved_end=10, last_timestamp=5, epoch=5)


def test_what_lies_below_the_start_is_forgotten() -> None:
    state = LedgerState()
    for event in (
        Sealed(some_facts(0, 10)),
        Sealed(some_facts(10, 20)),
        OffsetGap(3, 5, is_loss=True),
        OffsetGap(8, 12, is_loss=False),
        DamagedRange(0, 0, 10, 1, 3),
        DamagedRange(10, 0, 10, 11, 13),
        Progress(some_facts(0, 5)),
    ):
        state.take(LedgerNumbers(), event)
    state.take(LedgerNumbers(start_offset=10), None)
    state.forget_the_past()
    assert list(state.sealed) == [10]
    assert state.gaps == [OffsetGap(8, 12, is_loss=False)]
    assert state.damages == [DamagedRange(10, 0, 10, 11, 13)]
    assert state.progress is None


def test_what_was_appended_is_read_back(disk: FakeFileSystem) -> None:
    ledger = created(disk)
    ledger.file.append(ledger.note(Sealed(some_facts(0, 10)), last_timestamp=77), sync=True)
    ledger.file.append(ledger.note(reserved_end=500), sync=False)
    ledger.file.append(ledger.note(Progress(some_facts(10, 12))), sync=False)
    disk.kill()
    reading = read(disk)
    assert reading.state == ledger.state
    assert reading.record_count == 4
    assert reading.state.numbers == LedgerNumbers(reserved_end=500, last_timestamp=77)


def test_a_synced_record_survives_every_power_cut() -> None:
    for seed in range(50):
        disk = FakeFileSystem(random.Random(seed))
        disk.plant_directory(PATH.parent)
        ledger = created(disk)
        for number in range(1, 4):
            ledger.file.append(ledger.note(reserved_end=100 * number), sync=True)
        ledger.file.append(ledger.note(reserved_end=1000), sync=False)
        disk.power_cut()
        assert read(disk).state.numbers.reserved_end in (300, 1000)


@pytest.mark.parametrize("take", [None, 1, 100, 255])
def test_a_record_that_does_not_fit_on_the_disk_is_covered_by_the_next_one(
    disk: FakeFileSystem, take: int | None
) -> None:
    ledger = created(disk)
    plan = FaultPlan().fail("write_at", errno.ENOSPC, call=1 if take is None else 2)
    disk.plan = plan if take is None else plan.shorten(take=take)
    with pytest.raises(DiskFull):
        ledger.file.append(ledger.note(reserved_end=100), sync=True)
    disk.plan = FaultPlan()
    ledger.file.append(ledger.note(epoch=1), sync=True)
    reading = read(disk)
    assert reading.problems == ()
    assert reading.state.numbers.epoch == 1


def test_a_refused_record_that_lacks_nothing_but_zeros_does_not_come_back_after_a_power_cut(
    disk: FakeFileSystem,
) -> None:
    ledger = created(disk)
    disk.plan = FaultPlan().shorten(take=RECORD_SIZE - 8).fail("write_at", errno.ENOSPC, call=2)
    with pytest.raises(DiskFull):
        ledger.file.append(ledger.draft(start_offset=50, epoch=1), sync=True)
    disk.plan = FaultPlan()
    # The file grows again, and what it holds there may be zeros.
    ledger.file.append(ledger.note(reserved_end=100), sync=False)
    starts = set()
    for number in range(3000):
        other = disk.clone(random.Random(number))
        other.power_cut()
        starts.add(read(other).state.numbers.start_offset)
    assert starts == {0}


def test_a_failed_sync_is_an_error(disk: FakeFileSystem) -> None:
    ledger = created(disk)
    disk.plan = FaultPlan().fail("sync", errno.EIO)
    with pytest.raises(StorageFailure):
        ledger.file.append(ledger.note(reserved_end=100), sync=True)


def test_a_ledger_of_mostly_history_is_written_anew_and_says_the_same(disk: FakeFileSystem) -> None:
    ledger = created(disk)
    for event in (
        Sealed(some_facts(0, 10)),
        OffsetGap(10, 12, is_loss=True),
        DamagedRange(0, 0, 10, 1, 3),
        Progress(some_facts(12, 15)),
    ):
        ledger.file.append(ledger.note(event), sync=False)
    while not ledger.is_wasteful:
        ledger.file.append(ledger.note(*[Progress(some_facts(12, 15))] * 1000), sync=False)
    before = ledger.state
    ledger.file.rewrite(ledger.draft_snapshot())
    assert len(disk.contents(PATH)) == 4 * RECORD_SIZE
    reading = read(disk)
    assert reading.state == before
    assert reading.problems == ()


def test_the_new_ledger_or_the_old_one_survives_a_power_cut_during_the_rewrite() -> None:
    for seed in range(50):
        disk = FakeFileSystem(random.Random(seed))
        disk.plant_directory(PATH.parent)
        ledger = created(disk)
        ledger.file.append(ledger.note(Sealed(some_facts(0, 10)), reserved_end=70), sync=True)
        disk.plan = FaultPlan().crash_at(random.Random(seed).randrange(1, 7))
        with contextlib.suppress(SimulatedCrash):
            ledger.file.rewrite(ledger.draft_snapshot())
        disk.plan = FaultPlan()
        disk.power_cut()
        reading = read(disk)
        assert (reading.state.numbers.reserved_end, list(reading.state.sealed)) == (70, [0])


def test_a_failed_sync_is_remembered_by_the_ledger_and_doubted_by_the_next_start() -> None:
    engine = Engine()
    engine.fill(2)
    engine.disk.plan = FaultPlan().fail("sync", errno.EIO, name="*.log")
    with pytest.raises(AssertionError):
        engine.sync()
    engine.disk.plan = FaultPlan()
    engine.upkeep()
    assert engine.log.failure is not None
    assert read_ledger(engine.disk, engine.ledger_path, IDENTITY).state.sync_failed
    engine.upkeep()
    assert engine.log.marks.synced.offset == 0
