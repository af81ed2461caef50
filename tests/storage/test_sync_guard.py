"""A failed sync of a file is known before the next sync of that file begins."""

import errno
import threading

import pytest

from courser.errors import StorageFailure
from tests.storage.engine import Engine


class NotingTurn(threading.Condition):
    """Says that a thread waits for its turn."""

    def __init__(self, moved: threading.Event) -> None:
        super().__init__()
        self._moved = moved

    def wait(self, timeout: float | None = None) -> bool:
        self._moved.set()
        return super().wait(timeout)


@pytest.mark.parametrize("what", ["file", "names"])
def test_no_sync_begins_between_the_failure_of_another_and_its_note(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel reports a failure once: a seal that gets it must be heard before a sync of the same file begins."""
    moved = threading.Event()
    engine = Engine()
    engine.fill(1)
    engine.log.syncs._turn = NotingTurn(moved)
    guard, file = engine.log.syncs, engine.disk.open(engine.log_path(), writable=True)
    outcomes: list[str] = []
    calls: list[threading.Thread] = []

    def attempt() -> None:
        try:
            if what == "file":
                guard.sync_file(file)
            else:
                guard.sync_names()
        except StorageFailure:
            outcomes.append("failed")
        else:
            outcomes.append("synced")

    def fail_once(*_arguments: object) -> None:
        calls.append(threading.current_thread())
        if len(calls) == 1:
            # The kernel has just reported the failure. The other thread comes before it is noted.
            other.start()
            assert moved.wait(30)
            raise OSError(errno.EIO, "gone")
        moved.set()

    other = threading.Thread(target=attempt)
    if what == "file":
        monkeypatch.setattr(file, "sync", fail_once)
    else:
        monkeypatch.setattr(engine.disk, "sync_directory", fail_once)
    attempt()
    other.join(30)
    assert outcomes == ["failed", "failed"]
    assert len(calls) == 1, "the second sync is not even tried"


def test_syncs_of_different_files_do_not_wait_for_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine()
    engine.fill(1)
    one, other = (engine.disk.open(path, writable=True) for path in (engine.ledger_path, engine.log_path()))
    begun, leave = threading.Event(), threading.Event()

    def wait() -> None:
        begun.set()
        assert leave.wait(30)

    monkeypatch.setattr(one, "sync", wait)
    slow = threading.Thread(target=engine.log.syncs.sync_file, args=(one,))
    slow.start()
    assert begun.wait(30)
    engine.log.syncs.sync_file(other)
    leave.set()
    slow.join(30)
