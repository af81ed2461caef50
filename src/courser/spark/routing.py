"""Routes each row to a topic and partition, and collects the rows of a partition until they fill a batch."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]  # it has no stubs
import pyarrow.compute as pc  # type: ignore[import-untyped]
from numpy.typing import NDArray

from courser.records import layout
from courser.spark.errors import RowRefused
from courser.spark.row_encoding import (
    Rows,
    binary_column,
    header_blocks,
    id_column,
    join_rows,
    key_blocks,
    key_partitions,
    time_column,
    without_nulls,
)
from courser.spark.write_options import PAYLOAD_NAMES, WriteOptions

_COLLECTED_SIZE_MAX = 64 * 1024 * 1024
"""Bytes of rows that a task buffers for fuller batches, over all partitions."""


_BODY_SIZE_MAX = layout.BATCH_SIZE_MAX - layout.BATCH_HEADER_SIZE
_SLACK_PART = 8
"""A batch may deviate from its target size by 1/8 if it then ends with an Arrow batch."""


class Destination(NamedTuple):
    """The partition that a row goes to."""

    stream: str
    topic: str
    partition: int


class ReadyRows(NamedTuple):
    """Rows that fill a batch."""

    destination: Destination
    rows: Rows


@dataclass(slots=True)
class _Collected:
    pieces: list[Rows] = field(default_factory=list)
    size: int = 0


class RowRouter:
    """Sorts the rows of one task by partition."""

    def __init__(self, options: WriteOptions, partition_count: Callable[[str, str], int], *, first_turn: int) -> None:
        """``first_turn``: the partition at which balanced writes begin; differs between tasks."""
        self._options = options
        self._partition_count = partition_count
        # A few rows more or less do not matter, but joining rows of two Arrow batches copies all of them.
        self._slack = max(min(options.batch_size // _SLACK_PART, _BODY_SIZE_MAX - options.batch_size), 0)
        self._turn = first_turn
        self._collected: dict[Destination, _Collected] = {}
        self._size = 0
        self._current: dict[tuple[str, str], int] = {}
        """The partition that balanced rows go to now, by topic."""

    def add(self, batch: Any) -> Iterator[ReadyRows]:
        """Take the rows of an Arrow batch; return those that fill a batch of messages.

        Raises:
            RowRefused: a row cannot be written, or names a partition that does not exist.
        """
        if not batch.num_rows:
            return
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        keys = binary_column(columns["key"], "key") if "key" in columns else None
        rows = _rows_of(columns, keys)
        for stream, topic, chosen in self._by_topic(columns, len(rows)):
            some = rows if chosen is None else rows.take(chosen)
            partitions = self._partitions(stream, topic, columns, keys, chosen)
            for partition, part in _by_partition(some, partitions):
                yield from self._collect(Destination(stream, topic, partition), part)
        while self._size > _COLLECTED_SIZE_MAX:
            largest = max(self._collected, key=lambda destination: self._collected[destination].size)
            yield self._release(largest)

    def rest(self) -> Iterator[ReadyRows]:
        """All rows that are still buffered."""
        for destination in list(self._collected):
            yield self._release(destination)

    def _collect(self, destination: Destination, rows: Rows) -> Iterator[ReadyRows]:
        """Add rows to those of a partition; return full batches and keep the rest."""
        start, ends = 0, rows.frame_ends()
        while start < len(rows):
            collected = self._collected.setdefault(destination, _Collected())
            begin = int(ends[start - 1]) if start else 0
            room = self._options.batch_size - collected.size
            if int(ends[-1]) - begin <= room + self._slack:
                end = len(rows)
            else:
                end = max(int(np.searchsorted(ends, begin + room, side="right")), start)
            if end == start and not collected.size:
                # A single message that is larger than the target size of a batch.
                end = start + 1
            if end > start:
                size = int(ends[end - 1]) - begin
                collected.pieces.append(rows.slice(start, end))
                collected.size += size
                self._size += size
                start = end
            if start < len(rows) or collected.size >= self._options.batch_size - self._slack:
                yield self._release(destination)

    def _release(self, destination: Destination) -> ReadyRows:
        collected = self._collected.pop(destination)
        self._size -= collected.size
        if self._current.get((destination.stream, destination.topic)) == destination.partition:
            # Balanced rows now go to the next partition.
            del self._current[destination.stream, destination.topic]
        return ReadyRows(destination, join_rows(collected.pieces))

    # --- topics ---

    def _by_topic(self, columns: dict[str, Any], count: int) -> Iterator[tuple[str, str, NDArray[np.int64] | None]]:
        """Each topic and the numbers of its rows; None means all rows."""
        options = self._options
        if "stream" not in columns and "topic" not in columns:
            assert options.stream is not None
            assert options.topic is not None
            yield options.stream, options.topic, None
            return
        streams = _names(columns.get("stream"), options.stream, "stream", count)
        topics = _names(columns.get("topic"), options.topic, "topic", count)
        pairs = streams[1] * len(topics[0]) + topics[1]
        for pair in np.unique(pairs).tolist():
            stream, topic = divmod(pair, len(topics[0]))
            yield streams[0][stream], topics[0][topic], np.flatnonzero(pairs == pair)

    # --- partitions ---

    def _partitions(
        self,
        stream: str,
        topic: str,
        columns: dict[str, Any],
        keys: Any,
        chosen: NDArray[np.int64] | None,
    ) -> NDArray[np.int64] | int:
        """The partition of each row, or a single one for all."""
        partition_count = self._partition_count(stream, topic)
        partitions: NDArray[np.int64] | None = None
        if self._options.partitioning == "column":
            numbers = columns["partition"] if chosen is None else columns["partition"].take(pa.array(chosen))
            partitions = numbers.cast(pa.int64()).fill_null(-1).to_numpy(zero_copy_only=False)
            # A null means any partition; a partition that does not exist is an error.
            wrong = (partitions >= partition_count) | (partitions < -1)
            if numbers.null_count == 0:
                wrong |= partitions < 0
            if wrong.any():
                number = int(partitions[wrong][0])
                raise RowRefused(
                    f'column "partition" names partition {number}, but {stream}/{topic} has '
                    f"{partition_count} partitions"
                )
        if keys is not None and self._options.partitioning != "balanced":
            by_key = key_partitions(keys if chosen is None else keys.take(pa.array(chosen)), partition_count)
            partitions = by_key if partitions is None else np.where(partitions < 0, by_key, partitions)
        if partitions is None:
            return self._in_turn(stream, topic, partition_count)
        if (partitions < 0).any():
            partitions = np.where(partitions < 0, self._in_turn(stream, topic, partition_count), partitions)
        return partitions

    def _in_turn(self, stream: str, topic: str, count: int) -> int:
        """The partition that balanced rows go to: the same one until its batch is full."""
        current = self._current.get((stream, topic))
        if current is None:
            current = self._current[stream, topic] = self._turn % count
            self._turn += 1
        return current


def _names(column: Any, default: str | None, name: str, count: int) -> tuple[list[str], NDArray[np.int64]]:
    """The distinct names in a column, and for each row the index of its name."""
    if column is None:
        assert default is not None
        return [default], np.zeros(count, np.int64)
    if column.null_count:
        if default is None:
            raise RowRefused(f'column "{name}" contains null and the option "{name}" is not set')
        column = column.fill_null(default)
    encoded = column.dictionary_encode()
    return encoded.dictionary.to_pylist(), encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)


def _rows_of(columns: dict[str, Any], keys: Any) -> Rows:
    name = next(name for name in PAYLOAD_NAMES if name in columns)
    payloads = without_nulls(binary_column(columns[name], name), name)
    blocks = None
    if "headers" in columns:
        blocks, has_key = header_blocks(columns["headers"])
        if keys is not None:
            # A key among the headers is stored; the column then only selects the partition.
            own = pc.if_else(pa.array(has_key), pa.scalar(None, pa.binary()), keys) if has_key.any() else keys
            blocks = pc.binary_join_element_wise(blocks, key_blocks(own), b"")
    elif keys is not None:
        blocks = key_blocks(keys)
    ids = id_column(columns["id"]) if "id" in columns else None
    times = time_column(columns["origin_timestamp"]) if "origin_timestamp" in columns else None
    return Rows(payloads, blocks, ids, times)


def _by_partition(rows: Rows, partitions: NDArray[np.int64] | int) -> Iterator[tuple[int, Rows]]:
    """The rows of each partition, in order."""
    if isinstance(partitions, int):
        yield partitions, rows
        return
    first = int(partitions[0])
    if (partitions == first).all():
        yield first, rows
        return
    order = np.argsort(partitions, kind="stable")
    grouped = rows.take(order)
    starts = np.append(np.flatnonzero(np.diff(partitions[order], prepend=-1)), len(order))
    for start, end in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True):
        yield int(partitions[order[start]]), grouped.slice(start, end)
