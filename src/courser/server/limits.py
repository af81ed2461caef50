"""What the system grants: how many files, how many connections, which address."""

import contextlib
import resource
import socket

from courser.errors import AddressRefused
from courser.server.configuration.kinds import Address


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


def check_address(address: Address) -> None:
    """See whether it could be listened on, without doing so. A port of 0 is always to be had.

    Raises:
        AddressRefused: it is in use, not ours, or forbidden.
    """
    try:
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, kind, protocol, _, place in found[:1]:
            with socket.socket(family, kind, protocol) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(place)
    except OSError as error:
        raise AddressRefused(str(address), error) from error
    except UnicodeError as error:
        raise AddressRefused(str(address), OSError(None, str(error))) from error
