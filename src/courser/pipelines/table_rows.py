"""The rows of a topic for a table: as they are decoded, or as a query of Spark makes them of a step's messages."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any

import pyarrow as pa  # type: ignore[import-untyped]  # it has no stubs

from courser.lake.schemas import MESSAGE_FIELDS, parse_type
from courser.lake.tables import WrittenFile
from courser.pipelines.definition import Definition
from courser.pipelines.source_frames import FORMAT
from courser.pipelines.table_tasks import (
    BAD_PAYLOAD,
    BAD_REASON,
    MESSAGES,
    WRITTEN,
    DecodeRows,
    Reading,
    WriteRows,
    shown_bad,
)
from courser.pipelines.transform import apply_transform

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True)
class Written:
    """What a query has written of a step."""

    files: Sequence[WrittenFile]
    bad_files: Sequence[WrittenFile]
    message_count: int
    bad_count: int
    first_bad: str


class TopicRows:
    """The rows of a pipeline."""

    def __init__(self, spark: "SparkSession", definition: Definition, options: Mapping[str, str]) -> None:
        self._spark, self._definition, self._options = spark, definition, options
        self._reading: Reading | None = None

    def columns(self, reading: Reading) -> Any:
        """The Arrow schema of the rows. Raises what Spark has against the query."""
        self._reading = reading
        if self._definition.transform.sql is None:
            return reading.columns
        from pyspark.sql.pandas.types import from_arrow_schema  # noqa: PLC0415 -- optional

        nothing = self._spark.createDataFrame([], from_arrow_schema(MESSAGES))
        fields = self._query(self._wide(nothing)).schema.fields
        return pa.schema([pa.field(each.name, parse_type(each.dataType.simpleString())) for each in fields])

    def write(
        self,
        starts: Mapping[int, int],
        ends: Mapping[int, int],
        rows: WriteRows,
        bad: WriteRows | None,
        bad_from: Mapping[int, int],
    ) -> Written:
        """Write the rows of these messages, and the bad ones from ``bad_from`` on."""
        from pyspark.sql import Observation  # noqa: PLC0415
        from pyspark.sql import functions as f  # noqa: PLC0415

        messages = self._messages({"startingOffsets": _offsets(starts), "endingOffsets": _offsets(ends)})
        # A partition that came into being just now would be read as a whole, and again with the next step.
        messages = messages.where(f.col("partition").isin([*starts]))
        wide, counted = self._wide(messages), Observation()
        observed = wide.observe(counted, f.count(f.lit(1)).alias("all"), f.count(BAD_REASON).alias("bad"))
        files = _files(self._query(observed), rows)
        figures: dict[str, int] = counted.get
        if not figures["bad"]:
            return Written(files, (), figures["all"], 0, "")
        wrong = wide.where(f.col(BAD_REASON).isNotNull()).select(
            *MESSAGE_FIELDS.names, f.col(BAD_PAYLOAD).alias("payload"), f.col(BAD_REASON).alias("reason")
        )
        first = shown_bad(wrong.limit(1).collect()[0].asDict())
        bad_files: Sequence[WrittenFile] = ()
        if bad is not None:
            known = [
                (f.col("_topic_partition") == partition) & (f.col("_topic_offset") < offset)
                for partition, offset in bad_from.items()
            ]
            is_known = reduce(lambda one, other: one | other, known, f.lit(False))
            bad_files = _files(wrong.where(~is_known), bad)
        return Written(files, bad_files, figures["all"], figures["bad"], first)

    def _messages(self, bounds: Mapping[str, str]) -> "DataFrame":
        options = {**self._options, **bounds, "columns": ",".join(MESSAGES.names)}
        return self._spark.read.format(FORMAT).options(**options).load()

    def _wide(self, messages: "DataFrame") -> "DataFrame":
        from pyspark.sql.pandas.types import from_arrow_schema  # noqa: PLC0415 -- optional

        assert self._reading is not None, "columns come first"
        decode = DecodeRows(self._reading)
        columns = from_arrow_schema(decode.columns, prefer_timestamp_ntz=True)
        return messages.mapInArrow(decode, columns)

    def _query(self, wide: "DataFrame") -> "DataFrame":
        from pyspark.sql import functions as f  # noqa: PLC0415

        assert self._reading is not None, "columns come first"
        rows = wide.where(f.col(BAD_REASON).isNull()).select(*(f"`{name}`" for name in self._reading.columns.names))
        return apply_transform(self._spark, rows, self._definition)


def _files(rows: "DataFrame", write: WriteRows) -> list[WrittenFile]:
    return [WrittenFile(**row.asDict()) for row in rows.mapInArrow(write, WRITTEN).collect()]


def _offsets(offsets: Mapping[int, int]) -> str:
    return json.dumps({str(partition): offset for partition, offset in offsets.items()})
