"""Return freed memory to the operating system.

The C library keeps the memory that a process frees, in case the process needs it again. Without this module a server
would stay as large as it was in its busiest minute: a hundred slow readers once need half a gigabyte.
"""

import ctypes
from collections.abc import Callable

_M_ARENA_MAX = -8


def share_one_heap() -> None:
    """Make all threads allocate from one heap. Call this before the first thread starts.

    Threads take turns because of the interpreter lock, so separate heaps gain nothing. The top of a thread's heap is
    never returned: a login needs 19 MiB, and each thread that ever hashed a password would keep them.
    """
    set_option = _find("mallopt")
    if set_option is not None:
        set_option(_M_ARENA_MAX, 1)


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
