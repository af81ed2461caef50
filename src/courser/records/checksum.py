"""The checksums of the formats. Not wrapped, because they are called often."""

import zlib

import xxhash

xxh3 = xxhash.xxh3_64_intdigest
"""XXH3-64, seed 0: the checksum of Courser and of SDKs from 0.6 on."""

crc32 = zlib.crc32
"""CRC-32 (IEEE), the checksum of SDK 0.5."""
