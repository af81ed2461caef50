"""The slots that a leader is writing: pure, driven by requests that somebody carries out.

The rules that keep what was acknowledged:

- The bytes of a slot never change once they were sent.
- Nothing beyond the first slot that is not stored is acknowledged, and at most ``SLOTS_AHEAD`` slots are sent.
- A doubt (an error, no answer, "it exists") is settled by reading, and by all bytes. Another's object in a slot of
  ours deposes us: then nothing is acknowledged any more, and the process ends.
- A store that was exchanged for another would take everything. So the first object of the epoch is read again and
  again, and without it nothing is acknowledged for longer than ``time_to_live``.
- A machine that comes back from a snapshot may find its next slots free: the log went on, and they were deleted. So
  beside each slot, the first object of the next epoch is read: while that is absent, nothing of this one was deleted
  (``DELETION_DELAY``). It costs no time, for it is answered before the slot is.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from courser.archive.errors import ArchiveFailure, ArchiveGone
from courser.archive.objects import HEADER_SIZE
from courser.model.clock import Clock
from courser.replication.errors import Deposed
from courser.replication.log_objects import (
    SLOTS_AHEAD,
    Entry,
    LogPosition,
    LogWriting,
    is_copy,
)
from courser.replication.requests import RETRY_PAUSE, Answer, Put, Read

MEBIBYTE = 1024 * 1024
DELETION_DELAY = 3_600_000_000
"""Microseconds that an epoch has been over before its objects are deleted. No request to create a slot is still
answered so long after it was made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowSettings:
    """How a leader writes. Times are in microseconds."""

    hedge: int = 300_000
    """After so long without an answer, a slot is sent once more: one request in a thousand takes seconds."""
    time_to_live: int = 5_000_000
    """After so long without a new object, another server claims: at least ten times what the store's slowest answers
    take."""
    size_max: int = 64 * MEBIBYTE
    """Bytes of slots that are not stored yet: they are in memory."""


@dataclass(slots=True)
class _Slot:
    """A slot that is not acknowledged yet."""

    position: LogPosition
    key: str
    data: bytes
    is_stored: bool = False
    is_doubtful: bool = False
    is_looked_up: bool = False
    open_count: int = 0
    """Requests to create it that have not been answered."""
    due: int = 0
    """When to ask next."""
    sent_as: int = 0
    """The number of the request that sent it last."""


@dataclass(frozen=True, slots=True)
class SlotRequest:
    """A request for a slot, and when it was made."""

    request: Put | Read
    made_at: int
    number: int
    proof: "_Proof | None" = None
    """What it is for, if not for a slot."""


_NEVER = 1 << 63


@dataclass(slots=True)
class _Proof:
    """An object that is read again and again: slot 0 of this epoch must be there, that of the next one must not."""

    key: str
    data: bytes | None
    """What must be there; None: nothing."""
    found_at: int | None = None
    """When the newest request was made that found it so."""
    found_as: int = 0
    """The number of that request."""
    is_looked_up: bool = False
    due: int = 0


@dataclass(slots=True)
class SlotWindow:
    """One epoch of one leader. It is not safe to share between threads."""

    writing: LogWriting
    clock: Clock
    settings: WindowSettings
    begun_at: LogPosition
    """Behind the seal that made this process the leader."""
    fingerprint: bytes
    failure: ArchiveFailure | None = None
    """Why it writes no more."""
    acknowledged: LogPosition = field(init=False)
    """Everything before it is stored, and may be acknowledged."""
    next: LogPosition = field(init=False)
    """The slot that is closed next."""
    stored_at: int = field(init=False)
    """When the newest request was made that stored a slot: others count our silence from here at the earliest."""
    _slots: deque[_Slot] = field(init=False, default_factory=deque)
    _first: _Proof = field(init=False)
    _next_first: _Proof = field(init=False)
    _request_count: int = field(init=False, default=0)
    _is_sealed: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        self.acknowledged = self.next = self.begun_at
        self.stored_at = self.clock.monotonic()
        data = self.writing.begin(self.begun_at, self.fingerprint, self.clock.now())
        self._first = _Proof(self.begun_at.key(self.writing.keys), data)
        self._next_first = _Proof(self.writing.keys.slot(self.begun_at.epoch + 1, 0), None)
        self._add(data)

    @property
    def has_room(self) -> bool:
        """Whether another slot may be closed."""
        size = sum(len(slot.data) for slot in self._slots)
        return len(self._slots) < SLOTS_AHEAD and size < self.settings.size_max and not self._is_sealed

    @property
    def is_over(self) -> bool:
        """Whether the epoch has ended with our own seal. The next one begins at ``acknowledged``."""
        return self._is_sealed and not self._slots

    def next_epoch(self) -> "SlotWindow":
        """The epoch after one that is over."""
        return type(self)(self.writing, self.clock, self.settings, self.acknowledged, self.fingerprint)

    def close(self, entries: Sequence[Entry], op: int = 0) -> LogPosition:
        """Fix the contents of the next slot. Returns its position: it is stored once ``acknowledged`` is behind it."""
        self._check()
        return self._add(self.writing.entries(self.next, entries, self.clock.now(), op))

    def seal(self, reason: str) -> LogPosition:
        """End the epoch: the next one of this process begins behind it. So whole epochs are over, and can go."""
        self._check()
        position = self._add(self.writing.seal(self.next, reason, self.clock.now()), is_seal=True)
        self._is_sealed = True
        return position

    def _check(self) -> None:
        if self.failure:
            raise self.failure
        if not self.has_room:
            raise ValueError("the window is full")

    def _add(self, data: bytes, *, is_seal: bool = False) -> LogPosition:
        position = self.next
        self._slots.append(_Slot(position, position.key(self.writing.keys), data))
        self.next = position.behind(data, self.writing.nonce, is_seal=is_seal)
        return position

    # --- requests ---

    def next_request(self) -> SlotRequest | None:
        """What to ask the store now; None if nothing is due. Each must be answered in the end."""
        if self.failure:
            return None
        now = self.clock.monotonic()
        if now >= self._silent_from():
            # Others would soon think that nobody leads.
            self.close(())
        for proof in self._proofs_due():
            if now >= proof.due:
                proof.is_looked_up = True
                return self._request(Read(proof.key, HEADER_SIZE), now, proof)
        for slot in self._slots:
            if slot.is_stored or slot.is_looked_up or now < slot.due:
                continue
            if slot.is_doubtful:
                slot.is_looked_up = True
                return self._request(Read(slot.key, HEADER_SIZE), now)
            if slot.open_count < 2:
                slot.open_count += 1
                slot.due = now + min(self.settings.hedge, self.settings.time_to_live // 3)
                asked = self._request(Put(slot.key, slot.data), now)
                slot.sent_as = asked.number
                return asked
        return None

    def _request(self, request: Put | Read, now: int, proof: _Proof | None = None) -> SlotRequest:
        self._request_count += 1
        return SlotRequest(request, now, self._request_count, proof)

    def next_due(self) -> int | None:
        """When the next request may be due, if nothing is answered before."""
        times = [slot.due for slot in self._slots if not slot.is_stored and not slot.is_looked_up]
        times.extend(proof.due for proof in self._proofs_due())
        times.append(self._silent_from())
        return min(times) if not self.failure and min(times) < _NEVER else None

    def _proofs_due(self) -> list[_Proof]:
        """What is to be read again, not before it is due."""
        first, following = self._first, self._next_first
        due = [first] if first.found_at is not None and not first.is_looked_up else []
        sent_as = max((slot.sent_as for slot in self._slots), default=0)
        if following.found_as < sent_as and not following.is_looked_up:
            due.append(following)
        return due

    def _silent_from(self) -> int:
        """When an object without entries is due: nothing else is being written."""
        return _NEVER if self._slots or self._is_sealed else self.stored_at + self.settings.time_to_live // 3

    def answer(self, asked: SlotRequest, answer: Answer) -> None:
        """Take an answer. Nothing that comes after a failure changes anything."""
        if self.failure:
            return
        if asked.proof is not None:
            self._answer_proof(asked.proof, asked, answer)
        else:
            # None: it was acknowledged meanwhile.
            slot = next((slot for slot in self._slots if slot.key == asked.request.key), None)
            if slot is not None:
                self._answer_slot(slot, asked, answer)
        self._acknowledge()

    def _answer_slot(self, slot: _Slot, asked: SlotRequest, answer: Answer) -> None:
        now = self.clock.monotonic()
        if isinstance(asked.request, Put):
            slot.open_count -= 1
            if answer is True:
                self._store(slot, asked)
            elif not slot.is_stored:
                slot.is_doubtful, slot.due = True, now
            return
        slot.is_looked_up = False
        if slot.is_stored:
            return
        match answer:
            case bytes() if self._is_own(answer, slot.data):
                self._store(slot, asked)
            case bytes():
                self.failure = Deposed(slot.key, "another process has written it; this one leads no more")
            case None:
                # Not there, or not yet: the same bytes again.
                slot.is_doubtful, slot.due = False, now + RETRY_PAUSE
            case _:
                slot.due = now + RETRY_PAUSE

    def _is_own(self, found: bytes, data: bytes) -> bool:
        return is_copy(found, data)

    def _store(self, slot: _Slot, asked: SlotRequest) -> None:
        slot.is_stored = True
        self.stored_at = max(self.stored_at, asked.made_at)
        if slot.data is self._first.data:
            self._see_first(asked)

    def _answer_proof(self, proof: _Proof, asked: SlotRequest, answer: Answer) -> None:
        proof.is_looked_up = False
        if isinstance(answer, ArchiveFailure):
            proof.due = self.clock.monotonic() + RETRY_PAUSE
        elif proof.data is None:
            if isinstance(answer, bytes):
                self.failure = Deposed(proof.key, "another process has begun the next epoch; this one leads no more")
            proof.found_as = asked.number
        elif isinstance(answer, bytes) and is_copy(answer, proof.data):
            self._see_first(asked)
        else:
            reason = "it has not what this server has written there; was it set back or replaced?"
            self.failure = ArchiveGone(proof.key, reason)

    def _see_first(self, asked: SlotRequest) -> None:
        self._first.found_at = asked.made_at
        self._first.due = asked.made_at + self.settings.time_to_live // 3

    def _acknowledge(self) -> None:
        seen_at = self._first.found_at
        if self.failure or seen_at is None or self.clock.monotonic() - seen_at > self.settings.time_to_live:
            return
        while self._can_acknowledge():
            self._slots.popleft()
            self.acknowledged = self._slots[0].position if self._slots else self.next

    def _can_acknowledge(self) -> bool:
        """Whether the first slot that waits is stored, and nothing of the epoch was deleted before that."""
        first = self._slots[0] if self._slots else None
        return first is not None and first.is_stored and first.sent_as < self._next_first.found_as
