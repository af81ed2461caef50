"""Rows and position of a topic in one commit: both formats, in a folder, with readers that are not ours."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]  # it has no stubs
import pyarrow.compute as pc  # type: ignore[import-untyped]
import pytest
from deltalake import DeltaTable

from courser.lake import delta, iceberg
from courser.lake.iceberg_table import IcebergTable
from courser.lake.message_columns import MESSAGE_COLUMNS, OFFSET, RESERVED
from courser.lake.table_files import open_table_store
from courser.lake.table_mismatch import TableMismatch
from courser.lake.table_opening import find_table
from courser.lake.tables import (
    Commit,
    CommitUnsettled,
    LayoutMoved,
    PartitionField,
    Patience,
    PositionMoved,
    PositionUnknown,
    Standing,
    TableRefused,
    TopicPosition,
)
from courser.model.quantities import SECOND
from tests.lake.topic_tables import (
    BEGIN,
    BY_ALL,
    COLUMNS,
    COUNTRIES,
    NAME,
    OTHER_TOPIC,
    TOPIC,
    Runner,
    at,
    catalog_of,
    data_files,
    delta_of,
    foreign_append,
    local_place,
    offsets,
    offsets_by_duckdb,
    read,
    rows,
    state_of,
    take_back,
)

FORMATS = ("iceberg", "delta")
NOW = 2_000_000_000 * SECOND


@pytest.fixture(params=FORMATS)
def start(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., Runner]:
    return lambda **more: Runner.at(local_place(request.param, tmp_path / "table"), **more)


Start = Callable[..., Runner]


# --- rows and position --------------------------------------------------------------------------------


def test_rows_and_position_are_in_one_commit(start: Start) -> None:
    runner = start()
    assert runner.table.standing(TOPIC) == Standing(None)
    assert runner.append(0, 10)
    assert runner.append(10, 5)
    assert start().table.standing(TOPIC) == Standing(at(15))
    assert offsets(runner) == offsets_by_duckdb(runner) == list(range(15))


def test_values_come_back_as_they_were_whatever_the_partitions(start: Start) -> None:
    runner = start(partition_by=BY_ALL)
    runner.append(0, 60)
    found = read(runner).sort_by(OFFSET).select(COLUMNS.names)
    expected = rows(0, 60)
    is_delta = not isinstance(runner.table, IcebergTable)
    for name in COLUMNS.names:
        given = expected[name].to_pylist()
        if name == "country" and is_delta:
            given = [value or None for value in given]
        assert str(found[name].to_pylist()) == str(given), name


@pytest.mark.parametrize("country", [country for country in COUNTRIES if country])
def test_readers_find_the_rows_of_a_partition(start: Start, country: str) -> None:
    runner = start(partition_by=BY_ALL)
    runner.append(0, 60)
    expected = [number for number in range(60) if COUNTRIES[number % len(COUNTRIES)] == country and number >= 40]
    if isinstance(runner.table, IcebergTable):
        condition = f"country = '{country}' and {OFFSET} >= 40"
        found = catalog_of(runner).load_table(NAME).scan(row_filter=condition).to_arrow()
    else:
        condition = (pc.field("country") == country) & (pc.field(OFFSET) >= 40)
        found = delta_of(runner).to_pyarrow_dataset().to_table(filter=condition)
    assert sorted(found[OFFSET].to_pylist()) == expected


@pytest.mark.parametrize("transform", ["year", "month", "day", "hour"])
def test_a_time_divides_files_by_its_part(start: Start, transform: Any) -> None:
    runner = start(partition_by=(PartitionField(source="_topic_timestamp", transform=transform),))
    runner.append(0, 60)
    ends = {
        "year": 1,
        "month": 1,
        "day": 2,
        "hour": len({(BEGIN.hour * 60 + number * 7) // 60 for number in range(60)}),
    }
    assert len(data_files(Path(runner.place.location))) == ends[transform]
    assert offsets(runner) == list(range(60))


def test_a_commit_that_starts_elsewhere_is_refused(start: Start) -> None:
    runner, rival = start(), start()
    runner.append(0, 10)
    late, other = rival.prepared(10, 5), runner.prepared(10, 8)
    assert runner.table.commit(other)
    with pytest.raises(PositionMoved, match=r"is at offsets \{0: 18\}, but the commit starts at offsets \{0: 10\}"):
        rival.table.commit(late)
    assert offsets(runner) == list(range(18))


def test_the_same_commit_again_changes_nothing(start: Start) -> None:
    runner = start()
    commit = runner.prepared(0, 10)
    assert runner.table.commit(commit)
    assert not runner.table.commit(commit)
    assert not start().table.commit(commit), "also after a crash"
    assert offsets(runner) == list(range(10))


def test_a_commit_without_files_moves_the_position(start: Start) -> None:
    runner = start()
    runner.append(0, 10)
    empty = Commit(start=at(10), stop=at(20), token="all bad", files=[], description=runner.table.describe())
    assert runner.table.commit(empty)
    assert runner.next_offset() == 20
    assert offsets(runner) == list(range(10))


def test_topics_in_one_table_do_not_disturb_each_other(start: Start) -> None:
    runner = start()
    runner.append(0, 10)
    assert runner.next_offset(OTHER_TOPIC) is None
    runner.append(0, 4, topic=OTHER_TOPIC)
    runner.append(10, 5)
    assert (runner.next_offset(), runner.next_offset(OTHER_TOPIC)) == (15, 4)
    assert offsets(runner) == sorted([*range(15), *range(4)])


def test_partitions_are_remembered_with_their_incarnation(start: Start) -> None:
    runner = start()
    positions = TopicPosition.from_json(f'{{"topic": "{TOPIC}", "partitions": {{"0": [7, 5], "2": [9, 0]}}}}')
    runner.table.commit(
        Commit(start=None, stop=positions, token="x", files=runner.written(0, 5), description=runner.table.describe())
    )
    assert start().table.standing(TOPIC) == Standing(positions)


# --- others -------------------------------------------------------------------------------------------


def test_rows_of_others_stay_and_come_between(start: Start) -> None:
    runner = start()
    runner.append(0, 10)
    commit = runner.prepared(10, 5)
    foreign_append(runner, 100, 3)
    assert runner.table.commit(commit)
    assert runner.table.standing(TOPIC) == Standing(at(15))
    assert offsets(runner) == [*range(15), 100, 101, 102]


def test_a_table_that_others_made_is_continued(start: Start, tmp_path: Path) -> None:
    runner = start(partition_by=None)
    foreign_append(runner, 100, 3)
    again = start(partition_by=None)
    assert again.append(0, 5)
    assert offsets(again) == [*range(5), 100, 101, 102]


def test_a_column_that_somebody_adds_in_between_has_the_files_written_again(start: Start) -> None:
    runner = start()
    runner.append(0, 10)
    commit = runner.prepared(10, 5)
    start().table.evolve(pa.schema([("rival", pa.string())]))
    with pytest.raises(LayoutMoved, match="write the files again"):
        runner.table.commit(commit)
    assert runner.append(10, 5)
    assert offsets(runner) == list(range(15))


def test_a_table_that_was_taken_back_goes_on_from_there(start: Start) -> None:
    runner = start()
    runner.append(0, 10)
    back = state_of(runner)
    runner.append(10, 5)
    commit = runner.prepared(15, 5)
    take_back(runner, back)
    foreign_append(runner, 100, 3)
    with pytest.raises(PositionMoved):
        runner.table.commit(commit)
    assert runner.table.standing(TOPIC) == Standing(at(10), is_rolled_back=True)
    assert start().table.standing(TOPIC) == Standing(at(10), is_rolled_back=True)
    assert runner.append(10, 20)
    assert start().table.standing(TOPIC) == Standing(at(30))
    assert offsets(runner) == [*range(30), 100, 101, 102]


# --- columns ------------------------------------------------------------------------------------------


def test_new_columns_come_before_the_rows_that_have_them(start: Start) -> None:
    runner = start()
    runner.append(0, 10)
    assert runner.table.evolve(pa.schema([pa.field("colour", pa.string(), nullable=False)]))
    assert not runner.table.evolve(pa.schema([("colour", pa.string())]))
    runner.append(10, 5, values=rows(10, 5).append_column("colour", pa.array(["red"] * 5)))
    runner.append(15, 2)
    found = read(runner).sort_by(OFFSET)
    assert found["colour"].to_pylist() == [None] * 10 + ["red"] * 5 + [None] * 2


def test_rows_that_do_not_fit_are_refused_by_the_task(start: Start) -> None:
    runner = start()
    for values, words in (
        (rows(0, 2).append_column("unknown", pa.nulls(2)), "it has no column unknown"),
        (rows(0, 2).set_column(4, "id", pa.array(["a", "b"])), "column id"),
        (rows(0, 2).set_column(1, OFFSET, pa.nulls(2, pa.int64())), "must have a value in every row"),
    ):
        with pytest.raises(TableMismatch, match=words):
            runner.written(0, 2, values=values)


def test_a_column_of_another_type_is_refused(start: Start) -> None:
    runner = start()
    with pytest.raises(TableMismatch, match="id"):
        runner.table.evolve(pa.schema([("id", pa.string())]))


def test_iceberg_widens_a_type_and_delta_says_that_it_cannot(start: Start) -> None:
    columns = pa.schema([*COLUMNS, ("count", pa.int32())])
    runner = start(columns=columns)
    runner.append(0, 2, values=rows(0, 2).append_column("count", pa.array([1, 2], pa.int32())))
    wider = pa.schema([("count", pa.int64())])
    if not isinstance(runner.table, IcebergTable):
        with pytest.raises(TableMismatch, match="Delta tables cannot change it"):
            runner.table.evolve(wider)
        return
    assert runner.table.evolve(wider)
    runner.append(2, 1, values=rows(2, 1).append_column("count", pa.array([2**40], pa.int64())))
    assert read(runner).sort_by(OFFSET)["count"].to_pylist() == [1, 2, 2**40]


# --- what is refused ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(RESERVED))
def test_a_name_that_a_format_reserves_is_refused(start: Start, name: str) -> None:
    with pytest.raises(TableRefused, match=f"the column {name} has a name that tables reserve"):
        start(columns=pa.schema([(name, pa.int32())]))
    assert name not in MESSAGE_COLUMNS


def test_another_partitioning_than_that_of_the_table_is_refused(start: Start) -> None:
    start(partition_by=(PartitionField(source="country"),))
    with pytest.raises(TableRefused, match=r"it is partitioned by .*country; say the same"):
        start(partition_by=(PartitionField(source="id"),))
    assert start(partition_by=None).append(0, 10)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"columns": pa.schema([("a", pa.int32()), ("A", pa.int32())])}, "do not tell upper case"),
        ({"partition_by": (PartitionField(source="nothing"),)}, "there is no such column"),
        ({"partition_by": (PartitionField(source="id", transform="bucket"),)}, "need a number"),
    ],
)
def test_a_layout_that_cannot_be_is_refused(start: Start, values: dict[str, Any], words: str) -> None:
    with pytest.raises(TableRefused, match=words):
        start(**values)


@pytest.mark.parametrize(
    ("properties", "words"),
    [
        (
            {"delta.columnMapping.mode": "name", "delta.minReaderVersion": "2", "delta.minWriterVersion": "5"},
            "column mapping",
        ),
        ({"delta.setTransactionRetentionDuration": "interval 7 days"}, "forgets application transactions"),
    ],
)
def test_a_delta_table_that_would_be_damaged_is_refused(tmp_path: Path, properties: dict[str, str], words: str) -> None:
    folder = tmp_path / "table"
    DeltaTable.create(folder, COLUMNS)
    log = next((folder / "_delta_log").glob("*.json"))
    pairs = ",".join(f'"{name}":"{value}"' for name, value in properties.items())
    log.write_text(log.read_text().replace('"configuration":{}', f'"configuration":{{{pairs}}}'))
    with pytest.raises(TableRefused, match=words):
        Runner.at(local_place("delta", folder), partition_by=None)


def test_an_iceberg_table_of_version_3_is_refused(tmp_path: Path) -> None:
    place = local_place("iceberg", tmp_path / "table")
    runner = Runner.at(place)
    table = catalog_of(runner).load_table(NAME)
    location = Path(table.metadata_location.removeprefix("file://"))
    text = location.read_text()
    location.write_text(text.replace('"format-version":2', '"format-version":3,"next-row-id":0'))
    with pytest.raises(TableRefused, match="it has format version 3, and only 1 and 2 can be written"):
        Runner.at(place)


def test_a_catalog_that_does_not_answer_leaves_the_commit_unsettled(start: Start) -> None:
    runner = start(patience=Patience(first_wait=0.001, limit=0.05))
    commit = runner.prepared(0, 10)
    _hide(runner, is_hidden=True)
    with pytest.raises(CommitUnsettled, match="try again when it can be reached"):
        runner.table.commit(commit)
    _hide(runner, is_hidden=False)
    assert runner.table.commit(commit)
    assert offsets(runner) == list(range(10))


def _hide(runner: Runner, *, is_hidden: bool) -> None:
    """The catalog or the log is away, as a share that is not mounted is."""
    name = "catalog.db" if isinstance(runner.table, IcebergTable) else "_delta_log"
    here = Path(runner.place.location) / name
    away = here.with_name("away")
    if is_hidden:
        here.rename(away)
        here.mkdir() if name == "catalog.db" else here.write_text("")
    else:
        here.rmdir() if name == "catalog.db" else here.unlink()
        away.rename(here)


# --- maintenance --------------------------------------------------------------------------------------


def test_small_files_become_one_and_the_position_stays(start: Start) -> None:
    runner = start()
    for number in range(6):
        runner.append(number * 5, 5)
    runner.append(0, 3, topic=OTHER_TOPIC)
    foreign_append(runner, 100, 3)
    before = len(offsets_of_files(runner))
    assert runner.merge(now=NOW) == 1
    assert len(offsets_of_files(runner)) < before
    assert (runner.next_offset(), runner.next_offset(OTHER_TOPIC)) == (30, 3)
    assert offsets(runner) == sorted([*range(30), *range(3), 100, 101, 102])
    assert runner.merge(now=NOW) == 0, "what is merged is not merged again"
    assert runner.append(30, 5)


def offsets_of_files(runner: Runner) -> list[str]:
    if isinstance(runner.table, IcebergTable):
        return [task.file.file_path for task in catalog_of(runner).load_table(NAME).scan().plan_files()]
    return delta_of(runner).file_uris()


def test_columns_that_came_later_survive_a_merge(start: Start) -> None:
    runner = start(partition_by=BY_ALL)
    for number in range(5):
        runner.append(number * 30, 30)
    runner.table.evolve(pa.schema([("colour", pa.string())]))
    runner.append(150, 30, values=rows(150, 30).append_column("colour", pa.array(["red"] * 30)))
    before = read(runner).sort_by(OFFSET).to_pydict()
    assert runner.merge(now=NOW)
    assert str(read(runner).sort_by(OFFSET).to_pydict()) == str(before)


def test_orphans_go_and_nothing_else(start: Start, tmp_path: Path) -> None:
    runner = start()
    if not isinstance(runner.table, IcebergTable):
        delta_of(runner).alter.set_table_properties({"delta.deletedFileRetentionDuration": "interval 0 hours"})
    runner.append(0, 10)
    abandoned = runner.written(0, 10)[0].path.rpartition("/")[2]
    in_flight = runner.prepared(10, 5)
    runner.append(0, 4, topic=OTHER_TOPIC)
    foreign_append(runner, 100, 3)
    before = data_files(tmp_path)
    assert runner.table.remove_orphans(now=NOW) == 1
    assert before - data_files(tmp_path) == {abandoned}
    assert runner.table.commit(in_flight), "a file that may still be committed stays"
    assert offsets(runner) == [*sorted([*range(15), *range(4)]), 100, 101, 102]


def test_expiry_keeps_the_positions_of_all_topics(start: Start) -> None:
    runner = start()
    runner.append(0, 4, topic=OTHER_TOPIC)
    for number in range(8):
        runner.append(number * 5, 5)
    runner.merge(now=NOW)
    expired = runner.table.expire(older_than=NOW)
    if isinstance(runner.table, IcebergTable):
        assert expired >= 9
        assert len(catalog_of(runner).load_table(NAME).snapshots()) == 1
    assert (runner.next_offset(), runner.next_offset(OTHER_TOPIC)) == (40, 4)
    assert start().append(40, 5)
    assert runner.append(4, 4, topic=OTHER_TOPIC)
    assert offsets(runner) == sorted([*range(45), *range(8)])


def _without_tag(runner: Runner) -> None:
    """Somebody tidies up what they do not know."""
    catalog_of(runner).load_table(NAME).manage_snapshots().remove_tag(f"courser-{TOPIC}").commit()


def test_our_expiry_brings_back_a_tag_that_somebody_removed(tmp_path: Path) -> None:
    runner = Runner.at(local_place("iceberg", tmp_path / "table"))
    runner.append(0, 5)
    foreign_append(runner, 100, 3)
    _without_tag(runner)
    assert runner.next_offset() == 5
    runner.table.expire(older_than=NOW)
    assert f"courser-{TOPIC}" in catalog_of(runner).load_table(NAME).refs()
    assert runner.append(5, 5)
    assert offsets(runner) == [*range(10), 100, 101, 102]


def test_a_position_that_somebody_removed_with_its_tag_is_unknown_and_not_the_beginning(tmp_path: Path) -> None:
    runner = Runner.at(local_place("iceberg", tmp_path / "table"))
    runner.append(0, 5)
    _without_tag(runner)
    foreign_append(runner, 100, 3)
    table = catalog_of(runner).load_table(NAME)
    table.maintenance.expire_snapshots().by_id(table.metadata.snapshots[0].snapshot_id).commit()
    with pytest.raises(PositionUnknown, match="removed the tag"):
        runner.next_offset()
    assert runner.next_offset(OTHER_TOPIC) is None, "a topic that was never here begins at its start"


def test_a_position_stays_when_somebody_expires_the_way_to_it(tmp_path: Path) -> None:
    runner = Runner.at(local_place("iceberg", tmp_path / "table"))
    runner.append(0, 5)
    foreign_append(runner, 100, 3)
    foreign_append(runner, 200, 3)
    table = catalog_of(runner).load_table(NAME)
    table.maintenance.expire_snapshots().by_id(table.metadata.snapshots[1].snapshot_id).commit()
    assert runner.table.standing(TOPIC) == Standing(at(5))


def test_iceberg_tables_keep_no_file_that_expired(tmp_path: Path) -> None:
    runner = Runner.at(local_place("iceberg", tmp_path / "table"))
    for number in range(8):
        runner.append(number * 5, 5)
    runner.merge(now=NOW)
    runner.table.expire(older_than=NOW)
    snapshot = catalog_of(runner).load_table(NAME).current_snapshot()
    assert snapshot is not None
    assert len(data_files(tmp_path)) == 1
    manifests = [manifest.manifest_path for manifest in snapshot.manifests(catalog_of(runner).load_table(NAME).io)]
    named = {Path(path).name for path in (snapshot.manifest_list, *manifests)}
    assert {path.name for path in tmp_path.rglob("*.avro")} == named


def test_a_task_that_is_repeated_under_one_name_writes_one_file(start: Start) -> None:
    runner = start()
    store = open_table_store(runner.table.access())
    first = runner.written(0, 5)
    runner.attempts -= 1
    assert runner.written(0, 5) == first
    assert len(list(store.list_objects(""))) >= 1


# --- tables of versions without positions ---


@pytest.mark.parametrize("names", [("_partition", "_offset"), ("stream", "topic", "partition", "offset")])
@pytest.mark.parametrize("kind", FORMATS)
def test_rows_of_a_version_without_positions_are_noticed(tmp_path: Path, kind: str, names: tuple[str, ...]) -> None:
    batch = pa.record_batch([pa.array([1])] * len(names), names=list(names))
    place = local_place(kind, tmp_path / "table")
    if kind == "delta":
        delta.append(place.location, [batch], batch.schema, application="query", batch=4)
    else:
        catalog = iceberg.open_catalog(Path(place.location))
        iceberg.append(catalog, place.table, [batch], batch.schema, application="query", batch=4)
    found = find_table(place)
    assert found is not None
    assert found.earlier_batch("query") == 4
    assert found.earlier_batch(None) is not None, "a pipeline without its checkpoint would take every row again"


def test_a_table_of_others_has_no_rows_of_ours(start: Callable[..., Runner]) -> None:
    runner = start()
    runner.table.commit(runner.prepared(0, 10))
    assert runner.table.earlier_batch(None) is None
