"""The walk over the frames exists twice, compiled and in Python: same results for good, cut and damaged bodies."""

import os
import random
import struct
import subprocess
import sys
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from courser.errors import InvalidBatch
from courser.records import batch, frame_walk, frame_walk_pure, layout
from courser.records.batch import NewMessage, build_batch, encode_batch, parse_batch
from courser.records.checksum import xxh3

lengths = st.tuples(st.integers(0, 40), st.integers(0, 12))
sizes = st.one_of(
    st.lists(lengths, min_size=1, max_size=12),
    st.builds(lambda one, count: [one] * count, lengths, st.integers(1, 12)),
)
positions = st.integers(0, 2**32 - 1 - 2**20)


def body_of(frame_sizes: list[tuple[int, int]]) -> bytearray:
    messages = [
        NewMessage(bytes(payload), number + 1, number, bytes(headers))
        for number, (payload, headers) in enumerate(frame_sizes)
    ]
    return bytearray(build_batch(messages).body)


@given(frame_sizes=sizes, extra=st.integers(-2, 2))
def test_good_bodies_and_counts_that_lie(walk: ModuleType, frame_sizes: list[tuple[int, int]], extra: int) -> None:
    body, count = body_of(frame_sizes), len(frame_sizes)
    assert walk.survey(body, count + extra) == frame_walk_pure.survey(body, count + extra)
    frame_size, starts, checksums, has_reserved, is_numbered = walk.survey(body, count)
    assert (has_reserved, is_numbered) == (False, True)
    assert len(checksums) == 8 * count
    ends = np.cumsum([48 + payload + headers for payload, headers in frame_sizes])
    assert (
        frame_size * count == len(body)
        if frame_size
        else np.frombuffer(starts, np.int64)[1:].tolist() == list(ends[:-1])
    )


@given(frame_sizes=sizes, data=st.data())
def test_cut_bodies(walk: ModuleType, frame_sizes: list[tuple[int, int]], data: st.DataObject) -> None:
    body = body_of(frame_sizes)
    cut = body[: data.draw(st.integers(0, len(body) - 1))]
    assert walk.survey(cut, len(frame_sizes)) is None
    longer = body + bytes(data.draw(st.integers(1, 100)))
    assert walk.survey(longer, len(frame_sizes)) is None


@given(frame_sizes=sizes, data=st.data())
def test_damaged_bodies(walk: ModuleType, frame_sizes: list[tuple[int, int]], data: st.DataObject) -> None:
    body, count = body_of(frame_sizes), len(frame_sizes)
    for _ in range(data.draw(st.integers(1, 3))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    assert walk.survey(body, count) == frame_walk_pure.survey(body, count)


@given(body=st.binary(max_size=300), count=st.integers(-(2**31), 2**31))
def test_any_bytes(walk: ModuleType, body: bytes, count: int) -> None:
    assert walk.survey(body, count) == frame_walk_pure.survey(body, count)


@pytest.mark.parametrize("field", [24, 32, 36, 40])
@pytest.mark.parametrize("number", [0, 1, 2])
@pytest.mark.parametrize("value", [1, 2**31, 2**32 - 1])
@pytest.mark.parametrize("payloads", [[10, 10, 10], [10, 11, 12]])
def test_fields_that_lie(walk: ModuleType, field: int, number: int, value: int, payloads: list[int]) -> None:
    body = body_of([(payload, 0) for payload in payloads])
    start = sum(48 + payload for payload in payloads[:number])
    body[start + field : start + field + 4] = value.to_bytes(4, "little")
    assert walk.survey(body, 3) == frame_walk_pure.survey(body, 3)


@given(frame_sizes=sizes, data=st.data())
def test_a_batch_is_refused_with_the_same_words(
    walk: ModuleType, frame_sizes: list[tuple[int, int]], data: st.DataObject
) -> None:
    wire = bytearray(encode_batch(build_batch([NewMessage(bytes(payload)) for payload, _ in frame_sizes])))
    wire[data.draw(st.integers(32, len(wire) - 1))] ^= 1 << data.draw(st.integers(0, 7))

    def outcome() -> object:
        try:
            return bytes(parse_batch(wire).checksums)
        except InvalidBatch as error:
            return error.code, error.reason

    found = outcome()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(frame_walk, "survey", frame_walk_pure.survey)
        patch.setattr(batch, "check_batch", frame_walk_pure.check_batch)
        assert outcome() == found


@given(
    frame_sizes=sizes,
    position=positions,
    offset=st.integers(0, 2**31),
    interval=st.one_of(st.integers(1, 400), st.just(4096)),
    behind=st.integers(0, 3),
)
def test_the_first_frame_of_each_cell(
    walk: ModuleType, frame_sizes: list[tuple[int, int]], position: int, offset: int, interval: int, behind: int
) -> None:
    body, count = body_of(frame_sizes), len(frame_sizes)
    frame_size, starts, *_ = frame_walk_pure.survey(body, count) or pytest.fail("a good body")
    cell = position // interval - behind
    arguments = (starts, frame_size, count, position, offset, interval, cell)
    offsets, places, last_cell = walk.first_in_cells(*arguments)
    assert (offsets, places, last_cell) == frame_walk_pure.first_in_cells(*arguments)
    expected, seen = [], {cell}
    begin = position
    for number, (payload, headers) in enumerate(frame_sizes):
        if begin // interval not in seen:
            expected.append((offset + number, begin))
            seen.add(begin // interval)
        begin += 48 + payload + headers
    assert list(zip(*(np.frombuffer(each, np.uint32).tolist() for each in (offsets, places)), strict=True)) == expected
    assert last_cell == max(seen)


def with_right_checksum(wire: bytearray) -> bytearray:
    """So that a batch is not refused for the checksum alone."""
    count = int.from_bytes(wire[48:52], "little")
    found = frame_walk_pure.survey(wire[256:], count)
    checksums = b"" if found is None else found[2]
    wire[40:48] = xxh3(bytes(wire[:40] + wire[48:52]) + checksums).to_bytes(8, "little")
    return wire


@given(frame_sizes=sizes, data=st.data())
def test_whole_batches_with_damage_anywhere(
    walk: ModuleType, frame_sizes: list[tuple[int, int]], data: st.DataObject
) -> None:
    wire = bytearray(encode_batch(build_batch([NewMessage(bytes(payload)) for payload, _ in frame_sizes])))
    found = walk.check_batch(wire)
    assert found is not None
    assert found == frame_walk_pure.check_batch(wire)
    wire[data.draw(st.integers(0, len(wire) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    assert walk.check_batch(wire) == frame_walk_pure.check_batch(wire)
    with_right_checksum(wire)
    assert walk.check_batch(wire) == frame_walk_pure.check_batch(wire)


@given(data=st.binary(max_size=600))
def test_bytes_that_are_no_batch(walk: ModuleType, data: bytes) -> None:
    assert walk.check_batch(data) is None
    length = len(data).to_bytes(8, "little")
    assert walk.check_batch(data[:32] + length + data[40:]) == frame_walk_pure.check_batch(
        data[:32] + length + data[40:]
    )


@pytest.mark.parametrize("position", [*range(52, 256), 256 + 40, 256 + 47, 256 + 24, 256 + 58 + 24])
def test_each_byte_that_must_be_zero(walk: ModuleType, position: int) -> None:
    wire = bytearray(encode_batch(build_batch([NewMessage(bytes(10)), NewMessage(bytes(10))])))
    assert walk.check_batch(with_right_checksum(wire)) is not None
    wire[position] += 1
    assert walk.check_batch(with_right_checksum(wire)) is None


def test_a_batch_over_the_limit_is_not_taken(walk: ModuleType) -> None:
    payload_size = layout.BATCH_SIZE_MAX - layout.BATCH_HEADER_SIZE - layout.FRAME_HEADER_SIZE
    wire = bytearray(encode_batch(build_batch([NewMessage(bytes(payload_size))])))
    assert walk.check_batch(wire) is not None
    assert walk.check_batch(bytearray(encode_batch(build_batch([NewMessage(bytes(payload_size + 1))])))) is None


numbers = st.integers(0, 2**64 - 1)
small_numbers = st.integers(0, 2**32 - 1)


@given(
    blank=st.binary(min_size=256, max_size=256),
    checksums=st.binary(max_size=200),
    body=st.binary(max_size=600),
    times=st.tuples(numbers, numbers, numbers),
    shape=st.tuples(small_numbers, small_numbers),
)
def test_a_header_is_stamped(
    walk: ModuleType,
    blank: bytes,
    checksums: bytes,
    body: bytes,
    times: tuple[int, int, int],
    shape: tuple[int, int],
) -> None:
    header = walk.stamp_header(blank, checksums, body, *times, *shape)
    assert header == frame_walk_pure.stamp_header(blank, checksums, body, *times, *shape)
    fields = layout.STORED_HEADER.unpack(header)
    size = 256 + len(body)
    assert fields[1:5] == (*times, size)
    assert (fields[6], fields[11], fields[14]) == (*shape, size)
    assert int.from_bytes(header[40:48], "little") == xxh3(bytes(header[:40] + header[48:52]) + checksums)
    assert int.from_bytes(header[240:248], "little") == xxh3(body)
    assert int.from_bytes(header[248:], "little") == xxh3(bytes(header[:248]))
    assert (header[:8], header[52:60], header[64:72], header[80:240]) == (
        blank[:8],
        blank[52:60],
        blank[64:72],
        blank[80:240],
    ), "the rest stays as it was"


@pytest.mark.parametrize(("blank", "shape"), [(bytes(255), (1, 1)), (bytes(256), (2**32, 1)), (bytes(256), (1, 2**32))])
def test_what_is_no_header_is_not_stamped(walk: ModuleType, blank: bytes, shape: tuple[int, int]) -> None:
    with pytest.raises((ValueError, struct.error)):
        walk.stamp_header(blank, bytes(8), b"body", 1, 2, 3, *shape)


def test_every_length_is_hashed_as_the_package_does_it(walk: ModuleType) -> None:
    if walk is frame_walk_pure:
        # It uses the package.
        return
    source = random.Random(5)
    data = source.randbytes(1 << 20)
    lengths = [*range(4097), *(source.randrange(4097, len(data)) for _ in range(200)), len(data)]
    for length in lengths:
        start = source.randrange(len(data) - length + 1)
        piece = data[start : start + length]
        assert set(walk.xxh3(piece)) == {xxh3(piece)}, length


@given(data=st.binary(max_size=2000))
def test_any_bytes_are_hashed_as_the_package_does_it(walk: ModuleType, data: bytes) -> None:
    if walk is not frame_walk_pure:
        assert set(walk.xxh3(data)) == {xxh3(data)}


def test_arguments_that_make_no_sense_are_refused(walk: ModuleType) -> None:
    for arguments in ((), (b"", 1, 1), ("text", 1), (b"", "1")):
        with pytest.raises((TypeError, AttributeError)):
            walk.survey(*arguments)
    with pytest.raises((TypeError, ValueError, ZeroDivisionError)):
        walk.first_in_cells(b"", 48, 2, 0, 0, 0, -1)
    with pytest.raises((TypeError, ValueError)):
        walk.first_in_cells(b"1234567", 0, 2, 0, 0, 4096, -1)


@pytest.mark.parametrize(
    ("starts", "numbers"),
    [
        pytest.param((1000, 2000, 0), (0, 3, 0, 0, 100, -1), id="frames that fall"),
        pytest.param((0, 2**63 - 1), (0, 2, 1, 0, 100, -1), id="a frame too far away"),
        pytest.param((0, -1, 10), (0, 3, 0, 0, 100, -1), id="a frame before the first"),
        pytest.param((), (0, 2**61, 0, 0, 4096, -1), id="more frames than can be"),
        pytest.param((), (2**62, 5, 0, 0, 4096, -1), id="frames larger than can be"),
        pytest.param((), (-100, 3, 0, 0, 100, -1000), id="frames of negative size"),
        pytest.param((), (48, 2, 2**63 - 1, 0, 4096, 0), id="a position too far away"),
        pytest.param((), (48, 2, 0, 2**63 - 1, 1, -1), id="an offset too far away"),
        pytest.param((), (48, 2, 0, 0, 4096, -(2**63)), id="a cell too far away"),
        pytest.param((), (48, 2, 0, 0, 2**40, -1), id="a cell larger than a segment"),
    ],
)
def test_frames_and_cells_that_cannot_be_are_refused(starts: tuple[int, ...], numbers: tuple[int, ...]) -> None:
    """By the compiled functions alone: they would write behind their memory."""
    compiled = pytest.importorskip(frame_walk.COMPILED_NAME)
    with pytest.raises(ValueError, match="no such frames, or no such cells"):
        compiled.first_in_cells(np.array(starts, np.int64).tobytes(), *numbers)


@pytest.mark.parametrize(("variable", "is_pure"), [({}, False), ({"COURSER_PURE": "1"}, True)])
def test_the_environment_chooses(variable: dict[str, str], is_pure: bool) -> None:
    pytest.importorskip(frame_walk.COMPILED_NAME)
    environment = {name: value for name, value in os.environ.items() if name != "COURSER_PURE"}
    command = "from courser.records import frame_walk; print(frame_walk.is_compiled)"
    ran = subprocess.run(
        [sys.executable, "-c", command], env=environment | variable, check=True, capture_output=True, text=True
    )
    assert ran.stdout.strip() == str(not is_pure)


@given(seed=st.binary(min_size=16, max_size=16), first=st.integers(0, 2**64 - 1), count=st.integers(0, 300))
def test_ids_from_one_seed(walk: ModuleType, seed: bytes, first: int, count: int) -> None:
    spread = walk.spread_ids(seed, first, count)
    assert spread == frame_walk_pure.spread_ids(seed, first, count)
    ids = [spread[position : position + 16] for position in range(0, len(spread), 16)]
    assert len(set(ids)) == count
    assert all(walk.spread_ids(seed, (first + number) % 2**64, 1) == ids[number] for number in range(count))


def test_ids_look_random(walk: ModuleType) -> None:
    """Every bit is set in about half of them, and another seed gives others."""
    count = 4096
    for seed, other in ((bytes(16), bytes(15) + b"\1"), (bytes(range(16)), bytes(range(1, 17)))):
        ids = np.frombuffer(walk.spread_ids(seed, 7, count), np.uint8).reshape(count, 16)
        shares = np.unpackbits(ids, axis=1).mean(axis=0)
        assert 0.45 < shares.min() <= shares.max() < 0.55
        assert not {*map(bytes, ids)} & {*map(bytes, np.frombuffer(walk.spread_ids(other, 7, count), "V16"))}
