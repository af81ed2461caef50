"""The checksums of the formats, and nothing else."""

import zlib

import xxhash

from courser.model.buffers import Buffer

xxh3 = xxhash.xxh3_64_intdigest
"""XXH3-64, seed 0: every checksum that Courser and the SDKs from 0.6 on use. Taken as it is: it is called often."""


def crc32(data: Buffer) -> int:
    """CRC-32 (IEEE), as SDK 0.5 expects it."""
    return zlib.crc32(data)
