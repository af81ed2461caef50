"""The codecs of stored bodies: compress, and decompress to exactly the expected size.

gzip is part of Python. The others come from one library, cramjam (the extra ``compression``), which is imported when it
is first needed. Decompression never produces more bytes than the caller expects, whatever the data says.
"""

import importlib
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from courser.errors import CourserError, ErrorCode
from courser.model.buffers import Buffer
from courser.records.layout import Compression

_GZIP_LEVEL = 1
"""Level 6 takes three times as long, for a fifth less."""
_GZIP_FORMAT = 31
"""``wbits`` of zlib for a gzip header, and the largest window."""
_ZSTD_LEVEL = 3
"""The default of zstd."""
_LIBRARY = "cramjam"


class CodecMissing(CourserError):
    """The library of a compression algorithm is not installed."""

    code = ErrorCode.CODEC_MISSING

    def __init__(self, algorithm: str, library: str) -> None:
        super().__init__(algorithm, library)
        self.algorithm = algorithm
        self.library = library

    def __str__(self) -> str:
        return (
            f"the compression algorithm {self.algorithm} needs the Python package {self.library}, which is not "
            'installed; install it with: pip install "courser[compression]"'
        )


class BadCompression(Exception):
    """Data that its codec cannot decompress to the expected size."""


@dataclass(frozen=True, slots=True)
class _Codec:
    compress: Callable[[Buffer], Buffer]
    decompress_into: Callable[[Buffer, memoryview], int]
    """Returns how many bytes were written. Raises ``BadCompression`` if they do not fit."""


def check_available(compression: Compression) -> None:
    """Raise ``CodecMissing`` if the library of a codec is not installed."""
    if compression is not Compression.NONE:
        _codec(compression)


def compress(compression: Compression, body: Buffer) -> Buffer:
    """The body in compressed form. Raises ``CodecMissing``."""
    return _codec(compression).compress(body)


def decompress(compression: Compression, data: Buffer, size: int) -> memoryview:
    """The ``size`` bytes that were compressed.

    Raises:
        BadCompression: the data is damaged, or decompresses to another size.
        CodecMissing: the library is not installed.
    """
    # Not a bytearray, which would be zeroed first.
    body = np.empty(size, np.uint8).data
    found = _codec(compression).decompress_into(data, body)
    if found != size:
        raise BadCompression(f"the body decompresses to {found} bytes instead of {size}")
    return body


def _codec(compression: Compression) -> _Codec:
    if compression is Compression.GZIP:
        return _Codec(_gzip, _gunzip_into)
    name = compression.name.lower()
    try:
        library = importlib.import_module(_LIBRARY)
    except ImportError:
        raise CodecMissing(name, _LIBRARY) from None
    module = getattr(library, name)
    match compression:
        case Compression.SNAPPY:
            return _Codec(_compressing(module.compress_raw), _guarded(library, module.decompress_raw_into))
        case Compression.LZ4:
            return _Codec(
                _compressing(lambda body: module.compress_block(body, store_size=False)),
                _guarded(library, lambda data, into: module.decompress_block_into(data, into, output_len=len(into))),
            )
        case _:
            return _Codec(
                _compressing(lambda body: module.compress(body, level=_ZSTD_LEVEL)),
                _guarded(library, module.decompress_into),
            )


def _compressing(compress_buffer: Callable[[Buffer], Any]) -> Callable[[Buffer], Buffer]:
    return lambda body: memoryview(compress_buffer(body))


def _guarded(library: Any, decompress_into: Callable[[Buffer, memoryview], int]) -> Callable[[Buffer, memoryview], int]:
    def guarded(data: Buffer, into: memoryview) -> int:
        try:
            return decompress_into(data, into)
        except library.DecompressionError as error:
            raise BadCompression(f"the body cannot be decompressed: {error}") from None

    return guarded


def _gzip(body: Buffer) -> bytes:
    compressor = zlib.compressobj(_GZIP_LEVEL, zlib.DEFLATED, _GZIP_FORMAT)
    return compressor.compress(body) + compressor.flush()


def _gunzip_into(data: Buffer, into: memoryview) -> int:
    decompressor = zlib.decompressobj(_GZIP_FORMAT)
    try:
        # One byte more than expected shows that there is more.
        found = decompressor.decompress(data, len(into) + 1)
    except zlib.error as error:
        raise BadCompression(f"the body cannot be decompressed: {error}") from None
    if not decompressor.eof or decompressor.unused_data:
        raise BadCompression("the body is not one complete gzip stream of the expected size")
    into[: len(found)] = found[: len(into)]
    return len(found)
