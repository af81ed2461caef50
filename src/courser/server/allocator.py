"""How the C library keeps freed memory, and when it returns it to the operating system.

It keeps the memory that a process frees, in case the process needs it again. Between two requests this is right: fresh
memory costs a page fault for every 4 KiB. But without this module a server would stay as large as it was in its busiest
minute: a hundred slow readers once need half a gigabyte.
"""

import ctypes
from collections.abc import Callable

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8
_MIB = 1024 * 1024
_KEPT_SIZE_MAX = 64 * _MIB
"""Bytes that are free at the end of the heap before they are returned at once, and not by the next ``find_trim``."""
_MAPPED_SIZE_MIN = 32 * _MIB
"""Bytes from which a block is mapped on its own, and returned as soon as it is freed. By itself, glibc would not go
above this value either."""


def prepare_heap() -> None:
    """Make all threads allocate from one heap, which keeps what it needs again. Call it before the first thread starts.

    Threads take turns because of the interpreter lock, so separate heaps gain nothing. The top of a thread's heap is
    never returned: a login needs 19 MiB, and each thread that ever hashed a password would keep them.

    glibc learns how much to keep from the largest block that was ever freed. In the process that hashes passwords this
    is enough for every reply. The others would return the memory of a large reply, and fault it in for the next one.
    """
    set_option = _find("mallopt")
    if set_option is not None:
        set_option(_M_ARENA_MAX, 1)
        set_option(_M_MMAP_THRESHOLD, _MAPPED_SIZE_MIN)
        set_option(_M_TRIM_THRESHOLD, _KEPT_SIZE_MAX)


def find_trim() -> Callable[[], None] | None:
    """Return a function that gives unused memory back to the system; None if the C library is not glibc.

    It takes 30 ms for a gigabyte, and next to nothing if no memory is unused.
    """
    trim = _find("malloc_trim")
    if trim is None:
        return None

    def give_back() -> None:
        trim(0)

    return give_back


def _find(name: str) -> Callable[..., int] | None:
    try:
        function: Callable[..., int] = getattr(ctypes.CDLL(None), name)
    except (OSError, AttributeError):
        return None
    return function
