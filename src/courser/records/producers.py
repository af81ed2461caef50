"""What a batch says of the idempotent producer that sent it, on the wire and on disk.

A producer numbers its messages per partition. So the partition recognises a batch that is sent again, because its
first reply was lost (``storage.producer_table``). On the wire these numbers are a section of the batch header that the
batch checksum covers. They are not kept there: no consumer reads them, and older ones refuse them.
"""

import struct
from typing import NamedTuple

from courser.records import layout

_SECTION = struct.Struct("<B3xQH2xI")
"""flag, producer_id, epoch, sequence"""
_new_tuple = tuple.__new__
"""Creates a ``BatchProducer`` faster than its constructor."""
_CHECKSUMMED = struct.Struct("<BQHI")
"""What the batch checksum covers of the section: flag, producer_id, epoch, sequence."""
_STORED = struct.Struct("<QH2xIQ")
"""producer_id, epoch, first_number, and both sequence and message_count"""
_COUNT_SHIFT = 32
_SEQUENCE_MASK = 2**_COUNT_SHIFT - 1
_EXTENSION_END = layout.BATCH_HEADER_SIZE - layout.PRODUCER_END
_NO_RESERVED = bytes(_EXTENSION_END)
_BLANK_REST = bytes(layout.PRODUCER_KIND_POSITION - layout.NONCE_POSITION) + bytes(
    (layout.ProducerKind.IDEMPOTENT, *bytes(layout.BATCH_HEADER_SIZE - layout.PRODUCER_KIND_POSITION - 1))
)
"""A blank stored header after the numbers of a producer."""

PRODUCER_ID_MAX = 2**63 - 1
EPOCH_MAX = 2**15 - 1
SEQUENCE_MAX = 2**31 - 1
"""After it, numbers start at 0 again."""


_HALF = SEQUENCE_MAX // 2


def is_after(sequence: int, other: int) -> bool:
    """Whether a number comes later than another one. They are on a circle: up to half of it ahead is later."""
    return 0 < (sequence - other) & SEQUENCE_MAX <= _HALF


class BatchProducer(NamedTuple):
    """Who sent a batch, and which of the producer's messages it contains."""

    producer_id: int
    epoch: int
    """A producer that starts over, after a batch that was not stored, uses the next epoch."""
    sequence: int
    """The number of the first message that was sent."""
    message_count: int
    """How many messages were sent. Fewer are stored if some were known before, or were removed by condensing."""
    first_number: int = 0
    """How many of them were before the first one that is stored."""

    @property
    def next_sequence(self) -> int:
        """The number of the first message of the next batch."""
        return (self.sequence + self.message_count) & SEQUENCE_MAX


# --- on the wire --------------------------------------------------------------------------------------


def section_of(header: memoryview) -> bytes | None:
    """The numbers in the header of a sent batch; no bytes if it has none, None if what is there is invalid."""
    if header[layout.EXTENSION_POSITION : layout.BATCH_HEADER_SIZE] == layout.NO_EXTENSION:
        return b""
    if (
        header[layout.EXTENSION_POSITION : layout.PRODUCER_POSITION] != layout.PRODUCER_FLAG
        or header[layout.PRODUCER_END : layout.BATCH_HEADER_SIZE] != _NO_RESERVED
    ):
        return None
    section = bytes(header[layout.PRODUCER_POSITION : layout.PRODUCER_END])
    producer_id, epoch, sequence = fields = layout.PRODUCER.unpack(section)
    is_right = producer_id <= PRODUCER_ID_MAX and epoch <= EPOCH_MAX and sequence <= SEQUENCE_MAX
    # Packed again, it is the same if the bytes between the fields are zero.
    return section if is_right and layout.PRODUCER.pack(*fields) == section else None


def read_section(section: bytes, count: int) -> BatchProducer:
    """The producer of a batch with ``count`` messages."""
    return _new_tuple(BatchProducer, (*layout.PRODUCER.unpack(section), count, 0))


def write_section(producer: BatchProducer, header: bytearray) -> None:
    """Write the numbers into the header of a batch to be sent."""
    producer_id, epoch, sequence, _, _ = producer
    _SECTION.pack_into(header, layout.EXTENSION_POSITION, 1, producer_id, epoch, sequence)


def checksummed(producer_id: int, epoch: int, sequence: int) -> bytes:
    """What the batch checksum covers of the numbers, between the fields of the header and those of the messages."""
    return _CHECKSUMMED.pack(1, producer_id, epoch, sequence)


# --- on disk ------------------------------------------------------------------------------------------


def with_producer(blank: bytes, producer: BatchProducer) -> bytes:
    """A blank stored header that names the producer."""
    producer_id, epoch, sequence, message_count, first_number = producer
    numbers = _STORED.pack(producer_id, epoch, first_number, sequence | message_count << _COUNT_SHIFT)
    return blank[: layout.STORED_PRODUCER_POSITION] + numbers + _BLANK_REST


def stored_producer(kind: int, producer: bytes, sequence: int) -> BatchProducer | None:
    """The idempotent producer in a stored header; None if it has none."""
    if kind != layout.ProducerKind.IDEMPOTENT:
        return None
    producer_id, epoch, first_number = layout.PRODUCER.unpack(producer)
    return BatchProducer(producer_id, epoch, sequence & _SEQUENCE_MASK, sequence >> _COUNT_SHIFT, first_number)
