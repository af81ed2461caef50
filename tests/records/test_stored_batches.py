"""Many stored batches are checked in one call: the compiled walk takes what ``stored_header`` takes, nothing else."""

import random
import struct
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from courser.records import layout
from courser.records.batch import NewMessage, build_batch
from courser.records.checksum import xxh3
from courser.records.encryption import EncryptionKey
from courser.records.layout import Compression
from courser.records.stored_body import EncodedBatch, Encoding, Encryption, encode, stamp_encoded
from courser.records.stored_header import (
    BadBatch,
    PartitionIdentity,
    blank_header,
    check_body,
    read_header,
    stamp,
    stored_frames,
    with_removed_count,
)
from tests.records.walks import COMPILED_ONLY

IDENTITY = PartitionIdentity(bytes(range(16)), 3, 4)
FIRST_OFFSET = 1000
ENCODINGS = (
    Encoding(),
    Encoding(Compression.GZIP),
    Encoding(Compression.ZSTD),
    Encoding(encryption=Encryption(EncryptionKey(bytes(32)), random.Random(1).randbytes)),
)
HEADER_FIELDS = (0, 8, 32, 48, 52, 56, 58, 59, 60, 64, 68, 72, 80, 96, 104)
"""Where the fields start whose values must be right."""


pytestmark = COMPILED_ONLY


def stored_batches(source: random.Random) -> list[bytearray]:
    """Batches of all kinds, one after the other."""
    found, offset = [], FIRST_OFFSET
    for _ in range(source.randint(1, 4)):
        size = source.randint(0, 300)
        sizes = [size if source.random() < 0.8 else source.randint(0, 300) for _ in range(source.randint(1, 5))]
        batch = build_batch([NewMessage(bytes(each), number) for number, each in enumerate(sizes, 1)])
        encoded = encode(batch, source.choice(ENCODINGS))
        blank, removed_count = blank_header(IDENTITY), 0
        if isinstance(encoded, EncodedBatch):
            header = stamp_encoded(encoded, blank, offset, 5)
        else:
            removed_count = source.choice((0, 0, 7))
            header = with_removed_count(stamp(batch, blank, offset + removed_count, 5), removed_count)
        found.append(bytearray(header) + bytes(encoded.body))
        offset += removed_count + batch.count
    return found


def good_in_python(data: bytes) -> tuple[int, int]:
    """The same, with the functions that say what is good."""
    view, position, offset = memoryview(data), 0, FIRST_OFFSET
    try:
        while position + layout.BATCH_HEADER_SIZE <= len(view):
            header = read_header(view, position, IDENTITY)
            end = position + header.stored_length
            if header.previous_end_offset != offset or end > len(view):
                break
            body = view[position + layout.BATCH_HEADER_SIZE : end]
            check_body(header, body)
            stored_frames(header, body)
            position, offset = end, header.end_offset
    except BadBatch:
        pass
    return position, offset


def with_right_hashes(batch: bytearray) -> bytearray:
    """So that a batch is not refused for its hashes alone."""
    batch[240:248] = xxh3(bytes(batch[256:])).to_bytes(8, "little")
    batch[248:256] = xxh3(bytes(batch[:248])).to_bytes(8, "little")
    return batch


@given(number=st.integers(0, 2**32))
def test_good_batches_of_all_kinds(walk: ModuleType, number: int) -> None:
    data = b"".join(stored_batches(random.Random(number)))
    size, offset = walk.good_batches(data, blank_header(IDENTITY), FIRST_OFFSET)
    assert size == len(data)
    assert (size, offset) == good_in_python(data)


@given(number=st.integers(0, 2**32), cut=st.integers(1, 700))
def test_a_batch_that_is_not_complete_is_left(walk: ModuleType, number: int, cut: int) -> None:
    data = b"".join(stored_batches(random.Random(number)))[:-cut]
    assert walk.good_batches(data, blank_header(IDENTITY), FIRST_OFFSET) == good_in_python(data)


@given(number=st.integers(0, 2**32))
def test_every_flipped_bit_is_found(walk: ModuleType, number: int) -> None:
    source = random.Random(number)
    batches = stored_batches(source)
    data = bytearray(b"".join(batches))
    position = source.randrange(len(data))
    data[position] ^= 1 << source.randrange(8)
    size, _ = walk.good_batches(data, blank_header(IDENTITY), FIRST_OFFSET)
    assert size <= position
    assert (size, _) == good_in_python(bytes(data))


@given(number=st.integers(0, 2**32), field=st.sampled_from(HEADER_FIELDS))
def test_headers_that_lie_with_a_right_hash(walk: ModuleType, number: int, field: int) -> None:
    source = random.Random(number)
    batches = stored_batches(source)
    batch = source.choice(batches)
    match source.randrange(3):
        case 0:
            batch[field] ^= 1 << source.randrange(8)
        case 1:
            struct.pack_into("<I", batch, field, source.choice((0, 1, 255, 257, 2**31, 2**32 - 1)))
        case 2:
            batch[field + source.randrange(4)] = source.randrange(256)
    with_right_hashes(batch)
    data = b"".join(batches)
    assert walk.good_batches(data, blank_header(IDENTITY), FIRST_OFFSET) == good_in_python(data)


@given(number=st.integers(0, 2**32))
def test_frames_that_lie_with_a_right_hash(walk: ModuleType, number: int) -> None:
    source = random.Random(number)
    batches = stored_batches(source)
    batch = source.choice(batches)
    field = source.choice((24, 32, 36))
    struct.pack_into("<I", batch, 256 + min(field, len(batch) - 260), source.choice((0, 1, 2, 300, 2**32 - 1)))
    with_right_hashes(batch)
    data = b"".join(batches)
    assert walk.good_batches(data, blank_header(IDENTITY), FIRST_OFFSET) == good_in_python(data)


def test_nothing_else_is_taken(walk: ModuleType) -> None:
    data = b"".join(stored_batches(random.Random(1)))
    others = PartitionIdentity(bytes(16), 3, 4), PartitionIdentity(bytes(range(16)), 2, 4)
    for other in (*others, PartitionIdentity(bytes(range(16)), 3, 5)):
        assert walk.good_batches(data, blank_header(other), FIRST_OFFSET) == (0, FIRST_OFFSET)
    for offset in (0, FIRST_OFFSET - 1, FIRST_OFFSET + 1, 2**64 - 1):
        assert walk.good_batches(data, blank_header(IDENTITY), offset) == (0, offset)
    with pytest.raises(ValueError, match="no header of a batch"):
        walk.good_batches(data, bytes(255), FIRST_OFFSET)


@pytest.mark.parametrize("flags", [0, 1, 2])
@pytest.mark.parametrize("codec", [0, 1, 4, 5])
@pytest.mark.parametrize("key_id", [0, 9])
@pytest.mark.parametrize("length", [0, 255, 256 + 48, 256 + 48 + 100, layout.BATCH_SIZE_MAX, layout.BATCH_SIZE_MAX + 1])
def test_how_a_body_is_said_to_be_encoded(walk: ModuleType, flags: int, codec: int, key_id: int, length: int) -> None:
    batch = build_batch([NewMessage(bytes(100), 1)])
    stored = bytearray(stamp(batch, blank_header(IDENTITY), FIRST_OFFSET, 5)) + bytes(batch.body)
    struct.pack_into("<Q", stored, 32, length)
    struct.pack_into("<BB", stored, 58, codec, flags)
    struct.pack_into("<I", stored, 64, key_id)
    data = bytes(with_right_hashes(stored))
    assert walk.good_batches(data, blank_header(IDENTITY), FIRST_OFFSET) == good_in_python(data)
