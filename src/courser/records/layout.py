"""The layout of a batch: the only place that knows the positions of its fields.

All numbers are little-endian, all times are microseconds since 1970. A batch is a 256-byte header followed by frames; a
frame is a 48-byte header, the payload, and the user headers. On the wire the header's bytes from 52 on are zero, or
name the idempotent producer of a send. On disk they are the *extension*, and a poll clears them again.
``docs/formats/batch.md`` has the tables.
"""

import struct
from enum import IntEnum

BATCH_HEADER_SIZE = 256

# The wire part, followed by the extension. The two checksums come last so that each covers a plain prefix.
STORED_HEADER = struct.Struct(
    "<"
    "Q"  # partition_id
    "Q"  # base_offset: offset of the first message
    "Q"  # base_timestamp: time of the append, one for the whole batch
    "Q"  # origin_timestamp: smallest creation time of a message
    "Q"  # batch_length: 256 + frames, as the wire counts (before compression and encryption)
    "Q"  # batch_checksum
    "I"  # message_count
    # --- from here on zero on the wire ---
    "4s"  # magic
    "H"  # format_version
    "B"  # codec
    "B"  # flags: ENCODED or zero
    "I"  # frame_size: size of every frame if all are equal, else 0; saves the walk over the frames
    "I"  # encryption_key_id: 0 is "not encrypted"
    "I"  # removed_count: offsets before base_offset whose messages were removed when the segment was condensed
    "Q"  # stored_length: 256 + body as it lies in the file
    "16s"  # topic_uuid: a batch of another topic is recognised
    "Q"  # incarnation: the journal op that made the partition; a batch of its predecessor is recognised
    "16s"  # producer: zero is "none"
    "Q"  # sequence: of that producer
    "24x"  # of an encrypted batch, the nonce; else zero
    "B"  # producer_kind: what the two fields above mean
    "87x"  # of an encrypted batch, HEADER_TAG_POSITION; else zero
    "Q"  # body_hash: XXH3-64 of the stored body
    "Q"  # header_checksum: XXH3-64 of the 248 bytes before it
)
assert STORED_HEADER.size == BATCH_HEADER_SIZE

WIRE_HEADER = struct.Struct("<QQQQQQI")
"""The fields on the wire; the bytes after them up to 256 are zero there."""

EXTENSION_POSITION = WIRE_HEADER.size
EXTENSION_SIZE = BATCH_HEADER_SIZE - EXTENSION_POSITION
NO_EXTENSION = bytes(EXTENSION_SIZE)

PRODUCER_FLAG = b"\1\0\0\0"
"""At the start of the extension of a sent batch: its idempotent producer follows."""
PRODUCER_POSITION = 56
PRODUCER = struct.Struct(
    "<"
    "Q"  # producer_id
    "H"  # epoch
    "2x"
    "I"  # sequence of the first message; in the ``producer`` of a stored header, first_number
)
PRODUCER_END = PRODUCER_POSITION + PRODUCER.size

BASE_OFFSET_POSITION = 8
BATCH_CHECKSUM_POSITION = 40
MESSAGE_COUNT_POSITION = 48
MAGIC_POSITION = EXTENSION_POSITION
FRAME_SIZE_POSITION = 60
REMOVED_COUNT_POSITION = 68
STORED_LENGTH_POSITION = 72
STORED_PRODUCER_POSITION = 104
NONCE_POSITION = 128
NONCE_SIZE = 24
PRODUCER_KIND_POSITION = 152
HEADER_TAG_POSITION = 224
TAG_SIZE = 16
BODY_HASH_POSITION = 240
HEADER_CHECKSUM_POSITION = 248

MAGIC = b"CRSB"
FORMAT_VERSION = 1
ENCODED = 1
"""Flag: the stored body is not the frames as they are, but compressed, encrypted, or both."""

FRAME_HEADER_SIZE = 48
FRAME_HEADER = struct.Struct(
    "<"
    "Q"  # checksum: XXH3-64 of the frame from byte 8 to its end
    "16s"  # id
    "I"  # offset_delta: number of the frame in its batch
    "I"  # timestamp_delta: microseconds after origin_timestamp
    "I"  # user_headers_length
    "I"  # payload_length
    "Q"  # reserved, zero
)
assert FRAME_HEADER.size == FRAME_HEADER_SIZE

FRAME_CHECKSUM_POSITION = 0
FRAME_ID_POSITION = 8
FRAME_OFFSET_DELTA_POSITION = 24
FRAME_TIMESTAMP_DELTA_POSITION = 28
FRAME_LENGTHS_POSITION = 32
FRAME_RESERVED_POSITION = 40
FRAME_LENGTHS = struct.Struct("<II")
"""user_headers_length, payload_length"""

BATCH_SIZE_MAX = 64 * 1024 * 1024
"""Size of one batch in bytes, header included: the largest frame that an SDK sends. A larger length is damage."""
MESSAGE_COUNT_MAX = BATCH_SIZE_MAX // FRAME_HEADER_SIZE
"""Messages of one batch: each has at least a header."""
STORED_SIZE_MAX = BATCH_SIZE_MAX + TAG_SIZE
"""Size of one stored batch in bytes: the tag of an encrypted body follows it."""
STORED_MESSAGE_SIZE_MIN = 8
"""Bytes of a stored body per message, compressed or not: says how many offsets damaged bytes can stand for. A message
that compresses further is stored as it is; its checksum alone takes 8 bytes and does not compress."""
TIMESTAMP_DELTA_MAX = 2**32 - 1
"""Maximum span of the creation times in one batch, in microseconds: the delta has 32 bits."""


class ProducerKind(IntEnum):
    """What the fields ``producer`` and ``sequence`` of a stored header mean."""

    PUBLISH = 0
    """A publish of staged messages, or nothing if they are zero."""
    IDEMPOTENT = 1
    """A client's producer, which may send a batch again (``records.producers``)."""


class Compression(IntEnum):
    """The compression of the stored body."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4
