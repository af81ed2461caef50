"""Who works where, and which plans are refused."""

import pytest

from courser.bench.plan import ActorTask, Mode, Plan, PlanRefused, Role, Spread, check_plan, fill_count, tasks_of


def places(tasks: list[ActorTask], role: Role) -> list[tuple[int, int]]:
    return [task.place for task in tasks if task.role is role]


def test_actors_have_a_topic_each_and_then_a_partition_each() -> None:
    plan = Plan(mode=Mode.SEND, producers=4, topics=2, partitions=2, messages=10)
    assert places(tasks_of(plan), Role.PRODUCER) == [(0, 0), (1, 0), (0, 1), (1, 1)]


def test_a_consumer_reads_what_the_producer_of_its_number_sends() -> None:
    tasks = tasks_of(Plan(mode=Mode.BOTH, producers=3, consumers=3, topics=3, messages=10))
    assert places(tasks, Role.CONSUMER) == places(tasks, Role.PRODUCER) == [(0, 0), (1, 0), (2, 0)]


def test_quotas_add_up() -> None:
    tasks = tasks_of(Plan(mode=Mode.SEND, producers=3, topics=3, messages=100))
    assert [task.quota for task in tasks] == [34, 33, 33]


def test_a_consumer_reads_all_that_is_sent_to_its_partition() -> None:
    tasks = tasks_of(Plan(mode=Mode.BOTH, producers=3, consumers=3, topics=2, messages=100))
    assert [task.quota for task in tasks if task.role is Role.CONSUMER] == [34 + 33, 33, 34 + 33]


def test_consumers_alone_share_the_quota() -> None:
    assert [task.quota for task in tasks_of(Plan(mode=Mode.POLL, consumers=2, topics=2, messages=9))] == [5, 4]


@pytest.mark.parametrize(
    ("plan", "reason"),
    [
        (Plan(mode=Mode.SEND), "either a number of messages or a duration"),
        (Plan(mode=Mode.SEND, messages=1, seconds=1), "either a number of messages or a duration"),
        (Plan(mode=Mode.SEND, seconds=1, rate=1, message_rate=1), "not both"),
        (Plan(mode=Mode.SEND, seconds=1, message_size=Spread(10**6, 10**6)), "exceed the maximum size of a request"),
        (Plan(mode=Mode.END_TO_END, seconds=1, producers=2), "2 actors need a partition each, but there are only 1"),
        (
            Plan(mode=Mode.BOTH, seconds=1, consumers=2, topics=2),
            "1 producers send to 1 of 2 partitions, but 2 consumers read 2",
        ),
    ],
)
def test_a_plan_that_cannot_work_is_refused(plan: Plan, reason: str) -> None:
    with pytest.raises(PlanRefused, match=reason):
        check_plan(plan)


@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize("actors", [1, 2, 5])
def test_every_mode_works_with_any_number_of_actors(mode: Mode, actors: int) -> None:
    plan = Plan(mode=mode, producers=actors, consumers=actors, topics=actors, seconds=1)
    check_plan(plan)
    assert tasks_of(plan)


@pytest.mark.parametrize(
    ("plan", "count"),
    [
        (Plan(mode=Mode.SEND, seconds=1), 0),
        (Plan(mode=Mode.POLL, seconds=1, fill_size=1_000_000), 1000),
        (Plan(mode=Mode.POLL, seconds=1, fill_size=1_000_000, topics=2, partitions=5), 100),
        (Plan(mode=Mode.POLL, messages=50, fill_size=1_000_000), 50),
        (Plan(mode=Mode.POLL, seconds=1, fill_size=1), 1),
    ],
)
def test_what_consumers_find(plan: Plan, count: int) -> None:
    assert fill_count(plan) == count
