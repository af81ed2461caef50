"""Runs a function in Spark tasks: one call per item, the heaviest first. Only the results are returned.

Uses ``mapInArrow`` over a range of numbers, so nothing is shuffled and no row is created per message. The items are
pickled to the tasks with the function.
"""

import pickle
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from pyspark.sql import SparkSession

TASK_SIZE = 32 * 1024 * 1024
"""Approximate weight of a task. Each task costs Spark about 10 ms, so small items share one."""
TASK_COUNT_MAX = 10_000
"""Maximum number of tasks of a job: Spark's driver keeps a record of each."""
_TASKS_PER_CORE = 2
"""So that a core that finishes early has more to do."""
_CORE_COUNT_UNKNOWN = 4
"""Assumed if the session does not tell (Spark Connect)."""

_RESULT = "number BIGINT, result BINARY"

_Item = TypeVar("_Item")
_Outcome = TypeVar("_Outcome")


def run_in_tasks(
    spark: SparkSession,
    work: Callable[[_Item], _Outcome],
    items: Sequence[_Item],
    *,
    weight: Callable[[_Item], int],
) -> list[_Outcome]:
    """Call ``work`` with every item in Spark tasks. Returns the results in the order of the items.

    ``work`` may run twice for an item, because Spark retries a task whose worker died. ``weight`` is in bytes.
    """
    if not items:
        return []
    shares = _shares([weight(item) for item in items], _core_count(spark))
    # Items and their numbers reach the tasks through a closure: ``mapInArrow`` takes a function and nothing else.
    share_count = len(shares)

    def work_on_shares(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa  # type: ignore[import-untyped]  # noqa: PLC0415 -- runs in the worker

        for batch in batches:
            for task in batch.column(0).to_pylist():
                for number in shares[task]:
                    outcome = pickle.dumps(work(items[number]))
                    yield pa.record_batch(
                        [pa.array([number], pa.int64()), pa.array([outcome], pa.binary())], ["number", "result"]
                    )

    rows = spark.range(0, share_count, 1, share_count).mapInArrow(work_on_shares, _RESULT).collect()
    found = {row["number"]: pickle.loads(row["result"]) for row in rows}
    return [found[number] for number in range(len(items))]


def steps_of(items: Sequence[_Item], step_size: int, *, weight: Callable[[_Item], int]) -> list[list[_Item]]:
    """The items in their order, in groups of about ``step_size`` bytes: what a job completes before it goes on."""
    steps: list[list[_Item]] = []
    size = step_size
    for item in items:
        if size >= step_size:
            steps.append([])
            size = 0
        steps[-1].append(item)
        size += weight(item)
    return steps


def _core_count(spark: SparkSession) -> int:
    context = getattr(spark, "_sc", None)
    return int(context.defaultParallelism) if context is not None else _CORE_COUNT_UNKNOWN


def _shares(weights: Sequence[int], core_count: int) -> list[list[int]]:
    """The items of each task. The heaviest come first, so that none of them is started last."""
    wanted = max(sum(weights) // TASK_SIZE, _TASKS_PER_CORE * core_count)
    count = min(len(weights), wanted, TASK_COUNT_MAX)
    order = sorted(range(len(weights)), key=lambda number: -weights[number])
    return [order[task::count] for task in range(count)]
