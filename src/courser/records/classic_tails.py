"""Shared by decoding and encoding: copy the tails of messages, convert user headers, hash every message.

Each message costs one slice copy (none if all have the same size) and one hash. Everything else is done for all
messages of a batch at once.
"""

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import starmap

import numpy as np
import xxhash
from numpy.typing import NDArray

from courser.records.classic_layout import ID_POSITION, Headers

_ROW_SIZE_MAX = 4096
"""Above this size in bytes, a copy of the message costs more than a slice object."""
_ROWS_AT_ONCE = 256
"""How many messages are copied together for hashing: few enough to stay in the CPU cache."""


@dataclass(frozen=True, slots=True)
class Places:
    """Where messages lie in a buffer."""

    buffer: memoryview
    """Starts with the first message and ends with the last."""
    header_size: int
    starts: NDArray[np.int64]
    stride: int
    """Size of every message if all are equal, else 0."""

    @property
    def tails(self) -> Iterator[slice]:
        """The part of each message after the header."""
        starts = self.starts.tolist()
        ends = [*starts[1:], len(self.buffer)]
        return starmap(slice, zip((self.starts + self.header_size).tolist(), ends, strict=True))


def places_of(sizes: NDArray[np.int64]) -> tuple[NDArray[np.int64], int, int]:
    """For consecutive messages of these sizes: the start of each, the stride, the total size."""
    ends = np.cumsum(sizes)
    stride = int(sizes[0]) if bool((sizes == sizes[0]).all()) else 0
    return ends - sizes, stride, int(ends[-1])


def copy_tails(source: Places, target: Places, converted: dict[int, bytes]) -> None:
    """Copy payload and user headers of every message. ``converted`` has the tails that are not copied but replaced."""
    if source.stride and target.stride and not converted:
        rows = (len(source.starts), source.stride - source.header_size)
        if rows[1]:
            taken = np.ndarray(rows, np.uint8, source.buffer, source.header_size, (source.stride, 1))
            np.ndarray(rows, np.uint8, target.buffer, target.header_size, (target.stride, 1))[...] = taken
        return
    from_buffer, to_buffer = source.buffer, target.buffer
    if converted:
        for number, (place, tail) in enumerate(zip(target.tails, source.tails, strict=True)):
            to_buffer[place] = converted.get(number) or from_buffer[tail]
        return
    for place, tail in zip(target.tails, source.tails, strict=True):
        to_buffer[place] = from_buffer[tail]


def convert_user_headers(
    source: Places, headers: Headers, conversion: Callable[[bytes], bytes]
) -> tuple[NDArray[np.int64], dict[int, bytes]]:
    """Convert the user headers for SDKs that use another form than the stored one.

    The only step that handles messages one by one, and only those with user headers. Producers often send the same
    block, so each distinct block of a batch is converted once.

    Returns:
        The length of every block afterwards, and the whole new tail of each message whose block changed.
    """
    lengths = headers["user_headers_length"].astype(np.int64)
    known: dict[bytes, bytes] = {}
    tails: dict[int, bytes] = {}
    carriers = np.flatnonzero(lengths)
    block_starts = source.starts + source.header_size + headers["payload_length"]
    for number, start, length in zip(
        carriers.tolist(), block_starts[carriers].tolist(), lengths[carriers].tolist(), strict=True
    ):
        block = bytes(source.buffer[start : start + length])
        replacement = known.get(block)
        if replacement is None:
            replacement = known[block] = conversion(block)
        if replacement != block:
            payload_start = int(source.starts[number]) + source.header_size
            tails[number] = b"".join((source.buffer[payload_start:start], replacement))
            lengths[number] = len(replacement)
    return lengths, tails


def xxh3_of_each(messages: Places) -> NDArray[np.uint64]:
    """XXH3-64 of every message without its checksum field."""
    digests: list[bytes] = []
    if 0 < messages.stride <= _ROW_SIZE_MAX:
        # Short messages of one size: numpy creates the slices, which halves the time of this function.
        covered = f"V{messages.stride - ID_POSITION}"
        rows = np.ndarray((len(messages.starts),), covered, messages.buffer, ID_POSITION, (messages.stride,))
        for first in range(0, len(rows), _ROWS_AT_ONCE):
            digests.extend(map(xxhash.xxh3_64_digest, rows[first : first + _ROWS_AT_ONCE].tolist()))
    else:
        digest, buffer = xxhash.xxh3_64_digest, messages.buffer
        digests.extend([digest(buffer[start:end]) for start, end in _covered(messages)])
    # The library writes digests in big-endian order.
    return np.frombuffer(b"".join(digests), ">u8").astype("<u8")


def crc32_of_each(messages: Places) -> NDArray[np.uint64]:
    """CRC-32 of every message without its checksum field, widened to 64 bits."""
    crc32, buffer = zlib.crc32, messages.buffer
    return np.array([crc32(buffer[start:end]) for start, end in _covered(messages)], "<u8")


def _covered(messages: Places) -> Iterator[tuple[int, int]]:
    """Start and end of the bytes that the checksum of each message covers."""
    starts = (messages.starts + ID_POSITION).tolist()
    ends = [*messages.starts[1:].tolist(), len(messages.buffer)]
    return zip(starts, ends, strict=True)


def write_checksums(messages: Places, checksums: NDArray[np.uint64]) -> None:
    """Write each checksum at the start of its message."""
    if messages.stride:
        np.ndarray((len(checksums),), "<u8", messages.buffer, 0, (messages.stride,))[...] = checksums
    else:
        np.ndarray((len(messages.buffer) - 7,), "<u8", messages.buffer, 0, (1,))[messages.starts] = checksums
