"""Sizes, fixed and at random; the messages that are made of them; the pace at which they go out."""

import random

import pytest

from courser.bench.actors import Schedule, cut, make_pool
from courser.bench.plan import Spread, parse_spread
from courser.records.batch import encode_batch, parse_batch
from courser.records.layout import FRAME_HEADER_SIZE


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1000", Spread(1000, 1000)),
        ("1 KB", Spread(1000, 1000)),
        ("200..1800", Spread(200, 1800)),
        ("1KiB..64KiB", Spread(1024, 65536)),
    ],
)
def test_a_range_is_a_number_or_two(text: str, expected: Spread) -> None:
    assert parse_spread(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "a size such as"),
        ("..5", "a size such as"),
        ("1..", "a size such as"),
        ("a..b", "a size such as"),
        ("-1", "a size such as"),
        ("0", "at least 1"),
        ("5..1", "the smaller bound first"),
    ],
)
def test_what_is_no_range(text: str, expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        parse_spread(text)


def test_picks_stay_within_both_bounds_and_reach_them() -> None:
    source = random.Random(1)
    assert {Spread(3, 5).pick(source) for _ in range(100)} == {3, 4, 5}
    assert {Spread(7, 7).pick(source) for _ in range(5)} == {7}
    assert str(Spread(7, 7)) == "7"
    assert str(Spread(3, 5)) == "3..5"


def test_a_pool_has_good_batches_of_the_sizes_that_were_asked_for() -> None:
    pool = make_pool(Spread(10, 20), Spread(1, 50), random.Random(1))
    assert len(pool) > 10
    assert len({batch.count for batch in pool}) > 5
    for batch in pool:
        assert parse_batch(encode_batch(batch), verify_frames=True).count == batch.count
        assert batch.count * (10 + FRAME_HEADER_SIZE) <= len(batch.body) <= batch.count * (20 + FRAME_HEADER_SIZE)


def test_large_batches_are_few() -> None:
    assert len(make_pool(Spread(10**6, 2 * 10**6), Spread(40, 40), random.Random(1))) == 1


def test_a_cut_batch_has_the_first_messages() -> None:
    (batch, *_) = make_pool(Spread(5, 5), Spread(10, 10), random.Random(1))
    assert bytes(cut(batch, 3).body) == bytes(batch.body[: 3 * (5 + FRAME_HEADER_SIZE)])
    assert cut(batch, 11) is batch


def test_without_a_rate_everything_is_due_now() -> None:
    schedule = Schedule()
    schedule.count(1000, 10**9)
    assert schedule.due(42) == 42


def test_a_rate_in_bytes_spreads_requests() -> None:
    schedule = Schedule(size_rate=1_000_000, begin=5_000)
    assert schedule.due(0) == 5_000
    schedule.count(1, 500_000)
    assert schedule.due(0) == 5_000 + 500_000_000


def test_a_rate_in_messages_spreads_requests() -> None:
    schedule = Schedule(message_rate=100)
    schedule.count(10, 10**9)
    assert schedule.due(0) == 100_000_000


def test_a_late_sender_catches_up() -> None:
    schedule = Schedule(message_rate=1000)
    for _ in range(5):
        schedule.count(1, 1)
    # However late it is: the next one was due after five of a thousand a second.
    assert schedule.due(10**12) == 5_000_000
