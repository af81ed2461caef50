"""Segments that are condensed: the newest message of each key stays, with its offset, through restarts of any kind."""

import contextlib
import errno
import random
from dataclasses import replace

import pytest

from courser.errors import DiskFull
from courser.records.stored_header import NO_PRODUCER
from courser.storage.condensing import CondensedCopy, condensable_segments, plan_condensed
from courser.storage.files import File
from courser.storage.jobs import perform
from courser.storage.read_result import SkipReason
from courser.storage.recovery_cases import StopKind
from courser.storage.segment import Segment
from courser.storage.segment_index import IndexCache
from courser.storage.upkeep import plan_reservation
from tests.fakes.files import FaultPlan
from tests.simulator.small_settings import SMALL_LIMITS
from tests.storage.condensed import FAR, condense, keyed, survey
from tests.storage.engine import ENCODINGS, SMALL, Engine, encoded

Sent = dict[int, tuple[bytes | None, bytes]]
"""Key and payload by offset."""


def send(engine: Engine, sent: Sent, *messages: tuple[bytes | None, bytes]) -> int:
    appended = engine.append(keyed(messages))
    sent |= dict(enumerate(messages, appended.base_offset))
    engine.clock.advance(10)
    return appended.base_offset


def stored(engine: Engine, offset: int = 0) -> dict[int, bytes]:
    messages, results = engine.read_all(offset)
    assert not [one for result in results for one in result.skipped if one.reason is not SkipReason.RESERVED]
    return {message.offset: message.payload for message in messages}


def payloads_of(sent: Sent) -> dict[int, bytes]:
    return {offset: payload for offset, (_, payload) in sent.items()}


def table(sent: Sent, present: dict[int, bytes]) -> dict[bytes, bytes]:
    """What a reader of a changelog has at the end: the newest payload of each key that is not deleted."""
    rows: dict[bytes, bytes] = {}
    for offset, payload in sorted(present.items()):
        key = sent[offset][0]
        if key is not None:
            rows[key] = payload
    return {key: payload for key, payload in rows.items() if payload}


def test_only_the_newest_message_of_a_key_stays_and_keeps_its_offset() -> None:
    engine, sent = Engine(), Sent()
    for number in range(20):
        send(engine, sent, (b"a", b"a%d" % number), (b"b", b"b%d" % number), (None, b"plain %d" % number))
    engine.roll()
    send(engine, sent, (b"last", b"open"))
    before = engine.log.size
    assert condense(engine.log) > 0
    assert engine.log.size < before
    last_of_segments = {segment.end_offset - 1 for segment in engine.log.segments}
    expected = {
        offset: payload
        for offset, (key, payload) in sent.items()
        if key is None or offset in last_of_segments or offset in (57, 58, 60)
    }
    assert stored(engine) == expected
    assert engine.log.message_count == len(expected)
    assert engine.log.next_offset == 61
    engine.restart()
    assert stored(engine) == expected
    assert not engine.log.findings
    assert condense(engine.log) == 0


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("cache", IndexCache)
def test_random_sends_condensing_and_restarts_keep_the_table(encoding: str, cache: IndexCache, seed: int) -> None:
    source = random.Random(f"{seed} {encoding} {cache}")
    limits = replace(SMALL_LIMITS, condensed_key_count_max=4)
    engine = Engine(encoded(replace(SMALL, segment_size=1500, index_cache=cache, limits=limits), encoding))
    sent, removed_count = Sent(), 0
    keys = [None, *(b"key %d" % number for number in range(9))]
    for _ in range(60):
        match source.choice(("send", "send", "send", "condense", "restart", "roll")):
            case "send":
                messages = [(source.choice(keys), source.randbytes(source.choice((0, 9, 90)))) for _ in range(4)]
                send(engine, sent, *messages)
            case "roll":
                engine.roll()
            case "condense":
                engine.upkeep()
                before = table(sent, stored(engine))
                horizon = source.choice((0, engine.clock.now() - 100, FAR))
                removed_count += condense(engine.log, tombstones_before=horizon)
                assert table(sent, stored(engine)) == before
            case "restart":
                engine.sync()
                engine.restart(source.choice(tuple(StopKind)))
                assert not [finding for finding in engine.log.findings if finding.is_damage]
        present = stored(engine)
        assert present.items() <= payloads_of(sent).items()
        assert table(sent, present) == table(sent, payloads_of(sent))
        assert {offset for offset, (key, _) in sent.items() if key is None} <= present.keys()
        offset, count = source.randrange(engine.log.next_offset + 1), source.choice((1, 2, 7))
        found = [message.offset for message in engine.read(offset, count=count)]
        assert found == [one for one in sorted(present) if one >= offset][: len(found)]
        assert found or not [one for one in present if one >= offset]
        newest = sorted(present)[-count:]
        if newest:
            assert engine.reader.offset_of_last(len(newest)) <= newest[0]
            assert [one for one in sorted(present) if one >= engine.reader.offset_of_last(len(newest))] == newest
    assert removed_count


def test_a_tombstone_goes_after_the_delay_and_not_before_older_messages_of_its_key() -> None:
    engine, sent = Engine(), Sent()
    send(engine, sent, (b"a", b"value"), (None, b"end of segment"))
    engine.roll()
    send(engine, sent, (b"a", b""), (None, b"end of segment"))
    engine.roll()
    send(engine, sent, (None, b"open"))
    condense(engine.log, tombstones_before=0)
    assert sorted(stored(engine)) == [1, 2, 3, 4]
    condense(engine.log, tombstones_before=FAR)
    assert sorted(stored(engine)) == [1, 3, 4]


def test_a_tombstone_stays_while_the_value_stays_as_the_last_message_of_its_segment() -> None:
    engine, sent = Engine(), Sent()
    send(engine, sent, (b"a", b"value"))
    engine.roll()
    send(engine, sent, (b"a", b""), (None, b"end of segment"))
    engine.roll()
    send(engine, sent, (None, b"open"))
    condense(engine.log, tombstones_before=FAR)
    assert sorted(stored(engine)) == [0, 1, 2, 3]


def test_a_tombstone_stays_while_the_value_stays_in_a_segment_that_would_not_become_smaller() -> None:
    engine, sent = Engine(), Sent()
    send(engine, sent, (None, b"first"), (b"a", b"value"), (None, b"end of segment"))
    engine.roll()
    send(engine, sent, (b"a", b""), (None, b"end of segment"))
    engine.roll()
    send(engine, sent, (None, b"open"))
    condense(engine.log, tombstones_before=FAR)
    assert sorted(stored(engine)) == [0, 1, 2, 3, 4, 5]
    assert condense(engine.log, tombstones_before=FAR) == 0


def test_a_damaged_segment_is_left_alone_and_so_are_later_tombstones() -> None:
    engine, sent = Engine(), Sent()
    for _ in range(2):
        send(engine, sent, (b"a", b"value"))
    send(engine, sent, (None, b"end of segment"))
    engine.roll()
    send(engine, sent, (b"a", b""), (b"b", b"x"), (None, b"end of segment"))
    engine.roll()
    send(engine, sent, (None, b"open"))
    path = engine.log_path(0)
    data = bytearray(engine.disk.contents(path))
    data[300] ^= 1
    engine.restart()
    engine.disk.plant(path, bytes(data))
    condense(engine.log, tombstones_before=FAR)
    assert engine.disk.contents(path) == data
    assert 3 in {message.offset for message in engine.read_all()[0]}


def test_a_reader_in_the_old_segment_goes_on_and_one_before_it_begins_again(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, sent = Engine(), Sent()
    for number in range(6):
        send(engine, sent, (b"a", b"%d" % number))
    engine.roll()
    send(engine, sent, (None, b"open"))
    engine.restart()
    log = engine.log
    segments = condensable_segments(log, end_offset=FAR, stored_before=FAR)
    copy = CondensedCopy(log, segments[0], survey(log, segments))
    assert sum(copy.steps()) == segments[0].size
    job = plan_condensed(log, copy)
    assert job is not None
    job.run()
    # The file has been replaced, and the owner does not know it yet.
    assert sorted(stored(engine)) == [0, 1, 2, 3, 4, 5, 6]
    old, take = log.segments, log.files.take
    with log.files.reading(old[0]) as file:
        job.complete()
        assert file.size() > log.segments[0].size
    with pytest.raises(OSError, match="Bad file descriptor"):
        file.size()
    assert sorted(stored(engine)) == [5, 6]
    log.segments, new = old, log.segments

    def take_and_look_again(segment: Segment) -> File:
        log.segments = new
        return take(segment)

    with monkeypatch.context() as patch:
        patch.setattr(log.files, "take", take_and_look_again)
        assert sorted(stored(engine, 3)) == [5, 6]


def test_messages_of_a_producer_keep_their_marks() -> None:
    engine = Engine()
    producer = bytes(range(16))
    for number in range(4):
        batch = keyed([(b"a", b"%d" % number), (b"b", b"%d" % number)])
        if (job := plan_reservation(engine.log, batch.count)) is not None:
            assert perform(job)
        engine.log.append(batch, producer if number == 3 else NO_PRODUCER, 42)
    engine.append(keyed([(b"a", b"new"), (None, b"end")]))
    engine.roll()
    engine.append(keyed([(None, b"open")]))
    assert condense(engine.log) == 1
    assert sorted(stored(engine)) == [7, 8, 9, 10]
    assert engine.reader.last_sequence(producer, first_offset=0) == 42


def test_segments_from_an_offset_on_are_left_alone() -> None:
    engine, sent = Engine(), Sent()
    for _ in range(3):
        send(engine, sent, (b"a", b"1"), (b"a", b"2"), (None, b"end"))
        engine.roll()
    assert [s.base_offset for s in condensable_segments(engine.log, end_offset=5, stored_before=FAR)] == [0]
    stored_at = engine.log.segments[0].last_stored_at
    assert not condensable_segments(engine.log, end_offset=FAR, stored_before=stored_at)
    assert [s.base_offset for s in condensable_segments(engine.log, end_offset=FAR, stored_before=FAR)] == [0, 3]


@pytest.mark.parametrize("stop", StopKind)
def test_a_condensed_segment_is_whole_without_the_ledger(stop: StopKind) -> None:
    engine, sent = Engine(), Sent()
    for number in range(6):
        send(engine, sent, (b"a", b"%d" % number), (b"b", b"%d" % number))
    engine.roll()
    send(engine, sent, (None, b"open"))
    condense(engine.log)
    expected = stored(engine)
    engine.sync()
    engine.stop(stop)
    engine.disk.unlink(engine.ledger_path)
    engine.open(stop)
    assert {m.offset: m.payload for m in engine.read_all()[0]} == expected


def test_a_truncated_segment_is_not_taken_for_a_condensed_one() -> None:
    engine, sent = Engine(), Sent()
    for number in range(6):
        send(engine, sent, (b"a", b"%d" % number))
    engine.roll()
    send(engine, sent, (None, b"open"))
    engine.stop()
    path, starts = engine.log_path(0), engine.batch_starts(0)
    engine.disk.plant(path, engine.disk.contents(path)[: starts[3]])
    engine.open(StopKind.CLEAN)
    assert "L" in engine.letters()


@pytest.mark.parametrize(("operation", "name"), [("open", "*.tmp"), ("write_at", "*.tmp"), ("rename", "*.log.tmp")])
def test_a_copy_that_a_full_disk_refuses_changes_nothing(operation: str, name: str) -> None:
    engine, sent = Engine(), Sent()
    for number in range(6):
        send(engine, sent, (b"a", b"%d" % number))
    engine.roll()
    send(engine, sent, (None, b"open"))
    before = stored(engine)
    engine.disk.plan = FaultPlan().fail(operation, errno.ENOSPC, name=name)
    with contextlib.suppress(DiskFull):
        assert condense(engine.log) == 0
    assert stored(engine) == before
    assert engine.log.failure is None
    assert condense(engine.log) == 1
    assert sorted(stored(engine)) == [5, 6]


@pytest.mark.parametrize(
    ("operation", "name"), [("rename", "*.index.tmp"), ("write_at", "ledger"), ("sync_directory", None)]
)
def test_a_failure_after_the_file_was_replaced_loses_nothing(operation: str, name: str | None) -> None:
    engine, sent = Engine(), Sent()
    for number in range(6):
        send(engine, sent, (b"a", b"%d" % number))
    engine.roll()
    send(engine, sent, (None, b"open"))
    engine.sync()
    engine.disk.plan = FaultPlan().fail(operation, errno.ENOSPC, name=name)
    assert condense(engine.log) == 0
    assert sorted(stored(engine)) == [5, 6]
    engine.disk.plan = FaultPlan()
    for stop in (StopKind.CRASHED, StopKind.CLEAN):
        engine.restart(stop)
        assert not [finding for finding in engine.log.findings if finding.is_damage]
        assert stored(engine).items() <= payloads_of(sent).items()
        assert {5, 6} <= stored(engine).keys()
