"""What is flat and what is not; what a group may read twice and what it may not."""

import pytest

from tests.soak.payloads import SIZE, number_of, payload_of
from tests.soak.reading import Readings
from tests.soak.trend import latency_violations, memory_of, part_of

SECONDS = 300.0
PARTITION = ("soak/size", 0)


def memory(*sizes: float) -> list[str]:
    step = SECONDS / len(sizes)
    return memory_of([(number * step, size) for number, size in enumerate(sizes)], SECONDS).violations()


def test_noise_is_flat() -> None:
    assert memory(*(80 + number % 3 for number in range(300))) == []


def test_a_peak_in_the_middle_is_flat() -> None:
    assert memory(*[80] * 100, *[120] * 100, *[80] * 100) == []


def test_a_leak_is_not() -> None:
    found = memory(*(80 + number / 20 for number in range(300)))
    assert len(found) == 2
    assert "grew from 82.5 to 92.5 MiB" in found[0]
    assert "slope of 15.0 MiB" in found[1]


def test_a_step_is_not() -> None:
    assert memory(*[80] * 150, *[100] * 150)


@pytest.mark.parametrize(("moment", "part"), [(-1, 0), (0, 0), (99, 0), (100, 1), (299, 2), (300, 2), (999, 2)])
def test_a_run_has_three_parts(moment: float, part: int) -> None:
    assert part_of(moment, SECONDS) == part


def test_latencies_may_vary() -> None:
    assert latency_violations([10.0, 90.0, 19.9]) == []


def test_latencies_may_not_grow() -> None:
    assert "grew from 10.0 to 20.1 ms" in latency_violations([10.0, 10.0, 20.1])[0]


def test_a_payload_says_its_number() -> None:
    assert number_of(payload_of(7)) == 7
    assert len(payload_of(7)) == SIZE
    assert number_of(payload_of(7)[:-1] + b"?") == -1
    assert number_of(b"") == -1


def read(*assignments: tuple[str, float, int, int], commits: tuple[tuple[int, float], ...] = ()) -> Readings:
    """Who, when, from which offset, to before which."""
    readings = Readings()
    for who, moment, first, end in assignments:
        readings.assigned(who, PARTITION, moment)
        readings.read(who, PARTITION, first, end)
    for offset, moment in commits:
        readings.committed(PARTITION, offset, moment)
    return readings


def judged(readings: Readings, count: int) -> list[str]:
    readings.judge(PARTITION, count)
    return readings.violations


def test_one_member_after_the_other() -> None:
    readings = read(("a", 1.0, 0, 50), ("b", 2.0, 50, 100), commits=((49, 1.5),))
    assert judged(readings, 100) == []
    assert readings.repeated_count() == 0


def test_what_was_not_committed_may_be_read_again() -> None:
    readings = read(("a", 1.0, 0, 50), ("b", 2.0, 20, 100), commits=((19, 1.5), (49, 2.1)))
    assert judged(readings, 100) == []
    assert readings.repeated_count() == 30
    assert readings.read_count(PARTITION) == 100


def test_what_was_committed_may_not() -> None:
    found = judged(read(("a", 1.0, 0, 50), ("b", 2.0, 49, 100), commits=((49, 1.9),)), 100)
    assert found == [f"b read {PARTITION} from 49, although 49 was committed"]


def test_commits_may_be_reported_in_any_order() -> None:
    readings = read(("a", 1.0, 0, 50), ("b", 2.0, 10, 100), commits=((49, 1.9), (9, 1.2)))
    assert judged(readings, 100) == [f"b read {PARTITION} from 10, although 49 was committed"]


def test_nothing_may_be_skipped() -> None:
    found = judged(read(("a", 1.0, 0, 50), ("b", 2.0, 60, 100), commits=((59, 1.9),)), 100)
    assert found == [f"nobody read 50 to 59 of {PARTITION}"]


def test_the_end_may_not_be_missing() -> None:
    assert judged(read(("a", 1.0, 0, 50)), 51) == [f"nobody read 50 to 50 of {PARTITION}"]
    assert judged(Readings(), 1) == [f"nobody read 0 to 0 of {PARTITION}"]


def test_a_member_may_not_skip_or_repeat_by_itself() -> None:
    for first in (49, 51):
        readings = read(("a", 1.0, 0, 50))
        readings.read("a", PARTITION, first, 100)
        assert readings.violations == [f"a read {PARTITION} from {first} after 49"]


def test_a_member_reads_what_it_was_given() -> None:
    readings = Readings()
    readings.read("a", PARTITION, 0, 10)
    assert "never given" in readings.violations[0]
