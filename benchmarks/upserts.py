"""Upserts by key into a Delta table, beside the merge of Delta's own library: the same rows, in one process each.

Keys of the batch are old and new ones, half each. Both tables have the same rows, in the same buckets of the key. The
targets are for processor time, so that other work on the machine counts little: one side uses several threads.
"""

import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness import Bench, Bound, Row, Target, Weight

_ROW_SIZE = 26
"""Bytes of a row, about: how many rows make the size that other cases read."""
_ROWS_MAX = 10_000_000
_SHARE = 10
"""The batch has this part of the rows of the table."""
_BUCKETS = 16
_TOPIC = "0c" * 16


def _rows(first: int, count: int) -> Any:
    import numpy as np  # noqa: PLC0415
    import pyarrow as pa  # type: ignore[import-untyped]  # noqa: PLC0415 -- optional

    numbers = np.arange(first, first + count)
    # Keys in no order: a batch has some of every part of the table.
    keys = (numbers * 2_654_435_761) % (1 << 40)
    columns = {
        "id": pa.array(keys, pa.int64()),
        "amount": pa.array(numbers / 8, pa.float64()),
        "name": pa.array([f"customer {number % 50_000}" for number in numbers.tolist()], pa.string()),
        "at": pa.array(numbers * 1_000_000, pa.timestamp("us", tz="UTC")),
    }
    return pa.table(columns)


class _Upserts:
    """A table, and a driver and its tasks in this process."""

    def __init__(self, folder: Path, columns: Any) -> None:
        from courser.lake.table_files import open_table_store  # noqa: PLC0415
        from courser.lake.table_opening import open_table  # noqa: PLC0415
        from courser.lake.table_place import table_place  # noqa: PLC0415
        from courser.lake.tables import PartitionField, TableLayout  # noqa: PLC0415

        by_bucket = (PartitionField(source="id", transform="bucket", argument=_BUCKETS),)
        place = table_place("delta", path=str(folder))
        self._table = open_table(place, TableLayout(columns=columns, partition_by=by_bucket), environment={})
        self._access = self._table.access()
        self._store = open_table_store(self._access)
        self._next = 0 if (position := self._table.standing(_TOPIC).position) is None else position.next_offset(0) or 0

    def apply(self, rows: Any) -> None:
        import numpy as np  # noqa: PLC0415
        import pyarrow as pa  # noqa: PLC0415

        from courser.lake.tables import Commit, MessageRange, PartitionPosition, TopicPosition  # noqa: PLC0415
        from courser.lake.upserts import RowChanges, remove_changes, upsert, write_changes  # noqa: PLC0415

        first, after = self._next, self._next + rows.num_rows
        source = MessageRange(
            topic=_TOPIC, partition=0, incarnation=0, first_offset=first, last_offset=after - 1, attempt=f"c{first}"
        )
        description = self._table.describe()
        changes = RowChanges(rows, pa.array(np.arange(first, after)), pa.array(np.zeros(rows.num_rows, dtype=bool)), ())
        written = write_changes(description, ["id"], changes, source, self._store)
        start, stop = (
            TopicPosition(topic=_TOPIC, partitions=(PartitionPosition(0, 0, offset),)) for offset in (first, after)
        )
        commit = Commit(start=start if first else None, stop=stop, token=str(first), files=(), description=description)
        upsert(self._table, ["id"], written, commit, self._run)
        remove_changes(written, self._store)
        self._next = after

    def _run(self, works: Sequence[Any]) -> list[Any]:
        from courser.lake.upserts import apply_changes  # noqa: PLC0415

        return [apply_changes(work, f"a{number}", self._access, self._store) for number, work in enumerate(works)]


def _count(folder: Path) -> int:
    from deltalake import DeltaTable  # noqa: PLC0415 -- optional

    table = DeltaTable(str(folder))
    return int(table.to_pyarrow_table(columns=["id"]).num_rows)


def _merge(folder: Path, rows: Any) -> None:
    from deltalake import DeltaTable  # noqa: PLC0415

    merge = DeltaTable(str(folder)).merge(
        rows, "t.id_bucket = s.id_bucket AND t.id = s.id", source_alias="s", target_alias="t"
    )
    merge.when_matched_update_all().when_not_matched_insert_all().execute()


def run(bench: Bench) -> Iterator[Row]:
    from courser.lake.delta_files import derived  # noqa: PLC0415
    from courser.lake.tables import PartitionField  # noqa: PLC0415

    count = min(bench.scale.read_size // _ROW_SIZE, _ROWS_MAX)
    size = count // _SHARE
    base, batch = _rows(0, count), _rows(count - size // 2, size)
    bucket = PartitionField(source="id", transform="bucket", argument=_BUCKETS)
    bucketed = batch.append_column("id_bucket", derived(bucket, batch["id"]))
    # By processor time, and by the clock.
    ours: tuple[list[float], list[float]] = ([], [])
    theirs: tuple[list[float], list[float]] = ([], [])
    with bench.fresh_directory() as folder:
        _Upserts(folder / "base", base.schema).apply(base)
        for number in range(bench.scale.rounds):
            for speeds, name in ((theirs, "merged"), (ours, "upserted")):
                table = folder / f"{name}-{number}"
                shutil.copytree(folder / "base", table)
                upserts = _Upserts(table, base.schema) if name == "upserted" else None
                begun, began = time.process_time(), time.perf_counter()
                if upserts is None:
                    _merge(table, bucketed)
                else:
                    upserts.apply(batch)
                speeds[0].append(size / max(time.process_time() - begun, 1e-6))
                speeds[1].append(size / (time.perf_counter() - began))
                found = _count(table)
                if found != count + size - size // 2:
                    raise AssertionError(f"{name}: {found} rows")
                shutil.rmtree(table)
    measure, bare_name = f"{size:,} upserts into {count:,} rows", "deltalake's merge"
    for weight, ratio in ((Weight.MUST, 1.5), (Weight.AIM, 4)):
        yield Row(
            measure=f"{measure}, processor time",
            unit="rows/s",
            engine=ours[0],
            bare=theirs[0],
            bare_name=bare_name,
            target=Target(Bound.RATIO_AT_LEAST, ratio, weight),
        )
    yield Row(measure=f"{measure}, elapsed", unit="rows/s", engine=ours[1], bare=theirs[1], bare_name=bare_name)
