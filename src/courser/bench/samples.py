"""Batches with random payloads, built before the measurement."""

import random

from courser.bench.plan import Spread
from courser.records.batch import Batch, NewMessage, build_batch, select_messages

_POOL_SIZE_MAX = 64 * 1024 * 1024
"""Maximum size in bytes of one producer's samples."""
_VARIED_COUNT = 32
"""Number of different batches if their sizes vary: enough to represent their distribution."""
_EQUAL_COUNT = 4


def make_pool(message_size: Spread, batch: Spread, source: random.Random) -> list[Batch]:
    """Batches to send in turn."""
    wanted = _EQUAL_COUNT if batch.is_fixed and message_size.is_fixed else _VARIED_COUNT
    largest = batch.maximum * message_size.maximum
    count = max(1, min(wanted, _POOL_SIZE_MAX // largest))
    return [_make_batch(message_size, batch.pick(source), source) for _ in range(count)]


def _make_batch(message_size: Spread, count: int, source: random.Random) -> Batch:
    payloads = (source.randbytes(message_size.pick(source)) for _ in range(count))
    return build_batch([NewMessage(payload, source.getrandbits(128)) for payload in payloads])


def cut(batch: Batch, count: int) -> Batch:
    """The first ``count`` messages."""
    return batch if count >= batch.count else select_messages(batch, range(count))
