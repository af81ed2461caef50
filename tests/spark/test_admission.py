"""How much a micro-batch takes, and when: limits, shares, holding back, remembered heads."""

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadMaxBytes, ReadMaxRows

from courser.spark.admission import BatchLimits, admit, reconcile
from courser.spark.offsets import NAMELESS, TopicOffsets, offsets_json, parse_offsets
from courser.spark.options import Use
from courser.spark.read_options import read_options, stream_options
from courser.spark.remembering_reader import RememberingReader
from courser.spark.schema import default_schema
from courser.spark.stream_reader import HEADS_AGE_MAX, IDLE_WAIT, StreamReader
from courser.spark.topic_metadata import Bounds, TopicFacts, gaps_between
from tests.spark.known_topics import UUID, KnownTopic, facts


def offsets(following: Mapping[int, int], lost: Mapping[int, int] | None = None) -> dict[str, Any]:
    """Of a query that reads one topic."""
    return offsets_json({"orders": TopicOffsets(UUID, following, lost or {})})


def admitted(starts: Mapping[int, int], found: TopicFacts, limits: BatchLimits) -> Mapping[int, int]:
    topics = {"orders": found}
    return admit({"orders": TopicOffsets(UUID, starts)}, topics, topics, limits)["orders"].next


def test_without_limits_everything_is_taken() -> None:
    assert admitted({0: 5, 1: 0}, facts(100, 7), BatchLimits()) == {0: 100, 1: 7}


def test_a_limit_is_shared_in_proportion_to_what_waits() -> None:
    assert admitted({0: 0, 1: 0, 2: 50}, facts(300, 100, 50), BatchLimits(count=40)) == {0: 30, 1: 10, 2: 50}
    assert admitted({0: 0, 1: 0}, facts(300, 100, size=100), BatchLimits(size=4000)) == {0: 30, 1: 10}


def test_the_smaller_of_two_limits_holds() -> None:
    assert admitted({0: 0}, facts(1000, size=100), BatchLimits(count=500, size=1000)) == {0: 10}
    assert admitted({0: 0}, facts(1000, size=100), BatchLimits(count=5, size=1000)) == {0: 5}


def test_a_message_larger_than_the_limit_is_taken_all_the_same() -> None:
    assert admitted({0: 0, 1: 9}, facts(10, 10, size=10**9), BatchLimits(size=1)) == {0: 1, 1: 10}


def test_every_partition_that_has_something_gets_a_message_if_the_limit_allows_it() -> None:
    many = dict.fromkeys(range(10), 0)
    assert admitted(many, facts(10, 9, *[1] * 8), BatchLimits(count=10)) == dict.fromkeys(many, 1)


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), min_size=1, max_size=6), st.integers(1, 60))
def test_a_limit_of_messages_is_never_passed_and_progress_is_always_made(
    partitions: list[tuple[int, int]], limit: int
) -> None:
    found = facts(*(start + waiting for start, waiting in partitions))
    starts = {number: start for number, (start, _) in enumerate(partitions)}
    ends = admitted(starts, found, BatchLimits(count=limit))
    taken = sum(ends.values()) - sum(starts.values())
    waiting = sum(count for _, count in partitions)
    assert taken <= min(limit, waiting)
    assert (taken > 0) == (waiting > 0)
    assert all(starts[number] <= ends[number] <= found.partitions[number].next for number in starts)


TRILLION = 10**12


def gapped(*gaps: tuple[int, int], head: int) -> Bounds:
    """A partition with messages of 100 bytes outside of its gaps."""
    count = head - sum(end - first for first, end in gaps)
    return Bounds(0, head, 100 * count, count, gaps)


def test_gaps_are_passed_at_once_and_do_not_count() -> None:
    found = TopicFacts(UUID, {0: gapped((100, TRILLION), head=TRILLION + 100), 1: gapped(head=200)})
    limits = BatchLimits(count=100)
    assert admitted({0: 0, 1: 0}, found, limits) == {0: 50, 1: 50}
    # Up to the gap, across it, and from within.
    assert admitted({0: 50, 1: 200}, found, limits) == {0: TRILLION + 50, 1: 200}
    assert admitted({0: 100, 1: 150}, found, limits) == {0: TRILLION + 66, 1: 183}
    assert admitted({0: 5000, 1: 200}, found, BatchLimits(size=1000)) == {0: TRILLION + 10, 1: 200}
    assert admitted({0: 0, 1: 0}, found, BatchLimits(size=4000)) == {0: 20, 1: 20}


def test_a_gap_at_the_end_is_passed_with_the_last_message() -> None:
    found = TopicFacts(UUID, {0: gapped((10, 20), (30, TRILLION), head=TRILLION)})
    assert admitted({0: 0}, found, BatchLimits(count=15)) == {0: 25}
    assert admitted({0: 25}, found, BatchLimits(count=15)) == {0: TRILLION}
    assert admitted({0: 30}, found, BatchLimits(count=15)) == {0: TRILLION}
    assert admitted({0: TRILLION}, found, BatchLimits(count=15)) == {0: TRILLION}


def test_gaps_are_the_offsets_that_no_segment_covers() -> None:
    assert gaps_between(5, 50, [(5, 10), (10, 20), (30, 40)]) == ((20, 30), (40, 50))
    assert gaps_between(0, 20, [(10, 15), (12, 20)]) == ((0, 10),)
    assert gaps_between(7, 7, []) == ()


def test_losses_are_counted_and_add_up() -> None:
    progress = TopicOffsets(UUID, {0: 10, 1: 90}, {0: 5})
    found = TopicFacts(UUID, {0: Bounds(30, 50, 1, 1), 1: Bounds(0, 80, 1, 1), 2: Bounds(4, 9, 1, 1)})
    reconciled = reconcile(progress, found, "shop/orders")
    assert reconciled.progress.next == {0: 30, 1: 80, 2: 4}
    assert reconciled.progress.lost == {0: 25, 1: 10, 2: 4}
    assert [loss.lost for loss in reconciled.losses] == [20, 10, 4]


def test_offsets_are_the_same_text_whatever_order_they_came_in() -> None:
    one = offsets({10: 1, 9: 2}, {3: 1})
    other = offsets({9: 2, 10: 1}, {3: 1})
    assert str(one) == str(other)
    assert list(one["p"]) == ["9", "10"]
    assert parse_offsets(one, "t") == {NAMELESS: TopicOffsets(UUID, {9: 2, 10: 1}, {3: 1})}
    assert "lost" not in offsets({0: 1})


# --- a reader and its source --------------------------------------------------------------------------


def reader_of(known: KnownTopic, monkeypatch: pytest.MonkeyPatch, **given: object) -> StreamReader:
    texts = {name: str(value) for name, value in given.items()}
    reads, values = read_options({"stream": "shop", "topic": "orders"} | texts, Use.STREAM, {})
    monkeypatch.setattr("courser.spark.stream_reader.live_topic", lambda _: known)
    schema = default_schema("native", include_headers=False)
    return StreamReader(reads, stream_options(values), schema, lambda: known.now)


LIMIT = ReadMaxBytes(2**28)
START = offsets({0: 0})


def test_spark_gets_the_one_limit_that_it_can_take(monkeypatch: pytest.MonkeyPatch) -> None:
    assert reader_of(KnownTopic(1), monkeypatch).getDefaultReadLimit() == ReadMaxBytes(512 * 2**20)
    assert reader_of(KnownTopic(1), monkeypatch, maxOffsetsPerTrigger=5).getDefaultReadLimit() == ReadMaxRows(5)


def test_an_idle_query_waits_at_the_server_and_lag_is_not_asked_for_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    known = KnownTopic(0)
    reader = reader_of(known, monkeypatch)
    assert reader.latestOffset(START, LIMIT) == START
    assert (known.asked, known.waits) == (1, [IDLE_WAIT])
    assert reader.reportLatestOffset() == START
    assert known.asked == 1
    known.now += HEADS_AGE_MAX * 2
    reader.reportLatestOffset()
    assert known.asked == 2


def test_few_messages_are_held_back_but_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    known = KnownTopic(0)
    reader = reader_of(known, monkeypatch, minOffsetsPerTrigger=10, maxTriggerDelay="30s")
    known.heads = [9]
    assert reader.latestOffset(START, LIMIT) == START
    known.now += 29
    assert reader.latestOffset(START, LIMIT) == START
    known.now += 2
    assert reader.latestOffset(START, LIMIT)["p"] == {"0": 9}
    known.heads = [19]
    assert reader.latestOffset(offsets({0: 9}), LIMIT)["p"] == {"0": 19}


def test_messages_that_are_held_back_wait_on_the_server_until_enough_may_have_arrived(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known = KnownTopic(4, 0, 2)
    reader = RememberingReader(reader_of(known, monkeypatch, minOffsetsPerTrigger=13), is_limited=True)
    start = offsets({0: 0, 1: 0, 2: 0})
    reader.partitions(start, start)
    known.asked = 0
    assert reader.latestOffset() == start
    # 7 are missing: however they are spread over 3 partitions, one of them gets at least 3.
    assert (known.asked, known.waits, known.waited_for) == (1, [IDLE_WAIT], {"orders": {0: 6, 1: 2, 2: 4}})
    known.heads = [7, 3, 2]
    assert reader.latestOffset() == start
    assert (known.asked, known.waits, known.waited_for) == (2, [IDLE_WAIT] * 2, {"orders": {0: 7, 1: 3, 2: 2}})
    known.heads = [8, 3, 2]
    assert reader.latestOffset()["p"] == {"0": 8, "1": 3, "2": 2}
    assert len(known.waits) == 2


def test_a_run_with_an_end_reads_to_where_it_began_and_holds_nothing_back(monkeypatch: pytest.MonkeyPatch) -> None:
    known = KnownTopic(5)
    reader = reader_of(known, monkeypatch, minOffsetsPerTrigger=10)
    reader.prepareForTriggerAvailableNow()
    known.heads = [500, 3]
    end = reader.latestOffset(START, LIMIT)
    assert end["p"] == {"0": 5, "1": 0}
    assert reader.latestOffset(end, LIMIT) == end


def test_a_query_begins_where_its_options_say(monkeypatch: pytest.MonkeyPatch) -> None:
    known = KnownTopic(7, 9)
    assert reader_of(known, monkeypatch).initialOffset()["p"] == {"0": 7, "1": 9}
    assert reader_of(known, monkeypatch, startingOffsets="earliest").initialOffset()["p"] == {"0": 0, "1": 0}
    named = reader_of(known, monkeypatch, startingOffsets='{"orders": {"0": 3}}').initialOffset()
    assert named["p"] == {"0": 3, "1": 9}
