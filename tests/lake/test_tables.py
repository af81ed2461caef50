"""Delta and Iceberg: a batch that comes again changes nothing; the rows are checked with other readers."""

from pathlib import Path

import polars
import pyarrow as pa  # type: ignore[import-untyped]  # it has no stubs
import pytest
from pyiceberg.catalog import Catalog

from courser.lake import delta, iceberg
from courser.lake.table_mismatch import TableMismatch
from courser.pipelines.failing import is_final
from tests.lake.rows import SCHEMA, batch_of

TABLE = "shop.orders"


def delta_offsets(path: Path) -> list[int]:
    return sorted(polars.read_delta(str(path))["offset"].to_list())


def iceberg_offsets(catalog: Catalog) -> list[int]:
    rows = catalog.load_table(TABLE).scan().to_duckdb("rows").execute('select "offset" from rows order by 1')
    return [row[0] for row in rows.fetchall()]


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    return iceberg.open_catalog(tmp_path / "iceberg")


def append_delta(path: Path, batch: int, *, application: str = "job") -> bool:
    rows = [batch_of(batch * 10, 10)]
    return delta.append(path, rows, SCHEMA, application=application, batch=batch, partition_by=["day"])


def append_iceberg(catalog: Catalog, batch: int, *, application: str = "job") -> bool:
    return iceberg.append(catalog, TABLE, [batch_of(batch * 10, 10)], SCHEMA, application=application, batch=batch)


def test_delta_takes_a_batch_once(tmp_path: Path) -> None:
    path = tmp_path / "delta"
    assert delta.last_batch(path, "job") is None
    assert [append_delta(path, batch) for batch in (0, 1, 1, 0, 2)] == [True, True, False, False, True]
    assert delta.last_batch(path, "job") == 2
    assert delta_offsets(path) == list(range(30))


def test_delta_counts_each_application_for_itself(tmp_path: Path) -> None:
    path = tmp_path / "delta"
    assert append_delta(path, 3)
    assert append_delta(path, 3, application="other")
    assert delta_offsets(path) == sorted([*range(30, 40)] * 2)


def test_iceberg_takes_a_batch_once(catalog: Catalog) -> None:
    assert iceberg.last_batch(catalog, TABLE, "job") is None
    assert [append_iceberg(catalog, batch) for batch in (0, 1, 1, 0, 2)] == [True, True, False, False, True]
    assert iceberg.last_batch(catalog, TABLE, "job") == 2
    assert iceberg_offsets(catalog) == list(range(30))


def test_iceberg_counts_each_application_for_itself(catalog: Catalog) -> None:
    assert append_iceberg(catalog, 3)
    assert append_iceberg(catalog, 3, application="other")
    assert iceberg_offsets(catalog) == sorted([*range(30, 40)] * 2)


def test_iceberg_repeats_a_commit_that_another_writer_got_ahead_of(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append_iceberg(catalog, 0)
    other = iceberg.open_catalog(tmp_path / "iceberg")
    load_table = catalog.load_table
    meddled: list[bool] = []

    def load_then_be_overtaken(identifier: str) -> object:
        table = load_table(identifier)
        if not meddled:
            meddled.append(append_iceberg(other, 1, application="other"))
        return table

    monkeypatch.setattr(catalog, "load_table", load_then_be_overtaken)
    assert append_iceberg(catalog, 2)
    assert iceberg_offsets(catalog) == list(range(30))


def test_an_iceberg_table_needs_a_namespace(catalog: Catalog) -> None:
    with pytest.raises(ValueError, match=r"use default\.orders"):
        iceberg.append(catalog, "orders", [], SCHEMA, application="job", batch=0)


def with_column(name: str, values: list[object]) -> pa.Table:
    rows = pa.Table.from_batches([batch_of(10, len(values))], SCHEMA)
    if name in rows.column_names:
        return rows.set_column(rows.column_names.index(name), name, pa.array(values))
    return rows.append_column(name, pa.array(values))


def test_delta_gets_new_columns_and_refuses_other_types(tmp_path: Path) -> None:
    assert append_delta(tmp_path, 0)
    rows = with_column("note", ["x"] * 10)
    assert delta.append(tmp_path, rows.to_batches(), rows.schema, application="job", batch=1, partition_by=["day"])
    found = polars.read_delta(str(tmp_path)).sort("offset")
    assert found["note"].to_list() == [None] * 10 + ["x"] * 10
    # Rows as they were before still fit.
    assert append_delta(tmp_path, 2)
    other = with_column("offset", ["no number"] * 10)
    with pytest.raises(TableMismatch, match="do not fit the table") as refusal:
        delta.append(tmp_path, other.to_batches(), other.schema, application="job", batch=3, partition_by=["day"])
    assert is_final(refusal.value)
    assert delta_offsets(tmp_path) == list(range(30))


def test_iceberg_gets_new_columns_and_refuses_other_types(catalog: Catalog) -> None:
    assert append_iceberg(catalog, 0)
    rows = with_column("note", ["x"] * 10)
    assert iceberg.append(catalog, TABLE, rows.to_batches(), rows.schema, application="job", batch=1)
    found = catalog.load_table(TABLE).scan().to_arrow().sort_by("offset")
    assert found["note"].to_pylist() == [None] * 10 + ["x"] * 10
    assert append_iceberg(catalog, 2)
    assert len(catalog.load_table(TABLE).schemas()) == 2, "a batch without new columns changes no schema"
    other = with_column("offset", ["no number"] * 10)
    with pytest.raises(TableMismatch, match="offset") as refusal:
        iceberg.append(catalog, TABLE, other.to_batches(), other.schema, application="job", batch=3)
    assert is_final(refusal.value)
    assert iceberg_offsets(catalog) == list(range(30))
