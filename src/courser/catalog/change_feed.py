"""The changes of the catalog as a feed: made where a change is applied, read in pages.

The feed begins after the last change that a snapshot covered at the start, because only the journal tells what changed.
Later snapshots do not shorten it. It is kept in memory alone.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import Any, TypeAlias, TypeVar

import xxhash
from msgspec.structs import replace

from courser.api import metadata_changes as f
from courser.api.commands import GetMetadataChanges
from courser.api.metadata_changes import ChangeBody, ChangeGroup, ChangeKind, ChangesStart, ChangesStatus
from courser.catalog import changes
from courser.catalog.entities import ConsumerGroup, Stream, Token, Topic, User
from courser.catalog.rules import ROOT_USER_ID
from courser.catalog.state import CatalogState
from courser.catalog.transitions import Created, apply_checked
from courser.errors import CommandRejected, ErrorCode
from courser.storage.journal_entries import NO_PARENT, Entry

Row = TypeVar("Row")
_Found: TypeAlias = tuple[ChangeKind, ChangeBody] | None

RECORD_COUNT_MAX = 10_000
"""Records in memory, about 5 MB: ten times as many as the journal has entries."""

_STREAM_PARENTS = ChangeGroup.STREAMS.bit
_TOPIC_PARENTS = _STREAM_PARENTS | ChangeGroup.TOPICS.bit
_PARENTS = {
    ChangeGroup.TOPICS: _STREAM_PARENTS,
    ChangeGroup.PARTITIONS: _TOPIC_PARENTS,
    ChangeGroup.CONSUMER_GROUPS: _TOPIC_PARENTS,
    ChangeGroup.CONSUMER_GROUP_MEMBERS: (_TOPIC_PARENTS | ChangeGroup.PARTITIONS.bit | ChangeGroup.CONSUMER_GROUPS.bit),
    ChangeGroup.PERSONAL_ACCESS_TOKENS: ChangeGroup.USERS.bit,
    ChangeGroup.SESSIONS: ChangeGroup.USERS.bit,
}
"""The groups without which items of a group say nothing."""


class ChangeFeed:
    """The newest changes, and where they begin."""

    def __init__(
        self,
        *,
        op: int = 0,
        checksum: bytes = NO_PARENT,
        timestamp: int = 0,
        record_count_max: int = RECORD_COUNT_MAX,
    ) -> None:
        """Begin after a change: its number, the checksum of its entry, and a time before which it was made."""
        self._oldest = (op, checksum)
        self._oldest_timestamp = timestamp
        self._records: deque[f.ChangeRecord] = deque()
        self._record_count_max = record_count_max
        self._head = op

    def follow(self, state: CatalogState, change: changes.AnyChange, entry: Entry) -> Created:
        """Apply a change that this state allows, and note what it did. Return what it created."""
        found = _record_of_deletion(state, change, entry.timestamp)
        created = apply_checked(state, change, entry.op, entry.timestamp)
        found = found or _record_of(state, change, created)
        self._head = entry.op + 1
        if found is not None:
            self._records.append(f.ChangeRecord(self._head, entry.checksum, entry.timestamp, *found))
            if len(self._records) > self._record_count_max:
                dropped = self._records.popleft()
                self._oldest = (dropped.op, dropped.checksum)
                self._oldest_timestamp = dropped.timestamp
        return created

    # --- reading ---

    def read(self, state: CatalogState, wanted: GetMetadataChanges) -> f.MetadataChanges:
        """A page. ``state`` is the state after the newest change.

        Raises:
            CommandRejected: no page can be asked for in this way.
        """
        _check(wanted)
        log_id = _log_id(state)
        is_current = wanted.start is ChangesStart.CURRENT
        token = wanted.page_token
        status = self._status_of(token.anchor if token is not None else wanted.cursor, log_id)
        if token is not None and token.head > self._head:
            status = ChangesStatus.RESET
        page = f.MetadataChanges(
            status, is_current, log_id, self._oldest[0] + 1, self._oldest_timestamp, head_op=self._head
        )
        if status is not ChangesStatus.OK:
            return page
        newest = self._records[-1] if self._records else None
        end = f.Cursor(log_id, *(self._oldest if newest is None else (newest.op, newest.checksum)))
        if is_current:
            return self._current_page(page, state, wanted, end)
        if wanted.start is ChangesStart.LATEST:
            return replace(page, next=end)
        records, has_more = _first(self._matching(wanted), wanted.limit)
        if has_more:
            end = f.Cursor(log_id, records[-1].op, records[-1].checksum)
        return replace(page, next=end, has_more=has_more, records=records)

    def _status_of(self, cursor: f.Cursor | None, log_id: bytes) -> ChangesStatus:
        if cursor is None:
            return ChangesStatus.OK
        # A position after the newest change is one of metadata that were replaced by older ones.
        if cursor.log_id != log_id or cursor.op > self._head:
            return ChangesStatus.RESET
        if cursor.op < self._oldest[0]:
            return ChangesStatus.EXPIRED
        known = chain([self._oldest], ((record.op, record.checksum) for record in self._records))
        is_known = cursor.ordinal == 0 and (cursor.op, cursor.checksum) in known
        return ChangesStatus.OK if is_known else ChangesStatus.RESET

    def _matching(self, wanted: GetMetadataChanges) -> Iterator[f.ChangeRecord]:
        start = 0 if wanted.cursor is None else wanted.cursor.op
        since = 0 if wanted.since is None else wanted.since
        for record in self._records:
            is_in_time = since <= record.timestamp and (wanted.until is None or record.timestamp <= wanted.until)
            if record.op > start and is_in_time and record.kind.group.bit & wanted.groups:
                yield record

    def _current_page(
        self, page: f.MetadataChanges, state: CatalogState, wanted: GetMetadataChanges, newest: f.Cursor
    ) -> f.MetadataChanges:
        """Pages are made at different times: the changes after the anchor, applied to them, make them one state."""
        token = wanted.page_token
        anchor, last, after = (newest, 0, ()) if token is None else (token.anchor, token.group, token.key)
        keys = (
            (group, key)
            for group in ChangeGroup
            if group.bit & wanted.groups and group >= last
            for key in _keys(state, group, after if group == last else ())
            if group > last or key > after
        )
        found, has_more = _first(keys, wanted.limit)
        items = tuple(f.ChangeItem(group, _item(state, group, key)) for group, key in found)
        next_token = f.PageToken(anchor, self._head, wanted.groups, *found[-1]) if has_more else None
        return replace(page, next=anchor, has_more=has_more, items=items, page_token=next_token)


def _first(rows: Iterable[Row], limit: int) -> tuple[tuple[Row, ...], bool]:
    """The first rows, and whether there are more."""
    found = tuple(islice(rows, limit + 1))
    return found[:limit], len(found) > limit


def _log_id(state: CatalogState) -> bytes:
    """What tells the history of this catalog from that of another: when its first user was created."""
    return xxhash.xxh3_128_digest(state.users[ROOT_USER_ID].created_at.to_bytes(8, "little"))


def _check(wanted: GetMetadataChanges) -> None:
    is_current, token = wanted.start is ChangesStart.CURRENT, wanted.page_token
    since, until = wanted.since, wanted.until
    has_time = since is not None or until is not None
    refusals = (
        (not 1 <= wanted.limit <= f.LIMIT_MAX, f"a limit of {wanted.limit}, where 1 to {f.LIMIT_MAX} are allowed"),
        (since is not None and until is not None and since > until, "since is after until"),
        (has_time and (is_current or wanted.start is ChangesStart.LATEST), "only changes have a time"),
        (is_current and _misses_parents(wanted.groups), "items of these groups need those of the groups they are in"),
        (token is not None and token.groups != wanted.groups, "the page token is of other groups"),
    )
    for is_refused, reason in refusals:
        if is_refused:
            raise CommandRejected(ErrorCode.INVALID_COMMAND, reason)


def _misses_parents(groups: int) -> bool:
    return any(group.bit & groups and parents & ~groups for group, parents in _PARENTS.items())


# --- records ------------------------------------------------------------------------------------------


def _record_of_deletion(state: CatalogState, change: changes.AnyChange, timestamp: int) -> _Found:
    """Made before the deletion is applied; None if it is not one."""
    match change:
        case changes.StreamDeletion():
            stream = state.streams[change.stream_id]
            return ChangeKind.STREAM_DELETED, _stream(stream, requested_op=None)
        case changes.TopicDeletion():
            topic = state.streams[change.stream_id].topics[change.topic_id]
            return ChangeKind.TOPIC_DELETED, _topic(change.stream_id, topic, requested_op=None)
        case changes.GroupDeletion():
            topic = state.streams[change.stream_id].topics[change.topic_id]
            group, count = topic.groups[change.group_id], len(topic.groups) - 1
            body = _group(change.stream_id, topic, group, consumer_groups_count=count, requested_op=None)
            return ChangeKind.CONSUMER_GROUP_DELETED, body
        case changes.UserDeletion():
            return ChangeKind.USER_DELETED, _user(state.users[change.user_id])
        case changes.TokenDeletion():
            user = state.users[change.user_id]
            is_expired = user.tokens[change.name].is_expired(timestamp)
            body = _user_key(user, name=change.name, reason=int(is_expired))
            return ChangeKind.PERSONAL_ACCESS_TOKEN_DELETED, body
    return None


def _record_of(state: CatalogState, change: changes.AnyChange, created: Created) -> _Found:
    """Made after the change is applied; None if the feed does not tell it."""
    match change, created:
        case changes.StreamCreation(), Stream():
            return ChangeKind.STREAM_CREATED, _stream(created, options=None)
        case changes.StreamUpdate(), _:
            return ChangeKind.STREAM_UPDATED, _stream(state.streams[change.stream_id], options=None)
        case changes.TopicCreation(), Topic():
            return ChangeKind.TOPIC_CREATED, _whole_topic(change.stream_id, created)
        case changes.TopicUpdate(), _:
            topic = state.streams[change.stream_id].topics[change.topic_id]
            return ChangeKind.TOPIC_UPDATED, _whole_topic(change.stream_id, topic)
        case ((changes.PartitionCreation() | changes.PartitionDeletion()), _):
            topic = state.streams[change.stream_id].topics[change.topic_id]
            count = len(topic.partitions)
            removed = range(count, count + change.count) if isinstance(change, changes.PartitionDeletion) else ()
            body = _topic_key(
                change.stream_id,
                topic,
                partitions_count=count,
                removed_partition_ids=tuple(removed),
                requested_op=None,
            )
            return ChangeKind.PARTITIONS_CHANGED, body
        case changes.GroupCreation(), ConsumerGroup():
            topic = state.streams[change.stream_id].topics[change.topic_id]
            body = _group(change.stream_id, topic, created, consumer_groups_count=len(topic.groups))
            return ChangeKind.CONSUMER_GROUP_CREATED, body
        case changes.TokenCreation(), Token():
            return ChangeKind.PERSONAL_ACCESS_TOKEN_CREATED, _token(state.users[change.user_id], created)
        case changes.UserCreation(), User():
            return ChangeKind.USER_CREATED, _whole_user(created)
        case changes.UserUpdate(), _:
            return ChangeKind.USER_UPDATED, _whole_user(state.users[change.user_id])
        case changes.PasswordChange(), _:
            return ChangeKind.USER_PASSWORD_CHANGED, _user(state.users[change.user_id])
        case changes.PermissionUpdate(), _:
            user = state.users[change.user_id]
            return ChangeKind.USER_PERMISSIONS_UPDATED, _user(user, permissions=user.permissions, reason=0)
    return None


# --- items of the present state -----------------------------------------------------------------------


def _keys(state: CatalogState, group: ChangeGroup, after: f.ItemKey) -> Iterator[tuple[Any, ...]]:
    """The keys of all items of a group from about ``after`` on, in order. There may be very many topics before it."""
    match group:
        case ChangeGroup.STREAMS:
            yield from ((number,) for number in sorted(state.streams))
        case ChangeGroup.TOPICS | ChangeGroup.PARTITIONS | ChangeGroup.CONSUMER_GROUPS:
            has_groups = group is ChangeGroup.CONSUMER_GROUPS
            for number in sorted(state.streams):
                if (number,) < after[:1]:
                    continue
                topics = state.streams[number].topics
                if has_groups:
                    # Most topics have none, and there may be very many topics.
                    topics = {topic_id: topic for topic_id, topic in topics.items() if topic.groups}
                ids = sorted(topics)
                for topic_id in ids[bisect_left(ids, after[1]) if (number,) == after[:1] else 0 :]:
                    if has_groups:
                        yield from ((number, topic_id, group_id) for group_id in sorted(topics[topic_id].groups))
                    else:
                        yield number, topic_id
        case ChangeGroup.USERS:
            yield from ((user_id,) for user_id in sorted(state.users))
        case ChangeGroup.PERSONAL_ACCESS_TOKENS:
            for user_id in sorted(state.users):
                yield from ((user_id, name) for name in sorted(state.users[user_id].tokens))


def _item(state: CatalogState, group: ChangeGroup, key: tuple[Any, ...]) -> ChangeBody:
    first, *rest = key
    if group is ChangeGroup.STREAMS:
        return _stream(state.streams[first], options=None)
    if group is ChangeGroup.USERS:
        return _whole_user(state.users[first])
    if group is ChangeGroup.PERSONAL_ACCESS_TOKENS:
        user = state.users[first]
        return _token(user, user.tokens[rest[0]])
    topic = state.streams[first].topics[rest[0]]
    if group is ChangeGroup.TOPICS:
        return _topic(first, topic, options=topic.options)
    if group is ChangeGroup.PARTITIONS:
        return _topic_key(first, topic, partitions_count=len(topic.partitions))
    return _group(first, topic, topic.groups[rest[1]])


# --- what both say ------------------------------------------------------------------------------------


def _stream(stream: Stream, **more: Any) -> ChangeBody:
    return ChangeBody(
        stream_id=stream.stream_id, stream_created_op=0, created_at=stream.created_at, name=stream.name, **more
    )


def _topic_key(stream_id: int, topic: Topic, **more: Any) -> ChangeBody:
    return ChangeBody(stream_id=stream_id, stream_created_op=0, topic_id=topic.topic_id, topic_created_op=0, **more)


def _topic(stream_id: int, topic: Topic, **more: Any) -> ChangeBody:
    return _topic_key(stream_id, topic, created_at=topic.created_at, name=topic.name, **more)


def _whole_topic(stream_id: int, topic: Topic) -> ChangeBody:
    return _topic(stream_id, topic, partitions_count=len(topic.partitions), options=topic.options)


def _group(stream_id: int, topic: Topic, group: ConsumerGroup, **more: Any) -> ChangeBody:
    return _topic_key(stream_id, topic, group_id=group.group_id, name=group.name, **more)


def _user_key(user: User, **more: Any) -> ChangeBody:
    return ChangeBody(user_id=user.user_id, user_created_at=user.created_at, **more)


def _user(user: User, **more: Any) -> ChangeBody:
    return _user_key(user, username=user.name, **more)


def _whole_user(user: User) -> ChangeBody:
    return _user(user, status=user.is_active, permissions=user.permissions, options=None)


def _token(user: User, token: Token) -> ChangeBody:
    return _user_key(user, name=token.name, expiry=token.expires_at)
