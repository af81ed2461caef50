"""User headers: the block of key-value pairs after a payload.

There are two forms. SDKs from 0.7 on send the *typed* form, which is also the stored form: every entry is
``key_kind u8 | key_length u32 | key | value_kind u8 | value_length u32 | value``. The *untyped* form of SDKs 0.5 and
0.6 has no ``key_kind``: keys were always text. Only the empty block has both forms: in the typed form the second byte
is the lowest byte of the length of the first key, which is never 0; in the untyped form it is the second byte of that
length, which is below 256, so it is always 0.

A block may have neither form, because clients can encrypt it. Such a block is passed on unchanged.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from struct import Struct
from typing import TypeAlias

from courser.errors import ErrorCode, InvalidBatch
from courser.model.buffers import Buffer

FIELD_SIZE_MAX = 255
"""Bytes of a key and of a value; neither may be empty."""
USER_HEADERS_SIZE_MAX = 100_000
"""Bytes of a block that a classic client may send."""

_LENGTH = Struct("<I")
_FIELD = Struct("<BI")
"""kind, length"""
_unpack_length = _LENGTH.unpack_from


class HeaderKind(IntEnum):
    """The type of a key or a value. Numbers are little-endian."""

    RAW = 1
    STRING = 2
    BOOL = 3
    INT8 = 4
    INT16 = 5
    INT32 = 6
    INT64 = 7
    INT128 = 8
    UINT8 = 9
    UINT16 = 10
    UINT32 = 11
    UINT64 = 12
    UINT128 = 13
    FLOAT32 = 14
    FLOAT64 = 15

    @property
    def width(self) -> int:
        """Size of a value of this kind in bytes; 0 for kinds of any length."""
        return (0, 0, 1, 1, 2, 4, 8, 16, 1, 2, 4, 8, 16, 4, 8)[self - 1]


_KIND_MAX = int(HeaderKind.FLOAT64)
_STRING_KIND = bytes([HeaderKind.STRING])


_FLOATS = {HeaderKind.FLOAT32: Struct("<f"), HeaderKind.FLOAT64: Struct("<d")}
_SIGNED = frozenset({HeaderKind.INT8, HeaderKind.INT16, HeaderKind.INT32, HeaderKind.INT64, HeaderKind.INT128})
HeaderValue: TypeAlias = str | bytes | bool | int | float
"""The value of a header. Its kind is stored with it."""


@dataclass(frozen=True, slots=True)
class UserHeader:
    """One entry. For clients and tools: the server never parses a block that it does not have to convert."""

    key: bytes
    value: bytes
    key_kind: HeaderKind = HeaderKind.STRING
    value_kind: HeaderKind = HeaderKind.RAW

    @property
    def name(self) -> str:
        """The key as text; raw bytes become hexadecimal digits."""
        return self.key.hex() if self.key_kind is HeaderKind.RAW else str(read_value(self.key_kind, self.key))

    @classmethod
    def of_text(cls, key: str, value: str) -> "UserHeader":
        """The most common entry: text to text."""
        return cls(key.encode(), value.encode(), HeaderKind.STRING, HeaderKind.STRING)


def read_value(kind: HeaderKind, data: bytes) -> HeaderValue:
    """A header's value as a Python value; bytes if they do not match their kind."""
    if kind is HeaderKind.RAW or (kind.width and len(data) != kind.width):
        return data
    if kind is HeaderKind.STRING:
        return data.decode(errors="replace")
    if kind is HeaderKind.BOOL:
        return data != b"\0"
    if kind in _FLOATS:
        value: float = _FLOATS[kind].unpack(data)[0]
        return value
    return int.from_bytes(data, "little", signed=kind in _SIGNED)


def build_user_headers(headers: Iterable[UserHeader]) -> bytes:
    """Encode entries in the typed form.

    Raises:
        InvalidBatch: a key or value is empty, too long or has the wrong size for its kind, or the block is too large.
    """
    pieces: list[bytes] = []
    for number, header in enumerate(headers):
        for name, kind, field in (("key", header.key_kind, header.key), ("value", header.value_kind, header.value)):
            _check_field(number, name, kind, field)
            pieces += (_FIELD.pack(kind, len(field)), field)
    block = b"".join(pieces)
    if len(block) > USER_HEADERS_SIZE_MAX:
        raise InvalidBatch(
            ErrorCode.TOO_BIG_USER_HEADERS,
            f"{len(block)} bytes of user headers are more than the limit of {USER_HEADERS_SIZE_MAX}",
        )
    return block


def _check_field(number: int, name: str, kind: HeaderKind, field: bytes) -> None:
    if not 1 <= len(field) <= FIELD_SIZE_MAX:
        reason = f"the {name} of user header {number} must have 1 to {FIELD_SIZE_MAX} bytes, not {len(field)}"
        raise InvalidBatch(ErrorCode.INVALID_COMMAND, reason)
    if kind.width and len(field) != kind.width:
        reason = f"the {name} of user header {number} has {len(field)} bytes, but {kind.name} needs {kind.width}"
        raise InvalidBatch(ErrorCode.INVALID_COMMAND, reason)


def iterate_user_headers(block: Buffer) -> Iterator[UserHeader]:
    """The entries of a typed block, in order.

    Raises:
        InvalidBatch: the block does not have the typed form; nothing was yielded.
    """
    data = bytes(block)
    starts = _entry_starts(data, key_kind_size=1)
    if starts is None:
        raise InvalidBatch(ErrorCode.INVALID_COMMAND, "the user headers have an unknown form (are they encrypted?)")
    return (_entry_at(data, start) for start in starts)


def _entry_at(block: bytes, start: int) -> UserHeader:
    key_kind, key_length = _FIELD.unpack_from(block, start)
    key_position = start + _FIELD.size
    value_start = key_position + key_length
    value_kind, value_length = _FIELD.unpack_from(block, value_start)
    value_position = value_start + _FIELD.size
    return UserHeader(
        key=block[key_position:value_start],
        value=block[value_position : value_position + value_length],
        key_kind=HeaderKind(key_kind),
        value_kind=HeaderKind(value_kind),
    )


def is_typed(block: Buffer) -> bool:
    """Whether the whole block has the typed form. Only lengths and kinds are checked, not the values."""
    return _entry_starts(bytes(block), key_kind_size=1) is not None


def is_untyped(block: Buffer) -> bool:
    """Whether the whole block has the untyped form."""
    return _entry_starts(bytes(block), key_kind_size=0) is not None


def typed_from_untyped(block: bytes) -> bytes:
    """Convert a block of SDK 0.5 or 0.6 to the stored form: every key becomes a text key.

    A block that does not have the untyped form is returned unchanged.
    """
    starts = _entry_starts(block, key_kind_size=0)
    if not starts:
        return block
    ends = [*starts[1:], len(block)]
    return b"".join([_STRING_KIND + block[start:end] for start, end in zip(starts, ends, strict=True)])


def untyped_from_typed(block: bytes) -> bytes:
    """Convert a stored block for SDK 0.5 or 0.6: the kinds of the keys are dropped.

    A key that is not text keeps its bytes: these clients see, for example, the number 7 as a key of four characters,
    and get an error for a key that is not valid UTF-8. A block that does not have the typed form is returned unchanged:
    it is encrypted, or from a client that sent the untyped form with a new header.
    """
    starts = _entry_starts(block, key_kind_size=1)
    if not starts:
        return block
    ends = [*starts[1:], len(block)]
    return b"".join([block[start + 1 : end] for start, end in zip(starts, ends, strict=True)])


def _entry_starts(block: bytes, *, key_kind_size: int) -> list[int] | None:
    """Where each entry starts, or None if entries do not fill the block exactly."""
    starts: list[int] = []
    position = 0
    size = len(block)
    # From the start of an entry to its key, and from the end of a key to its value.
    before_key = key_kind_size + _LENGTH.size
    before_value = _FIELD.size
    while position < size:
        starts.append(position)
        key_position = position + before_key
        if key_position > size or (key_kind_size and not 1 <= block[position] <= _KIND_MAX):
            return None
        (key_length,) = _unpack_length(block, position + key_kind_size)
        kind_position = key_position + key_length
        value_position = kind_position + before_value
        if not 1 <= key_length <= FIELD_SIZE_MAX or value_position > size or not 1 <= block[kind_position] <= _KIND_MAX:
            return None
        (value_length,) = _unpack_length(block, kind_position + 1)
        position = value_position + value_length
        if not 1 <= value_length <= FIELD_SIZE_MAX or position > size:
            return None
    return starts
