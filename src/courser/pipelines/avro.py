"""Avro payloads in tasks of Spark. ``lake/avro_format`` says what a schema means, and which payloads are bad."""

import json
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from courser.lake.avro_format import AvroFormat, avro_columns
from courser.lake.payloads import decode
from courser.lake.schemas import as_optional, type_text

if TYPE_CHECKING:
    from pyspark.sql.types import StructField


def spark_columns(schema: str) -> "list[StructField]":
    """Columns for the fields of a record. All are nullable, because bad rows have no values. Raises ``AvroRefused``."""
    from pyspark.sql.types import StructField, _parse_datatype_string  # noqa: PLC0415

    columns = avro_columns(schema)
    return [
        StructField(field.name, _parse_datatype_string(type_text(as_optional(field.type))), True) for field in columns
    ]


class AvroDecoder:
    """Decodes batches in a task. ``columns`` is the output schema in Spark's JSON form."""

    def __init__(self, schema: str, columns: str) -> None:
        self._schema = schema
        self._columns = columns

    def __call__(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Yields one output batch per input batch."""
        import pyarrow as pa  # type: ignore[import-untyped]  # noqa: PLC0415 -- optional
        from pyspark.sql.types import StructType  # noqa: PLC0415

        from courser.spark.releases import arrow_schema  # noqa: PLC0415 -- needs pyspark

        avro = AvroFormat(self._schema)
        schema = arrow_schema(StructType.fromJson(json.loads(self._columns)))
        for batch in batches:
            decoded = decode(avro, batch.column("_payload"))
            row_of: list[int | None] = [None] * batch.num_rows
            for row, index in enumerate(decoded.good.to_pylist()):
                row_of[index] = row
            reasons = {bad.index: bad.reason for bad in decoded.bad}
            rows = decoded.rows.combine_chunks().take(pa.array(row_of, pa.int64()))
            arrays = []
            for column in schema:
                if column.name == "_bad":
                    arrays.append(pa.array([reasons.get(index) for index in range(batch.num_rows)], pa.string()))
                elif column.name in batch.schema.names:
                    arrays.append(batch.column(column.name))
                else:
                    arrays.append(pa.array(rows.column(column.name).to_pylist(), column.type))
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)
