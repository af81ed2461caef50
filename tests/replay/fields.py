"""A body taken apart: fields that know how they may differ from run to run, in records, in lists of records."""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto


class Kind(Enum):
    """How a field of the recording relates to the same field here."""

    SAME = auto()
    """The same bytes."""
    NUMBERS = auto()
    """The same bytes; a list of numbers for a reader."""
    VARIES = auto()
    """Masked: it depends on the machine, the hour or the run."""
    TIME = auto()
    """Masked, as long as it is a time of our run; a later request may ask for this very time."""
    ID = auto()
    """A number that a server gave out: ours is another one, always the same for the same thing."""
    NEW_ID = auto()
    """The first sight of such a number."""
    SEEN_ID = auto()
    """A number that nobody announces: the first sight decides."""
    PARTITION = auto()
    """The same number, and it says which partition the fields beside it are about."""
    OFFSET = auto()
    """Of a message: ours may be higher, since numbering goes on after a purge."""
    CURRENT_OFFSET = auto()
    """Of the newest message of a partition, 0 if there never was one."""
    SIZE = auto()
    """Bytes of stored messages: not counted alike."""
    TOKEN = auto()
    """A secret: ours is another one."""
    MESSAGE_ID = auto()
    """As sent, or made by the server if the client sent 0."""
    CHECKSUM = auto()
    """Of the message that it stands in: right or wrong, as the comparison of bytes would be idle."""
    ZIP = auto()
    """An archive: the same entries in the same order, compressed alike."""


Key = tuple[str | int, ...]
"""Names a thing on the real server: ("stream", 3), ("topic", 3, 0), ("group", 3, 0, 1), ("partition", 3, 0, 2) ..."""


@dataclass(frozen=True)
class Field:
    """Some bytes, and what is known about them."""

    data: bytes
    kind: Kind = Kind.SAME
    key: Key | None = None
    """The thing that an id names, or the partition that an offset belongs to; None if the real server had none."""

    @property
    def value(self) -> int:
        """The bytes as a number."""
        return int.from_bytes(self.data, "little")

    def __str__(self) -> str:
        if self.kind is Kind.NUMBERS:
            return " ".join(map(str, struct.unpack(f"<{len(self.data) // 4}I", self.data[: len(self.data) // 4 * 4])))
        return str(self.value) if len(self.data) in {1, 2, 4, 8} else self.data.hex()


class Record(dict[str, "Field | list[Record]"]):
    """Named fields and lists of records, in the order of their bytes."""

    def field(self, name: str) -> Field:
        """The field of this name, which must not be a list."""
        field = self[name]
        assert isinstance(field, Field)
        return field

    def records(self, name: str) -> "list[Record]":
        """The list of this name."""
        records = self[name]
        assert isinstance(records, list)
        return records

    def fields(self) -> Iterator[Field]:
        """All fields, also those of the lists, in the order of their bytes."""
        for part in self.values():
            if isinstance(part, Field):
                yield part
            else:
                for record in part:
                    yield from record.fields()

    @property
    def size(self) -> int:
        """Bytes of all fields."""
        return sum(len(field.data) for field in self.fields())


class BodyCut(Exception):
    """A body ends before its layout does."""


class Body:
    """A cursor over the bytes of a body."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    @property
    def remaining(self) -> int:
        """Bytes that were not taken yet."""
        return len(self._data) - self._position

    def take(self, size: int) -> bytes:
        """The next bytes."""
        if size > self.remaining:
            raise BodyCut
        self._position += size
        return self._data[self._position - size : self._position]

    def peek(self, size: int) -> int:
        """The number that the next bytes make, without taking them."""
        if size > self.remaining:
            raise BodyCut
        return int.from_bytes(self._data[self._position : self._position + size], "little")

    def field(self, size: int, kind: Kind = Kind.SAME, key: Key | None = None) -> Field:
        """A field of so many bytes."""
        return Field(self.take(size), kind, key)

    def u8(self, kind: Kind = Kind.SAME, key: Key | None = None) -> Field:
        """One byte."""
        return self.field(1, kind, key)

    def u32(self, kind: Kind = Kind.SAME, key: Key | None = None) -> Field:
        """Four bytes."""
        return self.field(4, kind, key)

    def u64(self, kind: Kind = Kind.SAME, key: Key | None = None) -> Field:
        """Eight bytes."""
        return self.field(8, kind, key)

    def text8(self, kind: Kind = Kind.SAME) -> Field:
        """Bytes behind their length in one byte."""
        return self.field(1 + self.peek(1), kind)

    def text32(self, kind: Kind = Kind.SAME) -> Field:
        """Bytes behind their length in four bytes."""
        return self.field(4 + self.peek(4), kind)

    def rest(self, kind: Kind = Kind.SAME) -> Field:
        """Everything that is left."""
        return self.field(self.remaining, kind)
