"""What happens to a batch before it is appended: messages that are sent again are dropped, and bodies are encoded.

A client that got no reply sends its messages again. An idempotent producer gives them the same numbers, by which the
partition always recognises the batch. If messages are deduplicated, it is recognised by their ids: a batch of which all
messages are known is not stored again. Of one of which some are known, the others are.
"""

import asyncio
import secrets
from functools import partial
from typing import NamedTuple

import numpy as np

from courser.broker.partition.partition_reader import PartitionReader
from courser.model.clock import Clock
from courser.records.batch import Batch, select_messages
from courser.records.producers import BatchProducer
from courser.records.stored_body import PLAIN, EncodedBatch, encode
from courser.storage.log_reader import LogReader
from courser.storage.message_window import (
    FEW,
    NEW,
    Deduplication,
    FewIds,
    MessageIds,
    MessageWindow,
    few_ids,
    ids_in,
    message_ids,
)
from courser.storage.partition_log import Appended, PartitionLog
from courser.storage.producer_table import ProducerTable
from courser.storage.read_result import ReadBuffer

_READ_SIZE = 4 * 1024 * 1024
"""Bytes that are read at a time to learn the ids of stored messages."""


class KnownMessages(NamedTuple):
    """What a partition knows of a batch."""

    fresh: Batch | None
    """The messages that are not stored yet: the same batch, a smaller one, or None."""
    first_offset: int = 0
    """Where the first message is, if all of them are stored."""
    ids: MessageIds | FewIds | None = None
    """The ids of the messages, if none is stored."""


class Preparation:
    """Prepares the batches of one partition. For one event loop."""

    def __init__(self, log: PartitionLog, reader: PartitionReader, clock: Clock) -> None:
        self._log = log
        self._reader = reader
        self._clock = clock
        self._window: MessageWindow | None = None
        """The ids of recent messages, from the first batch on, if messages are deduplicated."""
        self._producers: ProducerTable | None = None
        """Idempotent producers, from the first batch of one on."""
        self._loading = asyncio.Lock()

    def is_quick(self, batch: Batch) -> bool:
        """Whether ``encode`` takes less time than handing the batch to another thread."""
        return batch.size <= self._log.settings.limits.inline_coding_size

    @property
    def is_loaded(self) -> bool:
        """Whether ``look_up`` can be used."""
        return self._window is not None

    # --- idempotent producers ---

    @property
    def knows_producers(self) -> bool:
        """Whether ``find_repeat`` can be used."""
        return self._producers is not None

    async def learn_producers(self) -> None:
        """Look for producers in the log, at the first batch of one. Raises ``StorageFailure``.

        Until then nobody stores such a batch, so the log says everything. A start need not read it for this.
        """
        if self._producers is None:
            async with self._loading:
                if self._producers is None:
                    self._producers = await self._reader.run(self._load_producers)

    def _load_producers(self) -> ProducerTable:
        limits = self._log.settings.producers
        table, now = ProducerTable(limits), self._clock.now()
        found = self._reader.disk.newest_of_producers(max(now - limits.age_max, 0))
        table.rebuild(found, now, self._clock.monotonic())
        return table

    def find_repeat(self, producer: BatchProducer) -> int | None:
        """See ``ProducerTable``. Nothing may be awaited between this and the append."""
        assert self._producers is not None, "they were loaded"
        return self._producers.find_repeat(producer, self._clock.monotonic())

    def remember_producer(self, producer: BatchProducer, base_offset: int) -> None:
        """A batch was stored, or all of its messages were stored before."""
        assert self._producers is not None, "they were loaded"
        self._producers.remember(producer, base_offset, self._clock.monotonic())

    # --- what is stored ---

    def encode(self, batch: Batch) -> Batch:
        """The batch as the partition stores it. Raises ``CodecMissing``."""
        return encode(batch, self._log.settings.encoding)

    async def prepare(self, batch: Batch) -> Batch:
        """The same, a large batch on another thread. ``look_up`` can be used afterwards.

        Raises:
            CodecMissing: the library of the codec is not installed.
            StorageFailure, KeyMissing: the ids of the newest messages cannot be read.
        """
        settings = self._log.settings
        if settings.deduplication is not None and self._window is None:
            async with self._loading:
                if self._window is None:
                    load = partial(load_window, self._log, self._reader.disk, settings.deduplication, self._clock)
                    self._window = await self._reader.run(load)
        if settings.encoding is PLAIN:
            return batch
        if self.is_quick(batch):
            return self.encode(batch)
        return await self._reader.run(partial(self.encode, batch))

    def ids_if_new(self, batch: Batch) -> MessageIds | FewIds | None:
        """The ids of a batch of which no message was stored before; None if one was, or if this has to be waited for.

        The caller appends the batch next: nothing may be awaited between the lookup and the append.
        """
        if not self.is_loaded or (self._log.settings.encoding is not PLAIN and not self.is_quick(batch)):
            return None
        return self.look_up(batch).ids

    def look_up(self, batch: Batch) -> KnownMessages:
        """Which messages of a batch, not encoded, are not stored yet."""
        assert self._window is not None, "a batch was prepared"
        now, start_offset = self._clock.monotonic(), self._log.start_offset
        ids = _ids_of(batch)
        if self._window.has_none_of(ids, now, start_offset):
            return KnownMessages(batch, ids=ids)
        found = self._window.find(message_ids(batch.body, batch.frames), now, start_offset)
        fresh = np.flatnonzero(found == NEW)
        if len(fresh):
            selected = select_messages(batch, fresh.tolist())
            selected.producer = batch.producer
            return KnownMessages(selected)
        return KnownMessages(None, int(found[0]))

    def remember(self, batch: Batch, appended: Appended, ids: MessageIds | FewIds | None = None) -> None:
        """A batch was stored. ``ids`` are those of its messages, if they are at hand."""
        if self._window is not None:
            if ids is None:
                ids = _ids_of(batch.plain if isinstance(batch, EncodedBatch) else batch)
            # Not the time in the log: a clock that is set would empty the window, or keep it for years.
            self._window.remember(ids, appended.base_offset, self._clock.monotonic())


def _ids_of(batch: Batch) -> MessageIds | FewIds:
    return (few_ids if batch.count <= FEW else message_ids)(batch.body, batch.frames)


def load_window(log: PartitionLog, reader: LogReader, limits: Deduplication, clock: Clock) -> MessageWindow:
    """The ids of the newest messages in the log, with times of the monotonic clock. May wait for the disk.

    Raises:
        StorageFailure: the disk cannot be read.
        KeyMissing, CodecMissing: the newest messages cannot be decoded.
    """
    window, buffer = MessageWindow(limits, secrets.randbits(64)), ReadBuffer()
    now, monotonic = clock.now(), clock.monotonic()
    latest = monotonic - limits.age_max
    offset = max(reader.offset_of_last(limits.count_max), reader.offset_at_time(max(now - limits.age_max, 0)))
    while offset < log.visible_end:
        buffer.used = 0
        result = reader.read(offset, _READ_SIZE, _READ_SIZE, buffer)
        for piece in result.pieces:
            for ids, first_offset, timestamp in ids_in(piece):
                # Times in the log go back where the clock was set back. Those of the window must not.
                latest = max(latest, monotonic - max(now - timestamp, 0))
                window.remember(ids, first_offset, latest)
        if result.next_offset <= offset:
            break
        offset = result.next_offset
    return window
