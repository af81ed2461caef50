"""Publishes beside purges of a server with an archive: a purge takes all of a publish from a topic, or nothing.

The archive may take long to store what is to be purged, so messages and publishes arrive meanwhile.
"""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from courser.broker.archive.archive_guard import ArchiveGuard
from courser.client.client import Client
from courser.errors import CourserError, DiskFull, ErrorCode, RequestFailed, ServerFailure
from courser.testing.broker import TestBroker
from tests.archive.brokers import archiver_of, fake_store, partition_of, running, settings_of, texts

TOPIC, SINK = "shop/orders", "a job"


async def prepare(client: Client, batch: int = 0) -> None:
    """A batch for two partitions, one message each."""
    await client.create_stream("shop", if_not_exists=True)
    await client.create_topic("shop", "orders", 2, if_not_exists=True)
    for partition in range(2):
        await client.send_messages(TOPIC, None, partition, ["before"])
    await stage(client, batch)


async def stage(client: Client, batch: int) -> None:
    for chunk in range(2):
        await client.stage(SINK, batch, 0, 0, chunk, TOPIC, None, chunk, [f"published {batch}"])
    await client.finish_stage(SINK, batch, 0, 0, 2)


async def publish(client: Client, batch: int = 0) -> None:
    await client.publish_staged(SINK, batch, {0: 0})


async def seen(client: Client) -> list[list[str]]:
    """What each partition has."""
    return [[payload.decode() for _, payload in await texts(client, TOPIC, partition)] for partition in range(2)]


def while_it_is_archived(
    broker: TestBroker, monkeypatch: pytest.MonkeyPatch, work: Callable[[], Awaitable[Any]]
) -> None:
    """Once, when a purge has had its messages archived and goes on, let this happen first."""
    archiver, works = archiver_of(broker), [work]
    run_once = archiver.run_once

    async def run_and_work(**how: Any) -> bool:
        is_done = await run_once(**how)
        if works:
            await works.pop()()
        return is_done

    monkeypatch.setattr(archiver, "run_once", run_and_work)


class HalfWay:
    """Publishes stop before they append to the second partition, until they are told to go on."""

    def __init__(self, broker: TestBroker, monkeypatch: pytest.MonkeyPatch) -> None:
        partition = partition_of(broker, 1)
        self._prepare = partition.prepare
        self.is_reached, self.may_go_on = asyncio.Event(), asyncio.Event()
        self.failure: CourserError | None = None
        """Raised instead of going on."""
        monkeypatch.setattr(partition, "prepare", self._wait_and_prepare)

    async def _wait_and_prepare(self, batch: Any) -> Any:
        self.is_reached.set()
        if self.failure is not None:
            raise self.failure
        await self.may_go_on.wait()
        return await self._prepare(batch)


async def until_it_waits_for_publishes(broker: TestBroker, purge: "asyncio.Task[None]") -> None:
    """Or does not wait."""
    gate = broker.broker.publishing._gate
    while not gate._entrance.locked() and not purge.done():  # noqa: ASYNC110 - no event says so
        await asyncio.sleep(0)


async def test_a_publish_that_arrives_while_a_purge_waits_for_the_archive_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever else is archived until the purge goes on."""
    async with running(tmp_path, settings_of(), fake_store()) as (broker, client):
        await prepare(client)
        other = await broker.connect()

        async def arrive() -> None:
            await publish(other)
            await broker.broker.publishing.idle()
            assert await archiver_of(broker).run_once(with_active=True)
            # The archive has all of the second partition now, and not of the first.
            await other.send_messages(TOPIC, None, 0, ["after"])

        while_it_is_archived(broker, monkeypatch, arrive)
        await client.purge_topic(TOPIC)
        assert await seen(client) == [["published 0", "after"], ["published 0"]]
        await client.purge_stream("shop")
        assert await seen(client) == [[], []]


async def test_a_publish_that_is_half_way_is_finished_before_the_end_of_each_partition_is_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with asyncio.timeout(60), running(tmp_path, settings_of(), fake_store()) as (broker, client):
        await prepare(client)
        other, half = await broker.connect(), HalfWay(broker, monkeypatch)
        published = asyncio.create_task(publish(other))
        await half.is_reached.wait()

        async def go_on() -> None:
            half.may_go_on.set()
            await published
            await broker.broker.publishing.idle()

        while_it_is_archived(broker, monkeypatch, go_on)
        purge = asyncio.create_task(client.purge_topic(TOPIC))
        await until_it_waits_for_publishes(broker, purge)
        half.may_go_on.set()
        await purge
        await published
        assert await seen(client) == [[], []]


async def test_a_publish_that_is_half_way_when_the_archive_has_answered_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with asyncio.timeout(60), running(tmp_path, settings_of(), fake_store()) as (broker, client):
        await prepare(client)
        other, half = await broker.connect(), HalfWay(broker, monkeypatch)
        began: list[asyncio.Task[None]] = []

        async def begin() -> None:
            began.append(asyncio.create_task(publish(other)))
            await half.is_reached.wait()

        while_it_is_archived(broker, monkeypatch, begin)
        purge = asyncio.create_task(client.purge_topic(TOPIC))
        await half.is_reached.wait()
        await until_it_waits_for_publishes(broker, purge)
        half.may_go_on.set()
        await purge
        await began[0]
        assert await seen(client) == [["published 0"], ["published 0"]]
        sink = await client.get_sink(SINK)
        assert not sink.is_open
        await broker.restart()
        assert await seen(await broker.connect()) == [["published 0"], ["published 0"]]


async def test_a_publish_that_cannot_be_finished_is_purged_as_a_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full, so the purge must not be refused. Nothing of the publish comes behind it."""
    async with asyncio.timeout(60), running(tmp_path, settings_of(), fake_store()) as (broker, client):
        await prepare(client)
        half = HalfWay(broker, monkeypatch)
        half.failure = DiskFull("write", tmp_path, OSError(28, "no room"))
        with pytest.raises(ServerFailure):
            await publish(client)

        async def try_again() -> None:
            half.failure = None
            half.may_go_on.set()
            await broker.broker.publishing.finish_open()
            with pytest.raises(CourserError) as refusal:
                await publish(await broker.connect())
            assert refusal.value.code is ErrorCode.PUBLISH_UNFINISHED

        while_it_is_archived(broker, monkeypatch, try_again)
        await client.purge_topic(TOPIC)
        await publish(client)
        assert await seen(client) == [[], []]
        await stage(client, 1)
        await publish(client, 1)
        assert await seen(client) == [["published 1"], ["published 1"]]


async def test_a_purge_does_not_wait_for_the_disk_to_settle_an_earlier_publish(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path, settings_of(), fake_store()) as (broker, client):
        await prepare(client)

        async def refuse(*_: object) -> None:
            raise DiskFull("sync", tmp_path, OSError(28, "no room"))

        monkeypatch.setattr(broker.broker.publishing._redo, "sync", refuse)
        await publish(client)
        await client.purge_topic(TOPIC)
        assert await seen(client) == [[], []]
        monkeypatch.undo()
        await broker.restart()
        assert await seen(await broker.connect()) == [[], []]


async def test_a_purge_is_refused_while_a_later_publish_cannot_be_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of it lies behind the end of the purge. The next purge takes all of it."""
    async with asyncio.timeout(60), running(tmp_path, settings_of(), fake_store()) as (broker, client):
        await prepare(client)
        half = HalfWay(broker, monkeypatch)
        half.failure = DiskFull("write", tmp_path, OSError(28, "no room"))
        other = await broker.connect()

        async def begin() -> None:
            with pytest.raises(ServerFailure):
                await publish(other)

        while_it_is_archived(broker, monkeypatch, begin)
        with pytest.raises(ServerFailure):
            await client.purge_topic(TOPIC)
        assert await seen(client) == [["before", "published 0"], ["before"]]
        await client.purge_topic(TOPIC)
        half.failure = None
        half.may_go_on.set()
        await publish(other)
        assert await seen(client) == [[], []]


async def test_a_partition_that_is_added_meanwhile_keeps_its_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path, settings_of(), fake_store()) as (broker, client):
        await prepare(client)
        other = await broker.connect()

        async def add() -> None:
            await other.create_partitions(TOPIC, None, 1)
            await other.send_messages(TOPIC, None, 2, ["new"])
            assert await archiver_of(broker).run_once(with_active=True)

        while_it_is_archived(broker, monkeypatch, add)
        await client.purge_topic(TOPIC)
        assert await seen(client) == [[], []]
        assert [payload for _, payload in await texts(client, TOPIC, 2)] == [b"new"]


async def test_a_purge_is_refused_if_the_archive_goes_away_before_it_is_journaled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path, settings_of(), fake_store()) as (broker, client):
        await prepare(client)
        archive_asked, guard = archiver_of(broker).archive_asked, archiver_of(broker).guard

        async def archive_and_lose(*arguments: Any) -> None:
            await archive_asked(*arguments)
            ArchiveGuard.confirm(guard, {})

        monkeypatch.setattr(archiver_of(broker), "archive_asked", archive_and_lose)
        with pytest.raises(RequestFailed) as refused:
            await client.purge_topic(TOPIC)
        assert refused.value.code is ErrorCode.NOT_ARCHIVED
        assert await seen(client) == [["before"], ["before"]]


async def test_a_purge_of_empty_partitions_deletes_their_stored_offsets(tmp_path: Path) -> None:
    async with running(tmp_path, settings_of(), fake_store()) as (_, client):
        await prepare(client)
        await client.purge_topic(TOPIC)
        await client.store_consumer_offset(TOPIC, None, 0, 0, consumer="late")
        await client.purge_topic(TOPIC)
        with pytest.raises(CourserError) as missing:
            await client.get_consumer_offset(TOPIC, None, 0, consumer="late")
        assert missing.value.code is ErrorCode.CONSUMER_OFFSET_NOT_FOUND
