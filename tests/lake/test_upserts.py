"""Upserts into tables, against a dictionary: with rivals, wrong answers, and readers that are not ours."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import duckdb
import polars
import pyarrow as pa  # type: ignore[import-untyped]  # it has no stubs
import pytest
from deltalake import DeltaTable, write_deltalake

from courser.lake.change_events import EnvelopeDecoder
from courser.lake.delta_files import derived
from courser.lake.iceberg_table import IcebergTable
from courser.lake.json_format import JsonFormat
from courser.lake.message_columns import KEY, OFFSET
from courser.lake.schemas import MESSAGE_FIELDS
from courser.lake.table_files import open_table_store
from courser.lake.tables import (
    Commit,
    MessageRange,
    PartitionField,
    PositionMoved,
    TableRefused,
    Upserted,
    UpsertOvertaken,
    UpsertWork,
    WrittenChanges,
)
from courser.lake.upserts import RowChanges, apply_changes, decode_changes, remove_changes, upsert, write_changes
from courser.model.quantities import SECOND
from tests.lake.meddling import Meddling
from tests.lake.topic_tables import NAME, TOPIC, Runner, at, catalog_of, data_files, delta_of, local_place, read

FORMATS = ("iceberg", "delta")
NOW = 2_000_000_000 * SECOND
BATCHES = 8
COLUMNS = pa.schema(
    [
        pa.field("shop", pa.string()),
        pa.field("id", pa.int64()),
        ("name", pa.string()),
        ("color", pa.string()),
        (OFFSET, pa.int64()),
    ]
)
KEYS = {"one": ("id",), "two": ("shop", "id")}
LAYOUTS = {
    "whole": (),
    "buckets": (PartitionField(source="id", transform="bucket", argument=3),),
    "other column": (PartitionField(source="color"),),
}
NAMES = ["shop", "id", "name", OFFSET]
COLORS = ("red", "green", None)
Key = tuple[str, int]
Change = tuple[Key, str | None]
"""A key, and its new name; None deletes it."""


def table_of(changes: Sequence[Change], first: int) -> Any:
    """Rows of changes from an offset on. The color, and so a partition, changes with every offset."""
    offsets = range(first, first + len(changes))
    return pa.table(
        [
            pa.array([key[0] for key, _ in changes], pa.string()),
            pa.array([key[1] for key, _ in changes], pa.int64()),
            pa.array([name for _, name in changes], pa.string()),
            pa.array([COLORS[offset % 3] for offset in offsets], pa.string()),
            pa.array(offsets, pa.int64()),
        ],
        schema=COLUMNS,
    )


@dataclass
class Upserter:
    """A driver and its tasks, in one process."""

    runner: Runner
    key: tuple[str, ...]
    task_count: int = 1
    attempts: int = 0
    works: list[UpsertWork] = field(default_factory=list)

    def written(self, changes: Sequence[Change], first: int) -> list[WrittenChanges]:
        """What tasks make of changes: each has a range of offsets."""
        step = -(-len(changes) // self.task_count) or 1
        found: list[WrittenChanges] = []
        for begin in range(0, len(changes), step):
            part = changes[begin : begin + step]
            rows = table_of(part, first + begin)
            are_deletes = pa.array([name is None for _, name in part])
            found += self.written_rows(RowChanges(rows, rows[OFFSET], are_deletes, ()), first + begin, len(part))
        return found

    def written_rows(self, changes: RowChanges, first: int, count: int) -> list[WrittenChanges]:
        source = MessageRange(
            topic=TOPIC,
            partition=0,
            incarnation=7,
            first_offset=first,
            last_offset=first + count - 1,
            attempt=self._attempt(),
        )
        table = self.runner.table
        return write_changes(table.describe(), self.key, changes, source, open_table_store(table.access()))

    def _attempt(self) -> str:
        self.attempts += 1
        return f"{id(self):x}u{self.attempts}"

    def run(self, works: Sequence[UpsertWork]) -> list[Upserted]:
        self.works = list(works)
        access = self.runner.table.access()
        done = [apply_changes(work, self._attempt(), access, open_table_store(access)) for work in works]
        return [Upserted.from_json(each.to_json()) for each in done]

    def commit(self, first: int, count: int) -> Commit:
        return Commit(
            start=None if first == 0 else at(first),
            stop=at(first + count),
            token=f"{id(self):x}-{first}",
            files=(),
            description=self.runner.table.describe(),
        )

    def apply(self, first: int, changes: Sequence[Change]) -> bool:
        written = self.written(changes, first)
        commit = self.commit(first, len(changes))
        is_new = upsert(self.runner.table, self.key, written, commit, self.run)
        remove_changes(written, open_table_store(self.runner.table.access()))
        return is_new


def started(format_: str, folder: Path, layout: str = "whole", key: str = "one", task_count: int = 1) -> Upserter:
    place = local_place(format_, folder / "table")
    return Upserter(Runner.at(place, columns=COLUMNS, partition_by=LAYOUTS[layout]), KEYS[key], task_count)


def foreign_append(runner: Runner, rows: Any) -> None:
    """Somebody else adds rows, with the library of the format, which knows no buckets of Delta."""
    if isinstance(runner.table, IcebergTable):
        catalog_of(runner).load_table(NAME).append(rows)
        return
    table = delta_of(runner)
    if "id_bucket" in [each.name for each in table.schema().fields]:
        rows = rows.append_column("id_bucket", derived(LAYOUTS["buckets"][0], rows["id"]))
    write_deltalake(table, rows, mode="append")


def stored(runner: Runner) -> list[tuple[str, int, str, int]]:
    """All rows, by the library of the format."""
    return sorted(tuple(row.values()) for row in read(runner).select(NAMES).to_pylist())


def seen(runner: Runner) -> list[tuple[str, int, str, int]]:
    """All rows, as three readers see them, who have to agree."""
    names, found = NAMES, stored(runner)
    if isinstance(runner.table, IcebergTable):
        table = catalog_of(runner).load_table(NAME)
        by_polars = polars.scan_iceberg(table, reader_override="pyiceberg").select(names).collect()
        files = [task.file.file_path.removeprefix("file://") for task in table.scan().plan_files()]
    else:
        by_polars = polars.read_delta(runner.place.location).select(names)
        files = delta_of(runner).file_uris()
    assert sorted(by_polars.rows()) == found
    if files:
        query = f"select {', '.join(names)} from read_parquet({files!r}, hive_partitioning = false)"
        assert sorted(duckdb.connect().execute(query).fetchall()) == found
    return found


# --- against a model ------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("format_", FORMATS)
def test_a_table_is_what_a_dictionary_would_be_whatever_commits_meet(
    format_: str, layout: str, tmp_path: Path, seed: int
) -> None:
    dice = random.Random(seed)
    upserter = started(format_, tmp_path, layout, dice.choice([*KEYS]), task_count=3)
    runner, rival = upserter.runner, started(format_, tmp_path, layout)
    model: dict[Any, tuple[str, int, str, int]] = {}
    position, changes, foreign = 0, list[Change](), iter(range(1_000_000, 2_000_000))

    def kept(key: Key) -> Any:
        return key if len(upserter.key) == 2 else key[1]

    def append_a_new_key() -> None:
        key = ("rival", next(foreign))
        foreign_append(rival.runner, table_of([(key, "foreign")], key[1]))
        model[kept(key)] = (*key, "foreign", key[1])

    def append_a_key_of_the_batch() -> None:
        foreign_append(rival.runner, table_of([(dice.choice(changes)[0], "foreign")], 3_000_000))

    deeds: dict[str, Callable[[], object]] = {
        "append": append_a_new_key,
        "append the same key": append_a_key_of_the_batch,
        "merge": lambda: rival.runner.merge(now=NOW),
        "rival": lambda: rival.apply(position, changes),
    }
    if len(upserter.key) == 2:
        # The rival knows the table by the same key.
        rival.key = upserter.key
    found_elsewhere: list[tuple[object, object]] = []
    meddling = Meddling(runner, dice, deeds)
    for _ in range(BATCHES):
        changes = [
            ((dice.choice("ab"), dice.randrange(12)), dice.choice([None, *"xyz"])) for _ in range(dice.randrange(1, 15))
        ]
        try:
            upserter.apply(position, changes)
        except PositionMoved as moved:
            found_elsewhere.append((moved.found, at(position + len(changes))))
        for offset, (key, name) in enumerate(changes, position):
            model.pop(kept(key), None)
            if name is not None:
                model[kept(key)] = (*key, name, offset)
        position += len(changes)
        assert runner.next_offset() == position
        assert stored(rival.runner) == sorted(model.values()), meddling.done
    assert not meddling.failures
    assert all(found == expected for found, expected in found_elsewhere), "the rival applied the same batch"
    rival.runner.table.remove_orphans(now=NOW)
    assert seen(rival.runner) == sorted(model.values())
    assert not list((tmp_path / "table").rglob("_courser/*")), "changes are removed"


# --- one thing each -------------------------------------------------------------------------------------


@pytest.fixture(params=FORMATS)
def format_(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_only_files_that_hold_a_key_are_written_again(format_: str, tmp_path: Path) -> None:
    upserter = started(format_, tmp_path)
    upserter.apply(0, [(("a", 1), "x")])
    upserter.apply(1, [(("a", 2), "x")])
    before = data_files(tmp_path)
    upserter.apply(2, [(("a", 2), "y")])
    assert len(data_files(tmp_path) - before) == 1
    table = upserter.runner
    paths = _paths(table)
    assert len(paths & before) == 1, "the file of the other key is still part of the table"


def test_only_the_buckets_of_the_keys_are_looked_through(format_: str, tmp_path: Path) -> None:
    upserter = started(format_, tmp_path, "buckets")
    upserter.apply(0, [(("a", number), "x") for number in range(30)])
    upserter.apply(30, [(("a", 3), "y")])
    assert [len(work.sources) for work in upserter.works] == [1]


def test_an_append_to_another_bucket_does_not_overtake_an_upsert(format_: str, tmp_path: Path) -> None:
    upserter = started(format_, tmp_path, "buckets")
    upserter.apply(0, [(("a", number), "x") for number in range(30)])
    bucket = derived(LAYOUTS["buckets"][0], pa.chunked_array([pa.array(range(30), pa.int64())])).to_pylist()
    other = next(number for number in range(30) if bucket[number] != bucket[3])
    plan = upserter.runner.table.plan_upsert(upserter.key, written := upserter.written([(("a", 3), "y")], 30))
    foreign_append(upserter.runner, table_of([(("b", other), "foreign")], 99))
    done = upserter.run(plan.works)
    files = [file for each in done for file in each.files]
    replaced = [path for each in done for path in each.replaced]
    commit = replace(upserter.commit(30, 1), plan=plan, files=files, replaced=replaced)
    assert upserter.runner.table.commit(commit)
    assert len(written) == 1
    assert [row for row in seen(upserter.runner) if row[1] == 3] == [("a", 3, "y", 30)]


def test_an_upsert_that_is_always_overtaken_says_so(format_: str, tmp_path: Path) -> None:
    upserter = started(format_, tmp_path)
    upserter.apply(0, [(("a", 1), "x")])
    count = iter(range(100, 1000))

    def run_among_rivals(works: Sequence[UpsertWork]) -> list[Upserted]:
        foreign_append(upserter.runner, table_of([(("b", next(count)), "foreign")], 99))
        return upserter.run(works)

    written = upserter.written([(("a", 1), "y")], 1)
    with pytest.raises(UpsertOvertaken, match="let only one job write"):
        upsert(upserter.runner.table, upserter.key, written, upserter.commit(1, 1), run_among_rivals)
    assert upserter.runner.next_offset() == 1
    assert ("a", 1, "x", 0) in seen(upserter.runner)


def test_an_older_message_never_replaces_a_newer_one(format_: str, tmp_path: Path) -> None:
    upserter = started(format_, tmp_path, task_count=2)
    upserter.apply(0, [(("a", 1), "old"), (("a", 1), "new")])
    # In one batch the order of tasks says nothing.
    late = [*upserter.written([(("a", 1), "newest")], 3), *upserter.written([(("a", 1), "older")], 2)]
    assert upsert(upserter.runner.table, upserter.key, late, upserter.commit(2, 2), upserter.run)
    assert seen(upserter.runner) == [("a", 1, "newest", 3)]
    # Between batches the position says that it was applied.
    again = upserter.written([(("a", 1), "older")], 2)
    late_commit = replace(upserter.commit(2, 1), token="another")
    with pytest.raises(PositionMoved):
        upsert(upserter.runner.table, upserter.key, again, late_commit, upserter.run)
    assert seen(upserter.runner) == [("a", 1, "newest", 3)]


def test_a_crash_before_the_commit_leaves_only_orphans(format_: str, tmp_path: Path) -> None:
    upserter = started(format_, tmp_path)
    if format_ == "delta":
        delta_of(upserter.runner).alter.set_table_properties({"delta.deletedFileRetentionDuration": "interval 0 hours"})
    upserter.apply(0, [(("a", 1), "x")])
    upserter.run(upserter.runner.table.plan_upsert(upserter.key, upserter.written([(("a", 1), "y")], 1)).works)
    assert upserter.runner.table.remove_orphans(now=NOW) == 0, "a commit may still name them"
    assert upserter.apply(1, [(("a", 1), "z")])
    # Older states of an Iceberg table need the file that was replaced; those of this Delta table are given up.
    assert upserter.runner.table.remove_orphans(now=NOW) == (2 if format_ == "iceberg" else 3)
    assert seen(upserter.runner) == [("a", 1, "z", 1)]
    assert not list((tmp_path / "table").rglob("_courser/*"))


def test_the_last_row_can_go(format_: str, tmp_path: Path) -> None:
    upserter = started(format_, tmp_path)
    upserter.apply(0, [(("a", 1), "x")])
    upserter.apply(1, [(("a", 1), None), (("a", 2), None)])
    assert seen(upserter.runner) == []
    upserter.apply(3, [(("a", 1), "y")])
    assert seen(upserter.runner) == [("a", 1, "y", 3)]


def test_a_table_with_rows_that_are_deleted_beside_their_files_is_refused(tmp_path: Path) -> None:
    upserter = started("delta", tmp_path)
    upserter.apply(0, [(("a", 1), "x")])
    _delta_feature(tmp_path, "deletionVectors")
    with pytest.raises(TableRefused, match="deletion vectors"):
        upserter.runner.table.plan_upsert(upserter.key, upserter.written([(("a", 1), "y")], 1))


def test_a_table_that_takes_only_new_rows_is_refused(tmp_path: Path) -> None:
    upserter = started("delta", tmp_path)
    delta_of(upserter.runner).alter.set_table_properties({"delta.appendOnly": "true"})
    upserter.runner.table.standing(TOPIC)
    with pytest.raises(TableRefused, match=r"delta\.appendOnly"):
        upserter.runner.table.plan_upsert(upserter.key, upserter.written([(("a", 1), "y")], 0))


def test_files_of_an_older_partitioning_are_refused(tmp_path: Path) -> None:
    upserter = started("iceberg", tmp_path)
    upserter.apply(0, [(("a", 1), "x")])
    with catalog_of(upserter.runner).load_table(NAME).update_spec() as update:
        update.add_identity("color")
    again = Upserter(Runner.at(upserter.runner.place, columns=COLUMNS, partition_by=None), upserter.key)
    with pytest.raises(TableRefused, match="older way"):
        again.runner.table.plan_upsert(again.key, again.written([(("a", 1), "y")], 1))


def test_rows_that_somebody_deletes_stay_deleted(format_: str, tmp_path: Path) -> None:
    upserter = started(format_, tmp_path)
    upserter.apply(0, [(("a", 1), "x"), (("a", 2), "x")])
    if format_ == "iceberg":
        catalog_of(upserter.runner).load_table(NAME).delete("id = 2")
    else:
        delta_of(upserter.runner).delete("id = 2")
    upserter.apply(2, [(("a", 1), "y")])
    assert seen(upserter.runner) == [("a", 1, "y", 2)]


# --- messages become changes ----------------------------------------------------------------------------


def _messages(keys: Sequence[bytes | None], first: int = 0) -> Any:
    columns = [
        ["shop/orders"] * len(keys),
        [0] * len(keys),
        [*range(first, first + len(keys))],
        [0] * len(keys),
        [*keys],
    ]
    arrays = [pa.array(values, kind.type) for values, kind in zip(columns, MESSAGE_FIELDS, strict=True)]
    return pa.Table.from_arrays(arrays, schema=MESSAGE_FIELDS)


JSON = pa.schema([("id", pa.int64()), ("name", pa.string())])


def test_an_empty_payload_deletes_the_row_of_its_message_key() -> None:
    payloads = pa.array([b'{"id": 1}', b"", b'{"id": 2}', b"{", b""])
    changes = decode_changes(
        JsonFormat(JSON), payloads, _messages([b"a", b"a", None, b"c", None]), [KEY], with_messages=True
    )
    found = zip(
        changes.rows[KEY].to_pylist(), changes.offsets.to_pylist(), changes.are_deletes.to_pylist(), strict=True
    )
    assert sorted(found) == [(b"a", 0, False), (b"a", 1, True)]
    assert [bad.index for bad in changes.bad] == [2, 3, 4]
    assert changes.bad[0].reason == "it has no value for the key _topic_key"


def test_an_empty_payload_cannot_delete_by_a_field_that_it_does_not_have() -> None:
    changes = decode_changes(
        JsonFormat(JSON), pa.array([b'{"id": 1}', b""]), _messages([b"a", b"a"]), ["id"], with_messages=False
    )
    assert changes.rows.to_pylist() == [{"id": 1, "name": None}]
    assert [bad.index for bad in changes.bad] == [1]
    assert changes.bad[0].reason == (
        "the payload is empty, so it has no value for the key id; key the table by _topic_key"
    )


def test_events_of_debezium_insert_update_and_delete(format_: str, tmp_path: Path) -> None:
    upserter = started(format_, tmp_path, "buckets")
    schema = pa.schema([field for field in COLUMNS if field.name in ("id", "name")])
    payloads = pa.array(
        [
            b'{"op": "c", "after": {"id": 1, "name": "x"}}',
            b'{"op": "c", "after": {"id": 2, "name": "x"}}',
            b'{"op": "u", "before": {"id": 1}, "after": {"id": 1, "name": "y"}}',
            b'{"op": "d", "before": {"id": 2}}',
            b"",
        ]
    )
    changes = decode_changes(
        EnvelopeDecoder(schema, ["id"]),
        payloads,
        _messages([b"1", b"2", b"1", b"2", b"2"]),
        ["id"],
        with_messages=False,
    )
    written = upserter.written_rows(changes, 0, 5)
    assert upsert(upserter.runner.table, upserter.key, written, upserter.commit(0, 5), upserter.run)
    assert read(upserter.runner).select(["id", "name"]).to_pylist() == [{"id": 1, "name": "y"}]


def _paths(runner: Runner) -> set[str]:
    if isinstance(runner.table, IcebergTable):
        tasks = catalog_of(runner).load_table(NAME).scan().plan_files()
        return {task.file.file_path.rpartition("/")[2] for task in tasks}
    return {path.rpartition("/")[2] for path in delta_of(runner).file_uris()}


def _delta_feature(folder: Path, name: str) -> None:
    table = DeltaTable(str(folder / "table"))
    table.alter.set_table_properties({"delta.enableDeletionVectors": "true"})
    assert name in (table.protocol().reader_features or ())
