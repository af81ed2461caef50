"""Batches as a producer sends them."""

import random
from enum import Enum

from courser.records.batch import NewMessage, build_batch, encode_batch

SIZE_RANGE = (200, 1_800)
SAME_SIZE = 1_000
SMALL_SIZE = 100
ORIGIN = 1_700_000_000_000_000


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


def wire_batches(shape: Shape, message_count: int, batch_count: int = 8) -> list[bytes]:
    """A few different batches to send in turn."""
    source = random.Random(7)
    batches = []
    for _ in range(batch_count):
        messages = [
            NewMessage(source.randbytes(size), message_id=source.getrandbits(128), origin_timestamp=ORIGIN + number)
            for number, size in enumerate(shape.payload_sizes(message_count, source))
        ]
        batches.append(encode_batch(build_batch(messages)))
    return batches
