"""What a partition remembers of idempotent producers: the rules, and that nothing is lost that is in the log."""

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from courser.errors import CommandRejected, ErrorCode
from courser.records.producers import SEQUENCE_MAX, BatchProducer
from courser.storage.log_reader import LogReader
from courser.storage.producer_table import ProducerLimits, ProducerTable, StoredBatch
from courser.storage.recovery_cases import StopKind
from courser.storage.settings import EngineLimits
from tests.storage.condensed import condense, keyed
from tests.storage.engine import ENCODINGS, SMALL, Engine, batch_of, encoded, numbered

HOUR = 3600 * 1_000_000
ORDER, FENCED, UNKNOWN = ErrorCode.PRODUCER_OUT_OF_ORDER, ErrorCode.PRODUCER_FENCED, ErrorCode.PRODUCER_UNKNOWN


def batch(sequence: int, count: int = 2, *, producer: int = 1, epoch: int = 0) -> BatchProducer:
    return BatchProducer(producer, epoch, sequence, count)


def judged(table: ProducerTable, producer: BatchProducer, now: int = 0) -> int | ErrorCode | None:
    try:
        return table.find_repeat(producer, now)
    except CommandRejected as refusal:
        return refusal.code


def table_of(*batches: BatchProducer, **limits: int) -> ProducerTable:
    """A table of batches that were stored one after another, from offset 100 on."""
    table, offset = ProducerTable(ProducerLimits(**limits)), 100
    for producer in batches:
        assert table.find_repeat(producer, 0) is None
        table.remember(producer, offset, 0)
        offset += producer.message_count
    return table


def test_the_rules() -> None:
    table = table_of(batch(0), batch(2, 3), batch(5, 1))
    assert judged(table, batch(6)) is None
    assert [judged(table, one) for one in (batch(0), batch(2, 3), batch(5, 1))] == [100, 102, 105]
    assert judged(table, batch(7)) is ORDER
    assert judged(table, batch(0, 3)) is ORDER
    assert judged(table, batch(1, 1)) is ORDER
    assert judged(table, batch(0, producer=2)) is None
    assert judged(table, batch(6, producer=2)) is UNKNOWN


def test_a_later_epoch_starts_anew_and_ends_the_one_before() -> None:
    table = table_of(batch(0), batch(2))
    assert judged(table, batch(4, epoch=1)) is ORDER
    assert judged(table, batch(0, epoch=7)) is None
    table.remember(batch(0, epoch=7), 200, 0)
    assert [judged(table, batch(4, epoch=6)), judged(table, batch(2)), judged(table, batch(0))] == [FENCED] * 3
    assert judged(table, batch(0, epoch=7)) == 200
    assert judged(table, batch(2, epoch=7)) is None


def test_a_batch_that_is_too_old_to_be_remembered_is_out_of_order() -> None:
    table = table_of(*(batch(sequence, 1) for sequence in range(7)), batch_count_max=5)
    assert [judged(table, batch(sequence, 1)) for sequence in range(9)] == [
        ORDER,
        ORDER,
        102,
        103,
        104,
        105,
        106,
        None,
        ORDER,
    ]


def test_numbers_go_on_after_the_largest() -> None:
    table = ProducerTable(ProducerLimits())
    table.rebuild([StoredBatch(batch(SEQUENCE_MAX - 3, 3), 50, 0)], 0, 0)
    assert judged(table, batch(SEQUENCE_MAX, 4)) is None
    table.remember(batch(SEQUENCE_MAX, 4), 53, 0)
    assert [judged(table, batch(3)), judged(table, batch(SEQUENCE_MAX, 4))] == [None, 53]


def test_a_producer_is_forgotten_after_a_day_without_a_batch() -> None:
    table = table_of(batch(0))
    table.remember(batch(2), 102, 20 * HOUR)
    assert judged(table, batch(2), 44 * HOUR) == 102
    assert judged(table, batch(4), 44 * HOUR) is None
    assert judged(table, batch(4), 44 * HOUR + 1) is UNKNOWN
    assert judged(table, batch(0), 44 * HOUR + 1) is None


def test_of_too_many_producers_the_most_silent_is_forgotten() -> None:
    table = table_of(
        *(batch(0, producer=number) for number in (1, 2, 3)), batch(2, producer=1), batch(0, producer=4), count_max=3
    )
    assert len(table) == 3
    assert judged(table, batch(2, producer=2)) is UNKNOWN
    assert [judged(table, batch(0, producer=number)) for number in (1, 3, 4)] == [100, 104, 108]


def test_what_the_log_lacks_makes_a_producer_start_over() -> None:
    """Batches at the end were condensed, or lost with the power: what comes now was certainly not stored."""
    table = ProducerTable(ProducerLimits())
    table.rebuild([StoredBatch(batch(0), 0, 0), StoredBatch(batch(2), 2, 0)], 0, 0)
    assert [judged(table, batch(4)), judged(table, batch(2)), judged(table, batch(6))] == [None, 2, UNKNOWN]
    assert [judged(table, batch(0, epoch=1)), judged(table, batch(2, epoch=1))] == [None, UNKNOWN]
    table.remember(batch(4), 4, 0)
    assert judged(table, batch(8)) is ORDER


@given(data=st.data())
def test_nothing_is_stored_twice_and_nothing_is_left_out(data: st.DataObject) -> None:
    """Producers that send again whatever was not acknowledged, and replies that are lost."""
    table, log = ProducerTable(ProducerLimits()), list[tuple[int, int]]()
    unacknowledged: dict[int, list[BatchProducer]] = {producer: [] for producer in range(3)}
    following = dict.fromkeys(unacknowledged, 0)
    expected: dict[int, int] = dict(following)
    for _ in range(data.draw(st.integers(1, 60))):
        producer = data.draw(st.integers(0, 2))
        waiting = unacknowledged[producer]
        if len(waiting) < 5 and data.draw(st.booleans()):
            count = data.draw(st.integers(1, 3))
            waiting.append(batch(following[producer], count, producer=producer))
            following[producer] += count
        for one in waiting:
            offset = table.find_repeat(one, 0)
            if offset is None:
                assert one.sequence == expected[producer]
                table.remember(one, len(log), 0)
                log += [(producer, one.sequence + number) for number in range(one.message_count)]
                expected[producer] += one.message_count
            else:
                assert log[offset : offset + one.message_count] == [
                    (producer, one.sequence + number) for number in range(one.message_count)
                ]
        del waiting[: data.draw(st.integers(0, len(waiting)))]
    assert sorted(log) == [(producer, number) for producer in range(3) for number in range(expected[producer])]


# --- from the log -------------------------------------------------------------------------------------


def append(engine: Engine, producer: BatchProducer | None) -> int:
    sent = numbered(engine.log.next_offset, 2 if producer is None else producer.message_count)
    sent.producer = producer
    return engine.append(sent).base_offset


def found(engine: Engine, stored_after: int = 0) -> list[tuple[BatchProducer, int]]:
    return [(one.producer, one.base_offset) for one in LogReader(engine.log).newest_of_producers(stored_after)]


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("stop", [StopKind.CLEAN, StopKind.KILLED])
def test_the_log_says_who_sent_what(encoding: str, stop: StopKind) -> None:
    engine, dice = Engine(encoded(SMALL, encoding)), random.Random(1)
    expected, following = [], dict.fromkeys(range(4), 0)
    for _ in range(120):
        producer = dice.randrange(5)
        if producer == 4:
            append(engine, None)
            continue
        sent = batch(following[producer], dice.randint(1, 3), producer=producer)
        following[producer] = sent.next_sequence
        expected.append((sent, append(engine, sent)))
    assert len(engine.log.segments) > 3
    assert found(engine) == expected
    engine.restart(stop)
    assert found(engine) == expected
    for producer in range(4):
        table = ProducerTable(ProducerLimits())
        table.rebuild(LogReader(engine.log).newest_of_producers(0), 0, 0)
        assert judged(table, batch(following[producer], producer=producer)) is None


@pytest.mark.parametrize(
    ("limits", "least", "most"),
    [
        (EngineLimits(header_piece_size=700), 100, 100),
        (EngineLimits(header_piece_size=700, producer_header_count=10), 10, 13),
        (EngineLimits(header_piece_size=700, producer_log_size=5000), 12, 20),
    ],
)
def test_only_the_newest_part_of_a_log_is_read(limits: EngineLimits, least: int, most: int) -> None:
    engine, expected = Engine(replace(SMALL, limits=limits)), []
    for number in range(100):
        sent = batch(2 * number)
        expected.append((sent, append(engine, sent)))
    newest = found(engine)
    assert least <= len(newest) <= most
    assert newest == expected[-len(newest) :]


def test_old_batches_are_not_looked_at() -> None:
    engine = Engine()
    for number in range(40):
        append(engine, batch(2 * number))
        engine.clock.advance(HOUR)
    now = engine.clock.now()
    newest = found(engine, now - 10 * HOUR)
    assert 10 <= len(newest) < 30


@pytest.mark.parametrize("encoding", ["plain", "lz4, encrypted"])
def test_what_condensing_leaves_of_a_batch_is_recognised(encoding: str) -> None:
    engine = Engine(encoded(SMALL, encoding))
    # Of the first batch, two messages that are not side by side stay; nothing of the second.
    contents: list[list[tuple[bytes | None, bytes]]] = [
        [(b"a", b"1"), (b"b", b"1"), (b"a", b"2"), (b"c", b"1"), (b"b", b"2")],
        [(b"a", b"3"), (b"b", b"3")],
        [(b"a", b"4"), (b"b", b"4"), (None, b"end")],
    ]
    sequence, sent = 0, []
    for messages in contents:
        one = keyed(messages)
        one.producer = batch(sequence, len(messages))
        sequence += len(messages)
        sent.append((one.producer, engine.append(one).base_offset))
    engine.roll()
    append(engine, None)
    assert found(engine) == sent
    assert condense(engine.log) == 1
    left = {(one._replace(first_number=0), offset) for one, offset in found(engine)}
    assert left == {sent[0], sent[2]}
    table = ProducerTable(ProducerLimits())
    table.rebuild(LogReader(engine.log).newest_of_producers(0), 0, 0)
    assert [judged(table, sent[0][0]), judged(table, sent[2][0])] == [0, 7]
    assert judged(table, batch(sequence)) is None


def test_publishes_are_no_producers_and_the_other_way_round() -> None:
    engine = Engine()
    publish = batch(3, producer=9)
    append(engine, publish)
    same = publish.producer_id.to_bytes(8, "little") + bytes(8)
    engine.log.append(batch_of(b"staged"), same, 5)
    assert found(engine) == [(publish, 0)]
    assert LogReader(engine.log).last_sequence(same, first_offset=0) == 5
