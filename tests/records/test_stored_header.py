"""The header of a batch on disk: no byte of it may change unnoticed, and a poll shows nothing of it."""

import dataclasses

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from courser.records import layout
from courser.records.batch import Batch, NewMessage, build_batch, encode_batch
from courser.records.frames import layout_of
from courser.records.stored_header import (
    BadBatch,
    PartitionIdentity,
    StoredHeader,
    blank_extension,
    blank_header,
    check_body,
    frames_of,
    has_valid_batch_checksum,
    read_header,
    stamp,
    trimmed_header,
)
from tests.records.reference import check_wire_batch
from tests.records.test_batch import new_messages, same_sized_messages

IDENTITY = PartitionIdentity(bytes(range(16)), 3, 77)
SAME_SIZED = build_batch([NewMessage(bytes([number]) * 20, number, number) for number in range(5)])
MIXED = build_batch([NewMessage(b"", 1, 5), NewMessage(b"abc", 2, 6, b"headers"), NewMessage(b"x" * 50, 3, 7)])
every_shape = pytest.mark.parametrize("batch", [SAME_SIZED, MIXED], ids=["same-sized", "mixed"])


def stamped(batch: Batch, **changes: object) -> bytes:
    """The header, with fields changed behind the writer's back and a header checksum that fits."""
    blank = blank_header(IDENTITY, producer=bytes(range(16)), sequence=5)
    header = stamp(batch, blank, base_offset=1000, base_timestamp=2000)
    if changes:
        fields = StoredHeader._make(layout.STORED_HEADER.unpack(header))._asdict() | changes
        header[:] = layout.STORED_HEADER.pack(*fields.values())
        header[248:] = xxhash.xxh3_64_intdigest(header[:248]).to_bytes(8, "little")
    return bytes(header)


def read(header: bytes, identity: PartitionIdentity = IDENTITY) -> StoredHeader:
    return read_header(memoryview(header), 0, identity)


@every_shape
def test_a_stamped_header_says_whose_and_what_it_is(batch: Batch) -> None:
    header = read(stamped(batch))
    assert (header.partition_id, header.topic_uuid, header.incarnation) == (3, bytes(range(16)), 77)
    assert (header.base_offset, header.end_offset, header.message_count) == (1000, 1000 + batch.count, batch.count)
    assert (header.base_timestamp, header.origin_timestamp) == (2000, batch.origin_timestamp)
    assert header.stored_length == header.batch_length == batch.size
    assert (header.producer, header.sequence) == (bytes(range(16)), 5)
    assert header.frame_size == (68 if batch is SAME_SIZED else 0)
    check_body(header, batch.body)
    assert frames_of(header, batch.body).starts.tolist() == batch.frames.starts.tolist()


@every_shape
def test_every_flipped_byte_of_the_header_is_noticed(batch: Batch) -> None:
    good = stamped(batch)
    for position in range(256):
        for mask in (0x01, 0x80, 0xFF):
            damaged = bytearray(good)
            damaged[position] ^= mask
            with pytest.raises(BadBatch):
                read(bytes(damaged))


@every_shape
def test_every_flipped_byte_of_the_body_is_noticed(batch: Batch) -> None:
    header = read(stamped(batch))
    for position in range(len(batch.body)):
        damaged = bytearray(batch.body)
        damaged[position] ^= 1
        with pytest.raises(BadBatch):
            check_body(header, damaged)


@pytest.mark.parametrize(
    "other",
    [
        dataclasses.replace(IDENTITY, topic_uuid=bytes(16)),
        dataclasses.replace(IDENTITY, partition_id=4),
        dataclasses.replace(IDENTITY, incarnation=78),
    ],
    ids=["topic", "partition", "incarnation"],
)
def test_a_batch_of_another_partition_is_recognised(other: PartitionIdentity) -> None:
    with pytest.raises(BadBatch, match="belongs to partition"):
        read(stamped(MIXED), other)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("magic", b"XXXX"),
        ("format_version", 2),
        ("codec", layout.Compression.ZSTD),
        ("encryption_key_id", 1),
        ("stored_length", 0),
        ("stored_length", 255),
        ("stored_length", 256),
        ("stored_length", layout.BATCH_SIZE_MAX + 1),
        ("stored_length", 2**64 - 1),
        ("batch_length", 2**64 - 1),
        ("message_count", 0),
    ],
)
def test_a_right_checksum_does_not_make_an_impossible_header_good(field: str, value: object) -> None:
    with pytest.raises(BadBatch):
        read(stamped(MIXED, **{field: value}))


@every_shape
@pytest.mark.parametrize("lie", [-1, 1, 2**32 - 10])
def test_a_right_checksum_does_not_make_a_wrong_count_good(batch: Batch, lie: int) -> None:
    header = read(stamped(batch, message_count=batch.count + lie))
    with pytest.raises(BadBatch):
        frames_of(header, batch.body)


@pytest.mark.parametrize("frame_size", [1, 48, 67, 69, 2**32 - 1])
def test_a_right_checksum_does_not_make_a_wrong_frame_size_good(frame_size: int) -> None:
    header = read(stamped(SAME_SIZED, frame_size=frame_size))
    with pytest.raises(BadBatch):
        frames_of(header, SAME_SIZED.body)


@every_shape
def test_blanking_gives_the_batch_of_the_wire_back(batch: Batch) -> None:
    data = bytearray(b"before" + stamped(batch) + bytes(batch.body) + b"behind")
    blank_extension(memoryview(data), 6)
    expected = encode_batch(batch, partition_id=3, base_offset=1000, base_timestamp=2000)
    assert data == b"before" + expected + b"behind"
    assert len(check_wire_batch(expected)) == batch.count


@every_shape
def test_stamping_changes_no_frame(batch: Batch) -> None:
    before = bytes(batch.body)
    header = stamped(batch)
    assert bytes(batch.body) == before
    polled = header[:52] + bytes(204) + before
    assert [message.offset for message in check_wire_batch(polled)] == list(range(1000, 1000 + batch.count))


@every_shape
def test_the_wire_checksum_is_that_of_the_stamped_header(batch: Batch) -> None:
    data = memoryview(stamped(batch) + bytes(batch.body))
    assert has_valid_batch_checksum(data, read(bytes(data[:256])), batch.checksums)
    other = read(stamped(batch, batch_checksum=1))
    assert not has_valid_batch_checksum(data, other, batch.checksums)


@given(messages=st.one_of(same_sized_messages(), st.lists(new_messages, min_size=1, max_size=12)), data=st.data())
def test_any_part_of_a_batch_is_a_batch_that_a_strict_client_takes(
    messages: list[NewMessage], data: st.DataObject
) -> None:
    batch = build_batch(messages)
    header = read(bytes(stamp(batch, blank_header(IDENTITY), base_offset=1000, base_timestamp=2000)))
    first = data.draw(st.integers(0, batch.count - 1))
    count = data.draw(st.integers(1, batch.count - first))
    frames = layout_of(batch.body, batch.count)
    part = batch.body[int(frames.starts[first]) : frames.end_of(first + count - 1)]
    seen = check_wire_batch(bytes(trimmed_header(header, part, count)) + bytes(part))
    wanted = messages[first : first + count]
    assert [message.offset for message in seen] == list(range(1000 + first, 1000 + first + count))
    assert [(m.message_id, m.payload, m.user_headers, m.origin_timestamp) for m in seen] == [
        (m.message_id, m.payload, m.user_headers, m.origin_timestamp) for m in wanted
    ]
    assert {message.timestamp for message in seen} == {2000}
