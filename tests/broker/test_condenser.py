"""The condenser: which partitions it condenses and when, what it leaves alone, and what polls and lags say after it."""

import itertools
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from courser.api import commands as c
from courser.api import replies as r
from courser.broker.settings import BrokerSettings
from courser.inspect.verify import Verification
from courser.model.identifiers import Consumer, ConsumerKind
from courser.model.messaging import PollingKind, ToPartition
from courser.model.topic_options import TopicOptions
from courser.storage.local_files import LocalFileSystem
from courser.storage.message_window import Deduplication
from courser.storage.settings import EngineLimits
from tests.handlers.messaging import ME, add_topic, log_of, messages_of, partition_of, poll, poll_command
from tests.handlers.scenes import Scene, opened
from tests.storage.condensed import keyed

HOUR = 3600 * 1_000_000
SETTINGS = BrokerSettings(tombstone_delay=HOUR)


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    async with opened(tmp_path, SETTINGS) as scene:
        yield scene


async def send(scene: Scene, *messages: tuple[bytes | None, bytes]) -> None:
    await scene.ask(scene.root, c.SendMessages("s", "t", ToPartition(0), [keyed(messages)]))


async def fill(scene: Scene, *segments: Sequence[tuple[bytes | None, bytes]]) -> None:
    """Sealed segments, each of one batch, and an open one."""
    for messages in segments:
        await send(scene, *messages)
        await partition_of(scene).roll()
    await send(scene, (None, b"open"))


async def offsets(scene: Scene, command: c.PollMessages | None = None) -> list[int]:
    found = [message.offset for message in messages_of(await poll(scene, command or poll_command(PollingKind.FIRST)))]
    scene.broker.buffers.give_back(scene.root)
    return found


UPDATES = ((b"a", b"1"), (b"a", b"2"), (b"b", b"1"), (None, b"end"))


async def test_only_topics_with_the_option_are_condensed(scene: Scene) -> None:
    await add_topic(scene)
    await fill(scene, UPDATES)
    await scene.broker.condenser.condense_due()
    assert await offsets(scene) == [0, 1, 2, 3, 4]
    options = TopicOptions(keep_latest_by_key=True)
    await scene.ask(scene.root, c.UpdateTopic("s", "t", "t", options, is_patch=True))
    await scene.broker.condenser.condense_due()
    assert await offsets(scene) == [1, 2, 3, 4]


async def test_polls_lags_and_commits_pass_over_the_gaps(scene: Scene) -> None:
    await add_topic(scene, keep_latest_by_key=True)
    await scene.ask(scene.root, c.CreateConsumerGroup("s", "t", "g"))
    await fill(scene, UPDATES, UPDATES)
    await scene.broker.condenser.condense_due()
    assert await offsets(scene) == [3, 5, 6, 7, 8]
    for number in range(9):
        found = await offsets(scene, poll_command(PollingKind.OFFSET, number, count=2))
        assert found == [offset for offset in (3, 5, 6, 7, 8) if offset >= number][:2]
    for count in range(1, 6):
        assert await offsets(scene, poll_command(PollingKind.LAST, count=count)) == [3, 5, 6, 7, 8][-count:]
    group = Consumer(ConsumerKind.GROUP, "g")
    await scene.ask(scene.root, c.JoinConsumerGroup("s", "t", "g"))
    lags, seen = [], []
    while found := await offsets(scene, poll_command(partition=None, consumer=group, count=2, commit=True)):
        seen += found
        reply = await scene.ask(scene.root, c.GetGroupLag("s", "t", "g"))
        assert isinstance(reply, r.GroupLag)
        lags.append(reply.partitions[0].message_count or 0)
    assert seen == [3, 5, 6, 7, 8]
    assert lags[-1] == 0
    assert lags == sorted(lags, reverse=True)
    assert (await poll(scene, poll_command(PollingKind.FIRST))).current_offset == 8


@pytest.mark.parametrize("when", range(1, 5))
async def test_segments_that_are_removed_meanwhile_end_one_attempt_and_no_more(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, when: int
) -> None:
    await add_topic(scene, keep_latest_by_key=True)
    await fill(scene, UPDATES, UPDATES)
    partition = partition_of(scene)
    work, steps = partition.work, itertools.count(1)

    async def trim_and_work(step: Callable[[], int]) -> int:
        if next(steps) == when:
            await partition.trim(partition.log.segments[-1].base_offset)
        return await work(step)

    monkeypatch.setattr(partition, "work", trim_and_work)
    await scene.broker.condenser.condense_due()
    await fill(scene, UPDATES)
    await scene.broker.condenser.condense_due()
    assert (await offsets(scene))[-3:] == [11, 12, 13]


async def test_a_tombstone_goes_after_the_delay(scene: Scene) -> None:
    await add_topic(scene, keep_latest_by_key=True)
    await fill(scene, UPDATES, ((b"a", b""), (None, b"end")))
    await scene.broker.condenser.condense_due()
    assert await offsets(scene) == [2, 3, 4, 5, 6]
    scene.clock.advance(HOUR - 1)
    await scene.broker.condenser.condense_due()
    assert await offsets(scene) == [2, 3, 4, 5, 6]
    scene.clock.advance(2)
    await scene.broker.condenser.condense_due()
    assert await offsets(scene) == [2, 3, 5, 6]


async def test_it_waits_until_enough_is_new(scene: Scene) -> None:
    await add_topic(scene, keep_latest_by_key=True)
    await fill(scene, [(b"%d" % number, bytes(1000)) for number in range(10)])
    await scene.broker.condenser.condense_due()
    await partition_of(scene).roll()
    await fill(scene, UPDATES)
    await scene.broker.condenser.condense_due()
    assert len(await offsets(scene)) == 16
    await partition_of(scene).roll()
    await fill(scene, [(b"%d" % number, bytes(2000)) for number in range(10)])
    await scene.broker.condenser.condense_due()
    assert await offsets(scene) == [9, 10, 12, 13, 14, 15, *range(16, 27)]


async def test_many_keys_take_several_passes(tmp_path: Path) -> None:
    settings = replace(SETTINGS, engine_limits=EngineLimits(condensed_key_count_max=3))
    async with opened(tmp_path, settings) as scene:
        await add_topic(scene, keep_latest_by_key=True)
        keys = [(b"%d" % number, b"x") for number in range(10)]
        await fill(scene, keys, keys)
        done = await scene.broker.condenser.condense(partition_of(scene))
        assert (done.removed_count, await offsets(scene)) == (9, [9, *range(10, 21)])
        assert done.freed_size > 0


async def test_messages_whose_ids_are_remembered_stay(tmp_path: Path) -> None:
    settings = replace(SETTINGS, deduplication=Deduplication(1000, HOUR))
    async with opened(tmp_path, settings) as scene:
        await add_topic(scene, keep_latest_by_key=True)
        await fill(scene, UPDATES)
        # Only the last one has an id that is new.
        await send(scene, *[(None, b"open")] * 5)
        count = log_of(scene).message_count
        await scene.broker.condenser.condense_due()
        assert log_of(scene).message_count == count
        scene.clock.advance(HOUR + 1)
        await scene.broker.condenser.condense_due()
        assert log_of(scene).message_count == count - 1


async def test_messages_of_an_open_publish_stay(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    await add_topic(scene, keep_latest_by_key=True)
    await fill(scene, UPDATES, UPDATES)
    monkeypatch.setattr(scene.broker.publishing, "first_open_offset", lambda _identity: 5)
    await scene.broker.condenser.condense_due()
    assert await offsets(scene) == [1, 2, 3, 4, 5, 6, 7, 8]


async def test_retention_and_a_restart_after_condensing(tmp_path: Path) -> None:
    async with opened(tmp_path, SETTINGS) as scene:
        await add_topic(scene, keep_latest_by_key=True)
        await fill(scene, UPDATES, UPDATES)
        ledger = log_of(scene).ledger.file.path
        old_records = ledger.read_bytes()
        await scene.broker.condenser.condense_due()
    records = ledger.read_bytes()
    ledger.write_bytes(old_records)
    assert not [
        finding.reason for finding in Verification(LocalFileSystem(), tmp_path).findings() if finding.check == "log"
    ]
    ledger.write_bytes(records)
    assert not [finding.reason for finding in Verification(LocalFileSystem(), tmp_path).findings()]
    async with opened(tmp_path, SETTINGS) as scene:
        assert await offsets(scene) == [3, 5, 6, 7, 8]
        await partition_of(scene).trim(4)
        assert await offsets(scene) == [5, 6, 7, 8]
        assert log_of(scene).message_count == 4
        assert await offsets(scene, poll_command(consumer=ME)) == [5, 6, 7, 8]
