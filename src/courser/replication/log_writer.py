"""The threads on which a leader writes: a thin shell around ``slot_window``.

All threads are alike. Each asks the window what is due, carries it out, and takes the answer back under the lock. A
request that hangs costs one thread until the store's library gives it up.
"""

from collections.abc import Callable, Sequence
from threading import Condition, Thread

from courser.archive.errors import ArchiveInterrupted
from courser.archive.store import Store
from courser.replication.log_objects import SLOTS_AHEAD, Entry, LogPosition
from courser.replication.requests import Answer, perform
from courser.replication.slot_window import SlotWindow

THREAD_COUNT = 2 * SLOTS_AHEAD + 1
"""Two requests for each slot, and one that reads the first object of the epoch."""
_SECOND = 1_000_000


class LogWriter:
    """Writes one epoch, or several that this process ends itself. Every method may raise why it writes no more."""

    def __init__(self, store: Store, window: SlotWindow) -> None:
        self._store = store
        self._window = window
        self._changed = Condition()
        self._is_closed = False
        self._threads = [
            Thread(target=self._work, name=f"log writer {number}", daemon=True) for number in range(THREAD_COUNT)
        ]
        for thread in self._threads:
            thread.start()

    def append(self, entries: Sequence[Entry], op: int = 0) -> LogPosition:
        """Close the next slot. Waits while the window is full."""
        with self._changed:
            self._wait(lambda window: window.has_room)
            position = self._window.close(entries, op)
            self._changed.notify_all()
            return position

    def wait_for(self, position: LogPosition) -> None:
        """Wait until the slot at a position, and all before it, are stored."""
        with self._changed:
            self._wait(lambda window: window.acknowledged.is_behind(position))

    def rotate(self, reason: str) -> LogPosition:
        """End the epoch and begin the next one. Returns where it begins. Nobody may append meanwhile."""
        with self._changed:
            self._wait(lambda window: window.has_room)
            self._window.seal(reason)
            self._changed.notify_all()
            self._wait(lambda window: window.is_over)
            self._window = self._window.next_epoch()
            self._changed.notify_all()
            return self._window.begun_at

    def close(self) -> None:
        """Stop the threads. What is not stored may be stored later, or never."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def _wait(self, is_so: Callable[[SlotWindow], bool]) -> None:
        while not is_so(self._window):
            if self._window.failure:
                raise self._window.failure
            if self._is_closed:
                raise ArchiveInterrupted("the log")
            self._changed.wait()

    def _work(self) -> None:
        with self._changed:
            while not self._is_closed:
                window = self._window
                asked = window.next_request()
                if asked is None:
                    due = window.next_due()
                    self._changed.wait(None if due is None else max(0, due - window.clock.monotonic()) / _SECOND)
                    continue
                self._changed.release()
                answer: Answer = None
                try:
                    answer = perform(self._store, asked.request)
                except ArchiveInterrupted as interrupted:
                    answer = interrupted
                finally:
                    self._changed.acquire()
                window.answer(asked, answer)
                self._changed.notify_all()
