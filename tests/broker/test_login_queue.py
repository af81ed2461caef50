"""The order of logins: fair, bounded, and the proof of the bound that docs/security.md states."""

from collections.abc import Callable, Iterator
from itertools import count, cycle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from courser.broker.access.login_queue import (
    ADDRESS_COUNT_MAX,
    PAIR_COUNT_MAX,
    WAITING_COUNT_MAX,
    LoginQueue,
    QueueEntry,
    network_of,
)

VICTIM = "203.0.113.7", "alice"


def entry(address: str, name: str, *, has_failed: bool = False) -> QueueEntry[str]:
    return QueueEntry(address, name, has_failed, f"{name} at {address}")


class Crowd:
    """A queue, and the largest crowds that the victim of a flood meets in it while it waits."""

    def __init__(self) -> None:
        self.queue: LoginQueue[str] = LoginQueue()
        self.waiting: set[QueueEntry[str]] = set()
        self.victim: QueueEntry[str] | None = None
        self.address_count = self.name_count = 0
        """Among first tries ..."""
        self.own_name_count = self.own_address_count = 0
        """... names at the victim's address, addresses under the victim's name."""

    def add(self, new: QueueEntry[str]) -> bool:
        loser = self.queue.add(new)
        if loser is not None:
            self.waiting.discard(loser)
        if loser is not new:
            self.waiting.add(new)
        self._look()
        return loser is not new

    def add_victim(self) -> None:
        self.victim = entry(*VICTIM)
        assert self.add(self.victim)

    def take(self) -> QueueEntry[str]:
        taken = self.queue.take()
        assert taken is not None
        self.waiting.discard(taken)
        self._look()
        return taken

    def _look(self) -> None:
        if self.victim is None:
            return
        first = [other for other in self.waiting if not other.has_failed]
        self.address_count = max(self.address_count, len({other.address for other in first}))
        self.name_count = max(self.name_count, len({other.name for other in first}))
        own_names = {other.name for other in first if other.address == self.victim.address}
        own_addresses = {other.address for other in first if other.name == self.victim.name}
        self.own_name_count = max(self.own_name_count, len(own_names))
        self.own_address_count = max(self.own_address_count, len(own_addresses))

    @property
    def bound(self) -> int:
        by_address = self.address_count * self.own_name_count
        by_name = self.name_count * self.own_address_count
        return 3 * min(by_address, by_name)

    def turns_of_victim(self, come_back: Callable[[QueueEntry[str]], QueueEntry[str]]) -> int:
        """Take turns until the victim has one. Whoever has had a turn comes back at once."""
        for number in range(1, 5000):
            taken = self.take()
            if taken is self.victim:
                return number
            self.add(come_back(taken))
        raise AssertionError("it has starved")


# --- the bound ---


def one_address_one_name(_: int) -> tuple[str, str]:
    return "198.51.100.1", "root"


def one_address_many_names(number: int) -> tuple[str, str]:
    return "198.51.100.1", f"user-{number}"


def ten_addresses_many_names(number: int) -> tuple[str, str]:
    return f"198.51.100.{number % 10}", f"user-{number}"


def many_addresses_one_name(number: int) -> tuple[str, str]:
    return f"198.51.{number // 256}.{number % 256}", "root"


def the_victims_address_under_another_name(_: int) -> tuple[str, str]:
    return VICTIM[0], "root"


def the_victims_name_from_ten_addresses(number: int) -> tuple[str, str]:
    return f"198.51.100.{number % 10}", VICTIM[1]


def the_victims_name_and_address_but_not_both(number: int) -> tuple[str, str]:
    return (VICTIM[0], f"user-{number % 5}") if number % 2 else (f"198.51.100.{number % 4}", VICTIM[1])


@pytest.mark.parametrize("connection_count", [1000, 3000])
@pytest.mark.parametrize(
    ("flood", "turn_count_max"),
    [
        (one_address_one_name, 3 * 2),
        (one_address_many_names, 3 * 2),
        (ten_addresses_many_names, 3 * 11),
        (many_addresses_one_name, 3 * 2),
        (the_victims_address_under_another_name, 3 * 2),
        (the_victims_name_from_ten_addresses, 3 * 11),
        (the_victims_name_and_address_but_not_both, 3 * 5 * 6),
    ],
)
def test_a_login_gets_its_turn_within_the_bound_whatever_the_flood(
    flood: Callable[[int], tuple[str, str]], turn_count_max: int, connection_count: int
) -> None:
    crowd = Crowd()
    for number in range(connection_count):
        crowd.add(entry(*flood(number)))
    for _ in range(37):
        # The flood goes on for a while: the turn of the rings is anywhere.
        taken = crowd.take()
        crowd.add(entry(taken.address, taken.name))
    crowd.add_victim()
    turn_count = crowd.turns_of_victim(lambda taken: entry(taken.address, taken.name))
    assert turn_count <= crowd.bound
    assert turn_count <= turn_count_max


@pytest.mark.parametrize("connection_count", [1000, 3000])
def test_connections_that_failed_before_do_not_hold_up_a_new_one_even_with_its_name_and_address(
    connection_count: int,
) -> None:
    """A flood of connections that stay: the case in which address and name tell nobody apart."""
    crowd = Crowd()
    for _ in range(connection_count):
        crowd.add(entry(*VICTIM, has_failed=True))
    crowd.add_victim()
    assert crowd.turns_of_victim(lambda taken: entry(*VICTIM, has_failed=True)) <= 3


@pytest.mark.parametrize("connection_count", [1000, 3000])
def test_a_flood_of_names_from_the_same_address_costs_at_most_its_share(connection_count: int) -> None:
    crowd, numbers = Crowd(), count()
    for _ in range(connection_count):
        crowd.add(entry(VICTIM[0], f"user-{next(numbers)}"))
    assert len(crowd.queue) == ADDRESS_COUNT_MAX
    assert not crowd.add(entry(*VICTIM)), "nothing tells it from the others: it may try again"
    crowd.take()
    crowd.add_victim()
    turn_count = crowd.turns_of_victim(lambda _: entry(VICTIM[0], f"user-{next(numbers)}"))
    assert turn_count <= crowd.bound
    assert turn_count <= 3 * ADDRESS_COUNT_MAX


def test_later_tries_get_their_turns_too() -> None:
    crowd = Crowd()
    crowd.victim = entry(*VICTIM, has_failed=True)
    for number in range(100):
        crowd.add(entry(f"198.51.100.{number}", f"user-{number}"))
    crowd.add(crowd.victim)
    assert crowd.turns_of_victim(lambda taken: entry(taken.address, taken.name)) <= 4


_places = st.tuples(st.integers(0, 6), st.integers(0, 6), st.booleans())


@settings(max_examples=300)
@given(before=st.lists(_places, max_size=80), meanwhile=st.lists(st.lists(_places, max_size=6), max_size=60))
def test_no_order_of_arrivals_breaks_the_bound(
    before: list[tuple[int, int, bool]], meanwhile: list[list[tuple[int, int, bool]]]
) -> None:
    """Address 0 and name 0 are the victim's; nobody else has both, which is what the bound supposes."""

    def arrive(crowd: Crowd, arrivals: list[tuple[int, int, bool]]) -> None:
        for address, name, has_failed in arrivals:
            if (address, name) != (0, 0):
                where = VICTIM[0] if address == 0 else f"198.51.100.{address}"
                crowd.add(entry(where, VICTIM[1] if name == 0 else f"user-{name}", has_failed=has_failed))

    crowd = Crowd()
    arrive(crowd, before)
    for _ in range(len(before) // 3):
        if crowd.waiting:
            crowd.take()
    crowd.add_victim()
    rounds: Iterator[list[tuple[int, int, bool]]] = cycle(meanwhile) if meanwhile else cycle([[]])
    for number in count(1):
        if crowd.take() is crowd.victim:
            break
        arrive(crowd, next(rounds))
        assert number < crowd.bound
    assert number <= crowd.bound


# --- the limits ---


def test_one_name_at_one_address_has_few_places() -> None:
    queue: LoginQueue[str] = LoginQueue()
    for _ in range(PAIR_COUNT_MAX):
        assert queue.add(entry(*VICTIM)) is None
    late = entry(*VICTIM)
    assert queue.add(late) is late
    assert late not in queue
    assert queue.add(entry(VICTIM[0], "bob")) is None
    assert queue.add(entry("198.51.100.1", VICTIM[1])) is None


def test_a_first_try_takes_the_place_of_the_newest_later_one() -> None:
    queue: LoginQueue[str] = LoginQueue()
    others = [entry(*VICTIM, has_failed=number % 3 > 0) for number in range(PAIR_COUNT_MAX)]
    for other in others:
        queue.add(other)
    late = entry(*VICTIM, has_failed=True)
    assert queue.add(late) is late
    assert queue.add(entry(*VICTIM)) is others[14]
    assert len(queue) == PAIR_COUNT_MAX


def test_an_address_that_is_full_makes_room_for_a_name_that_has_less() -> None:
    queue: LoginQueue[str] = LoginQueue()
    for number in range(ADDRESS_COUNT_MAX):
        assert queue.add(entry(VICTIM[0], f"user-{number // PAIR_COUNT_MAX}")) is None
    loser = queue.add(entry(*VICTIM))
    assert loser is not None
    assert loser.name.startswith("user-")
    late = entry(VICTIM[0], loser.name)
    assert queue.add(late) is late
    assert queue.add(entry(*VICTIM)) is not None
    assert len(queue) == ADDRESS_COUNT_MAX


def test_a_full_queue_makes_room_for_an_address_that_has_less() -> None:
    queue: LoginQueue[str] = LoginQueue()
    for number in range(WAITING_COUNT_MAX):
        assert queue.add(entry(f"198.51.100.{number % 10}", f"user-{number}")) is None
    loser = queue.add(entry(*VICTIM))
    assert loser is not None
    assert loser.address.startswith("198.51.100.")
    assert len(queue) == WAITING_COUNT_MAX


def test_a_full_queue_makes_room_for_a_name_that_has_less() -> None:
    queue: LoginQueue[str] = LoginQueue()
    for number in range(WAITING_COUNT_MAX):
        assert queue.add(entry(f"198.51.{number // 250}.{number % 250}", "root")) is None
    loser = queue.add(entry(*VICTIM))
    assert loser is not None
    assert loser.name == "root"
    late = entry("192.0.2.1", "root")
    assert queue.add(late) is late


def test_a_full_queue_of_equals_refuses_equals_and_admits_a_first_try_for_a_later_one() -> None:
    queue: LoginQueue[str] = LoginQueue()
    for number in range(WAITING_COUNT_MAX):
        assert queue.add(entry(f"198.51.{number // 250}.{number % 250}", f"user-{number}", has_failed=True)) is None
    late = entry("192.0.2.1", "bob", has_failed=True)
    assert queue.add(late) is late
    loser = queue.add(entry(*VICTIM))
    assert loser is not None
    assert loser.has_failed
    assert len(queue) == WAITING_COUNT_MAX


def test_an_empty_queue_keeps_nothing() -> None:
    queue: LoginQueue[str] = LoginQueue()
    places = [
        entry(f"198.51.100.{number % 7}", f"user-{number % 11}", has_failed=number % 3 > 0) for number in range(200)
    ]
    for other in places:
        queue.add(other)
    for other in places[::3]:
        queue.discard(other)
        queue.discard(other)
    while queue.take() is not None:
        pass
    assert len(queue) == 0
    assert not queue._addresses
    assert not queue._names
    assert not queue._pairs
    assert not queue._first
    assert not queue._repeated


# --- addresses ---


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("10.1.2.3:4567", "10.1.2.3"),
        ("127.0.0.1:1", "127.0.0.1"),
        ("[2001:db8:1:2:3:4:5:6]:80", "2001:db8:1:2::/64"),
        ("2001:db8:1:2:ffff::1:80", "2001:db8:1:2::/64"),
        ("[fe80::1%eth0]:80", "fe80::/64"),
        ("[::ffff:10.1.2.3]:80", "10.1.2.3"),
        ("socket", "socket"),
    ],
)
def test_what_counts_as_one_address(address: str, network: str) -> None:
    assert network_of(address) == network
