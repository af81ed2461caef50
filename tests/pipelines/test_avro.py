"""Avro: which schemas are understood, and that what they describe is decoded."""

import io
import json
from collections.abc import Mapping
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import fastavro
import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from pyspark.sql.types import StringType, StructType

from courser.lake.avro_format import AvroRefused, avro_columns, read_avro_schema
from courser.pipelines.avro import AvroDecoder, spark_columns

NUMBER = UUID("3b5d0c1e-0000-4000-8000-000000000001")
NODE = {"type": "record", "name": "Node", "fields": [{"name": "following", "type": ["null", "Node"]}]}
ADDRESS = {"type": "record", "name": "Address", "fields": [{"name": "street", "type": "string"}]}


def logical(kind: str, name: str, **more: int) -> dict[str, object]:
    return {"type": kind, "logicalType": name, **more}


def written(folder: Path, *fields: tuple[str, object]) -> Path:
    """The file of a schema with these fields."""
    rows = [{"name": name, "type": kind} for name, kind in fields]
    path = folder / "order.avsc"
    path.write_text(json.dumps({"type": "record", "name": "Order", "namespace": "com.shop", "fields": rows}))
    return path


def decoded(path: Path, row: Mapping[str, object]) -> dict[str, Any]:
    """A row after it was written with the schema and read by a task."""
    datum = io.BytesIO()
    fastavro.schemaless_writer(datum, json.loads(path.read_text()), row)
    schema = read_avro_schema(path)
    columns = StructType(spark_columns(schema)).add("_bad", StringType())
    batch = pa.RecordBatch.from_pydict({"_payload": pa.array([datum.getvalue()])})
    (found,) = AvroDecoder(schema, columns.json())([batch])
    (values,) = found.to_pylist()
    assert values.pop("_bad") is None
    result: dict[str, Any] = values
    return result


@pytest.mark.usefixtures("spark")
def test_every_logical_type_is_decoded(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        ("number", logical("string", "uuid")),
        ("opens", logical("int", "time-millis")),
        ("closes", logical("long", "time-micros")),
        ("price", logical("bytes", "decimal", precision=6, scale=2)),
        ("day", logical("int", "date")),
        ("at", logical("long", "timestamp-micros")),
    )
    row = {
        "number": NUMBER,
        "opens": time(0, 0, 1),
        "closes": time(0, 0, 2),
        "price": Decimal("12.50"),
        "day": date(2026, 11, 15),
        "at": datetime(2026, 11, 15, 10, tzinfo=UTC),
    }
    assert decoded(path, row) == row | {"number": str(NUMBER), "opens": 1000, "closes": 2_000_000}


@pytest.mark.usefixtures("spark")
def test_names_may_be_in_full_or_not(tmp_path: Path) -> None:
    path = written(tmp_path, ("billing", ADDRESS), ("delivery", "com.shop.Address"), ("other", ["null", "Address"]))
    row = {"billing": {"street": "a"}, "delivery": {"street": "b"}, "other": None}
    assert decoded(path, row) == row


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("kind", [NODE, ["null", "Order"]], ids=["a field of itself", "the whole of itself"])
def test_a_record_that_holds_itself_is_refused(kind: object, tmp_path: Path) -> None:
    with pytest.raises(AvroRefused, match="is recursive"):
        avro_columns(read_avro_schema(written(tmp_path, ("node", kind))))
