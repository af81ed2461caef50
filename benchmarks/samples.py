"""Batches as a producer sends them."""

import random
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from courser.records.batch import NewMessage, build_batch, encode_batch
from courser.records.layout import BATCH_HEADER_SIZE, FRAME_HEADER_SIZE

SIZE_RANGE = (200, 1_800)
SAME_SIZE = 1_000
SMALL_SIZE = 100
ORIGIN = 1_700_000_000_000_000
_CLASSIC_HEADER = struct.Struct("<Q16sQQQIIQ")
"""checksum, id, offset, timestamp, origin timestamp, size of the user headers, of the payload, reserved"""
_CLASSIC_INDEX = struct.Struct("<IIQ")


class Shape(Enum):
    """Sizes of the payloads."""

    SAME = "1,000 B"
    MIXED = "200..1,800 B"
    SMALL = "100 B"

    def payload_sizes(self, count: int, source: random.Random) -> list[int]:
        match self:
            case Shape.SAME:
                return [SAME_SIZE] * count
            case Shape.SMALL:
                return [SMALL_SIZE] * count
            case Shape.MIXED:
                return [source.randint(*SIZE_RANGE) for _ in range(count)]


@dataclass(frozen=True, slots=True)
class SampleBatch:
    """The messages of one request."""

    payloads: tuple[bytes, ...]
    ids: tuple[int, ...]
    origin_timestamp: int = ORIGIN
    """The same for all messages, in microseconds since 1970."""

    @property
    def count(self) -> int:
        return len(self.payloads)

    @property
    def payload_size(self) -> int:
        return sum(map(len, self.payloads))

    @property
    def stored_size(self) -> int:
        """Size of the batch in bytes as SDK 0.9 sends it, which is also what a server stores."""
        return BATCH_HEADER_SIZE + FRAME_HEADER_SIZE * self.count + self.payload_size

    def encoded_batch(self) -> bytes:
        """The batch as SDK 0.9 sends it."""
        pairs = zip(self.payloads, self.ids, strict=True)
        return encode_batch(build_batch([NewMessage(payload, id_, self.origin_timestamp) for payload, id_ in pairs]))

    def classic(self) -> tuple[bytes, bytes]:
        """The messages as SDK 0.8 sends them: the index, and the messages."""
        index: list[bytes] = []
        messages: list[bytes] = []
        end = 0
        for payload, number in zip(self.payloads, self.ids, strict=True):
            identity = number.to_bytes(16, "little")
            messages += (_CLASSIC_HEADER.pack(0, identity, 0, 0, self.origin_timestamp, 0, len(payload), 0), payload)
            end += _CLASSIC_HEADER.size + len(payload)
            index.append(_CLASSIC_INDEX.pack(0, end, 0))
        return b"".join(index), b"".join(messages)


def make_sample(payload_sizes: Sequence[int], source: random.Random) -> SampleBatch:
    """Messages with random payloads of these sizes."""
    payloads = tuple(source.randbytes(size) for size in payload_sizes)
    return SampleBatch(payloads, tuple(source.getrandbits(128) for _ in payloads))


def sample(shape: Shape, count: int) -> SampleBatch:
    """Messages for either wire, the same in every run."""
    source = random.Random(7)
    return make_sample(shape.payload_sizes(count, source), source)


def wire_batches(shape: Shape, message_count: int, batch_count: int = 8) -> list[bytes]:
    """A few different batches to send in turn."""
    source = random.Random(7)
    sizes = (shape.payload_sizes(message_count, source) for _ in range(batch_count))
    return [make_sample(several, source).encoded_batch() for several in sizes]
