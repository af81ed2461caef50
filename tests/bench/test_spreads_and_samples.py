"""Sizes, fixed and at random; the messages that are made of them; the pace at which they go out."""

import random

import pytest

from courser.bench.actors import Pacer
from courser.bench.plan import Spread, parse_spread
from courser.bench.samples import cut_sample, make_pool, make_sample
from courser.records.batch import parse_batch


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


def test_a_sample_is_a_good_batch() -> None:
    sample = make_sample([10, 0, 300], random.Random(1), 1_700_000_000_000_000)
    batch = parse_batch(sample.encoded_batch(), verify_frames=True)
    assert (batch.count, batch.size, batch.origin_timestamp) == (3, sample.stored_size, 1_700_000_000_000_000)
    assert sample.payload_size == 310


def test_a_pool_has_the_sizes_that_were_asked_for() -> None:
    pool = make_pool(Spread(10, 20), Spread(1, 50), random.Random(1))
    assert len(pool) > 10
    assert len({sample.count for sample in pool}) > 5
    assert all(10 <= len(payload) <= 20 for sample in pool for payload in sample.payloads)


def test_a_pool_holds_no_more_than_will_be_sent() -> None:
    assert [sample.count for sample in make_pool(Spread(10, 10), Spread(100, 100), random.Random(1), 30)] == [30]


def test_large_batches_are_few() -> None:
    assert len(make_pool(Spread(10**6, 2 * 10**6), Spread(40, 40), random.Random(1))) == 1


def test_a_cut_sample_has_the_first_messages() -> None:
    sample = make_sample([5] * 10, random.Random(1))
    assert cut_sample(sample, 3).payloads == sample.payloads[:3]


def test_without_a_rate_everything_is_due_now() -> None:
    pace = Pacer()
    pace.start(0)
    pace.count(1000, 10**9)
    assert pace.due(42) == 42


def test_a_rate_in_bytes_spreads_requests() -> None:
    pace = Pacer(size_rate=1_000_000)
    pace.start(5_000)
    assert pace.due(0) == 5_000
    pace.count(1, 500_000)
    assert pace.due(0) == 5_000 + 500_000_000


def test_a_rate_in_messages_spreads_requests() -> None:
    pace = Pacer(message_rate=100)
    pace.start(0)
    pace.count(10, 10**9)
    assert pace.due(0) == 100_000_000


def test_who_is_late_catches_up() -> None:
    pace = Pacer(message_rate=1000)
    pace.start(0)
    for _ in range(5):
        pace.count(1, 1)
    # However late it is: the next one was due after five of a thousand a second.
    assert pace.due(10**12) == 5_000_000
