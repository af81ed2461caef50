"""Members of consumer groups, and the assignment of partitions to members.

Pure: no event loop, no clock, nothing on disk. The catalog knows which groups exist; a membership lasts as long as its
connection. Partition i is assigned to member i modulo n, in the order in which the members joined. So each partition
has at most one owner, and every change takes effect at once.
"""

from collections.abc import Callable, Iterable
from itertools import count as count_from
from typing import TypeAlias

from courser.api.replies import Assignment, GroupMember
from courser.broker.limits import DEFAULT_BROKER_LIMITS, BrokerLimits
from courser.broker.sessions import Session
from courser.errors import CommandRejected, ErrorCode

GroupKey: TypeAlias = tuple[int, int, int]
"""Stream, topic and group id."""

PartitionCount: TypeAlias = Callable[[int, int], int]
"""How many partitions a topic has, by stream and topic id."""


class _Member:
    """One connection in one group."""

    __slots__ = ("member_id", "partitions", "turn")

    def __init__(self, member_id: int) -> None:
        self.member_id = member_id
        self.partitions = range(0)
        """The assigned partitions: a range, since they are every n-th one."""
        self.turn = 0
        """The partition of the next poll that names none, as an index into ``partitions``."""


class _Group:
    """The members of one group, in the order in which they joined."""

    __slots__ = ("generation", "members", "partition_count")

    def __init__(self, partition_count: int) -> None:
        self.members: dict[Session, _Member] = {}
        self.partition_count = partition_count
        self.generation = 0

    def rebalance(self) -> None:
        """Reassign the partitions and increase the generation."""
        self.generation += 1
        member_count = len(self.members)
        for index, (session, member) in enumerate(self.members.items()):
            partitions = range(index, self.partition_count, member_count)
            if partitions != member.partitions:
                member.partitions = partitions
                member.turn = member.turn % len(partitions) if partitions else 0
            session.wake()


class ConsumerGroups:
    """The members of all groups. Has only groups with members; callers check first whether a group exists."""

    def __init__(self, partition_count: PartitionCount, limits: BrokerLimits = DEFAULT_BROKER_LIMITS) -> None:
        self._partition_count = partition_count
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
        group.rebalance()

    def leave(self, session: Session, key: GroupKey) -> None:
        """Leave a group. Raises ``CommandRejected`` (5006) if the session is not a member."""
        group = self._find(key)
        if group is None or session not in group.members:
            raise _not_a_member(session, key)
        _remove(group, session, key)

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
        """The members and their partitions, in the order in which they joined."""
        group = self._find(key)
        if group is None:
            return []
        return [GroupMember(member.member_id, tuple(member.partitions)) for member in group.members.values()]

    def assignment(self, session: Session, key: GroupKey) -> Assignment:
        """The partitions of a member, and the generation of the assignment. Raises ``CommandRejected`` (5006)."""
        group = self._find(key)
        member = None if group is None else group.members.get(session)
        if group is None or member is None:
            raise _not_a_member(session, key)
        return Assignment(group.generation, tuple(member.partitions))

    # --- polls and commits ---

    def partition_for_poll(self, session: Session, key: GroupKey, named: int | None) -> int:
        """The partition that a poll reads: the named one, or the member's partitions in turn, one per poll.

        Raises:
            CommandRejected: 5006 if the session is not a member, 5009 if the partition is not assigned to it or it has
                none.
        """
        member = self._member(session, key)
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
        member = self._member(session, key)
        if named is not None:
            return _owned(member.partitions, named)
        if not member.partitions:
            raise _nothing_owned()
        return member.partitions[member.turn]

    # --- changes of the catalog ---

    def partitions_changed(self, stream_id: int, topic_id: int, count: int) -> None:
        """The number of partitions of a topic changed."""
        for group in self._topics.get((stream_id, topic_id), {}).values():
            if group.partition_count != count:
                group.partition_count = count
                group.rebalance()

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

    def _member(self, session: Session, key: GroupKey) -> _Member:
        group = self._find(key)
        member = None if group is None else group.members.get(session)
        if member is None:
            raise _not_a_member(session, key)
        return member


def _remove(group: _Group, session: Session, key: GroupKey) -> None:
    del group.members[session]
    session.groups.discard(key)
    group.rebalance()


def _smallest_free(used: Iterable[int]) -> int:
    taken = set(used)
    return next(number for number in count_from() if number not in taken)


def _owned(partitions: range, partition_id: int) -> int:
    if partition_id not in partitions:
        reason = f"partition {partition_id} is not assigned to this member of the consumer group"
        raise CommandRejected(ErrorCode.PARTITION_NOT_OWNED, reason)
    return partition_id


def _nothing_owned() -> CommandRejected:
    reason = "the consumer group has more members than partitions, and none is assigned to this member"
    return CommandRejected(ErrorCode.PARTITION_NOT_OWNED, reason)


def _too_many(reason: str) -> CommandRejected:
    return CommandRejected(ErrorCode.TOO_MANY_MEMBERS, reason)


def _not_a_member(session: Session, key: GroupKey) -> CommandRejected:
    reason = f"client {session.client_id} is not a member of consumer group {key[2]}"
    return CommandRejected(ErrorCode.GROUP_MEMBER_NOT_FOUND, reason)
