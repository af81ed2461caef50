"""``recreate_missing_state``: the catalog made again from what is left of it and from the descriptors beside the data.

Without the flag such a start is refused, with the remedy in the message, and nothing on the disk has changed. With it
nothing is deleted: damaged files are copied aside, and what cannot be had back is named.
"""

import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from courser.catalog import changes as c
from courser.catalog.changes import encode_change
from courser.catalog.entities import ID_MAX
from courser.catalog.opening import open_catalog
from courser.errors import StartRefused, StorageFailure
from courser.model.topic_options import TopicOptions
from courser.storage.journal_entries import make_entry
from courser.storage.paths import DESCRIPTOR, QUARANTINE, stream_directory, topic_directory
from courser.storage.recovery_cases import StopKind
from tests.catalog.ruins import (
    COMMANDS,
    check_usable,
    copied_stream,
    damage,
    data_part,
    entry_starts,
    expected_state,
    lived,
    refused,
    remove,
    set_aside,
    start,
)
from tests.catalog.scenes import HASH, JOURNAL_PATH, OPTIONS, SNAPSHOT_PATH, image, living, uuid
from tests.fakes.files import FakeFileSystem, FaultPlan
from tests.simulator.catalog_simulation import (
    DATA,
    CatalogWorld,
    Coverage,
    CrashDepth,
    CrashKind,
    crash_everywhere,
    visible,
)

# --- metadata gone ---


def test_metadata_that_is_gone_is_made_from_the_descriptors() -> None:
    world = lived()
    remove(world.disk, JOURNAL_PATH)
    assert "the metadata is missing" in refused(world)
    opened = start(world)
    assert data_part(opened.store.state) == data_part(expected_state())
    assert opened.rebuild is not None
    assert "all users, passwords, permissions and tokens" in opened.rebuild.lost
    assert opened.rebuild.adopted == [
        stream_directory(DATA, 0),
        topic_directory(DATA, 0, 0),
        stream_directory(DATA, 7),
        topic_directory(DATA, 7, 0),
    ]
    assert opened.reconciliation.lost == []
    check_usable(world, opened)


def test_names_options_counts_groups_and_uuids_are_those_of_before() -> None:
    world = lived()
    remove(world.disk, JOURNAL_PATH)
    state = start(world).store.state
    stream = state.streams[0]
    topic = stream.topics[0]
    assert (stream.name, stream.uuid, topic.name, topic.uuid) == ("all orders", uuid(1), "placed orders", uuid(2))
    assert topic.options == OPTIONS
    assert [(partition.partition_id, partition.incarnation) for partition in topic.partitions] == [(0, 2), (1, 16)]
    assert [(group.group_id, group.name) for group in topic.groups.values()] == [(0, "billing")]
    assert topic.purge_count == 1
    assert [(group.group_id, group.name) for group in state.streams[7].topics[0].groups.values()] == [(3, "audit")]
    assert state.stream_by_name == {"all orders": 0, "logs": 7}
    # Ids of what was deleted stay used as far as the descriptors know.
    assert stream.topic_ids.is_used(1)
    assert state.streams[7].topics[0].group_ids.next_id == 4


def test_a_rebuild_is_not_repeated() -> None:
    world = lived()
    remove(world.disk, JOURNAL_PATH)
    first = start(world)
    world.disk.kill()
    second = start(world)
    assert second.rebuild is None
    assert second.store.state.encode() == first.store.state.encode()
    world.disk.kill()
    assert start(world, recreate=False).store.last_op == first.store.last_op


def test_an_empty_directory_needs_no_rebuild() -> None:
    world = CatalogWorld.new(1)
    opened = start(world)
    assert (opened.rebuild, opened.store.last_op) == (None, None)


def test_a_missing_journal_beside_a_snapshot_is_refused() -> None:
    live = living(1, COMMANDS)
    live.opened.store.take_snapshot()
    world = live.fork(1)
    remove(world.disk, JOURNAL_PATH)
    assert "the journal is missing" in refused(world)
    opened = start(world)
    assert opened.store.state.encode() == live.state.encode()
    check_usable(world, opened)


# --- journal damaged ---


@pytest.mark.parametrize("number", [0, 1, 3, 8, 15, 20])
def test_users_are_kept_as_far_as_the_journal_goes(number: int) -> None:
    world = lived()
    journal = bytearray(world.disk.contents(JOURNAL_PATH))
    starts = entry_starts(bytes(journal))
    journal[starts[number] + 100] ^= 1
    world.disk.plant(JOURNAL_PATH, journal)
    assert f"byte {starts[number]}" in refused(world)
    opened = start(world)
    assert data_part(opened.store.state) == data_part(expected_state())
    # Ops: root 0, alice 7, her token 8, the last user 22.
    names = [name for op, name in ((0, "root"), (7, "alice")) if op < number]
    assert list(opened.store.state.user_by_name) == names
    tokens = [token for user in opened.store.state.users.values() for token in user.tokens]
    assert tokens == (["laptop"] if number > 8 else [])
    assert opened.rebuild is not None
    assert any("users" in loss for loss in opened.rebuild.lost)
    assert str(JOURNAL_PATH) in opened.rebuild.problems[0]
    assert list(set_aside(world).values()) == [bytes(journal)]
    check_usable(world, opened)


@pytest.mark.parametrize(("number", "name"), [(5, "stream 'gone'"), (10, "topic 'gone' of stream 'all orders'")])
def test_what_was_deleted_behind_the_damage_is_back_and_named(number: int, name: str) -> None:
    world = lived()
    journal = bytearray(world.disk.contents(JOURNAL_PATH))
    journal[entry_starts(bytes(journal))[number] + 100] ^= 1
    world.disk.plant(JOURNAL_PATH, journal)
    opened = start(world)
    assert opened.rebuild is not None
    # A deletion and a loss look the same: the operator decides.
    assert [loss for loss in opened.rebuild.lost if name in loss]
    for lost in opened.reconciliation.lost:
        assert not [path for path in world.disk.files() if lost.path in path.parents]
    assert len(opened.reconciliation.lost) == (1 if "topic" in name else 0)


def with_damaged_last_but_one(world: CatalogWorld) -> None:
    journal = bytearray(world.disk.contents(JOURNAL_PATH))
    journal[entry_starts(bytes(journal))[-2] + 100] ^= 1
    world.disk.plant(JOURNAL_PATH, journal)


TWO_USERS = (c.UserCreation("somebody", HASH), c.UserCreation("somebody else", HASH))
"""Two entries at the end of a journal, so that one may be damaged and not be torn."""


def test_an_older_descriptor_takes_back_neither_purges_nor_ids() -> None:
    live = living(1, (c.StreamCreation("s", uuid(1)), c.TopicCreation(0, "t", uuid(2), 1, TopicOptions())))
    path = topic_directory(DATA, 0, 0) / DESCRIPTOR
    old = live.disk.contents(path)
    for command in (c.TopicPurge(0, 0), c.GroupCreation(0, 0, "g"), c.GroupDeletion(0, 0, 0), *TWO_USERS):
        assert live.perform(command)
    world = live.fork(1)
    world.disk.plant(path, old)
    with_damaged_last_but_one(world)
    topic = start(world).store.state.streams[0].topics[0]
    assert topic.purge_count == 1
    assert topic.group_ids.is_used(0)


def test_what_the_journal_calls_deleted_is_not_adopted() -> None:
    deletions = (c.StreamDeletion(7), c.PartitionDeletion(0, 0, 1), c.TopicCreation(0, "t", uuid(8), 1, TopicOptions()))
    live = living(1, COMMANDS)
    for command in (*deletions, c.TopicDeletion(0, 2), *TWO_USERS):
        live.opened.store.submit(command)
        if isinstance(command, c.TopicCreation):
            live.opened.directories.carry_out(live.state, command)
    world = live.fork(1)
    with_damaged_last_but_one(world)
    opened = start(world)
    assert list(opened.store.state.streams) == [0]
    assert list(opened.store.state.streams[0].topics) == [0]
    assert len(opened.store.state.streams[0].topics[0].partitions) == 1
    paths = ["streams/0/topics/0/partitions/1-16", "streams/0/topics/2", "streams/7"]
    assert sorted(opened.reconciliation.removed) == paths
    assert opened.reconciliation.lost == []
    check_usable(world, opened)


def test_a_gap_in_the_journal() -> None:
    world = lived()
    journal = world.disk.contents(JOURNAL_PATH)
    starts = entry_starts(journal)
    broken = journal[: starts[3]] + journal[starts[4] :]
    world.disk.plant(JOURNAL_PATH, broken)
    assert "op 3 is missing" in refused(world)
    opened = start(world)
    assert data_part(opened.store.state) == data_part(expected_state())
    assert list(set_aside(world).values()) == [broken]
    check_usable(world, opened)


def test_an_entry_of_another_history_is_not_used() -> None:
    world = lived()
    journal = world.disk.contents(JOURNAL_PATH)
    starts = entry_starts(journal)
    body = encode_change(c.UserCreation("intruder", HASH))
    _, foreign = make_entry(op=7, timestamp=0, kind=13, parent=b"another parent..", body=body)
    world.disk.plant(JOURNAL_PATH, journal[: starts[7]] + foreign)
    assert "op 7 does not follow" in refused(world)
    assert list(start(world).store.state.user_by_name) == ["root"]


def test_entries_that_the_snapshot_covers_are_passed_over() -> None:
    live = living(1, COMMANDS)
    covered = live.disk.contents(JOURNAL_PATH)
    live.opened.store.take_snapshot()
    for command in (c.UserCreation("kept", HASH), *TWO_USERS):
        assert live.perform(command)
    world = live.fork(1)
    # A drain that was interrupted, and damage in the second entry behind it.
    world.disk.plant(JOURNAL_PATH, covered + world.disk.contents(JOURNAL_PATH))
    with_damaged_last_but_one(world)
    assert "damage" in refused(world)
    opened = start(world)
    assert data_part(opened.store.state) == data_part(live.state)
    assert list(opened.store.state.user_by_name) == ["root", "alice", "last", "kept"]
    check_usable(world, opened)


def test_a_journal_without_its_end() -> None:
    world = lived()
    journal = world.disk.contents(JOURNAL_PATH)
    starts = entry_starts(journal)
    # Up to the deleted stream: the topic of stream 7 and its partition are unknown to it.
    world.disk.plant(JOURNAL_PATH, journal[: starts[7]])
    assert "the end of the journal is missing" in refused(world)
    opened = start(world)
    assert data_part(opened.store.state) == data_part(expected_state())
    assert list(opened.store.state.user_by_name) == ["root"]
    assert opened.rebuild is not None
    assert opened.rebuild.problems
    check_usable(world, opened)


def test_names_that_were_swapped_behind_the_damage_are_those_of_the_descriptors() -> None:
    live = living(
        1,
        (
            c.UserCreation("root", HASH),
            c.StreamCreation("a", uuid(1)),
            c.StreamCreation("b", uuid(2)),
            c.TopicCreation(0, "x", uuid(3), 0, TopicOptions()),
            c.TopicCreation(0, "y", uuid(4), 0, TopicOptions()),
            c.StreamUpdate(0, "aside"),
            c.StreamUpdate(1, "a"),
            c.StreamUpdate(0, "b"),
            c.TopicUpdate(0, 0, "aside", TopicOptions()),
            c.TopicUpdate(0, 1, "x", TopicOptions()),
            c.TopicUpdate(0, 0, "y", TopicOptions()),
        ),
    )
    world = live.fork(1)
    journal = bytearray(world.disk.contents(JOURNAL_PATH))
    journal[entry_starts(bytes(journal))[5] + 5] ^= 1
    world.disk.plant(JOURNAL_PATH, journal)
    state = start(world).store.state
    assert state.stream_by_name == {"b": 0, "a": 1}
    assert state.topic_by_name == {(0, "y"): 0, (0, "x"): 1}


# --- snapshot damaged ---


def test_a_damaged_snapshot_costs_the_users_and_nothing_else() -> None:
    live = living(1, COMMANDS[:10])
    live.opened.store.take_snapshot()
    for command in COMMANDS[10:]:
        assert live.perform(command)
    world = live.fork(1)
    snapshot = bytearray(world.disk.contents(SNAPSHOT_PATH))
    journal = world.disk.contents(JOURNAL_PATH)
    snapshot[200] ^= 1
    world.disk.plant(SNAPSHOT_PATH, snapshot)
    assert str(SNAPSHOT_PATH) in refused(world)
    opened = start(world)
    assert data_part(opened.store.state) == data_part(live.state)
    assert opened.store.state.users == {}
    assert opened.rebuild is not None
    assert "all users, passwords, permissions and tokens" in opened.rebuild.lost
    # The journal is of no use without the state that it continues.
    assert sorted(set_aside(world).values()) == sorted([bytes(snapshot), journal])
    check_usable(world, opened)


# --- descriptors damaged or missing ---


@pytest.mark.parametrize("spoil", [damage, remove], ids=["damaged", "missing"])
def test_a_descriptor_less_is_made_up_for_by_the_journal(spoil: Callable[[FakeFileSystem, Path], None]) -> None:
    world = lived()
    spoil(world.disk, stream_directory(DATA, 0) / DESCRIPTOR)
    spoil(world.disk, topic_directory(DATA, 0, 0) / DESCRIPTOR)
    journal = bytearray(world.disk.contents(JOURNAL_PATH))
    journal[-1] ^= 1
    # The last entry makes a user; with the entry before it as the end, everything else is known.
    world.disk.plant(JOURNAL_PATH, bytes(journal) + b"\0" * 10)
    remade = open_catalog(world.disk, DATA, clock=world.clock, stop=StopKind.CRASHED)
    assert data_part(remade.store.state) == data_part(expected_state())
    assert stream_directory(DATA, 0) / DESCRIPTOR in dict(remade.reconciliation.bad_descriptors)


@pytest.mark.parametrize("spoil", [damage, remove], ids=["damaged", "missing"])
def test_a_stream_without_descriptor_and_metadata_gets_a_name(spoil: Callable[[FakeFileSystem, Path], None]) -> None:
    world = lived()
    path = stream_directory(DATA, 0) / DESCRIPTOR
    spoil(world.disk, path)
    left = world.disk.contents(path) if path in world.disk.files() else None
    remove(world.disk, JOURNAL_PATH)
    opened = start(world)
    stream = opened.store.state.streams[0]
    assert stream.name == "recovered-0"
    assert [topic.name for topic in stream.topics.values()] == ["placed orders"]
    assert opened.rebuild is not None
    assert any("the name of stream 0" in loss for loss in opened.rebuild.lost)
    kept = [world.disk.contents(name) for name in world.disk.files() if name.parent == path.parent / QUARANTINE]
    assert kept == ([left] if left is not None else [])
    check_usable(world, opened)


@pytest.mark.parametrize("spoil", [damage, remove], ids=["damaged", "missing"])
def test_a_topic_without_descriptor_and_metadata_keeps_its_messages(
    spoil: Callable[[FakeFileSystem, Path], None],
) -> None:
    world = lived()
    spoil(world.disk, topic_directory(DATA, 0, 0) / DESCRIPTOR)
    remove(world.disk, JOURNAL_PATH)
    opened = start(world)
    topic = opened.store.state.streams[0].topics[0]
    # Its uuid and its partitions are in the ledgers; name, options and groups are nowhere.
    assert (topic.name, topic.uuid) == ("recovered-0", uuid(2))
    assert [(partition.partition_id, partition.incarnation) for partition in topic.partitions] == [(0, 2), (1, 16)]
    assert opened.rebuild is not None
    assert any("name, options and groups of topic 0" in loss for loss in opened.rebuild.lost)
    check_usable(world, opened)


def test_a_descriptor_that_cannot_be_read_now_makes_up_no_name() -> None:
    world = lived()
    remove(world.disk, JOURNAL_PATH)
    before = image(world.disk)
    world.disk.plan = FaultPlan().fail("open", errno.EMFILE, name=DESCRIPTOR)
    with pytest.raises(StorageFailure, match="descriptor"):
        start(world)
    world.disk.plan = FaultPlan()
    assert {name: data for name, data in image(world.disk).items() if name in before} == before
    assert start(world).store.state.stream_by_name == {"all orders": 0, "logs": 7}


@pytest.mark.parametrize("operation", ["open", "list_directory"])
def test_a_ledger_that_cannot_be_read_now_makes_up_no_uuid(operation: str) -> None:
    world = lived()
    remove(world.disk, JOURNAL_PATH, topic_directory(DATA, 0, 0) / DESCRIPTOR)
    name = "ledger" if operation == "open" else "0-2"
    world.disk.plan = FaultPlan().fail(operation, errno.EMFILE, name=name)
    with pytest.raises(StorageFailure, match=name):
        start(world)
    world.disk.plan = FaultPlan()
    assert start(world).store.state.streams[0].topics[0].uuid == uuid(2)


def test_two_streams_that_claim_one_name_are_both_kept() -> None:
    world = living(1, (c.StreamCreation("same", uuid(1)), c.StreamCreation("n" * 255, uuid(2)))).fork(1)
    for number, name in ((2, "same"), (3, "n" * 255), (4, "same-2")):
        other = living(2, (c.StreamCreation(name, uuid(number + 1), number),))
        path = stream_directory(DATA, number) / DESCRIPTOR
        world.disk.plant(path, other.disk.contents(path))
    opened = start(world)
    names = {stream_id: stream.name for stream_id, stream in opened.store.state.streams.items()}
    assert names[0] == "same"
    assert names[1] == "n" * 255
    assert len(set(names.values())) == 5
    assert all(len(name.encode()) <= 255 for name in names.values())
    assert opened.rebuild is not None
    assert len(opened.rebuild.lost) >= 3


def test_the_largest_id_is_no_burden() -> None:
    world = living(
        1, (c.StreamCreation("s", uuid(1)), c.TopicCreation(0, "t", uuid(2), 1, TopicOptions(), ID_MAX))
    ).fork(1)
    remove(world.disk, JOURNAL_PATH)
    state = start(world).store.state
    assert state.streams[0].topic_ids.holes == [(0, ID_MAX)]
    assert list(state.streams[0].topics) == [ID_MAX]


# --- crashes ---


def damaged_journal(world: CatalogWorld) -> None:
    journal = bytearray(world.disk.contents(JOURNAL_PATH))
    journal[entry_starts(bytes(journal))[8] + 100] ^= 1
    world.disk.plant(JOURNAL_PATH, journal)


def missing_metadata(world: CatalogWorld) -> None:
    remove(world.disk, JOURNAL_PATH)


def unknown_directory(world: CatalogWorld) -> None:
    copied_stream(world, 1)


def missing_descriptor(world: CatalogWorld) -> None:
    damage(world.disk, topic_directory(DATA, 0, 0) / DESCRIPTOR)
    remove(world.disk, JOURNAL_PATH)


@pytest.mark.parametrize("harm", [damaged_journal, missing_metadata, unknown_directory, missing_descriptor])
def test_a_crash_at_every_call_of_a_rebuild(harm: Callable[[CatalogWorld], None], seed: int, is_long: bool) -> None:
    world = living(seed, COMMANDS).fork(seed)
    harm(world)
    reference = world.fork(1)
    world.acknowledged = visible(start(reference).store.state)

    def rebuild(world: CatalogWorld) -> None:
        world.start(recreate_missing_state=True)

    depth = CrashDepth(power_cuts=2, second_crashes=3) if is_long else CrashDepth(power_cuts=1, second_crashes=1)
    coverage: Coverage = crash_everywhere(world, rebuild, depth, recover=rebuild)
    print(f"rebuild, {harm.__name__}: {coverage}")


@pytest.mark.parametrize("harm", [damaged_journal, missing_metadata, unknown_directory, missing_descriptor])
def test_after_an_interrupted_rebuild_a_start_without_the_flag_shows_its_result_or_is_refused(
    harm: Callable[[CatalogWorld], None],
) -> None:
    world = living(1, COMMANDS).fork(1)
    harm(world)
    reference = world.fork(1)
    result = visible(start(reference).store.state)
    world.possible = result

    def rebuild(world: CatalogWorld) -> None:
        world.start(recreate_missing_state=True)

    def plain(world: CatalogWorld) -> None:
        try:
            is_whole = not world.start().reconciliation.unknown
        except StartRefused:
            is_whole = False
        if not is_whole:
            # Not begun, or not finished: the operator asks for it again.
            world.crash(CrashKind.KILL)
            world.possible = result
            rebuild(world)

    crash_everywhere(world, rebuild, CrashDepth(second_crashes=0), recover=plain)
