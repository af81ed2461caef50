"""The messages that producers send repeatedly. They are created before the measurement."""

import random
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from courser.bench.plan import Spread
from courser.records.batch import Batch, NewMessage, build_batch, encode_batch
from courser.records.layout import BATCH_HEADER_SIZE, FRAME_HEADER_SIZE

_POOL_SIZE_MAX = 64 * 1024 * 1024
"""Maximum size in bytes of one producer's samples."""
_VARIED_COUNT = 32
"""Number of different batches if their sizes vary: enough to represent their distribution."""
_EQUAL_COUNT = 4
_CLASSIC_HEADER = struct.Struct("<Q16sQQQIIQ")
"""checksum, id, offset, timestamp, origin timestamp, size of the user headers, of the payload, reserved"""
_CLASSIC_INDEX = struct.Struct("<IIQ")
CLASSIC_ORIGIN_POSITION = 40


@dataclass(frozen=True, slots=True)
class SampleBatch:
    """The messages of one request."""

    payloads: tuple[bytes, ...]
    ids: tuple[int, ...]
    origin_timestamp: int = 0
    """The same for all messages, in microseconds since 1970."""

    @property
    def count(self) -> int:
        """The number of messages."""
        return len(self.payloads)

    @property
    def payload_size(self) -> int:
        """Bytes of payload."""
        return sum(map(len, self.payloads))

    @property
    def stored_size(self) -> int:
        """Size of the batch in bytes as SDK 0.9 sends it, which is also what a server stores."""
        return BATCH_HEADER_SIZE + FRAME_HEADER_SIZE * self.count + self.payload_size

    def batch(self) -> Batch:
        """The batch as SDK 0.9 sends it."""
        pairs = zip(self.payloads, self.ids, strict=True)
        return build_batch([NewMessage(payload, number, self.origin_timestamp) for payload, number in pairs])

    def encoded_batch(self) -> bytes:
        """The bytes of that batch."""
        return encode_batch(self.batch())

    def classic(self) -> tuple[bytes, bytes, list[int]]:
        """The messages as SDK 0.8 sends them: the index, the messages, and the position of each."""
        index: list[bytes] = []
        messages: list[bytes] = []
        starts: list[int] = []
        end = 0
        for payload, number in zip(self.payloads, self.ids, strict=True):
            identity = number.to_bytes(16, "little")
            starts.append(end)
            messages += (
                _CLASSIC_HEADER.pack(0, identity, 0, 0, self.origin_timestamp, 0, len(payload), 0),
                payload,
            )
            end += _CLASSIC_HEADER.size + len(payload)
            index.append(_CLASSIC_INDEX.pack(0, end, 0))
        return b"".join(index), b"".join(messages), starts


def make_sample(payload_sizes: Sequence[int], source: random.Random, origin_timestamp: int = 0) -> SampleBatch:
    """Messages with random payloads of these sizes."""
    payloads = tuple(source.randbytes(size) for size in payload_sizes)
    return SampleBatch(payloads, tuple(source.getrandbits(128) for _ in payloads), origin_timestamp)


def make_pool(
    message_size: Spread, batch: Spread, source: random.Random, count_max: int | None = None
) -> list[SampleBatch]:
    """Batches to send in turn. No more than ``count_max`` messages will be sent."""
    largest = max(batch.maximum * message_size.maximum, 1)
    wanted = _EQUAL_COUNT if batch.is_fixed and message_size.is_fixed else _VARIED_COUNT
    pool: list[SampleBatch] = []
    while len(pool) < max(1, min(wanted, _POOL_SIZE_MAX // largest)):
        count = batch.pick(source)
        if count_max is not None:
            count = min(count, count_max)
        pool.append(make_sample([message_size.pick(source) for _ in range(count)], source))
        if count_max is not None and sum(sample.count for sample in pool) >= count_max:
            break
    return pool


def cut_sample(sample: SampleBatch, count: int) -> SampleBatch:
    """The first ``count`` messages of a sample."""
    return SampleBatch(sample.payloads[:count], sample.ids[:count], sample.origin_timestamp)
