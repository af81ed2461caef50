"""Large batches: read and appended in steps that an owner can leave to another thread, with the same results."""

import errno
from dataclasses import replace

import pytest

from courser.errors import DiskFull, PartitionReadOnly
from courser.records.batch import Batch
from courser.records.stored_body import encode
from courser.records.stored_header import NO_PRODUCER
from courser.storage.jobs import Job, perform
from courser.storage.partition_log import Appended
from courser.storage.read_result import LargeRead, MemoryNeeded, ReadBuffer
from courser.storage.recovery_cases import StopKind
from courser.storage.settings import EngineLimits
from courser.storage.upkeep import plan_reservation
from tests.fakes.faults import FaultPlan
from tests.storage.engine import ALL, ENCODINGS, SMALL, Engine, batch_of, encoded, messages_of, numbered, payloads

INLINE_SIZE = 1000
SETTINGS = replace(SMALL, segment_size=100_000, limits=EngineLimits(inline_size=INLINE_SIZE, large_batch_size=500))
LARGE, LARGE_SIZE = 50, 900
"""The offset and the bytes of the payload of a large message."""


@pytest.fixture
def engine() -> Engine:
    """50 small messages in a batch, a large one, and a small one."""
    engine = Engine(SETTINGS)
    engine.append(numbered(0, 50))
    engine.append(numbered(LARGE, 1, size=LARGE_SIZE))
    engine.append(numbered(51, 1))
    return engine


# --- reads ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("offset", "count"), [(0, 50), (0, 20), (LARGE, 1), (0, ALL)])
def test_a_read_of_much_is_left_to_another_thread(engine: Engine, offset: int, count: int) -> None:
    for _ in range(2):
        with pytest.raises(LargeRead):
            engine.reader.read(offset, count, ALL, wait=False)
        # The second time, the batch is known to be good, and is read in another way.
        assert engine.reader.read(offset, count, ALL).message_count == min(count, 52)
    assert engine.reader.read(51, 1, ALL, wait=False).message_count == 1


@pytest.mark.parametrize("wait", [False, True])
def test_a_read_says_how_much_memory_the_first_message_needs_before_it_takes_it(engine: Engine, wait: bool) -> None:
    buffer = ReadBuffer(64)
    buffer.piece_size_max = 800
    for _ in range(2):
        with pytest.raises(MemoryNeeded) as needed:
            engine.reader.read(LARGE, 1, 100, buffer, wait)
        assert LARGE_SIZE < needed.value.size < LARGE_SIZE + 1000
        enough = ReadBuffer(64)
        enough.piece_size_max = needed.value.size
        assert payloads(messages_of(engine.reader.read(LARGE, 1, 100, enough))) == [
            b"message 50 ".ljust(LARGE_SIZE, b".")
        ]


def test_what_fits_is_given_before_a_message_that_needs_more_memory() -> None:
    engine = Engine(SETTINGS)
    engine.append(numbered(0, 2))
    engine.append(numbered(2, 1, size=LARGE_SIZE))
    buffer = ReadBuffer(64)
    buffer.piece_size_max = 600
    assert [message.offset for message in messages_of(engine.reader.read(0, 3, 600, buffer))] == [0, 1]


def test_a_read_ends_before_a_message_of_a_large_batch_that_does_not_fit_with_a_header() -> None:
    engine = Engine(replace(SETTINGS, index_interval=100))
    engine.append(numbered(0, 99, size=1))
    engine.append(batch_of(b"a"))
    engine.append(batch_of(b"b" * 500, b"c" * 3000))
    # A part of the batch: from now on it is known to be good.
    assert engine.reader.read(100, 1, 100).message_count == 1
    # The message would fit, but not behind a header of 256 bytes.
    only_one = 256 + 48 + 1
    for size_max in range(only_one + 100, only_one + 256 + 548, 50):
        assert engine.reader.read(99, 3, size_max).message_count == 1
    assert engine.reader.read(99, 3, only_one + 256 + 548).message_count == 2


def test_a_message_behind_others_in_a_large_batch_is_found_with_one_larger_read() -> None:
    engine = Engine(replace(SETTINGS, index_interval=100_000))
    engine.append(batch_of(b"a" * 30, b"b" * 30, b"c" * 3000, b"d" * 2000))
    assert engine.reader.read(0, 1, 100).message_count == 1
    before = engine.reader.counters.size
    assert payloads(messages_of(engine.reader.read(2, 1, 100))) == [b"c" * 3000]
    assert engine.reader.counters.size - before < 2 * 5000


# --- appends --------------------------------------------------------------------------------------------


def planned(engine: Engine, batch: Batch) -> tuple[Job, list[Appended]]:
    found: list[Appended] = []
    if engine.log.needs_reservation(batch.count):
        reservation = plan_reservation(engine.log, batch.count)
        assert reservation is not None
        assert perform(reservation)
    return engine.log.plan_append(batch, NO_PRODUCER, 0, 0, found.append), found


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_job_writes_what_an_append_writes(encoding: str) -> None:
    one, other = Engine(encoded(SETTINGS, encoding)), Engine(encoded(SETTINGS, encoding))
    batch = numbered(0, 30, mixed=True)
    appended = one.append(batch)
    job, found = planned(other, encode(batch, other.settings.encoding))
    assert perform(job)
    assert found == [appended]
    assert other.log.marks.written == one.log.marks.written
    assert payloads(messages_of(other.reader.read(0, ALL, ALL))) == payloads(messages_of(one.reader.read(0, ALL, ALL)))


def test_nobody_sees_a_batch_before_its_job_is_complete(engine: Engine) -> None:
    marks, read = engine.log.marks.written, engine.reader.read(0, ALL, ALL)
    job, found = planned(engine, numbered(52, 3))
    job.run()
    assert (engine.log.marks.written, engine.reader.read(0, ALL, ALL), found) == (marks, read, [])
    job.complete()
    assert found == [Appended(52, 3, found[0].timestamp)]
    assert len(messages_of(engine.reader.read(0, ALL, ALL))) == 55


def test_the_open_segment_stays_open_while_a_job_appends_to_it(engine: Engine) -> None:
    job, _ = planned(engine, numbered(52, 3))
    engine.clock.advance(10**13)
    engine.log.follow_clock()
    assert perform(job)
    assert engine.log.open_segment is not None
    assert engine.log.open_segment.end_offset == 55


@pytest.mark.parametrize("is_whole", [True, False])
def test_a_kill_before_a_job_is_complete_leaves_a_whole_batch_or_none(engine: Engine, is_whole: bool) -> None:
    job, _ = planned(engine, numbered(52, 3))
    job.run()
    if not is_whole:
        engine.disk.open(engine.log_path(), writable=True).truncate(engine.log.segments[0].size + 300)
    engine.restart(StopKind.KILLED)
    assert len(messages_of(engine.reader.read(0, ALL, ALL))) == (55 if is_whole else 52)


def test_a_full_disk_refuses_a_job_and_heals(engine: Engine) -> None:
    job, found = planned(engine, numbered(52, 3))
    engine.disk.plan = FaultPlan().shorten(take=300, name="*.log").fail("write_at", errno.ENOSPC, call=2, name="*.log")
    with pytest.raises(DiskFull) as refusal:
        job.run()
    job.fail(refusal.value)
    assert (found, engine.log.failure) == ([], None)
    engine.disk.plan = FaultPlan()
    engine.append(numbered(52, 3))
    assert len(engine.read(0)) == 55


def test_a_disk_that_cannot_write_a_job_ends_all_writes(engine: Engine) -> None:
    job, found = planned(engine, numbered(52, 3))
    engine.disk.plan = FaultPlan().fail("write_at", errno.EIO, name="*.log")
    assert not perform(job)
    assert not found
    with pytest.raises(PartitionReadOnly):
        engine.append(numbered(52, 3))


def test_after_a_failure_a_job_acknowledges_nothing(engine: Engine) -> None:
    job, found = planned(engine, numbered(52, 3))
    job.run()
    engine.log.fail("it was deleted")
    job.complete()
    assert not found
    with pytest.raises(PartitionReadOnly):
        planned(engine, numbered(52, 3))
