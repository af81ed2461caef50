"""The feed of the catalog's changes: who reads it knows what the catalog has, or is told that it cannot be known."""

import random
from collections.abc import Iterable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from courser.api import metadata_changes as f
from courser.api.commands import GetMetadataChanges
from courser.api.metadata_changes import ChangeBody, ChangeGroup, ChangeKind, ChangesStart, ChangesStatus
from courser.catalog import changes as c
from courser.catalog.change_feed import ChangeFeed
from courser.catalog.state import CatalogState
from courser.catalog.store import CatalogSettings, CatalogStore, replay
from courser.errors import CommandRejected
from courser.storage.journal_entries import make_entry
from courser.storage.recovery_cases import StopKind
from tests.catalog.opening import open_store
from tests.catalog.scenes import HASH, LIFE
from tests.fakes.clocks import ManualClock
from tests.fakes.files import FakeFileSystem
from tests.simulator.catalog_simulation import DATA, random_command

EARLIEST = GetMetadataChanges(ChangesStart.EARLIEST)
CURRENT = GetMetadataChanges(ChangesStart.CURRENT)
Known = dict[tuple[str, tuple[Any, ...]], Any]
"""What a client knows: of each resource, by kind and key."""


class Scene:
    """A store on a fake disk."""

    def __init__(self, start: Iterable[c.AnyChange] = (c.UserCreation("root", HASH),), created_at: int = 1) -> None:
        self.disk = FakeFileSystem(random.Random(1))
        self.disk.plant_directory(DATA)
        self.clock = ManualClock()
        self.clock.advance(created_at)
        self.store = self.open()
        for change in start:
            self.submit(change)

    def open(self) -> CatalogStore:
        settings = CatalogSettings(snapshot_age_max=2**62)
        return open_store(self.disk, DATA, clock=self.clock, stop=StopKind.KILLED, settings=settings)

    def restart(self) -> None:
        self.disk.kill()
        self.store = self.open()

    def submit(self, change: c.AnyChange) -> None:
        self.clock.advance(1)
        self.store.submit(change)

    def live(self, source: random.Random, count: int) -> None:
        for _ in range(count):
            try:
                self.submit(random_command(source, self.store.state))
            except CommandRejected:
                continue

    def read(self, wanted: GetMetadataChanges = EARLIEST) -> f.MetadataChanges:
        return self.store.feed.read(self.store.state, wanted)

    def after(self, cursor: f.Cursor | None, limit: int = 1000) -> f.MetadataChanges:
        return self.read(GetMetadataChanges(ChangesStart.AFTER, cursor, limit=limit))

    def kinds(self) -> list[ChangeKind]:
        return [record.kind for record in self.read(GetMetadataChanges(ChangesStart.EARLIEST, limit=1000)).records]


def learn(known: Known, group: ChangeGroup, body: ChangeBody) -> None:
    """What an item says, or the record of a creation or an update."""
    place = (body.stream_id, body.topic_id)
    match group:
        case ChangeGroup.STREAMS:
            known["stream", (body.stream_id,)] = (body.name, body.created_at)
        case ChangeGroup.TOPICS:
            known["topic", place] = (body.name, body.created_at, body.options)
            if isinstance(body.partitions_count, int):
                known["partitions", place] = body.partitions_count
        case ChangeGroup.PARTITIONS:
            known["partitions", place] = body.partitions_count
        case ChangeGroup.CONSUMER_GROUPS:
            known["group", (*place, body.group_id)] = body.name
        case ChangeGroup.USERS:
            user = (body.username, body.user_created_at, body.status, body.permissions)
            known["user", (body.user_id,)] = user
        case ChangeGroup.PERSONAL_ACCESS_TOKENS:
            known["token", (body.user_id, body.name)] = body.expiry


def forget(known: Known, *kinds: str, key: tuple[Any, ...]) -> None:
    """A resource, and what is in it."""
    for kind, other in list(known):
        if kind in kinds and other[: len(key)] == key:
            del known[kind, other]


def follow(known: Known, records: Iterable[f.ChangeRecord]) -> None:
    for record in records:
        body = record.body
        in_topic = ("topic", "partitions", "group")
        match record.kind:
            case ChangeKind.STREAM_DELETED:
                forget(known, "stream", *in_topic, key=(body.stream_id,))
            case ChangeKind.TOPIC_DELETED:
                forget(known, *in_topic, key=(body.stream_id, body.topic_id))
            case ChangeKind.CONSUMER_GROUP_DELETED:
                forget(known, "group", key=(body.stream_id, body.topic_id, body.group_id))
            case ChangeKind.USER_DELETED:
                forget(known, "user", "token", key=(body.user_id,))
            case ChangeKind.PERSONAL_ACCESS_TOKEN_DELETED:
                forget(known, "token", key=(body.user_id, body.name))
            case ChangeKind.USER_PASSWORD_CHANGED:
                assert known["user", (body.user_id,)][0] == body.username
            case ChangeKind.USER_PERMISSIONS_UPDATED:
                known["user", (body.user_id,)] = (*known["user", (body.user_id,)][:3], body.permissions)
            case _:
                learn(known, record.kind.group, body)


def contents(state: CatalogState) -> Known:
    """What a client should know."""
    known: Known = {}
    for stream in state.streams.values():
        known["stream", (stream.stream_id,)] = (stream.name, stream.created_at)
        for topic in stream.topics.values():
            place = (stream.stream_id, topic.topic_id)
            known["topic", place] = (topic.name, topic.created_at, topic.options)
            known["partitions", place] = len(topic.partitions)
            known |= {("group", (*place, group.group_id)): group.name for group in topic.groups.values()}
    for user in state.users.values():
        known["user", (user.user_id,)] = (user.name, user.created_at, user.is_active, user.permissions)
        known |= {("token", (user.user_id, token.name)): token.expires_at for token in user.tokens.values()}
    return known


# --- reading ------------------------------------------------------------------------------------------


@given(st.randoms(use_true_random=False), st.integers(1, 7))
def test_reading_from_the_beginning_rebuilds_what_there_is(source: random.Random, limit: int) -> None:
    scene, known = Scene(), dict[Any, Any]()
    scene.live(source, 40)
    page = scene.read(GetMetadataChanges(ChangesStart.EARLIEST, limit=limit))
    while True:
        assert page.status is ChangesStatus.OK
        assert (page.oldest_op, page.retained_since, page.head_op) == (1, 0, (scene.store.last_op or 0) + 1)
        follow(known, page.records)
        if not page.has_more:
            break
        assert len(page.records) == limit
        page = scene.after(page.next, limit)
    assert known == contents(scene.store.state)
    assert not scene.after(page.next).records


@given(st.randoms(use_true_random=False), st.integers(1, 7))
def test_pages_of_the_present_state_and_the_changes_after_them_are_one_state(source: random.Random, limit: int) -> None:
    scene, known = Scene(), dict[Any, Any]()
    scene.live(source, 60)
    page = scene.read(GetMetadataChanges(ChangesStart.CURRENT, limit=limit))
    anchor = page.next
    while True:
        assert (page.status, page.next, page.records) == (ChangesStatus.OK, anchor, ())
        for item in page.items:
            learn(known, item.group, item.body)
        assert (page.page_token is not None) == page.has_more
        if not page.has_more:
            break
        assert len(page.items) == limit
        scene.live(source, 1)
        wanted = GetMetadataChanges(ChangesStart.CURRENT, limit=limit, page_token=page.page_token)
        page = scene.read(wanted)
    follow(known, scene.after(anchor).records)
    assert known == contents(scene.store.state)


def test_every_kind_of_change_is_told() -> None:
    kinds = Scene(LIFE).kinds()
    assert set(kinds) == set(ChangeKind)
    untold = (c.StreamPurge, c.TopicPurge, c.PublishStart, c.PublishEnd, c.SinkRemoval, c.DirectoryRemoval)
    assert len(kinds) == len([change for change in LIFE if not isinstance(change, untold)])


def test_what_is_deleted_is_named() -> None:
    records = {record.kind: record.body for record in Scene(LIFE).read().records}
    partitions = records[ChangeKind.PARTITIONS_CHANGED]
    assert (partitions.partitions_count, partitions.removed_partition_ids) == (1, (1, 2))
    assert records[ChangeKind.STREAM_DELETED].name == "all orders"
    assert records[ChangeKind.TOPIC_DELETED].name == "returned"
    assert records[ChangeKind.USER_DELETED].username == "alice b"
    group = records[ChangeKind.CONSUMER_GROUP_DELETED]
    assert (group.name, group.consumer_groups_count) == ("billing", 1)
    assert records[ChangeKind.PERSONAL_ACCESS_TOKEN_DELETED].name == "laptop"


@pytest.mark.parametrize(("lifetime", "reason"), [(None, 0), (100, 0), (5, 1)])
def test_a_token_that_has_expired_is_deleted_for_that_reason(lifetime: int | None, reason: int) -> None:
    scene = Scene()
    expires_at = 0 if lifetime is None else scene.clock.now() + lifetime
    scene.submit(c.TokenCreation(0, "laptop", bytes(32), expires_at))
    scene.clock.advance(10)
    scene.submit(c.TokenDeletion(0, "laptop"))
    assert scene.read().records[-1].body.reason == reason


def test_only_the_groups_and_the_time_that_are_asked_for() -> None:
    scene = Scene(LIFE)
    every = scene.read().records
    groups = ChangeGroup.USERS.bit | ChangeGroup.CONSUMER_GROUPS.bit
    found = scene.read(GetMetadataChanges(ChangesStart.EARLIEST, groups=groups)).records
    assert found == tuple(record for record in every if record.kind.group.bit & groups)
    since, until = every[3].timestamp, every[6].timestamp
    wanted = GetMetadataChanges(ChangesStart.EARLIEST, since=since, until=until)
    assert scene.read(wanted).records == every[3:7]
    nothing = scene.read(GetMetadataChanges(ChangesStart.EARLIEST, groups=ChangeGroup.SESSIONS.bit))
    assert (nothing.records, nothing.has_more) == ((), False)
    assert nothing.next == scene.read(GetMetadataChanges(ChangesStart.LATEST)).next


def test_the_latest_page_is_where_new_changes_follow() -> None:
    scene = Scene(LIFE)
    page = scene.read(GetMetadataChanges(ChangesStart.LATEST))
    assert page.records == ()
    assert scene.after(page.next).records == ()
    scene.submit(c.StreamCreation("new", bytes(16)))
    (record,) = scene.after(page.next).records
    assert record.body.name == "new"


def test_items_are_of_the_groups_that_are_asked_for() -> None:
    scene = Scene(LIFE)
    groups = ChangeGroup.STREAMS.bit | ChangeGroup.TOPICS.bit
    items = scene.read(GetMetadataChanges(ChangesStart.CURRENT, groups=groups)).items
    assert [(item.group, item.body.name) for item in items] == [
        (ChangeGroup.STREAMS, "logs"),
        (ChangeGroup.TOPICS, "web"),
    ]


# --- positions that are not known -------------------------------------------------------------------------


def test_a_restart_keeps_what_the_journal_has() -> None:
    scene = Scene(LIFE)
    before = scene.read()
    scene.restart()
    assert scene.read() == before
    assert scene.after(before.next).status is ChangesStatus.OK


def test_a_position_that_only_a_snapshot_covers_has_expired() -> None:
    scene = Scene(LIFE)
    middle = scene.after(scene.read().next, 1).next
    early = scene.read(GetMetadataChanges(ChangesStart.EARLIEST, limit=1)).next
    scene.store.take_snapshot()
    assert scene.after(early).status is ChangesStatus.OK, "it is in memory"
    snapshot_op = (scene.store.last_op or 0) + 1
    scene.restart()
    scene.submit(c.StreamCreation("new", bytes(16)))
    assert early is not None
    for cursor in (early, middle, msgspec.structs.replace(early, op=0, checksum=bytes(16))):
        page = scene.after(cursor)
        assert (page.status, page.records, page.next) == (ChangesStatus.EXPIRED, (), None)
        assert (page.oldest_op, page.head_op) == (snapshot_op + 1, snapshot_op + 1)
        assert page.retained_since == scene.clock.now() - 1
    (record,) = scene.read().records
    assert record.op == snapshot_op + 1


def test_without_a_change_since_the_start_the_position_is_that_of_the_snapshot() -> None:
    scene = Scene(LIFE)
    scene.store.take_snapshot()
    scene.restart()
    page = scene.read(CURRENT)
    assert page.items
    assert scene.after(page.next).status is ChangesStatus.OK
    scene.submit(c.StreamCreation("new", bytes(16)))
    assert [record.body.name for record in scene.after(page.next).records] == ["new"]


def test_the_oldest_records_are_dropped() -> None:
    state, feed, parent = CatalogState(), ChangeFeed(record_count_max=5), bytes(16)
    cursors = []
    for op, change in enumerate(LIFE[:12]):
        if op == 6:
            continue
        entry, _ = make_entry(op=op, timestamp=100 + op, kind=1, parent=parent, body=b"")
        feed.follow(state, change, entry)
        cursors.append(feed.read(state, GetMetadataChanges(ChangesStart.LATEST)).next)
    page = feed.read(state, EARLIEST)
    assert [record.op for record in page.records] == [8, 9, 10, 11, 12]
    # The change before them, a purge, has no record: the oldest position is the one before it.
    assert (page.oldest_op, page.retained_since) == (7, 105)
    statuses = [feed.read(state, GetMetadataChanges(ChangesStart.AFTER, cursor)).status for cursor in cursors]
    assert statuses == [ChangesStatus.EXPIRED] * 5 + [ChangesStatus.OK] * 6


def test_a_position_of_another_history_is_reset() -> None:
    scene = Scene(LIFE)
    cursor = scene.read(GetMetadataChanges(ChangesStart.EARLIEST, limit=3)).next
    assert cursor is not None
    head = (scene.store.last_op or 0) + 1
    for changed in (
        {"log_id": bytes(16)},
        {"checksum": bytes(16)},
        {"ordinal": 1},
        {"op": head},
        {"op": head + 1},
    ):
        other = msgspec.structs.replace(cursor, **changed)
        assert scene.after(other).status is ChangesStatus.RESET
        token = f.PageToken(other, max(head, other.op), f.ALL_GROUPS, 1, (0,))
        page = scene.read(GetMetadataChanges(ChangesStart.CURRENT, page_token=token))
        assert (page.status, page.is_current, page.items) == (ChangesStatus.RESET, True, ())
    assert Scene(created_at=7).after(cursor).status is ChangesStatus.RESET


def test_older_metadata_that_was_restored_resets_newer_positions() -> None:
    """The log id is the same, so the checksums tell."""
    scene = Scene(LIFE)
    copy = scene.disk.clone(random.Random(1))
    seen = []
    for name in ("a", "b"):
        scene.submit(c.StreamCreation(name, bytes(16)))
        seen.append(scene.read(GetMetadataChanges(ChangesStart.LATEST)).next)
    token = scene.read(GetMetadataChanges(ChangesStart.CURRENT, limit=1)).page_token
    scene.disk = copy
    scene.restart()
    assert scene.read(GetMetadataChanges(ChangesStart.CURRENT, page_token=token)).status is ChangesStatus.RESET
    assert [scene.after(cursor).status for cursor in seen] == [ChangesStatus.RESET] * 2
    for name in ("c", "d", "e"):
        scene.submit(c.StreamCreation(name, bytes(16)))
    assert [scene.after(cursor).status for cursor in seen] == [ChangesStatus.RESET] * 2


def test_a_change_that_the_rules_no_longer_allow_is_not_told() -> None:
    scene = Scene()
    before = scene.read().records
    change = c.StreamDeletion(77)
    entry, _ = make_entry(op=1, timestamp=5, kind=3, parent=bytes(16), body=c.encode_change(change))
    replay(scene.store.state, entry, DATA, 0, scene.store.feed)
    assert scene.read().records == before
