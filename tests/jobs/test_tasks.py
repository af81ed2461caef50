"""Work in Spark's tasks: everything once, in order, and not a task for every trifle."""

from pyspark.sql import SparkSession

from courser.jobs.tasks import TASK_COUNT_MAX, TASK_SIZE, _shares, run_in_tasks


def doubled(item: int) -> tuple[int, int]:
    return item, 2 * item


def test_outcomes_come_in_the_order_of_the_items(spark: SparkSession) -> None:
    items = list(range(50))
    assert run_in_tasks(spark, doubled, items, weight=lambda item: item) == [(item, 2 * item) for item in items]
    assert run_in_tasks(spark, doubled, [], weight=lambda item: item) == []


def test_small_items_share_tasks_and_large_ones_come_first() -> None:
    assert _shares([1, 5, 3, 4, 2], 1) == [[1, 2, 0], [3, 4]]
    assert len(_shares([TASK_SIZE] * 30, 2)) == 30
    assert len(_shares([1] * 100, 2)) == 4


def test_there_is_an_end_to_the_number_of_tasks() -> None:
    shares = _shares([TASK_SIZE] * (2 * TASK_COUNT_MAX), 2)
    assert len(shares) == TASK_COUNT_MAX
    assert sorted(number for share in shares for number in share) == list(range(2 * TASK_COUNT_MAX))
