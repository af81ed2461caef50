"""How far a partition has got: two marks, one order, one place that moves them."""

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
    """``synced`` <= ``written``, always.

    written: offsets were assigned, and the kernel has the bytes. synced: a power cut does not take them, nor anything
    before them.
    """

    __slots__ = ("synced", "written")

    def __init__(self, offset: int) -> None:
        self.written = self.synced = Mark(offset, 0, 0)

    def write(self, message_count: int, size: int) -> None:
        """The next ``message_count`` messages are written."""
        offset, count, written_size = self.written
        self.written = _new_mark(Mark, (offset + message_count, count + message_count, written_size + size))

    def sync(self, mark: Mark) -> None:
        """All up to ``mark`` is synced."""
        assert self.synced.offset <= mark.offset <= self.written.offset, (self.synced, mark, self.written)
        self.synced = mark
