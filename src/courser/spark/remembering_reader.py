"""Streams on Spark 4.0 and 4.1, which asks for the newest offsets without saying where the stream stands.

Without that, no limit could be kept, and a stream that starts at the newest message might miss some: Spark asks for the
end of the first micro-batch before it asks for its start. So the reader remembers. Spark tells it of every micro-batch,
and after a restart of the last one in the checkpoint.

A query with the trigger ``availableNow`` is one micro-batch on these releases, so only limits that are given hold.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from courser.spark.releases import HAS_ADMISSION_CONTROL, ReadAllAvailable
from courser.spark.sent_to_tasks import SentToTasks
from courser.spark.stream_reader import StreamReader

_log = logging.getLogger(__name__)

_LIMITS = ("maxOffsetsPerTrigger", "maxBytesPerTrigger", "minOffsetsPerTrigger")


def reader_for_this_spark(reader: StreamReader, given: Mapping[str, str]) -> DataSourceStreamReader:
    """The reader as this release of Spark calls it; ``given``: the options as the user gave them."""
    if HAS_ADMISSION_CONTROL:
        return reader
    names = {name.lower() for name in given}
    return RememberingReader(reader, is_limited=any(limit.lower() in names for limit in _LIMITS))


class RememberingReader(SentToTasks, DataSourceStreamReader):
    """Calls a reader as newer releases of Spark do."""

    def __init__(self, reader: StreamReader, *, is_limited: bool) -> None:
        self._reader = reader
        self._is_limited = is_limited
        self._is_new_to_limit = True
        self._first: dict[str, Any] | None = None
        """Where the query starts, if Spark or this reader asked for it."""
        self._reached: dict[str, Any] | None = None
        """Where the last micro-batch ends that Spark planned."""

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 -- Spark's name
        """Where a query without a checkpoint starts. Raises ``ReadFailed``, ``DataLost``."""
        if self._first is None:
            self._first = self._reader.initialOffset()
        return self._first

    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]  # noqa: N802
        """Where the next micro-batch ends. Raises ``ReadFailed``, ``DataLost``."""
        start = self.initialOffset() if self._reached is None else self._reached
        if not self._is_limited:
            return self._reader.latestOffset(start, ReadAllAvailable())
        if self._is_new_to_limit:
            self._is_new_to_limit = False
            _log.warning(
                "this release of Spark runs a query with the trigger availableNow as one micro-batch, so it reads no "
                "more than a limit on micro-batches allows: do not set %s for such a query, or use Spark 4.2",
                " or ".join(_LIMITS),
            )
        return self._reader.latestOffset(start, self._reader.getDefaultReadLimit())

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The tasks of a micro-batch. Raises ``ReadFailed``, ``DataLost``."""
        self._reached = end
        return self._reader.partitions(start, end)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The record batches of a task."""
        return self._reader.read(partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Everything before ``end`` is processed."""
        self._reader.commit(end)
