"""The index: leads to within an interval of any message, is derived from the log, and is never believed over it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from courser.model.durability import Durability
from courser.records.stored_header import PartitionIdentity
from courser.storage import upkeep
from courser.storage.index_entries import IndexEntries, IndexEntry
from courser.storage.index_file import BLOCK_SIZE, ENTRIES_PER_BLOCK, BadIndex, IndexFile, segment_seed
from courser.storage.read_result import SkipReason
from courser.storage.recovery_cases import StopKind
from courser.storage.segment import SegmentState
from courser.storage.segment_index import IndexCache, SegmentIndex
from courser.storage.settings import EngineLimits, LogSettings
from tests.storage.engine import IDENTITY, Engine, batch_of, durability, flipped, numbered

every_cache = pytest.mark.parametrize("cache", list(IndexCache), ids=lambda cache: cache.value)
INTERVAL = 64
"""Bytes: several entries in a batch of a few messages, several blocks in a small segment."""
LIMITS = EngineLimits(index_flush_block_count=16)
"""A segment of a megabyte reaches the first flush."""


def settings_of(cache: IndexCache = IndexCache.OPEN_SEGMENT, segment_size: int = 10**6) -> LogSettings:
    return LogSettings(
        segment_size=segment_size, index_interval=INTERVAL, index_cache=cache, reservation_min=10_000, limits=LIMITS
    )


def implied_entries(engine: Engine, base_offset: int = 0, interval: int = INTERVAL) -> list[IndexEntry]:
    """What the index of a segment has to hold, worked out frame by frame from the bytes of the log."""
    data = engine.disk.contents(engine.log_path(base_offset))
    entries = []
    last_cell = -1
    for start, end in zip(engine.batch_starts(base_offset), engine.batch_starts(base_offset)[1:], strict=False):
        first_offset, timestamp = (int.from_bytes(data[start + at : start + at + 8], "little") for at in (8, 16))
        position, offset = start + 256, first_offset
        while position < end:
            if position // interval != last_cell:
                last_cell = position // interval
                entries.append(IndexEntry(offset, position, start, timestamp))
            sizes = data[position + 32 : position + 40]
            position += 48 + int.from_bytes(sizes[:4], "little") + int.from_bytes(sizes[4:], "little")
            offset += 1
    return entries


def entries_in(index: IndexEntries) -> list[IndexEntry]:
    return [
        IndexEntry(int(row["offset"]), int(row["frame_position"]), int(row["batch_position"]), int(row["timestamp"]))
        for row in index.rows(0, len(index))
    ]


def filled_engine(
    cache: IndexCache = IndexCache.OPEN_SEGMENT, batch_count: int = 120, *, keeps_up: bool = False
) -> Engine:
    """An open segment with batches of all kinds. ``keeps_up``: blocks of its index are written as they fill."""
    engine = Engine(settings_of(cache))
    for number in range(batch_count):
        engine.append_numbered(1 + number % 4, mixed=True)
        engine.clock.advance(10)
        if keeps_up:
            engine.upkeep()
    return engine


def sealed_engine(cache: IndexCache = IndexCache.OPEN_SEGMENT, batch_count: int = 120) -> Engine:
    """A sealed segment with an index of several blocks, and an open one behind it."""
    engine = filled_engine(cache, batch_count)
    engine.roll()
    engine.append_numbered(2)
    assert len(engine.disk.contents(engine.index_path())) >= 2 * BLOCK_SIZE
    return engine


def assert_right_answers(engine: Engine) -> None:
    end = engine.log.next_offset
    for offset in (*range(0, end, max(end // 40, 1)), end - 1):
        assert [message.offset for message in engine.read(offset, count=2)] == list(range(offset, min(offset + 2, end)))
    times = {message.timestamp: message.offset for message in reversed(engine.read(0))}
    for time, offset in list(times.items())[:: max(len(times) // 20, 1)]:
        assert engine.reader.offset_at_time(time) == offset


# --- the entries ----------------------------------------------------------------------------------------


@given(
    sizes=st.lists(st.lists(st.integers(0, 400), min_size=1, max_size=8), min_size=1, max_size=12),
    interval=st.sampled_from([1, 48, 64, 300, 1024, 4096, 100_000]),
)
def test_an_entry_leads_to_within_the_interval_of_any_message(sizes: list[list[int]], interval: int) -> None:
    entries = IndexEntries(1000)
    offset, position = 1000, 0
    frames: list[tuple[int, int, int, int]] = []
    for number, batch_sizes in enumerate(sizes):
        batch = batch_of(*(bytes(size) for size in batch_sizes))
        entries.add(entries.entries_of(offset, position, batch.frames, interval), position, number)
        for delta, start in enumerate(batch.frames.starts.tolist()):
            frames.append((offset + delta, position + 256 + start, position, number))
        offset, position = offset + batch.count, position + batch.size
    for message in frames:
        entry = entries.at_offset(message[0])
        assert entry is not None
        assert entry in frames
        assert 0 <= message[1] - entry.frame_position < interval
    assert entries.at_offset(999) is None
    for time in range(-1, len(sizes) + 1):
        older = [entry for entry in entries_in(entries) if entry.timestamp < time]
        found = entries.before_time(time)
        assert (None if found is None else found.offset - 1000) == (older[-1].offset if older else None)


def test_inside_one_large_batch_an_entry_is_near_too() -> None:
    engine = Engine(LogSettings(index_interval=4096, reservation_min=10_000, limits=LIMITS))
    engine.append(numbered(0, 5000, size=100))
    index = engine.log.segments[0].index
    for offset in range(0, 5000, 13):
        entry = index.at_offset(offset)
        assert entry is not None
        assert entry.batch_position == 0
        assert 0 <= (256 + offset * 148) - entry.frame_position < 4096


# --- the file -------------------------------------------------------------------------------------------


@every_cache
def test_the_index_of_a_sealed_segment_holds_what_the_log_implies(cache: IndexCache) -> None:
    engine = sealed_engine(cache)
    index = SegmentIndex(IDENTITY, 0, INTERVAL)
    index.use_file(engine.disk.open(engine.index_path()), engine.log.segments[0].size, into_memory=True)
    assert entries_in(index._entries) == implied_entries(engine)


def test_every_flipped_byte_of_every_block_is_found() -> None:
    engine = sealed_engine()
    good = engine.disk.contents(engine.index_path())
    path = engine.directory / "copy"
    seed = segment_seed(IDENTITY, 0)
    for position in range(len(good)):
        engine.disk.plant(path, flipped(good, position))
        file = IndexFile(engine.disk.open(path), seed=seed, base_offset=0, block_count=len(good) // BLOCK_SIZE)
        with pytest.raises(BadIndex):
            file.block(position // BLOCK_SIZE)


def test_every_flipped_byte_of_the_index_is_found_and_the_index_is_built_again() -> None:
    engine = sealed_engine(batch_count=90)
    engine.stop()
    good = engine.disk.contents(engine.index_path())
    last = engine.batch_starts()[-1]
    for position in range(0, len(good), 7):
        engine.disk.plant(engine.index_path(), flipped(good, position))
        log = engine.open(StopKind.CLEAN)
        segment = log.segments[0]
        for offset in (0, segment.end_offset // 2, segment.end_offset - 1):
            assert [message.offset for message in engine.read(offset, count=1)] == [offset]
        assert engine.disk.contents(engine.index_path()) == good, "built again, byte for byte"
        assert (segment.size, segment.damages) == (last, ())
        assert log.failure is None


@every_cache
def test_an_index_file_that_is_not_right_is_built_again_and_gives_the_same_answers(cache: IndexCache) -> None:
    engine = sealed_engine(cache)
    engine.roll()
    other = Engine(settings_of(cache), identity=PartitionIdentity(bytes(16), 3, 7))
    other.append(numbered(0, 300))
    other.roll()
    engine.stop()
    good = engine.disk.contents(engine.index_path())
    second = engine.log.segments[1].base_offset
    wrong = [
        b"",
        b"x",
        good + b"x",
        good + bytes(BLOCK_SIZE),
        good + good,
        good[BLOCK_SIZE:],
        good[:BLOCK_SIZE] + good[:BLOCK_SIZE],
        engine.disk.contents(engine.index_path(second)),
        other.disk.contents(other.index_path()),
        *(good[:size] for size in range(0, len(good), BLOCK_SIZE)),
        *(good[:size] for size in range(1, len(good), 1111)),
    ]
    for data in wrong:
        engine.disk.plant(engine.index_path(), data)
        engine.open(StopKind.CLEAN)
        assert_right_answers(engine)
        assert engine.disk.contents(engine.index_path()) == good
    engine.disk.unlink(engine.index_path())
    engine.open(StopKind.CLEAN)
    assert_right_answers(engine)
    assert engine.disk.contents(engine.index_path()) == good


@every_cache
@pytest.mark.parametrize(
    "identity",
    [
        PartitionIdentity(bytes(16), 3, 7),
        PartitionIdentity(bytes(range(16)), 4, 7),
        PartitionIdentity(bytes(range(16)), 3, 8),
    ],
    ids=["topic", "partition", "incarnation"],
)
def test_an_index_of_another_partition_is_not_believed_even_if_its_size_fits(
    cache: IndexCache, identity: PartitionIdentity
) -> None:
    engine, other = Engine(settings_of(cache)), Engine(settings_of(cache), identity=identity)
    for number in range(100):
        engine.append_numbered(2, size=(50, 150)[number % 2])
        other.append_numbered(2, size=(150, 50)[number % 2])
    for each in (engine, other):
        each.roll()
        each.stop()
    good, foreign = engine.disk.contents(engine.index_path()), other.disk.contents(other.index_path())
    assert len(good) == len(foreign)
    engine.disk.plant(engine.index_path(), foreign)
    engine.open(StopKind.CLEAN)
    assert_right_answers(engine)
    assert engine.disk.contents(engine.index_path()) == good


@every_cache
def test_a_directory_in_the_place_of_an_index_is_lived_with_while_running(cache: IndexCache) -> None:
    engine = sealed_engine(cache)
    engine.restart()
    engine.disk.unlink(engine.index_path())
    engine.disk.plant_directory(engine.index_path())
    assert_right_answers(engine)


@every_cache
@pytest.mark.parametrize("more", [0, 100, 1500])
def test_an_index_damaged_while_the_segment_is_open_costs_nothing(cache: IndexCache, more: int) -> None:
    """Its blocks are written as they fill; then somebody overwrites them."""
    engine = filled_engine(cache, 1500, keeps_up=True)
    written = engine.disk.contents(engine.index_path())
    assert len(written) >= 16 * BLOCK_SIZE
    engine.disk.plant(engine.index_path(), bytes(len(written)))
    assert_right_answers(engine)
    for _ in range(more):
        engine.append_numbered(2)
        engine.upkeep()
    assert_right_answers(engine)
    engine.restart()
    assert_right_answers(engine)
    engine.roll()
    assert_right_answers(engine)
    assert engine.disk.contents(engine.index_path()) == rebuilt(engine)


@every_cache
def test_an_index_damaged_while_the_segment_is_open_is_whole_after_the_seal(cache: IndexCache) -> None:
    engine = filled_engine(cache, 1500, keeps_up=True)
    written = engine.disk.contents(engine.index_path())
    engine.disk.plant(engine.index_path(), bytes(len(written)))
    assert_right_answers(engine)
    engine.roll()
    assert_right_answers(engine)
    engine.restart()
    assert_right_answers(engine)
    segment = engine.log.segments[0]
    assert [segment.index.at_offset(offset) for offset in range(0, engine.log.next_offset, 50)] == nearest(engine)[::50]
    assert engine.disk.contents(engine.index_path()) == rebuilt(engine)
    assert all(segment.damages == () for segment in engine.log.segments)


@every_cache
def test_the_caches_differ_in_memory_and_in_nothing_else(cache: IndexCache) -> None:
    engine = filled_engine(cache, 2000)
    engine.upkeep()
    open_size = engine.log.segments[0].index.size_in_memory
    assert_right_answers(engine)
    engine.roll()
    sealed_size = engine.log.segments[0].index.size_in_memory
    assert_right_answers(engine)
    assert (sealed_size > 0) == (cache is IndexCache.ALL)
    assert (open_size < 20 * ENTRIES_PER_BLOCK) == (cache is IndexCache.NONE)
    assert engine.disk.contents(engine.index_path()) == index_bytes(2000)


def rebuilt(engine: Engine) -> bytes:
    """The index file of the first segment, made from its log."""
    engine.log.files.rebuild_index(engine.log.segments[0])
    return engine.disk.contents(engine.index_path())


def index_bytes(batch_count: int) -> bytes:
    """The same log, indexed in one go when it is sealed."""
    engine = filled_engine(batch_count=batch_count)
    engine.log.roll()
    engine.upkeep()
    return engine.disk.contents(engine.index_path())


def test_rebuilt_and_grown_indexes_are_the_same_bytes() -> None:
    engine = filled_engine(batch_count=2000, keeps_up=True)
    engine.roll()
    grown = engine.disk.contents(engine.index_path())
    engine.log.files.rebuild_index(engine.log.segments[0])
    assert engine.disk.contents(engine.index_path()) == grown == index_bytes(2000)


@every_cache
def test_messages_that_come_while_blocks_are_written_are_indexed_too(cache: IndexCache) -> None:
    engine = Engine(settings_of(cache))
    number = 0

    def send(count: int) -> None:
        nonlocal number
        for _ in range(count):
            engine.append_numbered(1 + number % 4, mixed=True)
            engine.clock.advance(10)
            number += 1

    while number < 1990:
        send(5)
        job = upkeep.plan_upkeep(engine.log)
        if job is not None:
            send(1)
            job.run()
            send(1)
            job.complete()
    send(2000 - number)
    assert_right_answers(engine)
    engine.roll()
    assert engine.disk.contents(engine.index_path()) == index_bytes(2000)


def test_an_index_that_is_given_up_before_its_blocks_are_written_counts_none_of_them() -> None:
    engine = Engine(settings_of(IndexCache.NONE, segment_size=10**7))
    for _ in range(1500):
        engine.append_numbered(3)
    engine.upkeep()
    index = engine.log.segments[0].index
    flushed_size = index.flushed_size
    assert flushed_size
    for _ in range(1500):
        engine.append_numbered(3)
    job = upkeep._plan_index_flush(engine.log)
    assert job is not None
    # As a reader does who finds it damaged.
    index.drop_file()
    job.run()
    job.complete()
    assert index.flushed_size == flushed_size
    assert_right_answers(engine)


def test_a_wide_interval_may_be_read_with_a_narrow_one() -> None:
    engine = sealed_engine()
    engine.stop()
    engine.settings = LogSettings(segment_size=10**6, index_interval=5000, limits=LIMITS)
    engine.open(StopKind.CLEAN)
    assert_right_answers(engine)


# --- across restarts ------------------------------------------------------------------------------------


@every_cache
@pytest.mark.parametrize("stop", [StopKind.CLEAN, StopKind.KILLED], ids=lambda stop: stop.value)
@pytest.mark.parametrize("interval", [INTERVAL, 1000])
def test_ten_restarts_leave_the_index_that_the_log_implies(cache: IndexCache, stop: StopKind, interval: int) -> None:
    engine = Engine(LogSettings(segment_size=10**6, index_interval=interval, index_cache=cache, limits=LIMITS))
    for life in range(10):
        for number in range(30 + 40 * (life % 3)):
            engine.append_numbered(1 + number % 5, mixed=True)
            engine.clock.advance(10)
            if number % 3 == 0:
                engine.upkeep()
            if number % 7 == 0:
                engine.sync()
        engine.restart(stop)
        assert len(engine.log.segments) == 1
        index = engine.log.segments[0].index
        assert [index.at_offset(offset) for offset in range(engine.log.next_offset)] == nearest(engine, interval)
        assert_right_answers(engine)
    engine.roll()
    grown = engine.disk.contents(engine.index_path())
    engine.log.files.rebuild_index(engine.log.segments[0])
    assert engine.disk.contents(engine.index_path()) == grown


def nearest(engine: Engine, interval: int = INTERVAL) -> list[IndexEntry]:
    """The implied entry for every offset of the first segment."""
    entries = implied_entries(engine, interval=interval)
    found = []
    number = 0
    for offset in range(engine.log.next_offset):
        while number + 1 < len(entries) and entries[number + 1].offset <= offset:
            number += 1
        found.append(entries[number])
    return found


def test_an_index_of_lost_batches_is_not_believed_after_a_power_cut() -> None:
    """The disk kept blocks of the index and lost the batches they speak of; other batches took their place."""
    engine = Engine(
        LogSettings(segment_size=10**7, index_interval=16, durability=durability(Durability.SYNCED), limits=LIMITS),
    )
    engine.fill(10, 2, size=100)
    engine.sync()
    for number in range(1400):
        engine.append_numbered(2, size=(150, 50)[number % 2])
    engine.upkeep()
    blocks = engine.disk.contents(engine.index_path())
    assert len(blocks) >= 16 * BLOCK_SIZE
    log = engine.disk.contents(engine.log_path())
    engine.stop(StopKind.CRASHED)
    engine.disk.plant(engine.log_path(), log[: engine.batch_starts()[10]])
    engine.disk.plant(engine.index_path(), blocks)
    engine.open(StopKind.CRASHED)
    assert engine.log.next_offset == 20
    for _ in range(4):
        for number in range(131):
            engine.append_numbered(2, size=(50, 150)[number % 2])
        engine.sync()
        engine.restart(StopKind.KILLED)
        messages, results = engine.read_all()
        assert [message.offset for message in messages] == list(range(engine.log.next_offset))
        for offset in range(0, engine.log.next_offset, 7):
            result = engine.reader.read(offset, count=1, size_max=10**6)
            assert (result.first_offset, result.skipped) == (offset, ())
        assert not [skip for result in results for skip in result.skipped if skip.reason is SkipReason.DAMAGED]
        index = engine.log.segments[0].index
        assert [index.at_offset(offset) for offset in range(engine.log.next_offset)] == nearest(engine, 16)
    assert engine.log.segments[0].state is SegmentState.OPEN
