"""Brokers with an archive: what the tests of archiver and restore share."""

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from msgspec.structs import replace

from courser.archive.settings import ArchiveMoment, ArchiveSettings, StoreSettings
from courser.archive.store import Store
from courser.broker.archive.archive_share import Backlog
from courser.broker.archive.archiving import Archiver
from courser.broker.partition.partition import Partition
from courser.broker.settings import USUAL_TOPIC_OPTIONS, BrokerSettings
from courser.client.client import Client
from courser.client.messages import PollingStrategy
from courser.testing.broker import TestBroker
from tests.fakes.clocks import ManualClock
from tests.fakes.object_store import FakeStore

HOUR = 3600 * 1_000_000


def fake_store(seed: int = 1) -> FakeStore:
    return FakeStore(random.Random(seed))


def settings_of(
    archive: Path | None = None,
    *,
    moment: ArchiveMoment = ArchiveMoment.SEAL,
    protects_expired: bool = True,
    take_over: bool = False,
    restore_on_start: bool = False,
    expiry: int | None = None,
    retention: int = 0,
    recreate_missing_state: bool = False,
    store: StoreSettings | None = None,
) -> BrokerSettings:
    """Settings with an archive; without ``archive`` and ``store``, the store is handed to the broker."""
    defaults = USUAL_TOPIC_OPTIONS if expiry is None else replace(USUAL_TOPIC_OPTIONS, message_expiry=expiry)
    return BrokerSettings(
        topic_defaults=defaults,
        recreate_missing_state=recreate_missing_state,
        archive=ArchiveSettings(
            store=store or StoreSettings(path=archive or Path("unused")),
            moment=moment,
            protects_expired=protects_expired,
            take_over=take_over,
            restore_on_start=restore_on_start,
            retention=retention,
            part_size=5 * 1024 * 1024,
            # However busy the machine is: tests rely on what starts and stops do.
            contact_timeout=HOUR,
            last_run_timeout=HOUR,
        ),
    )


@asynccontextmanager
async def running(
    directory: Path, settings: BrokerSettings, store: Store | None = None, clock: ManualClock | None = None
) -> AsyncIterator[tuple[TestBroker, Client]]:
    broker = TestBroker(directory, settings=settings, archive_store=store, clock=clock)
    async with broker:
        yield broker, await broker.connect()


def archiver_of(broker: TestBroker) -> Archiver:
    archiver = broker.broker.archiver
    assert archiver is not None
    return archiver


async def backlog_of(broker: TestBroker) -> Backlog:
    share = archiver_of(broker).share
    await share.survey()
    return share.backlog


def partition_of(broker: TestBroker, partition_id: int = 0) -> Partition:
    return next(iter(broker.broker.partitions)).partitions[partition_id]


async def fill(broker: TestBroker, client: Client, *contents: str) -> None:
    """One sealed segment per text in partition 0 of ``shop/orders``, which is made if it is not there."""
    await client.create_stream("shop", if_not_exists=True)
    await client.create_topic("shop", "orders", if_not_exists=True)
    for content in contents:
        await client.send_messages("shop/orders", partitioning=0, messages=[content])
        await partition_of(broker).roll()


async def texts(client: Client, topic: str = "shop/orders", partition_id: int = 0) -> list[tuple[int, bytes]]:
    """Offset and payload of every message of a partition."""
    bounds = await client.get_partition_bounds(topic)
    found: list[tuple[int, bytes]] = []
    offset = bounds.partitions[partition_id].first_offset
    while True:
        messages = await client.poll_messages(
            topic,
            None,
            partition_id,
            polling_strategy=PollingStrategy.Offset(offset),
            count=1000,
            auto_commit=False,
            skip_missing=True,
        )
        if not messages:
            return found
        found += [(message.offset, message.payload) for message in messages]
        offset = messages[-1].offset + 1
