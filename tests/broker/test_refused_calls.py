"""Every call that a command makes of the disk is refused once, and from then on: the client gets an error of Courser's.

A bare ``OSError`` would be a defect to whoever meets it: a handler answers with error 1, and metadata takes no more
commands until a restart.
"""

import errno
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from courser.api import commands as c
from courser.broker.settings import BrokerLimits, BrokerSettings
from courser.errors import CourserError
from courser.model.identifiers import Consumer, ConsumerKind
from courser.model.messaging import ToPartition
from courser.model.topic_options import TopicOptions
from courser.records.batch import NewMessage, build_batch
from tests.broker.fake_disks import FakeServer
from tests.fakes.files import FaultPlan

Work = Callable[[FakeServer], Awaitable[object]]

BATCH = build_batch([NewMessage(b"text")])
CONSUMER = Consumer(ConsumerKind.CONSUMER, 7)
PART = c.StagedPartName("sink", 1, 0, 1)
NEED_DESCRIPTORS = ("list_directory", "open", "sync_directory")
REFUSED = (*NEED_DESCRIPTORS, "make_directory", "read_at", "rename", "size", "sync", "unlink", "write_at")
FAILURE_COUNT_MAX = 12
"""Calls that fail, one after the other: more than a command tries again."""
FIRST_CALLS = (1, 2, 3, 5, 9)
"""The first call that fails, counted by operation."""


def asking(*commands: c.Command) -> Work:
    async def ask(server: FakeServer) -> None:
        for command in commands:
            await server.ask(command)

    return ask


async def clean(server: FakeServer) -> None:
    """Retention, as if the messages were old."""
    for partition in server.broker.partitions.topics[0, 0].partitions:
        await partition.roll()
    server.clock.advance(10_000_000)
    await server.broker.retention.clean_all()


async def catch_up(server: FakeServer) -> None:
    """What the server does now and then."""
    await server.broker.catalog.take_due_snapshot()
    await server.broker.look_after_staging()


WORKS: dict[str, Work] = {
    "create stream": asking(c.CreateStream("new")),
    "create topic": asking(c.CreateTopic("s", "new", 2, TopicOptions())),
    "create partitions": asking(c.CreatePartitions("s", "t", 2)),
    "update topic": asking(c.UpdateTopic("s", "t", "renamed", TopicOptions(durability="replicated"), is_patch=True)),
    "update stream": asking(c.UpdateStream("s", "renamed")),
    "purge topic": asking(c.PurgeTopic("s", "t")),
    "purge stream": asking(c.PurgeStream("s")),
    "delete partitions": asking(c.DeletePartitions("s", "t", 1)),
    "delete segments": asking(c.DeleteSegments("s", "t", 0, 1)),
    "delete topic": asking(c.DeleteTopic("s", "t")),
    "delete stream": asking(c.DeleteStream("s")),
    "create and delete group": asking(c.CreateConsumerGroup("s", "t", "g"), c.DeleteConsumerGroup("s", "t", "g")),
    "send": asking(c.SendMessages("s", "t", ToPartition(1), [BATCH])),
    "read": lambda server: server.read("t"),
    "store and delete offset": asking(
        c.StoreConsumerOffset(CONSUMER, "s", "t", 0, 0), c.DeleteConsumerOffset(CONSUMER, "s", "t", 0)
    ),
    "stage and publish": asking(
        c.StageMessages(PART, 0, "s", "t", ToPartition(0), BATCH),
        c.FinishStage(PART, 1),
        c.PublishStaged("sink", 1, ((0, 1),), 0),
    ),
    "discard": asking(
        c.StageMessages(PART, 0, "s", "t", ToPartition(0), BATCH), c.DiscardStaged("sink", None, forget=True)
    ),
    "retention": clean,
    "upkeep": catch_up,
}


async def started() -> FakeServer:
    server = FakeServer(settings=BrokerSettings(disk_thread_count=1, limits=BrokerLimits(disk_retry_delay=0.0)))
    await server.open()
    await server.ask(c.CreateStream("s"))
    await server.add_topic("t", 2, TopicOptions(durability="persisted", message_expiry=1_000_000))
    await server.send("t", "before")
    return server


class Passing(FaultPlan):
    """A fault that passes by itself, after the disk was asked a few times: some work is tried until it succeeds."""

    def __init__(self) -> None:
        super().__init__()
        self._left = FAILURE_COUNT_MAX

    @property
    def has_fired(self) -> bool:
        return self._left < FAILURE_COUNT_MAX

    def failure(self, operation: str, path: Path) -> int | None:
        error = super().failure(operation, path) if self._left else None
        self._left -= error is not None
        return error


async def rest(server: FakeServer) -> None:
    """Return when nothing is done in the background any more."""
    await server.broker.publishing.idle()
    catalog = server.broker.catalog
    await catalog._background.idle()
    if catalog._catch_up_timer is not None:
        catalog._catch_up_timer.cancel()
        catalog._catch_up_timer = None


async def refuse(work: Work, operation: str, call: int) -> tuple[bool, list[str]]:
    """Do it on a sick disk, then again on a sound one. Return whether there was such a call, and what escaped."""
    server = await started()
    error = errno.EMFILE if operation in NEED_DESCRIPTORS else errno.EIO
    plan = Passing()
    server.disk.plan = plan.fail(operation, error, call=call, onwards=True)
    escaped = []
    for _ in range(2):
        try:
            await work(server)
        except CourserError:
            pass
        except OSError as error_found:
            escaped.append(f"{operation} number {call}: {error_found!r}")
        await rest(server)
        server.disk.plan = FaultPlan()
    await server.restart(with_power_cut=False)
    server.broker.pool.shutdown()
    return plan.has_fired, escaped


@pytest.mark.parametrize("name", WORKS)
async def test_a_refused_call_is_an_error_that_clients_understand(name: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    escaped: list[str] = []
    for operation in REFUSED:
        for call in FIRST_CALLS:
            is_there, found = await refuse(WORKS[name], operation, call)
            escaped += found
            escaped += [
                f"{operation} number {call}: {r.getMessage()} {r.exc_info[1]!r}" for r in caplog.records if r.exc_info
            ]
            caplog.clear()
            if not is_there:
                break
    assert not escaped, "\n".join(escaped)


async def test_a_start_that_is_refused_a_call_says_so_in_its_own_words() -> None:
    escaped: list[str] = []
    for operation in REFUSED:
        for call in FIRST_CALLS:
            server = await started()
            await server.ask(c.StageMessages(PART, 0, "s", "t", ToPartition(0), BATCH))
            server.broker.pool.shutdown()
            server.disk.kill()
            plan = Passing()
            error = errno.EMFILE if operation in NEED_DESCRIPTORS else errno.EIO
            server.disk.plan = plan.fail(operation, error, call=call, onwards=True)
            try:
                broker = await server.open()
                broker.pool.shutdown()
            except CourserError:
                pass
            except OSError as found:
                escaped.append(f"{operation} number {call}: {found!r}")
            if not plan.has_fired:
                break
    assert not escaped, "\n".join(escaped)
