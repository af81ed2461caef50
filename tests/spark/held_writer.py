"""A writer that stops at a chosen moment and waits to be killed: for tests of drivers that die."""

import threading
from pathlib import Path
from typing import Any

from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

from courser.spark.data_source import CourserSource
from courser.spark.releases import DataSourceStreamArrowWriter
from courser.spark.write_options import WriteOptions, write_options
from courser.spark.writer import CourserStreamWriter


class HeldSource(CourserSource):
    """``format("held")``: the option ``holdAt`` is ``staged`` or ``published``."""

    @classmethod
    def name(cls) -> str:
        return "held"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
        options = dict(self.options)
        moment, sign = options.pop("holdat"), options.pop("sign")
        return HeldWriter(write_options(options, schema), moment, sign)


class HeldWriter(CourserStreamWriter):
    """Says that the moment has come by writing into a pipe, and waits for ever."""

    def __init__(self, options: WriteOptions, moment: str, sign: str) -> None:
        super().__init__(options)
        self._moment = moment
        self._sign = sign

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        if self._moment == "published":
            super().commit(messages, batchId)
        self._hold()

    def _hold(self) -> None:
        Path(self._sign).write_text(self._moment)
        threading.Event().wait()


def started(spark: Any, source: dict[str, str], target: dict[str, str], checkpoint: str) -> Any:
    """A query that copies one topic into another, with a writer that is held."""
    spark.dataSource.register(HeldSource)
    frame = spark.readStream.format("courser").options(**source).load().select("payload")
    writer = frame.writeStream.format("held").options(**target).option("checkpointLocation", checkpoint)
    return writer.trigger(availableNow=True).start()
