"""Messages on their way into a batch: collected one by one, turned into frames at once.

The path of every message that is sent. Nothing is done per message that can be done per batch.
"""

import os
import time
from itertools import pairwise

import numpy as np
import xxhash
from numpy.typing import NDArray

from courser.client.encryption import Encryptor
from courser.errors import ErrorCode, InvalidBatch
from courser.model.buffers import Buffer
from courser.records import layout
from courser.records.batch import Batch, batch_of

FRAME_HEADER_SIZE = layout.FRAME_HEADER_SIZE
_ID_SIZE = 16
_CHECKSUM_SIZE = layout.FRAME_ID_POSITION
_LINGER_MAX = 60_000_000
"""Microseconds that a batch may still wait until its other messages get their time."""

_FRAME = np.dtype(
    [
        ("checksum", "<u8"),
        ("id", f"V{_ID_SIZE}"),
        ("offset_delta", "<u4"),
        ("timestamp_delta", "<u4"),
        ("user_headers_length", "<u4"),
        ("payload_length", "<u4"),
        ("reserved", "<u8"),
    ]
)
"""``layout.FRAME_HEADER`` as columns."""
assert _FRAME.itemsize == FRAME_HEADER_SIZE


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
        """Ids that are not random."""
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
        body = _joined(rows.tobytes(), payloads, headers)
        _put_checksums(body, rows)
        return batch_of(origin, len(payloads), memoryview(body))

    def _rows(self, payloads: list[Buffer], headers: dict[int, bytes]) -> tuple[int, NDArray[np.void]]:
        """The smallest creation time, and the headers of all frames, without their checksums."""
        count = len(payloads)
        rows = np.zeros(count, _FRAME)
        rows["id"] = self._drawn_ids(count)
        rows["offset_delta"] = np.arange(count, dtype="<u4")
        rows["payload_length"] = list(map(len, payloads))
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

    def _drawn_ids(self, count: int) -> NDArray[np.void]:
        ids = bytearray(os.urandom(_ID_SIZE * count))
        for number, message_id in self._ids.items():
            ids[number * _ID_SIZE : (number + 1) * _ID_SIZE] = message_id.to_bytes(_ID_SIZE, "little")
        return np.frombuffer(ids, f"V{_ID_SIZE}")


def _joined(rows: bytes, payloads: list[Buffer], headers: dict[int, bytes]) -> bytearray:
    """Headers, payloads and user headers behind one another."""
    starts = range(0, len(rows), FRAME_HEADER_SIZE)
    width = 3 if headers else 2
    pieces: list[Buffer] = [b""] * (width * len(payloads))
    pieces[0::width] = [rows[start : start + FRAME_HEADER_SIZE] for start in starts]
    pieces[1::width] = payloads
    for number, block in headers.items():
        pieces[width * number + 2] = block
    return bytearray().join(pieces)


def _put_checksums(body: bytearray, rows: NDArray[np.void]) -> None:
    """Hash every frame behind its checksum, and write the hashes to where they belong."""
    count = len(rows)
    sizes = rows["payload_length"].astype(np.int64) + rows["user_headers_length"] + FRAME_HEADER_SIZE
    starts = np.zeros(count + 1, np.int64)
    np.cumsum(sizes, out=starts[1:])
    view, checksum = memoryview(body), xxhash.xxh3_64_intdigest
    checksums = [checksum(view[start + _CHECKSUM_SIZE : end]) for start, end in pairwise(starts.tolist())]
    columns = np.array(checksums, "<u8").view(np.uint8).reshape(count, _CHECKSUM_SIZE)
    np.frombuffer(body, np.uint8)[starts[:-1, None] + np.arange(_CHECKSUM_SIZE)] = columns
