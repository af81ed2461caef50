"""Repeated requests: a repeat gets the earlier reply and is not executed again.

A client numbers its changes. If the server is busy, or the client got no reply, it sends the same frame again. The
numbers start anew with every login.

For changes to metadata the number decides: a number below the highest is a repeat or an error. For sends and stored
offsets it does not, because some builds of the SDK give them the number of the next change: only the last one is
recognised, by its number and its content.
"""

from collections import OrderedDict
from dataclasses import dataclass
from enum import Enum, auto
from typing import TypeAlias

from courser.wire.vsr_headers import NO_CHECKSUM

REPLY_COUNT_MAX = 8
"""How many replies are remembered."""
REPLY_SIZE_MAX = 64 * 1024
"""Bytes of all remembered replies; the newest one is always remembered."""


class DuplicateVerdict(Enum):
    """The verdict on a numbered request that is not a repeat with a known reply."""

    NEW = auto()
    FORGOTTEN = auto()
    """Its number is below the highest, and its reply is not known."""
    CONFLICT = auto()
    """Its number was used for another request."""


Recalled: TypeAlias = DuplicateVerdict | bytes
"""A verdict, or the earlier reply."""


_NO_WRITE = (-1, 0, b"", b"")


@dataclass(frozen=True, slots=True)
class _Answered:
    operation: int
    checksum: bytes
    answer: bytes


class DuplicateTable:
    """The requests of one connection since its login."""

    __slots__ = ("_answers", "_highest", "_size", "last_write")

    def __init__(self) -> None:
        self._answers: OrderedDict[int, _Answered] = OrderedDict()
        """By request number; the latest last."""
        self._size = 0
        self._highest = 0
        self.last_write = _NO_WRITE
        """The last send, stored or deleted offset: its number, operation and content, and the reply."""

    def reset(self) -> None:
        """A new login: numbers start anew."""
        self._answers.clear()
        self._size = self._highest = 0
        self.last_write = _NO_WRITE

    # --- changes to metadata --------------------------------------------------------------------------

    def recall_change(self, request: int, operation: int, checksum: bytes) -> Recalled:
        """Look up a change to metadata by its number."""
        if request > self._highest:
            return DuplicateVerdict.NEW
        known = self._answers.get(request)
        if known is None:
            return DuplicateVerdict.FORGOTTEN
        # Without a checksum, the number alone decides.
        if known.operation != operation or checksum not in (known.checksum, NO_CHECKSUM):
            return DuplicateVerdict.CONFLICT
        return known.answer

    def remember_change(self, request: int, operation: int, checksum: bytes, answer: bytes) -> None:
        """Remember a change that was carried out, or that the state did not allow."""
        self._highest = max(self._highest, request)
        self._answers[request] = _Answered(operation, checksum, answer)
        self._size += len(answer)
        while len(self._answers) > 1 and (len(self._answers) > REPLY_COUNT_MAX or self._size > REPLY_SIZE_MAX):
            _, forgotten = self._answers.popitem(last=False)
            self._size -= len(forgotten.answer)

    # --- sends and stored offsets ---------------------------------------------------------------------

    def recall_write(self, request: int, operation: int, content: bytes) -> bytes | None:
        """The reply to the last send or stored offset, if this one is the same."""
        return self.last_write[3] if self.last_write[:3] == (request, operation, content) else None
