"""Requests that were carried out before: a repeat is answered, not executed.

A client numbers what it changes. After an answer that asks for patience, or in doubt, it sends the very same frame once
more. Numbers count from one login to the next.

Changes of metadata are held to their numbers: a lower number than the highest is a repeat or a mistake. Sends and
stored offsets are not, because some builds of the SDK give them the number of the next change and do not use it up:
only the very last one is recognised, and not by its number alone but by its content as well.
"""

from collections import OrderedDict
from dataclasses import dataclass
from enum import Enum, auto
from typing import TypeAlias

from courser.wire.vsr_headers import NO_CHECKSUM

REPLY_COUNT_MAX = 8
"""Replies that are remembered."""
REPLY_SIZE_MAX = 64 * 1024
"""Bytes of all of them; the newest is remembered even if it alone has more."""


class Verdict(Enum):
    """What a numbered request is, if it is not a repeat with a known answer."""

    NEW = auto()
    FORGOTTEN = auto()
    """Its number is below the highest, and no answer is known."""
    CONFLICT = auto()
    """Its number was used for something else."""


Recalled: TypeAlias = Verdict | bytes
"""A verdict, or the answer that was given."""


@dataclass(frozen=True, slots=True)
class _Answered:
    operation: int
    checksum: bytes
    answer: bytes


class DuplicateTable:
    """What one connection has asked for since its login."""

    __slots__ = ("_answers", "_highest", "_last_answer", "_last_write", "_size")

    def __init__(self) -> None:
        self._answers: OrderedDict[int, _Answered] = OrderedDict()
        """By request number; the latest last."""
        self._size = 0
        self._highest = 0
        self._last_write: tuple[int, int, bytes] | None = None
        self._last_answer = b""

    def reset(self) -> None:
        """A new login: numbers begin anew."""
        self._answers.clear()
        self._size = self._highest = 0
        self._last_write = None
        self._last_answer = b""

    # --- changes of metadata --------------------------------------------------------------------------

    def recall_change(self, request: int, operation: int, checksum: bytes) -> Recalled:
        """Look up a change of metadata by its number."""
        if request > self._highest:
            return Verdict.NEW
        known = self._answers.get(request)
        if known is None:
            return Verdict.FORGOTTEN
        # A frame without a checksum is taken for the repeat that its number says it is.
        if known.operation != operation or checksum not in (known.checksum, NO_CHECKSUM):
            return Verdict.CONFLICT
        return known.answer

    def remember_change(self, request: int, operation: int, checksum: bytes, answer: bytes) -> None:
        """A change was carried out, or refused for what the state is."""
        self._highest = max(self._highest, request)
        self._answers[request] = _Answered(operation, checksum, answer)
        self._size += len(answer)
        while len(self._answers) > 1 and (len(self._answers) > REPLY_COUNT_MAX or self._size > REPLY_SIZE_MAX):
            _, forgotten = self._answers.popitem(last=False)
            self._size -= len(forgotten.answer)

    # --- sends and stored offsets ---------------------------------------------------------------------

    def recall_write(self, request: int, operation: int, content: bytes) -> bytes | None:
        """The answer to the last send or stored offset, if this is the same once more."""
        return self._last_answer if (request, operation, content) == self._last_write else None

    def remember_write(self, request: int, operation: int, content: bytes, answer: bytes) -> None:
        """Messages were appended, or an offset stored or deleted."""
        self._last_write = (request, operation, content)
        self._last_answer = answer
