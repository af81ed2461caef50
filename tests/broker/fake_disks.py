"""A broker on a disk that fails and loses power when a test says so."""

import random
from dataclasses import replace
from pathlib import Path
from typing import cast

from courser.api import commands as c
from courser.api import replies as r
from courser.api.commands import Command
from courser.api.replies import Reply
from courser.broker.broker import Broker, RootUser
from courser.broker.settings import BrokerSettings
from courser.handlers.dispatcher import Dispatcher
from courser.model.identifiers import Consumer, ConsumerKind
from courser.model.messaging import PollingKind, ToPartition, Transport
from courser.model.topic_options import TopicOptions
from courser.records.batch import NewMessage, build_batch
from courser.storage.data_directory import DataDirectory
from courser.storage.local_files import DirectoryLock
from courser.storage.session_file import how_it_stopped
from tests.fakes.clocks import ManualClock
from tests.fakes.files import FakeFileSystem, FaultPlan
from tests.records.reference import read_wire

PATH = Path("/data")
ROOT = RootUser("iggy", "$argon2id$v=19$m=8,t=1,p=1$c29tZXNhbHQ$Jlt7EvnWHx4ygcKFdbkqpQ")


class _NoLock:
    """There is nobody else on a disk that exists only here."""

    def close(self) -> None:
        """Nothing to let go of."""


class FakeServer:
    """One disk, one life after the other."""

    def __init__(self, seed: int = 1, settings: BrokerSettings | None = None, root: RootUser = ROOT) -> None:
        self.disk = FakeFileSystem(random.Random(seed))
        self.disk.plant_directory(PATH)
        self.clock = ManualClock()
        settings = settings or BrokerSettings()
        # Tries that fail follow one another at once here.
        self.settings = replace(settings, limits=replace(settings.limits, change_retry_delay=0))
        self.root = root
        self.broker: Broker
        # Apart from the disk's: what a power cut leaves does not depend on how often bytes were drawn.
        self._draw = random.Random(seed).randbytes

    async def open(self) -> Broker:
        stop = how_it_stopped(self.disk, PATH)
        data = DataDirectory(PATH, self.disk, cast("DirectoryLock", _NoLock()), stop, self.clock)
        self.broker = await Broker.open(data, self.settings, make_root=lambda: self.root, draw=self._draw)
        self._dispatch = Dispatcher(self.broker).dispatch
        self.session = self.broker.sessions.open(Transport.TCP, "127.0.0.1:1")
        self.session.user_id = 0
        return self.broker

    async def restart(self, *, with_power_cut: bool) -> Broker:
        """What was left of the last life is gone; the disk works again."""
        self.broker.pool.shutdown(cancel_futures=True)
        self.disk.plan = FaultPlan()
        if with_power_cut:
            self.disk.power_cut()
        else:
            self.disk.kill()
        return await self.open()

    # --- commands ---

    async def ask(self, command: Command) -> Reply | None:
        return await self._dispatch(self.session, command)

    async def add_topic(self, name: str, partition_count: int = 1, options: TopicOptions | None = None) -> None:
        await self.ask(c.CreateTopic("s", name, partition_count, options or TopicOptions()))

    async def send(self, topic: str, text: str, partition_id: int = 0) -> int:
        batch = build_batch([NewMessage(text.encode())])
        reply = await self.ask(c.SendMessages("s", topic, ToPartition(partition_id), [batch]))
        assert isinstance(reply, r.Sent)
        return reply.base_offset

    async def read(self, topic: str, partition_id: int = 0) -> dict[int, str]:
        """Everything in a partition, by offset."""
        consumer = Consumer(ConsumerKind.CONSUMER, 1)
        poll = c.PollMessages(consumer, "s", topic, partition_id, PollingKind.FIRST, 0, 10_000, auto_commit=False)
        reply = await self.ask(poll)
        assert isinstance(reply, r.Polled)
        messages = {message.offset: message.payload.decode() for message in read_wire(b"".join(reply.pieces))}
        self.broker.buffers.give_back(self.session)
        return messages
