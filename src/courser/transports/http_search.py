"""Searches over HTTP: server-sent events that end when everything was looked at, or when the client closes."""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing

from courser.api.subscriptions import PayloadForm
from courser.broker.access.access_tokens import Access
from courser.broker.access.sessions import Session
from courser.errors import CommandRejected, CourserError, ErrorCode
from courser.handlers.searches import Search
from courser.model.messaging import Transport
from courser.transports.http_commands import HttpServices
from courser.transports.http_events import EVENT_HEADERS
from courser.transports.http_exchange import Answer, Exchange
from courser.wire.rest_events import EVENTS_TYPE
from courser.wire.rest_scans import decode_scan, encode_scan_event, encode_scan_failure

_OK = 200


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
            return Answer(_OK, content_type=EVENTS_TYPE, headers=EVENT_HEADERS)
        return Answer(_OK, content_type=EVENTS_TYPE, headers=EVENT_HEADERS, pieces=_pieces(exchange, found, form))


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
        yield encode_scan_failure(error)
    finally:
        gone.cancel()
