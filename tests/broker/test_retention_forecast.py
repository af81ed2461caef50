"""What will be deleted by a time: the plan of the cleaner, ahead of time."""

import pytest

from courser.broker.upkeep.retention import Limits, RetainedSegment
from courser.broker.upkeep.retention_forecast import foresee


def segment(end_offset: int, first: int, last: int, *, is_sealed: bool = True, size: int = 100) -> RetainedSegment:
    return RetainedSegment(end_offset, size, first, last, is_sealed)


SEGMENTS = [segment(10, 0, 10), segment(20, 11, 20), segment(30, 21, 30, is_sealed=False)]


def foreseen(limits: Limits, until: int, *partitions: list[RetainedSegment]) -> list[tuple[int, str, list[int], int]]:
    return [
        (row.partition_id, row.reason.value, [one.end_offset for one in row.segments], row.due_at)
        for row in foresee(partitions, limits, 0, until)
    ]


@pytest.mark.parametrize(
    ("until", "expected"),
    [
        (109, []),
        (110, [(0, "expired", [10], 110)]),
        (120, [(0, "expired", [10, 20], 110)]),
        (129, [(0, "expired", [10, 20], 110)]),
        # The open segment is rolled when its first message expires, and goes when its last one does.
        (130, [(0, "expired", [10, 20], 110), (0, "expired", [30], 130)]),
    ],
)
def test_segments_go_when_their_newest_message_expires(until: int, expected: object) -> None:
    assert foreseen(Limits(expiry=100), until, SEGMENTS) == expected


def test_what_is_above_the_size_is_due_now() -> None:
    assert foreseen(Limits(size=250), 0, SEGMENTS) == [(0, "size", [10], 0)]
    assert foreseen(Limits(size=50), 0, SEGMENTS) == [
        (0, "size", [10], 0),
        (0, "size", [20], 0),
        (0, "size", [30], 0),
    ]


def test_the_oldest_messages_of_all_partitions_go_first() -> None:
    other = [segment(5, 5, 6), segment(9, 40, 41)]
    assert foreseen(Limits(size=300), 0, SEGMENTS, other) == [(0, "size", [10], 0), (1, "size", [5], 0)]
