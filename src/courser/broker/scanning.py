"""Scans: the messages of a topic that satisfy conditions, newest or oldest first, with progress.

A scan reads the log piece by piece into memory of its own, so it goes through any number of messages. It is asked for
one event at a time. Whoever sends them asks for the next one when the client has taken the last.
"""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Protocol

from courser.api.commands import FindMessages
from courser.api.scans import (
    HIT_COUNT_MAX,
    HIT_SIZE_MAX,
    Hit,
    ScanBounds,
    ScanDone,
    ScanEvent,
    ScanGap,
    ScanOrder,
    ScanProgress,
    ScanRequest,
    ScanStarted,
)
from courser.api.subscriptions import Gap
from courser.api.table import CommandRow
from courser.broker.finding import Finder
from courser.broker.limits import BrokerLimits
from courser.broker.partition import Partition
from courser.broker.partition_registry import OpenTopic, PartitionRegistry
from courser.broker.scan_order import Merge, Row
from courser.broker.scan_turns import PIECE_SIZE, ScanTurns
from courser.broker.sessions import Session
from courser.errors import CommandRejected, ErrorCode
from courser.model.identifiers import Identifier
from courser.records import layout
from courser.records.frames import iterate_messages
from courser.records.message_filter import MessageFilter
from courser.storage.read_result import ReadBuffer, ReadResult, SkippedRange, SkipReason

_PIECE_COUNT_MIN, _PIECE_COUNT_START, _PIECE_COUNT_MAX = 20, 500, 10_000
"""Messages of a piece."""
_PIECE_SECONDS = 0.003
"""How long looking at a piece should take: the number of its messages follows from it."""
_STEP_PIECE_COUNT = 4
"""Pieces of a step backwards, if few messages are expected to match."""
_STEP_COUNT_MAX = 10_000_000
"""Offsets without messages that are passed over at once."""
_DECODED_SIZE_MAX = 1024 * 1024
"""Bytes of a payload in which a JSON value is looked for: decoding more would delay others."""
_PROGRESS_INTERVAL = 0.25
"""Seconds between two reports of progress."""
_ROW_STEP_COUNT = 100
"""Partitions whose bounds are found without a pause."""


@dataclass(frozen=True, slots=True)
class _Place:
    """The topic of a scan, for a check of the permission, which is that of a poll."""

    row: ClassVar[CommandRow] = FindMessages.row
    stream: Identifier
    topic: Identifier


class AnyScan(Protocol):
    """A scan, as whoever sends its events sees it: see ``Scan``."""

    def events(self) -> AsyncGenerator[ScanEvent, None]:
        """What happens."""


class AnyScans(Protocol):
    """Makes scans: see ``Scans``."""

    async def start(
        self, held: AsyncExitStack, session: Session, request: ScanRequest, check_login: Callable[[], None]
    ) -> AnyScan:
        """A scan for the user of this session."""


class Scans:
    """Makes scans, and limits how many there are."""

    def __init__(self, finder: Finder, partitions: PartitionRegistry, limits: BrokerLimits) -> None:
        self._finder = finder
        self._partitions = partitions
        self._limits = limits
        self._turns = ScanTurns()
        self._counts: Counter[int | None] = Counter()
        """By user."""

    def __len__(self) -> int:
        return self._counts.total()

    def close(self) -> None:
        """Scans that are under way fail."""
        self._turns.close()

    async def start(
        self, held: AsyncExitStack, session: Session, request: ScanRequest, check_login: Callable[[], None]
    ) -> AnyScan:
        """The same as ``open``, as long as ``held`` lasts."""
        return held.enter_context(self.open(session, request, check_login))

    @contextmanager
    def open(self, session: Session, request: ScanRequest, check_login: Callable[[], None]) -> "Iterator[Scan]":
        """A scan for the user of this session, as long as the context lasts.

        ``check_login`` raises ``CommandRejected`` if the login is not valid any more. It is asked again and again.

        Raises:
            CommandRejected: as ``Finder``; 3007 without such a partition; 3 for a wrong condition; 20010 if there are
                too many scans.
        """
        wanted = _filter_of(request)
        topic = self._topic(session, request)
        wanted_ids = range(len(topic.partitions)) if request.partition_ids is None else request.partition_ids
        partitions = {partition_id: topic.partition(partition_id) for partition_id in wanted_ids}

        def check() -> None:
            check_login()
            if self._topic(session, request) is not topic:
                raise CommandRejected(ErrorCode.TOPIC_NOT_FOUND, "the topic was deleted meanwhile")

        with self.counted(session.user_id):
            yield Scan(request, wanted, partitions, check, self._turns)

    def _topic(self, session: Session, request: ScanRequest) -> OpenTopic:
        return self._partitions.at(self._finder.address(session, _Place(request.stream, request.topic)))

    @contextmanager
    def counted(self, user_id: int | None) -> Iterator[None]:
        """Count a scan of a user against the limits. Raises 20010."""
        limits, count_of_user = self._limits, self._counts[user_id]
        if len(self) >= limits.scan_count_max or count_of_user >= limits.scan_count_of_user_max:
            reason = f"this user already has {count_of_user} searches, all users have {len(self)}; try again later"
            raise CommandRejected(ErrorCode.SERVER_BUSY, reason)
        self._counts[user_id] += 1
        try:
            yield
        finally:
            self._counts[user_id] -= 1


def _filter_of(request: ScanRequest) -> MessageFilter:
    if not 1 <= request.count <= HIT_COUNT_MAX:
        raise CommandRejected(ErrorCode.INVALID_COMMAND, f"count must be from 1 to {HIT_COUNT_MAX}")
    if request.count * request.payload_size_max > HIT_SIZE_MAX:
        reason = f"{request.count} payloads of {request.payload_size_max} bytes are more than {HIT_SIZE_MAX} bytes"
        raise CommandRejected(ErrorCode.INVALID_COMMAND, reason)
    try:
        return MessageFilter(request.conditions)
    except ValueError as error:
        raise CommandRejected(ErrorCode.INVALID_COMMAND, str(error)) from None


# --- one scan -----------------------------------------------------------------------------------------


class Scan:
    """One scan. ``events`` gives what it finds, once."""

    def __init__(
        self,
        request: ScanRequest,
        wanted: MessageFilter,
        partitions: Mapping[int, Partition],
        check: Callable[[], None],
        turns: ScanTurns,
    ) -> None:
        self._request = request
        self._wanted = wanted
        self._partitions = partitions
        self._check = check
        self._turns = turns
        self._is_newest_first = request.order is ScanOrder.NEWEST
        self._buffer = ReadBuffer(PIECE_SIZE)
        self._piece_count = _PIECE_COUNT_START
        self._step_count = _PIECE_COUNT_MIN
        """Offsets of the next piece of a part of the log that has few messages."""
        self._merge = Merge({}, request.order, request.count)
        self._gaps: list[ScanGap] = []
        self._scanned_count = self._scanned_size = self._undecoded_count = 0

    async def events(self) -> AsyncGenerator[ScanEvent, None]:
        """What happens.

        Raises:
            CommandRejected: the login, the permission or the topic is gone.
            CourserError: the disk or the archive cannot be read.
        """
        merge, clock = self._merge, asyncio.get_running_loop().time
        merge.rows = await self._find_rows()
        bounds = tuple(ScanBounds(row.partition_id, row.first_offset, row.end_offset) for row in merge.rows.values())
        yield ScanStarted(bounds, sum(map(self._count_of, bounds)))
        reported_at = clock()
        while not merge.is_full and (row := merge.next_row()) is not None:
            self._check()
            await self._advance(row)
            while self._gaps:
                yield self._gaps.pop()
            for hit in merge.ready():
                yield hit
            if clock() >= reported_at + _PROGRESS_INTERVAL:
                reported_at = clock()
                yield self._progress()
        for hit in merge.ready():
            yield hit
        yield ScanDone(self._progress(), merge.is_complete)

    def _progress(self) -> ScanProgress:
        merge = self._merge
        return ScanProgress(
            self._scanned_count, self._scanned_size, merge.found_count, self._undecoded_count, merge.positions()
        )

    def _count_of(self, bounds: ScanBounds) -> int:
        partition = self._partitions[bounds.partition_id]
        return partition.count_from(bounds.first_offset) - partition.count_from(bounds.end_offset)

    # --- bounds ---

    async def _find_rows(self) -> dict[int, Row]:
        rows = {}
        for number, (partition_id, partition) in enumerate(self._partitions.items(), start=1):
            rows[partition_id] = await self._find_row(partition_id, partition)
            if number % _ROW_STEP_COUNT == 0:
                await asyncio.sleep(0)
        return rows

    async def _find_row(self, partition_id: int, partition: Partition) -> Row:
        request, log = self._request, partition.log
        log.check_readable()
        first, end = max(partition.start_offset, request.first_offset), log.readable_end
        if request.end_offset is not None:
            end = min(end, request.end_offset)
        if request.first_time:
            first = max(first, await partition.offset_at_time(request.first_time))
        if request.end_time is not None:
            end = min(end, await partition.offset_at_time(request.end_time))
        position = request.positions.get(partition_id)
        if position is not None:
            first, end = (first, min(end, position)) if self._is_newest_first else (max(first, position), end)
        if first >= end:
            return Row(partition_id, first, first, 0)
        frontier = await partition.time_at(end - 1 if self._is_newest_first else first)
        return Row(partition_id, first, end, frontier or 0)

    # --- pieces ---

    async def _advance(self, row: Row) -> None:
        """Look at the next piece of a partition."""
        partition = self._partitions[row.partition_id]
        count = self._next_count(partition)
        if not self._is_newest_first:
            result, looked = await self._look_at(partition, row.first_offset, row.end_offset, count)
            row.first_offset = max(result.next_offset, row.first_offset + 1)
            row.frontier = row.frontier if looked.last_time is None else looked.last_time
            return
        # Backwards in steps of several pieces: a piece that ends within a batch reads all of the batch.
        step_count = count if not self._request.conditions else count * _STEP_PIECE_COUNT
        begin = offset = max(row.end_offset - max(step_count, self._step_count), row.first_offset)
        found_count = 0
        while offset < row.end_offset:
            result, looked = await self._look_at(partition, offset, row.end_offset, max(count, self._step_count))
            if not found_count and looked.first_time is not None:
                row.frontier = looked.first_time
            found_count += result.message_count
            offset = max(result.next_offset, offset + 1)
        # Where there are no messages, the next step is longer.
        self._step_count = 0 if found_count else min(2 * max(count, self._step_count), _STEP_COUNT_MAX)
        row.end_offset = begin

    def _next_count(self, partition: Partition) -> int:
        log = partition.log
        mean_size = log.size // max(log.message_count, 1)
        count = min(self._piece_count, max(PIECE_SIZE // max(mean_size, 1), 1))
        return count if self._request.conditions else min(count, self._merge.left_count)

    async def _look_at(self, partition: Partition, offset: int, end: int, count: int) -> "tuple[ReadResult, _Looked]":
        request, number = self._request, partition.log.identity.partition_id
        look = partial(_look, number, self._wanted, end, request.payload_size_max)
        result, looked = await self._turns.take(partition, offset, min(count, end - offset), self._buffer, look)
        for hit in looked.hits:
            self._merge.add(hit)
        self._undecoded_count += looked.undecoded_count
        self._scanned_count += result.message_count
        self._scanned_size += result.size
        self._gaps += [_gap(number, skipped, end) for skipped in result.skipped if _is_gap(skipped)]
        if result.message_count and looked.spent:
            fitting = int(result.message_count * _PIECE_SECONDS / looked.spent)
            most = min(2 * self._piece_count, _PIECE_COUNT_MAX)
            self._piece_count = min(max(fitting, _PIECE_COUNT_MIN), most)
        return result, looked


def _is_gap(skipped: SkippedRange) -> bool:
    """Whether there were messages."""
    return skipped.reason is not SkipReason.RESERVED


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
