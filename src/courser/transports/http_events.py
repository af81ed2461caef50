"""Server-sent events: a reply that goes on for as long as the client reads it. Subscriptions and searches have them.

The next delivery is read when the connection has taken the last one, so a slow client holds the memory of one. A client
that does not read for ``tcp.send_deadline`` loses the connection.
"""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing

from courser.api.subscriptions import Delivery, PayloadForm, TopicEnded
from courser.broker.access.access_tokens import Access
from courser.broker.access.sessions import Session
from courser.errors import CommandRejected, CourserError, ErrorCode
from courser.handlers.searches import Search
from courser.handlers.subscriptions import Subscription
from courser.model.identifiers import TopicAddress
from courser.model.messaging import Transport
from courser.transports.http_commands import HttpServices
from courser.transports.http_exchange import Answer, Exchange
from courser.wire.codec import QUICK_SIZE_MAX
from courser.wire.rest_events import (
    EVENTS_TYPE,
    KEEP_ALIVE,
    EventRequest,
    ResumePoint,
    TopicName,
    decode_events,
    encode_delivery,
    encode_end,
    encode_start,
    encode_stop,
)
from courser.wire.rest_scans import decode_scan, encode_scan_event

_OK = 200
_KEEP_ALIVE_INTERVAL = 15.0
"""Seconds without an event after which a comment is sent: proxies close connections that say nothing."""
_EVENT_HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}
"""Proxies must pass each event on at once."""


class EventRoute:
    """Answers subscriptions with a stream of server-sent events."""

    def __init__(self, services: HttpServices) -> None:
        self._services = services
        self.keep_alive_interval = _KEEP_ALIVE_INTERVAL
        self._sessions: set[Session] = set()

    def stop(self) -> None:
        """The server stops: all streams of events end."""
        for session in tuple(self._sessions):
            self._services.sessions.end(session, CommandRejected(ErrorCode.DISCONNECTED, "the server stops"))

    async def subscribe(self, exchange: Exchange, _: Mapping[str, str], access: Access | None) -> Answer:
        """Start a stream of events."""
        assert access is not None, "the route is not public"
        request = decode_events(exchange.query_pairs(), exchange.header(b"last-event-id"))
        session = self._services.sessions.open(Transport.HTTP, exchange.address)
        exchange.held.callback(self._close_session, session)
        self._sessions.add(session)
        exchange.session = session
        session.enter(access)
        session.request_id = exchange.request_id

        def check_login() -> None:
            self._services.tokens.check_again(access)

        subscription = self._services.subscriptions.open(session, check_login)
        exchange.held.callback(subscription.close)
        names, cursor = await _add_topics(subscription, request)
        if cursor.is_too_long:
            reason = "these topics have too many partitions for one stream of events: subscribe to fewer"
            raise CommandRejected(ErrorCode.SERVER_BUSY, reason)
        if exchange.method == "HEAD":
            return Answer(_OK, content_type=EVENTS_TYPE, headers=_EVENT_HEADERS)
        stream = _Stream(self._services, exchange, session, subscription, names, cursor, self.keep_alive_interval)
        return Answer(_OK, content_type=EVENTS_TYPE, headers=_EVENT_HEADERS, pieces=stream.pieces())

    def _close_session(self, session: Session) -> None:
        self._sessions.discard(session)
        self._services.sessions.close(session)


async def _add_topics(
    subscription: Subscription, request: EventRequest
) -> tuple[dict[TopicAddress, TopicName], ResumePoint]:
    names: dict[TopicAddress, TopicName] = {}
    cursor = ResumePoint()
    for stream, topic in request.topics:
        address = subscription.address_of(stream, topic)
        # A number and a name may mean the same topic.
        if address not in names:
            names[address] = stream, topic
            cursor.offsets[address] = await subscription.add(request.selection(address))
    return names, cursor


class _Stream:
    """One stream of events."""

    def __init__(
        self,
        services: HttpServices,
        exchange: Exchange,
        session: Session,
        subscription: Subscription,
        names: Mapping[TopicAddress, TopicName],
        cursor: ResumePoint,
        keep_alive_interval: float,
    ) -> None:
        self._services = services
        self._exchange = exchange
        self._session = session
        self._subscription = subscription
        self._names = names
        self._cursor = cursor
        self._keep_alive_interval = keep_alive_interval

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        """What is sent, piece by piece. Ends when the client has gone, or when there is nothing left to read."""
        yield encode_start(self._cursor, self._names)
        gone = asyncio.ensure_future(self._exchange.wait_for_disconnect())
        try:
            async with aclosing(self._events(gone)) as events:
                async for event in events:
                    yield event
        except CourserError as error:
            yield encode_stop(error)
        finally:
            gone.cancel()

    async def _events(self, gone: asyncio.Future[None]) -> AsyncGenerator[bytes, None]:
        coming = asyncio.ensure_future(self._subscription.next())
        try:
            while self._cursor.offsets:
                await asyncio.wait((coming, gone), timeout=self._keep_alive_interval, return_when="FIRST_COMPLETED")
                if gone.done():
                    return
                # Its token may have expired, or may have been revoked, and nothing else says so.
                self._subscription.check_login()
                if not coming.done():
                    yield KEEP_ALIVE
                    continue
                yield await self._encode(coming.result())
                self._services.buffers.give_back(self._session)
                coming = asyncio.ensure_future(self._subscription.next())
        finally:
            coming.cancel()
            await asyncio.wait((coming,))

    async def _encode(self, event: Delivery | TopicEnded) -> bytes:
        address = TopicAddress(*_ids(event))
        if isinstance(event, TopicEnded):
            self._cursor.leave(address)
            return encode_end(self._names[address], event.error)
        arguments = (event, address, self._names[address], self._cursor)
        if event.polled.size > QUICK_SIZE_MAX:
            loop, pool = asyncio.get_running_loop(), self._services.slow_work
            data = await loop.run_in_executor(pool, encode_delivery, *arguments)
        else:
            data = encode_delivery(*arguments)
        self._services.buffers.unread(self._session, len(data), is_copied=True)
        return data


def _ids(event: Delivery | TopicEnded) -> tuple[int, int]:
    """Of its topic: the selection names it by its ids."""
    stream_id, topic_id = event.selection.stream, event.selection.topic
    assert isinstance(stream_id, int), "it was resolved"
    assert isinstance(topic_id, int), "it was resolved"
    return stream_id, topic_id


# --- searches ------------------------------------------------------------------------------------------


class SearchRoute:
    """Answers searches with the messages that match."""

    def __init__(self, services: HttpServices) -> None:
        self._services = services
        self._is_stopping = False

    def stop(self) -> None:
        """The server stops: all searches end."""
        self._is_stopping = True

    async def search(self, exchange: Exchange, values: Mapping[str, str], access: Access | None) -> Answer:
        assert access is not None, "the route is not public"
        request, form = decode_scan(values, exchange.query_pairs())
        session = Session(0, Transport.HTTP, exchange.address, now=self._services.clock.monotonic())
        session.enter(access)

        def check_login() -> None:
            if self._is_stopping:
                raise CommandRejected(ErrorCode.DISCONNECTED, "the server stops")
            # Its token may have expired, or may have been revoked, and nothing else says so.
            self._services.tokens.check_again(access)

        found = exchange.held.enter_context(self._services.searches.open(session, request, check_login))
        if exchange.method == "HEAD":
            return Answer(_OK, content_type=EVENTS_TYPE, headers=_EVENT_HEADERS)
        return Answer(_OK, content_type=EVENTS_TYPE, headers=_EVENT_HEADERS, pieces=_pieces(exchange, found, form))


async def _pieces(exchange: Exchange, found: Search, form: PayloadForm) -> AsyncGenerator[bytes, None]:
    """The events of a search, until the client is gone."""
    gone = asyncio.ensure_future(exchange.wait_for_disconnect())
    try:
        async with aclosing(found.events()) as events:
            async for event in events:
                if gone.done():
                    return
                yield encode_scan_event(event, form)
    except CourserError as error:
        yield encode_stop(error)
    finally:
        gone.cancel()
