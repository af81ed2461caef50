"""Messages that say who they are: run, sequence of the batch, number in it. A reader can tell each from any other."""

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from courser.records import layout
from courser.records.batch import Batch, NewMessage, build_batch
from courser.records.frames import layout_of
from courser.storage.read_result import ReadResult

_IDENTITY = struct.Struct("<IIHHI")
_FILLER = bytes((number * 37 + number // 256) % 256 for number in range(64 * 1024))


@dataclass(frozen=True, slots=True, order=True)
class MessageIdentity:
    """What a payload begins with."""

    run: int
    sequence: int
    number: int
    count: int
    """Messages in the batch."""


def payload_of(identity: MessageIdentity, size: int) -> bytes:
    """The identity, and ``size`` bytes that follow from it."""
    head = _IDENTITY.pack(identity.run, identity.sequence, identity.number, identity.count, size)
    start = (identity.sequence * 31 + identity.number) % 1024
    return head + _FILLER[start : start + size]


def identity_of(payload: bytes) -> MessageIdentity:
    """Who this is. Every byte of the payload is compared."""
    run, sequence, number, count, size = _IDENTITY.unpack_from(payload)
    identity = MessageIdentity(run, sequence, number, count)
    assert payload == payload_of(identity, size), f"a payload that nobody sent: {payload[:64]!r}"
    return identity


def make_batch(run: int, sequence: int, count: int, sizes: list[int]) -> Batch:
    """``count`` messages whose filler sizes go round in ``sizes``."""
    return build_batch(
        [
            NewMessage(payload_of(MessageIdentity(run, sequence, number, count), sizes[number % len(sizes)]))
            for number in range(count)
        ]
    )


def messages_of(result: ReadResult) -> Iterator[tuple[int, MessageIdentity]]:
    """Offset and identity of everything that a read gave."""
    data = memoryview(b"".join(result.pieces))
    position = 0
    while position < len(data):
        _, base_offset, _, _, length, _, count = layout.WIRE_HEADER.unpack_from(data, position)
        body = data[position + layout.BATCH_HEADER_SIZE : position + length]
        for start in layout_of(body, count).starts.tolist():
            (delta,) = struct.unpack_from("<I", body, start + layout.FRAME_OFFSET_DELTA_POSITION)
            _, payload_length = layout.FRAME_LENGTHS.unpack_from(body, start + layout.FRAME_LENGTHS_POSITION)
            payload = bytes(body[start + layout.FRAME_HEADER_SIZE :][:payload_length])
            yield base_offset + delta, identity_of(payload)
        position += length
