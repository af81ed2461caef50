"""Sending and polling: where messages go, where polls begin, what they give."""

import asyncio
import threading
from pathlib import Path

import numpy as np
import pytest

from courser.api import commands as c
from courser.api import replies as r
from courser.broker.access.sessions import Session
from courser.broker.messages import producing
from courser.broker.partition.message_keys import with_key
from courser.broker.partition.waiting import Waiting, attempt
from courser.broker.settings import BrokerSettings
from courser.errors import CommandRejected, ErrorCode, PartitionReadOnly
from courser.model.durability import Durability
from courser.model.identifiers import Consumer, ConsumerKind
from courser.model.messaging import Balanced, ByKey, PollingKind, ToPartition
from courser.records.batch import Batch, NewMessage, build_batch
from courser.records.message_keys import KEY_HEADER
from courser.records.user_headers import iterate_user_headers
from courser.storage.read_result import ReadBuffer, ReadResult
from tests.handlers.messaging import (
    add_topic,
    damage,
    fill_segments,
    log_of,
    messages_of,
    open_topic,
    partition_of,
    poll,
    poll_command,
    send,
    send_balanced,
    send_command,
    texts,
    texts_of,
)
from tests.handlers.scenes import Scene, opened

MIB = 1024 * 1024
GROUP = Consumer(ConsumerKind.GROUP, "g")


# --- sending ---


async def test_balanced_sends_go_to_all_partitions_in_turn_from_the_first(scene: Scene) -> None:
    await add_topic(scene, partition_count=3)
    assert [await send_balanced(scene, "x") for _ in range(7)] == [0, 1, 2, 0, 1, 2, 0]


async def test_balanced_sends_go_on_in_range_when_partitions_go(scene: Scene) -> None:
    await add_topic(scene, partition_count=3)
    assert [await send_balanced(scene, "x") for _ in range(2)] == [0, 1]
    await scene.ask(scene.root, c.DeletePartitions("s", "t", 1))
    assert [await send_balanced(scene, "x") for _ in range(3)] == [0, 1, 0]


@pytest.mark.parametrize(("key", "remainder"), [(b"key-1", 0x39636A09), (b"abc", 0x32D153FF), (b"", 0x02CC5D05)])
async def test_a_key_decides_the_partition(scene: Scene, key: bytes, remainder: int) -> None:
    await add_topic(scene, partition_count=7)
    assert (await send(scene, "x", to=ByKey(key))).partition_id == remainder % 7


async def test_a_key_is_kept_as_a_header(scene: Scene) -> None:
    await add_topic(scene)
    await send(scene, "one", "two", to=ByKey(b"customer 7"))
    messages = messages_of(await poll(scene, poll_command()))
    for message, text in zip(messages, (b"one", b"two"), strict=True):
        [header] = iterate_user_headers(message.user_headers)
        assert (message.payload, header.key, header.value) == (text, KEY_HEADER, b"customer 7")


@pytest.mark.parametrize(("count", "is_elsewhere"), [(1000, False), (1001, True)])
async def test_many_messages_get_their_key_without_holding_others_up(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, count: int, is_elsewhere: bool
) -> None:
    await add_topic(scene)
    threads: list[int] = []

    def noted(batch: Batch, key: bytes) -> Batch:
        threads.append(threading.get_ident())
        return with_key(batch, key)

    monkeypatch.setattr(producing, "with_key", noted)
    await send(scene, *("x" for _ in range(count)), to=ByKey(b"key"))
    assert (threads != [threading.get_ident()]) is is_elsewhere
    assert log_of(scene).message_count == count


async def test_without_partitions_nothing_can_be_sent_or_polled(scene: Scene) -> None:
    await add_topic(scene, partition_count=0)
    assert await scene.refusal(scene.root, send_command(to=Balanced())) is ErrorCode.NO_PARTITIONS
    assert await scene.refusal(scene.root, send_command(to=ByKey(b"k"))) is ErrorCode.NO_PARTITIONS
    assert await scene.refusal(scene.root, send_command(to=0)) is ErrorCode.PARTITION_NOT_FOUND
    assert await scene.refusal(scene.root, poll_command()) is ErrorCode.PARTITION_NOT_FOUND


async def test_nothing_is_made_by_sending_or_polling(scene: Scene) -> None:
    assert await scene.refusal(scene.root, send_command()) is ErrorCode.STREAM_NOT_FOUND
    assert await scene.refusal(scene.root, poll_command()) is ErrorCode.STREAM_NOT_FOUND
    await scene.ask(scene.root, c.CreateStream("s"))
    assert await scene.refusal(scene.root, send_command()) is ErrorCode.TOPIC_NOT_FOUND
    assert await scene.refusal(scene.root, poll_command()) is ErrorCode.TOPIC_NOT_FOUND


async def test_permission_comes_before_the_partition(scene: Scene) -> None:
    await add_topic(scene)
    nobody = scene.connect((await scene.add_user("nobody")).user_id)
    assert await scene.refusal(nobody, send_command(to=9)) is ErrorCode.UNAUTHORIZED
    assert await scene.refusal(nobody, poll_command(partition=9)) is ErrorCode.UNAUTHORIZED


async def test_several_batches_of_one_request_stay_in_order(scene: Scene) -> None:
    await add_topic(scene)
    await send(scene, "zero")
    batches = [build_batch([NewMessage(text.encode()) for text in pair]) for pair in (("a", "b"), ("c", "d"))]
    sent = await scene.ask(scene.root, c.SendMessages("s", "t", ToPartition(0), batches))
    assert getattr(sent, "base_offset", None) == 1
    assert await texts(scene, poll_command()) == ["zero", "a", "b", "c", "d"]


async def test_a_send_that_waits_for_nothing_is_answered_at_once(scene: Scene) -> None:
    await add_topic(scene)
    # The first one has to wait for offsets.
    assert (await send(scene, "one", "two")).base_offset == 0
    begun = scene.dispatcher.begin(scene.root, send_command("three"))
    assert isinstance(begun, r.Sent)
    assert (begun.partition_id, begun.base_offset) == (0, 2)
    arrival: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
    partition_of(scene).readers.wait_for(arrival, 3)
    assert isinstance(scene.dispatcher.begin(scene.root, send_command("four")), r.Sent)
    assert not arrival.done(), "the send itself wakes nobody"
    assert await arrival
    assert await texts(scene, poll_command(PollingKind.OFFSET)) == ["one", "two", "three", "four"]
    several = c.SendMessages("s", "t", ToPartition(0), send_command("five").batches + send_command("six").batches)
    for command in (send_command("x", to=Balanced()), send_command("x", to=ByKey(b"key")), several):
        assert isinstance(scene.dispatcher.begin(scene.root, command), r.Sent)


async def test_a_send_to_a_persisted_topic_is_not_answered_at_once(scene: Scene) -> None:
    await add_topic(scene, durability="persisted")
    await send(scene, "one")
    begun = scene.dispatcher.begin(scene.root, send_command("two"))
    assert isinstance(begun, Waiting)
    await begun


async def test_an_acknowledged_send_of_a_persisted_topic_is_synced(scene: Scene) -> None:
    await add_topic(scene, durability="persisted")
    await asyncio.gather(*(send(scene, str(number)) for number in range(20)))
    log = log_of(scene)
    assert log.settings.durability.level is Durability.SYNCED
    assert log.marks.synced.offset == log.next_offset == 20
    # Sends that come together share a sync.
    assert partition_of(scene).commits.sync_count < 20


async def test_a_send_that_waits_for_its_sync_is_known_at_once_and_fails_with_its_partition(tmp_path: Path) -> None:
    async with opened(tmp_path, is_clean=False) as scene:
        await add_topic(scene, durability="persisted", partition_count=2)
        begun = scene.dispatcher.begin(scene.root, send_command("kept", to=1))
        assert isinstance(begun, Waiting)
        assert not begun.future.done()
        assert await begun == r.Sent(0, 0, 1, 0)
        begun = scene.dispatcher.begin(scene.root, send_command("lost", to=1))
        assert isinstance(begun, Waiting)
        partition_of(scene, 1).mark_deleted()
        with pytest.raises(CommandRejected, match="deleted meanwhile") as refused:
            await begun
        assert refused.value.code is ErrorCode.PARTITION_NOT_FOUND


async def test_a_topic_at_its_limit_refuses_sends_if_nothing_may_be_deleted(tmp_path: Path) -> None:
    async with opened(tmp_path, BrokerSettings(delete_oldest_segments=False)) as scene:
        await add_topic(scene, partition_count=2, max_topic_size=16 * MIB)
        large = "x" * MIB
        for number in range(15):
            await send(scene, large, to=number % 2)
        assert await scene.refusal(scene.root, send_command(large, to=0)) is ErrorCode.TOPIC_FULL
        assert open_topic(scene).size <= 16 * MIB
        # A small one still fits, and after a purge so does a large one.
        await send(scene, "small")
        await scene.ask(scene.root, c.PurgeTopic("s", "t"))
        await send(scene, large)


async def test_a_topic_that_grows_to_its_limit_hurries_the_cleaner(tmp_path: Path) -> None:
    async with opened(tmp_path) as scene:
        await add_topic(scene, max_topic_size=16 * MIB)
        cleaner = asyncio.ensure_future(scene.broker.retention.run())
        for _ in range(40):
            await send(scene, "x" * MIB)
        async with asyncio.timeout(30):
            while open_topic(scene).size > 16 * MIB:  # noqa: ASYNC110 - the cleaner runs beside it
                await asyncio.sleep(0)
        cleaner.cancel()
        assert log_of(scene).start_offset > 0


# --- polling ---


async def fill(scene: Scene, count: int, partition_id: int = 0) -> None:
    for number in range(count):
        scene.clock.advance(1_000)
        await send(scene, f"m{number}", to=partition_id)


async def test_an_empty_partition_gives_an_empty_reply(scene: Scene) -> None:
    await add_topic(scene, partition_count=2)
    for kind in PollingKind:
        reply = await poll(scene, poll_command(kind, partition=1))
        assert (reply.partition_id, reply.current_offset, reply.message_count, reply.pieces) == (1, 0, 0, ())


async def test_polls_begin_where_their_strategy_says(scene: Scene) -> None:
    await add_topic(scene)
    start = scene.clock.now()
    await fill(scene, 10)
    expected = {
        (PollingKind.OFFSET, 4): ["m4", "m5", "m6"],
        (PollingKind.OFFSET, 9): ["m9"],
        (PollingKind.OFFSET, 10): [],
        (PollingKind.OFFSET, 2**64 - 1): [],
        (PollingKind.FIRST, 0): ["m0", "m1", "m2"],
        (PollingKind.LAST, 0): ["m7", "m8", "m9"],
        (PollingKind.NEXT, 0): ["m0", "m1", "m2"],
        (PollingKind.TIMESTAMP, start + 3_000): ["m2", "m3", "m4"],
        (PollingKind.TIMESTAMP, start + 3_001): ["m3", "m4", "m5"],
        (PollingKind.TIMESTAMP, 0): ["m0", "m1", "m2"],
        (PollingKind.TIMESTAMP, start + 10_001): [],
    }
    for (kind, value), wanted in expected.items():
        reply = await poll(scene, poll_command(kind, value, count=3))
        assert (texts_of(reply), reply.current_offset) == (wanted, 9)


async def test_a_poll_of_nothing_gives_nothing_and_stores_nothing(scene: Scene) -> None:
    await add_topic(scene)
    await fill(scene, 3)
    reply = await poll(scene, poll_command(count=0, commit=True))
    assert (reply.message_count, reply.current_offset) == (0, 2)
    assert len(log_of(scene).offsets) == 0


async def test_a_reply_is_limited_but_has_one_message_at_least(tmp_path: Path) -> None:
    async with opened(tmp_path, BrokerSettings(poll_size_max=1000)) as scene:
        await add_topic(scene)
        await send(scene, *("x" * 100 for _ in range(20)))
        reply = await poll(scene, poll_command(count=20))
        assert 1 <= reply.message_count < 20
        assert reply.size <= 1000
        await send(scene, "y" * 5000)
        assert (await poll(scene, poll_command(PollingKind.LAST, count=1))).size > 5000


async def test_of_the_newest_messages_a_limited_reply_has_the_newest(tmp_path: Path) -> None:
    async with opened(tmp_path, BrokerSettings(poll_size_max=10_000)) as scene:
        await add_topic(scene)
        for number in range(20):
            # The newest are the largest.
            await send(scene, f"{number} " + "x" * (100 * number))
        newest = await texts(scene, poll_command(PollingKind.LAST, count=20))
        assert [text.split()[0] for text in newest] == ["16", "17", "18", "19"]
        await send(scene, "x" * 20_000)
        assert [len(text) for text in await texts(scene, poll_command(PollingKind.LAST, count=20))] == [20_000]


async def test_the_newest_messages_are_found_behind_damage(tmp_path: Path) -> None:
    async with opened(tmp_path) as scene:
        await add_topic(scene)
        await fill_segments(scene, ["old", "bad", "new"])
        path = log_of(scene).directory / f"{1:020d}.log"
    damage(path)
    async with opened(tmp_path) as scene:
        assert await texts(scene, poll_command(PollingKind.LAST, count=3)) == ["new"]


async def test_next_goes_on_behind_the_stored_offset(scene: Scene) -> None:
    await add_topic(scene)
    await fill(scene, 5)
    first = poll_command(count=2)
    assert await texts(scene, first) == ["m0", "m1"]
    # Nothing was stored: the same again.
    assert await texts(scene, first) == ["m0", "m1"]
    assert await texts(scene, poll_command(count=2, commit=True)) == ["m0", "m1"]
    assert await texts(scene, poll_command(count=2, commit=True)) == ["m2", "m3"]
    assert await texts(scene, poll_command(count=9, commit=True)) == ["m4"]
    assert await texts(scene, poll_command(count=9, commit=True)) == []


async def test_an_automatic_commit_never_moves_back(scene: Scene) -> None:
    await add_topic(scene)
    await fill(scene, 5)
    await texts(scene, poll_command(commit=True))
    await texts(scene, poll_command(PollingKind.FIRST, count=1, commit=True))
    assert await texts(scene, poll_command()) == []


async def test_consumers_are_kept_apart_by_number_name_and_kind(scene: Scene) -> None:
    await add_topic(scene)
    await fill(scene, 3)
    number, name = Consumer(ConsumerKind.CONSUMER, 1), Consumer(ConsumerKind.CONSUMER, "1")
    alike = Consumer(ConsumerKind.CONSUMER, "\x01\x00\x00\x00")
    await texts(scene, poll_command(count=1, commit=True, consumer=number))
    await texts(scene, poll_command(count=2, commit=True, consumer=name))
    assert await texts(scene, poll_command(consumer=number)) == ["m1", "m2"]
    assert await texts(scene, poll_command(consumer=name)) == ["m2"]
    assert await texts(scene, poll_command(consumer=alike)) == ["m0", "m1", "m2"]


@pytest.mark.parametrize("kind", [PollingKind.FIRST, PollingKind.NEXT, PollingKind.OFFSET])
async def test_a_poll_of_messages_in_memory_is_answered_at_once(scene: Scene, kind: PollingKind) -> None:
    await add_topic(scene)
    command = poll_command(kind)
    address = scene.broker.finder.address(scene.root, command)
    empty = scene.broker.polls.poll(scene.root, address, command)
    assert isinstance(empty, r.Polled)
    assert empty.message_count == 0
    await send(scene, "one", "two")
    reply = scene.broker.polls.poll(scene.root, address, command)
    assert isinstance(reply, r.Polled), "no coroutine, no task"
    assert reply.message_count == 2


async def test_a_single_consumer_without_a_partition_reads_the_first_one(scene: Scene) -> None:
    await add_topic(scene, partition_count=2)
    await send(scene, "here", to=0)
    await send(scene, "there", to=1)
    assert await texts(scene, poll_command(partition=None)) == ["here"]


async def test_reading_begins_at_the_oldest_message_when_older_ones_are_gone(scene: Scene) -> None:
    await add_topic(scene)
    await fill_segments(scene, "abc")
    await scene.ask(scene.root, c.DeleteSegments("s", "t", 0, 2))
    assert await texts(scene, poll_command(PollingKind.OFFSET, 0)) == ["c"]
    assert await texts(scene, poll_command(PollingKind.TIMESTAMP, 0)) == ["c"]
    assert await texts(scene, poll_command(PollingKind.LAST, count=50)) == ["c"]
    assert scene.broker.polls.counters.gone_count == 1


async def test_a_damaged_batch_is_passed_over_and_counted(tmp_path: Path) -> None:
    async with opened(tmp_path) as scene:
        await add_topic(scene)
        await fill_segments(scene, ["good", "bad", "after"])
        damage(log_of(scene).directory / f"{1:020d}.log")
        assert await texts(scene, poll_command(PollingKind.OFFSET, 1)) == ["after"]
        # Met at the beginning of a poll, never in the middle of one.
        assert await texts(scene, poll_command(PollingKind.FIRST)) == ["good"]
        assert scene.broker.polls.counters.damaged_count == 1


async def test_sealed_segments_are_verified_before_their_first_read_if_wanted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(tmp_path) as scene:
        await add_topic(scene)
        await send(scene, "a0")
        await send(scene, "a1")
        await partition_of(scene).roll()
        await fill_segments(scene, ["b"])
        path = log_of(scene).directory / f"{0:020d}.log"
    damage(path)
    async with opened(tmp_path, BrokerSettings(validate_checksum=True)) as scene:
        assert "damage found" not in caplog.text
        assert await texts(scene, poll_command(PollingKind.FIRST, count=1)) == ["a0"]
        assert "damage found" in caplog.text
        # What follows the damage is in the next segment, so that is verified too: everything is now.
        assert await texts(scene, poll_command(PollingKind.OFFSET, 1)) == ["b"]
        assert partition_of(scene).reader._verification is None


async def test_groups_read_their_own_partitions_in_turn(scene: Scene) -> None:
    await add_topic(scene, partition_count=2)
    await send(scene, "p0", to=0)
    await send(scene, "p1", to=1)
    poll_group = poll_command(partition=None, consumer=GROUP, commit=True)
    assert await scene.refusal(scene.root, poll_group) is ErrorCode.GROUP_NOT_FOUND
    await scene.ask(scene.root, c.CreateConsumerGroup("s", "t", "g"))
    assert await scene.refusal(scene.root, poll_group) is ErrorCode.GROUP_MEMBER_NOT_FOUND
    await scene.ask(scene.root, c.JoinConsumerGroup("s", "t", "g"))
    assert [await texts(scene, poll_group) for _ in range(4)] == [["p0"], ["p1"], [], []]
    # The group is the same by number, and its offsets are the group's, not the member's.
    by_number = Consumer(ConsumerKind.GROUP, 0)
    assert await texts(scene, poll_command(partition=0, consumer=by_number)) == []


async def test_a_partition_of_another_member_is_not_served(scene: Scene) -> None:
    await add_topic(scene, partition_count=2)
    other = scene.connect(0)
    await scene.ask(scene.root, c.CreateConsumerGroup("s", "t", "g"))
    for session in (scene.root, other):
        await scene.ask(session, c.JoinConsumerGroup("s", "t", "g"))
    await send(scene, "p1", to=1)
    assert await scene.refusal(scene.root, poll_command(partition=1, consumer=GROUP)) is ErrorCode.PARTITION_NOT_OWNED
    assert await texts(scene, poll_command(partition=1, consumer=GROUP), other) == ["p1"]


async def poll_held(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, session: Session, command: c.PollMessages
) -> tuple["asyncio.Task[ErrorCode]", asyncio.Event]:
    """A poll that will be refused, and waits for the disk until the event is set."""
    partition = partition_of(scene, command.partition_id or 0)
    is_reading, disk = asyncio.Event(), asyncio.Event()
    real_read = partition.reader.try_read

    async def read_later(offset: int, count: int, size_max: int, buffer: ReadBuffer | None) -> ReadResult:
        is_reading.set()
        await disk.wait()
        found = real_read(offset, count, size_max, buffer)
        return await found if isinstance(found, Waiting) else found

    def try_read(offset: int, count: int, size_max: int, buffer: ReadBuffer | None) -> ReadResult | Waiting[ReadResult]:
        return attempt(read_later(offset, count, size_max, buffer))

    monkeypatch.setattr(partition.reader, "try_read", try_read)
    task = asyncio.create_task(scene.refusal(session, command))
    await is_reading.wait()
    return task, disk


async def test_a_member_that_loses_its_partition_while_it_reads_commits_nothing(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    await add_topic(scene, partition_count=2)
    await send(scene, "p1", to=1)
    old, new = scene.connect(0), scene.connect(0)
    await scene.ask(scene.root, c.CreateConsumerGroup("s", "t", "g"))
    await scene.ask(old, c.JoinConsumerGroup("s", "t", "g"))
    command = poll_command(partition=1, consumer=GROUP, commit=True)
    refused, disk = await poll_held(scene, monkeypatch, old, command)
    await scene.ask(new, c.JoinConsumerGroup("s", "t", "g"))
    disk.set()
    assert await refused is ErrorCode.PARTITION_NOT_OWNED
    assert await texts(scene, command, new) == ["p1"]


@pytest.mark.parametrize("consumer", [Consumer(ConsumerKind.CONSUMER, "me"), GROUP])
async def test_nothing_is_committed_for_one_whose_connection_goes_while_it_reads(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, consumer: Consumer
) -> None:
    await add_topic(scene)
    await send(scene, "for somebody")
    gone, next_one = scene.connect(0), scene.connect(0)
    await scene.ask(scene.root, c.CreateConsumerGroup("s", "t", "g"))
    for session in (gone, next_one):
        await scene.ask(session, c.JoinConsumerGroup("s", "t", "g"))
    command = poll_command(consumer=consumer, commit=True)
    refused, disk = await poll_held(scene, monkeypatch, gone, command)
    scene.broker.sessions.close(gone)
    disk.set()
    assert await refused is ErrorCode.DISCONNECTED
    assert await texts(scene, command, next_one) == ["for somebody"]


async def test_flush_syncs_if_asked_to(scene: Scene) -> None:
    await add_topic(scene)
    await send(scene, "x")
    log = log_of(scene)
    await scene.ask(scene.root, c.FlushMessages("s", "t", 0, fsync=False))
    assert log.marks.synced.offset == 0
    await scene.ask(scene.root, c.FlushMessages("s", "t", 0, fsync=True))
    assert log.marks.synced.offset == 1
    assert await scene.refusal(scene.root, c.FlushMessages("s", "t", 1, fsync=True)) is ErrorCode.PARTITION_NOT_FOUND


async def test_a_read_only_partition_can_still_be_read(tmp_path: Path) -> None:
    async with opened(tmp_path, is_clean=False) as scene:
        await add_topic(scene)
        await send(scene, "kept")
        log_of(scene).fail("the disk is broken")
        with pytest.raises(PartitionReadOnly, match="the disk is broken"):
            await send(scene, "lost")
        assert await texts(scene, poll_command()) == ["kept"]


async def test_memory_of_replies_is_used_again_once_they_are_sent(scene: Scene) -> None:
    await add_topic(scene)
    await send(scene, "x" * 100)
    first = await poll(scene, poll_command())
    second_session = scene.connect(0)
    second = await poll(scene, poll_command(), second_session)
    assert not share_memory(first.pieces[0], second.pieces[0])
    scene.broker.buffers.give_back(second_session)
    third = await poll(scene, poll_command(), second_session)
    assert share_memory(second.pieces[0], third.pieces[0])


async def test_large_messages_are_read_one_after_another_when_replies_fill_their_memory(tmp_path: Path) -> None:
    async with opened(tmp_path, BrokerSettings(reply_memory=3 * MIB)) as scene:
        await add_topic(scene, partition_count=2)
        for number in range(2):
            await send(scene, "x" * (2 * MIB), to=number)
            await send(scene, "small", to=number)
        large, small = poll_command(PollingKind.FIRST, count=1), poll_command(PollingKind.LAST, count=1)
        sessions = [scene.connect(0) for _ in range(3)]
        await poll(scene, large, sessions[0])
        waiting = [asyncio.create_task(poll(scene, large, session)) for session in sessions[1:]]
        deleted = asyncio.create_task(scene.refusal(scene.connect(0), poll_command(PollingKind.FIRST, partition=1)))
        await asyncio.sleep(0)
        assert await texts(scene, small) == ["small"]
        assert not any(task.done() for task in waiting)
        assert scene.broker.buffers.ledger.size < 3 * MIB
        await scene.ask(scene.root, c.DeletePartitions("s", "t", 1))
        for session, task in zip(sessions, waiting, strict=False):
            scene.broker.buffers.give_back(session)
            assert len(texts_of(await task)[0]) == 2 * MIB
        scene.broker.buffers.give_back(sessions[-1])
        assert await deleted is ErrorCode.PARTITION_NOT_FOUND


def share_memory(one: memoryview, other: memoryview) -> bool:
    return bool(np.shares_memory(np.frombuffer(one, np.uint8), np.frombuffer(other, np.uint8)))


async def test_a_group_of_a_name_that_was_used_before_is_the_new_one(scene: Scene) -> None:
    await add_topic(scene)
    await send(scene, "a")
    for _ in range(2):
        await scene.ask(scene.root, c.CreateConsumerGroup("s", "t", "g"))
        await scene.ask(scene.root, c.JoinConsumerGroup("s", "t", "g"))
        assert await texts(scene, poll_command(consumer=GROUP, commit=True)) == ["a"]
        assert await texts(scene, poll_command(consumer=GROUP, commit=True)) == []
        await scene.ask(scene.root, c.DeleteConsumerGroup("s", "t", "g"))
        assert await scene.refusal(scene.root, poll_command(consumer=GROUP)) is ErrorCode.GROUP_NOT_FOUND
