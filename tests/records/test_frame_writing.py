"""Frames that a client writes and frames that a poll takes: compiled and in Python, the same bytes as one by one."""

from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from courser.model.buffers import Buffer
from courser.records import layout
from courser.records.batch import NewMessage, build_batch

messages = st.lists(st.tuples(st.binary(max_size=300), st.binary(max_size=20)), min_size=1, max_size=12)
ORIGIN = 1_700_000_000_000_000


def body_of(pairs: list[tuple[bytes, bytes]]) -> bytes:
    """What the frames must be: each one made by itself."""
    return bytes(
        build_batch(
            [NewMessage(payload, 7 + number, ORIGIN + number, block) for number, (payload, block) in enumerate(pairs)]
        ).body
    )


def heads_of(pairs: list[tuple[bytes, bytes]]) -> bytes:
    """Headers without lengths and checksums."""
    fields = [
        (0xAB, (7 + number).to_bytes(16, "little"), number, number, 0xCD, 0xEF, 0) for number, _ in enumerate(pairs)
    ]
    return b"".join(layout.FRAME_HEADER.pack(*each) for each in fields)


@given(pairs=messages, has_blocks=st.booleans())
def test_frames_are_what_they_are_one_by_one(
    walk: ModuleType, pairs: list[tuple[bytes, bytes]], has_blocks: bool
) -> None:
    if not has_blocks:
        pairs = [(payload, b"") for payload, _ in pairs]
    expected = body_of(pairs)
    into = memoryview(bytearray(b"\xff" * len(expected)))
    blocks = [block for _, block in pairs] if has_blocks else None
    walk.write_frames([payload for payload, _ in pairs], blocks, heads_of(pairs), into)
    assert bytes(into) == expected


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview, lambda data: memoryview(data + b"more")[:3]])
def test_a_payload_may_be_any_buffer(walk: ModuleType, kind: type[Buffer]) -> None:
    pairs = [(b"abc", b""), (b"abc", b"")]
    into = memoryview(bytearray(len(body_of(pairs))))
    walk.write_frames([kind(payload) for payload, _ in pairs], None, heads_of(pairs), into)
    assert bytes(into) == body_of(pairs)


@pytest.mark.parametrize("difference", [-200, -48, -1, 1, 48])
@pytest.mark.parametrize("block", [b"", b"x" * 60])
def test_memory_of_another_size_is_refused(walk: ModuleType, difference: int, block: bytes) -> None:
    pairs = [(b"a" * 100, block), (b"b" * 100, block)]
    into = memoryview(bytearray(len(body_of(pairs)) + difference))
    with pytest.raises(ValueError, match="do not fit"):
        walk.write_frames([payload for payload, _ in pairs], [block, block], heads_of(pairs), into)


def test_as_many_payloads_as_headers_and_blocks(walk: ModuleType) -> None:
    into = memoryview(bytearray(2 * 49))
    heads = heads_of([(b"", b"")] * 2)
    unequal: list[tuple[object, object, bytes]] = [
        ([b"a"], None, heads),
        ([b"a", b"a"], [b""], heads),
        ([b"a", b"a"], None, heads[:-1]),
        ([], None, b""),
    ]
    for payloads, blocks, some_heads in unequal:
        with pytest.raises(ValueError, match="not as many"):
            walk.write_frames(payloads, blocks, some_heads, into)
    no_buffers: list[tuple[object, object]] = [
        (["a", "a"], None),
        ([b"a", b"a"], ["", ""]),
        ([b"a", None], None),
    ]
    for payloads, blocks in no_buffers:
        with pytest.raises(TypeError):
            walk.write_frames(payloads, blocks, heads, into)


@given(pairs=messages)
def test_checksums_are_filled_in(walk: ModuleType, pairs: list[tuple[bytes, bytes]]) -> None:
    expected = body_of(pairs)
    body = bytearray(expected)
    position = 0
    for payload, block in pairs:
        body[position : position + 8] = b"\x11" * 8
        position += 48 + len(payload) + len(block)
    walk.fill_checksums(body, len(pairs))
    assert body == expected


@pytest.mark.parametrize(("size", "count"), [(0, 0), (0, 1), (47, 1), (48, 2), (96, 1), (96, -1), (97, 2)])
def test_checksums_of_frames_that_do_not_fill_the_body(walk: ModuleType, size: int, count: int) -> None:
    with pytest.raises(ValueError, match="do not fill"):
        walk.fill_checksums(bytearray(size), count)


def test_checksums_of_a_frame_that_reaches_beyond(walk: ModuleType) -> None:
    body = bytearray(body_of([(b"abc", b"")]))
    body[36:40] = (2**32 - 1).to_bytes(4, "little")
    with pytest.raises(ValueError, match="do not fill"):
        walk.fill_checksums(body, 1)


@given(
    sizes=st.lists(st.integers(0, 60), min_size=1, max_size=12),
    skip=st.integers(0, 13),
    count=st.integers(0, 13),
    size_max=st.integers(-300, 900),
    missing=st.integers(0, 120),
)
def test_frames_are_cut_out_as_limits_say(
    walk: ModuleType, sizes: list[int], skip: int, count: int, size_max: int, missing: int
) -> None:
    whole = body_of([(bytes(size), b"") for size in sizes])
    body = whole[: max(len(whole) - missing, 0)]
    bounds = [0]
    for size in sizes:
        bounds.append(bounds[-1] + 48 + size)
    there = sum(bound <= len(body) for bound in bounds[1:])
    start, end, chosen = walk.cut_frames(body, skip, count, size_max)
    if there < skip:
        # All of them are passed over.
        assert chosen == 0
        return
    ends = [bound for bound in bounds[skip + 1 : there + 1] if bound - bounds[skip] <= size_max][:count]
    assert (start, end, chosen) == (bounds[skip], ends[-1] if ends else bounds[skip], len(ends))


def test_payloads_that_are_no_list_are_refused(walk: ModuleType) -> None:
    with pytest.raises(TypeError):
        walk.write_frames(None, None, bytes(48), memoryview(bytearray(48)))


def test_a_skip_below_zero_skips_nothing(walk: ModuleType) -> None:
    body = body_of([(b"abc", b""), (b"de", b"")])
    assert walk.cut_frames(body, -(2**63), 1, 100) == walk.cut_frames(body, 0, 1, 100)
