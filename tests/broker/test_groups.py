"""Consumer groups: each partition has at most one owner, who may hold it until it has committed."""

import time
from collections.abc import Callable
from contextlib import suppress
from typing import ParamSpec

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from courser.api.replies import Assignment, ConfirmedAssignment, GroupMember
from courser.broker.access.sessions import Session
from courser.broker.groups.groups import HANDOVER_MAX, ConsumerGroups, GroupKey
from courser.broker.settings import DEFAULT_BROKER_LIMITS, BrokerLimits
from courser.errors import CommandRejected, ErrorCode
from courser.model.messaging import Transport
from tests.fakes.clocks import ManualClock

KEY = (0, 0, 0)
P = ParamSpec("P")


def connect(client_id: int = 1) -> Session:
    return Session(client_id, Transport.TCP, f"127.0.0.1:{client_id}", now=0)


def groups_over(partition_count: int, limits: BrokerLimits = DEFAULT_BROKER_LIMITS) -> ConsumerGroups:
    return ConsumerGroups(lambda _stream_id, _topic_id: partition_count, ManualClock(), limits)


def joined(groups: ConsumerGroups, count: int, key: GroupKey = KEY) -> list[Session]:
    sessions = [connect(number) for number in range(1, count + 1)]
    for session in sessions:
        groups.join(session, key)
    return sessions


def owned(groups: ConsumerGroups, key: GroupKey = KEY) -> list[tuple[int, ...]]:
    return [member.partition_ids for member in groups.members(key)]


def refused(call: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> ErrorCode:
    with pytest.raises(CommandRejected) as refusal:
        call(*args, **kwargs)
    return refusal.value.code


# --- limits ---


def test_a_group_has_so_many_members() -> None:
    groups = groups_over(3, BrokerLimits(member_count_max=3))
    sessions = joined(groups, 3)
    late = connect(9)
    assert refused(groups.join, late, KEY) is ErrorCode.TOO_MANY_MEMBERS
    assert late.groups == set()
    groups.join(sessions[0], KEY)
    groups.join(late, (0, 0, 1))
    groups.leave(sessions[0], KEY)
    groups.join(late, KEY)


def test_a_connection_is_a_member_of_so_many_groups() -> None:
    groups, session = groups_over(3, BrokerLimits(membership_count_max=3)), connect()
    for number in range(3):
        groups.join(session, (0, 0, number))
    assert refused(groups.join, session, (0, 0, 3)) is ErrorCode.TOO_MANY_MEMBERS
    assert groups.member_count((0, 0, 3)) == 0
    groups.join(connect(2), (0, 0, 3))


# --- membership ---


def test_nobody_is_a_member_at_first() -> None:
    groups = groups_over(3)
    assert groups.members(KEY) == []
    assert groups.member_count(KEY) == 0


def test_the_first_member_gets_everything_in_generation_1() -> None:
    groups = groups_over(3)
    (session,) = joined(groups, 1)
    assert groups.members(KEY) == [GroupMember(0, (0, 1, 2))]
    assert groups.assignment(session, KEY) == Assignment(1, (0, 1, 2))
    assert session.groups == {KEY}


def test_partition_i_belongs_to_member_i_modulo_n() -> None:
    groups = groups_over(7)
    joined(groups, 3)
    assert owned(groups) == [(0, 3, 6), (1, 4), (2, 5)]


def test_members_beyond_the_partitions_have_none() -> None:
    groups = groups_over(1)
    _, second = joined(groups, 2)
    assert owned(groups) == [(0,), ()]
    assert groups.assignment(second, KEY) == Assignment(2, ())


def test_joining_twice_changes_nothing() -> None:
    groups = groups_over(4)
    first, _ = joined(groups, 2)
    groups.join(first, KEY)
    assert groups.assignment(first, KEY) == Assignment(2, (0, 2))
    assert groups.member_count(KEY) == 2


def test_a_member_that_leaves_hands_its_partitions_on_at_once() -> None:
    groups = groups_over(4)
    first, second, third = joined(groups, 3)
    groups.leave(first, KEY)
    assert groups.assignment(second, KEY) == Assignment(4, (0, 2))
    assert groups.assignment(third, KEY) == Assignment(4, (1, 3))
    assert first.groups == set()


def test_a_session_that_goes_leaves_all_its_groups() -> None:
    groups = groups_over(2)
    session, other = connect(1), connect(2)
    for key in ((0, 0, 0), (0, 0, 1), (5, 1, 0)):
        groups.join(session, key)
    groups.join(other, KEY)
    groups.drop_session(session)
    assert session.groups == set()
    assert owned(groups) == [(0, 1)]
    assert groups.member_count((0, 0, 1)) == groups.member_count((5, 1, 0)) == 0
    groups.drop_session(session)


def test_member_ids_are_the_smallest_free_numbers() -> None:
    groups = groups_over(3)
    sessions = joined(groups, 3)
    groups.leave(sessions[1], KEY)
    groups.join(connect(9), KEY)
    groups.join(connect(10), KEY)
    assert [member.member_id for member in groups.members(KEY)] == [0, 2, 1, 3]


def test_generations_go_on_when_everybody_has_left() -> None:
    groups = groups_over(3)
    (session,) = joined(groups, 1)
    groups.leave(session, KEY)
    groups.join(session, KEY)
    assert groups.assignment(session, KEY).generation == 3


def test_one_who_is_no_member_is_told_so() -> None:
    groups = groups_over(3)
    stranger = connect(7)
    for key in (KEY, (0, 0, 1)):
        assert refused(groups.leave, stranger, key) is ErrorCode.GROUP_MEMBER_NOT_FOUND
        assert refused(groups.assignment, stranger, key) is ErrorCode.GROUP_MEMBER_NOT_FOUND
        for ask in (groups.partition_for_poll, groups.partition_for_commit):
            assert refused(ask, stranger, key, 0) is ErrorCode.GROUP_MEMBER_NOT_FOUND
            assert refused(ask, stranger, key, None) is ErrorCode.GROUP_MEMBER_NOT_FOUND
        joined(groups, 1)


# --- polls and commits ---


def test_polls_without_a_partition_go_round() -> None:
    groups = groups_over(5)
    first, _ = joined(groups, 2)
    assert [groups.partition_for_poll(first, KEY, None) for _ in range(7)] == [0, 2, 4, 0, 2, 4, 0]


def test_a_poll_that_names_its_partition_does_not_move_the_rotation() -> None:
    groups = groups_over(3)
    (session,) = joined(groups, 1)
    assert groups.partition_for_poll(session, KEY, None) == 0
    assert groups.partition_for_poll(session, KEY, 2) == 2
    assert groups.partition_for_poll(session, KEY, None) == 1


def test_a_commit_without_a_partition_is_about_the_one_that_the_next_poll_reads() -> None:
    groups = groups_over(3)
    (session,) = joined(groups, 1)
    assert groups.partition_for_commit(session, KEY, None) == 0
    groups.partition_for_poll(session, KEY, None)
    groups.partition_for_poll(session, KEY, None)
    assert groups.partition_for_commit(session, KEY, None) == 2
    assert groups.partition_for_commit(session, KEY, None) == 2
    assert groups.partition_for_commit(session, KEY, 1) == 1
    assert groups.partition_for_poll(session, KEY, None) == 2


@pytest.mark.parametrize("named", [1, 3, 4, 2**32 - 1])
def test_a_partition_of_another_member_or_none_is_refused(named: int) -> None:
    groups = groups_over(4)
    first, _ = joined(groups, 2)
    assert refused(groups.partition_for_poll, first, KEY, named) is ErrorCode.PARTITION_NOT_OWNED
    assert refused(groups.partition_for_commit, first, KEY, named) is ErrorCode.PARTITION_NOT_OWNED


@pytest.mark.parametrize("partition_count", [0, 1])
def test_a_member_without_partitions_reads_nothing(partition_count: int) -> None:
    groups = groups_over(partition_count)
    *_, last = joined(groups, 2)
    assert refused(groups.partition_for_poll, last, KEY, None) is ErrorCode.PARTITION_NOT_OWNED
    assert refused(groups.partition_for_commit, last, KEY, None) is ErrorCode.PARTITION_NOT_OWNED


def test_the_rotation_survives_a_rebalance() -> None:
    groups = groups_over(4)
    first, second = joined(groups, 2)
    assert [groups.partition_for_poll(first, KEY, None) for _ in range(1)] == [0]
    groups.leave(second, KEY)
    assert [groups.partition_for_poll(first, KEY, None) for _ in range(4)] == [1, 2, 3, 0]
    groups.partitions_changed(0, 0, 1)
    assert groups.partition_for_poll(first, KEY, None) == 0


# --- the catalog ---


def test_new_partitions_are_dealt_at_once() -> None:
    groups = groups_over(2)
    first, second = joined(groups, 2)
    groups.partitions_changed(0, 0, 5)
    assert groups.assignment(first, KEY) == Assignment(3, (0, 2, 4))
    groups.partitions_changed(0, 0, 1)
    assert groups.assignment(second, KEY) == Assignment(4, ())


def test_a_change_that_changes_nothing_is_no_new_generation() -> None:
    groups = groups_over(2)
    (session,) = joined(groups, 1)
    groups.partitions_changed(0, 0, 2)
    groups.partitions_changed(0, 1, 7)
    assert groups.assignment(session, KEY).generation == 1


def test_a_deleted_group_has_no_members() -> None:
    groups = groups_over(2)
    sessions = joined(groups, 2)
    groups.remove_members(KEY)
    groups.remove_members(KEY)
    assert groups.members(KEY) == []
    assert all(session.groups == set() for session in sessions)
    assert refused(groups.assignment, sessions[0], KEY) is ErrorCode.GROUP_MEMBER_NOT_FOUND


def test_a_deleted_topic_or_stream_takes_its_groups_along() -> None:
    groups = groups_over(2)
    session = connect()
    keys = [(0, 0, 0), (0, 0, 1), (0, 1, 0), (1, 0, 0)]
    for key in keys:
        groups.join(session, key)
    groups.topic_deleted(0, 0)
    assert session.groups == {(0, 1, 0), (1, 0, 0)}
    groups.stream_deleted(0)
    assert session.groups == {(1, 0, 0)}
    groups.stream_deleted(0)
    assert groups.member_count((1, 0, 0)) == 1


def test_a_thousand_members_of_a_thousand_partitions_stay_fast() -> None:
    groups = groups_over(1000)
    # Of this thread alone: whatever else the machine does meanwhile is not counted.
    began = time.thread_time()
    sessions = joined(groups, 1000)
    for session in sessions:
        assert groups.partition_for_poll(session, KEY, None) == session.client_id - 1
    for session in sessions:
        groups.drop_session(session)
    assert time.thread_time() - began < 10


# --- orderly members ---


def orderly(groups: ConsumerGroups, count: int) -> list[Session]:
    sessions = joined(groups, count)
    for session in sessions:
        groups.confirm(session, KEY, 0)
    return sessions


def test_an_orderly_member_holds_a_lost_partition_until_it_confirms() -> None:
    groups = groups_over(2)
    (first,) = orderly(groups, 1)
    second = connect(2)
    groups.join(second, KEY)
    assert groups.confirm(first, KEY, 1) == ConfirmedAssignment(2, (0,)), "generation 1 took nothing away"
    assert groups.assignment(second, KEY) == Assignment(2, ())
    assert owned(groups) == [(0, 1), ()]
    for session in (first, second):
        assert refused(groups.partition_for_poll, session, KEY, 1) is ErrorCode.PARTITION_NOT_OWNED
    assert groups.partition_for_commit(first, KEY, 1) == 1
    assert refused(groups.partition_for_commit, second, KEY, 1) is ErrorCode.PARTITION_NOT_OWNED
    assert groups.confirm(first, KEY, 2) == ConfirmedAssignment(3, (0,))
    assert groups.assignment(second, KEY) == Assignment(3, (1,))
    assert refused(groups.partition_for_commit, first, KEY, 1) is ErrorCode.PARTITION_NOT_OWNED


def test_a_held_partition_goes_on_when_its_member_leaves() -> None:
    groups = groups_over(2)
    (first,) = orderly(groups, 1)
    second = connect(2)
    groups.join(second, KEY)
    groups.drop_session(first)
    assert groups.assignment(second, KEY) == Assignment(3, (0, 1))


def test_a_held_partition_can_come_back() -> None:
    groups = groups_over(2)
    (first,) = orderly(groups, 1)
    second = connect(2)
    groups.join(second, KEY)
    groups.leave(second, KEY)
    assert groups.confirm(first, KEY, 1) == ConfirmedAssignment(3, (0, 1))
    assert groups.partition_for_poll(first, KEY, 1) == 1


def test_a_partition_that_is_deleted_is_not_held() -> None:
    groups = groups_over(2)
    orderly(groups, 1)
    groups.partitions_changed(0, 0, 1)
    assert owned(groups) == [(0,)]


def test_a_hold_ends_after_some_time() -> None:
    clock = ManualClock()
    groups = ConsumerGroups(lambda _stream_id, _topic_id: 2, clock)
    (first,) = orderly(groups, 1)
    second = connect(2)
    groups.join(second, KEY)
    clock.advance(HANDOVER_MAX - 1)
    groups.expire()
    assert groups.assignment(second, KEY) == Assignment(2, ())
    clock.advance(1)
    groups.expire()
    assert groups.assignment(second, KEY) == Assignment(3, (1,))
    groups.leave(second, KEY)
    # Both partitions are its own again, but others may have read them meanwhile.
    assert refused(groups.partition_for_commit, first, KEY, 1) is ErrorCode.PARTITION_NOT_OWNED
    assert refused(groups.confirm, first, KEY, 1) is ErrorCode.PARTITION_NOT_OWNED
    assert groups.confirm(first, KEY, 1) == ConfirmedAssignment(4, (0, 1))
    assert groups.partition_for_commit(first, KEY, 1) == 1


# --- whatever happens ---


class Groups(RuleBasedStateMachine):
    """Members come and go, partitions and groups too; the rules hold after every step."""

    SESSION_COUNT = 6
    KEYS = ((0, 0, 0), (0, 0, 1), (0, 1, 0), (1, 0, 0))

    def __init__(self) -> None:
        super().__init__()
        self.sessions = [connect(number) for number in range(1, self.SESSION_COUNT + 1)]
        self.partition_counts = {key[:2]: 3 for key in self.KEYS}
        self.clock = ManualClock()
        self.groups = ConsumerGroups(lambda stream_id, topic_id: self.partition_counts[stream_id, topic_id], self.clock)
        self.members: dict[GroupKey, list[Session]] = {key: [] for key in self.KEYS}
        self.generations = dict.fromkeys(self.KEYS, 0)
        self.changed: set[GroupKey] = set()

    sessions_drawn = st.integers(0, SESSION_COUNT - 1)
    keys_drawn = st.sampled_from(KEYS)

    @rule(index=sessions_drawn, key=keys_drawn)
    def join(self, index: int, key: GroupKey) -> None:
        session = self.sessions[index]
        self.groups.join(session, key)
        if session not in self.members[key]:
            self.members[key].append(session)
            self.changed.add(key)

    @rule(index=sessions_drawn, key=keys_drawn)
    def leave(self, index: int, key: GroupKey) -> None:
        session = self.sessions[index]
        if session not in self.members[key]:
            assert refused(self.groups.leave, session, key) is ErrorCode.GROUP_MEMBER_NOT_FOUND
            return
        self.groups.leave(session, key)
        self.members[key].remove(session)
        self.changed.add(key)

    @rule(index=sessions_drawn)
    def disconnect(self, index: int) -> None:
        session = self.sessions[index]
        self.groups.drop_session(session)
        for key, members in self.members.items():
            if session in members:
                members.remove(session)
                self.changed.add(key)

    @rule(index=sessions_drawn, key=keys_drawn, is_current=st.booleans())
    def confirm(self, index: int, key: GroupKey, is_current: bool) -> None:
        session = self.sessions[index]
        if session in self.members[key]:
            generation = self.groups.assignment(session, key).generation if is_current else 0
            before = self.groups.assignment(session, key).partition_ids
            with suppress(CommandRejected):
                self.groups.confirm(session, key, generation)
            assert self.groups.confirm(session, key, generation).partition_ids == before, "others get what it held"

    @rule()
    def wait(self) -> None:
        self.clock.advance(HANDOVER_MAX // 2)
        self.groups.expire()

    @rule(key=keys_drawn, count=st.integers(0, 9))
    def change_partitions(self, key: GroupKey, count: int) -> None:
        self.partition_counts[key[:2]] = count
        self.groups.partitions_changed(key[0], key[1], count)

    @rule(key=keys_drawn)
    def delete_group(self, key: GroupKey) -> None:
        self.groups.remove_members(key)
        self.members[key] = []
        # Ids of groups are not used again; here they are, as those of a new group.
        self.generations[key] = 0
        self.changed.discard(key)

    @rule(index=sessions_drawn, key=keys_drawn, poll_count=st.integers(1, 12))
    def poll(self, index: int, key: GroupKey, poll_count: int) -> None:
        session = self.sessions[index]
        if session not in self.members[key]:
            return
        partitions = self.groups.assignment(session, key).partition_ids
        if not partitions:
            assert refused(self.groups.partition_for_poll, session, key, None) is ErrorCode.PARTITION_NOT_OWNED
            return
        for _ in range(poll_count):
            expected = self.groups.partition_for_commit(session, key, None)
            polled = self.groups.partition_for_poll(session, key, None)
            assert polled == expected
            following = self.groups.partition_for_commit(session, key, None)
            assert partitions.index(following) == (partitions.index(polled) + 1) % len(partitions)

    @invariant()
    def every_partition_has_one_owner_if_there_are_members(self) -> None:
        for key, sessions in self.members.items():
            dealt = [partition_id for member in self.groups.members(key) for partition_id in member.partition_ids]
            expected = list(range(self.partition_counts[key[:2]])) if sessions else []
            assert sorted(dealt) == expected

    @invariant()
    def nobody_has_two_more_than_another(self) -> None:
        for key, sessions in self.members.items():
            counts = [len(self.groups.assignment(session, key).partition_ids) for session in sessions]
            if sum(counts) == self.partition_counts[key[:2]]:
                assert not counts or max(counts) - min(counts) <= 1

    @invariant()
    def a_member_may_poll_what_is_its_own_and_nothing_else(self) -> None:
        for key, sessions in self.members.items():
            for session in sessions:
                own = self.groups.assignment(session, key).partition_ids
                for partition_id in range(self.partition_counts[key[:2]] + 1):
                    if partition_id in own:
                        assert self.groups.partition_for_poll(session, key, partition_id) == partition_id
                    else:
                        refusal = refused(self.groups.partition_for_poll, session, key, partition_id)
                        assert refusal is ErrorCode.PARTITION_NOT_OWNED

    @invariant()
    def generations_grow_with_every_change_of_members(self) -> None:
        for key, sessions in self.members.items():
            if sessions:
                generations = {self.groups.assignment(session, key).generation for session in sessions}
                assert len(generations) == 1
                (generation,) = generations
                assert generation >= self.generations[key]
                if key in self.changed:
                    assert generation > self.generations[key]
                self.generations[key] = generation
                self.changed.discard(key)

    @invariant()
    def both_sides_know_the_memberships(self) -> None:
        for session in self.sessions:
            assert session.groups == {key for key, members in self.members.items() if session in members}
        for key, sessions in self.members.items():
            ids = [member.member_id for member in self.groups.members(key)]
            assert len(ids) == len(set(ids)) == len(sessions) == self.groups.member_count(key)


TestGroups = Groups.TestCase
