"""Uploads: what is checked, how fast they may be, and how they stop."""

import random
from pathlib import Path
from threading import Event

import pytest
import xxhash

from courser.archive.errors import ArchiveFailure, ArchiveInterrupted
from courser.archive.pacing import Pace, Times, WorkClock
from courser.archive.transfers import Range, is_stored, upload
from courser.testing.object_store import StoreFault
from tests.fakes.files import FakeFileSystem
from tests.fakes.object_store import FakeStore

DATA = random.Random(1).randbytes(2500)


@pytest.fixture
def source() -> Range:
    file_system = FakeFileSystem(random.Random(1))
    file_system.plant(Path("/segment"), b"before" + DATA)
    return Range(file_system.open(Path("/segment")), len(b"before"), len(DATA))


def store_with(*faults: StoreFault) -> FakeStore:
    store = FakeStore(random.Random(1))
    store.faults.extend(faults)
    return store


def test_a_range_of_a_file_is_uploaded(source: Range) -> None:
    store = store_with()
    digest = upload(store, "v1/a", source, 1000, Pace(0))
    assert digest == xxhash.xxh3_128_digest(DATA)
    assert store.objects == {"v1/a": DATA}
    assert is_stored(store, "v1/a", len(DATA), digest, 1000, Pace(0))
    assert not is_stored(store, "v1/a", len(DATA), bytes(16), 1000, Pace(0))
    assert not is_stored(store, "v1/b", len(DATA), digest, 1000, Pace(0))


def test_an_upload_whose_reply_was_lost_counts(source: Range) -> None:
    upload(store_with(StoreFault.REPLY_LOST), "v1/a", source, 1000, Pace(0))


@pytest.mark.parametrize("fault", [StoreFault.REFUSED, StoreFault.LATE, StoreFault.CHANGED])
def test_an_upload_that_is_not_there_or_not_right_does_not_count(source: Range, fault: StoreFault) -> None:
    with pytest.raises(ArchiveFailure):
        upload(store_with(fault), "v1/a", source, 1000, Pace(0))


def test_a_file_that_is_too_short_is_not_the_fault_of_the_store(source: Range) -> None:
    store = store_with()
    with pytest.raises(OSError, match="is shorter than"):
        upload(store, "v1/a", Range(source.file, source.position, len(DATA) + 1), 1000, Pace(0))
    assert store.objects == {}


class PatientEvent(Event):
    """Lets time pass when somebody waits for it."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 100.0

    def wait(self, timeout: float | None = None) -> bool:
        self.now += timeout or 0.0
        return self.is_set()


def test_the_rate_is_limited_on_average(source: Range) -> None:
    stop = PatientEvent()

    class StopClock(WorkClock):
        def read(self) -> Times:
            return Times(stop.now, 0.0, 0.0)

    pace = Pace(500, StopClock(), stop)
    for key in ("v1/a", "v1/b"):
        upload(store_with(), key, source, 1000, pace)
    # Two times 2,500 bytes at 500 bytes per second; nothing waits behind the last part.
    assert stop.now - 100.0 == pytest.approx(9.0)


def test_a_server_that_stops_does_not_wait_for_the_next_part(source: Range) -> None:
    stop = Event()
    stop.set()
    store = store_with()
    with pytest.raises(ArchiveInterrupted):
        upload(store, "v1/a", source, 1000, Pace(0, stop=stop))
    assert store.objects == {}
