"""A purge of a topic is all or nothing: a partition that missed it in a power cut is purged when it is opened."""

import errno
import random

import pytest

from courser.catalog import changes as c
from courser.catalog.directories import Directories
from courser.catalog.entities import Stream, Topic
from courser.catalog.opening import OpenedCatalog, open_catalog
from courser.catalog.partitions import open_partition_log
from courser.errors import StorageFailure
from courser.model.identifiers import ConsumerKind
from courser.records.batch import NewMessage, build_batch
from courser.storage.jobs import perform
from courser.storage.offset_table import ConsumerKey
from courser.storage.partition_log import PartitionLog
from courser.storage.recovery_cases import StopKind
from courser.storage.settings import LogSettings
from courser.storage.upkeep import plan_purge, plan_reservation, plan_sync
from tests.catalog.scenes import OPTIONS, uuid
from tests.fakes.clocks import ManualClock
from tests.fakes.files import FakeFileSystem, FaultPlan
from tests.simulator.catalog_simulation import DATA

ONE = ConsumerKey(ConsumerKind.CONSUMER, b"\x01\x00\x00\x00")


@pytest.fixture
def disk() -> FakeFileSystem:
    disk = FakeFileSystem(random.Random(1))
    disk.plant_directory(DATA)
    return disk


def start(disk: FakeFileSystem) -> OpenedCatalog:
    return open_catalog(disk, DATA, clock=ManualClock(), stop=StopKind.CRASHED)


def submit(opened: OpenedCatalog, command: c.AnyChange) -> None:
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
            purge_end=opened.store.state.purge_end(topic, partition.partition_id),
        )
        for partition in topic.partitions
    ]


def open_behind(disk: FakeFileSystem, opened: OpenedCatalog, number: int, operation: str, error: int) -> PartitionLog:
    """Open a partition on a disk that refuses the first thing that its purge does, and nothing before."""
    stream: Stream = opened.store.state.streams[0]
    topic: Topic = stream.topics[0]
    for call in range(1, 20):
        disk.plan = FaultPlan().fail(operation, error, call=call, name="ledger", onwards=True)
        try:
            return open_partition_log(
                disk,
                opened.directories,
                stream,
                topic,
                topic.partitions[number],
                settings=LogSettings(),
                clock=ManualClock(),
                stop=StopKind.KILLED,
                purge_end=opened.store.state.purge_end(topic, number),
            )
        except StorageFailure:
            continue
        finally:
            disk.plan = FaultPlan()
    raise AssertionError("the partition cannot be opened at all")


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
    submit(opened, c.StreamCreation("stream", uuid(1)))
    submit(opened, c.TopicCreation(0, "topic", uuid(2), 3, OPTIONS))
    logs = open_logs(disk, opened)
    for log in logs:
        send(log)
    return opened, logs


def test_a_purge_that_was_counted_reaches_every_partition(disk: FakeFileSystem) -> None:
    opened, logs = topic_with_messages(disk)
    submit(opened, c.TopicPurge(0, 0, 1, (1, 1, 1)))
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
    submit(opened, c.TopicPurge(0, 0))
    for log in logs:
        assert perform(plan_purge(log, 1))
        send(log)
    disk.power_cut()
    assert [log.message_count for log in open_logs(disk, start(disk))] == [1, 1, 1]


def test_a_partition_made_after_a_purge_has_missed_nothing(disk: FakeFileSystem) -> None:
    opened, _ = topic_with_messages(disk)
    submit(opened, c.TopicPurge(0, 0, 1, (1, 1, 1)))
    submit(opened, c.PartitionCreation(0, 0, 1))
    logs = open_logs(disk, opened)
    send(logs[3])
    disk.power_cut()
    assert [log.message_count for log in open_logs(disk, start(disk))] == [0, 0, 0, 1]


def test_a_partition_that_cannot_be_purged_for_good_takes_nothing_more(disk: FakeFileSystem) -> None:
    opened, _ = topic_with_messages(disk)
    submit(opened, c.TopicPurge(0, 0, 1, (1, 1, 1)))
    disk.power_cut()
    opened = start(disk)
    disk.plan = FaultPlan().fail("unlink", errno.EIO, name="*.log", onwards=True)
    assert all("could not remove" in str(log.failure) for log in open_logs(disk, opened))


@pytest.mark.parametrize(("operation", "error"), [("write_at", errno.ENOSPC), ("open", errno.EMFILE)])
@pytest.mark.parametrize("with_power_cut", [False, True])
def test_messages_sent_before_a_purge_is_carried_out_are_not_its_victims(
    disk: FakeFileSystem, operation: str, error: int, *, with_power_cut: bool
) -> None:
    opened, logs = topic_with_messages(disk)
    submit(opened, c.TopicPurge(0, 0, 1, tuple(log.next_offset for log in logs)))
    ends = [log.next_offset for log in logs]
    disk.kill()
    opened = start(disk)
    logs = [open_behind(disk, opened, number, operation, error) for number in range(len(ends))]
    for log in logs:
        assert log.failure is None
        assert (log.epoch, log.message_count) == (0, 1)
        send(log)
    sent = [log.next_offset - 1 for log in logs]
    disk.power_cut() if with_power_cut else disk.kill()
    logs = open_logs(disk, start(disk))
    assert [log.epoch for log in logs] == [1, 1, 1]
    assert [log.message_count for log in logs] == [1, 1, 1]
    assert [log.start_offset for log in logs] == ends
    assert [log.offsets.get(ONE) for log in logs] == sent


def test_a_purge_of_an_earlier_version_removes_nothing_that_may_have_been_sent_after_it(disk: FakeFileSystem) -> None:
    opened, _ = topic_with_messages(disk)
    submit(opened, c.TopicPurge(0, 0))
    disk.power_cut()
    logs = open_logs(disk, start(disk))
    assert [log.message_count for log in logs] == [1, 1, 1]
    assert [log.offsets.get(ONE) for log in logs] == [0, 0, 0]
    assert [log.epoch for log in logs] == [1, 1, 1]
