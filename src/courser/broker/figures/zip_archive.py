"""ZIP files with every compression that an Iggy client can request.

The standard library supports four of the six methods, but not xz and zstd. So all six are written here: a local header
and the data of each entry, then the central directory. Entries are small, so nothing is streamed.
"""

import bz2
import lzma
import struct
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from courser.records.compression import CodecMissing, compress
from courser.records.layout import Compression

_FIELDS = (
    "H"  # version needed to extract, times ten
    "H"  # flags
    "H"  # compression method
    "H"  # modification time
    "H"  # modification date
    "I"  # CRC-32 of the contents
    "I"  # compressed size
    "I"  # size
    "H"  # name length
    "H"  # extra field length
)
_LOCAL = struct.Struct("<I" + _FIELDS)
_CENTRAL = struct.Struct(
    "<I"
    "H" + _FIELDS + "H"  # made by  # comment length
    "H"  # disk
    "H"  # internal attributes
    "I"  # external attributes: the file mode in the upper half
    "I"  # position of the local header
)
_END = struct.Struct("<IHHHHIIH")
_LOCAL_MAGIC, _CENTRAL_MAGIC, _END_MAGIC = 0x04034B50, 0x02014B50, 0x06054B50
_MADE_ON_UNIX = 3 << 8 | 63
_FILE_MODE = 0o100600 << 16
_NAMES_ARE_UTF8 = 1 << 11
_LZMA_HAS_END = 1 << 1
"""Flag: the compressed data has an end marker."""
_NO_DATE = 1 << 5 | 1
"""1 January 1980, the first date in ZIP. The contents of the archive have the time."""

_LZMA_VERSION = b"\x09\x14"
_LZMA_PROPERTIES_SIZE = 5
_LZMA_ALONE_HEADER_SIZE = 13
_ZSTD_MAGIC = 0xFD2FB528
_ZSTD_SIZE_IN_8_BYTES = 0b1110_0000
"""The frame header contains the size of the contents, which is all the memory that a reader needs."""
_ZSTD_BLOCK_SIZE_MAX = 128 * 1024


@dataclass(frozen=True, slots=True)
class Method:
    """How entries are compressed."""

    number: int
    """The number of the method in the file."""
    version_needed: int
    compress: Callable[[bytes], bytes]
    flags: int = _NAMES_ARE_UTF8


def _deflate(data: bytes) -> bytes:
    compressor = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return compressor.compress(data) + compressor.flush()


def _lzma(data: bytes) -> bytes:
    # The "alone" format has properties, size and stream; ZIP needs a version, the properties and the stream.
    alone = lzma.compress(data, format=lzma.FORMAT_ALONE)
    properties = alone[:_LZMA_PROPERTIES_SIZE]
    return b"".join((_LZMA_VERSION, struct.pack("<H", len(properties)), properties, alone[_LZMA_ALONE_HEADER_SIZE:]))


def _zstd(data: bytes) -> bytes:
    try:
        return bytes(compress(Compression.ZSTD, data))
    except CodecMissing:
        return _uncompressed_zstd(data)


def _uncompressed_zstd(data: bytes) -> bytes:
    """A zstd frame of raw blocks: every reader accepts it, and no library is needed to write it."""
    parts = [struct.pack("<IBQ", _ZSTD_MAGIC, _ZSTD_SIZE_IN_8_BYTES, len(data))]
    for begin in range(0, max(len(data), 1), _ZSTD_BLOCK_SIZE_MAX):
        block = data[begin : begin + _ZSTD_BLOCK_SIZE_MAX]
        is_last = begin + len(block) == len(data)
        parts += ((len(block) << 3 | is_last).to_bytes(3, "little"), block)
    return b"".join(parts)


METHODS: dict[int, Method] = {
    1: Method(0, 10, bytes),
    2: Method(8, 20, _deflate),
    3: Method(12, 46, bz2.compress),
    4: Method(93, 63, _zstd),
    5: Method(14, 63, _lzma, _NAMES_ARE_UTF8 | _LZMA_HAS_END),
    6: Method(95, 63, lzma.compress),
}
"""By the number that clients send."""


def write_zip(entries: Sequence[tuple[str, bytes]], method: Method) -> bytes:
    """A ZIP file with these entries, in this order."""
    parts: list[bytes] = []
    directory: list[bytes] = []
    position = 0
    for name, contents in entries:
        local, central = _entry(name.encode(), contents, method, position)
        parts.append(local)
        directory.append(central)
        position += len(local)
    directory_size = sum(map(len, directory))
    end = _END.pack(_END_MAGIC, 0, 0, len(entries), len(entries), directory_size, position, 0)
    return b"".join((*parts, *directory, end))


def _entry(name: bytes, contents: bytes, method: Method, position: int) -> tuple[bytes, bytes]:
    """An entry, and its row in the directory."""
    data = method.compress(contents)
    fields = (
        method.version_needed,
        method.flags,
        method.number,
        0,
        _NO_DATE,
        zlib.crc32(contents),
        len(data),
        len(contents),
        len(name),
        0,
    )
    local = b"".join((_LOCAL.pack(_LOCAL_MAGIC, *fields), name, data))
    central = _CENTRAL.pack(_CENTRAL_MAGIC, _MADE_ON_UNIX, *fields, 0, 0, 0, _FILE_MODE, position)
    return local, central + name
