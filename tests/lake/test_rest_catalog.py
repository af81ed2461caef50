"""Iceberg's own REST catalog, from Maven, and a front that lies about commits: `make check-catalog` gets the jars."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa  # type: ignore[import-untyped]  # it has no stubs
import pytest

from courser.lake.table_place import table_place
from courser.lake.tables import LayoutMoved, PositionMoved
from courser.model.quantities import SECOND
from tests.lake.lying_front import lying_front
from tests.lake.topic_tables import BY_ALL, NAME, Runner, catalog_of, foreign_append, offsets

pytestmark = pytest.mark.tools

JARS = Path(__file__).parents[2] / "build" / "rest-catalog"
PROGRAM = Path(__file__).parent / "rest_catalog" / "LoopbackCatalog.java"
ROUNDS = 30
NOW = 2_000_000_000 * SECOND


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[str]:
    """The address of an empty catalog."""
    place = [f"jdbc:sqlite:{tmp_path / 'catalog.db'}", (tmp_path / "warehouse").as_uri()]
    process = subprocess.Popen(
        ["java", "-cp", f"{JARS}/*", PROGRAM, *place],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    try:
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
    finally:
        process.communicate()


def start(address: str) -> Runner:
    return Runner.at(table_place("iceberg", table=NAME, catalog=address), partition_by=BY_ALL)


def test_every_row_is_there_once_though_the_catalog_lies(catalog: str, seed: int) -> None:
    direct = start(catalog)
    with lying_front(catalog, r"/tables/[^/]+$", seed) as front:
        runner = start(front.address)
        for number in range(ROUNDS):
            assert runner.append(number * 3, 3)
            if number % 5 == 0:
                foreign_append(direct, 1000 + number, 1)
        runner.merge(now=NOW)
        runner.table.expire(older_than=NOW)
    assert len(front.told) > ROUNDS // 4
    assert direct.next_offset() == 3 * ROUNDS
    assert offsets(direct) == [*range(3 * ROUNDS), *range(1000, 1000 + ROUNDS, 5)], front.told
    assert direct.append(3 * ROUNDS, 3)


def test_the_catalog_refuses_the_second_of_two_runners(catalog: str) -> None:
    runner, rival = start(catalog), start(catalog)
    runner.append(0, 5)
    late, other = rival.prepared(5, 5), runner.prepared(5, 7)
    send = rival.table._catalog.commit_table  # type: ignore[attr-defined]

    def overtaken(*values: object) -> object:
        # Between the rival's look and its commit.
        if runner.next_offset() == 5:
            runner.table.commit(other)
        return send(*values)

    rival.table._catalog.commit_table = overtaken  # type: ignore[attr-defined]
    with pytest.raises(PositionMoved, match=r"is at offsets \{0: 12\}"):
        rival.table.commit(late)
    assert offsets(runner) == list(range(12))


def test_columns_and_rollbacks_of_others_are_seen(catalog: str) -> None:
    runner, other = start(catalog), start(catalog)
    runner.append(0, 5)
    state = catalog_of(runner).load_table(NAME).current_snapshot()
    assert state is not None
    runner.append(5, 5)
    commit = runner.prepared(10, 5)
    other.table.evolve(pa.schema([("rival", pa.string())]))
    with pytest.raises(LayoutMoved):
        runner.table.commit(commit)
    catalog_of(runner).load_table(NAME).manage_snapshots().rollback_to_snapshot(state.snapshot_id).commit()
    assert runner.table.standing(commit.stop.topic).is_rolled_back
    assert runner.append(5, 5)
    assert offsets(other) == list(range(10))
