"""A purge of a topic is all or nothing: a partition that missed it in a power cut is purged when it is opened."""

import errno
import random

import pytest

from courser.catalog import commands as c
from courser.catalog.directories import Directories
from courser.catalog.entities import Stream, Topic
from courser.catalog.opening import OpenedCatalog, open_catalog
from courser.catalog.partitions import open_partition_log
from courser.errors import StorageFailure
from courser.model.consumers import ConsumerKind
from courser.records.batch import NewMessage, build_batch
from courser.storage.jobs import perform
from courser.storage.offset_table import ConsumerKey
from courser.storage.partition_log import PartitionLog
from courser.storage.recovery_cases import StopKind
from courser.storage.settings import LogSettings
from courser.storage.syncing import plan_sync
from courser.storage.upkeep import plan_purge, plan_reservation
from courser.testing.catalog_simulation import DATA
from courser.testing.clocks import ManualClock
from courser.testing.files import FakeFileSystem, FaultPlan
from tests.catalog.scenes import OPTIONS, uuid

ONE = ConsumerKey(ConsumerKind.CONSUMER, b"\x01\x00\x00\x00")


@pytest.fixture
def disk() -> FakeFileSystem:
    disk = FakeFileSystem(random.Random(1))
    disk.plant_directory(DATA)
    return disk


def start(disk: FakeFileSystem) -> OpenedCatalog:
    return open_catalog(disk, DATA, clock=ManualClock(), stop=StopKind.CRASHED)


def submit(opened: OpenedCatalog, command: c.AnyCommand) -> None:
    opened.store.submit(command)
    opened.directories.carry_out(opened.store.state, command)


def open_logs(disk: FakeFileSystem, opened: OpenedCatalog) -> list[PartitionLog]:
    stream: Stream = opened.store.state.streams[0]
    topic: Topic = stream.topics[0]
    directories: Directories = opened.directories
    return [
        open_partition_log(
            disk,
            directories,
            stream,
            topic,
            partition,
            settings=LogSettings(),
            clock=ManualClock(),
            stop=StopKind.CRASHED,
        )
        for partition in topic.partitions
    ]


def send(log: PartitionLog) -> None:
    batch = build_batch([NewMessage(b"hello")])
    if log.needs_reservation(1) and (job := plan_reservation(log, 1)) is not None:
        assert perform(job)
    log.append(batch)
    log.store_offset(ONE, log.next_offset - 1)
    assert (job := plan_sync(log)) is not None
    assert perform(job)


def topic_with_messages(disk: FakeFileSystem) -> tuple[OpenedCatalog, list[PartitionLog]]:
    opened = start(disk)
    submit(opened, c.CreateStream("stream", uuid(1)))
    submit(opened, c.CreateTopic(0, "topic", uuid(2), 3, OPTIONS))
    logs = open_logs(disk, opened)
    for log in logs:
        send(log)
    return opened, logs


def test_a_purge_that_was_counted_reaches_every_partition(disk: FakeFileSystem) -> None:
    opened, logs = topic_with_messages(disk)
    submit(opened, c.PurgeTopic(0, 0))
    assert perform(plan_purge(logs[0], 1))
    # The power fails before the other two.
    disk.power_cut()
    logs = open_logs(disk, start(disk))
    assert [log.message_count for log in logs] == [0, 0, 0]
    assert [log.offsets.get(ONE) for log in logs] == [None, None, None]
    assert [log.epoch for log in logs] == [1, 1, 1]
    assert all(log.next_offset >= 1 for log in logs), "numbering goes on"


def test_a_purge_is_carried_out_once(disk: FakeFileSystem) -> None:
    opened, logs = topic_with_messages(disk)
    submit(opened, c.PurgeTopic(0, 0))
    for log in logs:
        assert perform(plan_purge(log, 1))
        send(log)
    disk.power_cut()
    assert [log.message_count for log in open_logs(disk, start(disk))] == [1, 1, 1]


def test_a_partition_made_after_a_purge_has_missed_nothing(disk: FakeFileSystem) -> None:
    opened, _ = topic_with_messages(disk)
    submit(opened, c.PurgeTopic(0, 0))
    submit(opened, c.CreatePartitions(0, 0, 1))
    logs = open_logs(disk, opened)
    send(logs[3])
    disk.power_cut()
    assert [log.message_count for log in open_logs(disk, start(disk))] == [0, 0, 0, 1]


def test_a_purge_that_cannot_be_carried_out_is_an_error_not_a_silence(disk: FakeFileSystem) -> None:
    opened, _ = topic_with_messages(disk)
    submit(opened, c.PurgeTopic(0, 0))
    disk.power_cut()
    opened = start(disk)
    disk.plan = FaultPlan().fail("unlink", errno.EIO, name="*.log", onwards=True)
    with pytest.raises(StorageFailure, match="purge"):
        open_logs(disk, opened)
