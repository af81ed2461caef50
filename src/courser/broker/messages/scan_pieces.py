"""What a search needs of its topic: which offsets there are, and the matching messages in a piece of them.

A piece is read into memory of its own and looked at by a thread. ``handlers/searches`` asks for
one piece after another, and may be in another process.
"""

import asyncio
import time
from dataclasses import dataclass
from functools import partial

from courser.api.internal_commands import FindRangesToScan, RangesToScan, RangeToScan, ScannedPiece, ScanPiece
from courser.api.scans import Hit, ScanGap
from courser.api.subscriptions import Gap
from courser.broker.messages.scan_turns import ScanTurns
from courser.broker.partition.partition import Partition
from courser.broker.partition.partition_registry import PartitionRegistry
from courser.model.identifiers import TopicAddress
from courser.records import layout
from courser.records.frames import iterate_messages
from courser.records.message_filter import MessageFilter
from courser.storage.read_result import ReadResult, SkippedRange, SkipReason

_DECODED_SIZE_MAX = 1024 * 1024
"""Bytes of a payload in which a JSON value is looked for: decoding more would delay others."""
_STEP_COUNT = 100
"""Partitions whose bounds are found without a pause."""


class ScanPieces:
    """Looks at the topics of this process."""

    def __init__(self, partitions: PartitionRegistry) -> None:
        self._partitions = partitions
        self._turns = ScanTurns()

    def close(self) -> None:
        """Scans that are under way fail."""
        self._turns.close()

    # --- bounds ---

    async def find_ranges(self, address: TopicAddress, command: FindRangesToScan) -> RangesToScan:
        """The offsets that satisfy the bounds of a scan.

        Raises:
            CommandRejected: no such partition (3007).
            CourserError: the disk or the archive cannot be read.
        """
        topic, found = self._partitions.at(address), []
        for number, partition_id in enumerate(command.partition_ids, start=1):
            found.append(await _find_range(topic.partition(partition_id), partition_id, command))
            if number % _STEP_COUNT == 0:
                await asyncio.sleep(0)
        return RangesToScan(tuple(found))

    # --- pieces ---

    async def look(self, address: TopicAddress, command: ScanPiece, wanted: MessageFilter) -> ScannedPiece:
        """Read a piece, and find the messages in it that match. Raises as ``find_ranges``."""
        number, end = command.partition_id, command.end_offset
        partition = self._partitions.at(address).partition(number)
        look = partial(_look, number, wanted, end, command.payload_size_max)
        result, looked = await self._turns.take(partition, command.offset, command.count, look)
        return ScannedPiece(
            result.next_offset,
            result.message_count,
            result.size,
            looked.hits,
            [_gap(number, skipped, end) for skipped in result.skipped if skipped.reason is not SkipReason.RESERVED],
            looked.undecoded_count,
            looked.first_time,
            looked.last_time,
            looked.spent,
        )


async def _find_range(partition: Partition, partition_id: int, command: FindRangesToScan) -> RangeToScan:
    request, log = command.request, partition.log
    log.check_readable()
    first, end = max(partition.reader.start_offset, request.first_offset), log.readable_end
    if request.end_offset is not None:
        end = min(end, request.end_offset)
    if request.first_time:
        first = max(first, await partition.reader.offset_at_time(request.first_time))
    if request.end_time is not None:
        end = min(end, await partition.reader.offset_at_time(request.end_time))
    position = request.positions.get(partition_id)
    if position is not None:
        first, end = (first, min(end, position)) if command.is_newest_first else (max(first, position), end)
    if first >= end:
        return RangeToScan(partition_id, first, first, 0, 0, 0)
    frontier = await partition.reader.time_at(end - 1 if command.is_newest_first else first)
    message_count = partition.reader.count_from(first) - partition.reader.count_from(end)
    message_size = log.size // max(log.message_count, 1)
    return RangeToScan(partition_id, first, end, frontier or 0, message_count, message_size)


def _gap(partition_id: int, skipped: SkippedRange, end: int) -> ScanGap:
    return ScanGap(partition_id, Gap(skipped.first_offset, min(skipped.end_offset, end), skipped.reason.value))


# --- in the thread ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Looked:
    """What is in a piece."""

    hits: list[Hit]
    undecoded_count: int
    """Messages that were too large to look for a JSON value in them."""
    first_time: int | None
    last_time: int | None
    """Of its messages; None if it has none."""
    spent: float
    """Seconds of processor time."""


def _look(
    partition_id: int, wanted: MessageFilter, end_offset: int, payload_size_max: int, piece: ReadResult
) -> _Looked:
    """Find the messages of a piece that match."""
    began = time.thread_time()
    hits: list[Hit] = []
    undecoded_count = 0
    possible = [records for records in piece.pieces if wanted.may_match(bytes(records))]
    for offset, timestamp, origin, frame in iterate_messages(possible):
        if offset >= end_offset:
            break
        payload, headers = frame.payload, bytes(frame.user_headers)
        if wanted.needs_json and len(payload) > _DECODED_SIZE_MAX:
            undecoded_count += wanted.may_match(bytes(payload) + headers)
        elif not wanted.conditions or wanted.matches(bytes(payload), headers):
            shown = bytes(payload[:payload_size_max])
            hits.append(Hit(partition_id, offset, timestamp, origin, frame.message_id, shown, len(payload), headers))
    times = _batch_times(piece)
    return _Looked(hits, undecoded_count, *times, time.thread_time() - began)


def _batch_times(piece: ReadResult) -> tuple[int | None, int | None]:
    first_time = last_time = None
    for records in piece.pieces:
        start = 0
        while start < len(records):
            _, _, last_time, _, length, _, _ = layout.WIRE_HEADER.unpack_from(records, start)
            first_time = last_time if first_time is None else first_time
            start += length
    return first_time, last_time
