"""Columns in SQL syntax: what Courser reads without Spark means the same to Spark."""

import pyarrow as pa  # type: ignore[import-untyped]
import pytest

from courser.lake.schemas import parse_schema
from courser.pipelines.decode import parse_schema as parse_with_spark
from courser.spark.releases import arrow_schema

COLUMNS = [
    "id BIGINT, at TIMESTAMP",
    "id long not null, `a b` string, `c``d` int",
    "a: int, b SHORT COMMENT 'it is short', c byte",
    "a DECIMAL, b DEC(5), c NUMERIC(38,10)",
    "a ARRAY<ARRAY<INTEGER>>, b MAP<STRING,STRUCT<b:INT,c DATE>>",
    "a STRUCT<b: INT NOT NULL COMMENT 'x', c: TIMESTAMP_LTZ>",
    "a REAL, b DOUBLE, c BINARY, d BOOLEAN, e TIMESTAMP_NTZ, f TINYINT, g SMALLINT, h FLOAT",
]


@pytest.mark.usefixtures("spark")
def test_spark_reads_the_same_columns() -> None:
    for text in COLUMNS:
        ours, sparks = parse_schema(text), arrow_schema(parse_with_spark(text))
        assert ours.names == sparks.names
        for field, other in zip(ours, sparks, strict=True):
            assert pa.field(field.name, field.type, nullable=field.nullable).equals(other), (text, field, other)
