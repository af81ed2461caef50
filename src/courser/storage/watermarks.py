"""How far a partition is written and synced."""

from typing import NamedTuple


class Mark(NamedTuple):
    """A point in the log of a partition. A tuple, because one is created per append."""

    offset: int
    """The offset of the next message."""
    message_count: int
    """Messages appended since the partition was opened."""
    size: int
    """Bytes appended since the partition was opened."""


_new_mark = tuple.__new__
"""Creates a ``Mark`` faster than its constructor."""


class Watermarks:
    """``synced`` is never larger than ``written``.

    Up to ``written``, offsets are assigned and the kernel has the bytes. Everything up to ``synced`` survives a power
    cut.
    """

    __slots__ = ("synced", "written")

    def __init__(self, offset: int) -> None:
        self.written = self.synced = Mark(offset, 0, 0)

    def write(self, message_count: int, size: int) -> None:
        """Note that the next ``message_count`` messages are written."""
        offset, count, written_size = self.written
        self.written = _new_mark(Mark, (offset + message_count, count + message_count, written_size + size))

    def sync(self, mark: Mark) -> None:
        """Note that everything up to ``mark`` is synced."""
        assert self.synced.offset <= mark.offset <= self.written.offset, (self.synced, mark, self.written)
        self.synced = mark
