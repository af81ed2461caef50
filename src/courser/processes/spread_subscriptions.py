"""Subscriptions of the first process to topics of all processes.

HTTP and WebSocket are in the first process. A subscription has a part in every process that owns some of its topics,
which is an ordinary subscription there. Each part says when it has something; it is taken from there when the client is
ready for it. So no process holds messages for a client that does not read, as with a single process.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from itertools import count
from typing import Any

from courser.api.subscriptions import Event, Selection, TopicEnded
from courser.broker.consuming import Polls
from courser.broker.sessions import Session
from courser.broker.subscriptions import DELIVERY_COUNT_MAX, TOPIC_COUNT_MAX, Subscription, Subscriptions
from courser.catalog.entities import User
from courser.errors import CommandRejected, ErrorCode
from courser.model.identifiers import Identifier, TopicAddress
from courser.processes.links import Links
from courser.processes.ownership import FIRST
from courser.processes.peer import Peer, ProcessGone


class SpreadSubscriptions:
    """Makes subscriptions to topics of all processes."""

    def __init__(self, here: Subscriptions, polls: Polls, links: Links) -> None:
        self._here = here
        self._polls = polls
        self._links = links
        self._numbers = count()

    def open(self, session: Session, check_login: Callable[[], None] = lambda: None) -> "SpreadSubscription":
        """See ``Subscriptions``."""
        number = next(self._numbers)
        return SpreadSubscription(number, session, self._here.open(session, check_login), self._polls, self._links)

    def review(self) -> None:
        """See ``Subscriptions``. The part in this process has the login of all."""
        self._here.review()


class _Part:
    """The part of a subscription in another process."""

    def __init__(self, number: int, peer: Peer) -> None:
        self._number = number
        self._peer = peer
        self.coming: asyncio.Future[Any] | None = None
        """Done when it has something to take."""

    def wait(self) -> "asyncio.Future[Any]":
        if self.coming is None:
            self.coming = self._peer.call("subscription_wait", self._number)
        return self.coming

    async def take(self, count_max: int) -> Event | None:
        assert self.coming is not None, "it was waited for"
        coming, self.coming = self.coming, None
        try:
            coming.result()
            event: Event | None = await self._peer.call("subscription_take", self._number, count_max)
        except ProcessGone as gone:
            # As if the connection were lost: the client comes back, and says where it was.
            raise CommandRejected(ErrorCode.DISCONNECTED, "a process of the server has ended") from gone
        return event

    async def add(self, session: Session, selection: Selection) -> dict[int, int]:
        facts = session.address, session.request_id
        found: dict[int, int] = await self._peer.call(
            "subscription_add", self._number, facts, session.user_id, selection
        )
        return found

    def remove(self, selection: Selection) -> None:
        self._peer.note("subscription_remove", self._number, selection)

    def close(self) -> None:
        self._peer.note("subscription_close", self._number)
        if self.coming is not None:
            self.coming.add_done_callback(_ignore)


class SpreadSubscription:
    """One subscription. ``SpreadSubscriptions`` makes it. Its methods are those of ``Subscription``."""

    def __init__(self, number: int, session: Session, here: Subscription, polls: Polls, links: Links) -> None:
        self._number = number
        self._session = session
        self._user_id = session.user_id
        self._here = here
        self._coming_here: asyncio.Task[None] | None = None
        self._polls = polls
        self._links = links
        self._parts: dict[int, _Part] = {}
        self._topics: dict[TopicAddress, tuple[Selection, int]] = {}
        """Those of other processes, and the number of their partitions when they were added."""
        self._turns: deque[int] = deque([FIRST])
        """The processes, in the order in which they are asked. The one that had something last comes last."""
        self._changed = asyncio.Event()
        """Set when there is one more part to wait for."""
        self._is_closed = False

    @property
    def is_empty(self) -> bool:
        """See ``Subscription``."""
        return self._here.is_empty and not self._topics

    def address_of(self, stream: Identifier, topic: Identifier) -> TopicAddress:
        """See ``Subscription``."""
        return self._here.address_of(stream, topic)

    def check_login(self) -> User:
        """See ``Subscription``."""
        return self._here.check_login()

    def review(self) -> None:
        """See ``Subscription``."""
        self._here.review()

    # --- topics ---

    async def add(self, selection: Selection) -> dict[int, int]:
        """See ``Subscription``."""
        address = self.address_of(selection.stream, selection.topic)
        owner = self._links.owner_of(*address)
        if len(self._topics) + self._here.topic_count >= TOPIC_COUNT_MAX:
            raise CommandRejected(ErrorCode.SERVER_BUSY, f"a subscription can have at most {TOPIC_COUNT_MAX} topics")
        if owner == FIRST:
            return await self._here.add(selection)
        part = self._parts.get(owner)
        if part is None:
            peer = await self._links.wait_for(owner)
            part = self._parts.setdefault(owner, _Part(self._number, peer))
        try:
            offsets = await part.add(self._session, selection)
        except ProcessGone:
            if owner not in self._turns and self._parts.get(owner) is part:
                # Nothing waits for it. The next topic gets a part in the process that comes back.
                del self._parts[owner]
            raise
        if self._is_closed:
            # Meanwhile.
            part.close()
            return offsets
        try:
            # This process counts the partitions of all.
            self._polls.reserve(self._user_id, len(offsets))
        except CommandRejected:
            part.remove(selection)
            raise
        self._topics[address] = selection, len(offsets)
        if owner not in self._turns:
            self._turns.append(owner)
        self._changed.set()
        return offsets

    def remove(self, selection: Selection) -> None:
        """See ``Subscription``."""
        address = self.address_of(selection.stream, selection.topic)
        owner = self._links.owner_of(*address)
        if owner == FIRST:
            self._here.remove(selection)
            return
        if address not in self._topics:
            name = f"{selection.stream}/{selection.topic}"
            raise CommandRejected(ErrorCode.TOPIC_NOT_FOUND, f"topic {name} is not subscribed to")
        self._forget(address)
        self._parts[owner].remove(selection)

    def _forget(self, address: TopicAddress) -> None:
        _, row_count = self._topics.pop(address)
        self._polls.release(self._user_id, row_count)

    def close(self) -> None:
        """See ``Subscription``."""
        if self._is_closed:
            return
        self._is_closed = True
        for address in tuple(self._topics):
            self._forget(address)
        for part in self._parts.values():
            part.close()
        if self._coming_here is not None:
            self._coming_here.cancel()
        self._here.close()

    # --- deliveries ---

    async def next(self, count_max: int = DELIVERY_COUNT_MAX) -> Event:
        """See ``Subscription``."""
        while True:
            number = await self._wait()
            self._turns.remove(number)
            self._turns.append(number)
            if number == FIRST:
                coming, self._coming_here = self._coming_here, None
                assert coming is not None, "it is done"
                coming.result()
                event = await self._here.take(count_max)
            else:
                event = await self._parts[number].take(count_max)
                # The login may have become invalid meanwhile.
                self.check_login()
                if isinstance(event, TopicEnded):
                    self._topic_ended(event.selection)
            if event is not None:
                return event

    async def _wait(self) -> int:
        """The number of a process that has something, or an error."""
        while True:
            self._changed.clear()
            others = (number for number in self._turns if number != FIRST)
            waits: dict[int, asyncio.Future[Any]] = {number: self._parts[number].wait() for number in others}
            if self._coming_here is None:
                self._coming_here = asyncio.get_running_loop().create_task(self._here.wait())
                self._coming_here.add_done_callback(_ignore)
            waits[FIRST] = self._coming_here
            changed = asyncio.ensure_future(self._changed.wait())
            try:
                await asyncio.wait((changed, *waits.values()), return_when=asyncio.FIRST_COMPLETED)
            finally:
                changed.cancel()
            for number in self._turns:
                if number in waits and waits[number].done():
                    return number

    def _topic_ended(self, selection: Selection) -> None:
        for address, (known, _) in tuple(self._topics.items()):
            if known == selection:
                self._forget(address)


def _ignore(coming: "asyncio.Future[Any]") -> None:
    """Nobody may be left who wants to know."""
    if not coming.cancelled():
        coming.exception()
