"""Memory that was freed goes back to the system.

The C library keeps what a process frees, in case that it is needed again. So a server would for ever be as large as in
its busiest minute: a hundred slow readers need half a gigabyte, once.
"""

import ctypes
from collections.abc import Callable

_M_ARENA_MAX = -8


def share_one_heap() -> None:
    """Let all threads allocate from the same heap. To be called before there are any.

    Threads here take turns anyway, and the end of a heap that belongs to a thread is never given back: a login needs 19
    MiB, and each thread that once looked at a password would keep them.
    """
    set_option = _find("mallopt")
    if set_option is not None:
        set_option(_M_ARENA_MAX, 1)


def find_trim() -> Callable[[], None] | None:
    """What gives back all that is not in use; None where the C library is not glibc.

    It takes 30 ms for a gigabyte, and next to nothing if there is nothing.
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
