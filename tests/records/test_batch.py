"""A batch as it goes over the wire: what is taken in, what is refused and why, and what merging does to it."""

from collections.abc import Sequence

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from courser.errors import ErrorCode, InvalidBatch
from courser.records import layout
from courser.records.batch import (
    Batch,
    NewMessage,
    batch_of,
    build_batch,
    encode_batch,
    merge_batches,
    parse_batch,
)
from courser.records.frames import iterate_frames
from tests.records.reference import check_wire_batch, number

HELLO_WORLD_FRAMES = (
    "96bcae54faff483d f63ff6bc223345ecbb243c3b434b5206 00000000 00000000 00000000 05000000 0000000000000000 68656c6c6f"
    "aa7d3d3d8613aedd 274ff2ca8c4944d7997838fedcb3affd 01000000 32000000 00000000 05000000 0000000000000000 776f726c64"
)
HELLO_WORLD_SENT = (
    "0000000000000000 0000000000000000 0000000000000000 a25871ee4a600600"
    "6a01000000000000 3bb5b655bbf68539 02000000" + "00" * 204 + HELLO_WORLD_FRAMES
)
"""What the Python package of SDK 0.9.0 sent for "hello" and "world"."""
HELLO_WORLD_POLLED = (
    "0100000000000000 0000000000000000 fd5a71ee4a600600 a25871ee4a600600"
    "6a01000000000000 0e0da776f2b2ff03 02000000" + "00" * 204 + HELLO_WORLD_FRAMES
)
"""The same two messages as a server stamped them: partition 1, offset 0."""
USER_HEADERS = bytes.fromhex("02010000006b02010000007602010000006e0b0400000007000000")
USER_HEADERS_SENT = (
    "0000000000000000 0000000000000000 0000000000000000 00401e18240a0600"
    "4d01000000000000 6e17febeebadada8 01000000" + "00" * 204 + "41732712b1f6120c 00100000000000000000000000000000"
    "00000000 00000000 1b000000 02000000 0000000000000000 6869" + USER_HEADERS.hex()
)
"""A message "hi" with the user headers k = "v" and n = 7, taken by the server for SDK 0.9."""

SAME_SIZED = [NewMessage(b"hello", 1, 100), NewMessage(b"world", 2, 150), NewMessage(b"again", 3, 100)]
MIXED = [
    NewMessage(b"", 1, 100),
    NewMessage(b"longer", 2, 150, b"headers"),
    NewMessage(b"x" * 70, 2**128 - 1, 100 + layout.TIMESTAMP_DELTA_MAX),
]
SHAPES = {"one": [NewMessage(b"alone", 7, 9)], "same-sized": SAME_SIZED, "mixed": MIXED}
every_shape = pytest.mark.parametrize("messages", SHAPES.values(), ids=SHAPES)

new_messages = st.builds(
    NewMessage,
    payload=st.binary(max_size=40),
    message_id=st.integers(0, 2**128 - 1),
    origin_timestamp=st.integers(0, layout.TIMESTAMP_DELTA_MAX),
    user_headers=st.binary(max_size=20),
)


@st.composite
def same_sized_messages(draw: st.DrawFn) -> list[NewMessage]:
    payload_size, headers_size = draw(st.integers(0, 40)), draw(st.integers(0, 20))
    return draw(
        st.lists(
            st.builds(
                NewMessage,
                payload=st.binary(min_size=payload_size, max_size=payload_size),
                message_id=st.integers(0, 2**128 - 1),
                origin_timestamp=st.integers(0, layout.TIMESTAMP_DELTA_MAX),
                user_headers=st.binary(min_size=headers_size, max_size=headers_size),
            ),
            min_size=1,
            max_size=12,
        )
    )


def messages_of(batch: Batch) -> list[NewMessage]:
    return [
        NewMessage(
            bytes(frame.payload),
            frame.message_id,
            batch.origin_timestamp + frame.timestamp_delta,
            bytes(frame.user_headers),
        )
        for frame in iterate_frames(batch.body, batch.count)
    ]


def resealed(data: bytes) -> bytes:
    """Give changed bytes a batch checksum that fits, as far as the frames can be found."""
    checksums, position = b"", 256
    for _ in range(number(data, 48, 4)):
        if position + 48 > len(data):
            break
        checksums += data[position : position + 8]
        position += 48 + number(data, position + 32, 4) + number(data, position + 36, 4)
    checksum = xxhash.xxh3_64_intdigest(data[:40] + data[48:52] + checksums)
    return data[:40] + checksum.to_bytes(8, "little") + data[48:]


def changed(data: bytes, position: int, value: bytes) -> bytes:
    """Bytes replaced, with a batch checksum that says they are meant."""
    return resealed(data[:position] + value + data[position + len(value) :])


def refusal_of(data: bytes, *, verify_frames: bool = True) -> ErrorCode:
    with pytest.raises(InvalidBatch) as refusal:
        parse_batch(data, verify_frames=verify_frames)
    assert str(refusal.value).startswith("invalid batch: ")
    return refusal.value.code


# --- bytes of the real thing ----------------------------------------------------------------------------


def test_a_batch_of_the_sdk_is_taken_and_comes_out_the_same() -> None:
    data = bytes.fromhex(HELLO_WORLD_SENT)
    batch = parse_batch(data, verify_frames=True)
    first_id = int.from_bytes(bytes.fromhex("f63ff6bc223345ecbb243c3b434b5206"), "little")
    assert [message.payload for message in messages_of(batch)] == [b"hello", b"world"]
    assert messages_of(batch)[0] == NewMessage(b"hello", first_id, 0x0006604AEE7158A2)
    assert messages_of(batch)[1].origin_timestamp == 0x0006604AEE7158A2 + 0x32
    assert encode_batch(batch) == data


def test_the_sdk_batch_stamped_as_the_server_for_sdk_0_9_stamps_it() -> None:
    batch = parse_batch(bytes.fromhex(HELLO_WORLD_SENT))
    stamped = encode_batch(batch, partition_id=1, base_offset=0, base_timestamp=0x0006604AEE715AFD)
    assert stamped == bytes.fromhex(HELLO_WORLD_POLLED)


def test_a_message_with_user_headers_as_the_sdk_sends_it() -> None:
    data = bytes.fromhex(USER_HEADERS_SENT)
    batch = parse_batch(data, verify_frames=True)
    assert messages_of(batch) == [NewMessage(b"hi", 4096, 0x00060A24181E4000, USER_HEADERS)]
    assert encode_batch(build_batch(messages_of(batch))) == data


@pytest.mark.parametrize("notation", [HELLO_WORLD_SENT, HELLO_WORLD_POLLED, USER_HEADERS_SENT])
def test_the_reference_in_these_tests_agrees_with_the_recorded_bytes(notation: str) -> None:
    assert check_wire_batch(bytes.fromhex(notation))


# --- round trips ----------------------------------------------------------------------------------------


@every_shape
def test_a_batch_survives_the_wire(messages: list[NewMessage]) -> None:
    data = encode_batch(build_batch(messages))
    batch = parse_batch(data, verify_frames=True)
    assert messages_of(batch) == messages
    assert batch.size == len(data)
    assert (batch.origin_timestamp, batch.count) == (min(m.origin_timestamp for m in messages), len(messages))
    assert encode_batch(batch) == data
    check_wire_batch(data)


@given(messages=st.lists(new_messages, min_size=1, max_size=12))
def test_any_messages_of_mixed_sizes_survive_the_wire(messages: list[NewMessage]) -> None:
    data = encode_batch(build_batch(messages), partition_id=2**64 - 1, base_offset=2**40, base_timestamp=2**63)
    assert messages_of(parse_batch(data, verify_frames=True)) == messages
    assert [message.payload for message in check_wire_batch(data)] == [message.payload for message in messages]


@given(messages=same_sized_messages())
def test_any_messages_of_one_size_survive_the_wire(messages: list[NewMessage]) -> None:
    data = encode_batch(build_batch(messages))
    batch = parse_batch(data, verify_frames=True)
    assert batch.frames.frame_size == 48 + len(messages[0].payload) + len(messages[0].user_headers)
    assert messages_of(batch) == messages
    check_wire_batch(data)


@given(body=st.binary(max_size=300), count=st.integers(0, 2**32 - 1), flips=st.lists(st.integers(0, 10**6), max_size=3))
def test_random_bytes_are_refused_or_are_a_batch(body: bytes, count: int, flips: list[int]) -> None:
    data = bytearray(encode_batch(build_batch(MIXED)))
    data[256:] = body
    data[32:40] = len(data).to_bytes(8, "little")
    data[48:52] = count.to_bytes(4, "little")
    for flip in flips:
        data[flip % len(data)] ^= 1 + flip % 255
    whole = resealed(bytes(data)) if count < 10 else bytes(data)
    try:
        batch = parse_batch(whole, verify_frames=True)
    except InvalidBatch:
        return
    assert encode_batch(batch)[48:] == whole[48:]


# --- what is refused ------------------------------------------------------------------------------------


@every_shape
def test_a_batch_cut_at_any_byte_is_refused(messages: list[NewMessage]) -> None:
    data = encode_batch(build_batch(messages))
    for size in range(len(data)):
        code = refusal_of(data[:size])
        assert code == (ErrorCode.INVALID_COMMAND if size < 256 else ErrorCode.INVALID_MESSAGES_SIZE), size


@every_shape
def test_a_batch_cut_at_any_byte_with_a_length_that_says_so_is_refused(messages: list[NewMessage]) -> None:
    data = encode_batch(build_batch(messages))
    for size in range(256, len(data)):
        claimed = changed(data[:size], 32, size.to_bytes(8, "little"))
        assert refusal_of(claimed) == ErrorCode.INVALID_MESSAGES_SIZE, size


@every_shape
def test_every_changed_byte_is_noticed(messages: list[NewMessage]) -> None:
    data = encode_batch(build_batch(messages))
    for position in range(len(data)):
        for mask in (0x01, 0x80, 0xFF):
            damaged = bytearray(data)
            damaged[position] ^= mask
            refusal_of(bytes(damaged))


@every_shape
def test_trailing_bytes_are_refused(messages: list[NewMessage]) -> None:
    data = encode_batch(build_batch(messages))
    for size in (1, 47, 48, 49, 256, 4096):
        assert refusal_of(data + bytes(size)) == ErrorCode.INVALID_MESSAGES_SIZE
        claimed = changed(data + bytes(size), 32, (len(data) + size).to_bytes(8, "little"))
        assert refusal_of(claimed) == ErrorCode.INVALID_MESSAGES_SIZE


@every_shape
@pytest.mark.parametrize("count", [0, 2**31, 2**32 - 1])
def test_a_count_that_lies_is_refused_and_takes_no_memory(messages: list[NewMessage], count: int) -> None:
    data = changed(encode_batch(build_batch(messages)), 48, count.to_bytes(4, "little"))
    assert refusal_of(data) == (ErrorCode.INVALID_MESSAGES_SIZE if count else ErrorCode.INVALID_MESSAGES_COUNT)


@every_shape
@pytest.mark.parametrize("difference", [-1, 1])
def test_a_count_that_is_off_by_one_is_refused(messages: list[NewMessage], difference: int) -> None:
    count = len(messages) + difference
    data = changed(encode_batch(build_batch(messages)), 48, count.to_bytes(4, "little"))
    assert refusal_of(data) == (ErrorCode.INVALID_MESSAGES_SIZE if count else ErrorCode.INVALID_MESSAGES_COUNT)


@every_shape
@pytest.mark.parametrize("length", [0, 255, 256, 2**31, 2**63, 2**64 - 1])
def test_a_batch_length_that_lies_is_refused(messages: list[NewMessage], length: int) -> None:
    data = changed(encode_batch(build_batch(messages)), 32, length.to_bytes(8, "little"))
    assert refusal_of(data) == ErrorCode.INVALID_MESSAGES_SIZE


@every_shape
@pytest.mark.parametrize("field", [32, 36], ids=["user_headers_length", "payload_length"])
@pytest.mark.parametrize("value", [1000, 2**31, 2**32 - 1])
def test_a_frame_length_that_lies_is_refused(messages: list[NewMessage], field: int, value: int) -> None:
    data = encode_batch(build_batch(messages))
    assert refusal_of(changed(data, 256 + field, value.to_bytes(4, "little"))) == ErrorCode.INVALID_MESSAGES_SIZE


def test_lengths_that_move_the_border_between_two_frames_are_refused() -> None:
    """The sum is right, and what now looks like the second header is payload."""
    data = encode_batch(build_batch([NewMessage(bytes(100)), NewMessage(bytes(100))]))
    shorter = changed(data, 256 + 36, (60).to_bytes(4, "little"))
    refusal_of(shorter)


def test_a_payload_may_be_counted_as_user_headers_only_with_another_checksum() -> None:
    """The frame's own checksum covers its lengths: the split between payload and headers is safe."""
    data = encode_batch(build_batch([NewMessage(b"abcdef")]))
    other_split = changed(data, 256 + 32, (3).to_bytes(4, "little") + (3).to_bytes(4, "little"))
    assert refusal_of(other_split) == ErrorCode.INVALID_MESSAGE_CHECKSUM
    parse_batch(other_split, verify_frames=False)


@every_shape
def test_reserved_bytes_of_the_batch_header_must_be_zero(messages: list[NewMessage]) -> None:
    data = encode_batch(build_batch(messages))
    for position in range(52, 256):
        assert refusal_of(changed(data, position, b"\x01")) == ErrorCode.INVALID_RESERVED_FIELD, position


@every_shape
def test_reserved_bytes_of_every_frame_header_must_be_zero(messages: list[NewMessage]) -> None:
    batch = build_batch(messages)
    data = encode_batch(batch)
    for start in batch.frames.starts.tolist():
        for position in range(256 + start + 40, 256 + start + 48):
            assert refusal_of(changed(data, position, b"\x80")) == ErrorCode.INVALID_RESERVED_FIELD, position


@pytest.mark.parametrize("deltas", [(0, 0, 0), (1, 2, 3), (0, 2, 1), (0, 1, 3), (2**32 - 1, 0, 1), (0, 1, 2**32 - 1)])
@pytest.mark.parametrize("shape", ["same-sized", "mixed"])
def test_offset_deltas_are_0_1_2_and_so_on(shape: str, deltas: tuple[int, ...]) -> None:
    batch = build_batch(SHAPES[shape])
    data = encode_batch(batch)
    for start, delta in zip(batch.frames.starts.tolist(), deltas, strict=True):
        data = changed(data, 256 + start + 24, delta.to_bytes(4, "little"))
    assert refusal_of(data) == ErrorCode.INVALID_OFFSET


@every_shape
def test_a_wrong_batch_checksum_is_refused(messages: list[NewMessage]) -> None:
    data = bytearray(encode_batch(build_batch(messages)))
    for position in range(40, 48):
        damaged = bytearray(data)
        damaged[position] ^= 0x10
        assert refusal_of(bytes(damaged)) == ErrorCode.INVALID_BATCH_CHECKSUM


@every_shape
def test_a_wrong_frame_checksum_is_refused_when_frames_are_verified(messages: list[NewMessage]) -> None:
    data = encode_batch(build_batch(messages))
    damaged = changed(data, 256 + 8, bytes([data[264] ^ 1]))
    assert refusal_of(damaged) == ErrorCode.INVALID_MESSAGE_CHECKSUM
    parse_batch(damaged, verify_frames=False)


def test_a_wrong_frame_checksum_is_named_by_its_message() -> None:
    data = bytearray(encode_batch(build_batch(MIXED)))
    data[-1] ^= 1
    with pytest.raises(InvalidBatch, match="message 2"):
        parse_batch(bytes(data), verify_frames=True)


def test_a_batch_above_the_largest_size_is_refused() -> None:
    data = encode_batch(build_batch([NewMessage(bytes(layout.BATCH_SIZE_MAX - 256 - 48))]))
    assert parse_batch(data).size == layout.BATCH_SIZE_MAX
    larger = encode_batch(build_batch([NewMessage(bytes(layout.BATCH_SIZE_MAX - 256 - 47))]))
    assert refusal_of(larger, verify_frames=False) == ErrorCode.INVALID_MESSAGES_SIZE


def test_what_a_producer_puts_into_the_fields_of_the_server_does_not_matter() -> None:
    data = encode_batch(build_batch(MIXED), partition_id=9, base_offset=10, base_timestamp=11)
    assert messages_of(parse_batch(data, verify_frames=True)) == MIXED


# --- building -------------------------------------------------------------------------------------------


def test_a_batch_without_messages_cannot_be_built() -> None:
    with pytest.raises(InvalidBatch) as refusal:
        build_batch([])
    assert refusal.value.code == ErrorCode.INVALID_MESSAGES_COUNT


def test_creation_times_further_apart_than_the_delta_can_hold_cannot_be_built() -> None:
    times = (5, 5 + layout.TIMESTAMP_DELTA_MAX)
    assert build_batch([NewMessage(b"", origin_timestamp=time) for time in times]).count == 2
    with pytest.raises(InvalidBatch):
        build_batch([NewMessage(b"", origin_timestamp=time) for time in (5, 6 + layout.TIMESTAMP_DELTA_MAX)])


def test_frames_that_do_not_tile_make_no_batch() -> None:
    body = build_batch(MIXED).body
    assert batch_of(100, 3, body).count == 3
    for size in range(len(body)):
        with pytest.raises(InvalidBatch):
            batch_of(100, 3, body[:size])


# --- merging --------------------------------------------------------------------------------------------


@given(parts=st.lists(st.lists(new_messages, min_size=1, max_size=4), min_size=1, max_size=4))
def test_a_merged_batch_has_all_messages_in_order(parts: Sequence[list[NewMessage]]) -> None:
    merged = merge_batches(build_batch(part) for part in parts)
    data = encode_batch(merged)
    assert messages_of(parse_batch(data, verify_frames=True)) == [message for part in parts for message in part]
    check_wire_batch(data)


def test_merging_leaves_its_parts_alone() -> None:
    parts = [build_batch(MIXED), build_batch(SAME_SIZED)]
    before = [encode_batch(part) for part in parts]
    merge_batches(parts)
    assert [encode_batch(part) for part in parts] == before


def test_batches_too_far_apart_in_time_cannot_be_merged() -> None:
    early, late = (build_batch([NewMessage(b"", origin_timestamp=time)]) for time in (0, 2**32))
    with pytest.raises(InvalidBatch):
        merge_batches([early, late])
    just_fits = build_batch([NewMessage(b"", origin_timestamp=2**32 - 1)])
    assert merge_batches([just_fits, early]).origin_timestamp == 0
