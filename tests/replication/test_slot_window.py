"""A leader's slots: what is sent when, what settles a doubt, and when something may be acknowledged."""

import copy

import pytest

from courser.archive.errors import ArchiveGone
from courser.replication.errors import Deposed
from courser.replication.log_objects import SLOTS_AHEAD, LogWriting
from courser.replication.requests import RETRY_PAUSE, Put, Read, perform
from courser.replication.slot_window import SlotWindow
from courser.testing.object_store import StoreFault
from tests.replication.leaders import (
    KEYS,
    SECOND,
    SETTINGS,
    ask,
    entry,
    failed,
    lead,
    new_store,
    rotate,
    settle,
    write,
)


class DoesNotLookForANextEpoch(SlotWindow):
    """Believes that a slot that is free was never written."""

    def _can_acknowledge(self) -> bool:
        return bool(self._slots) and self._slots[0].is_stored


def test_a_slot_is_acknowledged_when_it_is_stored() -> None:
    store, clock = new_store()
    window = lead(store, clock)
    position = window.close([entry(b"one")])
    assert not window.acknowledged.is_behind(position)
    settle(store, window)
    assert window.acknowledged.is_behind(position)
    assert store.objects[KEYS.slot(1, 1)].endswith(b"one")


def test_nothing_is_acknowledged_before_the_slots_before_it() -> None:
    store, clock = new_store()
    window = lead(store, clock)
    first, second = window.close([entry(b"1")]), window.close([entry(b"2")])
    asked = [ask(window) for _ in range(3)]
    to_second = next(one for one in asked if one.request.key == KEYS.slot(1, 2))
    for one in asked:
        if one.request.key != KEYS.slot(1, 1):
            window.answer(one, perform(store, one.request))
    assert isinstance(to_second.request, Put)
    assert window.acknowledged == first
    settle(store, window)
    clock.advance(SETTINGS.hedge)
    settle(store, window)
    assert window.acknowledged.is_behind(second)


def test_so_many_slots_are_sent_and_no_more() -> None:
    store, clock = new_store()
    window = lead(store, clock)
    for _ in range(SLOTS_AHEAD):
        window.close(())
    assert not window.has_room
    with pytest.raises(ValueError, match="full"):
        window.close(())


def test_a_slot_without_an_answer_is_sent_once_more_and_not_thrice() -> None:
    store, clock = new_store()
    window = lead(store, clock)
    window.close([entry(b"one")])
    first = [one for one in (ask(window), ask(window)) if isinstance(one.request, Put)]
    assert window.next_request() is None
    clock.advance(SETTINGS.hedge)
    second = ask(window)
    assert second.request == first[0].request
    clock.advance(SETTINGS.hedge)
    assert not isinstance(getattr(window.next_request(), "request", None), Put)


@pytest.mark.parametrize(
    "fault", [StoreFault.REPLY_LOST, StoreFault.REPLY_DOUBTFUL, StoreFault.REFUSED, StoreFault.LATE]
)
def test_a_doubt_is_settled_by_reading(fault: StoreFault) -> None:
    store, clock = new_store()
    window = lead(store, clock)
    store.faults.append(fault)
    position = write(store, window, b"one")
    for _ in range(3):
        clock.advance(RETRY_PAUSE)
        settle(store, window)
    assert window.failure is None
    assert window.acknowledged.is_behind(position)


def test_anothers_object_in_a_slot_deposes_also_if_it_has_the_same_nonce() -> None:
    """H7: a machine that was cloned."""
    store, clock = new_store()
    window = lead(store, clock)
    clone = copy.deepcopy(window)
    write(store, clone, b"another's")
    position = write(store, window, b"mine")
    assert isinstance(window.failure, Deposed)
    assert not window.acknowledged.is_behind(position)
    with pytest.raises(Deposed):
        window.close(())


def test_who_is_deposed_asks_and_acknowledges_nothing_more() -> None:
    store, clock = new_store()
    window = lead(store, clock)
    first, second = window.close([entry(b"1")]), window.close([entry(b"2")])
    asked = [ask(window) for _ in range(3)]
    store.objects[KEYS.slot(1, 1)] = b"another's"
    for one in asked:
        window.answer(one, perform(store, one.request))
    settle(store, window)
    assert isinstance(window.failure, Deposed)
    assert not window.acknowledged.is_behind(first)
    assert not window.acknowledged.is_behind(second)
    assert window.next_request() is None
    assert window.next_due() is None


def test_a_store_that_was_exchanged_is_noticed_before_anything_is_acknowledged_for_long() -> None:
    """H3: the bucket was deleted and made again."""
    store, clock = new_store()
    window = lead(store, clock)
    store.objects.clear()
    clock.advance(SETTINGS.time_to_live // 3)
    write(store, window, b"one")
    assert isinstance(window.failure, ArchiveGone)


def test_nothing_is_acknowledged_while_it_is_unknown_which_store_this_is() -> None:
    store, clock = new_store()
    window = lead(store, clock)
    clock.advance(SETTINGS.time_to_live + 1)
    position = window.close([entry(b"one")])
    while asked := window.next_request():
        is_proof = asked.request == Read(KEYS.slot(1, 0), 256)
        window.answer(asked, failed() if is_proof else perform(store, asked.request))
    assert not window.acknowledged.is_behind(position)
    clock.advance(RETRY_PAUSE)
    settle(store, window)
    assert window.acknowledged.is_behind(position)


def test_an_idle_leader_says_that_it_lives() -> None:
    store, clock = new_store()
    window = lead(store, clock)
    count = len(store.objects)
    due = window.next_due()
    assert due is not None
    clock.advance(due - clock.monotonic())
    settle(store, window)
    clock.advance(SETTINGS.time_to_live // 3)
    settle(store, window)
    assert len(store.objects) > count


@pytest.mark.parametrize("kind", [SlotWindow, DoesNotLookForANextEpoch])
def test_a_slot_that_was_deleted_is_no_free_slot(kind: type[SlotWindow]) -> None:
    """A machine comes back from a snapshot that is older than the log."""
    store, clock = new_store()
    origin = lead(store, clock)
    snapshot = kind(LogWriting(KEYS, b"n" * 16), clock, SETTINGS, origin.begun_at, b"fingerprint")
    settle(store, snapshot)
    write(store, origin, b"acknowledged")
    rotate(store, origin)
    del store.objects[KEYS.slot(1, 1)]
    clock.advance(SECOND)
    position = write(store, snapshot, b"never in the log")
    is_bug = kind is not SlotWindow
    assert snapshot.acknowledged.is_behind(position) is is_bug, "the bug is seen, and the rule holds"
    assert isinstance(snapshot.failure, Deposed) is not is_bug


def test_an_epoch_that_its_leader_ends_is_followed_by_the_next() -> None:
    store, clock = new_store()
    window = lead(store, clock)
    write(store, window, b"one")
    following = rotate(store, window)
    assert window.is_over
    assert (following.begun_at.epoch, following.begun_at.sealed_slot) == (2, 2)
    position = write(store, following, b"two")
    assert following.acknowledged.is_behind(position)
