"""Topics, partitions and segments: their life as clients see it."""

import asyncio
from pathlib import Path

import pytest

from courser.api import commands as c
from courser.api import replies as r
from courser.broker.settings import USUAL_TOPIC_OPTIONS, BrokerSettings
from courser.errors import ErrorCode
from courser.model.durability import Durability
from courser.model.identifiers import Consumer, ConsumerKind
from courser.model.messaging import PollingKind
from courser.model.quantities import NEVER
from courser.model.topic_options import TopicOptions
from tests.handlers.messaging import (
    ME,
    add_topic,
    fill_segments,
    log_of,
    partition_of,
    poll_command,
    send,
    send_command,
    texts,
)
from tests.handlers.scenes import Scene, opened

MIB = 1024 * 1024


async def topic_of(scene: Scene) -> r.TopicDetails:
    reply = await scene.ask(scene.root, c.GetTopic("s", "t"))
    assert isinstance(reply, r.TopicDetails)
    return reply


# --- topics ---


async def test_a_new_topic_shows_what_was_set_and_what_holds(scene: Scene) -> None:
    reply = await add_topic(scene, partition_count=2, message_expiry=5_000_000)
    assert reply.topic.options == TopicOptions(message_expiry=5_000_000)
    assert reply.topic.effective.message_expiry == 5_000_000
    assert reply.topic.effective.max_topic_size == NEVER
    # Iggy counts no segments in this one reply; clients compare.
    op = reply.partitions[0].incarnation
    assert op
    assert reply.partitions == [r.PartitionInfo(number, scene.clock.now(), 0, 0, 0, 0, op) for number in range(2)]


async def test_zero_asks_for_the_servers_default(scene: Scene) -> None:
    reply = await add_topic(scene, message_expiry=0, max_topic_size=0, replication_factor=0)
    assert reply.topic.options == TopicOptions()
    assert reply.topic.effective == USUAL_TOPIC_OPTIONS


async def test_partitions_show_real_figures(scene: Scene) -> None:
    await add_topic(scene, partition_count=2)
    await send(scene, "one", "two")
    await send(scene, "three")
    details = await topic_of(scene)
    size = 2 * 256 + 3 * 48 + len("onetwothree")
    created_at, op = scene.clock.now(), details.partitions[0].incarnation
    assert details.partitions == [
        r.PartitionInfo(0, created_at, 1, 2, size, 3, op),
        r.PartitionInfo(1, created_at, 1, 0, 0, 0, op),
    ]
    assert (details.topic.message_count, details.topic.size) == (3, size)


@pytest.mark.parametrize("size", [1, 16 * MIB - 1])
async def test_a_limit_below_16_mib_is_refused_also_in_an_update(scene: Scene, size: int) -> None:
    await add_topic(scene)
    options = TopicOptions(max_topic_size=size)
    assert await scene.refusal(scene.root, c.CreateTopic("s", "u", 1, options)) is ErrorCode.INVALID_TOPIC_SIZE
    for is_patch in (False, True):
        command = c.UpdateTopic("s", "t", "t", options, is_patch)
        assert await scene.refusal(scene.root, command) is ErrorCode.INVALID_TOPIC_SIZE
    assert await scene.refusal(scene.root, c.GetTopic("s", "u")) is ErrorCode.TOPIC_NOT_FOUND


@pytest.mark.parametrize(
    "options",
    [
        TopicOptions(segment_size=1),
        TopicOptions(segment_size=2**40),
        TopicOptions(compression=6),
        TopicOptions(message_expiry=-1),
        TopicOptions(message_expiry=2**64),
        TopicOptions(replication_factor=256),
        TopicOptions(messages_required_to_save=2**40),
        TopicOptions(durability="quantum"),
        TopicOptions(consumer_offset_durability=""),
    ],
)
async def test_options_that_make_no_sense_never_reach_the_journal(scene: Scene, options: TopicOptions) -> None:
    await scene.ask(scene.root, c.CreateStream("s"))
    assert await scene.refusal(scene.root, c.CreateTopic("s", "t", 1, options)) is ErrorCode.INVALID_OPTION_VALUE


async def test_a_classic_update_replaces_the_four_classic_options(scene: Scene) -> None:
    await add_topic(scene, message_expiry=1_000_000, compression=2, segment_size=2 * MIB)
    options = TopicOptions(max_topic_size=20 * MIB, message_expiry=0)
    await scene.ask(scene.root, c.UpdateTopic("s", "t", "u", options, is_patch=False))
    reply = await scene.ask(scene.root, c.GetTopic("s", "u"))
    assert isinstance(reply, r.TopicDetails)
    assert reply.topic.options == TopicOptions(max_topic_size=20 * MIB, segment_size=2 * MIB)


async def test_a_patch_leaves_what_it_does_not_name(scene: Scene) -> None:
    await add_topic(scene, message_expiry=1_000_000, compression=2)
    options = TopicOptions(message_expiry=0, max_topic_size=20 * MIB)
    await scene.ask(scene.root, c.UpdateTopic("s", "t", "t", options, is_patch=True))
    assert (await topic_of(scene)).topic.options == TopicOptions(compression=2, max_topic_size=20 * MIB)


async def test_updates_at_the_same_time_do_not_undo_each_other(scene: Scene) -> None:
    await add_topic(scene)
    patches = [
        TopicOptions(message_expiry=5_000_000),
        TopicOptions(max_topic_size=20 * MIB),
        TopicOptions(compression=2),
    ]
    await asyncio.gather(
        *(scene.ask(scene.root, c.UpdateTopic("s", "t", "t", options, is_patch=True)) for options in patches)
    )
    expected = TopicOptions(message_expiry=5_000_000, max_topic_size=20 * MIB, compression=2)
    assert (await topic_of(scene)).topic.options == expected


async def test_an_update_takes_effect_on_open_partitions(scene: Scene) -> None:
    await add_topic(scene, partition_count=2)
    await send(scene, "one")
    assert log_of(scene).settings.durability.level is Durability.WRITTEN
    options = TopicOptions(durability="persisted", max_topic_size=64 * MIB)
    await scene.ask(scene.root, c.UpdateTopic("s", "t", "t", options, is_patch=True))
    settings = log_of(scene).settings
    assert (settings.durability.level, settings.segment_size) == (Durability.SYNCED, 16 * MIB)
    await send(scene, "two")
    assert log_of(scene).marks.synced.offset == 2
    assert await texts(scene, poll_command()) == ["one", "two"]


async def test_a_topic_is_found_by_name_only_in_its_own_stream(scene: Scene) -> None:
    await add_topic(scene)
    await scene.ask(scene.root, c.CreateStream("other"))
    assert await scene.refusal(scene.root, c.GetTopic("other", "t")) is ErrorCode.TOPIC_NOT_FOUND
    assert await scene.refusal(scene.root, c.GetTopic("nowhere", "t")) is ErrorCode.STREAM_NOT_FOUND
    assert await scene.ask(scene.root, c.GetTopics("other")) == r.TopicList([])
    assert await scene.refusal(scene.root, c.CreateTopic("s", "t", 1, TopicOptions())) is (
        ErrorCode.TOPIC_NAME_ALREADY_EXISTS
    )


async def test_a_purge_takes_messages_and_stored_offsets_and_leaves_the_numbering(scene: Scene) -> None:
    await add_topic(scene)
    await send(scene, "one", "two")
    await texts(scene, poll_command(commit=True))
    await scene.ask(scene.root, c.PurgeTopic("s", "t"))
    (partition,) = (await topic_of(scene)).partitions
    assert partition == r.PartitionInfo(0, scene.clock.now(), 1, 1, 0, 0, partition.incarnation)
    with pytest.raises(Exception, match="no offset is stored"):
        await scene.ask(scene.root, c.GetConsumerOffset(ME, "s", "t", 0))
    assert (await send(scene, "three")).base_offset == 2


async def test_topics_purged_at_the_same_time_are_each_purged_once(scene: Scene) -> None:
    await add_topic(scene, partition_count=3)
    for number in range(3):
        await send(scene, "x", to=number)
    purges = [scene.ask(scene.root, c.PurgeTopic("s", "t")) for _ in range(3)]
    await asyncio.gather(*purges, scene.ask(scene.root, c.PurgeStream("s")))
    assert [log_of(scene, number).epoch for number in range(3)] == [4, 4, 4]
    assert sum(log_of(scene, number).message_count for number in range(3)) == 0


async def test_a_deleted_topic_leaves_no_directory_behind(scene: Scene) -> None:
    details = await add_topic(scene)
    await send(scene, "one")
    directory = log_of(scene).directory
    await scene.ask(scene.root, c.DeleteTopic("s", "t"))
    assert await scene.refusal(scene.root, c.GetTopic("s", details.topic.topic_id)) is ErrorCode.TOPIC_NOT_FOUND
    await until_forgotten(scene)
    assert not directory.exists()


async def until_forgotten(scene: Scene) -> None:
    """Until deleted directories are gone, and the catalog knows it."""
    async with asyncio.timeout(30):
        while scene.broker.catalog.state.deleted:  # noqa: ASYNC110 - work of a pool, without an event
            await asyncio.sleep(0)


# --- partitions ---


async def test_partitions_are_numbered_without_gaps(scene: Scene) -> None:
    await add_topic(scene, partition_count=1)
    await scene.ask(scene.root, c.CreatePartitions("s", "t", 3))
    await send(scene, "last", to=3)
    await scene.ask(scene.root, c.DeletePartitions("s", "t", 2))
    assert [row.partition_id for row in (await topic_of(scene)).partitions] == [0, 1]
    assert await scene.refusal(scene.root, poll_command(partition=3)) is ErrorCode.PARTITION_NOT_FOUND
    await scene.ask(scene.root, c.CreatePartitions("s", "t", 2))
    assert await texts(scene, poll_command(partition=3)) == []
    assert (await send(scene, "first", to=3)).base_offset == 0


async def test_partitions_are_made_by_one_to_a_thousand(scene: Scene) -> None:
    # Before anything is looked up: not even the topic has to be there.
    for count in (0, 1001):
        assert await scene.refusal(scene.root, c.CreatePartitions("s", "t", count)) is ErrorCode.TOO_MANY_PARTITIONS
    assert await scene.refusal(scene.root, c.DeletePartitions("s", "t", 0)) is ErrorCode.TOO_MANY_PARTITIONS


@pytest.mark.parametrize("count", [3, 1001])
async def test_more_partitions_than_there_are_cannot_go(scene: Scene, count: int) -> None:
    await add_topic(scene, partition_count=2)
    assert await scene.refusal(scene.root, c.DeletePartitions("s", "t", count)) is ErrorCode.INVALID_PARTITIONS_COUNT
    await scene.ask(scene.root, c.DeletePartitions("s", "t", 2))
    assert (await topic_of(scene)).partitions == []


async def test_groups_hear_of_new_and_deleted_partitions(scene: Scene) -> None:
    await add_topic(scene)
    await scene.ask(scene.root, c.CreateConsumerGroup("s", "t", "g"))
    await scene.ask(scene.root, c.JoinConsumerGroup("s", "t", "g"))
    sync = c.SyncConsumerGroup("s", "t", "g")
    assert await scene.ask(scene.root, sync) == r.Assignment(1, (0,))
    await scene.ask(scene.root, c.CreatePartitions("s", "t", 2))
    assert await scene.ask(scene.root, sync) == r.Assignment(2, (0, 1, 2))
    await scene.ask(scene.root, c.DeletePartitions("s", "t", 1))
    assert await scene.ask(scene.root, sync) == r.Assignment(3, (0, 1))
    await scene.ask(scene.root, c.DeleteTopic("s", "t"))
    assert scene.root.groups == set()


async def test_a_limited_topic_has_smaller_segments_with_more_partitions(scene: Scene) -> None:
    await add_topic(scene, partition_count=1, max_topic_size=128 * MIB)
    assert log_of(scene).settings.segment_size == 64 * MIB
    await scene.ask(scene.root, c.CreatePartitions("s", "t", 1))
    assert [log_of(scene, number).settings.segment_size for number in range(2)] == [32 * MIB, 32 * MIB]
    await scene.ask(scene.root, c.DeletePartitions("s", "t", 1))
    assert log_of(scene).settings.segment_size == 64 * MIB


# --- segments ---


async def first_kept(scene: Scene) -> list[str]:
    return await texts(scene, poll_command(PollingKind.FIRST))


async def test_delete_segments_takes_the_oldest_sealed_ones(scene: Scene) -> None:
    await add_topic(scene)
    await fill_segments(scene, "abc")
    await send(scene, "open")
    await scene.ask(scene.root, c.DeleteSegments("s", "t", 0, 2))
    assert await first_kept(scene) == ["c", "open"]
    # More than there are, and none: both are fine, and the open one stays.
    await scene.ask(scene.root, c.DeleteSegments("s", "t", 0, 100))
    await scene.ask(scene.root, c.DeleteSegments("s", "t", 0, 0))
    assert await first_kept(scene) == ["open"]
    assert (await send(scene, "next")).base_offset == 4


async def test_delete_segments_keeps_what_the_slowest_consumer_has_not_read(scene: Scene) -> None:
    await add_topic(scene)
    await fill_segments(scene, "abcd")
    await scene.ask(scene.root, c.StoreConsumerOffset(ME, "s", "t", 0, 3))
    slow = Consumer(ConsumerKind.CONSUMER, "slow")
    await scene.ask(scene.root, c.StoreConsumerOffset(slow, "s", "t", 0, 1))
    await scene.ask(scene.root, c.DeleteSegments("s", "t", 0, 10))
    assert await first_kept(scene) == ["c", "d"]


async def test_delete_segments_waits_for_segments_that_are_being_sealed(scene: Scene) -> None:
    await add_topic(scene)
    for text in "abc":
        await send(scene, text)
        log_of(scene).roll()
    await scene.ask(scene.root, c.DeleteSegments("s", "t", 0, 2))
    assert await first_kept(scene) == ["c"]


async def test_segments_are_counted_with_the_one_that_takes_the_next_message(scene: Scene) -> None:
    await add_topic(scene)
    await fill_segments(scene, "ab")
    assert (await topic_of(scene)).partitions[0].segment_count == 3
    await scene.ask(scene.root, c.DeleteSegments("s", "t", 0, 2))
    row = (await topic_of(scene)).partitions[0]
    assert (row.segment_count, row.message_count, row.size, row.current_offset) == (1, 0, 0, 1)


async def test_delete_segments_of_a_partition_that_is_not_there(scene: Scene) -> None:
    await add_topic(scene)
    assert await scene.refusal(scene.root, c.DeleteSegments("s", "t", 1, 1)) is ErrorCode.PARTITION_NOT_FOUND


async def test_a_send_that_waits_when_its_topic_is_deleted_gets_an_error(scene: Scene) -> None:
    await add_topic(scene)
    partition = partition_of(scene)
    async with partition.held_writes():
        waiting = asyncio.ensure_future(scene.refusal(scene.root, send_command()))
        await asyncio.sleep(0)
        await scene.ask(scene.root, c.DeleteTopic("s", "t"))
    assert await waiting is ErrorCode.PARTITION_NOT_FOUND


# --- starts ---


async def test_everything_is_there_after_a_restart(tmp_path: Path) -> None:
    async with opened(tmp_path) as scene:
        await add_topic(scene, partition_count=2, message_expiry=10_000_000)
        await send(scene, "one", to=1)
        await texts(scene, poll_command(partition=1, commit=True))
        before = await topic_of(scene)
    async with opened(tmp_path, BrokerSettings(validate_checksum=True)) as scene:
        assert await topic_of(scene) == before
        assert await texts(scene, poll_command(partition=1)) == []
        assert await texts(scene, poll_command(PollingKind.FIRST, partition=1)) == ["one"]
