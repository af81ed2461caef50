"""What a start does about directories and state that do not fit: removed, left alone, made again, or reported lost."""

import errno

import pytest
import xxhash

from courser.catalog import changes as c
from courser.catalog.descriptors import StreamDescriptor, decode_descriptor, encode_descriptor
from courser.catalog.entities import UsedIds
from courser.catalog.opening import OpenedCatalog, open_catalog
from courser.errors import DamagedData
from courser.model.topic_options import TopicOptions
from courser.storage.paths import DESCRIPTOR, stream_directory, topic_directory
from courser.storage.recovery_cases import StopKind
from tests.catalog.ruins import (
    COMMANDS,
    LAST_OP,
    check_usable,
    copied_stream,
    expected_state,
    lived,
    refused,
    remove_partition,
    start,
)
from tests.catalog.scenes import living
from tests.fakes.files import FaultPlan
from tests.simulator.catalog_simulation import (
    DATA,
    CatalogWorld,
    visible,
)

# --- directories that the state does not know ---


def test_a_directory_of_a_used_id_is_left_alone_without_the_flag() -> None:
    world = lived()
    # Stream 1 was deleted and forgotten; its directory is back.
    copied_stream(world, 1)
    opened = start(world, recreate=False)
    assert opened.reconciliation.unknown == [stream_directory(DATA, 1)]
    assert opened.store.state.encode() == expected_state().encode()
    assert stream_directory(DATA, 1) / DESCRIPTOR in world.disk.files()


def test_a_directory_of_a_used_id_is_adopted_with_the_flag() -> None:
    world = lived()
    copied_stream(world, 1)
    opened = start(world)
    assert opened.store.state.streams[1].name == "foreign"
    assert list(opened.store.state.users) == list(expected_state().users)
    assert opened.rebuild is not None
    assert opened.rebuild.adopted == [stream_directory(DATA, 1), topic_directory(DATA, 1, 0)]
    assert opened.rebuild.problems
    # Ops go on above the last one that the journal knew, which made no partition.
    assert opened.store.last_op == LAST_OP + 1
    check_usable(world, opened)


def test_a_directory_of_an_id_that_was_never_used_refuses_the_start() -> None:
    for number in (4, 8):
        world = lived()
        copied_stream(world, number)
        assert str(stream_directory(DATA, number)) in refused(world)
        opened = start(world)
        assert opened.store.state.streams[number].name == "foreign"
        assert opened.store.state.stream_ids.is_used(number)
        check_usable(world, opened)


def test_a_deleted_directory_that_came_back_is_removed_again() -> None:
    live = living(1, COMMANDS)
    saved = {path: live.disk.contents(path) for path in live.disk.files() if stream_directory(DATA, 7) in path.parents}
    live.opened.store.submit(c.StreamDeletion(7))
    world = live.fork(1)
    for flag in (False, True):
        fork = world.fork(2)
        for path, data in saved.items():
            fork.disk.plant(path, data)
        opened = start(fork, recreate=flag)
        assert opened.reconciliation.removed == ["streams/7"]
        assert opened.rebuild is None
        assert not [path for path in fork.disk.files() if stream_directory(DATA, 7) in path.parents]
        assert 7 not in opened.store.state.streams
        assert opened.store.state.deleted == {}


def test_a_full_disk_does_not_keep_a_removal_from_being_repeated() -> None:
    live = living(1, COMMANDS)
    live.opened.store.submit(c.StreamDeletion(7))
    world = live.fork(1)
    world.disk.plan = FaultPlan().fail("write_at", errno.ENOSPC, onwards=True)
    opened = start(world, recreate=False)
    assert list(opened.store.state.deleted) == ["streams/7"]
    assert not [path for path in world.disk.files() if stream_directory(DATA, 7) in path.parents]
    world.disk.plan = FaultPlan()
    world.disk.kill()
    assert start(world, recreate=False).store.state.deleted == {}


def test_something_else_in_the_place_of_a_deleted_directory_is_left_alone() -> None:
    live = living(1, COMMANDS)
    live.opened.store.submit(c.StreamDeletion(7))
    world = live.fork(1)
    copied_stream(world, 7)
    opened = start(world, recreate=False)
    assert opened.reconciliation.removed == []
    assert opened.reconciliation.unknown == [stream_directory(DATA, 7)]
    assert stream_directory(DATA, 7) / DESCRIPTOR in world.disk.files()


def test_strange_names_are_left_alone() -> None:
    world = lived()
    for name in ("streams/notes", "streams/0/topics/-1", "streams/0/topics/0/partitions/x-y", "streams/٣"):
        world.disk.plant_directory(DATA / name)
    opened = start(world, recreate=False)
    assert len(opened.reconciliation.unknown) == 4
    assert start(world).store.state.encode() == expected_state().encode()


# --- partitions ---


@pytest.mark.parametrize("recreate", [False, True])
def test_a_missing_partition_is_lost_and_never_made_again(*, recreate: bool) -> None:
    world = lived()
    directory = topic_directory(DATA, 0, 0) / "partitions" / "0-2"
    remove_partition(world, directory)
    for _ in range(3):
        opened = start(world, recreate=recreate)
        assert [(lost.partition_id, lost.path) for lost in opened.reconciliation.lost] == [(0, directory)]
        assert not [path for path in world.disk.files() if directory in path.parents]
        world.disk.kill()


def test_a_topic_whose_directory_is_gone_is_lost_and_can_still_be_changed() -> None:
    world = lived()
    directory = topic_directory(DATA, 7, 0)
    for path in [path for path in world.disk.files() if directory in path.parents]:
        world.disk.unlink(path)
    remove_partition(world, directory / "partitions" / "0-19")
    world.disk.remove_directory(directory / "partitions")
    world.disk.remove_directory(directory)
    opened = start(world, recreate=False)
    assert [lost.topic_id for lost in opened.reconciliation.lost] == [0]
    command = c.TopicUpdate(7, 0, "other name", TopicOptions())
    opened.store.submit(command)
    opened.directories.carry_out(opened.store.state, command)


def test_a_partition_of_the_last_command_is_made_again() -> None:
    live = living(1, COMMANDS)
    assert live.perform(c.PartitionCreation(0, 0, 2))
    world = live.fork(1)
    partitions = topic_directory(DATA, 0, 0) / "partitions"
    op = live.opened.store.last_op
    remove_partition(world, partitions / f"2-{op}")
    remove_partition(world, partitions / f"3-{op}")
    opened = start(world, recreate=False)
    assert opened.reconciliation.lost == []
    assert opened.reconciliation.remade == [topic_directory(DATA, 0, 0)]
    check_usable_without_rebuild(world, opened)


def test_a_partition_of_the_last_command_is_lost_if_the_session_ended_cleanly() -> None:
    """Then the command was finished and acknowledged: messages may have been in it."""
    live = living(1, COMMANDS)
    assert live.perform(c.PartitionCreation(0, 0, 1))
    world = live.fork(1)
    directory = topic_directory(DATA, 0, 0) / "partitions" / f"2-{live.opened.store.last_op}"
    remove_partition(world, directory)
    opened = open_catalog(world.disk, DATA, clock=world.clock, stop=StopKind.CLEAN)
    assert [lost.path for lost in opened.reconciliation.lost] == [directory]
    assert opened.reconciliation.remade == []


def test_a_descriptor_of_an_unknown_kind_is_none() -> None:
    data = bytearray(encode_descriptor(StreamDescriptor(0, bytes(16), "name", 0, UsedIds())))
    data[22] = 9
    data[:16] = xxhash.xxh3_128_digest(bytes(data[16:]))
    with pytest.raises(DamagedData, match="format is not supported"):
        decode_descriptor(bytes(data), DATA / "descriptor")


def check_usable_without_rebuild(world: CatalogWorld, opened: OpenedCatalog) -> None:
    world.acknowledged = visible(opened.store.state)
    world.disk.kill()
    world.start()
    world.check_tree()
