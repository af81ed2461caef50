"""Requests that arrive on the streams of QUIC connections, one on each.

A stream is collected here until the client has ended it, in memory that is reserved as for all transports. The library
confirms bytes to the client as they arrive, so a client cannot be told to wait: it is refused if there is no memory.
"""

from collections import deque
from dataclasses import dataclass, field

from courser.model.memory_ledger import MemoryLedger
from courser.transports.frame_buffer import BASE_SIZE
from courser.transports.request_memory import RequestMemory
from courser.transports.session_loop import RATE_TIME_MIN
from courser.transports.settings import ConnectionSettings

_STEP_SIZE = 64 * 1024
"""Bytes that are reserved beyond what has arrived: not for every datagram anew."""


class StreamRefused(Exception):
    """The client sends what it must not: its connection is closed with this reason."""


@dataclass(slots=True, eq=False)
class _Stream:
    since: int
    """When its first bytes came, on the monotonic clock."""
    data: bytearray = field(default_factory=bytearray)


class StreamedRequests:
    """The streams of one connection: those that are under way, and those that wait for their turn."""

    def __init__(self, settings: ConnectionSettings, ledger: MemoryLedger) -> None:
        self._settings = settings
        self._memory = RequestMemory(ledger, lambda: None)
        self._streams: dict[int, _Stream] = {}
        """In the order in which they began."""
        self._complete: deque[tuple[int, bytearray]] = deque()
        self._taken_size = 0
        """Bytes of the request that is being passed on."""
        self.size = 0
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
        size = self.size + len(data)
        if is_stranger and size > settings.login_frame_size_max:
            raise StreamRefused(f"more than {settings.login_frame_size_max} bytes before a login")
        if len(stream.data) + len(data) > settings.frame_size_max:
            raise StreamRefused(f"a request of more than {settings.frame_size_max} bytes")
        # None is reserved if a buffer as small as that of every connection is enough.
        if size > max(BASE_SIZE, self._memory.size) and not self._memory.grow(size, size + _STEP_SIZE):
            self._memory.withdraw()
            raise StreamRefused("the server is busy with large requests; try again")
        stream.data += data
        self.size = size

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
        """The next complete request, and the number of its stream. ``passed_on`` is to be called for each."""
        if not self._complete:
            return None
        number, data = self._complete.popleft()
        self._taken_size = len(data)
        return number, data

    def passed_on(self) -> None:
        """The request that was taken last is in other memory, or is not needed any more. May be repeated."""
        size, self._taken_size = self._taken_size, 0
        self._free(size)

    def slowest(self) -> tuple[int, int] | None:
        """Since when the oldest stream is under way, and how many bytes of it are here."""
        stream = next(iter(self._streams.values()), None)
        return None if stream is None else (stream.since, len(stream.data))

    def reserved_by_sender(self, now: int) -> tuple[int, int] | None:
        """The rate in bytes per second at which the oldest stream arrives, and the reserved memory."""
        slowest = self.slowest()
        if not self._memory.size or slowest is None or now - slowest[0] < RATE_TIME_MIN:
            return None
        return slowest[1] * 1_000_000 // (now - slowest[0]), self._memory.size

    def close(self) -> None:
        """Give all memory back."""
        self._streams.clear()
        self._complete.clear()
        self._taken_size = 0
        self._free(self.size)

    def _free(self, size: int) -> None:
        self.size -= size
        excess = self._memory.size - (self.size if self.size > BASE_SIZE else 0)
        if size and excess > 0:
            self._memory.shrink(excess)
