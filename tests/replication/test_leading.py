"""Who may lead, which seal is believed, and what a reader refuses."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from courser.archive.errors import ArchiveDamaged, ArchiveGone
from courser.replication.errors import Deposed, LogMovedOn, ObjectsMissing
from courser.replication.leading import claim
from courser.replication.log_objects import SLOTS_AHEAD, LogPosition, LogWriting
from courser.replication.log_reader import LogReader, next_object
from courser.replication.requests import Answer, Put, Steps, perform
from courser.testing.object_store import MemoryStore, StoreFault
from tests.fakes.clocks import ManualClock
from tests.replication.leaders import KEYS, do, lead, new_store, rotate, settle, write
from tests.replication.simulation import payloads_of

OTHER = LogWriting(KEYS, b"o" * 16)


def follow(
    store: MemoryStore, clock: ManualClock, position: LogPosition | None = None
) -> tuple[LogPosition, list[bytes]]:
    """Read to the end."""
    found: list[bytes] = []
    position = position or LogPosition()
    while (one := do(store, next_object(KEYS, position), clock)) is not None:
        found += payloads_of(one)
        position = one.after
    return position, found


def take_over(store: MemoryStore, clock: ManualClock, position: LogPosition) -> LogPosition | None:
    return do(store, claim(OTHER, position, "test", clock.now), clock)


def until_put(steps: Steps[LogPosition | None], store: MemoryStore) -> Put:
    """Carry a claim out until it creates its seal: a process that is slow just there."""
    answer: Answer = None
    while not isinstance(request := steps.send(answer), Put):
        assert not hasattr(request, "microseconds")
        answer = perform(store, request)
    return request


def test_a_log_is_followed_over_epochs() -> None:
    store, clock = new_store()
    window = lead(store, clock)
    write(store, window, b"one")
    window = rotate(store, window)
    write(store, window, b"two")
    position, found = follow(store, clock)
    assert found == [b"one", b"two"]
    assert position == window.next


def test_of_two_that_claim_one_leads() -> None:
    store, clock = new_store()
    assert take_over(store, clock, LogPosition()) is not None
    other = LogWriting(KEYS, b"p" * 16)
    assert do(store, claim(other, LogPosition(), "test", clock.now), clock) is None


@pytest.mark.parametrize(
    "fault", [StoreFault.REPLY_LOST, StoreFault.REPLY_DOUBTFUL, StoreFault.LATE, StoreFault.REFUSED]
)
def test_a_claim_is_settled_whatever_the_store_says(fault: StoreFault) -> None:
    store, clock = new_store()
    store.faults.append(fault)
    assert take_over(store, clock, LogPosition()) is not None


def test_a_leader_meets_the_seal_of_its_successor() -> None:
    store, clock = new_store()
    window = lead(store, clock)
    write(store, window, b"one")
    behind = take_over(store, clock, follow(store, clock)[0])
    assert behind is not None
    position = write(store, window, b"too late")
    assert isinstance(window.failure, Deposed)
    assert not window.acknowledged.is_behind(position)


def test_a_seal_in_a_slot_that_was_deleted_is_void_and_its_creator_does_not_lead() -> None:
    store, clock = new_store()
    window = lead(store, clock)
    write(store, window, b"one")
    slow = claim(OTHER, window.next, "silence", clock.now)
    put = until_put(slow, store)
    write(store, window, b"two")
    rotate(store, window)
    del store.objects[KEYS.slot(1, 1)], store.objects[KEYS.slot(1, 2)]
    assert perform(store, put) is True, "the slot is free again"
    with pytest.raises(LogMovedOn, match="the epoch had ended before"):
        do(store, _resumed(slow), clock)


def _resumed(steps: Steps[LogPosition | None]) -> Steps[LogPosition | None]:
    """The rest of a claim whose seal has just been created."""
    answer: Answer = True
    while True:
        try:
            request = steps.send(answer)
        except StopIteration as end:
            result: LogPosition | None = end.value
            return result
        answer = yield request


def test_a_reader_does_not_believe_a_void_seal() -> None:
    store, clock = new_store()
    window = lead(store, clock)
    write(store, window, b"one")
    behind_one = window.next
    void = OTHER.seal(behind_one, "silence", 0)
    write(store, window, b"two")
    rotate(store, window)
    store.objects[KEYS.slot(1, 2)] = void
    with pytest.raises(LogMovedOn):
        follow(store, clock, behind_one)


def test_who_is_behind_what_was_deleted_is_told_so_before_it_claims() -> None:
    store, clock = new_store()
    window = lead(store, clock)
    write(store, window, b"one")
    behind_one = window.next
    write(store, window, b"two")
    rotate(store, window)
    del store.objects[KEYS.slot(1, 2)]
    with pytest.raises(LogMovedOn, match="epoch 2 has begun"):
        take_over(store, clock, behind_one)
    assert KEYS.slot(1, 2) not in store.objects


def test_a_claim_of_what_is_written_by_now_is_given_up() -> None:
    store, clock = new_store()
    window = lead(store, clock)
    behind = window.next
    for number in range(2 * SLOTS_AHEAD):
        write(store, window, b"%d" % number)
    assert take_over(store, clock, behind) is None


@pytest.mark.parametrize(("beyond", "is_refused"), [(SLOTS_AHEAD - 1, False), (SLOTS_AHEAD, True)])
def test_a_slot_with_later_ones_beyond_it_is_missing_and_not_free(beyond: int, is_refused: bool) -> None:
    """H4: a bucket went back in part."""
    store, clock = new_store()
    window = lead(store, clock)
    behind = window.next
    for number in range(beyond + 1):
        write(store, window, b"%d" % number)
    for slot in range(1, 1 + beyond):
        del store.objects[KEYS.slot(1, slot)]
    if is_refused:
        with pytest.raises(ObjectsMissing, match="objects are missing"):
            take_over(store, clock, behind)
    else:
        assert take_over(store, clock, behind) is not None


def test_a_claim_in_another_store_is_refused() -> None:
    """H3: the end of a log that is absent with all the rest is no free slot."""
    store, clock = new_store()
    window = lead(store, clock)
    write(store, window, b"one")
    store.objects.clear()
    with pytest.raises(ArchiveGone, match="set back or replaced"):
        take_over(store, clock, window.next)
    assert store.objects == {}


def test_a_leader_that_died_before_it_began_is_followed() -> None:
    store, clock = new_store()
    first = take_over(store, clock, LogPosition())
    assert first is not None
    second = take_over(store, clock, first)
    assert second is not None
    window = lead(store, clock, second)
    write(store, window, b"one")
    assert follow(store, clock)[1] == [b"one"]
    assert window.begun_at.epoch == 3


def test_an_object_that_was_changed_stops_the_reader() -> None:
    store, clock = new_store()
    window = lead(store, clock)
    position = write(store, window, b"one")
    settle(store, window)
    key = position.key(KEYS)
    store.objects[key] = store.objects[key][:-1] + b"x"
    with pytest.raises(ArchiveDamaged):
        follow(store, clock)


def test_a_reader_that_is_behind_fetches_ahead_and_sees_all() -> None:
    store, clock = new_store()
    window = lead(store, clock)
    payloads = [b"%d" % number for number in range(50)]
    for payload in payloads[:25]:
        write(store, window, payload)
    window = rotate(store, window)
    for payload in payloads[25:]:
        write(store, window, payload)
    found: list[bytes] = []
    with ThreadPoolExecutor(8) as threads:
        reader = LogReader(store, KEYS, threads, clock.advance)
        while (one := reader.read_next()) is not None:
            found += payloads_of(one)
        assert found == payloads
        write(store, window, b"more")
        more = reader.read_next()
        assert more is not None
        assert payloads_of(more) == [b"more"]
        assert reader.position == window.next


def test_a_reader_waits_for_a_store_that_is_down() -> None:
    store, clock = new_store()
    write(store, lead(store, clock), b"one")
    store.is_down = True

    def pause(microseconds: int) -> None:
        clock.advance(microseconds)
        store.is_down = clock.monotonic() < 1_000_000

    with ThreadPoolExecutor(1) as threads:
        reader = LogReader(store, KEYS, threads, pause)
        while reader.read_next() is not None:
            pass
    assert reader.position.slot == 2
