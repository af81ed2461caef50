"""The catalog as a state machine: deterministic, total, and the same wherever snapshots and restarts fall."""

import random
from collections.abc import Sequence
from enum import Enum

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from courser.catalog import changes as c
from courser.catalog.changes import decode_change, encode_change
from courser.catalog.entities import ID_MAX, ConsumerGroup, Partition, Token, UsedIds
from courser.catalog.rules import check
from courser.catalog.state import CatalogState
from courser.catalog.store import CatalogSettings, CatalogStore
from courser.catalog.transitions import apply
from courser.errors import CommandRejected
from courser.model.clock import CLOCK_LEAD_MAX
from courser.model.permissions import Permissions, StreamPermissions
from courser.model.topic_options import TopicOptions
from courser.storage.recovery_cases import StopKind
from tests.catalog.opening import open_store
from tests.catalog.scenes import HASH, LIFE, uuid
from tests.fakes.clocks import ManualClock
from tests.fakes.files import FakeFileSystem
from tests.simulator.catalog_simulation import DATA, random_command
from tests.work import work_of

IDS = st.one_of(st.integers(0, 4), st.sampled_from([-(2**63), -1, ID_MAX, ID_MAX + 1, 2**64 - 1]))
MAYBE_IDS = st.none() | IDS
COUNTS = st.one_of(st.integers(-1, 4), st.sampled_from([-(2**63), 1000, 1001, 2**64 - 1]))
NAMES = st.one_of(
    st.sampled_from(["a", "b", "abc", "root", "", "n" * 255, "n" * 256, "\ud800", "é" * 128, "a/../b", "\0"]),
    st.text(max_size=4),
)
UUIDS = st.sampled_from([bytes(16), b"u" * 16, b"", bytes(17)])
HASHES = st.sampled_from([HASH, "", "plain", "$argon2id$"])
OPTIONS = st.builds(
    TopicOptions, message_expiry=st.none() | st.integers(-1, 2**64 - 1), durability=st.none() | st.text(max_size=3)
)
PERMISSIONS = st.none() | st.builds(
    Permissions, streams=st.dictionaries(st.integers(0, 3), st.just(StreamPermissions(read_stream=True)))
)
ANY_COMMAND: st.SearchStrategy[c.AnyChange] = st.one_of(
    st.builds(c.StreamCreation, NAMES, UUIDS, MAYBE_IDS),
    st.builds(c.StreamUpdate, IDS, NAMES),
    st.builds(c.StreamDeletion, IDS),
    st.builds(c.StreamPurge, IDS),
    st.builds(c.TopicCreation, IDS, NAMES, UUIDS, COUNTS, OPTIONS, MAYBE_IDS),
    st.builds(c.TopicUpdate, IDS, IDS, NAMES, OPTIONS),
    st.builds(c.TopicDeletion, IDS, IDS),
    st.builds(c.TopicPurge, IDS, IDS),
    st.builds(c.PartitionCreation, IDS, IDS, COUNTS),
    st.builds(c.PartitionDeletion, IDS, IDS, COUNTS),
    st.builds(c.GroupCreation, IDS, IDS, NAMES, MAYBE_IDS),
    st.builds(c.GroupDeletion, IDS, IDS, IDS),
    st.builds(c.UserCreation, NAMES, HASHES, st.booleans(), PERMISSIONS),
    st.builds(c.UserUpdate, IDS, st.none() | NAMES, st.none() | st.booleans()),
    st.builds(c.UserDeletion, IDS),
    st.builds(c.PasswordChange, IDS, HASHES),
    st.builds(c.PermissionUpdate, IDS, PERMISSIONS),
    st.builds(c.TokenCreation, IDS, NAMES, st.sampled_from([bytes(32), b""]), st.integers(0, 2**64 - 1)),
    st.builds(c.TokenDeletion, IDS, NAMES),
    st.builds(c.DirectoryRemoval, st.lists(st.sampled_from(["streams/0", "streams/1", ""])).map(tuple)),
)
"""Any command at all; few of them make sense."""


def grown_state(seed: int) -> CatalogState:
    """A state in which many ids exist."""
    source = random.Random(seed)
    state = CatalogState()
    for op in range(40):
        apply(state, random_command(source, state), op, op)
    return state


def refuses(state: CatalogState, command: c.AnyChange) -> bool:
    try:
        check(state, command)
    except CommandRejected:
        return True
    return False


@given(st.integers(0, 2**32), st.lists(ANY_COMMAND, max_size=30))
def test_applying_is_total_and_a_rejected_command_changes_nothing(seed: int, commands: list[c.AnyChange]) -> None:
    state = grown_state(seed)
    for number, command in enumerate(commands):
        before = state.encode()
        is_refused = refuses(state, command)
        assert state.encode() == before
        answer = apply(state, command, 100 + number, 7)
        assert isinstance(answer, CommandRejected) == is_refused
        if is_refused:
            assert state.encode() == before
        check_look_ups(state)


def check_look_ups(state: CatalogState) -> None:
    names = state.stream_by_name, state.topic_by_name, state.user_by_name
    state.index_names()
    assert names == (state.stream_by_name, state.topic_by_name, state.user_by_name)
    assert len(state.stream_by_name) == len(state.streams)
    assert len(state.user_by_name) == len(state.users)
    for stream in state.streams.values():
        for topic in stream.topics.values():
            assert [partition.partition_id for partition in topic.partitions] == list(range(len(topic.partitions)))


@given(ANY_COMMAND)
def test_every_command_is_read_as_it_was_written_or_cannot_be_written(command: c.AnyChange) -> None:
    try:
        body = encode_change(command)
    except UnicodeEncodeError:
        return
    assert decode_change(body) == command


@given(st.binary(max_size=40))
def test_bytes_that_are_no_command_are_refused_and_nothing_else(body: bytes) -> None:
    try:
        command = decode_change(body)
    except ValueError:
        return
    assert isinstance(command, c.Change)
    apply(grown_state(1), command, 100, 7)


# --- ids ---


@given(st.lists(st.none() | st.integers(0, 30), max_size=40))
def test_no_id_is_given_out_twice(wishes: list[int | None]) -> None:
    ids, used = UsedIds(), set[int]()
    for wish in wishes:
        if wish is not None and ids.is_used(wish):
            assert wish in used
            continue
        number = ids.use(wish)
        assert wish in (None, number)
        assert number not in used
        used.add(number)
        assert {number for number in range(80) if ids.is_used(number)} == used
    assert ids.holes == sorted(ids.holes)


@given(st.sets(st.integers(0, 20)), st.sets(st.integers(0, 20)))
def test_merged_ids_are_used_if_either_says_so(first: set[int], second: set[int]) -> None:
    mine, theirs = UsedIds(), UsedIds()
    for number in first:
        mine.use(number)
    for number in second:
        theirs.use(number)
    mine.merge(theirs)
    assert {number for number in range(30) if mine.is_used(number)} == first | second
    assert mine.next_id == max([-1, *first, *second]) + 1


@given(st.randoms(use_true_random=False))
def test_ids_stay_used_over_any_history(source: random.Random) -> None:
    state = CatalogState()
    given_out: dict[str, set[tuple[int, ...]]] = {"stream": set(), "topic": set(), "group": set(), "user": set()}
    for op in range(60):
        known = ids_in(state)
        apply(state, random_command(source, state), op, op)
        for kind, now in ids_in(state).items():
            fresh = now - known[kind]
            assert not fresh & given_out[kind], f"{kind} ids {fresh & given_out[kind]} were given out before"
            given_out[kind] |= fresh
        state = CatalogState.decode(state.encode()) if source.random() < 0.2 else state


def ids_in(state: CatalogState) -> dict[str, set[tuple[int, ...]]]:
    """Ids with those of what they belong to, by its uuid: a new topic counts its groups anew."""
    topics = [(stream, topic) for stream in state.streams.values() for topic in stream.topics.values()]
    return {
        "stream": {(stream_id,) for stream_id in state.streams},
        "topic": {(stream.stream_id, topic.topic_id) for stream, topic in topics},
        "group": {(stream.stream_id, topic.topic_id, group) for stream, topic in topics for group in topic.groups},
        "user": {(user_id,) for user_id in state.users},
    }


# --- snapshots and restarts ---


class Event(Enum):
    """What may happen between two commands."""

    COMMAND = "command"
    SNAPSHOT = "snapshot"
    CLEAN_RESTART = "clean restart"
    KILL = "kill"
    POWER_CUT = "power cut"


EVENTS = st.lists(st.sampled_from([*[Event.COMMAND] * 6, *Event]), max_size=60)


class Reality:
    """A store on a fake disk, restarted at will."""

    def __init__(self, source: random.Random, settings: CatalogSettings) -> None:
        self.disk = FakeFileSystem(source)
        self.disk.plant_directory(DATA)
        self.clock = ManualClock()
        self.settings = settings
        self.store = self.open(StopKind.CRASHED)

    def open(self, stop: StopKind) -> CatalogStore:
        return open_store(self.disk, DATA, clock=self.clock, stop=stop, settings=self.settings)

    def happen(self, event: Event) -> None:
        match event:
            case Event.SNAPSHOT:
                self.store.take_snapshot()
            case Event.CLEAN_RESTART:
                self.store.close()
                self.store = self.open(StopKind.CLEAN)
            case Event.KILL:
                self.disk.kill()
                self.store = self.open(StopKind.KILLED)
            case Event.POWER_CUT:
                self.disk.power_cut()
                self.store = self.open(StopKind.CRASHED)
            case Event.COMMAND:
                raise AssertionError("commands are not events")


@given(st.randoms(use_true_random=False), EVENTS, st.sampled_from([(4, 1), (8, 2), (1024, 64)]))
def test_any_snapshots_and_restarts_give_the_same_state(
    source: random.Random, events: Sequence[Event], slots: tuple[int, int]
) -> None:
    model, op = CatalogState(), 0
    reality = Reality(random.Random(1), CatalogSettings(slot_count=slots[0], slot_margin=slots[1]))
    for event in events:
        snapshot_op = reality.store.snapshot_op
        if event is Event.COMMAND:
            command = random_command(source, model)
            timestamp = reality.clock.now()
            if not refuses(model, command):
                reality.store.submit(command)
                apply(model, command, op, timestamp)
                op += 1
            reality.clock.advance(source.randrange(5))
        else:
            reality.happen(event)
        assert reality.store.state.hash() == model.hash()
        assert reality.store.last_op == (op - 1 if op else None)
        # The snapshot position never falls.
        assert snapshot_op is None or (
            reality.store.snapshot_op is not None and reality.store.snapshot_op >= snapshot_op
        )
        check_look_ups(reality.store.state)


@pytest.mark.parametrize("events", [(), (Event.KILL,), (Event.SNAPSHOT,), (Event.SNAPSHOT, Event.KILL)])
@pytest.mark.parametrize("lead", [CLOCK_LEAD_MAX, CLOCK_LEAD_MAX + 1])
def test_times_of_commands_wait_for_a_clock_that_went_back_a_little_and_follow_one_that_was_set(
    events: Sequence[Event], lead: int
) -> None:
    reality = Reality(random.Random(1), CatalogSettings())
    reality.store.submit(c.StreamCreation("first", bytes(16)))
    reality.clock.jump(-lead)
    for event in events:
        reality.happen(event)
    reality.store.submit(c.StreamCreation("second", bytes(16)))
    first, second = reality.store.state.streams.values()
    assert second.created_at == (first.created_at if lead <= CLOCK_LEAD_MAX else reality.clock.now())


def test_every_command_does_what_it_says() -> None:
    """The life of ``scenes``, looked at before its end."""
    state = CatalogState()
    for op, command in enumerate(LIFE[:19]):
        assert not isinstance(apply(state, command, op, 1000 + op), CommandRejected), command
    stream = state.streams[0]
    assert (stream.name, stream.uuid, stream.created_at) == ("all orders", uuid(1), 1001)
    assert list(stream.topics) == [0]
    assert stream.topic_ids == UsedIds(6, [(1, 5)])
    topic = stream.topics[0]
    assert (topic.name, topic.uuid, topic.options, topic.created_at) == ("new orders", uuid(2), TopicOptions(), 1002)
    assert topic.partitions == [Partition(0, 2, 1002)]
    # One purge of the topic, one of the stream.
    assert topic.purge_count == 2
    assert topic.groups == {7: ConsumerGroup(7, "audit", 1012)}
    assert topic.group_ids == UsedIds(8, [(1, 7)])
    root, alice = state.users.values()
    assert (root.user_id, root.name, root.is_active, root.permissions) == (0, "root", True, None)
    assert (alice.user_id, alice.name, alice.is_active, alice.created_at) == (1, "alice b", False, 1007)
    assert (alice.password_hash, alice.permissions) == (HASH + "2", None)
    assert alice.tokens == {"laptop": Token("laptop", bytes(32), 1009, 2**50)}
    partitions = "streams/0/topics/0/partitions"
    assert {path: deleted.uuid for path, deleted in state.deleted.items()} == {
        f"{partitions}/1-2": uuid(2),
        f"{partitions}/2-5": uuid(2),
        "streams/0/topics/5": uuid(3),
    }
    apply(state, c.DirectoryRemoval((f"{partitions}/1-2", "streams/0/topics/5")), 19, 0)
    assert list(state.deleted) == [f"{partitions}/2-5"]


def test_what_is_to_be_removed_with_its_parent_is_not_listed_beside_it() -> None:
    state = CatalogState()
    commands: list[c.AnyChange] = [
        c.StreamCreation("s", bytes(16)),
        c.TopicCreation(0, "t", b"t" * 16, 2, TopicOptions()),
        c.TopicCreation(0, "u", b"u" * 16, 0, TopicOptions(), 10),
        c.TopicCreation(0, "v", b"v" * 16, 0, TopicOptions(), 1),
        c.PartitionDeletion(0, 0, 2),
        c.TopicDeletion(0, 10),
        c.TopicDeletion(0, 1),
    ]
    for op, command in enumerate(commands):
        assert not isinstance(apply(state, command, op, 0), CommandRejected)
    topics = "streams/0/topics"
    assert sorted(state.deleted) == [f"{topics}/0/partitions/{name}" for name in ("0-1", "1-1")] + [
        f"{topics}/{number}" for number in (1, 10)
    ]
    apply(state, c.TopicDeletion(0, 0), 7, 0)
    assert sorted(state.deleted) == [f"{topics}/{number}" for number in (0, 1, 10)]
    apply(state, c.StreamDeletion(0), 8, 0)
    assert list(state.deleted) == ["streams/0"]


@pytest.mark.parametrize("change", [c.PartitionDeletion(0, 1, 1), c.TopicDeletion(0, 1)])
def test_a_deletion_is_as_quick_if_very_many_directories_wait_for_their_removal(change: c.AnyChange) -> None:
    work = []
    for waiting_count in (2, 1000):
        state = CatalogState()
        apply(state, c.StreamCreation("s", bytes(16)), 0, 0)
        apply(state, c.TopicCreation(0, "t", b"t" * 16, waiting_count, TopicOptions(), 0), 1, 0)
        apply(state, c.TopicCreation(0, "u", b"u" * 16, 3, TopicOptions(), 1), 2, 0)
        apply(state, c.PartitionDeletion(0, 0, waiting_count), 3, 0)
        apply(state, c.PartitionDeletion(0, 1, 2), 4, 0)
        assert len(state.deleted) == waiting_count + 2
        work.append(work_of(lambda state=state: apply(state, change, 5, 0)))  # type: ignore[misc]
    assert work[0] == work[1]


def test_a_state_shares_nothing_with_its_commands() -> None:
    state = CatalogState()
    options = TopicOptions(segment_size=1)
    apply(state, c.StreamCreation("s", bytes(16)), 0, 0)
    apply(state, c.TopicCreation(0, "t", bytes(16), 1, options), 1, 0)
    apply(state, c.TopicCreation(0, "u", bytes(16), 1, options), 2, 0)
    first, second = state.streams[0].topics.values()
    apply(state, c.GroupCreation(0, 0, "g"), 3, 0)
    assert (len(first.groups), len(second.groups)) == (1, 0)
    assert msgspec.structs.asdict(options)["segment_size"] == 1
