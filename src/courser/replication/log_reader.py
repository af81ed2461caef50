"""Following a log: the next object, checked, and whether a seal may be believed.

A seal, read or own, is believed if slot 0 of the next epoch is absent or names it. For if the slot of a seal was free
again after another one, somebody had deleted what was in it; that is done only by a leader of a later epoch, whose
first object is never deleted. So one read by key tells, and no list is needed.
"""

from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field, replace

from courser.archive.keys import ArchiveKeys, number_of_seal
from courser.archive.objects import HEADER_SIZE, Begin, Seal
from courser.archive.store import Store
from courser.replication.errors import LogMovedOn, ObjectsMissing
from courser.replication.log_objects import SLOTS_AHEAD, LogObject, LogPosition, decode_log_object, named_seal
from courser.replication.requests import Answer, Read, Steps, StoreRequest, list_keys, perform, read, run

READ_AHEAD = 8
"""Objects that are fetched at once while a reader is behind: one by one, it could not follow a busy leader."""


def next_object(keys: ArchiveKeys, position: LogPosition) -> Steps[LogObject | None]:
    """The object at a position; None if it is not written yet.

    Raises:
        ArchiveDamaged: it is not what was stored there, or does not follow the one before.
        ArchiveTooNew: a later version wrote it.
        LogMovedOn: the log went on elsewhere: load a root.
    """
    key = position.key(keys)
    data = yield from read(key)
    if data is None:
        return None
    found = decode_log_object(data, keys, position)
    # Slot 0 says where the seal of the epoch before is: what we believed to be it may have been void.
    is_first = not position.slot and position.epoch > 0
    if is_first and isinstance(found.content, Seal | Begin) and found.content.sealed_slot != position.sealed_slot:
        raise LogMovedOn(key, f"it follows slot {found.content.sealed_slot} of the epoch before")
    if isinstance(found.content, Seal):
        yield from check_seal(keys, position)
    return found


def check_seal(keys: ArchiveKeys, position: LogPosition) -> Steps[None]:
    """Check that the seal at a position, which exists, ended its epoch. Raises ``LogMovedOn`` if another one did."""
    begun = yield from read(keys.slot(position.epoch + 1, 0))
    if begun is not None and named_seal(begun, keys, position.epoch + 1) != position.slot:
        raise LogMovedOn(position.key(keys), "it is a seal, but the epoch had ended before")


def check_free(keys: ArchiveKeys, position: LogPosition) -> Steps[bool]:
    """Check that a slot without an object is the end of the log, before it is claimed. False: it has one by now.

    A leader may have written the slots after it, ``SLOTS_AHEAD`` with it. Whatever is beyond them was written after it.
    A list that is late finds less: then a claim is void or refused, but nothing is lost.

    Raises:
        ObjectsMissing: what was there is gone.
        LogMovedOn: the next epoch has begun, and the slot was deleted.
    """
    next_key, key = keys.slot(position.epoch + 1, 0), position.key(keys)
    beyond: str | None = None
    has_begun = (yield from read(next_key, HEADER_SIZE)) is not None
    if not has_begun:
        for found in (yield from list_keys(keys.log(position.epoch))):
            _, slot = number_of_seal(found) or (0, 0)
            if slot >= position.slot + SLOTS_AHEAD:
                beyond = found
    # Read again last: all that was found was written after this slot, if it was not written meanwhile.
    if (yield from read(key, HEADER_SIZE)) is not None:
        return False
    if has_begun:
        raise LogMovedOn(key, f"epoch {position.epoch + 1} has begun, and this is not there any more")
    if beyond is not None:
        raise ObjectsMissing(key, beyond)
    return True


@dataclass(slots=True)
class LogReader:
    """Follows a log on the thread that calls it, and fetches ahead on threads that were handed in."""

    store: Store
    keys: ArchiveKeys
    executor: Executor
    pause: Callable[[int], None]
    """Waits for microseconds, and may raise to end it."""
    position: LogPosition = field(default_factory=LogPosition)
    _ahead: dict[str, Future[Answer]] = field(init=False, default_factory=dict)
    _is_behind: bool = field(init=False, default=False)

    def read_next(self) -> LogObject | None:
        """The next object of the log; None if there is none yet. Raises as ``next_object`` does."""
        found = run(next_object(self.keys, self.position), self._ask, self.pause)
        self._is_behind = found is not None
        if found is not None:
            self.position = found.after
        return found

    def _ask(self, request: StoreRequest) -> Answer:
        if not isinstance(request, Read) or request != Read(self.position.key(self.keys)):
            return perform(self.store, request)
        early = self._ahead.pop(request.key, None)
        if self._is_behind:
            self._fetch_ahead()
        # What was not there then may be there now.
        answer = early.result() if early is not None else None
        return answer if isinstance(answer, bytes) else perform(self.store, request)

    def _fetch_ahead(self) -> None:
        ahead = [replace(self.position, slot=self.position.slot + step).key(self.keys) for step in range(1, READ_AHEAD)]
        self._ahead = {
            key: self._ahead.get(key) or self.executor.submit(perform, self.store, Read(key)) for key in ahead
        }
