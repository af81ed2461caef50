"""When a send is acknowledged: the three levels, their bounds, and the order of the marks behind them."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from courser.model.durability import Durability, DurabilityPolicy
from courser.storage.acknowledgements import Acknowledgements, Mark, Watermarks

ZERO = Mark(0, 0, 0)


def at(messages: int, size: int | None = None) -> Mark:
    return Mark(messages, messages, 10 * messages if size is None else size)


def bounded(messages: int = 10, size: int = 10**9, interval: int = 1000) -> Acknowledgements[str]:
    return Acknowledgements(
        DurabilityPolicy(level=Durability.BOUNDED, message_count_max=messages, size_max=size, interval=interval)
    )


def send(acks: Acknowledgements[str], mark: Mark, name: str, *, now: int = 0) -> bool:
    """What a partition does with a send, while nothing is synced: return whether it is acknowledged at once."""
    is_admitted = acks.admits(mark, ZERO, now)
    if not is_admitted:
        acks.wait(mark, name)
    return is_admitted


def test_at_written_a_send_is_acknowledged_at_once() -> None:
    acks: Acknowledgements[str] = Acknowledgements(DurabilityPolicy(level=Durability.WRITTEN))
    assert send(acks, at(10**6), "a", now=10**9)
    assert not acks.is_sync_due(ZERO, at(10**6), now=10**9)
    assert acks.sync_due_at(ZERO) is None


def test_at_synced_a_send_waits_until_the_sync_has_passed_it() -> None:
    acks: Acknowledgements[str] = Acknowledgements(DurabilityPolicy(level=Durability.SYNCED))
    for number, name in ((3, "a"), (5, "b"), (9, "c")):
        assert not send(acks, at(number), name)
    assert acks.releasable(ZERO, now=0) == []
    assert acks.is_sync_due(ZERO, at(9), now=0)
    assert acks.releasable(at(4), now=0) == ["a"]
    assert acks.releasable(at(5), now=0) == ["b"]
    assert acks.releasable(at(9), now=0) == ["c"]
    assert len(acks) == 0
    assert not acks.is_sync_due(at(9), at(9), now=0)


def test_at_bounded_a_send_within_the_bound_is_acknowledged_at_once() -> None:
    acks = bounded(messages=10)
    assert send(acks, at(4), "a")
    assert send(acks, at(10), "b")


def test_at_bounded_a_send_past_the_bound_waits_for_the_sync() -> None:
    acks = bounded(messages=10)
    assert send(acks, at(10), "a")
    assert not send(acks, at(11), "b")
    assert not send(acks, at(12), "c")
    assert acks.is_sync_due(ZERO, at(12), now=0)
    assert acks.releasable(at(1), now=0) == ["b"]
    assert acks.releasable(at(2), now=0) == ["c"]


def test_at_bounded_the_bytes_are_bounded_too() -> None:
    acks = bounded(messages=1000, size=100)
    assert send(acks, at(1, 100), "a")
    assert not send(acks, at(2, 101), "b")
    assert acks.releasable(at(1, 100), now=0) == ["b"]


def test_at_bounded_a_send_that_alone_passes_the_bound_waits_for_its_own_sync() -> None:
    acks = bounded(messages=10)
    assert not send(acks, at(25), "large")
    assert not send(acks, at(26), "small")
    assert acks.releasable(at(14), now=0) == []
    assert acks.releasable(at(25), now=0) == ["large", "small"]


def test_at_bounded_a_sync_falls_due_after_the_interval_or_at_half_the_bound() -> None:
    acks = bounded(messages=10, interval=1000)
    assert acks.sync_due_at(ZERO) is None
    assert send(acks, at(1), "a", now=500)
    assert acks.sync_due_at(ZERO) == 1500
    assert not acks.is_sync_due(ZERO, at(1), now=1499)
    assert acks.is_sync_due(ZERO, at(1), now=1500)
    assert not acks.is_sync_due(ZERO, at(4), now=500)
    assert acks.is_sync_due(ZERO, at(5), now=500)


def test_at_bounded_an_overdue_sync_holds_all_acknowledgements() -> None:
    acks = bounded(messages=1000, interval=1000)
    assert send(acks, at(1), "a", now=0)
    assert send(acks, at(2), "b", now=2000)
    assert not send(acks, at(3), "c", now=2001)
    assert acks.releasable(at(1), now=2001) == [], "what was written at 0 is covered, but no sync has begun"
    acks.sync_began(at(3))
    assert acks.releasable(at(3), now=2002) == ["c"]


def test_at_bounded_a_sync_that_takes_too_long_holds_them_as_well() -> None:
    acks = bounded(messages=1000, interval=1000)
    assert send(acks, at(1), "a", now=0)
    acks.sync_began(at(1))
    assert send(acks, at(2), "b", now=1500)
    assert not send(acks, at(3), "c", now=2001), "the sync of what was written at 0 is still under way"
    assert acks.releasable(at(1), now=2002) == ["c"]


def test_at_bounded_a_write_is_as_old_as_its_beginning() -> None:
    acks = bounded(messages=1000, interval=1000)
    acks.write_began(0)
    assert send(acks, at(1), "slow", now=2000)
    assert acks.sync_due_at(ZERO) == 1000
    assert not acks.is_free(at(2), now=2000), "a sync is due"
    acks.sync_began(at(1))
    assert not send(acks, at(2), "late", now=2001), "the sync of what was begun at 0 is still under way"
    assert acks.releasable(at(1), now=2002) == ["late"]


def test_at_bounded_a_write_that_takes_more_than_two_intervals_waits_for_its_own_sync() -> None:
    acks = bounded(messages=1000, interval=1000)
    acks.write_began(0)
    assert not send(acks, at(1), "slow", now=2001)
    assert acks.is_sync_due(ZERO, at(1), now=2001)
    acks.sync_began(at(1))
    assert acks.releasable(at(1), now=2002) == ["slow"]


def test_at_bounded_a_slow_write_is_not_covered_by_a_sync_that_began_after_it() -> None:
    acks = bounded(messages=1000, interval=1000)
    assert send(acks, at(1), "before", now=0)
    acks.sync_began(at(1))
    assert acks.releasable(at(1), now=900) == []
    acks.write_began(500)
    assert not acks.admits(at(2), at(1), now=2501), "more than two intervals after 500"


def test_at_bounded_a_slow_write_does_not_make_older_ones_younger() -> None:
    acks = bounded(messages=1000, interval=1000)
    assert send(acks, at(1), "before", now=0)
    acks.write_began(500)
    assert send(acks, at(2), "slow", now=1500)
    assert acks.sync_due_at(ZERO) == 1000


def test_a_send_that_may_not_pass_keeps_those_behind_it_waiting() -> None:
    acks = bounded(messages=10)
    assert acks.admits(at(4), ZERO, now=0)
    assert not acks.admits(at(14), ZERO, now=0)
    acks.wait(at(14), "a")
    assert not acks.admits(at(15), at(8), now=0), "acknowledgements go out in order"
    acks.wait(at(15), "b")
    assert acks.releasable(at(8), now=0) == ["a", "b"]


def test_after_a_failed_sync_nobody_is_acknowledged() -> None:
    acks: Acknowledgements[str] = Acknowledgements(DurabilityPolicy(level=Durability.SYNCED))
    assert not send(acks, at(1), "a")
    assert not send(acks, at(2), "b")
    assert acks.drain() == ["a", "b"]
    assert acks.releasable(at(2), now=0) == []


@dataclass
class Sent:
    mark: Mark
    count: int
    size: int
    time: int
    is_acknowledged: bool = False


@given(
    policy=st.builds(
        DurabilityPolicy,
        level=st.just(Durability.BOUNDED),
        message_count_max=st.integers(1, 20),
        size_max=st.integers(1, 500),
        interval=st.integers(1, 50),
    ),
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("send"), st.integers(1, 30), st.integers(1, 600)),
            st.tuples(st.just("begin"), st.just(0), st.just(0)),
            st.tuples(st.just("end"), st.just(0), st.just(0)),
            st.tuples(st.just("pass"), st.integers(1, 60), st.just(0)),
        ),
        max_size=60,
    ),
)
def test_what_is_acknowledged_and_not_synced_never_exceeds_the_bounds(
    policy: DurabilityPolicy, steps: list[tuple[str, int, int]]
) -> None:
    acks: Acknowledgements[Sent] = Acknowledgements(policy)
    now, synced, written = 0, ZERO, ZERO
    syncing: Mark | None = None
    sends: list[Sent] = []
    for step, count, size in steps:
        admitted: list[Sent] = []
        match step:
            case "send":
                written = Mark(written.offset + count, written.message_count + count, written.size + size)
                sends.append(Sent(written, count, size, now))
                if acks.is_free(written, now):
                    assert syncing is not None or not acks.is_sync_due(synced, written, now)
                    admitted.append(sends[-1])
                elif acks.admits(written, synced, now):
                    admitted.append(sends[-1])
                else:
                    acks.wait(written, sends[-1])
            case "begin" if syncing is None and written != synced:
                syncing = written
                acks.sync_began(written)
            case "end" if syncing is not None:
                synced, syncing = syncing, None
            case "pass":
                now += count
        unsynced_before = [sent for sent in sends if sent.mark.offset > synced.offset]
        released = admitted + acks.releasable(synced, now)
        for sent in released:
            sent.is_acknowledged = True
        at_risk = [sent for sent in sends if sent.is_acknowledged and sent.mark.offset > synced.offset]
        assert sum(sent.count for sent in at_risk) <= policy.message_count_max
        assert sum(sent.size for sent in at_risk) <= policy.size_max
        newly_at_risk = [sent for sent in released if sent.mark.offset > synced.offset]
        if newly_at_risk and unsynced_before:
            assert now - unsynced_before[0].time <= 2 * policy.interval, "two intervals of sends, never more"
        acknowledged = [sent.is_acknowledged for sent in sends]
        assert acknowledged == sorted(acknowledged, reverse=True), "in order"


def test_far_from_all_bounds_nothing_else_is_asked() -> None:
    acks = bounded(messages=10, interval=1000)
    assert not acks.is_free(at(1), now=0), "somebody has to begin to count"
    assert acks.admits(at(1), ZERO, now=0)
    assert acks.is_free(at(4), now=999)
    assert not acks.is_free(at(5), now=999), "a sync is due"
    assert not acks.is_free(at(4), now=1000), "a sync is due"
    acks.sync_began(at(4))
    assert not acks.is_free(at(4), now=999), "what comes now has its own time"


def test_nobody_passes_those_who_wait() -> None:
    acks = bounded(messages=100)
    assert acks.admits(at(1), ZERO, now=0)
    acks.wait(at(2), "first")
    assert not acks.is_free(at(3), now=0)
    acks.use(DurabilityPolicy(level=Durability.SYNCED))
    assert not acks.is_free(at(3), now=0)


# --- the marks ------------------------------------------------------------------------------------------


def test_marks_move_in_order() -> None:
    marks = Watermarks(100)
    assert marks.synced == marks.written == Mark(100, 0, 0)
    marks.write(5, 50)
    assert (marks.written, marks.synced.offset) == (Mark(105, 5, 50), 100)
    marks.sync(Mark(103, 3, 30))
    marks.sync(marks.written)
    assert marks.synced == Mark(105, 5, 50)


@pytest.mark.parametrize("offset", [106, 99, 2**63])
def test_nothing_is_synced_before_it_is_written_and_no_mark_goes_back(offset: int) -> None:
    marks = Watermarks(100)
    marks.write(5, 50)
    with pytest.raises(AssertionError):
        marks.sync(Mark(offset, 0, 0))


def test_a_sync_that_did_not_come_to_its_end_is_due_again_by_its_own_time() -> None:
    """For want of descriptors, say: nothing was synced, and the messages are as old as before."""
    acks = bounded(interval=1000)
    assert acks.admits(at(1), ZERO, now=0)
    acks.sync_began(at(1))
    assert acks.releasable(ZERO, now=1000) == []
    assert acks.is_sync_due(ZERO, at(1), now=1000)
    acks.sync_began(at(1))
    assert not acks.admits(at(2), ZERO, now=2001), "two intervals after the first write, sends wait"
    acks.wait(at(2), "late")
    assert acks.releasable(at(1), now=2001) == ["late"]


def test_at_bounded_a_sync_that_failed_for_a_while_is_due_at_the_time_of_what_it_should_have_covered() -> None:
    acks = bounded(messages=1000, interval=1000)
    assert send(acks, at(1), "a", now=500)
    acks.sync_began(at(1))
    assert acks.releasable(ZERO, now=600) == []
    assert acks.sync_due_at(ZERO) == 1500
    assert acks.sync_due_at(at(1)) is None
