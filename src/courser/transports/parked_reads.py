"""The reads of one connection that wait beside the line of its requests.

Each is answered exactly once, whatever happens to it: with its messages, or with a failure that says that nothing was
read or committed. A client that gets no answer would not know whether an offset was stored.
"""

from courser.broker.partition.waiting import Waiting
from courser.errors import CommandRejected, CourserError, ErrorCode
from courser.wire.codec import Codec, Deferral

COUNT_MAX = 64
"""Reads of one connection. SDKs keep to it too; each takes about 2 KiB, and more if it waits for many partitions."""


class ParkedRead:
    """A read that waits, or has waited and comes back into the line."""

    __slots__ = ("codec", "deferral", "ending", "waiting")

    def __init__(self, codec: Codec, deferral: Deferral, waiting: Waiting[object]) -> None:
        self.codec = codec
        self.deferral = deferral
        self.waiting = waiting
        self.ending: CourserError | None = None
        """Why its wait was ended early."""

    def end(self, error: CourserError) -> None:
        """End the wait; the read is refused with this error."""
        if self.ending is None:
            self.ending = error
            self.waiting.cancel()

    def outcome(self) -> object:
        """The result of the wait. Raises why there is none."""
        if self.waiting.future.cancelled():
            raise self.ending or CommandRejected(ErrorCode.NOT_ACCEPTED, "the server is stopping")
        return self.waiting.result()


class ParkedReads:
    """All of one connection."""

    __slots__ = ("_by_number", "ready")

    def __init__(self) -> None:
        self._by_number: dict[int, ParkedRead] = {}
        self.ready: list[ParkedRead] = []
        """Those that have waited, in the order in which they come back."""

    def __len__(self) -> int:
        """How many are not answered yet."""
        return len(self._by_number)

    def check(self, number: int) -> None:
        """Raise ``CommandRejected`` if no read with this number can be parked now: 90, or 3 if there is one."""
        if number in self._by_number:
            reason = f"request number {number} is that of a read that still waits"
            raise CommandRejected(ErrorCode.INVALID_COMMAND, reason)
        if len(self._by_number) >= COUNT_MAX:
            reason = f"{COUNT_MAX} reads of this connection wait already"
            raise CommandRejected(ErrorCode.TOO_MANY_WAITING_READS, reason)

    def add(self, read: ParkedRead) -> None:
        """Park a read that waits."""
        self._by_number[read.deferral.number] = read

    def cancel(self, number: int) -> None:
        """End the wait of a read, if there is one with that number: it comes back at once, to be refused."""
        read = self._by_number.get(number)
        if read is not None:
            read.end(CommandRejected(ErrorCode.NOT_ACCEPTED, "the client has cancelled the read"))

    def return_to_line(self, read: ParkedRead) -> bool:
        """A read has waited. False if its connection has ended meanwhile."""
        if self._by_number.get(read.deferral.number) is not read:
            return False
        self.ready.append(read)
        return True

    def take(self) -> ParkedRead:
        """The next one that is ready."""
        read = self.ready.pop(0)
        del self._by_number[read.deferral.number]
        return read

    def end_all(self, error: CourserError) -> list[ParkedRead]:
        """End all waits. Returns the reads: no other part answers them."""
        reads = list(self._by_number.values())
        self._by_number.clear()
        self.ready.clear()
        for read in reads:
            read.end(error)
        return reads
