"""Reads of several topics: what a checkpoint holds of each, what a new one and a missing one do, what is shared."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadMaxBytes

from courser.spark.admission import BatchLimits, admit
from courser.spark.errors import DataLost, ReadFailed
from courser.spark.offsets import TopicOffsets, match_topics, offsets_json, parse_offsets
from courser.spark.options import Use
from courser.spark.planning import Task
from courser.spark.read_options import read_options, stream_options
from courser.spark.schema import default_schema
from courser.spark.stream_reader import IDLE_WAIT, StreamReader
from tests.spark.known_topics import KnownTopic, facts

ORDERS, PAYMENTS = b"orders".ljust(16), b"payments".ljust(16)
LIMIT = ReadMaxBytes(2**28)


def topics(orders: int, payments: int) -> dict[str, KnownTopic]:
    """Two topics with one partition each, and so many messages."""
    return {"orders": KnownTopic(orders, uuid=ORDERS), "payments": KnownTopic(payments, uuid=PAYMENTS)}


def reader_of(known: Mapping[str, KnownTopic], monkeypatch: pytest.MonkeyPatch, **given: object) -> StreamReader:
    texts = {"stream": "shop", "topic": ",".join(known)} | {name: str(value) for name, value in given.items()}
    reads, values = read_options(texts, Use.STREAM, {})
    monkeypatch.setattr("courser.spark.stream_reader.live_topic", lambda options: known[options.topic])
    schema = default_schema("native", include_headers=False)
    return StreamReader(reads, stream_options(values), schema, lambda: 100.0)


def reached(**offsets: int) -> dict[str, Any]:
    """A checkpoint of partitions 0."""
    uuids = {"orders": ORDERS, "payments": PAYMENTS}
    return offsets_json({topic: TopicOffsets(uuids[topic], {0: offset}) for topic, offset in offsets.items()})


def tasks_of(reader: StreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[tuple[str, int, int]]:
    tasks = [task for task in reader.partitions(start, end) if isinstance(task, Task)]
    return [(task.topic, part.start, part.end) for task in tasks for part in task.ranges]


# --- what a checkpoint holds --------------------------------------------------------------------------


def test_a_checkpoint_holds_every_topic_with_its_identity_always_in_the_same_order() -> None:
    offsets = reached(payments=7, orders=5)
    assert json.dumps(offsets) == json.dumps(
        {
            "v": 2,
            "topics": {
                "orders": {"topic_id": ORDERS.hex(), "p": {"0": 5}},
                "payments": {"topic_id": PAYMENTS.hex(), "p": {"0": 7}},
            },
        }
    )
    progress = parse_offsets(offsets, "shop/orders,payments")
    assert progress["payments"] == TopicOffsets(PAYMENTS, {0: 7})
    assert json.dumps(offsets_json(progress)) == json.dumps(offsets)


def test_one_topic_is_checkpointed_as_it_always_was() -> None:
    assert reached(orders=5) == {"v": 1, "topic_id": ORDERS.hex(), "p": {"0": 5}}


@pytest.mark.parametrize(
    "topics", [{"orders": {"p": {}}}, {"orders": 5}, ["orders"], {"orders": {"topic_id": "00", "p": {"0": None}}}]
)
def test_offsets_of_several_topics_that_make_no_sense_are_refused(topics: object) -> None:
    with pytest.raises(ReadFailed, match="shop/orders,payments: could not parse the offsets"):
        parse_offsets({"v": 2, "topics": topics}, "shop/orders,payments")


def test_a_topic_that_was_renamed_is_still_the_same() -> None:
    saved = parse_offsets(reached(orders=5, payments=7), "query")
    found = match_topics(saved, {"sales": facts(9, uuid=ORDERS), "payments": facts(9, uuid=PAYMENTS)}, "query")
    assert found.left_out == ()
    assert found.progress["sales"].next == {0: 5}


# --- a query ------------------------------------------------------------------------------------------


def test_every_topic_begins_where_the_options_say(monkeypatch: pytest.MonkeyPatch) -> None:
    known = topics(20, 30)
    assert reader_of(known, monkeypatch).initialOffset() == reached(orders=20, payments=30)
    given = '{"orders": {"0": 3}, "payments": {"0": -2}}'
    reader = reader_of(known, monkeypatch, startingOffsets=given)
    assert reader.initialOffset() == reached(orders=3, payments=0)
    reader = reader_of(known, monkeypatch, startingOffsets='{"orders": "earliest"}')
    assert reader.initialOffset() == reached(orders=0, payments=30)
    reader = reader_of(known, monkeypatch, startingTimestamp='{"orders": 4, "payments": {"0": 6}}')
    assert reader.initialOffset() == reached(orders=4, payments=6)
    known["orders"].heads = [20, 25]
    reader = reader_of(known, monkeypatch, startingTimestamp='{"orders": {"0": 4}}')
    assert reader.initialOffset()["topics"]["orders"]["p"] == {"0": 4, "1": 25}
    reader = reader_of(known, monkeypatch, startingTimestamp='{"payments": {"1": 6}}')
    with pytest.raises(ReadFailed, match="shop/payments: the options give a time for partition 1, which"):
        reader.initialOffset()


def test_a_micro_batch_has_tasks_of_every_topic_that_has_something(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = reader_of(topics(20, 30), monkeypatch)
    start = reached(orders=5, payments=0)
    end = reader.latestOffset(start, LIMIT)
    assert end == reached(orders=20, payments=30) == reader.reportLatestOffset()
    assert tasks_of(reader, start, end) == [("orders", 5, 20), ("payments", 0, 30)]
    assert tasks_of(reader, start, reached(orders=5, payments=8)) == [("payments", 0, 8)]


def test_a_limit_is_shared_by_all_topics_in_proportion_to_what_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = reader_of(topics(300, 100), monkeypatch, maxOffsetsPerTrigger=40)
    assert reader.latestOffset(reached(orders=0, payments=0), LIMIT) == reached(orders=30, payments=10)
    progress = {"orders": TopicOffsets(ORDERS, {0: 0}), "payments": TopicOffsets(PAYMENTS, {0: 0})}
    found = {"orders": facts(10, size=1000, uuid=ORDERS), "payments": facts(100, size=10, uuid=PAYMENTS)}
    admitted = admit(progress, found, found, BatchLimits(size=5500))
    assert (admitted["orders"].next, admitted["payments"].next) == ({0: 5}, {0: 50})


@pytest.mark.parametrize(
    ("limit", "expected"), [(1, {"orders": 5, "payments": 5}), (2, {"orders": 10, "payments": 10})]
)
def test_no_topic_starves_where_another_one_always_has_more(
    monkeypatch: pytest.MonkeyPatch, limit: int, expected: dict[str, int]
) -> None:
    known = topics(1000, 10)
    reader = reader_of(known, monkeypatch, maxOffsetsPerTrigger=limit)
    progress = reached(orders=0, payments=0)
    for _ in range(10):
        progress = reader.latestOffset(progress, LIMIT)
        known["orders"].heads[0] += limit
    assert progress == reached(**expected)


def test_messages_of_all_topics_count_for_a_micro_batch_that_waits_for_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    known = topics(4, 5)
    reader = reader_of(known, monkeypatch, minOffsetsPerTrigger=10)
    start = reached(orders=0, payments=0)
    assert reader.latestOffset(start, LIMIT) == start
    known["payments"].heads = [6]
    assert reader.latestOffset(start, LIMIT) == reached(orders=4, payments=6)


def test_an_idle_query_waits_for_all_topics_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    known = topics(4, 5)
    reader = reader_of(known, monkeypatch)
    idle = reached(orders=4, payments=5)
    assert reader.latestOffset(idle, LIMIT) == idle
    assert (known["orders"].waits, known["payments"].waits) == ([IDLE_WAIT], [])
    assert known["orders"].waited_for == {"orders": {0: 4}, "payments": {0: 5}}
    reader.latestOffset(reached(orders=4, payments=4), LIMIT)
    assert (known["orders"].waits, known["payments"].waits) == ([IDLE_WAIT], []), "it has something to read"


def test_what_is_lost_is_said_of_the_topic_and_counted_there(monkeypatch: pytest.MonkeyPatch) -> None:
    start = reached(orders=4, payments=9)
    with pytest.raises(DataLost, match=r"shop/payments: partition 0: offset 9 is needed, but the next .* is 5"):
        reader_of(topics(4, 5), monkeypatch).latestOffset(start, LIMIT)
    end = reader_of(topics(4, 5), monkeypatch, failOnDataLoss="false").latestOffset(start, LIMIT)
    assert end["topics"]["payments"] == {"topic_id": PAYMENTS.hex(), "p": {"0": 5}, "lost": {"0": 4}}
    assert "lost" not in end["topics"]["orders"]


# --- the list changes ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("starting", "first"), [("earliest", 0), ("latest", 30), ('{"payments": {"0": 12}}', 12)])
def test_a_topic_that_is_added_begins_where_the_options_say(
    monkeypatch: pytest.MonkeyPatch, starting: str, first: int
) -> None:
    known = topics(20, 30)
    # Too few messages for a micro-batch: where the new topic begins must be written down all the same.
    reader = reader_of(known, monkeypatch, startingOffsets=starting, minOffsetsPerTrigger=1000)
    old = reached(orders=20)
    both = reader.latestOffset(old, LIMIT)
    assert both == reached(orders=20, payments=first)
    assert tasks_of(reader, old, both) == []
    known["payments"].heads = [2000]
    end = reader.latestOffset(both, LIMIT)
    assert end == reached(orders=20, payments=2000)
    assert tasks_of(reader, both, end) == [("payments", first, 2000)]


def test_the_topics_that_were_there_are_read_while_another_one_is_added(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = reader_of(topics(20, 30), monkeypatch, startingOffsets="earliest")
    old = reached(orders=5)
    both = reader.latestOffset(old, LIMIT)
    assert both == reached(orders=20, payments=0)
    assert tasks_of(reader, old, both) == [("orders", 5, 20)]


def test_a_micro_batch_from_before_a_topic_was_added_can_be_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = reader_of(topics(20, 30), monkeypatch, startingOffsets="earliest")
    assert tasks_of(reader, reached(orders=5), reached(orders=15)) == [("orders", 5, 15)]


def test_a_run_with_an_end_reads_an_added_topic_to_where_it_began(monkeypatch: pytest.MonkeyPatch) -> None:
    known = topics(20, 30)
    reader = reader_of(known, monkeypatch, startingOffsets="earliest")
    reader.prepareForTriggerAvailableNow()
    known["payments"].heads = [500]
    both = reader.latestOffset(reached(orders=20), LIMIT)
    end = reader.latestOffset(both, LIMIT)
    assert end == reached(orders=20, payments=30) == reader.latestOffset(end, LIMIT)


def test_a_topic_that_is_left_out_is_refused_or_given_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    known = {"orders": KnownTopic(20, uuid=ORDERS)}
    start, end = reached(orders=5, payments=7), reached(orders=9, payments=8)
    expected = 'shop/orders: the checkpoint contains topic "payments", but the option "topic" no longer names it'
    reader = reader_of(known, monkeypatch)
    for step in (lambda: reader.latestOffset(start, LIMIT), lambda: reader.partitions(start, end)):
        with pytest.raises(ReadFailed, match=expected):
            step()
    careless = reader_of(known, monkeypatch, failOnDataLoss="false")
    assert tasks_of(careless, start, end) == [("orders", 5, 9)]
    assert careless.latestOffset(end, LIMIT) == reached(orders=20)
    assert any(expected in message for message in caplog.messages)


def test_a_topic_that_was_created_again_is_refused_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    known = topics(20, 30)
    known["payments"].uuid = bytes(16)
    expected = f'the checkpoint is for topic "payments", {PAYMENTS.hex()}, but this one is 00000.*recreated'
    reader = reader_of(known, monkeypatch, failOnDataLoss="false")
    with pytest.raises(ReadFailed, match=expected):
        reader.latestOffset(reached(orders=5, payments=7), LIMIT)


def test_a_checkpoint_of_another_query_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {"returns": KnownTopic(1, uuid=bytes(16)), "refunds": KnownTopic(1, uuid=bytes(range(16)))}
    reader = reader_of(known, monkeypatch, failOnDataLoss="false")
    with pytest.raises(ReadFailed, match=f'topic {ORDERS.hex()}, but none of "returns", "refunds" has this id'):
        reader.latestOffset(reached(orders=5), LIMIT)
    with pytest.raises(ReadFailed, match='for "orders", "payments", but the query reads none of these'):
        reader.latestOffset(reached(orders=5, payments=7), LIMIT)
