"""The store in memory does on purpose what real stores do by accident."""

import random

import pytest

from courser.archive.errors import ArchiveFailure
from courser.archive.store import Creation, create
from courser.testing.object_store import MemoryStore, StoreFault
from tests.fakes.clocks import ManualClock

SECOND = 1_000_000


def store_of(*faults: StoreFault, hold_max: int = SECOND) -> tuple[MemoryStore, ManualClock]:
    clock = ManualClock()
    store = MemoryStore(random.Random(1), clock, hold_max=hold_max)
    store.faults.extend(faults)
    return store, clock


def test_a_request_that_is_held_arrives_when_its_time_comes() -> None:
    store, clock = store_of(StoreFault.LATE)
    with pytest.raises(ArchiveFailure, match="timeout"):
        store.put_new("v1/a", b"late")
    assert store.find("v1/a") is None
    clock.advance(SECOND)
    assert store.read("v1/a") == b"late"


def test_a_request_that_is_held_does_not_replace_what_came_before_it() -> None:
    store, clock = store_of(StoreFault.LATE)
    assert create(store, "v1/a", b"late") is Creation.UNKNOWN
    assert create(store, "v1/a", b"another's") is Creation.MINE
    clock.advance(SECOND)
    assert store.read("v1/a") == b"another's"


def test_a_request_may_be_held_for_longer_than_any_time_out() -> None:
    store, clock = store_of(StoreFault.LATE, hold_max=10**15)
    with pytest.raises(ArchiveFailure):
        store.put_new("v1/a", b"late")
    clock.advance(3600 * SECOND)
    assert store.find("v1/a") is None
    store.deliver_held()
    assert store.read("v1/a") == b"late"


def test_a_doubled_request_brings_back_what_was_deleted() -> None:
    store, clock = store_of(StoreFault.DOUBLED)
    assert store.put_new("v1/a", b"twice")
    store.delete("v1/a")
    assert store.find("v1/a") is None
    clock.advance(SECOND)
    assert store.read("v1/a") == b"twice"


def test_a_store_that_was_set_back_has_lost_its_newest_objects() -> None:
    store, _ = store_of()
    for name in "abc":
        store.put_new(f"v1/{name}", b"")
    assert store.lose_newest(2) == ["v1/b", "v1/c"]
    assert [found.key for found in store.list_objects("v1/")] == ["v1/a"]
    assert store.lose_newest(0) == []


def test_a_new_object_is_listed_late_and_found_at_once() -> None:
    clock = ManualClock()
    store = MemoryStore(random.Random(1), clock, list_delay=SECOND)
    store.put_new("v1/a", b"")
    assert store.find("v1/a") is not None
    assert list(store.list_objects("v1/")) == []
    clock.advance(SECOND)
    assert [found.key for found in store.list_objects("v1/")] == ["v1/a"]


def test_the_same_seed_has_the_same_faults() -> None:
    def outcomes(seed: int) -> list[str]:
        store = MemoryStore(random.Random(seed), fault_rate=0.5)
        found = []
        for number in range(50):
            try:
                found.append(str(store.put_new(f"v1/{number}", b"data")))
            except ArchiveFailure as failure:
                found.append(failure.reason)
        return found

    assert outcomes(7) == outcomes(7)
    assert outcomes(7) != outcomes(8)
    assert len(set(outcomes(7))) == 5, "done, existed, refused, lost and late"
