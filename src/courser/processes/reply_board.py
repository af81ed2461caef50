"""Replies that other processes have sent to connections of this one: noted in memory that all of them have mapped.

Each process has a board of its own, with a slot for every connection whose socket it has lent. The process that answers
a request first writes what the reply says, then sends the reply, and then writes that it is sent. Nobody is woken for
that: the process of the connection looks at the slot when it needs to know.

A slot has one writer at a time, because a connection has one request at a time, and a slot is given to another one when
nothing is pending. Requests are known by the numbers of calls, which a process uses once in its life, whomever it
calls (``Peer``). So what a slot still says of an earlier request is never taken for the reply to a later one, also if
the owner was restarted in between.
"""

import mmap
import os
from struct import Struct

_WORD_COUNT = 8
"""Words of 64 bits in a slot: a line of the processor's cache."""
_SIZE = _WORD_COUNT * 8
_SENT = 7
"""The word that has the number of the request whose reply is sent. One store, so nobody reads half of it."""
_FACTS = Struct("=QQQQQQ")
"""Number of the request; stream, topic, partition and offset of the reply; a check of all of them.

Processors may make stores visible in any order. What was not written together does not match the check.
"""
_MASK = 2**64 - 1
_pack_facts = _FACTS.pack_into
_unpack_slot = Struct("=QQQQQQ8xQ").unpack_from


class ReplyBoard:
    """The board of this process, to read."""

    def __init__(self, slot_count: int) -> None:
        self.descriptor = os.memfd_create("courser-replies", os.MFD_CLOEXEC)
        os.ftruncate(self.descriptor, slot_count * _SIZE)
        self._map = mmap.mmap(self.descriptor, slot_count * _SIZE)
        self._words = memoryview(self._map).cast("Q")
        self._free = list(range(slot_count - 1, -1, -1))

    def take(self) -> int | None:
        """A slot for a connection; None if all are taken."""
        return self._free.pop() if self._free else None

    def give_back(self, slot: int) -> None:
        """A slot is not needed any more."""
        self._free.append(slot)

    def is_begun(self, slot: int, number: int) -> bool:
        """Whether the reply to a request is sent, or is being sent right now."""
        return self._words[slot * _WORD_COUNT] == number

    def read(self, slot: int, number: int) -> tuple[int, int, int, int] | None:
        """Stream, topic, partition and offset of the reply to a request; None if it is not sent."""
        found, stream_id, topic_id, partition_id, base_offset, check, sent = _unpack_slot(self._map, slot * _SIZE)
        if sent != number or found != number:
            return None
        if check != (number + 3 * stream_id + 5 * topic_id + 7 * partition_id + 11 * base_offset) & _MASK:
            return None
        return stream_id, topic_id, partition_id, base_offset


class ForeignBoard:
    """The board of another process, to write."""

    def __init__(self, descriptor: int) -> None:
        """Takes over the descriptor."""
        try:
            self._map = mmap.mmap(descriptor, os.fstat(descriptor).st_size)
        finally:
            os.close(descriptor)
        self._words = memoryview(self._map).cast("Q")

    def begin(self, slot: int, number: int, stream_id: int, topic_id: int, partition_id: int, base_offset: int) -> None:
        """The reply to a request is about to be sent."""
        check = (number + 3 * stream_id + 5 * topic_id + 7 * partition_id + 11 * base_offset) & _MASK
        _pack_facts(self._map, slot * _SIZE, number, stream_id, topic_id, partition_id, base_offset, check)

    def note_sent(self, slot: int, number: int) -> None:
        """The reply is sent."""
        self._words[slot * _WORD_COUNT + _SENT] = number
