"""Bytes of a segment that are not what was written: found every time, told exactly, and never in the way of others."""

import random
import sys
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from threading import Barrier, Thread

import pytest
import xxhash

from courser.model.durability import Durability
from courser.records import layout
from courser.records.stored_header import PartitionIdentity, StoredHeader, blank_header, stamp
from courser.storage.ledger import DamagedRange
from courser.storage.read_result import SkippedRange, SkipReason
from courser.storage.recovery_cases import StopKind
from courser.storage.settings import LogSettings
from tests.fakes.faults import FaultPlan, SimulatedCrash
from tests.records.reference import WireMessage
from tests.storage.engine import (
    IDENTITY,
    Engine,
    batch_of,
    durability,
    encoded,
    flipped,
    numbered,
    payload_of,
    payloads,
)

ONE_SEGMENT = LogSettings(segment_size=1024 * 1024, index_interval=1024, reservation_min=1024)
PER_BATCH = 3
BATCH_COUNT = 5


def test_damage_that_several_threads_find_at_the_same_time_is_all_noted() -> None:
    engine = Engine(ONE_SEGMENT)
    engine.fill(1, 1)
    (segment,) = engine.log.segments
    finders, places = 4, 200
    begin = Barrier(finders)
    news: list[bool] = []

    def find(number: int) -> None:
        begin.wait()
        for place in range(places):
            # Each place is found by two threads.
            position = place * finders + number // 2
            news.append(segment.note_damage(DamagedRange(0, position, position + 1, 0, 1)))

    interval = sys.getswitchinterval()
    # So short that without care most of it would be lost.
    sys.setswitchinterval(1e-6)
    try:
        threads = [Thread(target=find, args=(number,)) for number in range(finders)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    found = [damage.position for damage in segment.damages]
    assert len(found) == len(set(found)) == sum(news) == finders // 2 * places


class Scene:
    """A partition with one segment of five batches of three messages, to be damaged and opened many times."""

    def __init__(
        self, *, sealed: bool = False, mixed: bool = True, stop: StopKind = StopKind.CLEAN, encoding: str = "plain"
    ) -> None:
        self.stop = stop
        engine = Engine(encoded(ONE_SEGMENT, encoding))
        engine.fill(BATCH_COUNT, PER_BATCH, mixed=mixed)
        engine.sync()
        if sealed:
            engine.roll()
        engine.stop(stop)
        self._disk = engine.disk
        self._engine = engine
        self.path = engine.log_path()
        self.starts = engine.batch_starts()
        assert len(self.starts) == BATCH_COUNT + 1
        self.good = engine.disk.contents(self.path)[: self.starts[-1]]
        self.expected = {number: payload_of(number, mixed=mixed) for number in range(BATCH_COUNT * PER_BATCH)}

    def opened(self, data: bytes, stop: StopKind | None = None) -> Engine:
        """The same partition with other bytes in its segment, fresh from a start."""
        engine = Engine.__new__(Engine)
        engine.__dict__.update(self._engine.__dict__)
        engine.disk = self._disk.clone(random.Random(1))
        engine.disk.plant(self.path, data)
        engine.open(stop or self.stop)
        return engine

    def batch_at(self, position: int) -> int:
        return next(number for number in range(BATCH_COUNT) if position < self.starts[number + 1])

    def bytes_of(self, number: int) -> bytes:
        return self.good[self.starts[number] : self.starts[number + 1]]

    def with_batch(self, number: int, data: bytes) -> bytes:
        return self.good[: self.starts[number]] + data + self.good[self.starts[number + 1] :]

    def assert_only_lost(self, engine: Engine, *numbers: int) -> None:
        """Everything is read but these batches; what is read is what was written; the loss is told to the offset."""
        messages, results = engine.read_all()
        lost = {offset for number in numbers for offset in range(number * PER_BATCH, (number + 1) * PER_BATCH)}
        assert seen(messages) == {offset: text for offset, text in self.expected.items() if offset not in lost}
        skipped = {
            offset
            for result in results
            for skip in result.skipped
            if skip.reason is SkipReason.DAMAGED
            for offset in range(skip.first_offset, skip.end_offset)
        }
        assert skipped == lost


def copy_of(engine: Engine) -> Engine:
    """The same partition on a disk of its own."""
    other = Engine.__new__(Engine)
    other.__dict__.update(engine.__dict__)
    other.disk = engine.disk.clone(random.Random(1))
    return other


def seen(messages: list[WireMessage]) -> dict[int, bytes]:
    return {message.offset: message.payload for message in messages}


# --- every byte -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("sealed", [False, True], ids=["open", "sealed"])
@pytest.mark.parametrize("mixed", [False, True], ids=["same-sized", "mixed"])
def test_every_flipped_byte_below_the_recovery_point_is_found_by_the_read(sealed: bool, mixed: bool) -> None:
    scene = Scene(sealed=sealed, mixed=mixed)
    for position in range(len(scene.good)):
        engine = scene.opened(flipped(scene.good, position))
        scene.assert_only_lost(engine, scene.batch_at(position))
        assert engine.reader.counters.checksum_failure_count == 1
        assert engine.letters() == []


@pytest.mark.parametrize("encoding", ["zstd", "lz4, encrypted"])
def test_every_flipped_byte_of_an_encoded_batch_is_found_by_the_read(encoding: str) -> None:
    scene = Scene(encoding=encoding)
    assert len(scene.good) < len(Scene().good)
    # The batches are alike: one of them is enough.
    for position in range(*scene.starts[1:3]):
        engine = scene.opened(flipped(scene.good, position))
        scene.assert_only_lost(engine, 1)
        assert engine.reader.counters.checksum_failure_count == 1


@pytest.mark.parametrize("encoding", ["plain", "lz4, encrypted"])
def test_every_flipped_byte_behind_the_recovery_point_is_found_by_the_start_after_a_kill(encoding: str) -> None:
    scene = Scene(stop=StopKind.KILLED, encoding=encoding)
    for position in range(len(scene.good)):
        engine = scene.opened(flipped(scene.good, position))
        number = scene.batch_at(position)
        if number == BATCH_COUNT - 1:
            # Nothing good follows, but all of the batch is there: it was written to its end, and perhaps confirmed.
            (finding,) = engine.log.findings
            assert (finding.letter, finding.is_damage) == ("W", True)
            assert payloads(engine.read_all()[0]) == list(scene.expected.values())[:-PER_BATCH]
            assert engine.log.next_offset >= BATCH_COUNT * PER_BATCH, "a confirmed offset would name another message"
            first, end = (BATCH_COUNT - 1) * PER_BATCH, engine.log.next_offset
            assert (finding.first_offset, finding.end_offset) == (first, end)
            assert f"offsets {first} to {end - 1} may have been confirmed" in finding.text
            continue
        scene.assert_only_lost(engine, number)
        (finding,) = engine.log.findings
        assert (finding.letter, finding.is_damage) == ("D", True)
        assert (finding.position, finding.size) == (scene.starts[number], len(scene.bytes_of(number)))
        assert (finding.first_offset, finding.end_offset) == (number * PER_BATCH, (number + 1) * PER_BATCH)


@pytest.mark.parametrize("position", [8, 100, 256, 300], ids=lambda position: f"byte {position}")
@pytest.mark.parametrize("stop", [StopKind.KILLED, StopKind.CRASHED], ids=lambda stop: stop.value)
@pytest.mark.parametrize("level", list(Durability), ids=lambda level: level.value)
def test_offsets_of_a_batch_that_rotted_stay_used_though_the_start_is_interrupted_anywhere(
    position: int, stop: StopKind, level: Durability
) -> None:
    """Between the cut and the note of it in the ledger nothing would tell that there was a batch."""
    engine = Engine(replace(ONE_SEGMENT, durability=durability(level)))
    engine.fill(BATCH_COUNT, PER_BATCH)
    engine.sync()
    engine.stop(StopKind.KILLED)
    data = engine.disk.contents(engine.log_path())[: engine.batch_starts()[-1]]
    damaged = flipped(data, engine.batch_starts()[-2] + position)
    call, is_interrupted = 0, True
    while is_interrupted:
        call += 1
        other = copy_of(engine)
        other.disk.plant(other.log_path(), damaged)
        other.disk.plan = FaultPlan().crash_at(call)
        try:
            other.open(stop)
            is_interrupted = False
        except SimulatedCrash:
            other.disk.plan = FaultPlan()
            other.stop(stop)
            other.open(stop)
        assert other.log.next_offset >= BATCH_COUNT * PER_BATCH, call
    assert call > 5


def test_rot_at_the_end_of_a_segment_that_another_one_follows_leaves_no_other_gap() -> None:
    """Where the next segment begins, the missing offsets end: nothing has to be guessed."""
    engine = Engine(LogSettings(segment_size=1024 * 1024, reservation_min=100))
    engine.fill(3)
    engine.log.roll()
    engine.fill(2)
    engine.stop(StopKind.KILLED)
    data = engine.disk.contents(engine.log_path())[: engine.batch_starts()[-1]]
    for damaged in (flipped(data, len(data) - 10), data[:-10]):
        other = copy_of(engine)
        other.disk.plant(other.log_path(), damaged)
        other.open(StopKind.KILLED)
        assert other.letters() == ["W", "V"]
        assert [message.offset for message in other.read_all()[0]] == [*range(6), *range(9, 15)]
        assert other.log.next_offset == 15


def test_a_found_damage_is_remembered_by_the_next_start() -> None:
    scene = Scene(stop=StopKind.KILLED)
    engine = scene.opened(flipped(scene.good, scene.starts[2] + 300))
    assert engine.letters() == ["D"]
    for stop in (StopKind.CLEAN, StopKind.KILLED, StopKind.CLEAN):
        engine.restart(stop)
        assert engine.letters() == []
        scene.assert_only_lost(engine, 2)


def test_several_damaged_batches_cost_no_others() -> None:
    scene = Scene()
    for numbers in ((0, 1), (0, 2), (1, 3), (2, 4), (0, 4), (1, 2, 3), (0, 1, 2, 3, 4)):
        data = scene.good
        for number in numbers:
            data = flipped(data, scene.starts[number] + 260)
        scene.assert_only_lost(scene.opened(data), *numbers)


@pytest.mark.parametrize("interval", [1, 300, 1024, 16 * 1024])
def test_a_read_that_begins_anywhere_finds_the_good_messages_around_a_damage(interval: int) -> None:
    """The index may lead to a damaged batch in front of the wanted one: that does not take the wanted one away."""
    settings = LogSettings(segment_size=1024 * 1024, index_interval=interval)
    for damaged in range(BATCH_COUNT):
        for offset in range(BATCH_COUNT * PER_BATCH):
            engine = Engine(settings)
            engine.fill(BATCH_COUNT, PER_BATCH, mixed=True)
            position = engine.batch_starts()[damaged] + 270
            engine.disk.plant(engine.log_path(), flipped(engine.disk.contents(engine.log_path()), position))
            bad = range(damaged * PER_BATCH, (damaged + 1) * PER_BATCH)
            first_good = bad.stop if offset in bad else offset
            if offset < bad.start:
                wanted = range(offset, bad.start)
            else:
                wanted = range(first_good, BATCH_COUNT * PER_BATCH)
            result = engine.reader.read(offset, count=1000, size_max=10**6)
            found = [message.offset for message in engine.read(offset)]
            assert found == list(wanted), (damaged, offset)
            expected = (SkippedRange(offset, bad.stop, SkipReason.DAMAGED),) if offset in bad else ()
            assert result.skipped == expected
            # What one reader met at random must not narrow what the next one gets.
            others = [message.offset for message in engine.read_all()[0]]
            assert others == [other for other in range(BATCH_COUNT * PER_BATCH) if other not in bad]


def test_time_lookups_go_past_a_damaged_batch() -> None:
    scene = Scene()
    times = [message.timestamp for message in scene.opened(scene.good).read(0)]
    for number in range(BATCH_COUNT):
        for where in (8, 300):
            engine = scene.opened(flipped(scene.good, scene.starts[number] + where))
            for other in range(BATCH_COUNT):
                found = engine.reader.offset_at_time(times[other * PER_BATCH])
                if other != number:
                    assert found == other * PER_BATCH
                else:
                    assert found in (number * PER_BATCH, (number + 1) * PER_BATCH)


# --- cut ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stop", list(StopKind), ids=lambda stop: stop.value)
def test_the_last_batch_cut_at_every_byte_is_put_aside_and_numbering_goes_on(stop: StopKind) -> None:
    scene = Scene(stop=StopKind.KILLED)
    last = scene.starts[-2]
    for size in range(last, scene.starts[-1]):
        engine = scene.opened(scene.good[:size], stop)
        assert payloads(engine.read_all()[0]) == list(scene.expected.values())[:-PER_BATCH]
        assert len(engine.disk.contents(scene.path)) == last
        if size > last and scene.good[last:size].strip(b"\0"):
            assert engine.letters() == [{StopKind.CLEAN: "G", StopKind.KILLED: "C", StopKind.CRASHED: "E"}[stop]]
            assert list(engine.quarantined().values()) == [scene.good[last:size].rstrip(b"\0")]
        else:
            assert engine.letters() == []
        cut_end = (BATCH_COUNT - 1) * PER_BATCH
        # Whatever was cut may have been confirmed, if rot took its end.
        is_doubtful = stop is StopKind.CRASHED or bool(engine.letters())
        expected = engine.log.reserved_end if is_doubtful else cut_end
        assert engine.log.next_offset == expected
        engine.append_numbered(1)
        assert engine.read(expected)[0].offset == expected


def test_a_whole_header_with_a_cut_body_is_no_batch() -> None:
    scene = Scene(stop=StopKind.KILLED)
    engine = scene.opened(scene.good[: scene.starts[-2] + 256])
    assert engine.letters() == ["C"]
    assert engine.log.next_offset == engine.log.reserved_end


def test_a_segment_of_one_batch_cut_at_every_byte_is_an_empty_partition() -> None:
    scene = Scene(stop=StopKind.KILLED)
    for size in range(scene.starts[1]):
        engine = scene.opened(scene.good[:size])
        assert engine.read_all()[0] == []
        assert engine.log.next_offset == (engine.log.reserved_end if engine.letters() == ["C"] else 0)
        assert b"".join(engine.quarantined().values()) == scene.good[:size].rstrip(b"\0")
        first = engine.append_numbered(2).base_offset
        assert [message.offset for message in engine.read(0)] == [first, first + 1]


@pytest.mark.parametrize("stop", list(StopKind), ids=lambda stop: stop.value)
def test_any_cut_of_a_whole_segment_leaves_the_batches_before_it(stop: StopKind) -> None:
    scene = Scene(stop=StopKind.KILLED)
    for size in range(0, len(scene.good), 7):
        engine = scene.opened(scene.good[:size], stop)
        kept = sum(1 for end in scene.starts[1:] if end <= size) * PER_BATCH
        assert payloads(engine.read_all()[0]) == list(scene.expected.values())[:kept]


# --- zeros ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stop", list(StopKind), ids=lambda stop: stop.value)
@pytest.mark.parametrize("size", [1, 51, 255, 256, 257, 4096, 64 * 1024])
def test_zeros_at_the_end_are_no_batch(stop: StopKind, size: int) -> None:
    scene = Scene(stop=StopKind.KILLED)
    engine = scene.opened(scene.good + bytes(size), stop)
    assert payloads(engine.read_all()[0]) == list(scene.expected.values())
    assert engine.letters() == []
    assert engine.quarantined() == {}
    assert engine.disk.contents(scene.path) == scene.good
    engine.append_numbered(2)
    assert [message.payload for message in engine.read_all()[0]][-2:] == [
        payload_of(engine.log.next_offset - 2),
        payload_of(engine.log.next_offset - 1),
    ]


@pytest.mark.parametrize("stop", [StopKind.CLEAN, StopKind.KILLED], ids=lambda stop: stop.value)
def test_a_block_of_zeros_in_the_middle_costs_the_batches_it_touches(stop: StopKind) -> None:
    engine = Engine(ONE_SEGMENT)
    engine.fill(60, PER_BATCH, mixed=True)
    engine.stop(stop)
    starts = engine.batch_starts()
    data = engine.disk.contents(engine.log_path())
    engine.disk.plant(engine.log_path(), data[:4096] + bytes(4096) + data[8192:])
    engine.open(stop)
    touched = [number for number in range(60) if starts[number] < 8192 and starts[number + 1] > 4096]
    assert touched
    messages, results = engine.read_all()
    lost = range(touched[0] * PER_BATCH, (touched[-1] + 1) * PER_BATCH)
    assert [message.offset for message in messages] == [offset for offset in range(180) if offset not in lost]
    skipped = [skip for result in results for skip in result.skipped]
    assert skipped == [SkippedRange(lost.start, lost.stop, SkipReason.DAMAGED)]


def test_zeros_over_the_first_batches_after_a_kill_cost_only_those() -> None:
    scene = Scene(stop=StopKind.KILLED)
    engine = scene.opened(bytes(scene.starts[2]) + scene.good[scene.starts[2] :])
    scene.assert_only_lost(engine, 0, 1)


# --- headers that lie with a right checksum -------------------------------------------------------------


def restamped(batch: bytes, **changes: object) -> bytes:
    """A batch whose header was changed by somebody who knows how to make the checksum right."""
    fields = StoredHeader._make(layout.STORED_HEADER.unpack(batch[:256]))._asdict() | changes
    header = layout.STORED_HEADER.pack(*fields.values())
    return header[:248] + xxhash.xxh3_64_intdigest(header[:248]).to_bytes(8, "little") + batch[256:]


def rehashed(batch: bytes, **changes: object) -> bytes:
    return restamped(batch, body_hash=xxhash.xxh3_64_intdigest(batch[256:]), **changes)


LENGTHS = [0, 1, 255, 256, 257, 10**5, 2**26, 2**26 + 1, 2**31, 2**40, 2**64 - 1]


@pytest.mark.parametrize("stop", [StopKind.CLEAN, StopKind.KILLED], ids=lambda stop: stop.value)
@pytest.mark.parametrize("length", LENGTHS)
def test_a_length_that_lies_costs_its_own_batch_and_no_memory(stop: StopKind, length: int) -> None:
    scene = Scene(stop=stop)
    data = scene.with_batch(1, restamped(scene.bytes_of(1), stored_length=length, batch_length=length))
    tracemalloc.start()
    try:
        scene.assert_only_lost(scene.opened(data), 1)
        assert tracemalloc.get_traced_memory()[1] < 20 * 1024 * 1024
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("stop", [StopKind.CLEAN, StopKind.KILLED], ids=lambda stop: stop.value)
@pytest.mark.parametrize(
    "change",
    [{"base_offset": offset} for offset in (0, 4, 6, 100, 2**63)]
    + [{"partition_id": 4}, {"topic_uuid": bytes(16)}, {"incarnation": 8}],
    ids=str,
)
def test_a_batch_that_was_written_to_the_wrong_place_is_not_taken(stop: StopKind, change: dict[str, object]) -> None:
    """Its checksums are right; its offset or its owner is not."""
    scene = Scene(stop=stop)
    data = scene.with_batch(1, restamped(scene.bytes_of(1), **change))
    engine = scene.opened(data)
    assert engine.letters() == (["D"] if stop is StopKind.KILLED else [])
    scene.assert_only_lost(engine, 1)


@pytest.mark.parametrize("stop", [StopKind.CLEAN, StopKind.KILLED], ids=lambda stop: stop.value)
@pytest.mark.parametrize("source", [0, 2, 3])
def test_a_good_batch_of_the_same_segment_in_the_place_of_another_is_not_taken(stop: StopKind, source: int) -> None:
    scene = Scene(stop=stop, mixed=False)
    engine = scene.opened(scene.with_batch(1, scene.bytes_of(source)))
    assert engine.letters() == (["D"] if stop is StopKind.KILLED else [])
    scene.assert_only_lost(engine, 1)


def test_a_valid_batch_of_another_partition_at_the_end_is_not_taken() -> None:
    scene = Scene(stop=StopKind.KILLED)
    batch = numbered(15, 3)
    other = PartitionIdentity(IDENTITY.topic_uuid, IDENTITY.partition_id, IDENTITY.incarnation + 1)
    foreign = bytes(stamp(batch, blank_header(other), base_offset=15, base_timestamp=1)) + bytes(batch.body)
    engine = scene.opened(scene.good + foreign)
    assert engine.letters() == ["W"]
    assert payloads(engine.read_all()[0]) == list(scene.expected.values())
    assert list(engine.quarantined().values()) == [foreign]


def swapped_deltas(batch: bytes) -> bytes:
    data = bytearray(batch)
    data[256 + 24 : 256 + 28] = (5).to_bytes(4, "little")
    return rehashed(bytes(data))


def one_more_message(batch: bytes) -> bytes:
    return restamped(batch, message_count=PER_BATCH + 1)


def one_message_less(batch: bytes) -> bytes:
    return restamped(batch, message_count=PER_BATCH - 1)


@pytest.mark.parametrize("lie", [swapped_deltas, one_more_message, one_message_less])
def test_frames_that_contradict_their_header_are_found_by_the_start(lie: Callable[[bytes], bytes]) -> None:
    scene = Scene(stop=StopKind.KILLED)
    engine = scene.opened(scene.with_batch(1, lie(scene.bytes_of(1))))
    assert engine.letters() == ["D"]
    (finding,) = engine.log.findings
    assert (finding.first_offset, finding.end_offset) == (3, 6)


def test_a_copy_of_an_old_batch_inside_a_payload_is_not_taken_for_one() -> None:
    """Behind a damage the next batch is looked for by its magic; a payload may hold one."""
    engine = Engine(ONE_SEGMENT)
    engine.fill(2, PER_BATCH)
    copy = engine.disk.contents(engine.log_path())[: engine.batch_starts()[1]]
    engine.append(batch_of(copy, b"more"))
    engine.fill(2, PER_BATCH)
    engine.stop(StopKind.KILLED)
    position = engine.batch_starts()[2] + 260
    engine.disk.plant(engine.log_path(), flipped(engine.disk.contents(engine.log_path()), position))
    engine.open(StopKind.KILLED)
    assert [message.offset for message in engine.read_all()[0]] == [0, 1, 2, 3, 4, 5, 8, 9, 10, 11, 12, 13]


# --- while somebody reads -------------------------------------------------------------------------------


def test_a_segment_cut_behind_the_back_of_the_server_ends_where_it_was_cut() -> None:
    scene = Scene(sealed=True)
    for size in (*scene.starts[:-1], scene.starts[2] + 100, scene.starts[3] + 300):
        engine = scene.opened(scene.good)
        engine.append_numbered(2)
        engine.disk.plant(scene.path, scene.good[:size])
        kept = sum(1 for end in scene.starts[1:] if end <= size) * PER_BATCH
        messages, results = engine.read_all()
        assert [message.offset for message in messages] == [*range(kept), 15, 16]
        skips = [skip for result in results for skip in result.skipped]
        assert {offset for skip in skips for offset in range(skip.first_offset, skip.end_offset)} == set(
            range(kept, 15)
        )


def test_no_file_of_a_partition_is_needed_under_its_name_while_it_is_open() -> None:
    """A file deleted while it is open goes on being read."""
    engine = Engine(ONE_SEGMENT)
    engine.fill(3)
    engine.read(0)
    engine.disk.unlink(engine.log_path())
    assert len(engine.read(0)) == 9
    assert Path(engine.log_path()) not in engine.disk.files()
