"""Finding the frames of a body: the fast way for one size and the walk for mixed sizes are the same rule."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from courser.errors import InvalidBatch
from courser.records.batch import NewMessage, build_batch
from courser.records.frames import (
    FrameLayout,
    checksum_fields,
    frame_checksum,
    frame_fields,
    iterate_frames,
    layout_of,
    uniform_layout,
    wrong_frame_checksums,
)

sizes = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20)), min_size=1, max_size=15)


def body_of(frame_sizes: list[tuple[int, int]]) -> memoryview:
    messages = [
        NewMessage(bytes([number]) * payload, number, number, bytes([number]) * headers)
        for number, (payload, headers) in enumerate(frame_sizes)
    ]
    return build_batch(messages).body


def starts_of(frame_sizes: list[tuple[int, int]]) -> list[int]:
    starts = [0]
    for payload, headers in frame_sizes:
        starts.append(starts[-1] + 48 + payload + headers)
    return starts


@given(frame_sizes=sizes)
def test_frames_begin_where_the_one_before_ends(frame_sizes: list[tuple[int, int]]) -> None:
    body = body_of(frame_sizes)
    frames = layout_of(body, len(frame_sizes))
    *starts, end = starts_of(frame_sizes)
    assert frames.starts.tolist() == starts
    assert (frames.count, frames.size) == (len(frame_sizes), end)
    assert [frames.end_of(number) for number in range(frames.count)] == starts_of(frame_sizes)[1:]


@given(size=st.tuples(st.integers(0, 60), st.integers(0, 20)), count=st.integers(1, 15))
def test_frames_of_one_size_are_known_as_such(size: tuple[int, int], count: int) -> None:
    frames = layout_of(body_of([size] * count), count)
    assert frames.frame_size == 48 + sum(size)
    assert frames.starts.tolist() == uniform_layout(count, frames.frame_size).starts.tolist()


def test_the_same_size_with_another_split_is_not_one_size() -> None:
    body = body_of([(10, 4), (4, 10), (10, 4)])
    assert layout_of(body, 3).frame_size == 0
    assert layout_of(body, 3).starts.tolist() == [0, 62, 124]


def test_one_odd_frame_among_many_is_found() -> None:
    frame_sizes = [(10, 0)] * 50
    for odd in range(50):
        changed = [*frame_sizes[:odd], (9, 1), *frame_sizes[odd + 1 :]]
        frames = layout_of(body_of(changed), 50)
        assert frames.frame_size == 0
        assert frames.starts.tolist() == starts_of(changed)[:-1]


@given(frame_sizes=sizes)
def test_fields_are_the_same_in_bulk_and_one_by_one(frame_sizes: list[tuple[int, int]]) -> None:
    body = body_of(frame_sizes)
    frames = layout_of(body, len(frame_sizes))
    single = list(iterate_frames(body, len(frame_sizes)))
    assert frame_fields(body, frames, 24, "<u4").tolist() == [frame.offset_delta for frame in single]
    assert frame_fields(body, frames, 28, "<u4").tolist() == [frame.timestamp_delta for frame in single]
    assert checksum_fields(body, frames) == b"".join(frame.checksum.to_bytes(8, "little") for frame in single)
    assert [(len(frame.payload), len(frame.user_headers)) for frame in single] == frame_sizes


def test_fields_of_the_last_frame_without_payload_are_reached() -> None:
    body = body_of([(5, 0), (0, 0)])
    frames = layout_of(body, 2)
    assert frames.frame_size == 0
    assert frame_fields(body, frames, 40, "<u8").tolist() == [0, 0]


@pytest.mark.parametrize("frame_sizes", [[(5, 2)] * 3, [(5, 2), (0, 0), (7, 0)]], ids=["same-sized", "mixed"])
def test_wrong_checksums_are_told_by_number(frame_sizes: list[tuple[int, int]]) -> None:
    good = body_of(frame_sizes)
    frames = layout_of(good, 3)
    assert wrong_frame_checksums(good, frames) == []
    for number in range(3):
        start, end = int(frames.starts[number]), frames.end_of(number)
        assert frame_checksum(good, start, end) == int.from_bytes(good[start : start + 8], "little")
        for position in (start, start + 8, end - 1):
            damaged = bytearray(good)
            damaged[position] ^= 1
            assert wrong_frame_checksums(memoryview(damaged), frames) == [number]


def test_nothing_is_read_behind_the_body() -> None:
    """A view into a larger block must not let a length reach into what follows."""
    body = body_of([(5, 0), (6, 0)])
    block = memoryview(bytes(body) + body_of([(7, 0)]).tobytes())
    with pytest.raises(InvalidBatch):
        layout_of(block[: len(body)], 3)
    assert layout_of(block[: len(body)], 2).size == len(body)


def test_an_empty_body_has_no_frames() -> None:
    for count in (0, 1, 2**32 - 1):
        with pytest.raises(InvalidBatch):
            layout_of(memoryview(b""), count)


def test_end_of_the_last_frame_is_the_end_of_the_body() -> None:
    frames = FrameLayout(2, 0, np.array([0, 60], np.int64).tobytes(), 130)
    assert [frames.end_of(0), frames.end_of(1)] == [60, 130]
