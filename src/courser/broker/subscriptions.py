"""Subscriptions: the messages of several topics as they arrive, whatever carries them to the client.

A subscription is asked for one delivery at a time. Whoever sends them asks for the next one when the client has taken
the last: a slow client is behind in the log, and holds no memory here. Permissions are those of a poll. They are
checked again whenever metadata has changed, so a subscriber who loses the permission gets nothing more.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from courser.api.commands import PollMessages
from courser.api.subscriptions import Delivery, Event, Gap, Selection, TopicEnded
from courser.broker.access import AccessControl
from courser.broker.catalog_service import CatalogService
from courser.broker.consuming import Polls, consumer_key, find_start_of_poll, start_of_poll, wait_for_any
from courser.broker.finding import Finder
from courser.broker.partition import Partition
from courser.broker.partition_registry import OpenTopic, PartitionRegistry
from courser.broker.sessions import Session
from courser.catalog.entities import User
from courser.errors import CommandRejected, CourserError, ErrorCode
from courser.model.identifiers import Consumer, ConsumerKind, Identifier, TopicAddress
from courser.model.messaging import PollingKind
from courser.model.permissions import Permissions
from courser.storage.read_result import SkipReason

_DELIVERY_SIZE_MAX = 256 * 1024
"""Bytes of batch records in a delivery. It has one message at least, however large."""
DELIVERY_COUNT_MAX = 1000
"""Messages of a delivery: converting them to text must not hold up other connections."""
TOPIC_COUNT_MAX = 100
"""Topics of one subscription."""


@dataclass(eq=False, slots=True)
class _Row:
    """A partition that is read."""

    partition: Partition
    next_offset: int
    is_wanted: bool = True
    """Whether it still belongs to the subscription."""


@dataclass(eq=False, slots=True)
class _Topic:
    """A topic that is read."""

    selection: Selection
    poll: PollMessages
    """What the subscriber must be allowed to do."""
    address: TopicAddress
    open: OpenTopic
    seen_count: int
    """Partitions of the topic at the last review."""
    rows: dict[int, _Row] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Parts:
    """The parts of the broker that subscriptions use."""

    catalog: CatalogService
    access: AccessControl
    finder: Finder
    partitions: PartitionRegistry
    polls: Polls


class AnySubscription(Protocol):
    """A subscription, as whoever delivers it sees it: see ``Subscription``."""

    @property
    def is_empty(self) -> bool:
        """Whether it has no topics."""

    def address_of(self, stream: Identifier, topic: Identifier) -> TopicAddress:
        """Where a topic is found."""

    async def add(self, selection: Selection) -> dict[int, int]:
        """Read one more topic."""

    def remove(self, selection: Selection) -> None:
        """Read a topic no more."""

    def review(self) -> None:
        """Look at what may be read."""

    def check_login(self) -> User:
        """The subscriber."""

    async def next(self, count_max: int = DELIVERY_COUNT_MAX) -> Event:
        """Wait for the next delivery."""

    def close(self) -> None:
        """Give everything back."""


class AnySubscriptions(Protocol):
    """Makes subscriptions: see ``Subscriptions``."""

    def open(self, session: Session, check_login: Callable[[], None] = ...) -> AnySubscription:
        """A subscription of the user of this session."""

    def review(self) -> None:
        """A login may have become invalid."""


class Subscriptions:
    """Makes subscriptions, and tells all of them about changes."""

    def __init__(
        self,
        catalog: CatalogService,
        access: AccessControl,
        finder: Finder,
        partitions: PartitionRegistry,
        polls: Polls,
    ) -> None:
        self._parts = _Parts(catalog, access, finder, partitions, polls)
        self._open: set[Subscription] = set()

    def __len__(self) -> int:
        return len(self._open)

    def open(self, session: Session, check_login: Callable[[], None] = lambda: None) -> "Subscription":
        """A subscription of the user of this session, without topics. To be closed by whoever opens it.

        ``check_login`` raises ``CommandRejected`` if the login is not valid any more. It is asked at every review.

        Raises:
            CommandRejected: nobody is logged in (40), or an inactive user (47).
        """
        subscription = Subscription(session, check_login, self._parts, self._open.discard)
        subscription.check_login()
        self._open.add(subscription)
        return subscription

    def metadata_changed(self) -> None:
        """Subscriptions that are affected look at what they may read now, even if no messages arrive."""
        for subscription in tuple(self._open):
            if subscription.is_affected:
                subscription.review()

    def review(self) -> None:
        """A login may have become invalid: every subscription looks at what it may read."""
        for subscription in tuple(self._open):
            subscription.review()


class Subscription:
    """The topics of one subscriber. ``Subscriptions`` makes it."""

    def __init__(
        self,
        session: Session,
        check_login: Callable[[], None],
        parts: _Parts,
        on_close: Callable[["Subscription"], None],
    ) -> None:
        self._session = session
        self._user_id = session.user_id
        self._is_login_valid = check_login
        self._catalog = parts.catalog
        self._access = parts.access
        self._finder = parts.finder
        self._partitions = parts.partitions
        self._polls = parts.polls
        self._on_close = on_close
        self._topics: dict[TopicAddress, _Topic] = {}
        self._order: deque[tuple[_Topic, _Row]] = deque()
        """All rows. The one that was read last comes last."""
        self._ended: deque[TopicEnded] = deque()
        """Topics whose end the subscriber has not been told yet."""
        self._version = parts.catalog.version
        """Of the metadata at the last review."""
        self._is_review_due = False
        self._permissions: Permissions | None = None
        """Of the user at the last review."""

    @property
    def is_affected(self) -> bool:
        """Whether a change of metadata may matter. Cheap: it is asked for every change and subscription."""
        user = None if self._user_id is None else self._catalog.state.users.get(self._user_id)
        if user is None or not user.is_active or user.permissions is not self._permissions:
            return True
        topics = self._partitions.topics
        return any(
            topics.get(topic.address) is not topic.open or len(topic.open.partitions) != topic.seen_count
            for topic in self._topics.values()
        )

    @property
    def topic_count(self) -> int:
        """How many topics it has."""
        return len(self._topics)

    @property
    def is_empty(self) -> bool:
        """Whether it has no topics."""
        return not self._topics

    # --- topics ---

    def address_of(self, stream: Identifier, topic: Identifier) -> TopicAddress:
        """Where a topic is found. Raises like ``add``."""
        return self._finder.address(self._session, _poll_of(Selection(stream=stream, topic=topic)))

    async def add(self, selection: Selection) -> dict[int, int]:
        """Read one more topic. Returns the offset at which each partition starts.

        Raises:
            CommandRejected: there is no such topic (1009, 2010) or partition (3007), the permission is missing (41),
                the topic is already part of the subscription (4), or too much is subscribed to (20010).
        """
        poll = _poll_of(selection)
        address = self._finder.address(self._session, poll)
        opened = self._partitions.at(address)
        topic = _Topic(selection, poll, address, opened, len(opened.partitions))
        self._check_new(topic)
        wanted = selection.partition_ids
        for partition_id in dict.fromkeys(wanted if wanted is not None else range(topic.seen_count)):
            partition = opened.partition(partition_id)
            topic.rows[partition_id] = _Row(partition, await _first_offset(partition, selection, poll))
        # Meanwhile, it may have been added, or the permission may have been revoked.
        self._finder.check(self._session, poll, *address)
        self._check_new(topic)
        self._polls.reserve(self._user_id, len(topic.rows))
        self._topics[address] = topic
        self._order.extend((topic, row) for row in topic.rows.values())
        self.review()
        return {partition_id: row.next_offset for partition_id, row in topic.rows.items()}

    def _check_new(self, topic: _Topic) -> None:
        if topic.address in self._topics:
            name = f"{topic.selection.stream}/{topic.selection.topic}"
            raise CommandRejected(ErrorCode.INVALID_COMMAND, f"topic {name} is already subscribed to")
        if len(self._topics) >= TOPIC_COUNT_MAX:
            raise CommandRejected(ErrorCode.SERVER_BUSY, f"a subscription can have at most {TOPIC_COUNT_MAX} topics")

    def remove(self, selection: Selection) -> None:
        """Read a topic no more. Raises ``CommandRejected`` (2010) if it is not subscribed to."""
        address = self._finder.address(self._session, _poll_of(selection))
        topic = self._topics.get(address)
        if topic is None:
            name = f"{selection.stream}/{selection.topic}"
            raise CommandRejected(ErrorCode.TOPIC_NOT_FOUND, f"topic {name} is not subscribed to")
        self._drop(topic)
        self.review()

    def close(self) -> None:
        """Give everything back. May be repeated."""
        for topic in tuple(self._topics.values()):
            self._drop(topic)
        self._on_close(self)

    def _drop(self, topic: _Topic) -> None:
        del self._topics[topic.address]
        self._polls.release(self._user_id, len(topic.rows))
        for row in topic.rows.values():
            row.is_wanted = False
        self._order = deque(place for place in self._order if place[0] is not topic)

    # --- reviews ---

    def review(self) -> None:
        """Before the next delivery, look at what may be read; at once if the subscription waits for messages."""
        self._is_review_due = True
        self._session.wake()

    def _look_again(self) -> None:
        """Drop topics that are gone or forbidden, and add new partitions. Raises if the login is not valid."""
        self._is_review_due = False
        self._version = self._catalog.version
        self._permissions = self.check_login().permissions
        for topic in tuple(self._topics.values()):
            try:
                self._look_at(topic)
            except CourserError as error:
                self._end(topic, error)

    def check_login(self) -> User:
        """The subscriber. Raises ``CommandRejected`` (40, 47, or why the session has ended) if it must get nothing."""
        if self._session.ended is not None:
            raise self._session.ended.with_traceback(None)
        user = self._access.user(self._session)
        self._is_login_valid()
        return user

    def _look_at(self, topic: _Topic) -> None:
        if self._partitions.topics.get(topic.address) is not topic.open:
            raise CommandRejected(ErrorCode.TOPIC_NOT_FOUND, "the topic was deleted")
        self._finder.check(self._session, topic.poll, *topic.address)
        topic.seen_count = len(topic.open.partitions)
        wants_all = topic.selection.partition_ids is None
        for partition_id, row in tuple(topic.rows.items()):
            if row.partition.is_deleted:
                if not wants_all:
                    raise CommandRejected(ErrorCode.PARTITION_NOT_FOUND, f"partition {partition_id} was deleted")
                row.is_wanted = False
                del topic.rows[partition_id]
                self._order.remove((topic, row))
                self._polls.release(self._user_id, 1)
        for partition_id in range(len(topic.rows), topic.seen_count) if wants_all else ():
            self._polls.reserve(self._user_id, 1)
            # Everything in it is new.
            topic.rows[partition_id] = row = _Row(topic.open.partition(partition_id), 0)
            self._order.append((topic, row))

    def _end(self, topic: _Topic, error: CourserError) -> None:
        self._drop(topic)
        self._ended.append(TopicEnded(topic.selection, error))

    # --- deliveries ---

    async def next(self, count_max: int = DELIVERY_COUNT_MAX) -> Event:
        """Wait for the next delivery, of at most so many messages, or for the end of a topic.

        Raises:
            CommandRejected: the session has ended (its reason), or its login is not valid any more (40, 47).
        """
        while True:
            await self.wait()
            event = await self.take(count_max)
            if event is not None:
                return event

    async def wait(self) -> None:
        """Wait until there may be something to take. Raises like ``next``."""
        while True:
            # Others come first: a subscriber that is far behind would never wait.
            await asyncio.sleep(0)
            if self._is_review_due or self._version != self._catalog.version:
                self._look_again()
            if self._ended or any(_is_ready(row) for _, row in self._order):
                return
            await self._wait()

    async def take(self, count_max: int = DELIVERY_COUNT_MAX) -> Event | None:
        """What there is after ``wait``; None if there is nothing after all. Raises like ``next``."""
        if self._ended:
            return self._ended.popleft()
        ready = self._find_ready()
        if ready is None:
            return None
        try:
            return await self._read(*ready, min(count_max, DELIVERY_COUNT_MAX))
        except CourserError as error:
            # What was read may have been deleted meanwhile. If not, the error is that of the topic.
            self._look_again()
            if ready[1].is_wanted:
                self._end(ready[0], error)
            return None

    async def _wait(self) -> None:
        try:
            await wait_for_any(self._session, [(row.partition, row.next_offset) for _, row in self._order], None)
        except CommandRejected:
            self.check_login()
            raise

    def _find_ready(self) -> tuple[_Topic, _Row] | None:
        """A partition with something to read: they take turns."""
        for index, (_, row) in enumerate(self._order):
            if _is_ready(row):
                self._order.rotate(-index - 1)
                return self._order[-1]
        return None

    async def _read(self, topic: _Topic, row: _Row, count_max: int) -> Delivery | None:
        """Read on. None if nothing is left to tell."""
        result = await self._polls.read(self._session, row.partition, row.next_offset, count_max, _DELIVERY_SIZE_MAX)
        if self._is_review_due or self._version != self._catalog.version:
            self._look_again()
        if result is None or not row.is_wanted:
            return None
        polled, next_offset, skipped = result
        gaps = tuple(
            Gap(max(one.first_offset, row.next_offset), one.end_offset, one.reason.value)
            for one in skipped
            if one.reason is not SkipReason.RESERVED
        )
        row.next_offset = next_offset
        return Delivery(topic.selection, polled, next_offset, gaps) if polled.message_count or gaps else None


def _is_ready(row: _Row) -> bool:
    """Whether there is something to read, or an error."""
    return row.partition.log.visible_end > row.next_offset or row.partition.is_unavailable


def _poll_of(selection: Selection) -> PollMessages:
    kind = PollingKind.OFFSET if selection.start is None else selection.start
    consumer = Consumer(ConsumerKind.CONSUMER, selection.consumer)
    value, count = selection.value, selection.count
    return PollMessages(consumer, selection.stream, selection.topic, None, kind, value, count, auto_commit=False)


async def _first_offset(partition: Partition, selection: Selection, poll: PollMessages) -> int:
    given = selection.offsets.get(partition.log.identity.partition_id)
    if given is not None:
        return given
    if selection.start is None:
        return partition.log.visible_end
    offset = start_of_poll(partition, consumer_key(selection.consumer), poll)
    return await find_start_of_poll(partition, poll) if offset is None else offset
