"""Subscriptions: the messages of several topics as they arrive, whatever carries them to the client.

A subscription waits for each of its topics and reads from it with ordinary commands, so topics may be in any process.
It is asked for one delivery at a time. Whoever sends them asks for the next one when the client has taken the last: a
slow client is behind in the log, and holds no memory here. Permissions are those of a poll. They are checked again
whenever metadata has changed, so a subscriber who loses the permission gets nothing more.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from courser.api import commands as c
from courser.api.internal_commands import FindStartOffsets, StartOffsets
from courser.api.replies import Arrivals, Polled
from courser.api.subscriptions import Delivery, Event, Gap, Selection, TopicEnded
from courser.broker.access.sessions import Session
from courser.broker.catalog.finding import find_partition
from courser.broker.messages.consuming import SKIP_REASONS, WAIT_MAX
from courser.broker.messages.row_counts import RowCounts
from courser.catalog import entities
from courser.catalog.entities import User
from courser.errors import CommandRejected, CourserError, ErrorCode, OffsetsUnavailable
from courser.handlers.dispatcher import Dispatcher
from courser.model.identifiers import Consumer, ConsumerKind, Identifier, TopicAddress
from courser.model.messaging import PollingKind, Transport
from courser.model.permissions import Permissions
from courser.records import layout

_DELIVERY_SIZE_MAX = 256 * 1024
"""Bytes of batch records in a delivery. It has one message at least, however large."""
DELIVERY_COUNT_MAX = 1000
"""Messages of a delivery: converting them to text must not hold up other connections."""
TOPIC_COUNT_MAX = 100
"""Topics of one subscription."""
_PATIENCE = 20.0
"""Seconds after which a topic ends whose owner refuses to wait for messages. It may be about to open a partition."""
_PAUSE = 0.05
"""Seconds between two tries."""
_NOBODY = Consumer(ConsumerKind.CONSUMER, 0)


@dataclass(eq=False, slots=True)
class _Row:
    """A partition that is read."""

    partition_id: int
    incarnation: int
    next_offset: int
    is_wanted: bool = True
    """Whether it still belongs to the subscription."""


@dataclass(eq=False, slots=True)
class _Topic:
    """A topic that is read."""

    selection: Selection
    poll: c.PollMessages
    """What the subscriber must be allowed to do."""
    address: TopicAddress
    uuid: bytes
    seen_count: int
    """Partitions of the topic at the last review."""
    rows: dict[int, _Row] = field(default_factory=dict)
    arrivals: "asyncio.Task[tuple[int, ...]] | None" = None
    """The wait for messages. Gives the partitions that have some."""
    session: Session | None = None
    """Stands for the subscriber in that wait."""
    ready: deque[_Row] = field(default_factory=deque)
    """Partitions that have messages. They are read before the next wait."""

    def stop_waiting(self) -> None:
        """Give up the wait for messages."""
        task, self.arrivals = self.arrivals, None
        if task is not None:
            task.cancel()
        if self.session is not None and self.session.waiting is not None:
            # It may be in another process.
            self.session.waiting.cancel()


class Subscriptions:
    """Makes subscriptions, and tells all of them about changes."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher
        self._rows = RowCounts(dispatcher.broker.settings.limits)
        """The partitions of all subscriptions."""
        self._open: set[Subscription] = set()
        dispatcher.broker.catalog.on_change = self._metadata_changed

    def __len__(self) -> int:
        return len(self._open)

    def open(self, session: Session, check_login: Callable[[], None] = lambda: None) -> "Subscription":
        """A subscription of the user of this session, without topics. To be closed by whoever opens it.

        ``check_login`` raises ``CommandRejected`` if the login is not valid any more. It is asked at every review.

        Raises:
            CommandRejected: nobody is logged in (40), or an inactive user (47).
        """
        subscription = Subscription(session, check_login, self._dispatcher, self._rows, self._open.discard)
        subscription.check_login()
        self._open.add(subscription)
        return subscription

    def _metadata_changed(self) -> None:
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
        dispatcher: Dispatcher,
        row_counts: RowCounts,
        on_close: Callable[["Subscription"], None],
    ) -> None:
        broker = dispatcher.broker
        self._session = session
        self._user_id = session.user_id
        self._is_login_valid = check_login
        self._dispatcher = dispatcher
        self._catalog = broker.catalog
        self._access = broker.access
        self._finder = broker.finder
        self._clock = broker.clock
        self._row_counts = row_counts
        self._on_close = on_close
        self._topics: dict[TopicAddress, _Topic] = {}
        """The one that was read last comes last."""
        self._ended: deque[TopicEnded] = deque()
        """Topics whose end the subscriber has not been told yet."""
        self._version = broker.catalog.version
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
        for topic in self._topics.values():
            found = self._find(topic)
            if found is None or len(found.partitions) != topic.seen_count:
                return True
        return False

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
        found = self._catalog.state.streams[address.stream_id].topics[address.topic_id]
        topic = _Topic(selection, poll, address, found.uuid, len(found.partitions))
        self._check_new(topic)
        wanted = selection.partition_ids
        partition_ids = tuple(dict.fromkeys(wanted if wanted is not None else range(topic.seen_count)))
        partitions = [find_partition(found, partition_id) for partition_id in partition_ids]
        command = FindStartOffsets(*address, partition_ids, selection)
        starts: StartOffsets = await self._dispatcher.ask(self._stand_in(), command)
        # Meanwhile, it may have been added, or the permission may have been revoked.
        self._finder.check(self._session, poll, *address)
        self._check_new(topic)
        self._row_counts.reserve(self._user_id, len(partitions))
        for partition in partitions:
            start = starts.offsets[partition.partition_id]
            topic.rows[partition.partition_id] = _Row(partition.partition_id, partition.incarnation, start)
        self._topics[address] = topic
        self.review()
        return starts.offsets

    def _stand_in(self) -> Session:
        session = Session(0, Transport.HTTP, self._session.address, now=self._clock.monotonic())
        session.user_id, session.request_id = self._user_id, self._session.request_id
        return session

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
        topic.stop_waiting()
        self._row_counts.release(self._user_id, len(topic.rows))
        for row in topic.rows.values():
            row.is_wanted = False

    # --- reviews ---

    def review(self) -> None:
        """Before the next delivery, look at what may be read; at once if the subscription waits for messages."""
        self._is_review_due = True
        self._session.wake()

    def _review_if_due(self) -> None:
        if self._is_review_due or self._version != self._catalog.version:
            self._look_again()

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

    def _find(self, topic: _Topic) -> entities.Topic | None:
        """The topic as the catalog has it; None if it was deleted. Another one may have its number."""
        stream = self._catalog.state.streams.get(topic.address.stream_id)
        found = None if stream is None else stream.topics.get(topic.address.topic_id)
        return found if found is not None and found.uuid == topic.uuid else None

    def _look_at(self, topic: _Topic) -> None:
        found = self._find(topic)
        if found is None:
            raise CommandRejected(ErrorCode.TOPIC_NOT_FOUND, "the topic was deleted")
        self._finder.check(self._session, topic.poll, *topic.address)
        topic.seen_count = len(found.partitions)
        wants_all = topic.selection.partition_ids is None
        there = {partition.partition_id: partition.incarnation for partition in found.partitions}
        known = len(topic.rows)
        for partition_id, row in tuple(topic.rows.items()):
            if there.get(partition_id) != row.incarnation:
                if not wants_all:
                    raise CommandRejected(ErrorCode.PARTITION_NOT_FOUND, f"partition {partition_id} was deleted")
                row.is_wanted = False
                del topic.rows[partition_id]
                self._row_counts.release(self._user_id, 1)
        gone_count = known - len(topic.rows)
        new = [partition for partition in found.partitions if partition.partition_id not in topic.rows]
        for partition in new if wants_all else ():
            self._row_counts.reserve(self._user_id, 1)
            # Everything in it is new.
            topic.rows[partition.partition_id] = _Row(partition.partition_id, partition.incarnation, 0)
        if gone_count or (new and wants_all):
            topic.stop_waiting()

    def _end(self, topic: _Topic, error: CourserError) -> None:
        self._drop(topic)
        self._ended.append(TopicEnded(topic.selection, error))

    # --- deliveries ---

    async def next(self, count_max: int = DELIVERY_COUNT_MAX) -> Event:
        """Wait for the next delivery, of at most so many messages, or for the end of a topic.

        Raises:
            CourserError: the session has ended (its reason), its login is not valid any more (40, 47), or a process of
                the server has ended.
        """
        while True:
            # Others come first: a subscriber that is far behind would never wait.
            await asyncio.sleep(0)
            self._review_if_due()
            self._begin_waits()
            if self._ended:
                return self._ended.popleft()
            topic = next((topic for topic in self._topics.values() if topic.ready), None)
            if topic is None:
                await self._wait()
                continue
            row = topic.ready.popleft()
            # Topics take turns, and so do the partitions of each.
            self._topics[topic.address] = self._topics.pop(topic.address)
            if row.is_wanted:
                event = await self._read(topic, row, min(count_max, DELIVERY_COUNT_MAX))
                if event is not None:
                    return event

    def _begin_waits(self) -> None:
        """Wait for every topic of which nothing is known to be there."""
        for topic in tuple(self._topics.values()):
            if topic.arrivals is not None and topic.arrivals.done():
                task, topic.arrivals = topic.arrivals, None
                try:
                    topic.ready.extend(topic.rows[number] for number in task.result() if number in topic.rows)
                except CommandRejected as error:
                    self._end(topic, error)
                    continue
            if topic.arrivals is None and not topic.ready and topic.rows:
                # Not the same one again: the last wait may not be over.
                topic.session = session = self._stand_in()
                topic.arrivals = asyncio.get_running_loop().create_task(self._arrivals(topic, session))
                topic.arrivals.add_done_callback(_retrieve)

    async def _arrivals(self, topic: _Topic, session: Session) -> tuple[int, ...]:
        """Wait for messages of a topic. Returns the partitions that have some.

        Raises:
            CourserError: a process of the server has ended, or its owner refuses it for too long.
        """
        loop = asyncio.get_running_loop()
        refused_since: float | None = None
        while True:
            positions = tuple((row.partition_id, row.next_offset) for row in topic.rows.values())
            try:
                command = c.WaitForArrivals(_NOBODY, *topic.address, positions, 0, WAIT_MAX)
                arrivals: Arrivals = await self._dispatcher.ask(session, command)
            except CommandRejected:
                refused_since = loop.time() if refused_since is None else refused_since
                if loop.time() - refused_since > _PATIENCE:
                    raise
                # The topic may be gone, or may not be there yet.
                self.review()
                await asyncio.sleep(_PAUSE)
            else:
                refused_since = None
                if arrivals.partition_ids:
                    return arrivals.partition_ids

    async def _wait(self) -> None:
        """Wait until a topic has something, or something has changed."""
        if self._session.ended is not None:
            raise self._session.ended.with_traceback(None)
        waits = [topic.arrivals for topic in self._topics.values() if topic.arrivals is not None]
        self._session.waiting = woken = asyncio.get_running_loop().create_future()
        try:
            await asyncio.wait((woken, *waits), return_when=asyncio.FIRST_COMPLETED)
            if woken.cancelled():
                self.check_login()
                raise CommandRejected(ErrorCode.DISCONNECTED, "the connection is closed")
        finally:
            self._session.waiting = None
            woken.cancel()

    async def _read(self, topic: _Topic, row: _Row, count_max: int) -> Delivery | None:
        """Read on. None if nothing is left to tell."""
        gaps: list[Gap] = []
        offset, polled = row.next_offset, None
        while polled is None:
            where = topic.address.stream_id, topic.address.topic_id, row.partition_id
            poll = c.PollMessages(_NOBODY, *where, PollingKind.OFFSET, offset, count_max, auto_commit=False)
            try:
                polled = await self._dispatcher.ask(self._session, c.WaitForMessages(poll, 0, _DELIVERY_SIZE_MAX))
            except OffsetsUnavailable as gone:
                gaps.append(Gap(max(gone.first_offset, offset), gone.end_offset, SKIP_REASONS[gone.reason].value))
                offset = gone.end_offset
            except CourserError as error:
                # What was read may have been deleted meanwhile. If not, the error is that of the topic.
                self._look_again()
                if row.is_wanted:
                    self._end(topic, error)
                return None
        self._review_if_due()
        if not row.is_wanted:
            return None
        row.next_offset = _offset_after(polled, offset)
        return Delivery(topic.selection, polled, row.next_offset, tuple(gaps)) if polled.message_count or gaps else None


def _retrieve(task: "asyncio.Task[tuple[int, ...]]") -> None:
    """Take note of a failure, of which a subscription that is closed does not hear."""
    if not task.cancelled():
        task.exception()


def _offset_after(polled: Polled, offset: int) -> int:
    """The offset after the last message of a reply; ``offset`` if it has none."""
    if not polled.message_count:
        return offset
    records, start, last = polled.pieces[-1], 0, 0
    while start < len(records):
        last, start = start, start + layout.WIRE_HEADER.unpack_from(records, start)[4]
    _, base_offset, _, _, _, _, count = layout.WIRE_HEADER.unpack_from(records, last)
    delta = int.from_bytes(
        records[last + layout.BATCH_HEADER_SIZE :][layout.FRAME_OFFSET_DELTA_POSITION :][:4], "little"
    )
    # The first message is not that of the batch if the batch was cut.
    end: int = base_offset + delta + count
    return end


def _poll_of(selection: Selection) -> c.PollMessages:
    kind = PollingKind.OFFSET if selection.start is None else selection.start
    consumer = Consumer(ConsumerKind.CONSUMER, selection.consumer)
    value, count = selection.value, selection.count
    return c.PollMessages(consumer, selection.stream, selection.topic, None, kind, value, count, auto_commit=False)
