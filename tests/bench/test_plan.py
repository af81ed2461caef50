"""Who works where, and which plans are refused."""

import pytest

from courser.bench.plan import (
    ActorTask,
    Mode,
    Plan,
    PlanRefused,
    Role,
    Spread,
    WireName,
    check_plan,
    fill_count,
    reader_counts,
    tasks_of,
)


def places(tasks: list[ActorTask], role: Role) -> list[tuple[int, int, int | None]]:
    return [(*task.place, task.partition_id) for task in tasks if task.role is role]


def test_pinned_producers_have_a_stream_each_and_then_a_partition_each() -> None:
    plan = Plan(mode=Mode.PINNED_PRODUCER, producers=4, streams=2, partitions=2, messages=10)
    assert places(tasks_of(plan), Role.PRODUCER) == [(0, 0, 0), (1, 0, 0), (0, 0, 1), (1, 0, 1)]


def test_topics_come_after_streams() -> None:
    plan = Plan(mode=Mode.PINNED_PRODUCER, producers=4, streams=2, topics=2, messages=10)
    assert places(tasks_of(plan), Role.PRODUCER) == [(0, 0, 0), (1, 0, 0), (0, 1, 0), (1, 1, 0)]


def test_a_pinned_consumer_reads_what_the_producer_of_its_number_sends() -> None:
    plan = Plan(mode=Mode.PINNED_PRODUCER_AND_CONSUMER, producers=3, consumers=3, streams=3, messages=10)
    tasks = tasks_of(plan)
    readers = [(*task.place, task.partition_ids[0]) for task in tasks if task.role is Role.CONSUMER]
    assert readers == places(tasks, Role.PRODUCER)


def test_balanced_producers_leave_the_partition_to_the_server() -> None:
    plan = Plan(mode=Mode.BALANCED_PRODUCER, producers=2, partitions=8, messages=10)
    assert places(tasks_of(plan), Role.PRODUCER) == [(0, 0, None), (0, 0, None)]


def test_balanced_consumers_share_all_partitions() -> None:
    plan = Plan(mode=Mode.BALANCED_CONSUMER, consumers=3, partitions=8, messages=10)
    shares = [task.partition_ids for task in tasks_of(plan)]
    assert shares == [(0, 3, 6), (1, 4, 7), (2, 5)]


def test_consumers_of_two_topics_share_the_partitions_of_each() -> None:
    plan = Plan(mode=Mode.BALANCED_CONSUMER, consumers=3, streams=2, partitions=2, messages=10)
    found = {(task.place, task.partition_ids) for task in tasks_of(plan)}
    assert found == {((0, 0), (0,)), ((0, 0), (1,)), ((1, 0), (0, 1))}


def test_members_are_spread_over_topics_and_then_groups() -> None:
    plan = Plan(mode=Mode.BALANCED_CONSUMER_GROUP, consumers=4, streams=2, groups=2, partitions=2, seconds=1)
    assert [(task.stream, task.group) for task in tasks_of(plan)] == [(0, 0), (1, 0), (0, 1), (1, 1)]


def test_quotas_add_up() -> None:
    tasks = tasks_of(Plan(mode=Mode.PINNED_PRODUCER, producers=3, streams=3, messages=100))
    assert [task.quota for task in tasks] == [34, 33, 33]


def test_consumers_have_quotas_only_if_nobody_sends() -> None:
    alone = tasks_of(Plan(mode=Mode.PINNED_CONSUMER, consumers=2, streams=2, messages=9))
    assert [task.quota for task in alone] == [5, 4]
    both = tasks_of(Plan(mode=Mode.PINNED_PRODUCER_AND_CONSUMER, messages=9))
    assert [task.quota for task in both] == [9, None]


@pytest.mark.parametrize(
    ("plan", "counts"),
    [
        (Plan(mode=Mode.PINNED_PRODUCER_AND_CONSUMER, producers=2, consumers=3, streams=2), [2, 1, 0, 0, 0]),
        (Plan(mode=Mode.BALANCED_PRODUCER_AND_CONSUMER, producers=2, consumers=2, partitions=4), [1, 1, 0, 0]),
        (
            Plan(mode=Mode.BALANCED_PRODUCER_AND_CONSUMER_GROUP, producers=1, consumers=4, groups=2, partitions=4),
            [2, 0, 0, 0, 0],
        ),
        (Plan(mode=Mode.END_TO_END_PRODUCING_CONSUMER, producers=2, streams=2), [1, 1]),
        (Plan(mode=Mode.END_TO_END_PRODUCING_CONSUMER_GROUP, producers=2, partitions=4), [1, 1]),
    ],
    ids=lambda value: value.mode.value if isinstance(value, Plan) else "",
)
def test_how_often_messages_are_read(plan: Plan, counts: list[int]) -> None:
    assert reader_counts(tasks_of(plan)) == counts


@pytest.mark.parametrize(
    ("plan", "reason"),
    [
        (Plan(mode=Mode.PINNED_PRODUCER), "either a number of messages or a duration"),
        (Plan(mode=Mode.PINNED_PRODUCER, messages=1, seconds=1), "either a number of messages or a duration"),
        (Plan(mode=Mode.PINNED_PRODUCER, seconds=1, rate=1, message_rate=1), "not both"),
        (
            Plan(mode=Mode.PINNED_PRODUCER, seconds=1, message_size=Spread(10**6, 10**6)),
            "exceed the maximum size of a request",
        ),
        (Plan(mode=Mode.PINNED_PRODUCER, seconds=1, is_synced=True, wire=WireName.CLASSIC), "use the 0.9 protocol"),
        (Plan(mode=Mode.BALANCED_CONSUMER, seconds=1, consumers=3, partitions=2), "3 consumers cannot share 2"),
        (Plan(mode=Mode.BALANCED_CONSUMER_GROUP, seconds=1, consumers=1, groups=2), "without a member"),
        (Plan(mode=Mode.END_TO_END_PRODUCING_CONSUMER, seconds=1, producers=2), "a partition each"),
        (
            Plan(mode=Mode.PINNED_PRODUCER_AND_CONSUMER, seconds=1, consumers=2, streams=2),
            "no producer sends to where consumer 1 reads",
        ),
        (
            Plan(mode=Mode.BALANCED_PRODUCER_AND_CONSUMER, seconds=1, consumers=2, streams=2),
            "no producer sends to where consumer 1 reads",
        ),
    ],
)
def test_a_plan_that_cannot_work_is_refused(plan: Plan, reason: str) -> None:
    with pytest.raises(PlanRefused, match=reason):
        check_plan(plan)


@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize("actors", [1, 2, 5])
def test_every_mode_works_with_any_number_of_actors(mode: Mode, actors: int) -> None:
    streams = 1 if mode.is_balanced else actors
    plan = Plan(mode=mode, producers=actors, consumers=actors, streams=streams, partitions=5, seconds=1)
    check_plan(plan)
    assert tasks_of(plan)


@pytest.mark.parametrize(
    ("plan", "count"),
    [
        (Plan(mode=Mode.PINNED_PRODUCER, seconds=1), 0),
        (Plan(mode=Mode.PINNED_CONSUMER, seconds=1, fill_size=1_000_000), 1000),
        (Plan(mode=Mode.PINNED_CONSUMER, seconds=1, fill_size=1_000_000, streams=2, partitions=5), 100),
        (Plan(mode=Mode.PINNED_CONSUMER, messages=50, fill_size=1_000_000), 50),
        (Plan(mode=Mode.BALANCED_CONSUMER_GROUP, messages=5000, fill_size=1_000_000), 5000),
        (Plan(mode=Mode.BALANCED_CONSUMER_GROUP, messages=5000, groups=2, partitions=2), 1250),
        (Plan(mode=Mode.PINNED_CONSUMER, seconds=1, fill_size=1), 1),
    ],
)
def test_what_consumers_find(plan: Plan, count: int) -> None:
    assert fill_count(plan) == count
