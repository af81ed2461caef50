"""How far a partition has got: three marks, one order, one place that moves them."""

from typing import NamedTuple


class Mark(NamedTuple):
    """A point in the life of a partition. One is made per append, hence no dataclass."""

    offset: int
    """The next message's."""
    message_count: int
    """Messages appended since the partition was opened."""
    size: int
    """Bytes appended since the partition was opened."""


_new_mark = tuple.__new__
"""``Mark(...)`` without its steps in between."""


class Watermarks:
    """``synced`` <= ``written`` <= ``accepted``, always.

    accepted: offsets were assigned. written: the kernel has the bytes. synced: a power cut does not take them, nor
    anything before them.
    """

    __slots__ = ("accepted", "synced", "written")

    def __init__(self, offset: int) -> None:
        self.accepted = self.written = self.synced = Mark(offset, 0, 0)

    def accept(self, message_count: int, size: int) -> None:
        """Offsets are given to the next ``message_count`` messages."""
        assert self.accepted is self.written, "one append at a time"
        offset, count, written_size = self.accepted
        self.accepted = _new_mark(Mark, (offset + message_count, count + message_count, written_size + size))

    def withdraw(self) -> None:
        """The accepted messages could not be written: nobody was told of their offsets."""
        self.accepted = self.written

    def write(self) -> None:
        """The accepted messages are written."""
        self.written = self.accepted

    def sync(self, mark: Mark) -> None:
        """All up to ``mark`` is synced."""
        assert self.synced.offset <= mark.offset <= self.written.offset, (self.synced, mark, self.written)
        self.synced = mark
