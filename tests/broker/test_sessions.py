"""The registry of connections, and what happens to members that fall silent."""

import asyncio

import pytest

from courser.broker.access.heartbeats import Heartbeats
from courser.broker.access.sessions import Session, Sessions
from courser.broker.groups.groups import ConsumerGroups
from courser.errors import CommandRejected, CourserError, ErrorCode
from courser.model.messaging import Transport
from tests.fakes.clocks import ManualClock

KEY = (0, 0, 0)
SECOND = 1_000_000


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def groups() -> ConsumerGroups:
    return ConsumerGroups(lambda _stream_id, _topic_id: 4, ManualClock())


@pytest.fixture
def sessions(clock: ManualClock, groups: ConsumerGroups) -> Sessions:
    return Sessions(clock, groups)


def connect(sessions: Sessions) -> Session:
    return sessions.open(Transport.TCP, "127.0.0.1:5000")


# --- the registry ---


def test_a_new_connection_has_a_number_and_nobody_logged_in(sessions: Sessions, clock: ManualClock) -> None:
    clock.advance(5)
    session = sessions.open(Transport.WEBSOCKET, "[::1]:4711")
    assert 0 < session.client_id < 2**32
    assert (session.transport, session.address) == (Transport.WEBSOCKET, "[::1]:4711")
    assert (session.user_id, session.connected_at, session.last_seen) == (None, 5, 5)
    assert sessions.get(session.client_id) is session
    assert len(sessions) == 1


def test_numbers_are_never_0_and_never_used_twice_at_once(clock: ManualClock, groups: ConsumerGroups) -> None:
    drawn = iter([7, 0, 7, 7, 9, 7])
    sessions = Sessions(clock, groups, lambda: next(drawn))
    first, second = connect(sessions), connect(sessions)
    assert (first.client_id, second.client_id) == (7, 9)
    sessions.close(first)
    assert connect(sessions).client_id == 7


def test_connections_are_listed_by_number(sessions: Sessions) -> None:
    opened = [connect(sessions) for _ in range(20)]
    assert sessions.all() == sorted(opened, key=lambda session: session.client_id)


def test_connections_of_a_user_are_those_where_it_is_logged_in(sessions: Sessions) -> None:
    first, second, third = (connect(sessions) for _ in range(3))
    first.user_id = third.user_id = 5
    second.user_id = 6
    assert set(sessions.of_user(5)) == {first, third}
    first.user_id = None
    assert sessions.of_user(5) == [third]
    assert sessions.of_user(7) == []


def test_a_closed_connection_is_gone_from_everywhere(sessions: Sessions, groups: ConsumerGroups) -> None:
    session, other = connect(sessions), connect(sessions)
    session.user_id = 5
    groups.join(session, KEY)
    groups.join(other, KEY)
    sessions.close(session)
    sessions.close(session)
    assert sessions.all() == [other]
    assert sessions.of_user(5) == []
    assert groups.assignment(other, KEY).partition_ids == (0, 1, 2, 3)


def test_closing_a_connection_does_not_end_it_once_more(sessions: Sessions) -> None:
    session = connect(sessions)
    told: list[CourserError] = []
    session.on_end = told.append
    sessions.close(session)
    assert told == []
    assert session.ended is not None


def test_ending_a_session_tells_the_transport_once(sessions: Sessions, groups: ConsumerGroups) -> None:
    session = connect(sessions)
    told: list[CourserError] = []
    session.user_id, session.on_end = 5, told.append
    groups.join(session, KEY)
    first = CommandRejected(ErrorCode.STALE_CLIENT, "silent")
    sessions.end(session, first)
    sessions.end(session, CommandRejected(ErrorCode.UNAUTHENTICATED, "later"))
    assert told == [first]
    assert session.ended is first
    assert sessions.of_user(5) == []
    assert session.groups == set()
    assert sessions.all() == []


def test_an_ended_session_that_is_closed_later_does_not_take_another_along(
    clock: ManualClock, groups: ConsumerGroups
) -> None:
    sessions = Sessions(clock, groups, lambda: 7)
    ended = connect(sessions)
    sessions.end(ended, CommandRejected(ErrorCode.STALE_CLIENT, "silent"))
    another = connect(sessions)
    sessions.close(ended)
    assert sessions.all() == [another]


async def test_ending_a_session_ends_its_long_poll(sessions: Sessions) -> None:
    session = connect(sessions)
    session.waiting = asyncio.get_running_loop().create_future()
    sessions.end(session, CommandRejected(ErrorCode.CLIENT_NOT_FOUND, "deleted"))
    assert session.waiting.cancelled()


# --- heartbeats ---


def test_a_member_is_stale_after_more_than_1_2_intervals(
    sessions: Sessions, groups: ConsumerGroups, clock: ManualClock
) -> None:
    heartbeats = Heartbeats(sessions, clock, interval=30 * SECOND)
    member = connect(sessions)
    groups.join(member, KEY)
    assert heartbeats.stale_sessions(36 * SECOND) == []
    assert heartbeats.stale_sessions(36 * SECOND + 1) == [member]


def test_any_request_counts_as_a_sign_of_life(sessions: Sessions, groups: ConsumerGroups, clock: ManualClock) -> None:
    heartbeats = Heartbeats(sessions, clock, interval=30 * SECOND)
    member = connect(sessions)
    groups.join(member, KEY)
    member.last_seen = 20 * SECOND
    assert heartbeats.stale_sessions(56 * SECOND) == []


async def test_a_member_that_waits_for_messages_is_not_silent(
    sessions: Sessions, groups: ConsumerGroups, clock: ManualClock
) -> None:
    heartbeats = Heartbeats(sessions, clock, interval=2 * SECOND)
    member = connect(sessions)
    groups.join(member, KEY)
    member.waiting = asyncio.get_running_loop().create_future()
    assert heartbeats.stale_sessions(20 * SECOND) == []
    member.waiting = None
    assert heartbeats.stale_sessions(22 * SECOND) == []
    assert heartbeats.stale_sessions(23 * SECOND) == [member]


def test_connections_without_a_membership_may_be_silent(sessions: Sessions, clock: ManualClock) -> None:
    connect(sessions)
    clock.advance(3600 * SECOND)
    assert Heartbeats(sessions, clock, interval=30 * SECOND).drop_stale() == 0


def test_a_stale_member_is_dropped_and_its_partitions_are_for_others(
    sessions: Sessions, groups: ConsumerGroups, clock: ManualClock
) -> None:
    heartbeats = Heartbeats(sessions, clock, interval=2 * SECOND)
    silent, lively = connect(sessions), connect(sessions)
    for session in (silent, lively):
        groups.join(session, KEY)
    clock.advance(3 * SECOND)
    lively.last_seen = clock.monotonic()
    assert heartbeats.drop_stale() == 1
    assert silent.ended is not None
    assert silent.ended.code is ErrorCode.STALE_CLIENT
    assert groups.assignment(lively, KEY).partition_ids == (0, 1, 2, 3)
    assert heartbeats.drop_stale() == 0
