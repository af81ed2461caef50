"""Message keys: which partition a key selects, and the user header that stores it.

The server, the client and the Spark sink must agree on both. A client that computes the partition itself must reach the
one that the server would choose, or messages with one key would end up in two partitions and lose their order.

Of the messages with one key, the latest counts, by ``LATEST_BY``. Condensing removes the others, and the job
``compact`` leaves them out. If the latest has no payload, it deletes its key.
"""

import xxhash

from courser.model.buffers import Buffer
from courser.records.user_headers import HeaderKind, UserHeader, is_typed, iterate_user_headers

KEY_HEADER = b"courser.key"
"""Name of the user header that holds a message's key, as raw bytes: docs/formats/batch.md."""

LATEST_BY = ("timestamp", "partition", "offset")
"""What decides which message of a key is the latest. In a partition that is the offset: times never go back. If the
number of partitions was changed, a key may be in several, and the time of storing decides."""

hash_of_key = xxhash.xxh32_intdigest
"""The hash of a key: xxHash32 with seed 0, as in the SDKs. Take it modulo the number of partitions."""


def partition_of_key(key: bytes, partition_count: int) -> int:
    """The partition that messages with this key go to."""
    return hash_of_key(key) % partition_count


def key_header(key: bytes) -> UserHeader:
    """The user header that stores a key. It must have 1 to ``FIELD_SIZE_MAX`` bytes."""
    return UserHeader(KEY_HEADER, key, HeaderKind.STRING, HeaderKind.RAW)


def key_of(user_headers: Buffer) -> bytes | None:
    """The key in the headers of a message; None if there is no key, or if the headers cannot be read."""
    block = bytes(user_headers)
    if KEY_HEADER not in block or not is_typed(block):
        return None
    return next((header.value for header in iterate_user_headers(block) if header.key == KEY_HEADER), None)


def text_of_key(key: bytes) -> str:
    """A key for people: as text if it is text, else as hexadecimal digits."""
    try:
        return key.decode()
    except UnicodeDecodeError:
        return key.hex()
