"""Messages whose payload says which offset they must have: each partition has one producer."""

import struct

SIZE = 400
"""Bytes of a payload."""
BATCH_COUNT = 50
"""Messages of a request."""
_NUMBER = struct.Struct("<Q")
_FILLER = bytes(range(256)) * 2


def payload_of(number: int) -> bytes:
    return _NUMBER.pack(number) + _FILLER[: SIZE - _NUMBER.size]


def number_of(payload: bytes) -> int:
    """The number of a message; -1 if it is not one of ours."""
    if len(payload) != SIZE or payload[_NUMBER.size :] != _FILLER[: SIZE - _NUMBER.size]:
        return -1
    number: int = _NUMBER.unpack_from(payload)[0]
    return number
