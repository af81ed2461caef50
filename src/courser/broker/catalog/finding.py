"""Finding what a command names, and checking that its user may do what it asks: existence first, then permission.

A command names things by number or by name; its row says which permission it needs there. What is found is given to the
rest of the broker by address: plain numbers, so that a partition may live anywhere.
"""

from typing import ClassVar, Protocol

from courser.api.commands import DeleteSegments
from courser.api.table import Command, CommandRow
from courser.broker.access.access import AccessControl
from courser.broker.access.sessions import Session
from courser.broker.catalog.catalog_service import CatalogService
from courser.broker.groups.groups import GroupKey
from courser.broker.partition.partition_registry import PartitionRegistry
from courser.catalog.entities import ConsumerGroup, Partition, Stream, Topic, User
from courser.catalog.state import CatalogState
from courser.errors import CommandRejected, ErrorCode
from courser.model.identifiers import Consumer, ConsumerKind, Identifier, TopicAddress

_KNOWN_COUNT_MAX = 10_000
"""Addresses that are remembered: about 2 MiB."""


class NamesStream(Protocol):
    """A command that names a stream."""

    row: ClassVar[CommandRow]

    @property
    def stream(self) -> Identifier:
        """Its number or name."""


class NamesTopic(NamesStream, Protocol):
    """A command that names a topic."""

    @property
    def topic(self) -> Identifier:
        """Its number or name."""


class NamesGroup(NamesTopic, Protocol):
    """A command that names a consumer group."""

    @property
    def group(self) -> Identifier:
        """Its number or name."""


class NamesUser(Protocol):
    """A command that names a user."""

    row: ClassVar[CommandRow]

    @property
    def user(self) -> Identifier:
        """Its number or name."""


class Finder:
    """What commands name. All methods raise ``CommandRejected``: the number of what is missing, then 40, 47 or 41."""

    def __init__(self, catalog: CatalogService, access: AccessControl, partitions: PartitionRegistry) -> None:
        self._catalog = catalog
        self._access = access
        self._partitions = partitions
        self._known: dict[tuple[type, int | None, Identifier, Identifier], TopicAddress] = {}
        """Topics that were found and allowed: by command, user and names. Valid until metadata changes."""
        self._version = 0

    # --- what is found for every message ---

    def address(self, session: Session, command: NamesTopic) -> TopicAddress:
        """The address of a command's topic, whose user may carry it out there.

        It is remembered until metadata changes: producers and consumers name the same topic over and over.
        """
        if self._version != self._catalog.version:
            self._known.clear()
            self._version = self._catalog.version
        key = (type(command), session.user_id, command.stream, command.topic)
        return self._known.get(key) or self._find_address(session, command, key)

    def _find_address(
        self, session: Session, command: NamesTopic, key: tuple[type, int | None, Identifier, Identifier]
    ) -> TopicAddress:
        stream = find_stream(self._catalog.state, command.stream)
        topic = find_topic(self._catalog.state, stream, command.topic)
        address = TopicAddress(stream.stream_id, topic.topic_id)
        if address not in self._partitions.topics and self._partitions.owns(*address):
            # Its creation is not acknowledged yet, or the disk refused to create its directories.
            raise CommandRejected(ErrorCode.TOPIC_NOT_FOUND, f"topic {command.topic!r} is still being created")
        # Whatever else the command names must exist, too, before its permission is checked.
        consumer = getattr(command, "consumer", None)
        if isinstance(consumer, Consumer) and consumer.kind is ConsumerKind.GROUP:
            find_group(topic, consumer.identifier)
        if isinstance(command, DeleteSegments) and address in self._partitions.topics:
            self._partitions.at(address).partition(command.partition_id)
        self.check(session, command, *address)
        if len(self._known) >= _KNOWN_COUNT_MAX:
            self._known.clear()
        self._known[key] = address
        return address

    # --- everything else ---

    def check(
        self,
        session: Session,
        command: Command | NamesStream | NamesUser,
        stream_id: int | None = None,
        topic_id: int | None = None,
    ) -> None:
        """Check that the user may carry out a command, at the stream and topic that were found."""
        actions = command.row.actions
        if len(actions) == 1:
            self._access.require(session, actions[0], stream_id, topic_id)
        else:
            self._access.require_any(session, actions, stream_id, topic_id)

    def stream(self, session: Session, command: NamesStream) -> Stream:
        """The stream of a command."""
        stream = find_stream(self._catalog.state, command.stream)
        self.check(session, command, stream.stream_id)
        return stream

    def topic(self, session: Session, command: NamesTopic) -> tuple[Stream, Topic]:
        """The topic of a command, and its stream."""
        stream = find_stream(self._catalog.state, command.stream)
        topic = find_topic(self._catalog.state, stream, command.topic)
        self.check(session, command, stream.stream_id, topic.topic_id)
        return stream, topic

    def group(self, session: Session, command: NamesGroup) -> tuple[Topic, ConsumerGroup, GroupKey]:
        """The consumer group of a command, its topic and its key."""
        stream = find_stream(self._catalog.state, command.stream)
        topic = find_topic(self._catalog.state, stream, command.topic)
        group = find_group(topic, command.group)
        self.check(session, command, stream.stream_id, topic.topic_id)
        return topic, group, (stream.stream_id, topic.topic_id, group.group_id)

    def user(self, session: Session, command: NamesUser) -> User:
        """The user that a command is about."""
        user = find_user(self._catalog.state, command.user)
        self.check(session, command)
        return user


# --- without permission -------------------------------------------------------------------------------


def find_stream(state: CatalogState, identifier: Identifier) -> Stream:
    """A stream. Raises 1009."""
    stream_id = state.stream_by_name.get(identifier) if isinstance(identifier, str) else identifier
    stream = state.streams.get(stream_id) if stream_id is not None else None
    if stream is None:
        raise CommandRejected(ErrorCode.STREAM_NOT_FOUND, f"stream {identifier!r} does not exist")
    return stream


def find_topic(state: CatalogState, stream: Stream, identifier: Identifier) -> Topic:
    """A topic of a stream. Raises 2010."""
    topic_id: int | None
    if isinstance(identifier, str):
        topic_id = state.topic_by_name.get((stream.stream_id, identifier))
    else:
        topic_id = identifier
    topic = stream.topics.get(topic_id) if topic_id is not None else None
    if topic is None:
        raise CommandRejected(ErrorCode.TOPIC_NOT_FOUND, f"stream {stream.name!r} has no topic {identifier!r}")
    return topic


def find_partition(topic: Topic, partition_id: int) -> Partition:
    """A partition of a topic. Raises 3007."""
    if 0 <= partition_id < len(topic.partitions):
        return topic.partitions[partition_id]
    reason = f"the topic has {len(topic.partitions)} partitions, and none with number {partition_id}"
    raise CommandRejected(ErrorCode.PARTITION_NOT_FOUND, reason)


def find_group(topic: Topic, identifier: Identifier) -> ConsumerGroup:
    """A consumer group of a topic. Raises 5000."""
    if isinstance(identifier, str):
        group = next((group for group in topic.groups.values() if group.name == identifier), None)
    else:
        group = topic.groups.get(identifier)
    if group is None:
        raise CommandRejected(ErrorCode.GROUP_NOT_FOUND, f"topic {topic.name!r} has no consumer group {identifier!r}")
    return group


def find_user(state: CatalogState, identifier: Identifier) -> User:
    """A user. Raises 20."""
    user_id = state.user_by_name.get(identifier) if isinstance(identifier, str) else identifier
    user = state.users.get(user_id) if user_id is not None else None
    if user is None:
        raise CommandRejected(ErrorCode.RESOURCE_NOT_FOUND, f"user {identifier!r} does not exist")
    return user
