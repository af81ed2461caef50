"""Limits of the operating system: open files, connections, and the address to listen on."""

import contextlib
import errno
import resource
import socket
from pathlib import Path

from courser.errors import AddressRefused, StartRefused
from courser.model.setting_kinds import Address
from courser.storage.paths import PARTITIONS, STREAMS, TOPICS

FILES_OF_THE_SERVER = 64
"""Descriptors that a server needs in addition to those of partitions and connections: its log, journal, lock and
sockets, and a few for each thread that works on files."""


def raise_file_limit() -> int:
    """Raise the limit of open files as far as the system allows, and return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard or hard == resource.RLIM_INFINITY:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def connection_count_max(wanted: int, file_limit: int) -> int:
    """The wanted number, but at most half of the descriptors: segments need the rest."""
    if file_limit == resource.RLIM_INFINITY:
        return wanted
    return max(1, min(wanted, file_limit // 2))


def needs_more_files(count: int, file_limit: int) -> bool:
    """Whether ``count`` partitions and connections may need more descriptors than the limit allows."""
    return file_limit != resource.RLIM_INFINITY and FILES_OF_THE_SERVER + count > file_limit


def explain_file_limit(error: BaseException, data_directory: Path) -> StartRefused | None:
    """Turn an error that was caused by a lack of descriptors into a refusal to start; None for other errors."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, OSError):
        cause = getattr(cause, "cause", None) or cause.__cause__
    if cause is None or cause.errno not in (errno.EMFILE, errno.ENFILE):
        return None
    if cause.errno == errno.ENFILE:
        remedy = "raise fs.file-max with sysctl, or stop programs that hold many files open"
        return StartRefused(data_directory, "the system-wide limit of open files is reached", remedy)
    count = _partition_count(data_directory)
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    reason = (
        f"too many open files: the limit is {limit}, but the server needs at least {FILES_OF_THE_SERVER + count}: "
        f"{FILES_OF_THE_SERVER} for itself and one for each partition, plus one for each connection"
    )
    return StartRefused(data_directory, reason, "raise the limit: ulimit -n, or LimitNOFILE= in the systemd unit")


def _partition_count(data_directory: Path) -> int:
    """The number of partition directories; 0 if no descriptor is left to list them."""
    try:
        return sum(1 for _ in data_directory.glob(f"{STREAMS}/*/{TOPICS}/*/{PARTITIONS}/*"))
    except OSError:
        return 0


def check_address(address: Address, key: str = "tcp.address", *, is_udp: bool = False) -> None:
    """Check that the server could listen on the address, without listening. Port 0 is always available.

    Args:
        address: the address.
        key: the configuration key that sets it.
        is_udp: whether to listen for datagrams.

    Raises:
        AddressRefused: the address is in use, not local, or not permitted.
    """
    wanted = socket.SOCK_DGRAM if is_udp else socket.SOCK_STREAM
    try:
        found = socket.getaddrinfo(address.host, address.port, type=wanted, flags=socket.AI_PASSIVE)
        for family, kind, protocol, _, place in found[:1]:
            with socket.socket(family, kind, protocol) as probe:
                if not is_udp:
                    # For datagrams it would allow several sockets on one port.
                    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(place)
    except OSError as error:
        raise AddressRefused(str(address), error, key) from error
    except UnicodeError as error:
        raise AddressRefused(str(address), OSError(None, str(error)), key) from error
