"""Members of consumer groups, and the assignment of partitions to members.

Pure: no event loop, nothing on disk, and the time is handed in. The catalog knows which groups exist; a membership
lasts as long as its connection. Partition i is assigned to member i modulo n, in the order in which the members joined.
So each partition has at most one owner.

Most members lose a partition at once. An orderly member, one that confirms its assignments, holds it until it has
committed what it processed: nobody else reads the partition until the member confirms, leaves, or runs out of time
(docs/adr/0016).
"""

from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import count as count_from
from typing import TypeAlias

from courser.api.replies import Assignment, ConfirmedAssignment, GroupMember
from courser.broker.access.sessions import Session
from courser.broker.settings import DEFAULT_BROKER_LIMITS, BrokerLimits
from courser.errors import CommandRejected, ErrorCode
from courser.model.clock import Clock

GroupKey: TypeAlias = tuple[int, int, int]
"""Stream, topic and group id."""

PartitionCount: TypeAlias = Callable[[int, int], int]
"""How many partitions a topic has, by stream and topic id."""


HANDOVER_MAX = 30_000_000
"""Microseconds that an orderly member may hold a partition that it has lost."""


@dataclass(frozen=True, slots=True)
class _Hold:
    """A lost partition that its old owner may still commit."""

    generation: int
    """The generation that took the partition away."""
    deadline: int
    """When it goes to the new owner in any case, by the monotonic clock."""


class _Member:
    """One connection in one group."""

    __slots__ = ("held", "is_orderly", "is_overdue", "member_id", "partitions", "target", "turn")

    def __init__(self, member_id: int) -> None:
        self.member_id = member_id
        self.target = range(0)
        """The partitions that it is to have: every n-th one."""
        self.partitions: Sequence[int] = self.target
        """Those of them that no other member holds."""
        self.held: dict[int, _Hold] = {}
        """Partitions that it has lost but not given up."""
        self.is_orderly = False
        """Whether it confirms its assignments."""
        self.is_overdue = False
        """Whether a partition was taken from it without its consent. It may commit nothing until it has learned so."""
        self.turn = 0
        """The partition of the next poll that names none, as an index into ``partitions``."""

    def aim(self, target: range, hold: _Hold) -> None:
        """Assign other partitions. An orderly member holds those that it loses."""
        if self.is_orderly:
            lost = {*self.partitions, *self.held}.difference(target)
            # The topic may have fewer partitions now.
            self.held = {number: self.held.get(number, hold) for number in lost if number < target.stop}
        self.target = target

    def share(self, held: AbstractSet[int]) -> None:
        """Take the assigned partitions that no member holds."""
        partitions = tuple(number for number in self.target if number not in held) if held else self.target
        if partitions != self.partitions:
            self.partitions = partitions
            self.turn = self.turn % len(partitions) if partitions else 0

    def give_up(self, is_over: Callable[[_Hold], bool]) -> bool:
        """Stop holding partitions. Returns whether there were any."""
        kept = {partition_id: hold for partition_id, hold in self.held.items() if not is_over(hold)}
        is_changed = len(kept) < len(self.held)
        self.held = kept
        return is_changed


class _Group:
    """The members of one group, in the order in which they joined."""

    __slots__ = ("deadline", "generation", "members", "partition_count")

    def __init__(self, partition_count: int) -> None:
        self.members: dict[Session, _Member] = {}
        self.partition_count = partition_count
        self.generation = 0
        self.deadline: int | None = None
        """When the first held partition goes to its new owner."""

    def rebalance(self, now: int) -> None:
        """Assign the partitions anew to all members."""
        member_count = len(self.members)
        hold = _Hold(self.generation + 1, now + HANDOVER_MAX)
        for index, member in enumerate(self.members.values()):
            member.aim(range(index, self.partition_count, member_count), hold)
        self.share()

    def share(self) -> None:
        """Increase the generation, and tell the members."""
        self.generation += 1
        holds = {number: hold for member in self.members.values() for number, hold in member.held.items()}
        self.deadline = min((hold.deadline for hold in holds.values()), default=None)
        for session, member in self.members.items():
            member.share(holds.keys())
            session.wake()

    def expire(self, now: int) -> None:
        """Take away what members have held for too long."""
        if self.deadline is None or now < self.deadline:
            return
        late = [member for member in self.members.values() if member.give_up(lambda hold: hold.deadline <= now)]
        for member in late:
            member.is_overdue = True
        self.share()


class ConsumerGroups:
    """The members of all groups. Has only groups with members; callers check first whether a group exists."""

    def __init__(
        self, partition_count: PartitionCount, clock: Clock, limits: BrokerLimits = DEFAULT_BROKER_LIMITS
    ) -> None:
        self._partition_count = partition_count
        self._now = clock.monotonic
        self._limits = limits
        self._topics: dict[tuple[int, int], dict[int, _Group]] = {}

    # --- membership ---

    def join(self, session: Session, key: GroupKey) -> None:
        """Join a group. Joining twice changes nothing. Raises ``CommandRejected`` (20031) if there are too many."""
        stream_id, topic_id, group_id = key
        if key in session.groups:
            return
        limits = self._limits
        if len(session.groups) >= limits.membership_count_max:
            raise _too_many(f"a connection can be a member of at most {limits.membership_count_max} consumer groups")
        if self.member_count(key) >= limits.member_count_max:
            raise _too_many(f"a consumer group can have at most {limits.member_count_max} members")
        groups = self._topics.setdefault((stream_id, topic_id), {})
        group = groups.get(group_id)
        if group is None:
            group = groups[group_id] = _Group(self._partition_count(stream_id, topic_id))
        group.members[session] = _Member(_smallest_free(member.member_id for member in group.members.values()))
        session.groups.add(key)
        group.rebalance(self._now())

    def leave(self, session: Session, key: GroupKey) -> None:
        """Leave a group. Raises ``CommandRejected`` (5006) if the session is not a member."""
        group = self._find(key)
        if group is None or session not in group.members:
            raise _not_a_member(session, key)
        del group.members[session]
        session.groups.discard(key)
        group.rebalance(self._now())

    def drop_session(self, session: Session) -> None:
        """Leave all groups: the connection was closed, or its user changed."""
        for key in tuple(session.groups):
            self.leave(session, key)

    # --- facts ---

    def member_count(self, key: GroupKey) -> int:
        """How many members a group has."""
        group = self._find(key)
        return 0 if group is None else len(group.members)

    def members(self, key: GroupKey) -> list[GroupMember]:
        """The members and the partitions that each owns or holds, in the order in which they joined."""
        group = self._find(key)
        if group is None:
            return []
        return [
            GroupMember(member.member_id, tuple(sorted((*member.partitions, *member.held))))
            for member in group.members.values()
        ]

    def assignment(self, session: Session, key: GroupKey) -> Assignment:
        """The partitions of a member, and the generation of the assignment. Raises ``CommandRejected`` (5006)."""
        group, member = self._found(session, key)
        group.expire(self._now())
        return Assignment(group.generation, tuple(member.partitions))

    def confirm(self, session: Session, key: GroupKey, generation: int) -> ConfirmedAssignment:
        """``assignment`` for an orderly member, which has given up all that this and older generations took away.

        Raises:
            CommandRejected: 5006 if the session is not a member; 5009, once, if it lost a partition by not confirming
                in time: other members may have read any of its partitions since.
        """
        group, member = self._found(session, key)
        if member.is_overdue:
            member.is_overdue = False
            reason = "a partition was taken from this member, which did not confirm that it had given it up"
            raise CommandRejected(ErrorCode.PARTITION_NOT_OWNED, reason)
        member.is_orderly = True
        if member.give_up(lambda hold: hold.generation <= generation):
            group.share()
        group.expire(self._now())
        return ConfirmedAssignment(group.generation, tuple(member.partitions))

    def expire(self) -> None:
        """Take partitions from members that have held them for too long."""
        now = self._now()
        for groups in self._topics.values():
            for group in groups.values():
                group.expire(now)

    # --- polls and commits ---

    def partition_for_poll(self, session: Session, key: GroupKey, named: int | None) -> int:
        """The partition that a poll reads: the named one, or the member's partitions in turn, one per poll.

        Raises:
            CommandRejected: 5006 if the session is not a member, 5009 if the partition is not assigned to it or it has
                none.
        """
        _, member = self._found(session, key)
        partitions = member.partitions
        if named is not None:
            return _owned(partitions, named)
        if not partitions:
            raise _nothing_owned()
        turn = member.turn
        member.turn = turn + 1 if turn + 1 < len(partitions) else 0
        return partitions[turn]

    def partition_for_commit(self, session: Session, key: GroupKey, named: int | None) -> int:
        """The partition of a commit: the named one, or the one that the next poll would read.

        Raises:
            CommandRejected: see ``partition_for_poll``.
        """
        _, member = self._found(session, key)
        if named is not None:
            if member.is_overdue:
                raise _not_owned(named)
            return named if named in member.held else _owned(member.partitions, named)
        if not member.partitions:
            raise _nothing_owned()
        return member.partitions[member.turn]

    # --- changes of the catalog ---

    def partitions_changed(self, stream_id: int, topic_id: int, count: int) -> None:
        """The number of partitions of a topic changed."""
        for group in self._topics.get((stream_id, topic_id), {}).values():
            if group.partition_count != count:
                group.partition_count = count
                group.rebalance(self._now())

    def remove_members(self, key: GroupKey) -> None:
        """Remove all members of a group: it was deleted, or its offsets are reset."""
        stream_id, topic_id, group_id = key
        groups = self._topics.get((stream_id, topic_id), {})
        group = groups.pop(group_id, None)
        if group is not None:
            for session in group.members:
                session.groups.discard(key)
                session.wake()
        if not groups:
            self._topics.pop((stream_id, topic_id), None)

    def topic_deleted(self, stream_id: int, topic_id: int) -> None:
        """A topic was deleted with all its groups."""
        for group_id in tuple(self._topics.get((stream_id, topic_id), {})):
            self.remove_members((stream_id, topic_id, group_id))

    def stream_deleted(self, stream_id: int) -> None:
        """A stream was deleted with all its topics."""
        for other_id, topic_id in tuple(self._topics):
            if other_id == stream_id:
                self.topic_deleted(stream_id, topic_id)

    # --- finding ---

    def _find(self, key: GroupKey) -> _Group | None:
        groups = self._topics.get(key[:2])
        return None if groups is None else groups.get(key[2])

    def _found(self, session: Session, key: GroupKey) -> tuple[_Group, _Member]:
        group = self._find(key)
        if group is None or session not in group.members:
            raise _not_a_member(session, key)
        return group, group.members[session]


def _smallest_free(used: Iterable[int]) -> int:
    taken = set(used)
    return next(number for number in count_from() if number not in taken)


def _owned(partitions: Sequence[int], partition_id: int) -> int:
    if partition_id not in partitions:
        raise _not_owned(partition_id)
    return partition_id


def _not_owned(partition_id: int) -> CommandRejected:
    reason = f"partition {partition_id} is not assigned to this member of the consumer group"
    return CommandRejected(ErrorCode.PARTITION_NOT_OWNED, reason)


def _nothing_owned() -> CommandRejected:
    reason = "the consumer group has more members than partitions, and none is assigned to this member"
    return CommandRejected(ErrorCode.PARTITION_NOT_OWNED, reason)


def _too_many(reason: str) -> CommandRejected:
    return CommandRejected(ErrorCode.TOO_MANY_MEMBERS, reason)


def _not_a_member(session: Session, key: GroupKey) -> CommandRejected:
    reason = f"client {session.client_id} is not a member of consumer group {key[2]}"
    return CommandRejected(ErrorCode.GROUP_MEMBER_NOT_FOUND, reason)
