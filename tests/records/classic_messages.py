"""Classic messages for tests. ``stored_frame`` and ``classic_message`` say in plain code what conversion means."""

import struct
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, replace

import pytest
import xxhash
from hypothesis import strategies as st

from courser.errors import InvalidBatch
from courser.records.batch import Batch
from courser.records.classic import (
    USUAL_LIMITS,
    ClassicLimits,
    Dialect,
    classic_size_max,
    decode_classic,
    encode_classic,
)
from courser.records.user_headers import is_typed, typed_from_untyped, untyped_from_typed

ORIGIN = 0x00060A24181E4000
LONG = Dialect.SDK_0_8
TYPED = bytes.fromhex("02010000006b020100000076")
UNTYPED = bytes.fromhex("010000006b020100000076")
RANDOM_ID = bytes(range(1, 17))

every_dialect = pytest.mark.parametrize("dialect", list(Dialect), ids=lambda dialect: dialect.value)


@dataclass(frozen=True)
class Message:
    payload: bytes = b"x"
    id: bytes = b"\x07".ljust(16, b"\0")
    origin: int = ORIGIN
    user_headers: bytes = b""
    # What a client leaves at 0, and lies it may tell.
    checksum: int = 0
    offset: int = 0
    timestamp: int = 0
    reserved: int = 0
    payload_length: int | None = None
    user_headers_length: int | None = None

    def sent(self, dialect: Dialect) -> bytes:
        lengths = (
            len(self.user_headers) if self.user_headers_length is None else self.user_headers_length,
            len(self.payload) if self.payload_length is None else self.payload_length,
        )
        header = struct.pack("<Q16sQQQII", self.checksum, self.id, self.offset, self.timestamp, self.origin, *lengths)
        if dialect.header_size == 64:
            header += struct.pack("<Q", self.reserved)
        return header + self.payload + self.user_headers


def index_entry(end: int, *, offset: int = 0, timestamp: int = 0) -> bytes:
    return struct.pack("<IIQ", offset, end, timestamp)


def section_of(messages: Iterable[Message], dialect: Dialect) -> bytes:
    index, block = b"", b""
    for message in messages:
        block += message.sent(dialect)
        index += index_entry(len(block))
    return index + block


def stored_frame(message: Message, number: int, earliest: int, dialect: Dialect) -> bytes:
    user_headers = message.user_headers if dialect.has_long_header else typed_from_untyped(message.user_headers)
    covered = (
        (message.id if any(message.id) else RANDOM_ID)
        + struct.pack("<IIIIQ", number, message.origin - earliest, len(user_headers), len(message.payload), 0)
        + message.payload
        + user_headers
    )
    return struct.pack("<Q", xxhash.xxh3_64_intdigest(covered)) + covered


def classic_message(message: Message, offset: int, timestamp: int, dialect: Dialect) -> bytes:
    block = message.user_headers
    if not dialect.has_long_header and is_typed(block):
        block = untyped_from_typed(block)
    polled = replace(message, id=message.id if any(message.id) else RANDOM_ID, user_headers=block)
    covered = replace(polled, offset=offset, timestamp=timestamp).sent(dialect)[8:]
    checksum = zlib.crc32(covered) if dialect is Dialect.SDK_0_5 else xxhash.xxh3_64_intdigest(covered)
    return struct.pack("<Q", checksum) + covered


def random_ids(count: int) -> bytes:
    return RANDOM_ID * count


def decode(section: bytes, count: int, dialect: Dialect = LONG) -> list[Batch]:
    return decode_classic(memoryview(section), count, dialect=dialect, ids=random_ids)


def decode_one(section: bytes, count: int, dialect: Dialect = LONG) -> Batch:
    (batch,) = decode(section, count, dialect)
    return batch


def encode(batches: Iterable[Batch], dialect: Dialect, *, base_offset: int = 0, base_timestamp: int = 0) -> bytes:
    """All batches into one buffer, as a poll does."""
    parts = list(batches)
    into = bytearray(sum(classic_size_max(len(batch.body), batch.count, dialect) for batch in parts))
    position = 0
    for batch in parts:
        position = encode_classic(
            batch.body,
            batch.count,
            base_offset=base_offset,
            base_timestamp=base_timestamp,
            origin_timestamp=batch.origin_timestamp,
            dialect=dialect,
            into=memoryview(into),
            position=position,
        )
        base_offset += batch.count
    return bytes(into[:position])


def code_of(section: bytes, count: int, dialect: Dialect = LONG, limits: ClassicLimits = USUAL_LIMITS) -> int:
    with pytest.raises(InvalidBatch) as refusal:
        decode_classic(memoryview(section), count, dialect=dialect, ids=random_ids, limits=limits)
    return refusal.value.code


NEAR = st.integers(ORIGIN, ORIGIN + 1000)
FAR = st.one_of(NEAR, st.integers(0, 2**64 - 1), st.sampled_from([0, 2**32 - 1, 2**32, 2**64 - 1]))
BLOCKS = st.one_of(
    st.just(b""), st.sampled_from([TYPED, UNTYPED, TYPED * 3, UNTYPED * 2, b"junk"]), st.binary(max_size=30)
)


def messages_with(origins: st.SearchStrategy[int]) -> st.SearchStrategy[list[Message]]:
    one = st.builds(
        Message,
        payload=st.binary(max_size=40),
        id=st.one_of(st.just(bytes(16)), st.binary(min_size=16, max_size=16)),
        origin=origins,
        user_headers=BLOCKS,
    )
    same_sized = st.builds(
        lambda message, ids: [replace(message, id=id_) for id_ in ids],
        one,
        st.lists(st.binary(min_size=16, max_size=16), min_size=1, max_size=8),
    )
    return st.one_of(st.lists(one, min_size=1, max_size=8), same_sized)
