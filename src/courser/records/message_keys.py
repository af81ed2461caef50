"""Message keys: which partition a key selects, and the user header that stores it.

The server, the client and the Spark sink must agree on both. A client that computes the partition itself must reach the
one that the server would choose, or messages with one key would end up in two partitions and lose their order.
"""

import xxhash

from courser.records.user_headers import HeaderKind, UserHeader

KEY_HEADER = b"courser.key"
"""Name of the user header that holds a message's key, as raw bytes: docs/formats/batch.md."""

hash_of_key = xxhash.xxh32_intdigest
"""The hash of a key: xxHash32 with seed 0, as in the SDKs. Take it modulo the number of partitions."""


def partition_of_key(key: bytes, partition_count: int) -> int:
    """The partition that messages with this key go to."""
    return hash_of_key(key) % partition_count


def key_header(key: bytes) -> UserHeader:
    """The user header that stores a key. It must have 1 to ``FIELD_SIZE_MAX`` bytes."""
    return UserHeader(KEY_HEADER, key, HeaderKind.STRING, HeaderKind.RAW)


def text_of_key(key: bytes) -> str:
    """A key for people: as text if it is text, else as hexadecimal digits."""
    try:
        return key.decode()
    except UnicodeDecodeError:
        return key.hex()
