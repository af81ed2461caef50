"""Stored consumer offsets: cheap to update, bounded in number, and never further than what was stored."""

import errno
import random
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from courser.errors import (
    ConsumerOffsetNotFound,
    DiskFull,
    ErrorCode,
    InvalidOffset,
    StorageFailure,
    TooManyConsumerOffsets,
)
from courser.model.identifiers import ConsumerKind
from courser.storage.files import File
from courser.storage.jobs import perform
from courser.storage.offset_table import (
    GRANULE,
    HEADER_SIZE,
    ConsumerKey,
    OffsetsProblem,
    OffsetTable,
    encode_store,
    read_offsets,
)
from courser.storage.recovery_cases import StopKind
from courser.storage.settings import EngineLimits
from courser.storage.upkeep import plan_purge, plan_upkeep
from tests.fakes.faults import FaultPlan
from tests.fakes.files import FakeFileSystem
from tests.storage.engine import IDENTITY, SMALL, Engine

PATH = Path("/data/offsets")
ONE = ConsumerKey(ConsumerKind.CONSUMER, b"\x01\x00\x00\x00")
GROUP = ConsumerKey(ConsumerKind.GROUP, b"\x01\x00\x00\x00")
LONG = ConsumerKey(ConsumerKind.CONSUMER, b"n" * 255)

keys = st.builds(ConsumerKey, st.sampled_from(ConsumerKind), st.binary(min_size=1, max_size=60))


def nowhere(_file: File, _start: int, _end: int) -> None:
    """These tests look at what is left, not at what is kept aside."""


@pytest.fixture
def disk() -> FakeFileSystem:
    disk = FakeFileSystem(random.Random(1))
    disk.plant_directory(PATH.parent)
    return disk


def load(disk: FakeFileSystem, epoch: int, stop: StopKind) -> tuple[OffsetTable, tuple[OffsetsProblem, ...]]:
    return OffsetTable.load(disk, PATH, IDENTITY, epoch, stop, mark=None, keep_aside=nowhere, set_aside=disk.unlink)


def table_on(disk: FakeFileSystem, epoch: int = 0, stop: StopKind = StopKind.CLEAN) -> OffsetTable:
    table, problems = load(disk, epoch, stop)
    assert problems == ()
    return table


def sync(table: OffsetTable, disk: FakeFileSystem) -> None:
    """Sync the file and its name, as a job of the partition does."""
    file = table.begin_sync()
    if file is not None:
        file.sync()
        disk.sync_directory(PATH.parent)
    table.end_sync()


def test_what_was_stored_is_there_after_a_kill(disk: FakeFileSystem) -> None:
    table = table_on(disk)
    for key, offset in ((ONE, 5), (GROUP, 6), (LONG, 7), (ONE, 8)):
        table.store(key, offset)
    disk.kill()
    again = table_on(disk, stop=StopKind.KILLED)
    assert dict(again.items()) == {ONE: 8, GROUP: 6, LONG: 7}
    assert (len(again), again.smallest(), again.get(ONE)) == (3, 6, 8)


def test_a_consumer_and_a_group_of_one_name_are_two(disk: FakeFileSystem) -> None:
    table = table_on(disk)
    table.store(ONE, 1)
    assert table.get(GROUP) is None


def test_a_short_store_is_one_write_of_one_granule(disk: FakeFileSystem) -> None:
    table = table_on(disk)
    table.store(ONE, 1)
    before = dict(disk.calls)
    table.store(ONE, 2)
    changed = {name: count - before.get(name, 0) for name, count in disk.calls.items() if count != before.get(name, 0)}
    assert changed == {"write_at": 1}
    assert len(disk.contents(PATH)) == HEADER_SIZE + 2 * GRANULE


@given(stores=st.lists(st.tuples(keys, st.integers(0, 2**64 - 1), st.booleans()), max_size=30))
def test_any_history_is_read_back(stores: list[tuple[ConsumerKey, int, bool]]) -> None:
    disk = FakeFileSystem(random.Random(1))
    disk.plant_directory(PATH.parent)
    table = table_on(disk)
    expected: dict[ConsumerKey, int] = {}
    for key, offset, delete in stores:
        if delete and key in expected:
            table.delete(key)
            del expected[key]
        else:
            table.store(key, offset)
            expected[key] = offset
    assert dict(table.items()) == expected
    disk.kill()
    assert dict(table_on(disk, stop=StopKind.KILLED).items()) == expected


@pytest.mark.parametrize("identifier", [b"", b"x" * 257])
def test_an_identifier_has_1_to_256_bytes(identifier: bytes) -> None:
    with pytest.raises(ValueError, match="identifier"):
        ConsumerKey(ConsumerKind.CONSUMER, identifier)


# --- what has to be synced ------------------------------------------------------------------------------


def test_only_a_store_that_moves_back_must_be_synced_before_its_acknowledgement(disk: FakeFileSystem) -> None:
    table = table_on(disk)
    assert not table.store(ONE, 5)
    assert not table.store(ONE, 5)
    assert not table.store(ONE, 6)
    assert table.store(ONE, 4)


def test_what_follows_a_move_back_must_be_synced_until_a_sync_has_covered_it(disk: FakeFileSystem) -> None:
    table = table_on(disk)
    table.store(ONE, 5)
    assert table.store(ONE, 2)
    assert table.store(ONE, 3), "lost without its predecessor, it would leave 5"
    assert not table.store(GROUP, 3)
    file = table.begin_sync()
    assert file is not None
    assert table.store(ONE, 4), "that sync is not done yet"
    file.sync()
    table.end_sync()
    assert table.store(ONE, 4), "the store of 4 itself is not synced"
    sync(table, disk)
    assert not table.store(ONE, 5)


@pytest.mark.parametrize("seed", range(40))
def test_a_power_cut_only_ever_moves_a_consumer_back(seed: int) -> None:
    source = random.Random(seed)
    disk = FakeFileSystem(random.Random(seed))
    disk.plant_directory(PATH.parent)
    table = table_on(disk)
    acknowledged: dict[ConsumerKey, int | None] = {}
    synced: dict[ConsumerKey, int | None] = {}
    for _ in range(30):
        key = source.choice([ONE, GROUP, LONG])
        if acknowledged.get(key) is not None and source.random() < 0.15:
            table.delete(key)
            acknowledged[key] = None
            must_sync = True
        else:
            offset = source.randrange(100)
            must_sync = table.store(key, offset)
            acknowledged[key] = offset
        if must_sync or source.random() < 0.1:
            sync(table, disk)
            synced = dict(acknowledged)
    disk.power_cut()
    survived, _ = load(disk, 0, StopKind.CRASHED)
    for key, last in acknowledged.items():
        found = survived.get(key)
        assert (-1 if found is None else found) <= (-1 if last is None else last)
        floor = synced.get(key)
        assert (-1 if found is None else found) >= (-1 if floor is None else floor)


def test_nothing_is_to_be_synced_without_a_store(disk: FakeFileSystem) -> None:
    table = table_on(disk)
    assert table.begin_sync() is None
    table.store(ONE, 1)
    assert table.begin_sync() is not None
    assert table.begin_sync() is None


# --- deleting, and the bound ----------------------------------------------------------------------------


def test_a_deleted_consumer_is_gone_for_good(disk: FakeFileSystem) -> None:
    table = table_on(disk)
    table.store(ONE, 5)
    table.delete(ONE)
    assert table.get(ONE) is None
    with pytest.raises(ConsumerOffsetNotFound) as refusal:
        table.delete(ONE)
    assert refusal.value.code == ErrorCode.CONSUMER_OFFSET_NOT_FOUND
    disk.kill()
    assert table_on(disk, stop=StopKind.KILLED).get(ONE) is None


def test_the_number_of_consumers_is_bounded(disk: FakeFileSystem) -> None:
    table = OffsetTable(disk, PATH, IDENTITY, 0, EngineLimits(consumer_count_max=5))
    members = [ConsumerKey(ConsumerKind.CONSUMER, bytes([number])) for number in range(1, 8)]
    for key in members[:5]:
        table.store(key, 1)
    size = len(disk.contents(PATH))
    with pytest.raises(TooManyConsumerOffsets) as refusal:
        table.store(members[5], 1)
    assert refusal.value.code == ErrorCode.TOO_MANY_CONSUMER_OFFSETS
    assert len(disk.contents(PATH)) == size
    table.store(members[0], 2)
    table.delete(members[1])
    table.store(members[5], 1)
    assert len(table) == 5


def test_an_offset_that_was_never_written_cannot_be_stored() -> None:
    engine = Engine()
    with pytest.raises(InvalidOffset):
        engine.log.store_offset(ONE, 0)
    engine.fill(1)
    engine.log.store_offset(ONE, 2)
    for offset in (3, 2**64 - 1):
        with pytest.raises(InvalidOffset) as refusal:
            engine.log.store_offset(ONE, offset)
        assert refusal.value.code == ErrorCode.INVALID_OFFSET
    assert engine.log.offsets.get(ONE) == 2


# --- a full disk ----------------------------------------------------------------------------------------


def test_a_store_on_a_full_disk_is_refused_and_leaves_the_old_one(disk: FakeFileSystem) -> None:
    table = table_on(disk)
    table.store(ONE, 1)
    for take in (None, 1, 16, 31):
        plan = FaultPlan().fail("write_at", errno.ENOSPC, call=1 if take is None else 2)
        disk.plan = plan if take is None else plan.shorten(take=take)
        with pytest.raises(DiskFull):
            table.store(LONG, 2)
        assert table.get(LONG) is None
    disk.plan = FaultPlan()
    table.store(ONE, 3)
    table.store(LONG, 4)
    disk.kill()
    assert dict(table_on(disk, stop=StopKind.KILLED).items()) == {ONE: 3, LONG: 4}


def test_a_refused_store_that_lacks_nothing_but_zeros_does_not_come_back_after_a_power_cut(
    disk: FakeFileSystem,
) -> None:
    table = table_on(disk)
    table.store(ONE, 1)
    sync(table, disk)
    disk.plan = FaultPlan().shorten(take=GRANULE - 8).fail("write_at", errno.ENOSPC, call=2)
    with pytest.raises(DiskFull):
        table.store(ONE, 9)
    disk.plan = FaultPlan()
    # The file grows again, and what it holds there may be zeros: until a sync, the refused record may come back.
    assert table.store(ONE, 2), "it may be acknowledged although a power cut can move the consumer forward"
    sync(table, disk)
    found = set()
    for number in range(3000):
        other = disk.clone(random.Random(number))
        other.power_cut()
        survived, _ = load(other, 0, StopKind.CRASHED)
        found.add(survived.get(ONE))
    assert found == {2}


# --- getting rid of history -----------------------------------------------------------------------------


def wasteful(disk: FakeFileSystem) -> OffsetTable:
    table = table_on(disk)
    number = 0
    while not table.is_wasteful:
        number += 1
        table.store(ONE, number)
        table.store(GROUP, number)
    return table


def test_a_file_of_mostly_history_is_written_anew(disk: FakeFileSystem) -> None:
    table = wasteful(disk)
    before = len(disk.contents(PATH))
    expected = dict(table.items())
    table.finish_rewrite(table.write_replacement(table.begin_rewrite()))
    assert len(disk.contents(PATH)) == HEADER_SIZE + 2 * GRANULE < before
    assert not table.is_wasteful
    table.store(ONE, 10**9)
    disk.kill()
    assert dict(table_on(disk, stop=StopKind.KILLED).items()) == {**expected, ONE: 10**9}


@pytest.mark.parametrize("operation", ["open", "write_at", "sync", "rename"])
def test_a_rewrite_that_fails_leaves_the_old_file_in_use(disk: FakeFileSystem, operation: str) -> None:
    table = wasteful(disk)
    expected = dict(table.items())
    data = table.begin_rewrite()
    disk.plan = FaultPlan().fail(operation, errno.EIO)
    with pytest.raises(StorageFailure):
        table.write_replacement(data)
    table.abandon_rewrite()
    disk.plan = FaultPlan()
    table.store(ONE, 10**9)
    disk.kill()
    assert dict(table_on(disk, stop=StopKind.KILLED).items()) == {**expected, ONE: 10**9}


def test_upkeep_writes_the_file_anew_and_the_directory_is_synced_after_it() -> None:
    engine = Engine()
    engine.fill(100)
    while not engine.log.offsets.is_wasteful:
        engine.log.store_offset(ONE, 299)
    names = []
    while (job := plan_upkeep(engine.log)) is not None:
        names.append(job.name)
        assert perform(job)
    assert "offsets rewrite" in names
    assert engine.log.is_directory_unsynced
    engine.sync()
    engine.stop(StopKind.CRASHED)
    assert engine.open(StopKind.CRASHED).offsets.get(ONE) == 299
    assert len(engine.disk.contents(engine.offsets_path)) == HEADER_SIZE + GRANULE


# --- purge ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stop", list(StopKind), ids=lambda stop: stop.value)
def test_a_purge_forgets_every_consumer(stop: StopKind) -> None:
    engine = Engine()
    engine.fill(3)
    engine.log.store_offset(ONE, 4)
    assert perform(plan_purge(engine.log))
    assert engine.log.offsets.get(ONE) is None
    engine.restart(stop)
    assert engine.log.offsets.items() == []


def test_offsets_of_before_a_purge_are_void_even_if_their_file_comes_back() -> None:
    engine = Engine()
    engine.fill(3)
    engine.log.store_offset(ONE, 4)
    engine.sync()
    old = engine.disk.contents(engine.offsets_path)
    assert perform(plan_purge(engine.log))
    engine.stop()
    engine.disk.plant(engine.offsets_path, old)
    engine.open(StopKind.CRASHED)
    assert engine.log.offsets.items() == []
    assert engine.letters() == []


# --- bytes ----------------------------------------------------------------------------------------------


def test_records_behind_a_damaged_one_are_found(disk: FakeFileSystem) -> None:
    table = table_on(disk)
    for key in (ONE, LONG, GROUP):
        table.store(key, 7)
    data = bytearray(disk.contents(PATH))
    start = HEADER_SIZE + len(encode_store(ONE, 7))
    for position in range(start, start + len(encode_store(LONG, 7))):
        damaged = bytearray(data)
        damaged[position] ^= 1
        reading = read_offsets(damaged, 0, IDENTITY)
        assert [where for where, _ in reading.problems] == [start]
        assert reading.offsets == {ONE: 7, GROUP: 7}


@given(data=st.binary(max_size=300))
def test_random_bytes_are_no_offsets(data: bytes) -> None:
    reading = read_offsets(data, 0, IDENTITY)
    assert reading.offsets == {}
    assert reading.problems


def test_a_clean_stop_does_not_try_for_ever_on_a_disk_that_refuses() -> None:
    engine = Engine(replace(SMALL, limits=EngineLimits(offsets_rewrite_size=64)))
    engine.fill(4)
    for offset in range(10):
        engine.log.store_offset(ONE, offset)
    assert engine.log.offsets.is_wasteful
    engine.disk.plan = FaultPlan().fail("rename", errno.EIO, name="offsets*", onwards=True)
    engine.stop()
    engine.disk.plan = FaultPlan()
    assert engine.open(StopKind.CLEAN).offsets.get(ONE) == 9
