"""Consumer groups whose members are separate programs, of one release and of several."""

from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest

from tests.sdk.conversations import PATIENCE, Conversation
from tests.sdk.environments import RELEASES
from tests.servers import RunningServer
from tests.torture.process import until

PARTITION_COUNT = 4
QUICK_HEARTBEAT = "?heartbeat_interval=300ms"
NEWEST = RELEASES[-1]
MIXED = (
    ("0.8.0", "0.9.0"),
    ("0.9.0", "0.8.0"),
    ("0.5.0", "0.7.0"),
    ("0.9.0", NEWEST),
    (NEWEST, "0.9.0"),
    (NEWEST, "0.8.0"),
)
PAIRS = [*((release, release) for release in RELEASES), *MIXED]


class Group:
    """A topic of four partitions, a group, and its members."""

    def __init__(self, address: str, operator: Conversation, name: str) -> None:
        self._address = address
        self._operator = operator
        self.place = {"stream": name, "topic": "work"}
        operator.ask("create", client="root", partitions=PARTITION_COUNT, **self.place)
        self._sent = 0

    def join(self, stack: ExitStack, release: str) -> Conversation:
        member = stack.enter_context(Conversation(release, self._address))
        # 0.9 looks for a new assignment with every heartbeat, which it usually sends every five seconds.
        options = "" if release == "0.5.0" else QUICK_HEARTBEAT
        member.ask("connect", client="own", options=options)
        member.ask("consume", client="own", name="member", group="workers", **self.place)
        return member

    def wait_for_shares(self, *expected: list[int]) -> None:
        """Until the server tells these as the partitions of each member; until 0.6 the SDK joins in the background."""
        wait_for_shares(self._operator, self.place, list(expected))

    def send(self, count: int) -> set[str]:
        """Send so many messages to every partition; return the payloads."""
        numbers = range(self._sent, self._sent + count)
        self._sent += count
        for index in range(PARTITION_COUNT):
            payloads = [f"{index} {number}" for number in numbers]
            self._operator.ask("send", client="root", index=index, payloads=payloads, **self.place)
        return {f"{index} {number}" for index in range(PARTITION_COUNT) for number in numbers}

    def wait_for_stored_offset(self, expected: int) -> None:
        """Until the server remembers this offset for every partition; the SDK stores in the background."""
        for index in range(PARTITION_COUNT):
            place: dict[str, Any] = {"group": "workers", "index": index, **self.place}
            ask = partial(self._operator.ask, "stored_offset", client="root", **place)
            until(lambda ask=ask: ask() == expected, f"offset {expected} for partition {index}", PATIENCE)  # type: ignore[misc]


@pytest.fixture
def operator(shared_server: RunningServer) -> Iterator[Conversation]:
    with Conversation("0.9.0", shared_server.address) as operator:
        operator.ask("connect", client="root")
        yield operator


def wait_for_shares(operator: Conversation, place: dict[str, str], expected: list[list[int]]) -> None:
    ask = partial(operator.ask, "members", client="root", group="workers", **place)
    until(lambda: ask() == expected, f"the assignment of {expected}", PATIENCE)


def in_order(payloads: list[str]) -> bool:
    by_partition: dict[str, list[int]] = {}
    for payload in payloads:
        index, number = payload.split()
        by_partition.setdefault(index, []).append(int(number))
    return all(numbers == sorted(set(numbers)) for numbers in by_partition.values())


@pytest.mark.parametrize(("first", "second"), PAIRS, ids=[f"{first}-and-{second}" for first, second in PAIRS])
def test_two_members_share_the_work_and_one_takes_over(
    shared_server: RunningServer, operator: Conversation, first: str, second: str
) -> None:
    group = Group(shared_server.address, operator, f"group-{first}-{second}")
    with ExitStack() as stack:
        old = group.join(stack, first)
        old.wait_until_given(group.send(5))
        group.wait_for_shares([0, 1, 2, 3])

        new = group.join(stack, second)
        group.wait_for_shares([0, 2], [1, 3])
        sent = group.send(20)
        for member in (old, new):
            member.wait_until_given_count(len(sent) // 2, of=sent)
        old_part, new_part = (set(member.given) & sent for member in (old, new))
        assert old_part.isdisjoint(new_part), "each message comes to one member"
        assert {payload.split()[0] for payload in old_part} == {"0", "2"}
        assert {payload.split()[0] for payload in new_part} == {"1", "3"}

        # Its connections break without a word; the other one takes over, and nothing is lost on the way.
        old.kill()
        new.wait_until_given(group.send(5))
        group.wait_for_shares([0, 1, 2, 3])
        assert in_order(new.given)
        group.wait_for_stored_offset(29)


@pytest.fixture(scope="module")
def impatient_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server that takes a member for dead after 2.4 seconds of silence."""
    settings = {"heartbeat.enabled": "true", "heartbeat.interval": "2s"}
    with RunningServer(tmp_path_factory.mktemp("impatient-server"), settings=settings) as server:
        yield server


@pytest.mark.parametrize(
    "release",
    [
        # Usual runs take the oldest and the newest of each protocol.
        pytest.param(release, marks=pytest.mark.slow) if release in ("0.6.0", "0.7.0") else release
        for release in RELEASES
    ],
)
def test_a_member_that_falls_silent_is_replaced(impatient_server: RunningServer, release: str) -> None:
    with ExitStack() as stack:
        operator = stack.enter_context(Conversation("0.9.0", impatient_server.address))
        operator.ask("connect", client="root", options=QUICK_HEARTBEAT)
        group = Group(impatient_server.address, operator, f"silence-{release}")
        silent = group.join(stack, release)
        group.wait_for_shares([0, 1, 2, 3])
        other = group.join(stack, "0.9.0")
        group.wait_for_shares([0, 2], [1, 3])
        silent.freeze()
        other.wait_until_given(group.send(5))
        group.wait_for_shares([0, 1, 2, 3])


def test_members_of_all_releases_share_one_topic(shared_server: RunningServer, operator: Conversation) -> None:
    place: dict[str, str] = {"stream": "group-of-all", "topic": "work"}
    partition_count = len(RELEASES)
    operator.ask("create", client="root", partitions=partition_count, **place)
    with ExitStack() as stack:
        members = [stack.enter_context(Conversation(release, shared_server.address)) for release in RELEASES]
        for count, member in enumerate(members, 1):
            member.ask("connect", client="own")
            member.ask("consume", client="own", name="member", group="workers", **place)
            wait_for_shares(operator, place, [list(range(first, partition_count, count)) for first in range(count)])
        for index in range(partition_count):
            payloads = [f"{index} {number}" for number in range(10)]
            operator.ask("send", client="root", index=index, payloads=payloads, **place)
        for index, member in enumerate(members):
            expected = [f"{index} {number}" for number in range(10)]
            member.wait_until_given(set(expected))
            assert member.given == expected
