"""The checksums of the formats."""

import zlib

import xxhash

from courser.model.buffers import Buffer

xxh3 = xxhash.xxh3_64_intdigest
"""XXH3-64, seed 0: the checksum of Courser and of SDKs from 0.6 on. Not wrapped, because it is called often."""


def crc32(data: Buffer) -> int:
    """CRC-32 (IEEE), the checksum of SDK 0.5."""
    return zlib.crc32(data)
