"""Collect messages for a batch, and turn all of them into frames at once.

Every sent message takes this path, so work is done per batch rather than per message where possible.
"""

import os
import time
from struct import Struct

import numpy as np
from numpy.typing import NDArray

from courser.client.messages import SendMessage, read_headers
from courser.client.payload_encryption import Encryptor
from courser.errors import ErrorCode, InvalidBatch
from courser.model.buffers import Buffer
from courser.records import layout
from courser.records.batch import Batch, batch_of
from courser.records.frame_walk import write_frames
from courser.records.frame_walk_pure import FRAME_FIELDS

FRAME_HEADER_SIZE = layout.FRAME_HEADER_SIZE
EMPTY_MESSAGE_SIZE = layout.BATCH_HEADER_SIZE + FRAME_HEADER_SIZE
"""Bytes of a batch with one message that has neither payload nor headers."""
_LINGER_MAX = 60_000_000
"""Microseconds that a batch may wait before its messages without a time are stamped."""
_TWO_U64 = Struct("<QQ")
_MASK = 2**64 - 1
_ID_MAX = 2**128 - 1


def now_in_microseconds() -> int:
    """The current time for new messages."""
    return time.time_ns() // 1000


def check_numbers(message_id: int | None, timestamp: int | None) -> None:
    """Raise ``TypeError`` if the id or the time of a message is not an int."""
    for name, value in (("id", message_id), ("timestamp", timestamp)):
        if value is not None and type(value) is not int:
            raise TypeError(f"the {name} of a message must be an int, not {value!r}")


class Outbox:
    """The messages of a future batch."""

    __slots__ = ("_headers", "_ids", "_times", "payloads", "size")

    def __init__(self) -> None:
        self.payloads: list[Buffer] = []
        """Code that appends a payload must also increase ``size``."""
        self._headers: dict[int, bytes] = {}
        """Blocks of user headers, by the index of the message."""
        self._ids: dict[int, int] = {}
        """Ids that are given, not random."""
        self._times: dict[int, int] = {}
        """Creation times that differ from that of the batch."""
        self.size = layout.BATCH_HEADER_SIZE
        """Size of the batch in bytes."""

    def __len__(self) -> int:
        return len(self.payloads)

    @property
    def has_times(self) -> bool:
        """Whether any message has its own creation time."""
        return bool(self._times)

    def fits(self, timestamp: int | None) -> bool:
        """Whether a message with this creation time (None: now) fits into the time range of the batch."""
        times = [*self._times.values(), now_in_microseconds() if timestamp is None else timestamp]
        if len(self._times) < len(self.payloads):
            times.append(now_in_microseconds() + _LINGER_MAX)
        return max(times) - min(times) <= layout.TIMESTAMP_DELTA_MAX

    def add(
        self, payload: Buffer, headers: bytes = b"", message_id: int | None = None, timestamp: int | None = None
    ) -> None:
        """Add a message. By default its id is random and its time is now.

        Raises:
            InvalidBatch: the id or the time is out of range. Nothing was added.
            TypeError: the id or the time is not an int. Nothing was added.
        """
        if message_id is not None or timestamp is not None:
            check_numbers(message_id, timestamp)
        if timestamp is not None and not 0 <= timestamp <= _MASK:
            reason = f"timestamp {timestamp} is out of range: it must be 0 to {_MASK} microseconds since 1970"
            raise InvalidBatch(ErrorCode.INVALID_COMMAND, reason)
        if message_id is not None and not 0 <= message_id <= _ID_MAX:
            raise InvalidBatch(ErrorCode.INVALID_COMMAND, f"message id {message_id} is not an unsigned 128-bit integer")
        number = len(self.payloads)
        self.payloads.append(payload)
        self.size += FRAME_HEADER_SIZE + len(payload) + len(headers)
        if headers:
            self._headers[number] = headers
        if message_id is not None:
            self._ids[number] = message_id
        if timestamp is not None:
            self._times[number] = timestamp

    def messages(self) -> list[SendMessage]:
        """The messages, to be sent again. They keep their ids and times only if these were given."""
        return [
            SendMessage(
                payload,
                self._ids.get(number),
                *read_headers(self._headers.get(number, b"")),
                self._times.get(number),
            )
            for number, payload in enumerate(self.payloads)
        ]

    # --- frames ---------------------------------------------------------------------------------------

    def pack(self, encryptor: Encryptor | None = None) -> Batch:
        """Build the batch.

        Raises:
            InvalidBatch: there are no messages, or their creation times are too far apart for one batch.
        """
        payloads, headers = self.payloads, self._headers
        if not payloads:
            raise InvalidBatch(ErrorCode.INVALID_MESSAGES_COUNT, "no messages to send")
        if encryptor is not None:
            payloads = [encryptor.encrypt(payload) for payload in payloads]
            headers = {number: encryptor.encrypt_headers(block) for number, block in headers.items()}
        count = len(payloads)
        blocks: list[Buffer] | None = [headers.get(number, b"") for number in range(count)] if headers else None
        size = self.size - layout.BATCH_HEADER_SIZE
        if encryptor is not None:
            size = FRAME_HEADER_SIZE * count + sum(map(len, payloads)) + sum(map(len, headers.values()))
        origin, heads = self._heads(count)
        # Not a bytearray: that would fill the memory with zeros first.
        body = np.empty(size, np.uint8).data
        write_frames(payloads, blocks, heads.view(np.uint8).data, body)
        return batch_of(origin, count, body)

    def _heads(self, count: int) -> tuple[int, NDArray[np.void]]:
        """The earliest creation time, and the headers of all frames without lengths and checksums."""
        numbers = np.arange(count, dtype=np.uint64)
        rows = np.zeros(count, FRAME_FIELDS)
        # One random number for all, then consecutive numbers: ids must only be unique.
        low, high = _TWO_U64.unpack(os.urandom(_TWO_U64.size))
        rows["id_low"] = numbers + np.uint64(low)
        rows["id_high"] = high
        rows["offset_delta"] = numbers
        for number, message_id in self._ids.items():
            rows["id_low"][number], rows["id_high"][number] = message_id & _MASK, message_id >> 64
        now = now_in_microseconds()
        if not self._times:
            return now, rows
        times = np.full(count, now, np.uint64)
        for number, timestamp in self._times.items():
            times[number] = timestamp
        origin = int(times.min())
        if int(times.max()) - origin > layout.TIMESTAMP_DELTA_MAX:
            reason = "the creation times of the messages are more than 71 minutes apart"
            raise InvalidBatch(ErrorCode.INVALID_COMMAND, reason)
        rows["timestamp_delta"] = times - np.uint64(origin)
        return origin, rows
