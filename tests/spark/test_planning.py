"""How ranges become tasks: limits and wishes count for all topics of a read together."""

from collections.abc import Mapping, Sequence

from hypothesis import given
from hypothesis import strategies as st

from courser.spark.planning import TopicRead, plan_tasks
from courser.spark.sources import OffsetRange
from courser.spark.topic_metadata import Bounds, TopicFacts
from tests.spark.known_topics import UUID, facts


def part_of(topic: str, *counts: int, size: int = 100) -> TopicRead:
    """All messages of a topic whose partitions have so many."""
    ranges = [OffsetRange(partition, 0, count) for partition, count in enumerate(counts)]
    return TopicRead(topic, ranges, facts(*counts, size=size), lambda wanted: [wanted])


def planned(
    parts: Sequence[TopicRead], *, size_max: int = 10**9, min_count: int | None = None
) -> list[tuple[str, int, int]]:
    """Topic, partition and count of messages of each task."""
    return [
        (task.topic, task.ranges[0].partition, sum(part.count for part in task.ranges))
        for task in plan_tasks(parts, size_max=size_max, min_count=min_count)
    ]


def test_every_partition_of_every_topic_that_has_something_gets_a_task() -> None:
    parts = [part_of("orders", 10, 0, 5), part_of("payments", 7)]
    assert planned(parts) == [("orders", 0, 10), ("orders", 2, 5), ("payments", 0, 7)]


def test_a_range_is_split_by_the_size_of_its_own_messages() -> None:
    parts = [part_of("large", 40, size=1000), part_of("small", 40, size=10)]
    tasks = planned(parts, size_max=10_000)
    assert tasks == [("large", 0, 10)] * 4 + [("small", 0, 40)]


def test_a_wish_for_more_tasks_splits_the_largest_ranges_of_all_topics() -> None:
    parts = [part_of("orders", 60), part_of("payments", 20, 10)]
    assert planned(parts, min_count=5) == [
        *[("orders", 0, 20)] * 3,
        ("payments", 0, 20),
        ("payments", 1, 10),
    ]
    assert len(planned(parts, min_count=2)) == 3


def test_a_message_is_not_split_however_large_it_is() -> None:
    parts = [part_of("large", 1, size=10**6), part_of("small", 10, size=10)]
    assert planned(parts, min_count=3) == [("large", 0, 1), *[("small", 0, 5)] * 2]


def test_tasks_have_equally_many_messages_however_long_a_gap_is() -> None:
    gap = (30, 10**12)
    found = TopicFacts(UUID, {0: Bounds(0, 10**12 + 10, 4000, 40, (gap,))})
    read = TopicRead("orders", [OffsetRange(0, 0, 10**12 + 10)], found, lambda wanted: [wanted])
    (*first, last) = [task.ranges[0] for task in plan_tasks([read], size_max=1000, min_count=None)]
    assert [(part.start, part.end) for part in first] == [(0, 10), (10, 20), (20, 30)]
    assert (last.start, last.end) == (30, 10**12 + 10)
    (task,) = plan_tasks(
        [TopicRead("orders", [OffsetRange(0, *gap)], found, lambda wanted: [wanted])], size_max=1, min_count=9
    )
    assert (task.ranges[0].start, task.ranges[0].end) == gap


def test_shares_that_all_round_down_make_no_fewer_tasks_than_are_wished_for() -> None:
    parts = [part_of(f"topic-{number}", 14) for number in range(10)]
    assert len(planned(parts, min_count=14)) == 14


@given(
    st.dictionaries(st.sampled_from("abc"), st.lists(st.integers(0, 30), min_size=1, max_size=3)), st.integers(1, 40)
)
def test_as_many_tasks_as_are_wished_for_if_there_are_messages_enough(
    topics: Mapping[str, list[int]], min_count: int
) -> None:
    tasks = planned([part_of(topic, *counts) for topic, counts in topics.items()], min_count=min_count)
    message_count = sum(map(sum, topics.values()))
    partition_count = sum(count > 0 for counts in topics.values() for count in counts)
    assert len(tasks) == max(min(min_count, message_count), partition_count)
    assert sum(count for _, _, count in tasks) == message_count
