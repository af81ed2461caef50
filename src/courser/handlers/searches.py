"""Searches: the messages of a topic that satisfy conditions, newest or oldest first, with progress.

A search asks for one piece of a partition after another with ordinary commands, so the topic may be in any process. It
is asked for one event at a time. Whoever sends them asks for the next one when the client has taken the last.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

from courser.api import internal_commands as i
from courser.api.commands import FindMessages
from courser.api.scans import (
    HIT_COUNT_MAX,
    HIT_SIZE_MAX,
    ScanBounds,
    ScanDone,
    ScanEvent,
    ScanGap,
    ScanOrder,
    ScanProgress,
    ScanRequest,
    ScanStarted,
)
from courser.api.table import Command, CommandRow
from courser.broker.access.sessions import Session
from courser.broker.catalog.finding import find_partition
from courser.broker.messages.scan_order import Merge, Row
from courser.broker.messages.scan_turns import PIECE_SIZE
from courser.broker.messages.searching import filter_of
from courser.catalog.entities import Stream, Topic
from courser.errors import CommandRejected, ErrorCode
from courser.handlers.dispatcher import Dispatcher
from courser.model.identifiers import Identifier, TopicAddress

_PIECE_COUNT_MIN, _PIECE_COUNT_START, _PIECE_COUNT_MAX = 20, 500, 10_000
"""Messages of a piece."""
_PIECE_SECONDS = 0.003
"""How long looking at a piece should take: the number of its messages follows from it."""
_STEP_PIECE_COUNT = 4
"""Pieces of a step backwards, if few messages are expected to match."""
_STEP_COUNT_MAX = 10_000_000
"""Offsets without messages that are passed over at once."""
_PROGRESS_INTERVAL = 0.25
"""Seconds between two reports of progress."""


@dataclass(frozen=True, slots=True)
class _Place:
    """The topic of a search, for a check of the permission, which is that of a poll."""

    row: ClassVar[CommandRow] = FindMessages.row
    stream: Identifier
    topic: Identifier


class Searches:
    """Makes searches, and limits how many there are."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher
        self._finder = dispatcher.broker.finder
        self._limits = dispatcher.broker.settings.limits
        self._counts: Counter[int | None] = Counter()
        """By user."""

    def __len__(self) -> int:
        return self._counts.total()

    @contextmanager
    def open(self, session: Session, request: ScanRequest, check_login: Callable[[], None]) -> "Iterator[Search]":
        """A search for the user of this session, as long as the context lasts.

        ``check_login`` raises ``CommandRejected`` if the login is not valid any more. It is asked again and again.

        Raises:
            CommandRejected: as ``Finder``; 3007 without such a partition; 3 for a wrong condition; 20010 if there are
                too many searches.
        """
        _check_size(request)
        filter_of(request.conditions)
        stream, topic = self._topic(session, request)
        partition_ids = tuple(range(len(topic.partitions))) if request.partition_ids is None else request.partition_ids
        for partition_id in partition_ids:
            find_partition(topic, partition_id)

        def check() -> None:
            check_login()
            if self._topic(session, request)[1].uuid != topic.uuid:
                raise CommandRejected(ErrorCode.TOPIC_NOT_FOUND, "the topic was deleted meanwhile")

        async def ask(command: Command) -> Any:
            reply = await self._dispatcher.ask(session, command)
            # Whatever has ended meanwhile.
            check()
            return reply

        address = TopicAddress(stream.stream_id, topic.topic_id)
        with self._counted(session.user_id):
            yield Search(request, address, partition_ids, ask)

    def _topic(self, session: Session, request: ScanRequest) -> tuple[Stream, Topic]:
        return self._finder.topic(session, _Place(request.stream, request.topic))

    @contextmanager
    def _counted(self, user_id: int | None) -> Iterator[None]:
        limits, count_of_user = self._limits, self._counts[user_id]
        if len(self) >= limits.scan_count_max or count_of_user >= limits.scan_count_of_user_max:
            reason = f"this user already has {count_of_user} searches, all users have {len(self)}; try again later"
            raise CommandRejected(ErrorCode.SERVER_BUSY, reason)
        self._counts[user_id] += 1
        try:
            yield
        finally:
            self._counts[user_id] -= 1


def _check_size(request: ScanRequest) -> None:
    if not 1 <= request.count <= HIT_COUNT_MAX:
        raise CommandRejected(ErrorCode.INVALID_COMMAND, f"count must be from 1 to {HIT_COUNT_MAX}")
    if request.count * request.payload_size_max > HIT_SIZE_MAX:
        reason = f"{request.count} payloads of {request.payload_size_max} bytes are more than {HIT_SIZE_MAX} bytes"
        raise CommandRejected(ErrorCode.INVALID_COMMAND, reason)


# --- one search ---------------------------------------------------------------------------------------


class Search:
    """One search. ``events`` gives what it finds, once."""

    def __init__(
        self,
        request: ScanRequest,
        address: TopicAddress,
        partition_ids: tuple[int, ...],
        ask: Callable[[Command], Awaitable[Any]],
    ) -> None:
        self._request = request
        self._address = address
        self._partition_ids = partition_ids
        self._ask = ask
        self._is_newest_first = request.order is ScanOrder.NEWEST
        self._piece_count = _PIECE_COUNT_START
        self._step_count = _PIECE_COUNT_MIN
        """Offsets of the next piece of a part of the log that has few messages."""
        self._message_sizes: dict[int, int] = {}
        """By partition: bytes of a message, on average."""
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
        command = i.FindRangesToScan(*self._address, self._partition_ids, self._request)
        found: i.RangesToScan = await self._ask(command)
        merge.rows = {
            one.partition_id: Row(one.partition_id, one.first_offset, one.end_offset, one.frontier)
            for one in found.ranges
        }
        self._message_sizes = {one.partition_id: one.message_size for one in found.ranges}
        bounds = tuple(ScanBounds(one.partition_id, one.first_offset, one.end_offset) for one in found.ranges)
        yield ScanStarted(bounds, sum(one.message_count for one in found.ranges))
        reported_at = clock()
        while not merge.is_full and (row := merge.next_row()) is not None:
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

    async def _advance(self, row: Row) -> None:
        """Look at the next piece of a partition."""
        count = self._next_count(row)
        if not self._is_newest_first:
            piece = await self._look_at(row, row.first_offset, count)
            row.first_offset = max(piece.next_offset, row.first_offset + 1)
            row.frontier = row.frontier if piece.last_time is None else piece.last_time
            return
        # Backwards in steps of several pieces: a piece that ends within a batch reads all of the batch.
        step_count = count if not self._request.conditions else count * _STEP_PIECE_COUNT
        begin = offset = max(row.end_offset - max(step_count, self._step_count), row.first_offset)
        found_count = 0
        while offset < row.end_offset:
            piece = await self._look_at(row, offset, max(count, self._step_count))
            if not found_count and piece.first_time is not None:
                row.frontier = piece.first_time
            found_count += piece.message_count
            offset = max(piece.next_offset, offset + 1)
        # Where there are no messages, the next step is longer.
        self._step_count = 0 if found_count else min(2 * max(count, self._step_count), _STEP_COUNT_MAX)
        row.end_offset = begin

    def _next_count(self, row: Row) -> int:
        message_size = self._message_sizes[row.partition_id]
        count = min(self._piece_count, max(PIECE_SIZE // max(message_size, 1), 1))
        return count if self._request.conditions else min(count, self._merge.left_count)

    async def _look_at(self, row: Row, offset: int, count: int) -> i.ScannedPiece:
        request, end = self._request, row.end_offset
        what = request.conditions, request.payload_size_max
        command = i.ScanPiece(*self._address, row.partition_id, offset, end, min(count, end - offset), *what)
        piece: i.ScannedPiece = await self._ask(command)
        for hit in piece.hits:
            self._merge.add(hit)
        self._undecoded_count += piece.undecoded_count
        self._scanned_count += piece.message_count
        self._scanned_size += piece.size
        self._gaps += piece.gaps
        if piece.message_count and piece.spent:
            fitting = int(piece.message_count * _PIECE_SECONDS / piece.spent)
            most = min(2 * self._piece_count, _PIECE_COUNT_MAX)
            self._piece_count = min(max(fitting, _PIECE_COUNT_MIN), most)
        return piece
