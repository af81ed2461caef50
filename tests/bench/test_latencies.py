"""Percentiles of known samples."""

import random

import pytest

from courser.bench.latencies import Latencies, merge

PRECISION = 1 / 1024


def latencies_of(*groups: list[int]) -> Latencies:
    parts = []
    for times in groups:
        part = Latencies()
        for time in times:
            part.add(time)
        parts.append(part)
    return merge(parts)


def exact_percentile(times: list[int], share: float) -> int:
    ordered = sorted(times)
    return next(time for number, time in enumerate(ordered, 1) if number >= share * len(ordered) - 1e-9)


def test_small_times_are_exact() -> None:
    found = latencies_of(list(range(1, 1001)))
    assert [found.percentile(share) for share in (0.5, 0.9, 0.95, 0.99, 0.999, 1.0)] == [500, 900, 950, 990, 999, 1000]
    assert (found.count, found.minimum, found.maximum, found.mean) == (1000, 1, 1000, 500.5)


@pytest.mark.parametrize("seed", range(5))
def test_long_times_are_at_most_a_thousandth_too_long(seed: int) -> None:
    source = random.Random(seed)
    times = [int(source.lognormvariate(13, 2)) for _ in range(20_000)]
    found = latencies_of(times)
    for share in (0.001, 0.5, 0.9, 0.99, 0.999, 0.9999, 1.0):
        exact = exact_percentile(times, share)
        assert exact <= found.percentile(share) <= exact * (1 + PRECISION) + 1


def test_shortest_longest_and_mean_are_exact() -> None:
    times = [123_456_789, 987_654_321, 5_555_555_555]
    found = latencies_of(times)
    assert (found.minimum, found.maximum, found.total) == (min(times), max(times), sum(times))
    assert found.percentile(1.0) == max(times)


def test_parts_are_merged_as_if_they_were_one() -> None:
    source = random.Random(1)
    times = [source.randrange(10**9) for _ in range(100_000)]
    apart, together = latencies_of(times[:7], times[7:]), latencies_of(times)
    assert apart.buckets == together.buckets
    assert apart.percentile(0.99) == together.percentile(0.99)
    assert (apart.count, apart.total, apart.minimum) == (together.count, together.total, together.minimum)


def test_no_requests_are_no_times() -> None:
    found = latencies_of([])
    assert (found.count, found.percentile(0.5), found.maximum, found.minimum, found.mean) == (0, 0, 0, 0, 0.0)
    assert latencies_of([], [5]).percentile(0.5) == 5


def test_a_time_before_its_own_beginning_is_none() -> None:
    assert latencies_of([-5, 3]).minimum == 0


@pytest.mark.parametrize("exponent", range(64 - 2))
def test_every_power_of_two_has_its_bucket(exponent: int) -> None:
    time = 2**exponent
    found = latencies_of([time, time])
    assert found.percentile(0.5) == time
