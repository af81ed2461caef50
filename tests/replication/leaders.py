"""Leaders on a store in memory, one request at a time, and stores that tests can look into."""

import random
from functools import partial
from typing import TypeVar

from courser.archive.errors import ArchiveFailure
from courser.archive.keys import ArchiveKeys
from courser.archive.store import Store
from courser.records.stored_header import PartitionIdentity
from courser.replication.leading import claim
from courser.replication.log_objects import Entry, EntryKind, LogPosition, LogWriting
from courser.replication.requests import Answer, Steps, perform, run
from courser.replication.slot_window import SlotRequest, SlotWindow, WindowSettings
from courser.testing.object_store import MemoryStore, StoreFault
from tests.fakes.clocks import ManualClock

KEYS = ArchiveKeys(bytes(range(16)))
IDENTITY = PartitionIdentity(b"t" * 16, 3, 7)
MILLISECOND = 1_000
SECOND = 1_000_000
SETTINGS = WindowSettings(hedge=300 * MILLISECOND, time_to_live=2 * SECOND)
DOUBTS = (StoreFault.REPLY_LOST, StoreFault.REPLY_DOUBTFUL, StoreFault.LATE, StoreFault.REFUSED)
"""What leaves it open whether an object was created."""
Result = TypeVar("Result")


def entry(data: bytes, number: int = 0) -> Entry:
    return Entry(EntryKind.BATCHES, IDENTITY, number, data)


def new_store() -> tuple[MemoryStore, ManualClock]:
    clock = ManualClock()
    return MemoryStore(random.Random(1), clock), clock


def do_on(store: Store, steps: Steps[Result]) -> Result:
    """Without waiting."""
    return run(steps, partial(perform, store), lambda microseconds: None)


def do(store: MemoryStore, steps: Steps[Result], clock: ManualClock) -> Result:
    return run(steps, partial(perform, store), clock.advance)


def lead(
    store: MemoryStore, clock: ManualClock, position: LogPosition | None = None, *, nonce: bytes = b"n" * 16
) -> SlotWindow:
    """Claim the epoch at a position, and begin the next one."""
    writing = LogWriting(KEYS, nonce)
    begun_at = do(store, claim(writing, position or LogPosition(), "test", clock.now), clock)
    assert begun_at is not None
    window = SlotWindow(writing, clock, SETTINGS, begun_at, b"fingerprint")
    settle(store, window)
    return window


def settle(store: MemoryStore, window: SlotWindow) -> None:
    """Carry out all that is due now."""
    while asked := window.next_request():
        window.answer(asked, perform(store, asked.request))


def write(store: MemoryStore, window: SlotWindow, data: bytes) -> LogPosition:
    position = window.close([entry(data)])
    settle(store, window)
    return position


def rotate(store: MemoryStore, window: SlotWindow) -> SlotWindow:
    window.seal("rotation")
    settle(store, window)
    following = window.next_epoch()
    settle(store, following)
    return following


def ask(window: SlotWindow) -> SlotRequest:
    asked = window.next_request()
    assert asked is not None
    return asked


def failed() -> Answer:
    return ArchiveFailure("create", "a slot", "timeout")
