"""The positions of the fields of classic messages, which SDKs 0.5 to 0.8 use.

A message is a header of 56 bytes (0.5, 0.6) or 64 bytes (0.7, 0.8), the payload, and the user headers. The 64-byte
header is the 56-byte header followed by eight reserved bytes. A stored frame is a 48-byte header followed by the same
payload and user headers. So the *tail* of a message, everything after its header, is copied between the two forms as
one piece.

Headers are read and written as numpy records, all headers of a batch at once.
"""

from enum import Enum, unique
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from courser.records import layout

Headers: TypeAlias = NDArray[np.void]
"""One record for each message of a batch."""

INDEX_ENTRY = np.dtype([("offset", "<u4"), ("end", "<u4"), ("timestamp", "<u8")])
"""One for each message, before all messages: the client leaves offset and timestamp at 0."""
INDEX_ENTRY_SIZE = INDEX_ENTRY.itemsize
assert INDEX_ENTRY_SIZE == 16

SHORT_HEADER_SIZE = 56
LONG_HEADER_SIZE = 64
LENGTHS_POSITION = 48
"""Of user_headers_length and payload_length, two u32, the same in both headers."""
ID_POSITION = 8
"""The checksum covers the message from here on."""

_CLASSIC_FIELDS = [
    ("checksum", "<u8"),
    ("id", "V16"),
    ("offset", "<u8"),
    ("timestamp", "<u8"),
    ("origin_timestamp", "<u8"),
    ("user_headers_length", "<u4"),
    ("payload_length", "<u4"),
]
SHORT_HEADER = np.dtype(_CLASSIC_FIELDS)
LONG_HEADER = np.dtype([*_CLASSIC_FIELDS, ("reserved", "<u8")])
assert SHORT_HEADER.itemsize == SHORT_HEADER_SIZE
assert LONG_HEADER.itemsize == LONG_HEADER_SIZE

FRAME_HEADER = np.dtype(
    [
        ("checksum", "<u8"),
        ("id", "V16"),
        ("offset_delta", "<u4"),
        ("timestamp_delta", "<u4"),
        ("user_headers_length", "<u4"),
        ("payload_length", "<u4"),
        ("reserved", "<u8"),
    ]
)
"""The record form of ``layout.FRAME_HEADER``."""
assert FRAME_HEADER.itemsize == layout.FRAME_HEADER_SIZE


@unique
class Dialect(Enum):
    """Releases of SDKs with the same messages."""

    SDK_0_5 = "0.5"
    SDK_0_6 = "0.6"
    SDK_0_7 = "0.7"
    SDK_0_8 = "0.8"

    @property
    def has_long_header(self) -> bool:
        """64 bytes instead of 56, and user headers in the typed form: both were introduced in 0.7."""
        return self in (Dialect.SDK_0_7, Dialect.SDK_0_8)

    @property
    def header_size(self) -> int:
        """Bytes before the payload."""
        return LONG_HEADER_SIZE if self.has_long_header else SHORT_HEADER_SIZE

    @property
    def header(self) -> np.dtype[np.void]:
        """The record form of the header."""
        return LONG_HEADER if self.has_long_header else SHORT_HEADER


def read_headers(buffer: memoryview, starts: NDArray[np.int64], stride: int, header: np.dtype[np.void]) -> Headers:
    """The headers at ``starts``; ``stride`` is their distance if it is always the same, else 0.

    With a stride the result is a view into the buffer, without one it is a copy.
    """
    if stride:
        return np.ndarray((len(starts),), header, buffer, 0, (stride,))
    # Overlapping opaque records that start at every byte: indexing them reads any position. Opaque records are copied
    # as plain bytes, eight times as fast as field by field.
    every_byte = np.ndarray((len(buffer) - header.itemsize + 1,), f"V{header.itemsize}", buffer, 0, (1,))
    picked: Headers = every_byte[starts].view(header)
    return picked


def write_headers(buffer: memoryview, starts: NDArray[np.int64], stride: int, headers: Headers) -> None:
    """Write headers before their messages; the counterpart of ``read_headers``."""
    size = headers.dtype.itemsize
    opaque = headers.view(f"V{size}")
    if stride:
        np.ndarray((len(starts),), f"V{size}", buffer, 0, (stride,))[...] = opaque
    else:
        np.ndarray((len(buffer) - size + 1,), f"V{size}", buffer, 0, (1,))[starts] = opaque


def end_of_room(buffer: memoryview, position: int, size: int) -> int:
    """Where ``size`` bytes from ``position`` on end.

    Raises:
        ValueError: the buffer is smaller than that.
    """
    end = position + size
    if end > len(buffer):
        raise ValueError(f"{size} bytes at position {position} do not fit into a buffer of {len(buffer)}")
    return end
