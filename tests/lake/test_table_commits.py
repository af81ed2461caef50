"""Commits among rivals and wrong answers: every row once, from a seed, with real catalogs, logs and stores.

A catalog or a store may do what it was asked and say that it failed, fail and say nothing, or do it twice; somebody
else may add rows, columns, or merge files right before a commit. Whatever happens, rows and position agree.
"""

import random
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]  # it has no stubs
import pytest

from courser.lake.message_columns import OFFSET, PARTITION
from courser.lake.tables import LayoutMoved, PositionMoved
from courser.model.quantities import SECOND
from tests.lake.meddling import Meddling
from tests.lake.topic_tables import (
    OTHER_TOPIC,
    Runner,
    at,
    foreign_append,
    local_place,
    offsets,
    read,
    state_of,
    take_back,
)

NOW = 2_000_000_000 * SECOND
ROUNDS = 20


@pytest.mark.parametrize("format_", ["iceberg", "delta"])
def test_a_table_that_is_taken_back_right_before_a_commit_does_not_get_it(format_: str, tmp_path: Path) -> None:
    runner = Runner.at(local_place(format_, tmp_path / "table"))
    runner.append(0, 5)
    back = state_of(runner)
    runner.append(5, 5)
    commit = runner.prepared(10, 5)
    Meddling(runner, Once("rollback"), {"rollback": lambda: take_back(runner, back)})
    with pytest.raises(PositionMoved):
        runner.table.commit(commit)
    assert runner.next_offset() == 5
    assert offsets(runner) == list(range(5))


class Once(random.Random):
    """Dice that fall on one side the first time."""

    def __init__(self, first: str) -> None:
        super().__init__(0)
        self._rest = [first]

    def choice(self, values: Any) -> Any:
        return self._rest.pop() if self._rest else "nothing"


@pytest.mark.parametrize("format_", ["iceberg", "delta"])
def test_every_row_is_there_once_whatever_a_commit_meets(format_: str, tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    place = local_place(format_, tmp_path / "table")
    runner, rival = Runner.at(place), Runner.at(place)
    foreign, columns = iter(range(1_000_000)), iter(range(1_000))
    added = 0

    def append_foreign() -> None:
        nonlocal added
        added += 1
        foreign_append(rival, 1_000_000 + next(foreign), 1)

    def add_column() -> None:
        rival.table.evolve(pa.schema([(f"column_{next(columns)}", pa.int32())]))

    def take_the_same_rows() -> None:
        rival.table.commit(rival.prepared(position, size))

    def append_other_topic() -> None:
        there = rival.next_offset(OTHER_TOPIC) or 0
        rival.append(there, 2, topic=OTHER_TOPIC)

    deeds = {
        "foreign append": append_foreign,
        "foreign column": add_column,
        "foreign merge": lambda: rival.merge(now=NOW),
        "rival": take_the_same_rows,
        "other topic": append_other_topic,
    }
    position, size, rivals = 0, 3, 0
    found_elsewhere: list[tuple[object, object]] = []
    meddling = Meddling(runner, dice, deeds)
    for _ in range(ROUNDS):
        size = dice.randrange(1, 4)
        while (runner.next_offset() or 0) == position:
            try:
                runner.append(position, size)
            except LayoutMoved:
                continue
            except PositionMoved as moved:
                # Not our own commit, whose answer was lost: that one is recognised.
                found_elsewhere.append((moved.found, at(position + size)))
                rivals += meddling.done[-1] == "rival"
        position += size
        assert runner.next_offset() == position, meddling.done
    assert not meddling.failures
    assert all(found == expected for found, expected in found_elsewhere), "only the rival is further"
    assert len(found_elsewhere) == rivals, meddling.done
    others = rival.next_offset(OTHER_TOPIC) or 0
    found = read(rival)
    own = [
        offset
        for offset, partition in zip(found[OFFSET].to_pylist(), found[PARTITION].to_pylist(), strict=True)
        if partition == 0
    ]
    assert sorted(own) == sorted([*range(position), *range(others)]), meddling.done
    assert found.num_rows == len(own) + added
    rival.table.remove_orphans(now=NOW)
    assert runner.next_offset() == position
    assert len(offsets(rival)) == found.num_rows
