"""How many files the process may open, and how many connections fit in there."""

import contextlib
import resource


def raise_file_limit() -> int:
    """Take all descriptors that the system grants; return how many that is."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard or hard == resource.RLIM_INFINITY:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def connection_count_max(wanted: int, file_limit: int) -> int:
    """As many as wanted, but at most half of the descriptors: segments need the rest."""
    if file_limit == resource.RLIM_INFINITY:
        return wanted
    return max(1, min(wanted, file_limit // 2))
