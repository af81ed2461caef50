"""Work on all messages of a batch at once, in Python and numpy: the fallback for ``_frame_walk.c``.

Both do the same, which ``tests/records/test_frame_walk.py`` verifies. Frames of one size are found with one comparison
and read with strided views; mixed sizes need one walk over the length fields.
"""

import struct
from collections.abc import Callable
from itertools import repeat
from typing import Any

import numpy as np
from numpy.typing import NDArray

from courser.model.buffers import Buffer
from courser.records import layout
from courser.records.checksum import xxh3
from courser.records.producers import checksummed, section_of

INTERFACE = 2
"""Changes with the arguments and results of the functions that are compiled too."""

_unpack_header = layout.FRAME_HEADER.unpack_from
_unpack_lengths = layout.FRAME_LENGTHS.unpack_from
_unpack_leading_lengths = struct.Struct(f"<{layout.FRAME_LENGTHS_POSITION}xII").unpack_from
"""The lengths of the frame that starts at a position."""
_pack = struct.Struct("<I").pack
_pack_u32_into = struct.Struct("<I").pack_into
_pack_u64_into = struct.Struct("<Q").pack_into
_ZERO = np.zeros(1, np.uint32)
_SEED_SIZE = 16
_XXH64_PRIMES = np.array((0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9), np.uint64)

FRAME_FIELDS = np.dtype(
    [
        ("checksum", "<u8"),
        ("id_low", "<u8"),
        ("id_high", "<u8"),
        ("offset_delta", "<u4"),
        ("timestamp_delta", "<u4"),
        ("user_headers_length", "<u4"),
        ("payload_length", "<u4"),
        ("reserved", "<u8"),
    ]
)
"""``layout.FRAME_HEADER`` as columns."""
assert FRAME_FIELDS.itemsize == layout.FRAME_HEADER_SIZE


def survey(body: Buffer, count: int) -> tuple[int, bytes, bytes, bool, bool] | None:
    """Walk over the frames of a body once; None unless exactly ``count`` frames fill it.

    Returns the size of every frame, or 0 if sizes differ (also if only the lengths of payload and headers differ); the
    start of each frame, 64 bits each, or nothing if all have one size; the checksum fields; whether a reserved byte is
    not zero; whether the offset deltas are 0, 1, 2, ...
    """
    body = memoryview(body)
    if not 1 <= count <= len(body) // layout.FRAME_HEADER_SIZE:
        return None
    if count == 1:
        # For a small send, the arrays below would cost more than the whole send.
        _, _, offset_delta, _, user_headers_length, payload_length, reserved = _unpack_header(body)
        if layout.FRAME_HEADER_SIZE + user_headers_length + payload_length != len(body):
            return None
        return len(body), b"", bytes(body[: layout.FRAME_ID_POSITION]), reserved != 0, offset_delta == 0
    frame_size = _uniform_frame_size(body, count)
    starts = None
    if not frame_size:
        found, end = follow_lengths(body, count)
        if end != len(body):
            return None
        starts = np.array(found, np.int64)
    reserved_fields = pick(body, starts, frame_size, count, layout.FRAME_RESERVED_POSITION, "<u8")
    deltas = pick(body, starts, frame_size, count, layout.FRAME_OFFSET_DELTA_POSITION, "<u4")
    return (
        frame_size,
        starts.tobytes() if starts is not None else b"",
        pick(body, starts, frame_size, count, layout.FRAME_CHECKSUM_POSITION, "<u8").tobytes(),
        bool(reserved_fields.any()),
        bool((deltas == np.arange(count, dtype=np.uint32)).all()),
    )


def _uniform_frame_size(body: memoryview, count: int) -> int:
    """The size of every frame, or 0 if they differ (or do not fill the body)."""
    user_headers_length, payload_length = _unpack_lengths(body, layout.FRAME_LENGTHS_POSITION)
    frame_size: int = layout.FRAME_HEADER_SIZE + user_headers_length + payload_length
    if frame_size * count != len(body):
        return 0
    # Compare both lengths at once: frames of the same size with different lengths are not uniform.
    lengths = np.ndarray((count,), "<u8", body, layout.FRAME_LENGTHS_POSITION, (frame_size,))
    return frame_size if bool((lengths == lengths[0]).all()) else 0


def follow_lengths(body: memoryview, count: int) -> tuple[list[int], int]:
    """The starts of up to ``count`` frames, and the end of the last one, which may be beyond the body.

    The only loop over messages in Python: each operation in it runs a thousand times per batch.
    """
    unpack, header_size = _unpack_leading_lengths, layout.FRAME_HEADER_SIZE
    starts: list[int] = []
    add = starts.append
    position = 0
    try:
        for _ in repeat(None, count):
            user_headers_length, payload_length = unpack(body, position)
            add(position)
            position += header_size + user_headers_length + payload_length
    except struct.error:
        # No header fits after the previous frame.
        position = len(body) + 1
    return starts, position


def pick(
    body: memoryview, starts: NDArray[np.int64] | None, frame_size: int, count: int, position: int, dtype: str
) -> NDArray[np.unsignedinteger]:
    """One header field of every frame: ``position`` inside the frame, ``dtype`` "<u4" or "<u8"."""
    if starts is None:
        return np.ndarray((count,), dtype, body, position, (frame_size,))
    # Overlapping numbers that start at every byte of the body: indexing them reads any position.
    every_byte: NDArray[np.unsignedinteger] = np.ndarray(
        (len(body) - np.dtype(dtype).itemsize + 1,), dtype, body, 0, (1,)
    )
    picked: NDArray[np.unsignedinteger] = every_byte[starts + position]
    return picked


def first_in_cells(
    starts: Buffer, frame_size: int, count: int, position: int, offset: int, interval: int, cell: int
) -> tuple[bytes, bytes, int]:
    """The first frame that starts in each cell. A cell is ``interval`` bytes of the log.

    ``starts``, ``frame_size`` and ``count`` are those of ``survey``, ``position`` is where the body starts in the log,
    ``offset`` that of its first message, ``cell`` the last cell that already has a first frame. Returns offsets and
    positions of the frames, 32 bits each, and the new last cell with a first frame.
    """
    first_cell = position // interval
    if count == 1:
        # The common case of small sends: no arrays for a single number.
        return (b"", b"", cell) if first_cell == cell else (_pack(offset), _pack(position), first_cell)
    if not frame_size:
        places = (np.frombuffer(starts, np.int64) + position).astype(np.uint32)
        cells = places // np.uint32(interval)
        is_first = np.empty(count, np.bool_)
        is_first[0] = True
        np.not_equal(cells[1:], cells[:-1], out=is_first[1:])
        numbers, places = np.flatnonzero(is_first).astype(np.uint32), places[is_first]
    else:
        if frame_size >= interval:
            # No two frames start in one cell.
            numbers = np.arange(count, dtype=np.uint32)
        else:
            # Every cell up to the last frame's has a frame: the first one at or after the start of the cell.
            last_cell = (position + frame_size * (count - 1)) // interval
            begin = first_cell * interval - position + frame_size - 1
            numbers = np.arange(
                begin + interval, begin + (last_cell - first_cell + 1) * interval, interval, dtype=np.uint32
            )
            numbers = np.concatenate((_ZERO, numbers // np.uint32(frame_size)))
        places = numbers * np.uint32(frame_size) + np.uint32(position)
    if first_cell == cell:
        numbers, places = numbers[1:], places[1:]
    if len(places):
        cell = int(places[-1]) // interval
    return (numbers + np.uint32(offset)).tobytes(), places.tobytes(), cell


def check_batch(
    data: Buffer,
) -> tuple[int, int, int, bytes, bytes] | tuple[int, int, int, bytes, bytes, bytes] | None:
    """Check a batch from a producer; None if it is invalid. Messages are not hashed.

    Returns the smallest creation time, the number of messages, the size of every frame or 0, their starts and their
    checksum fields: the last three as in ``survey``. If the producer is idempotent, its section follows.
    """
    view = memoryview(data)
    size = len(view)
    if not layout.BATCH_HEADER_SIZE <= size <= layout.BATCH_SIZE_MAX:
        return None
    _, _, _, origin_timestamp, batch_length, checksum, count = layout.WIRE_HEADER.unpack_from(view)
    section = section_of(view)
    if batch_length != size or section is None:
        return None
    found = survey(view[layout.BATCH_HEADER_SIZE :], count)
    if found is None:
        return None
    frame_size, starts, checksums, has_reserved, is_numbered = found
    covered = checksummed(*layout.PRODUCER.unpack(section)) + checksums if section else checksums
    if has_reserved or not is_numbered or batch_checksum(view, covered) != checksum:
        return None
    if section:
        return origin_timestamp, count, frame_size, starts, checksums, section
    return origin_timestamp, count, frame_size, starts, checksums


def stamp_header(
    blank: bytes,
    checksums: Buffer,
    body: Buffer,
    base_offset: int,
    base_timestamp: int,
    origin_timestamp: int,
    message_count: int,
    frame_size: int,
) -> bytearray:
    """The header of a stored batch: a ``blank`` header, which identifies the partition, and the fields of the batch."""
    header = bytearray(blank)
    length = layout.BATCH_HEADER_SIZE + len(body)
    partition_id = int.from_bytes(blank[: layout.BASE_OFFSET_POSITION], "little")
    layout.WIRE_HEADER.pack_into(
        header, 0, partition_id, base_offset, base_timestamp, origin_timestamp, length, 0, message_count
    )
    _pack_u32_into(header, layout.FRAME_SIZE_POSITION, frame_size)
    _pack_u64_into(header, layout.STORED_LENGTH_POSITION, length)
    _pack_u64_into(header, layout.BATCH_CHECKSUM_POSITION, batch_checksum(header, checksums))
    _pack_u64_into(header, layout.BODY_HASH_POSITION, xxh3(body))
    _pack_u64_into(header, layout.HEADER_CHECKSUM_POSITION, xxh3(header[: layout.HEADER_CHECKSUM_POSITION]))
    return header


def batch_checksum(header: Buffer, checksums: Buffer) -> int:
    """XXH3-64 of the wire header without its checksum field, followed by the checksum fields of the frames.

    If a send has an idempotent producer, what is ``checksummed`` of it comes before those of the frames.
    """
    head = header[: layout.BATCH_CHECKSUM_POSITION]
    count = header[layout.MESSAGE_COUNT_POSITION : layout.EXTENSION_POSITION]
    return xxh3(b"".join((head, count, checksums)))


# --- frames that a client writes, frames that a poll returns ---


def write_frames(payloads: list[Buffer], blocks: list[Buffer] | None, heads: Buffer, into: memoryview) -> None:
    """Build frames from payloads and blocks of user headers, in memory of exactly their size.

    ``heads`` are the consecutive headers of the frames; their lengths and checksums are filled in here.

    Raises:
        ValueError: the sizes or counts contradict each other.
    """
    count, size = len(payloads), layout.FRAME_HEADER_SIZE
    if not count or len(heads) != count * size or (blocks is not None and len(blocks) != count):
        raise ValueError("not as many of each")
    rows = np.frombuffer(heads, FRAME_FIELDS).copy()
    rows["payload_length"] = np.fromiter(map(len, payloads), np.uint32, count)
    rows["user_headers_length"] = 0 if blocks is None else np.fromiter(map(len, blocks), np.uint32, count)
    width = 2 if blocks is None else 3
    pieces: list[Buffer] = [b""] * (width * count)
    pieces[0::width] = rows.view(f"V{size}").tolist()
    pieces[1::width] = payloads
    if blocks is not None:
        pieces[2::width] = blocks
    # One call for all of them, so that no memory of the size of a message is allocated for each.
    body = b"".join(pieces)
    if len(body) != len(into):
        raise ValueError("the frames do not fit")
    into[:] = body
    fill_checksums(into, count)


def fill_checksums(body: Buffer, count: int) -> None:
    """Write the checksum of every frame into its header.

    Raises:
        ValueError: not exactly ``count`` frames fill the body.
    """
    view = memoryview(body)
    found = survey(view, count)
    if found is None:
        raise ValueError("the frames do not fill the body")
    frame_size, packed_starts, *_ = found
    starts = np.arange(0, len(view), frame_size) if frame_size else np.frombuffer(packed_starts, np.int64)
    ends = [*starts[1:].tolist(), len(view)]
    parts = map(slice, (starts + layout.FRAME_ID_POSITION).tolist(), ends)
    checksums = np.fromiter(map(xxh3, map(view.__getitem__, parts)), "<u8", count)
    fields = starts[:, None] + np.arange(layout.FRAME_ID_POSITION)
    np.frombuffer(view, np.uint8)[fields] = checksums.view(np.uint8).reshape(count, -1)


def cut_frames(body: Buffer, skip: int, count: int, size_max: int) -> tuple[int, int, int]:
    """The range of ``count`` frames after the first ``skip``, as many as are complete and fit into ``size_max``.

    Returns where the first starts, where the last ends, and how many there are.
    """
    unpack, last_start, body_size = _unpack_leading_lengths, len(body) - layout.FRAME_HEADER_SIZE, len(body)
    position = start = 0
    chosen = -max(skip, 0)
    while chosen < count and position <= last_start:
        user_headers_length, payload_length = unpack(body, position)
        end = position + layout.FRAME_HEADER_SIZE + user_headers_length + payload_length
        if end > body_size or (chosen >= 0 and end - start > size_max):
            break
        position = end
        chosen += 1
        if chosen == 0:
            start = position
    return start, position, max(chosen, 0)


# --- what only the compiled functions do, because it is faster there ---


def good_batches(data: Buffer, blank: bytes, offset: int) -> tuple[int, int]:
    """Check the stored batches at the start of ``data``, without the interpreter's lock.

    ``blank`` is the ``blank_header`` of their partition, ``offset`` the one that the first must have. Returns the size
    of those that are good, and the offset after them. What follows may be damaged, incomplete, or not checked here.
    """
    del data, blank
    return 0, offset


# --- ids for messages that come without ---


def spread_ids(seed: bytes, first: int, count: int) -> bytes:
    """Ids of 16 bytes that look random, from a random seed of 16 bytes. Each number from ``first`` on has its own.

    They are no secret: who knows one of them can find the others.

    Raises:
        ValueError: the seed has another size, or the count is more than a batch may have.
    """
    if (
        len(seed) != _SEED_SIZE
        or not 0 <= first < 2**64
        or not 0 <= count <= layout.BATCH_SIZE_MAX // layout.FRAME_HEADER_SIZE
    ):
        raise ValueError("no seed, or more ids than messages fit into a batch")
    numbers = np.arange(count, dtype=np.uint64) + np.uint64(first)
    counters: NDArray[np.uint64] = numbers[:, None] * _XXH64_PRIMES[0] + np.frombuffer(seed, "<u8")
    # The last step of XXH64, which is a bijection: different counters become different ids.
    counters ^= counters >> np.uint64(33)
    counters *= _XXH64_PRIMES[1]
    counters ^= counters >> np.uint64(29)
    counters *= _XXH64_PRIMES[2]
    counters ^= counters >> np.uint64(32)
    return counters.tobytes()


# --- classic messages: ``records.classic`` does it in Python ---


def survey_classic(
    section: Buffer, count: int, header_size: int, payload_size_max: int, user_headers_size_max: int
) -> tuple[int, int, int] | None:
    """Check classic messages and their index; None if they are invalid or cannot be converted here.

    Returns how many have no id, the size of their frames in bytes, and the smallest creation time.
    """
    del section, count, header_size, payload_size_max, user_headers_size_max
    return None


def frames_from_classic(
    section: Buffer, ids: Buffer, into: memoryview, count: int, header_size: int, first_origin: int
) -> tuple[int, bytes, bytes] | None:
    """Build frames from the messages that ``survey_classic`` checked, in memory of exactly their size.

    ``ids`` are for messages without an id. Returns size, starts and checksum fields of the frames, like ``survey``.
    """
    del section, ids, into, count, header_size, first_origin
    return None


def classic_from_frames(
    body: Buffer,
    into: memoryview,
    position: int,
    count: int,
    header_size: int,
    base_offset: int,
    base_timestamp: int,
    origin_timestamp: int,
) -> int | None:
    """Convert frames to classic messages at ``position`` of a buffer, and return where they end.

    None if the frames do not fill the body, if the buffer is too small, or if they cannot be converted here.
    """
    del body, into, position, count, header_size, base_offset, base_timestamp, origin_timestamp
    return None


# --- whole requests: the codecs do it in Python ---


def take_classic_send(
    frame: memoryview,
    ids: Callable[[int], bytes],
    header_size: int,
    payload_size_max: int,
    user_headers_size_max: int,
    in_place_size_max: int,
) -> tuple[bytes, int, int, memoryview, int, bytes, bytes] | None:
    """``survey_classic`` and ``frames_from_classic`` for a whole SendMessages frame; None if one of them says so.

    If the messages take ``in_place_size_max`` bytes at most, and the frame can be written to, the frames take their
    place. Returns the metadata of the send, the number of messages, the smallest creation time, the frames, and their
    size, starts and checksum fields like ``survey``.
    """
    del frame, ids, header_size, payload_size_max, user_headers_size_max, in_place_size_max
    return None


def take_vsr_send(frame: memoryview) -> tuple[Any, ...] | None:
    """``check_batch`` for a whole send of SDK 0.9; None if it says so, or if anything else is unusual or wrong.

    Returns the client, the checksum and the number of the request, all bytes from its destination to the checksum of
    its batch, and the destination; then the smallest creation time, the number of messages, the frames, and their size,
    starts and checksum fields like ``survey``; then the section of an idempotent producer. Frames are not hashed.
    """
    del frame
    return None
