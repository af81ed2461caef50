"""Messages on their way into a batch: collected one by one, turned into frames at once.

The path of every message that is sent. Nothing is done per message that can be done per batch.
"""

import os
import time
from collections.abc import Iterable
from functools import lru_cache
from struct import Struct

import numpy as np
import xxhash
from numpy.typing import NDArray

from courser.client.encryption import Encryptor
from courser.errors import ErrorCode, InvalidBatch
from courser.model.buffers import Buffer
from courser.records import layout
from courser.records.batch import Batch, batch_of

FRAME_HEADER_SIZE = layout.FRAME_HEADER_SIZE
_CHECKSUM_SIZE = layout.FRAME_ID_POSITION
_LINGER_MAX = 60_000_000
"""Microseconds that a batch may still wait until its other messages get their time."""
_TWO_U64 = Struct("<QQ")
_MASK = 2**64 - 1

FRAME_FIELDS = np.dtype(
    [
        ("checksum", "<u8"),
        ("id_low", "<u8"),
        ("id_high", "<u8"),
        ("offset_delta", "<u4"),
        ("timestamp_delta", "<u4"),
        ("user_headers_length", "<u4"),
        ("payload_length", "<u4"),
        ("reserved", "<u8"),
    ]
)
"""``layout.FRAME_HEADER`` as columns."""
assert FRAME_FIELDS.itemsize == FRAME_HEADER_SIZE


def now_in_microseconds() -> int:
    """The time that messages are stamped with."""
    return time.time_ns() // 1000


class Outbox:
    """Messages that will be one batch."""

    __slots__ = ("_headers", "_ids", "_times", "payloads", "size")

    def __init__(self) -> None:
        self.payloads: list[Buffer] = []
        """Who appends one adds to ``size`` as well."""
        self._headers: dict[int, bytes] = {}
        """Blocks of user headers, by number of the message."""
        self._ids: dict[int, int] = {}
        """Ids that are not drawn."""
        self._times: dict[int, int] = {}
        """Creation times that are not that of the batch."""
        self.size = layout.BATCH_HEADER_SIZE
        """Bytes of the batch."""

    def __len__(self) -> int:
        return len(self.payloads)

    @property
    def has_times(self) -> bool:
        """Whether messages have creation times of their own."""
        return bool(self._times)

    def fits(self, timestamp: int | None) -> bool:
        """Whether a message that was made then, or now, is near enough to the others for one batch."""
        times = [*self._times.values(), now_in_microseconds() if timestamp is None else timestamp]
        if len(self._times) < len(self.payloads):
            times.append(now_in_microseconds() + _LINGER_MAX)
        return max(times) - min(times) <= layout.TIMESTAMP_DELTA_MAX

    def add(
        self, payload: Buffer, headers: bytes = b"", message_id: int | None = None, timestamp: int | None = None
    ) -> None:
        """One more message. What is not given is drawn, or now."""
        number = len(self.payloads)
        self.payloads.append(payload)
        self.size += FRAME_HEADER_SIZE + len(payload) + len(headers)
        if headers:
            self._headers[number] = headers
        if message_id is not None:
            self._ids[number] = message_id
        if timestamp is not None:
            self._times[number] = timestamp

    # --- frames ---------------------------------------------------------------------------------------

    def pack(self, encryptor: Encryptor | None = None) -> Batch:
        """All of them as one batch.

        Raises:
            InvalidBatch: there are none, or their creation times are too far apart for one batch.
        """
        payloads, headers = self.payloads, self._headers
        if not payloads:
            raise InvalidBatch(ErrorCode.INVALID_MESSAGES_COUNT, "there are no messages to send")
        if encryptor is not None:
            payloads = [encryptor.encrypt(payload) for payload in payloads]
            headers = {number: encryptor.encrypt_headers(block) for number, block in headers.items()}
        origin, rows = self._rows(payloads, headers)
        return batch_of(origin, len(payloads), memoryview(_frames(rows, payloads, headers)))

    def _rows(self, payloads: list[Buffer], headers: dict[int, bytes]) -> tuple[int, NDArray[np.void]]:
        """The smallest creation time, and the headers of all frames, without their checksums."""
        count = len(payloads)
        numbers = np.arange(count, dtype=np.uint64)
        rows = np.zeros(count, FRAME_FIELDS)
        # One draw for all of them, and numbers from there on: unique is what ids have to be.
        low, high = _TWO_U64.unpack(os.urandom(_TWO_U64.size))
        rows["id_low"] = numbers + np.uint64(low)
        rows["id_high"] = high
        rows["offset_delta"] = numbers
        rows["payload_length"] = np.fromiter(map(len, payloads), np.uint32, count)
        for number, message_id in self._ids.items():
            rows["id_low"][number], rows["id_high"][number] = message_id & _MASK, message_id >> 64
        for number, block in headers.items():
            rows["user_headers_length"][number] = len(block)
        now = now_in_microseconds()
        if not self._times:
            return now, rows
        times = np.full(count, now, np.int64)
        for number, timestamp in self._times.items():
            times[number] = timestamp
        origin = int(times.min())
        if int(times.max()) - origin > layout.TIMESTAMP_DELTA_MAX:
            reason = "the creation times of its messages are over 71 minutes apart"
            raise InvalidBatch(ErrorCode.INVALID_COMMAND, reason)
        rows["timestamp_delta"] = times - origin
        return origin, rows


def _frames(rows: NDArray[np.void], payloads: list[Buffer], headers: dict[int, bytes]) -> bytearray:
    """The frames behind one another.

    Every step is one call for all of them, and nothing of the size of a message is allocated for each: either would
    take twice as long.
    """
    width = 3 if headers else 2
    pieces: list[Buffer] = [b""] * (width * len(payloads))
    pieces[0::width] = rows.view(f"V{FRAME_HEADER_SIZE}").tolist()
    pieces[1::width] = payloads
    for number, block in headers.items():
        pieces[width * number + 2] = block
    body = bytearray().join(pieces)
    put_checksums(body, rows)
    return body


def put_checksums(body: bytearray, rows: NDArray[np.void]) -> None:
    """Fill in the checksum of every frame. ``rows`` are the headers of the frames in ``body``."""
    sizes = rows["payload_length"].astype(np.int64) + rows["user_headers_length"] + FRAME_HEADER_SIZE
    size = int(sizes[0])
    if len(body) == len(rows) * size and (sizes == size).all():
        checksums = _checksums(body, _parts_of_same_size(len(rows), size), len(rows))
        np.frombuffer(body, np.uint8).reshape(-1, size)[:, :_CHECKSUM_SIZE] = checksums
    else:
        ends = sizes.cumsum()
        starts = ends - sizes
        parts = map(slice, (starts + _CHECKSUM_SIZE).tolist(), ends.tolist())
        checksums = _checksums(body, parts, len(rows))
        np.frombuffer(body, np.uint8)[starts[:, None] + np.arange(_CHECKSUM_SIZE)] = checksums


def _checksums(body: bytearray, parts: Iterable[slice], count: int) -> NDArray[np.uint8]:
    """What belongs into the checksum fields, a row of bytes each."""
    views = map(memoryview(body).__getitem__, parts)
    checksums = np.fromiter(map(xxhash.xxh3_64_intdigest, views), "<u8", count)
    return checksums.view(np.uint8).reshape(count, _CHECKSUM_SIZE)


@lru_cache(maxsize=64)
def _parts_of_same_size(count: int, size: int) -> tuple[slice, ...]:
    """What the checksums of frames of one size cover. Full batches of equal messages come again and again."""
    return tuple(slice(start + _CHECKSUM_SIZE, start + size) for start in range(0, count * size, size))
