"""Purges among publishes: what is published before a purge is gone for good, whatever fails in between."""

import asyncio
import contextlib
import errno
import threading
from collections import Counter
from unittest import mock

import pytest

from courser.api import commands as c
from courser.broker.publishing.publishing import Publishing
from courser.broker.publishing.redo import AppendProgress
from courser.broker.settings import BrokerSettings
from courser.catalog.entities import Publish, Sink
from courser.catalog.store import PreparedChange
from courser.errors import CommandRejected, CourserError, ErrorCode
from courser.model.messaging import ToPartition
from courser.model.topic_options import TopicOptions
from courser.records.batch import NewMessage, build_batch
from tests.fakes.files import FaultPlan
from tests.staging.lives import EXPECTED, SINK, Life, not_yet


@pytest.mark.parametrize("with_power_cut", [False, True])
@pytest.mark.parametrize("purge", [c.PurgeTopic("s", "t"), c.PurgeStream("s")], ids=["topic", "stream"])
async def test_a_purge_takes_what_was_published_and_could_not_be_synced(
    purge: c.Command, with_power_cut: bool, seed: int
) -> None:
    life = Life(seed, level="replicated")
    await life.begin()
    life.server.disk.plan = FaultPlan().fail("sync", errno.EIO, name="*.log", onwards=True)
    await life.work()
    with contextlib.suppress(CourserError):
        await life.server.ask(purge)
    await life.server.restart(with_power_cut=with_power_cut)
    assert await life.seen() == Counter(), "messages that were purged are back"
    assert not await life.is_open()
    assert life.staged_files() == []
    await life.server.restart(with_power_cut=True)
    assert await life.seen() == Counter(), "messages that were purged are back"
    life.server.broker.pool.shutdown()


@pytest.mark.parametrize("ending", ["repeat", "kill", "power cut"])
async def test_a_purge_takes_all_of_a_publish_that_is_half_way(ending: str, seed: int) -> None:
    for appended_count in range(1, len(EXPECTED)):
        life = Life(seed, level="persisted")
        await life.begin()
        await life.server.add_topic("u")
        parts = await life.stage()
        await stage_for_the_other_topic(life, parts)
        life.server.disk.plan = FaultPlan().fail(
            "write_at", errno.ENOSPC, name="*.log", call=appended_count + 1, onwards=True
        )
        with pytest.raises(CourserError):
            await life.publish(parts)
        life.server.disk.plan = FaultPlan()
        await life.server.ask(c.PurgeTopic("s", "t"))
        if ending != "repeat":
            await life.server.restart(with_power_cut=ending == "power cut")
        await life.publish(parts)
        assert await life.seen() == Counter(), "a part of the publish is there, behind the purge"
        assert list((await life.server.read("u")).values()) == ["other"], "the purge was not asked for here"
        await life.server.restart(with_power_cut=True)
        assert await life.seen() == Counter(), "messages that were purged are back"
        life.server.broker.pool.shutdown()


async def stage_for_the_other_topic(life: Life, parts: dict[int, int]) -> None:
    """One more part: for a topic that is not purged. It comes last."""
    part, attempt = max(parts) + 1, max(parts.values())
    name = c.StagedPartName(SINK, 0, part, attempt)
    batch = build_batch([NewMessage(b"other")])
    await life.server.ask(c.StageMessages(name, 0, "s", "u", ToPartition(0), batch))
    await life.server.ask(c.FinishStage(name, 1))
    parts[part] = attempt


async def test_a_batch_that_waits_while_its_topic_is_purged_is_not_appended(seed: int) -> None:
    life = Life(seed, level="replicated")
    life.server.settings = BrokerSettings(disk_thread_count=4)
    await life.begin()
    parts = await life.stage()
    catalog, redo = life.server.broker.catalog, life.server.broker.publishing._redo
    is_decided, may_append, may_purge = asyncio.Event(), asyncio.Event(), threading.Event()
    append, persist = redo.append, catalog._persist

    async def append_later(sink: Sink, publish: Publish) -> AppendProgress:
        is_decided.set()
        await may_append.wait()
        return await append(sink, publish)

    def persist_later(prepared: PreparedChange) -> None:
        assert may_purge.wait(30)
        persist(prepared)

    async with asyncio.timeout(30):
        redo.append = append_later  # type: ignore[method-assign]
        published = asyncio.create_task(life.publish(parts))
        await is_decided.wait()
        catalog._persist = persist_later  # type: ignore[method-assign]
        purged = asyncio.create_task(life.server.ask(c.PurgeTopic("s", "t")))
        partitions = life.server.broker.partitions.topics[0, 0].partitions
        while not all(partition._hold for partition in partitions):  # noqa: ASYNC110 - no event says so
            await asyncio.sleep(0)
        may_append.set()
        while not any(partition._entrance._waiting for partition in partitions):  # noqa: ASYNC110 - no event says so
            await asyncio.sleep(0)
        may_purge.set()
        await purged
        await published
    assert await life.seen() == Counter()
    await life.server.restart(with_power_cut=False)
    assert await life.seen() == Counter()
    life.server.broker.pool.shutdown()


@pytest.mark.parametrize("is_asked_for", [True, False])
async def test_retention_settles_a_publish_before_it_deletes_its_messages(is_asked_for: bool, seed: int) -> None:
    life = Life(seed, level="replicated")
    await life.begin()
    with mock.patch.object(Publishing, "_settle_quietly", not_yet):
        await life.work(to_the_end=False)
    broker = life.server.broker
    topic = broker.partitions.topics[0, 0]
    for partition in topic.partitions:
        await partition.roll()
    if is_asked_for:
        for number in range(2):
            await life.server.ask(c.DeleteSegments("s", "t", number, 10))
    else:
        await life.server.ask(c.UpdateTopic("s", "t", "t", TopicOptions(message_expiry=1), is_patch=True))
        life.server.clock.advance(10_000_000)
        await broker.retention.clean_all()
    assert await life.seen() == Counter()
    await life.server.restart(with_power_cut=False)
    assert await life.seen() == Counter(), "messages that were deleted are back"
    life.server.broker.pool.shutdown()


@pytest.mark.parametrize("is_asked_for", [True, False])
async def test_retention_deletes_nothing_of_a_publish_that_cannot_be_settled_now(is_asked_for: bool, seed: int) -> None:
    """The server stops, or another process is away: the next start would append the messages once more."""
    life = Life(seed, level="replicated")
    await life.begin()
    with mock.patch.object(Publishing, "_settle_quietly", not_yet):
        await life.work(to_the_end=False)
    broker = life.server.broker
    for partition in broker.partitions.topics[0, 0].partitions:
        await partition.roll()
    await broker.publishing.close()
    if is_asked_for:
        with pytest.raises(CommandRejected) as refusal:
            await life.server.ask(c.DeleteSegments("s", "t", 0, 10))
        assert refusal.value.code is ErrorCode.SERVER_BUSY
    else:
        await life.server.ask(c.UpdateTopic("s", "t", "t", TopicOptions(message_expiry=1), is_patch=True))
        life.server.clock.advance(10_000_000)
        await broker.retention.clean_all()
    assert await life.seen() == EXPECTED
    await life.server.restart(with_power_cut=False)
    assert await life.seen() == EXPECTED
    life.server.broker.pool.shutdown()
