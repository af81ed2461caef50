"""How the tests' own client reads the bytes of a classic reply."""

import struct
from typing import Any


class Cursor:
    """What a client reads a reply with."""

    def __init__(self, data: bytes, first_id: int) -> None:
        self.data = data
        self.position = 0
        self.first_id = first_id

    def unpack(self, layout: str) -> tuple[Any, ...]:
        values = struct.unpack_from("<" + layout, self.data, self.position)
        self.position += struct.calcsize("<" + layout)
        return values

    def number(self, layout: str) -> int:
        value: int = self.unpack(layout)[0]
        return value

    def optional(self) -> int | None:
        """A flag, and a number that counts only if the flag is set."""
        is_there, value = self.unpack("?Q")
        return value if is_there else None

    def identity(self) -> int:
        return self.number("I") - self.first_id

    def take(self, size: int) -> bytes:
        assert self.position + size <= len(self.data)
        self.position += size
        return self.data[self.position - size : self.position]

    def text8(self) -> str:
        return self.take(self.number("B")).decode()

    def text32(self) -> str:
        return self.take(self.number("I")).decode()

    @property
    def is_at_end(self) -> bool:
        return self.position == len(self.data)
