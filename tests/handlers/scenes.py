"""A broker on a real directory, with a clock that stands still, and clients that talk to its dispatcher."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from courser.api.commands import Command
from courser.api.replies import Reply
from courser.broker.access.sessions import Session
from courser.broker.broker import Broker, RootUser
from courser.broker.settings import BrokerSettings
from courser.catalog import changes
from courser.catalog.entities import Stream, Topic, User
from courser.errors import CommandRejected, ErrorCode
from courser.handlers.dispatcher import Dispatcher
from courser.handlers.subscriptions import Subscriptions
from courser.model.messaging import Transport
from courser.model.permissions import Permissions
from courser.model.topic_options import TopicOptions
from courser.storage.data_directory import DataDirectory
from courser.storage.watched_clock import WatchedClock
from tests.fakes.clocks import ManualClock

PASSWORD_HASH = "$argon2id$v=19$m=8,t=1,p=1$c29tZXNhbHQ$Jlt7EvnWHx4ygcKFdbkqpQ"
"""Of no password: most tests do not log in, they are logged in."""


class Scene:
    """A server without a network."""

    def __init__(self, broker: Broker, clock: ManualClock) -> None:
        self.broker = broker
        self.clock = clock
        self.dispatcher = Dispatcher(broker)
        self.subscriptions = Subscriptions(self.dispatcher)
        self.root = self.connect(0)

    def connect(self, user_id: int | None = None) -> Session:
        """A new connection, on which a user is logged in."""
        session = self.broker.sessions.open(Transport.TCP, f"127.0.0.1:{40_000 + len(self.broker.sessions)}")
        session.user_id = user_id
        return session

    async def ask(self, session: Session, command: Command) -> Reply | None:
        return await self.dispatcher.dispatch(session, command)

    async def refusal(self, session: Session, command: Command) -> ErrorCode:
        """The number of the error with which a command is refused."""
        with pytest.raises(CommandRejected) as refused:
            await self.dispatcher.dispatch(session, command)
        return refused.value.code

    async def add_user(self, name: str, permissions: Permissions | None = None, *, is_active: bool = True) -> User:
        user = await self.broker.catalog.submit(changes.UserCreation(name, PASSWORD_HASH, is_active, permissions))
        assert isinstance(user, User)
        return user

    async def add_topic(self, stream_name: str, topic_name: str, partition_count: int = 1) -> tuple[int, int]:
        """A topic, and its stream if it is not there. Return both ids."""
        state = self.broker.catalog.state
        number = state.stream_ids.next_id * 1000
        stream_id = state.stream_by_name.get(stream_name)
        if stream_id is None:
            stream = await self.broker.catalog.submit(changes.StreamCreation(stream_name, number.to_bytes(16)))
            assert isinstance(stream, Stream)
            stream_id = stream.stream_id
        number = stream_id * 1000 + state.streams[stream_id].topic_ids.next_id + 1
        command = changes.TopicCreation(stream_id, topic_name, number.to_bytes(16), partition_count, TopicOptions())
        topic = await self.broker.catalog.submit(command)
        assert isinstance(topic, Topic)
        return stream_id, topic.topic_id


@asynccontextmanager
async def opened(
    path: Path, settings: BrokerSettings | None = None, *, is_clean: bool = True, clock: ManualClock | None = None
) -> AsyncIterator[Scene]:
    """A scene in a directory, closed behind the test: cleanly, unless the test breaks something."""
    clock = clock or ManualClock()
    data = DataDirectory.open(path)
    data.clock = WatchedClock(clock)
    root = RootUser("iggy", PASSWORD_HASH)
    broker = await Broker.open(data, settings or BrokerSettings(), make_root=lambda: root)
    try:
        yield Scene(broker, clock)
    finally:
        assert await broker.close() is is_clean
