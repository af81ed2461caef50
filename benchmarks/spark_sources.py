"""The simplest Python sources and sinks for Spark, for comparison with the data source ``courser``.

They are pickled by value, because Spark's workers cannot import this package. Import nothing from it here.
"""

from collections.abc import Iterator
from typing import Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import BinaryType, LongType, StructField, StructType


class _Ready(DataSourceReader):
    """Returns the same record batch repeatedly, which costs only what every Python source costs."""

    def __init__(self, options: dict[str, str]) -> None:
        self._row_count = int(options["rows"])
        self._row_size = int(options["size"])
        self._times = int(options["times"])

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(number) for number in range(2)]

    def read(self, partition: InputPartition) -> Iterator[Any]:  # noqa: ARG002
        import numpy as np  # noqa: PLC0415
        import pyarrow as pa  # type: ignore[import-untyped]  # noqa: PLC0415

        count, size = self._row_count, self._row_size
        bounds = np.arange(0, (count + 1) * size, size, dtype=np.int32)
        data = pa.py_buffer(np.zeros(count * size, np.uint8))
        payloads = pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(bounds), data])
        batch = pa.RecordBatch.from_arrays([pa.array(np.arange(count)), payloads], ["offset", "payload"])
        for _ in range(self._times):
            yield batch


class _Ticking(DataSourceStreamReader):
    """One row for each micro-batch."""

    def __init__(self) -> None:
        self._next = 0

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        return {"next": 0}

    def latestOffset(self) -> dict[str, int]:  # type: ignore[override]  # noqa: N802
        self._next += 1
        return {"next": self._next}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return [InputPartition((start["next"], end["next"]))]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        for number in range(*partition.value):
            yield (number, b"")


class TrivialSource(DataSource):
    """``trivial``."""

    @classmethod
    def name(cls) -> str:
        return "trivial"

    def schema(self) -> StructType:
        return StructType([StructField("offset", LongType()), StructField("payload", BinaryType())])

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002
        return _Ready(dict(self.options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: ARG002, N802
        return _Ticking()

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:  # noqa: ARG002
        return _Dropping()


class _Dropping(DataSourceArrowWriter):
    """Discards every row."""

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()
