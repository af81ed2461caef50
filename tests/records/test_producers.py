"""The numbers of an idempotent producer: in the header of a sent batch, and in that of a stored one."""

import struct
from types import ModuleType

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from courser.errors import ErrorCode, InvalidBatch
from courser.records import frame_walk_pure, layout
from courser.records.batch import Batch, NewMessage, build_batch, encode_batch, parse_batch, sent_header
from courser.records.producers import (
    EPOCH_MAX,
    PRODUCER_ID_MAX,
    SEQUENCE_MAX,
    BatchProducer,
    section_of,
    with_producer,
)
from courser.records.stored_header import PartitionIdentity, blank_extension, blank_header, read_header, stamp
from tests.records.reference import check_wire_batch

IDENTITY = PartitionIdentity(bytes(range(16)), 3, 7)
PRODUCERS = st.builds(
    BatchProducer,
    st.integers(0, PRODUCER_ID_MAX),
    st.integers(0, EPOCH_MAX),
    st.integers(0, SEQUENCE_MAX),
    st.just(2),
    st.just(0),
)
FIRST_OF_SESSION_101 = bytes.fromhex("01000000 0000500600000000 0000 0000 03000000")
"""As SDK 0.10 sent it: bytes 52 to 72 of a batch header."""


def batch_from(producer: BatchProducer | None, sizes: tuple[int, ...] = (10, 20)) -> Batch:
    batch = build_batch([NewMessage(bytes(size), number) for number, size in enumerate(sizes, 1)])
    batch.producer = producer
    return batch


def sent(batch: Batch) -> bytearray:
    return sent_header(batch) + batch.body


def with_section(section: bytes) -> bytearray:
    """A batch with these bytes from 52 on, and the checksum that a client with such numbers would send."""
    wire = sent(batch_from(None))
    wire[52 : 52 + len(section)] = section
    numbers = wire[52:53] + wire[56:66] + wire[68:72]
    checksums = wire[256:264] + wire[256 + 58 : 256 + 66]
    wire[40:48] = xxhash.xxh3_64_digest(bytes(wire[:40] + wire[48:52] + numbers + checksums))[::-1]
    return wire


def test_what_an_sdk_sends_is_read() -> None:
    batch = parse_batch(with_section(FIRST_OF_SESSION_101), may_be_idempotent=True)
    assert batch.producer == BatchProducer(101 * 2**20, 0, 3, 2)


@given(producer=PRODUCERS)
def test_what_is_sent_is_what_an_sdk_would_send(walk: ModuleType, producer: BatchProducer) -> None:
    section = struct.pack("<B3xQHHI", 1, producer.producer_id, producer.epoch, 0, producer.sequence)
    wire = sent(batch_from(producer))
    assert wire == with_section(section)
    assert walk.check_batch(wire) == frame_walk_pure.check_batch(wire)
    assert parse_batch(wire, verify_frames=True, may_be_idempotent=True).producer == producer


@given(producer=PRODUCERS, position=st.integers(52, 71), mask=st.integers(1, 255))
def test_the_checksum_covers_the_numbers(walk: ModuleType, producer: BatchProducer, position: int, mask: int) -> None:
    wire = sent(batch_from(producer))
    wire[position] ^= mask
    assert walk.check_batch(wire) is None
    assert frame_walk_pure.check_batch(wire) is None


@given(section=st.binary(min_size=20, max_size=204), flag=st.sampled_from([b"\0\0\0\0", b"\1\0\0\0", b"\2\0\0\0"]))
def test_any_section_is_judged_the_same(walk: ModuleType, section: bytes, flag: bytes) -> None:
    wire = with_section(flag + section[4:])
    assert walk.check_batch(wire) == frame_walk_pure.check_batch(wire)


@pytest.mark.parametrize(
    "section",
    [
        struct.pack("<B3xQHHI", 2, 5, 0, 0, 0),
        struct.pack("<B3xQHHI", 0, 5, 0, 0, 0),
        struct.pack("<BBxxQHHI", 1, 1, 5, 0, 0, 0),
        struct.pack("<B3xQHHI", 1, 2**63, 0, 0, 0),
        struct.pack("<B3xQHHI", 1, 5, 2**15, 0, 0),
        struct.pack("<B3xQHHI", 1, 5, 0, 1, 0),
        struct.pack("<B3xQHHI", 1, 5, 0, 0, 2**31),
        struct.pack("<B3xQHHIB", 1, 5, 0, 0, 0, 1),
        struct.pack("<B3xQHHI183xB", 1, 5, 0, 0, 0, 1),
    ],
    ids=["flag 2", "flag 0", "byte 53", "id", "epoch", "byte 66", "sequence", "byte 72", "byte 255"],
)
def test_numbers_out_of_range_are_refused(walk: ModuleType, section: bytes) -> None:
    wire = with_section(section)
    assert walk.check_batch(wire) is None
    assert section_of(memoryview(wire)) is None
    with pytest.raises(InvalidBatch, match="reserved bytes") as caught:
        parse_batch(wire, may_be_idempotent=True)
    assert caught.value.code is ErrorCode.INVALID_RESERVED_FIELD


def test_who_may_not_be_idempotent_is_refused() -> None:
    with pytest.raises(InvalidBatch, match="reserved bytes") as caught:
        parse_batch(with_section(FIRST_OF_SESSION_101))
    assert caught.value.code is ErrorCode.INVALID_RESERVED_FIELD


def test_a_wrong_checksum_is_called_that() -> None:
    wire = with_section(FIRST_OF_SESSION_101)
    wire[40] ^= 1
    with pytest.raises(InvalidBatch, match="the batch checksum"):
        parse_batch(wire, may_be_idempotent=True)


@given(producer=PRODUCERS, first_number=st.integers(0, 2**32 - 1), count=st.integers(1, 2**21))
def test_a_stored_batch_keeps_the_numbers(producer: BatchProducer, first_number: int, count: int) -> None:
    producer = producer._replace(first_number=first_number, message_count=count)
    batch = batch_from(None)
    header = stamp(batch, with_producer(blank_header(IDENTITY), producer), 1000, 2000)
    found = read_header(memoryview(header), 0, IDENTITY)
    assert found.batch_producer == producer
    assert found.producer_kind == layout.ProducerKind.IDEMPOTENT


@given(producer=PRODUCERS)
def test_every_reader_gets_zeros_and_a_right_checksum(producer: BatchProducer) -> None:
    batch = parse_batch(sent(batch_from(producer)), may_be_idempotent=True)
    assert batch.producer is not None
    stored = stamp(batch, with_producer(blank_header(IDENTITY), batch.producer), 1000, 2000) + batch.body
    blank_extension(memoryview(stored), 0)
    assert [message.offset for message in check_wire_batch(bytes(stored))] == [1000, 1001]


def test_a_publish_is_not_a_producer() -> None:
    header = stamp(batch_from(None), blank_header(IDENTITY, bytes(range(16)), 5), 0, 0)
    assert read_header(memoryview(header), 0, IDENTITY).batch_producer is None


def test_a_batch_without_numbers_is_as_before() -> None:
    batch = batch_from(None)
    assert sent(batch) == encode_batch(batch)
    assert parse_batch(sent(batch), may_be_idempotent=True).producer is None


@pytest.mark.parametrize(("sequence", "expected"), [(0, 2), (SEQUENCE_MAX - 2, SEQUENCE_MAX), (SEQUENCE_MAX, 1)])
def test_numbers_start_again_at_zero(sequence: int, expected: int) -> None:
    assert BatchProducer(1, 0, sequence, 2).next_sequence == expected
