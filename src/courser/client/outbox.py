"""Messages on their way into a batch: collected one by one, turned into frames at once.

The path of every message that is sent. Nothing is done per message that can be done per batch.
"""

import os
import time
from struct import Struct

import numpy as np
import xxhash

from courser.client.encryption import Encryptor
from courser.errors import ErrorCode, InvalidBatch
from courser.model.buffers import Buffer
from courser.records import layout
from courser.records.batch import Batch, batch_of

_ID_SIZE = 16
_checksum = xxhash.xxh3_64_intdigest
_pack_checksum = Struct("<Q").pack

_COVERED = np.dtype(
    [
        ("id", "V16"),
        ("offset_delta", "<u4"),
        ("timestamp_delta", "<u4"),
        ("user_headers_length", "<u4"),
        ("payload_length", "<u4"),
        ("reserved", "<u8"),
    ]
)
"""A frame's header behind its checksum, which covers it."""
_COVERED_SIZE = layout.FRAME_HEADER_SIZE - layout.FRAME_ID_POSITION
assert _COVERED.itemsize == _COVERED_SIZE
_LINGER_MAX = 60_000_000
"""Microseconds that a batch may still wait until its other messages get their time."""


def now_in_microseconds() -> int:
    """The time that messages are stamped with."""
    return time.time_ns() // 1000


class Outbox:
    """Messages that will be one batch."""

    __slots__ = ("_explicit_ids", "_headers", "_payloads", "_times", "size")

    def __init__(self) -> None:
        self._payloads: list[Buffer] = []
        self._headers: dict[int, bytes] = {}
        """Blocks of user headers, by number of the message."""
        self._explicit_ids: dict[int, int] = {}
        self._times: dict[int, int] = {}
        """Creation times that are not that of the batch."""
        self.size = layout.BATCH_HEADER_SIZE
        """Bytes of the batch."""

    def __len__(self) -> int:
        return len(self._payloads)

    @property
    def has_times(self) -> bool:
        """Whether messages have creation times of their own."""
        return bool(self._times)

    def fits(self, timestamp: int | None) -> bool:
        """Whether a message that was made then, or now, is near enough to the others for one batch."""
        times = [*self._times.values(), now_in_microseconds() if timestamp is None else timestamp]
        if len(self._times) < len(self._payloads):
            times.append(now_in_microseconds() + _LINGER_MAX)
        return max(times) - min(times) <= layout.TIMESTAMP_DELTA_MAX

    def add(self, payload: Buffer) -> None:
        """One more message that is nothing but its payload."""
        self._payloads.append(payload)
        self.size += len(payload) + layout.FRAME_HEADER_SIZE

    def add_details(self, headers: bytes, message_id: int | None, timestamp: int | None) -> None:
        """What else there is to say of the message that was added last."""
        number = len(self._payloads) - 1
        if headers:
            self._headers[number] = headers
            self.size += len(headers)
        if message_id is not None:
            self._explicit_ids[number] = message_id
        if timestamp is not None:
            self._times[number] = timestamp

    # --- frames ---------------------------------------------------------------------------------------

    def pack(self, encryptor: Encryptor | None = None) -> Batch:
        """All of them as one batch.

        Raises:
            InvalidBatch: there are none, or their creation times are too far apart for one batch.
        """
        if not self._payloads:
            raise InvalidBatch(ErrorCode.INVALID_MESSAGES_COUNT, "there are no messages to send")
        payloads, headers = self._payloads, self._headers
        if encryptor is not None:
            payloads = [encryptor.encrypt(payload) for payload in payloads]
            headers = {number: encryptor.encrypt_headers(block) for number, block in headers.items()}
        count = len(payloads)
        origin, covered = self._covered_headers(payloads, headers)
        pieces: list[Buffer] = []
        add = pieces.append
        position = 0
        if headers:
            none = b""
            for number, payload in enumerate(payloads):
                frame = b"".join((covered[position : position + _COVERED_SIZE], payload, headers.get(number, none)))
                position += _COVERED_SIZE
                add(_pack_checksum(_checksum(frame)))
                add(frame)
        else:
            for payload in payloads:
                frame = covered[position : position + _COVERED_SIZE] + payload
                position += _COVERED_SIZE
                add(_pack_checksum(_checksum(frame)))
                add(frame)
        return batch_of(origin, count, memoryview(b"".join(pieces)))

    def _covered_headers(self, payloads: list[Buffer], headers: dict[int, bytes]) -> tuple[int, bytes]:
        """The smallest creation time, and the headers of all frames without their checksums."""
        count = len(payloads)
        rows = np.zeros(count, _COVERED)
        rows["id"] = self._ids(count)
        rows["offset_delta"] = np.arange(count, dtype="<u4")
        rows["payload_length"] = np.fromiter(map(len, payloads), "<u4", count)
        for number, block in headers.items():
            rows["user_headers_length"][number] = len(block)
        now = now_in_microseconds()
        if not self._times:
            return now, rows.tobytes()
        times = np.full(count, now, np.int64)
        for number, timestamp in self._times.items():
            times[number] = timestamp
        origin = int(times.min())
        if int(times.max()) - origin > layout.TIMESTAMP_DELTA_MAX:
            reason = "the creation times of its messages are over 71 minutes apart"
            raise InvalidBatch(ErrorCode.INVALID_COMMAND, reason)
        rows["timestamp_delta"] = times - origin
        return origin, rows.tobytes()

    def _ids(self, count: int) -> np.ndarray[tuple[int], np.dtype[np.void]]:
        ids = os.urandom(_ID_SIZE * count)
        if self._explicit_ids:
            changed = bytearray(ids)
            for number, message_id in self._explicit_ids.items():
                changed[number * _ID_SIZE : (number + 1) * _ID_SIZE] = message_id.to_bytes(_ID_SIZE, "little")
            ids = bytes(changed)
        return np.frombuffer(ids, "V16")
