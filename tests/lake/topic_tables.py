"""Tables of topics for tests: rows with an offset each, a driver that commits them, and readers that are not ours."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import polars
import pyarrow as pa  # type: ignore[import-untyped]  # it has no stubs
from deltalake import DeltaTable
from pyiceberg.catalog import Catalog, load_catalog

from courser.lake.delta_table import DeltaLakeTable
from courser.lake.iceberg_table import IcebergTable
from courser.lake.message_columns import OFFSET, PARTITION, TIMESTAMP
from courser.lake.table_files import open_table_store, rewrite_files, write_files
from courser.lake.table_opening import open_table
from courser.lake.table_place import TablePlace, delta_options, table_place
from courser.lake.tables import (
    Commit,
    MessageRange,
    PartitionField,
    PartitionPosition,
    Patience,
    Table,
    TableDescription,
    TableLayout,
    TopicPosition,
    WrittenFile,
)

TOPIC, OTHER_TOPIC = "0a" * 16, "0b" * 16
NAME = "shop.orders"
BEGIN = datetime(2026, 11, 17, 20, tzinfo=UTC)
COLUMNS = pa.schema(
    [
        pa.field(PARTITION, pa.int32(), nullable=False),
        pa.field(OFFSET, pa.int64(), nullable=False),
        (TIMESTAMP, pa.timestamp("us", tz="UTC")),
        ("country", pa.string()),
        ("id", pa.int64()),
        ("price", pa.decimal128(10, 2)),
        ("weight", pa.float64()),
        ("tags", pa.list_(pa.string())),
        ("address", pa.struct([("city", pa.string())])),
    ]
)
COUNTRIES = ("DE", None, "a b/ü%=:", "", "null")
BY_ALL = (
    PartitionField(source=TIMESTAMP, transform="day"),
    PartitionField(source="country"),
    PartitionField(source="id", transform="bucket", argument=3),
)
QUICK = Patience(first_wait=0.001, wait_max=0.01, limit=20.0)


def rows(first: int, count: int) -> Any:
    """One row for each offset."""
    numbers = range(first, first + count)
    return pa.table(
        [
            pa.array([0] * count, pa.int32()),
            pa.array(numbers, pa.int64()),
            pa.array([BEGIN + number * timedelta(minutes=7) for number in numbers], pa.timestamp("us", tz="UTC")),
            pa.array([COUNTRIES[number % len(COUNTRIES)] for number in numbers]),
            pa.array([number * 11 for number in numbers], pa.int64()),
            pa.array([Decimal(number) / 4 for number in numbers], pa.decimal128(10, 2)),
            pa.array([float("nan") if number % 3 == 0 else number / 2 for number in numbers]),
            pa.array([["a", None] for _ in numbers], pa.list_(pa.string())),
            pa.array([{"city": f"city {number}"} for number in numbers], pa.struct([("city", pa.string())])),
        ],
        schema=COLUMNS,
    )


def at(offset: int, topic: str = TOPIC) -> TopicPosition:
    return TopicPosition(topic=topic, partitions=(PartitionPosition(0, 7, offset),))


def local_place(format_: str, folder: Path) -> TablePlace:
    return table_place(format_, path=str(folder), table=NAME if format_ == "iceberg" else "")


@dataclass
class Runner:
    """A driver and its tasks, in one process."""

    place: TablePlace
    table: Table
    environment: Mapping[str, str]
    attempts: int = 0

    @classmethod
    def at(
        cls,
        place: TablePlace,
        *,
        partition_by: tuple[PartitionField, ...] | None = (),
        columns: Any = COLUMNS,
        environment: Mapping[str, str] | None = None,
        patience: Patience = QUICK,
    ) -> "Runner":
        layout, known = TableLayout(columns=columns, partition_by=partition_by), dict(environment or {})
        table = open_table(place, layout, environment=known, home=Path("/nowhere"), patience=patience)
        return cls(place, table, known)

    def written(self, first: int, count: int, *, topic: str = TOPIC, values: Any = None) -> list[WrittenFile]:
        self.attempts += 1
        source = MessageRange(
            topic=topic,
            partition=0,
            incarnation=7,
            first_offset=first,
            last_offset=first + count - 1,
            attempt=f"{id(self):x}a{self.attempts}",
        )
        description = TableDescription.from_json(self.table.describe().to_json())
        store = open_table_store(self.table.access())
        return write_files(description, rows(first, count) if values is None else values, source, store)

    def prepared(self, first: int, count: int, *, topic: str = TOPIC, values: Any = None) -> Commit:
        """Files that are written, and the commit that would add them."""
        description = self.table.describe()
        return Commit(
            start=None if first == 0 else at(first, topic),
            stop=at(first + count, topic),
            token=f"{id(self):x}-{topic}-{first}",
            files=self.written(first, count, topic=topic, values=values),
            description=description,
            notes={"run": "a test"},
        )

    def append(self, first: int, count: int, **more: Any) -> bool:
        return self.table.commit(self.prepared(first, count, **more))

    def next_offset(self, topic: str = TOPIC) -> int | None:
        position = self.table.standing(topic).position
        return None if position is None else position.next_offset(0)

    def merge(self, *, now: int, target_size: int = 64 << 20) -> int:
        plans = self.table.merge_plans(target_size, now=now)
        for plan in plans:
            self.attempts += 1
            access = self.table.access()
            files = rewrite_files(plan, f"{id(self):x}m{self.attempts}", access, open_table_store(access))
            self.table.commit_merge(plan, files, now=now)
        return len(plans)


# --- the same table, as others see it -----------------------------------------------------------------


def catalog_of(runner: Runner) -> Catalog:
    """A catalog object of somebody else."""
    options = runner.place.store_options(runner.environment, Path("/nowhere"))
    return load_catalog("courser", **runner.place.catalog_properties(options))


def delta_of(runner: Runner) -> DeltaTable:
    return DeltaTable(runner.place.location, storage_options=_delta_options(runner))


def _delta_options(runner: Runner) -> dict[str, str]:
    return delta_options(runner.place.store_options(runner.environment, Path("/nowhere")))


def read(runner: Runner) -> Any:
    """All rows, as an Arrow table, by the library of the format."""
    if isinstance(runner.table, IcebergTable):
        return catalog_of(runner).load_table(NAME).scan().to_arrow()
    assert isinstance(runner.table, DeltaLakeTable)
    return pa.table(delta_of(runner).to_pyarrow_table())


def offsets(runner: Runner) -> list[int]:
    """The offsets of all rows, by the library of the format and by Polars, which have to agree."""
    found = sorted(read(runner)[OFFSET].to_pylist())
    assert sorted(_by_polars(runner)) == found
    return found


def _by_polars(runner: Runner) -> list[int]:
    if isinstance(runner.table, IcebergTable):
        frame = polars.scan_iceberg(catalog_of(runner).load_table(NAME), reader_override="pyiceberg").collect()
    else:
        frame = polars.read_delta(runner.place.location, storage_options=_delta_options(runner))
    return [int(offset) for offset in frame[OFFSET].to_list()]


def offsets_by_duckdb(runner: Runner) -> list[int]:
    """The offsets in the files that the newest state of a local table names."""
    if isinstance(runner.table, IcebergTable):
        tasks = catalog_of(runner).load_table(NAME).scan().plan_files()
        files = [task.file.file_path.removeprefix("file://") for task in tasks]
    else:
        files = delta_of(runner).file_uris()
    found = duckdb.connect().execute(
        f"select {OFFSET} from read_parquet({files!r}, hive_partitioning = false) order by 1"
    )
    return [row[0] for row in found.fetchall()]


def data_files(folder: Path) -> set[str]:
    """All data files that are there, whether a table names them or not."""
    return {path.name for path in folder.rglob("*.parquet") if "_delta_log" not in path.parts}


def foreign_append(runner: Runner, first: int, count: int, topic_partition: int = 99) -> None:
    """Somebody else adds rows, with the library of the format."""
    table = rows(first, count)
    table = table.set_column(0, COLUMNS.field(0), pa.array([topic_partition] * count, pa.int32()))
    if isinstance(runner.table, IcebergTable):
        catalog_of(runner).load_table(NAME).append(table)
    else:
        from deltalake import write_deltalake  # noqa: PLC0415

        write_deltalake(delta_of(runner), table, mode="append", schema_mode="merge")


def state_of(runner: Runner) -> int:
    if isinstance(runner.table, IcebergTable):
        snapshot = catalog_of(runner).load_table(NAME).current_snapshot()
        assert snapshot is not None
        return snapshot.snapshot_id
    return delta_of(runner).version()


def take_back(runner: Runner, state: int) -> None:
    if isinstance(runner.table, IcebergTable):
        catalog_of(runner).load_table(NAME).manage_snapshots().rollback_to_snapshot(state).commit()
    else:
        delta_of(runner).restore(state)
