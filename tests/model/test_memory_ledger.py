"""Memory for all clients: bounded, in order, and nobody waits for ever."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from courser.model.memory_ledger import MemoryLedger
from courser.transports.request_memory import SMALL_REQUEST_SIZE_MAX, RequestMemory

SIZE_MAX = 8_000


class Keeping:
    """Keeps so many bytes until they are evicted."""

    def __init__(self, ledger: MemoryLedger, size: int) -> None:
        assert ledger.reserve(size)
        self.size = size
        ledger.keep(self, size)

    def evict(self) -> int:
        size, self.size = self.size, 0
        return size


def waiting(ledger: MemoryLedger, size: int, served: list[int], *, rank: int = 0, is_small: bool = False) -> None:
    def take() -> bool:
        has_room = ledger.reserve(size, is_small=is_small)
        if has_room:
            served.append(size)
        return has_room

    ledger.wait(take, missing_size=size, rank=rank, is_small=is_small)


def test_a_share_is_reserved_for_small_needs() -> None:
    ledger = MemoryLedger(SIZE_MAX)
    assert ledger.reserve(7_000)
    assert not ledger.reserve(1)
    assert ledger.reserve(1_000, is_small=True)
    assert not ledger.reserve(1, is_small=True)


def test_those_who_wait_are_served_by_rank_and_then_in_their_order_and_small_needs_first() -> None:
    ledger, served = MemoryLedger(SIZE_MAX), list[int]()
    assert ledger.take(SIZE_MAX) == 0
    for size, rank in ((3, 1), (4, 2), (1, 0), (2, 0)):
        waiting(ledger, size, served, rank=rank)
    waiting(ledger, 5, served, is_small=True)
    assert ledger.missing_size == 15
    ledger.give_back(5)
    assert served == [5]
    ledger.give_back(SIZE_MAX - 5)
    assert served == [5, 1, 2, 3, 4]
    assert (ledger.size, ledger.waiting_count) == (15, 0)


def test_who_withdraws_lets_the_next_one_through() -> None:
    ledger, served = MemoryLedger(SIZE_MAX), list[int]()
    assert ledger.reserve(6_000)
    first = ledger.wait(lambda: False, missing_size=7_000)
    waiting(ledger, 500, served)
    ledger.withdraw(first)
    ledger.withdraw(first)
    assert served == [500]
    assert ledger.waiting_count == 0


def test_memory_that_is_kept_is_evicted_the_longest_unused_first_and_only_if_needed() -> None:
    ledger = MemoryLedger(SIZE_MAX)
    old, used, new = (Keeping(ledger, 2_000) for _ in range(3))
    ledger.use(used)
    assert ledger.room() == 5_000
    assert ledger.reserve(1_000)
    assert (old.size, new.size) == (2_000, 2_000)
    assert ledger.reserve(1_000)
    assert (old.size, used.size, new.size) == (0, 2_000, 2_000)
    assert not ledger.reserve(3_001)
    assert ledger.reserve(3_000)
    assert (used.size, new.size) == (2_000, 0)
    assert ledger.size == 7_000


def test_one_at_a_time_may_overdraw_and_leaves_the_reserved_share_to_others() -> None:
    ledger, first, second = MemoryLedger(SIZE_MAX), object(), object()
    assert ledger.reserve(7_000)
    assert ledger.overdraw(first, 50_000)
    assert not ledger.overdraw(second, 1)
    assert ledger.reserve(1_000, is_small=True)
    ledger.give_back(1_000, second)
    assert not ledger.overdraw(second, 1)
    ledger.give_back(50_000, first)
    assert ledger.overdraw(second, 1)


def test_what_those_need_who_have_waited_for_long_is_at_most_a_quarter() -> None:
    ledger = MemoryLedger(SIZE_MAX)
    ledger.wait(lambda: False, missing_size=1_000)
    assert ledger.starving_size() == 0, "it may be served in a moment"
    ledger.wait(lambda: False, missing_size=700)
    assert ledger.starving_size() == 1_000
    assert ledger.starving_size() == 1_700
    ledger.wait(lambda: False, missing_size=700)
    ledger.starving_size()
    assert ledger.starving_size() == SIZE_MAX // 4


MIB = 1024 * 1024


@pytest.mark.parametrize("size_max", [MIB, 16 * MIB])
@given(data=st.data())
def test_no_order_of_requests_exceeds_the_bound_by_more_than_one_request_or_makes_one_wait_for_ever(
    size_max: int, data: st.DataObject
) -> None:
    """Requests arrive in pieces, wait, are finished, kept, taken up again and given up, in any order."""
    sizes = data.draw(st.lists(st.sampled_from([100_000, SMALL_REQUEST_SIZE_MAX, 3 * MIB, 12 * MIB]), max_size=12))
    chance = random.Random(data.draw(st.integers(0, 1_000)))
    ledger = MemoryLedger(size_max)
    requests = [(RequestMemory(ledger, lambda: None), size) for size in sizes]
    largest = max(sizes, default=0)
    arrived = dict.fromkeys((request for request, _ in requests), 0)
    open_requests = list(requests)
    for _ in range(2_000):
        if not open_requests:
            break
        movable = [each for each in open_requests if not each[0].is_waiting]
        assert movable, "all wait for each other"
        request, size = chance.choice(movable)
        if arrived[request] < size:
            arrived[request] = min(size, max(request.size, arrived[request] + 64 * 1024))
            if arrived[request] > request.size or arrived[request] < size:
                request.grow(arrived[request], size)
        elif chance.random() < 0.5:
            request.close()
            open_requests.remove((request, size))
        elif request.size:
            request.keep()
            open_requests.remove((request, size))
        assert ledger.size <= size_max + largest
        assert ledger.size == sum(each.size for each, _ in requests)
    assert not open_requests
    assert ledger.waiting_count == 0
    for request, _ in requests:
        request.close()
    assert ledger.size == 0
