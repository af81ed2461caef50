"""Messages that are sent again: which messages of a batch a partition has stored before.

A client that got no reply sends its messages again, with the same ids. A batch of which all messages are known is not
stored again. Of one of which some are known, the others are.
"""

import secrets
from typing import NamedTuple

import numpy as np

from courser.records.batch import Batch, select_messages
from courser.records.stored_body import EncodedBatch
from courser.storage.message_window import NEW, Deduplication, MessageWindow, ids_in, message_ids
from courser.storage.partition_log import Appended, PartitionLog
from courser.storage.read_result import ReadBuffer

_READ_SIZE = 4 * 1024 * 1024
"""Bytes that are read at a time to learn the ids of stored messages."""


class KnownMessages(NamedTuple):
    """What a partition knows of a batch."""

    fresh: Batch | None
    """The messages that are not stored yet: the same batch, a smaller one, or None."""
    first_offset: int = 0
    """Where the first message is, if all of them are stored."""


class Duplicates:
    """The ids of the newest messages of one partition."""

    def __init__(self, log: PartitionLog, limits: Deduplication) -> None:
        self._log = log
        self._window = MessageWindow(limits, secrets.randbits(64))

    def look_up(self, batch: Batch, now: int) -> KnownMessages:
        """Which messages of a batch are not stored yet. ``now``: microseconds."""
        found = self._window.find(message_ids(batch.body, batch.frames), now, self._log.start_offset)
        fresh = np.flatnonzero(found == NEW)
        if len(fresh) == batch.count:
            return KnownMessages(batch)
        if len(fresh):
            return KnownMessages(select_messages(batch, fresh.tolist()))
        return KnownMessages(None, int(found[0]))

    def remember(self, batch: Batch, appended: Appended) -> None:
        """A batch was stored."""
        plain = batch.plain if isinstance(batch, EncodedBatch) else batch
        ids = message_ids(plain.body, plain.frames)
        self._window.remember(ids, appended.base_offset, appended.timestamp)

    def load(self, offset: int) -> None:
        """Learn the ids of stored messages from ``offset`` on. May wait for the disk."""
        log, buffer = self._log, ReadBuffer()
        while offset < log.visible_end:
            buffer.reset()
            result = log.read(offset, _READ_SIZE, _READ_SIZE, buffer)
            for piece in result.pieces:
                for ids, first_offset, timestamp in ids_in(piece):
                    self._window.remember(ids, first_offset, timestamp)
            if result.next_offset <= offset:
                return
            offset = result.next_offset


def load_duplicates(log: PartitionLog, limits: Deduplication, now: int) -> Duplicates:
    """The ids of the newest messages in the log. May wait for the disk.

    Raises:
        StorageFailure: the disk cannot be read.
        KeyMissing, CodecMissing: the newest messages cannot be decoded.
    """
    duplicates = Duplicates(log, limits)
    duplicates.load(max(log.offset_of_last(limits.count_max), log.offset_at_time(max(now - limits.age_max, 0))))
    return duplicates
