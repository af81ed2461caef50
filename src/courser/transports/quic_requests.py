"""Requests that arrive on the streams of QUIC connections, one on each.

A stream is collected here until the client has ended it. The library confirms bytes to the client as they arrive, so a
client cannot be told to wait: what all streams may hold is one budget, and whoever would exceed it is refused.
"""

from collections import deque
from dataclasses import dataclass, field

from courser.transports.settings import ConnectionSettings


class StreamRefused(Exception):
    """The client sends what it must not: its connection is closed with this reason."""


class StreamMemory:
    """How many bytes the streams of all connections hold."""

    def __init__(self, size_max: int) -> None:
        self.size_max = size_max
        self.size = 0


@dataclass(slots=True, eq=False)
class _Stream:
    since: int
    """When its first bytes came, on the monotonic clock."""
    data: bytearray = field(default_factory=bytearray)


class StreamedRequests:
    """The streams of one connection: those that are under way, and those that wait for their turn."""

    def __init__(self, settings: ConnectionSettings, memory: StreamMemory) -> None:
        self._settings = settings
        self._memory = memory
        self._streams: dict[int, _Stream] = {}
        """In the order in which they began."""
        self._complete: deque[tuple[int, bytearray]] = deque()
        self._size = 0
        """Bytes of all of them."""

    @property
    def waiting_count(self) -> int:
        """Requests that are complete and wait for their turn."""
        return len(self._complete)

    def received(self, number: int, data: bytes, now: int, *, is_stranger: bool) -> None:
        """Bytes of a stream came.

        Raises:
            StreamRefused: they exceed a limit.
        """
        settings = self._settings
        stream = self._streams.setdefault(number, _Stream(now))
        if is_stranger and self._size + len(data) > settings.login_frame_size_max:
            raise StreamRefused(f"more than {settings.login_frame_size_max} bytes before a login")
        if len(stream.data) + len(data) > settings.frame_size_max:
            raise StreamRefused(f"a request of more than {settings.frame_size_max} bytes")
        if self._memory.size + len(data) > self._memory.size_max:
            raise StreamRefused(f"requests over QUIC take all of the {self._memory.size_max} bytes that they may")
        stream.data += data
        self._size += len(data)
        self._memory.size += len(data)

    def ended(self, number: int) -> None:
        """The client has sent all of a stream."""
        stream = self._streams.pop(number, None)
        if stream is not None:
            self._complete.append((number, stream.data))

    def dropped(self, number: int) -> None:
        """The client gave a stream up. A request that is complete is carried out anyway."""
        stream = self._streams.pop(number, None)
        if stream is not None:
            self._free(len(stream.data))

    def next(self) -> tuple[int, bytearray] | None:
        """The next complete request, and the number of its stream. Its memory is the caller's from now on."""
        if not self._complete:
            return None
        number, data = self._complete.popleft()
        self._free(len(data))
        return number, data

    def slowest(self) -> tuple[int, int] | None:
        """Since when the oldest stream is under way, and how many bytes of it are here."""
        stream = next(iter(self._streams.values()), None)
        return None if stream is None else (stream.since, len(stream.data))

    def close(self) -> None:
        """Give all memory back."""
        self._streams.clear()
        self._complete.clear()
        self._free(self._size)

    def _free(self, size: int) -> None:
        self._size -= size
        self._memory.size -= size
