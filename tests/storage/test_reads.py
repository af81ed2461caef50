"""What a read gives: by offset, by time, the first, the last; limited by count and bytes; right at every border."""

import errno

import pytest
from hypothesis import given
from hypothesis import strategies as st

from courser.errors import StorageFailure
from courser.model.durability import Durability
from courser.storage.jobs import perform
from courser.storage.read_result import ReadBuffer, SkippedRange, SkipReason
from courser.storage.recovery_cases import StopKind
from courser.storage.segment_index import IndexCache
from courser.storage.settings import LogSettings
from courser.storage.upkeep import plan_purge, plan_trim
from tests.fakes.faults import FaultPlan
from tests.storage.engine import (
    ALL,
    SMALL,
    Engine,
    batch_of,
    durability,
    encoded,
    messages_of,
    numbered,
    payload_of,
    payloads,
)

LARGE = LogSettings(segment_size=8 * 1024 * 1024, index_interval=4096, reservation_min=10_000)


def offsets_of(engine: Engine, offset: int, *, count: int = ALL, size_max: int = ALL) -> list[int]:
    return [message.offset for message in engine.read(offset, count=count, size_max=size_max)]


def is_small(engine: Engine) -> bool:
    """Whether it has small batches."""
    return engine.settings.segment_size == SMALL.segment_size


@pytest.fixture(params=[False, True], ids=["same-sized", "mixed"])
def mixed(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture(
    params=[(3, "plain"), (500, "plain"), (3, "encrypted"), (500, "zstd")],
    ids=["small batches", "batches above 64 KiB", "encrypted", "compressed"],
)
def engine(request: pytest.FixtureRequest, mixed: bool) -> Engine:
    """Some batches, in several segments if they are small; the large ones are each read whole once."""
    count, encoding = request.param
    engine = Engine(encoded(SMALL if count == 3 else LARGE, encoding))
    for _ in range(40 if count == 3 else 4):
        engine.append_numbered(count, size=20 if count == 3 else 200, mixed=mixed)
        engine.clock.advance(10)
        engine.upkeep()
    for offset in range(0, engine.log.next_offset, count):
        engine.read(offset, count=count)
    return engine


@pytest.mark.parametrize("encoding", ["gzip", "encrypted"])
def test_only_a_small_batch_is_decoded_where_nobody_may_wait(encoding: str) -> None:
    engine = Engine(encoded(LARGE, encoding))
    engine.append_numbered(3, size=200)
    engine.append_numbered(500, size=200)
    assert messages_of(engine.reader.read(0, 3, ALL, wait=False)) == engine.read(0, count=3)
    with pytest.raises(BlockingIOError):
        engine.reader.read(3, 10, ALL, wait=False)
    # Once a part of it was read, the rest is at hand.
    assert len(engine.read(3, count=10)) == 10
    assert len(messages_of(engine.reader.read(13, 10, ALL, wait=False))) == 10


# --- nothing there --------------------------------------------------------------------------------------


def test_an_empty_partition_has_no_messages() -> None:
    engine = Engine()
    for offset in (0, 1, 2**63):
        result = engine.reader.read(offset, count=10, size_max=1000)
        assert messages_of(result) == []
        assert (result.next_offset, result.skipped) == (offset, ())
    assert engine.reader.offset_at_time(0) == 0
    assert engine.reader.offset_of_last(10) == 0
    assert (engine.log.next_offset, engine.log.size, engine.log.message_count) == (0, 0, 0)


def test_a_count_of_zero_gives_nothing() -> None:
    engine = Engine()
    engine.fill(5)
    for offset in (0, 7, 15, 100):
        result = engine.reader.read(offset, count=0, size_max=ALL)
        assert (result.message_count, result.next_offset, result.pieces) == (0, offset, ())


def test_beyond_the_end_there_is_nothing_yet() -> None:
    engine = Engine()
    engine.fill(5)
    for offset in (15, 16, 2**64 - 1):
        result = engine.reader.read(offset, count=10, size_max=ALL)
        assert (result.message_count, result.next_offset, result.skipped) == (0, offset, ())
    engine.fill(1)
    assert offsets_of(engine, 15) == [15, 16, 17]


# --- by offset ------------------------------------------------------------------------------------------


def test_every_offset_is_found(engine: Engine, mixed: bool) -> None:
    step = 1 if is_small(engine) else 37
    size = 20 if is_small(engine) else 200
    for offset in range(0, engine.log.next_offset, step):
        (message,) = engine.read(offset, count=1)
        assert (message.offset, message.payload) == (offset, payload_of(offset, size=size, mixed=mixed))


def test_any_count_is_kept_exactly(engine: Engine) -> None:
    end = engine.log.next_offset
    step = 5 if is_small(engine) else 499
    for first in range(0, end, step):
        for count in (1, 2, 3, 4, 7, 50, 499, 500, 501, 2**32 - 1):
            assert offsets_of(engine, first, count=count) == list(range(first, min(first + count, end)))


def test_a_size_limit_is_kept_and_used(engine: Engine) -> None:
    """Never more bytes than asked for, unless it is a single message; and never so little that one more had fitted."""
    end = engine.log.next_offset
    for first in (0, 1, 4, end // 2, end - 2):
        for size_max in (-1, 0, 1, 255, 256, 400, 1000, 3000, 70_000, 150_000, 10**6):
            result = engine.reader.read(first, count=ALL, size_max=size_max)
            messages = messages_of(result)
            assert [message.offset for message in messages] == list(range(first, first + len(messages)))
            assert messages
            if result.size > size_max:
                assert len(messages) == 1
            following = first + len(messages)
            if following < end and following % (3 if is_small(engine) else 500):
                # The next message is in the same batch: it needs no header of its own.
                (next_one,) = engine.read(following, count=1)
                frame = 48 + len(next_one.payload) + len(next_one.user_headers)
                assert result.size + frame > size_max or engine.settings is not SMALL


def test_small_reads_behind_one_another_give_everything_once(engine: Engine) -> None:
    for count, size_max in ((1, ALL), (7, ALL), (ALL, 700), (ALL, 90_000), (101, 5000)):
        offset = 0
        seen: list[int] = []
        while offset < engine.log.next_offset:
            result = engine.reader.read(offset, count=count, size_max=size_max)
            seen += [message.offset for message in messages_of(result)]
            assert result.next_offset == seen[-1] + 1
            offset = result.next_offset
        assert seen == list(range(engine.log.next_offset))


def test_a_message_larger_than_the_limit_is_given_alone() -> None:
    engine = Engine(LARGE)
    engine.append(batch_of(b"small", b"x" * 300_000, b"y" * 90_000, b"z"))
    for _ in range(2):  # before the batch is known as checked, and after
        assert offsets_of(engine, 1, size_max=1000) == [1]
        assert offsets_of(engine, 2, size_max=1000) == [2]
        assert offsets_of(engine, 0, size_max=1000) == [0]
        assert offsets_of(engine, 1, size_max=300_000) == [1]
        assert offsets_of(engine, 1, size_max=500_000) == [1, 2, 3]
    assert [len(message.payload) for message in engine.read(0)] == [5, 300_000, 90_000, 1]


@pytest.mark.parametrize("mixed", [True, False])
def test_a_large_batch_that_does_not_fit_behind_others_is_left_for_the_next_read(mixed: bool) -> None:
    engine = Engine(LARGE)
    for number in range(6):
        engine.append(numbered(100 * number, 100, size=1000, mixed=mixed))
    batch_size = engine.reader.read(0, count=100, size_max=ALL).size
    assert batch_size > 64 * 1024
    offset, read = 0, engine.reader.counters.size
    while offset < engine.log.next_offset:
        result = engine.reader.read(offset, count=ALL, size_max=batch_size * 5 // 2)
        assert result.message_count == 200
        offset = result.next_offset
    # Nothing was read twice, but for what lies behind the second batch in the same block.
    assert engine.reader.counters.size - read < 6 * batch_size * 5 // 4 + 3 * 256


def test_a_large_batch_is_cut_if_no_read_could_have_it_whole() -> None:
    engine = Engine(LARGE)
    engine.append(numbered(0, 1, size=1000))
    engine.append(numbered(1, 100, size=1000))
    offsets = offsets_of(engine, 0, size_max=70_000)
    assert offsets == list(range(len(offsets)))
    assert len(offsets) > 60


@given(sizes=st.lists(st.integers(0, 3000), min_size=1, max_size=60), data=st.data())
def test_any_read_of_any_log_is_a_stretch_of_what_was_written(sizes: list[int], data: st.DataObject) -> None:
    engine = Engine(LogSettings(segment_size=20_000, index_interval=512, reservation_min=1000))
    written: list[bytes] = []
    while sizes:
        count = data.draw(st.integers(1, len(sizes)))
        batch, sizes = sizes[:count], sizes[count:]
        texts = [bytes([len(written) + number & 0xFF]) * size for number, size in enumerate(batch)]
        engine.append(batch_of(*texts))
        written += texts
        if data.draw(st.booleans()):
            engine.upkeep()
    for _ in range(5):
        offset = data.draw(st.integers(0, len(written) - 1))
        count = data.draw(st.integers(1, 70))
        size_max = data.draw(st.integers(0, 100_000))
        result = engine.reader.read(offset, count=count, size_max=size_max)
        found = payloads(messages_of(result))
        assert found == written[offset : offset + len(found)]
        assert 1 <= len(found) <= count
        assert result.size <= size_max or len(found) == 1


def test_results_stay_whole_while_their_buffer_is_not_reset() -> None:
    engine = Engine(LARGE)
    for _ in range(4):
        engine.append_numbered(100, size=100)
    buffer = ReadBuffer()
    first = engine.reader.read(0, count=150, size_max=ALL, buffer=buffer)
    copy = b"".join(first.pieces)
    second = engine.reader.read(150, count=150, size_max=ALL, buffer=buffer)
    assert b"".join(first.pieces) == copy
    assert [message.offset for message in messages_of(first)] == list(range(150))
    assert [message.offset for message in messages_of(second)] == list(range(150, 300))
    buffer.used = 0
    again = engine.reader.read(7, count=300, size_max=ALL, buffer=buffer)
    assert [message.offset for message in messages_of(again)] == list(range(7, 307))


def test_a_short_read_of_the_disk_is_no_short_answer() -> None:
    engine = Engine(LARGE)
    engine.append_numbered(50, size=100)
    engine.disk.plan = FaultPlan().shorten("read_at", take=333, onwards=True)
    assert offsets_of(engine, 3) == list(range(3, 50))


# --- segments, trimmed and reserved ---------------------------------------------------------------------


def test_a_read_goes_across_segments() -> None:
    engine = Engine(SMALL)
    engine.fill(40)
    assert len(engine.log.segments) > 3
    assert offsets_of(engine, 0) == list(range(120))
    border = engine.log.segments[1].base_offset
    assert offsets_of(engine, border - 1, count=2) == [border - 1, border]
    assert offsets_of(engine, border, count=1) == [border]


def test_below_the_first_offset_a_read_begins_at_it_and_says_so() -> None:
    engine = Engine(SMALL)
    engine.fill(40)
    engine.upkeep()
    border = engine.log.segments[2].base_offset
    job = plan_trim(engine.log, border)
    assert job is not None
    assert perform(job)
    assert engine.log.start_offset == border
    for offset in (0, 1, border - 1):
        result = engine.reader.read(offset, count=1, size_max=ALL)
        assert [message.offset for message in messages_of(result)] == [border]
        assert result.skipped == (SkippedRange(offset, border, SkipReason.TRIMMED),)
    assert offsets_of(engine, border, count=1) == [border]


def test_after_a_purge_there_is_nothing_and_numbering_goes_on() -> None:
    engine = Engine(SMALL)
    engine.fill(10)
    assert perform(plan_purge(engine.log))
    assert engine.read_all()[0] == []
    assert (engine.log.start_offset, engine.log.next_offset) == (30, 30)
    engine.fill(1)
    result = engine.reader.read(0, count=10, size_max=ALL)
    assert [message.offset for message in messages_of(result)] == [30, 31, 32]
    assert result.skipped == (SkippedRange(0, 30, SkipReason.TRIMMED),)


def test_the_gap_of_a_reserved_block_is_passed_over_in_the_middle_of_a_read() -> None:
    engine = Engine(SMALL)
    engine.fill(2)
    engine.sync()
    engine.restart(StopKind.CRASHED)
    next_offset = engine.log.next_offset
    assert next_offset > 6
    engine.fill(1)
    result = engine.reader.read(4, count=ALL, size_max=ALL)
    assert [message.offset for message in messages_of(result)] == [4, 5, next_offset, next_offset + 1, next_offset + 2]
    assert result.skipped == (SkippedRange(6, next_offset, SkipReason.RESERVED),)
    for offset in (6, 10, next_offset - 1):
        result = engine.reader.read(offset, count=1, size_max=ALL)
        assert [message.offset for message in messages_of(result)] == [next_offset]
        assert result.skipped == (SkippedRange(offset, next_offset, SkipReason.RESERVED),)


def test_a_gap_at_the_end_is_passed_only_when_something_follows() -> None:
    engine = Engine(SMALL)
    engine.fill(2)
    engine.sync()
    engine.restart(StopKind.CRASHED)
    result = engine.reader.read(6, count=10, size_max=ALL)
    assert (result.message_count, result.next_offset) == (0, 6)
    assert engine.log.visible_end > engine.log.readable_end == 6


def test_gaps_of_several_crashes_at_the_end_hold_no_messages() -> None:
    engine = Engine(SMALL)
    engine.fill(2)
    engine.sync()
    for _ in range(3):
        engine.restart(StopKind.CRASHED)
        assert engine.log.readable_end == 6
    engine.fill(1)
    assert engine.log.readable_end == engine.log.visible_end


# --- by time --------------------------------------------------------------------------------------------


def test_a_time_leads_to_the_first_message_not_older(engine: Engine) -> None:
    messages = engine.read(0)
    times = sorted({message.timestamp for message in messages})
    for time in times:
        first = next(message.offset for message in messages if message.timestamp >= time)
        for wanted in (time, time - 1, time - 9):
            assert engine.reader.offset_at_time(wanted) == first
    assert engine.reader.offset_at_time(0) == 0
    assert engine.reader.offset_at_time(times[-1] + 1) == engine.log.next_offset
    assert engine.reader.offset_at_time(2**64 - 1) == engine.log.next_offset


def test_of_many_batches_of_one_time_the_first_is_found() -> None:
    engine = Engine(SMALL)
    engine.fill(5)
    time = engine.clock.now()
    for _ in range(30):
        engine.append_numbered(3)
    engine.clock.advance(1)
    engine.fill(5)
    engine.upkeep()
    assert engine.reader.offset_at_time(time) == 15
    assert engine.reader.offset_at_time(time + 1) == 105


# --- the last -------------------------------------------------------------------------------------------


def test_the_last_messages_are_counted_from_the_end(engine: Engine) -> None:
    end = engine.log.next_offset
    for count in (1, 2, 3, 4, 50, end - 1, end, end + 1, 2**32 - 1):
        assert engine.reader.offset_of_last(count) == max(end - count, 0)


def test_reserved_offsets_do_not_count_among_the_last() -> None:
    engine = Engine(SMALL)
    engine.fill(2)
    engine.sync()
    engine.restart(StopKind.CRASHED)
    first_behind = engine.log.next_offset
    engine.fill(1)
    assert engine.reader.offset_of_last(1) == first_behind + 2
    assert engine.reader.offset_of_last(3) == first_behind
    assert engine.reader.offset_of_last(4) == 5
    assert engine.reader.offset_of_last(9) == 0
    assert len(engine.read(engine.reader.offset_of_last(4))) == 4


# --- what is visible ------------------------------------------------------------------------------------


def test_at_synced_a_read_ends_where_the_sync_ended() -> None:
    engine = Engine(LogSettings(segment_size=4096, durability=durability(Durability.SYNCED)))
    engine.fill(3)
    assert engine.log.visible_end == 0
    assert offsets_of(engine, 0) == []
    assert engine.reader.offset_of_last(5) == 0
    engine.sync()
    engine.fill(20)
    assert offsets_of(engine, 0) == list(range(9))
    assert offsets_of(engine, 8) == [8]
    assert offsets_of(engine, 9) == []
    assert engine.reader.offset_of_last(2) == 7
    engine.sync()
    assert offsets_of(engine, 0) == list(range(69))


@pytest.mark.parametrize("level", [Durability.WRITTEN, Durability.BOUNDED])
def test_below_synced_a_read_sees_what_is_written(level: Durability) -> None:
    engine = Engine(LogSettings(durability=durability(level)))
    engine.fill(3)
    assert offsets_of(engine, 0) == list(range(9))


# --- without waiting ------------------------------------------------------------------------------------


@pytest.mark.parametrize("cache", list(IndexCache))
def test_a_read_that_may_not_wait_refuses_cold_data_and_never_guesses(cache: IndexCache) -> None:
    settings = LogSettings(segment_size=4096, index_interval=256, index_cache=cache)
    engine = Engine(settings)
    engine.fill(40)
    engine.upkeep()
    engine.restart()
    engine.disk.cold = True
    for offset in range(0, 120, 7):
        with pytest.raises(BlockingIOError):
            engine.reader.read(offset, count=5, size_max=ALL, wait=False)
        with pytest.raises(BlockingIOError):
            engine.reader.offset_at_time(engine.clock.now() - 200, wait=False)
        assert offsets_of(engine, offset, count=5) == list(range(offset, min(offset + 5, 120)))
    engine.disk.cold = False
    for offset in range(0, 120, 7):
        result = engine.reader.read(offset, count=5, size_max=ALL, wait=False)
        assert [message.offset for message in messages_of(result)] == list(range(offset, min(offset + 5, 120)))


def test_a_read_that_may_not_wait_does_not_search_behind_a_damage() -> None:
    engine = Engine(LARGE)
    engine.fill(5)
    data = bytearray(engine.disk.contents(engine.log_path()))
    data[300] ^= 1
    engine.disk.plant(engine.log_path(), data)
    with pytest.raises(BlockingIOError):
        engine.reader.read(0, count=5, size_max=ALL, wait=False)
    assert engine.log.segments[0].damages == ()
    assert offsets_of(engine, 0) == list(range(3, 15))
    result = engine.reader.read(0, count=5, size_max=ALL, wait=False)
    assert [message.offset for message in messages_of(result)] == list(range(3, 8))


def test_cold_data_behind_warm_data_is_not_taken_for_damage() -> None:
    """The kernel has the first pages and not the rest: a part came, and the next call would have to wait."""
    engine = Engine(LARGE)
    engine.append_numbered(100, size=100)
    engine.disk.plan = FaultPlan().shorten("read_at", take=4096).fail("read_at", errno.EAGAIN, call=2)
    with pytest.raises(BlockingIOError):
        engine.reader.read(0, count=ALL, size_max=ALL, wait=False)
    engine.disk.plan = FaultPlan()
    assert engine.log.segments[0].damages == ()
    assert offsets_of(engine, 0) == list(range(100))


@pytest.mark.parametrize("cache", list(IndexCache))
def test_a_disk_that_cannot_be_read_is_an_error_and_not_an_empty_answer(cache: IndexCache) -> None:
    engine = Engine(LogSettings(segment_size=4096, index_interval=256, index_cache=cache))
    engine.fill(40)
    engine.upkeep()
    engine.restart()
    engine.disk.plan = FaultPlan().fail("read_at", errno.EIO, name="*.log", onwards=True)
    with pytest.raises(StorageFailure):
        engine.reader.read(50, count=5, size_max=ALL)
    engine.disk.plan = FaultPlan()
    assert all(segment.damages == () for segment in engine.log.segments)
    assert offsets_of(engine, 50, count=5) == list(range(50, 55))


def test_an_index_that_cannot_be_read_is_done_without() -> None:
    engine = Engine(LogSettings(segment_size=4096, index_interval=256, index_cache=IndexCache.NONE))
    engine.fill(40)
    engine.upkeep()
    engine.restart()
    engine.disk.plan = FaultPlan().fail("read_at", errno.EIO, name="*.index", onwards=True)
    for offset in range(0, 120, 9):
        assert offsets_of(engine, offset, count=2) == [offset, offset + 1]


# --- limits of the files --------------------------------------------------------------------------------


def test_a_partition_with_many_segments_keeps_few_files_open() -> None:
    engine = Engine(LogSettings(segment_size=600, open_file_count_max=4))
    for _ in range(30):
        engine.append_numbered(3)
        engine.upkeep()
    engine.restart()
    assert len(engine.log.segments) == 30
    opened = engine.disk.calls["open"]
    assert offsets_of(engine, 0) == list(range(90))
    assert len(engine.log.files._open) <= 4
    assert engine.disk.calls["open"] - opened <= 2 * 30


def test_a_segment_holds_one_batch_larger_than_itself() -> None:
    engine = Engine(LogSettings(segment_size=1000))
    engine.append(numbered(0, 100, size=100))
    engine.append(numbered(100, 1))
    assert [segment.base_offset for segment in engine.log.segments] == [0, 100]
    assert offsets_of(engine, 99) == [99, 100]


def test_appending_a_batch_leaves_it_as_it_was() -> None:
    engine = Engine()
    batch = batch_of(b"a", b"b")
    before = bytes(batch.body)
    engine.append(batch)
    engine.append(batch)
    assert bytes(batch.body) == before
    assert payloads(engine.read(0)) == [b"a", b"b", b"a", b"b"]


# --- what a read expects to need -----------------------------------------------------------------------


def batches_of_many_sizes(count: int) -> Engine:
    engine = Engine(LARGE)
    for number in range(count):
        engine.append(numbered(10 * number, 10, size=20 + 37 * (number % 5)))
    return engine


def test_a_sequential_reader_reads_what_it_asks_for_and_the_next_header() -> None:
    engine = batches_of_many_sizes(20)
    first = engine.reader.read(0, count=10, size_max=ALL)
    read, offset = engine.reader.counters.size, first.next_offset
    while offset < engine.log.next_offset:
        result = engine.reader.read(offset, count=10, size_max=ALL)
        assert result.message_count == 10
        is_last = result.next_offset == engine.log.next_offset
        if offset > 10:
            assert engine.reader.counters.size - read == result.size + (0 if is_last else 256)
        read, offset = engine.reader.counters.size, result.next_offset


@pytest.mark.parametrize("position", [32, 34, 39, 48])
def test_a_header_that_claims_nonsense_misleads_no_reader(position: int) -> None:
    engine = batches_of_many_sizes(4)
    sizes = [engine.reader.read(10 * number, count=10, size_max=ALL).size for number in range(4)]
    file = engine.log.segments[0].file
    assert file is not None
    file.write_at(sizes[0] + sizes[1] + position, [b"\xff"])
    engine.reader.read(0, count=10, size_max=1_000_000)
    assert [message.offset for message in engine.read(10, count=10)] == list(range(10, 20))
    # Of the damaged batch only the claims are known; the read passes over it.
    assert [message.offset for message in engine.read(20, count=10)] == list(range(30, 40))
