"""Classic messages without their user headers, for clients that cannot step over them."""

from struct import Struct

from courser.records.checksum import crc32, xxh3
from courser.records.classic_layout import Dialect

_LENGTHS = Struct("<II")
"""user headers, payload"""
_LENGTHS_POSITION = 48
_CHECKSUM = Struct("<Q")


def drop_user_headers(messages: memoryview, dialect: Dialect) -> int:
    """Take the user headers out of messages that stand behind one another, in place.

    Returns:
        Bytes of what is left, from the beginning on. What stands behind it is of no use.
    """
    source = target = 0
    while source < len(messages):
        user_headers_length, payload_length = _LENGTHS.unpack_from(messages, source + _LENGTHS_POSITION)
        size = dialect.header_size + payload_length
        if source > target:
            messages[target : target + size] = messages[source : source + size]
        if user_headers_length:
            _LENGTHS.pack_into(messages, target + _LENGTHS_POSITION, 0, payload_length)
            covered = messages[target + _CHECKSUM.size : target + size]
            _CHECKSUM.pack_into(messages, target, crc32(covered) if dialect is Dialect.SDK_0_5 else xxh3(covered))
        source += size + user_headers_length
        target += size
    return target
