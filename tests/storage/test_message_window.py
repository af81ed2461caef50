"""The window of remembered ids, against a list that remembers the same."""

import random
from collections.abc import Callable

import numpy as np
import pytest

from courser.records.batch import NewMessage, build_batch, encode_batch
from courser.storage.message_window import (
    NEW,
    REPEATED,
    Deduplication,
    FewIds,
    MessageIds,
    MessageWindow,
    few_ids,
    ids_in,
    message_ids,
)

HALF = 2**64
LARGE = Deduplication(count_max=10_000, age_max=10**15)


def ids_of(*ids: int) -> MessageIds:
    low, high = [number % HALF for number in ids], [number // HALF for number in ids]
    return MessageIds(np.array(low, np.uint64), np.array(high, np.uint64))


def pairs_of(*ids: int) -> FewIds:
    return [(message_id % HALF, message_id // HALF) for message_id in ids]


FORMS: list[Callable[..., MessageIds | FewIds]] = [ids_of, pairs_of]


def as_numbers(ids: MessageIds) -> list[int]:
    return [low + HALF * high for low, high in zip(ids.low.tolist(), ids.high.tolist(), strict=True)]


class Model:
    """What the window should know: id, offset and time of each message."""

    def __init__(self, limits: Deduplication) -> None:
        self.limits = limits
        self.known: list[tuple[int, int, int]] = []

    def find(self, ids: list[int], now: int, start: int) -> list[int]:
        self.known = [row for row in self.known if row[2] >= now - self.limits.age_max and row[1] >= start]
        offsets = {message_id: offset for message_id, offset, _ in self.known}
        found = []
        for number, message_id in enumerate(ids):
            is_repeated = message_id and message_id in ids[:number]
            found.append(REPEATED if is_repeated else offsets.get(message_id, NEW))
        return found

    def remember(self, ids: list[int], offset: int, now: int) -> None:
        rows = [(message_id, offset + number, now) for number, message_id in enumerate(ids) if message_id]
        self.known = (self.known + rows)[-self.limits.count_max :]


@pytest.mark.parametrize("seed", range(12))
def test_it_knows_what_the_model_knows(seed: int) -> None:
    source = random.Random(seed)
    limits = Deduplication(source.choice([1, 3, 10, 300, 1000]), source.choice([5, 50, 10**9]))
    window, model = MessageWindow(limits, seed), Model(limits)
    offset = now = start = 0
    for _ in range(150):
        now += source.randrange(3)
        if source.random() < 0.05:
            start = max(start, offset - source.randrange(5))
        kinds = (0, source.randrange(1, 2000), source.randrange(1, 20) * HALF)
        ids = [source.choice(kinds) for _ in range(source.choice([1, 1, 2, 5, 40]))]
        expected = model.find(ids, now, start)
        form = source.choice(FORMS)
        assert window.has_none_of(form(*ids), now, start) == (set(expected) == {NEW})
        assert window.find(ids_of(*ids), now, start).tolist() == expected
        fresh = [message_id for message_id, known in zip(ids, expected, strict=True) if known == NEW]
        window.remember(form(*fresh), offset, now)
        model.remember(fresh, offset, now)
        offset += len(fresh)
        assert len(window) == len(model.known)


def test_the_id_zero_is_never_known() -> None:
    window = MessageWindow(LARGE, 1)
    for ids in (ids_of(0), ids_of(0, 0, 0)):
        window.remember(ids, 5, 0)
        assert window.find(ids, 0, 0).tolist() == [NEW] * len(ids)
    assert len(window) == 0


def test_an_id_is_known_for_as_long_as_it_may_be() -> None:
    window = MessageWindow(Deduplication(3, 100), 1)
    window.remember(ids_of(1, 2), 0, 1000)
    assert window.find(ids_of(1, 2), 1100, 0).tolist() == [0, 1]
    assert window.find(ids_of(1, 2), 1101, 0).tolist() == [NEW, NEW]
    window.remember(ids_of(3, 4, 5, 6), 2, 2000)
    assert window.find(ids_of(3, 4, 5, 6), 2000, 0).tolist() == [NEW, 3, 4, 5]
    assert window.find(ids_of(4, 5, 6), 2000, 5).tolist() == [NEW, NEW, 5]


def test_memory_grows_with_the_ids_up_to_a_limit() -> None:
    window = MessageWindow(LARGE, 1)
    small = window.size_in_memory
    assert small < 20_000
    source = random.Random(1)
    for number in range(40):
        window.remember(ids_of(*(source.getrandbits(128) for _ in range(1000))), number * 1000, 0)
    assert len(window) == LARGE.count_max
    assert window.size_in_memory <= 64 * LARGE.count_max


def test_ids_are_taken_from_batches() -> None:
    messages = [NewMessage(b"x" * number, HALF * number + 7) for number in (3, 0, 9)]
    batch = build_batch(messages)
    expected = [message.message_id for message in messages]
    assert as_numbers(message_ids(batch.body, batch.frames)) == expected
    assert few_ids(batch.body, batch.frames) == pairs_of(*expected)
    records = memoryview(encode_batch(batch, base_offset=40, base_timestamp=8) * 2)
    assert [(as_numbers(ids), offset, time) for ids, offset, time in ids_in(records)] == [(expected, 40, 8)] * 2
