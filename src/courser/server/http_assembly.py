"""The HTTP listener of a server, put together from the broker and the settings."""

import asyncio
import http.client
import os
import ssl
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from urllib.parse import urlsplit, urlunsplit

from courser.broker.access.access_tokens import Access, AccessTokens
from courser.broker.broker import Broker
from courser.handlers.dispatcher import Dispatcher
from courser.handlers.searches import Searches
from courser.handlers.subscriptions import Subscriptions
from courser.server.configuration.settings import ServerSettings
from courser.transports.connections import Connections
from courser.transports.http import HttpListener
from courser.transports.http_application import HttpApplication
from courser.transports.http_commands import HttpServices
from courser.transports.http_connection import Upgrade
from courser.transports.services import Services

_FETCH_DEADLINE = 5.0
"""Seconds until the keys of an issuer must be here."""
_DOCUMENT_SIZE_MAX = 256 * 1024


async def make_http_services(
    settings: ServerSettings, dispatcher: Dispatcher, subscriptions: Subscriptions, services: Services
) -> HttpServices:
    """What requests over HTTP need. Raises ``StorageFailure`` if the access tokens cannot be read."""
    broker = dispatcher.broker
    tokens = await AccessTokens.open(
        settings.access_tokens,
        broker.catalog.state,
        broker.clock,
        file_system=broker.data.file_system,
        data_directory=broker.data.path,
        pool=broker.pool,
        draw=os.urandom,
        kept=broker.authentication.kept_access,
    )
    tokens.on_revoke = subscriptions.review
    return HttpServices(
        begin=services.begin,
        tokens=tokens,
        check_trusted=_trusted_check(settings, broker, tokens),
        sessions=broker.sessions,
        subscriptions=subscriptions,
        searches=Searches(dispatcher),
        members=broker.connectionless,
        buffers=broker.buffers,
        problems=broker.disk_watch.problems,
        notices=broker.notices,
        metrics=broker.metrics,
        read_metrics=broker.operating.scrapes.text,
        memory=services.memory,
        clock=broker.clock,
        draw=os.urandom,
        slow_work=services.slow_work,
    )


def make_http_listener(
    settings: ServerSettings,
    http_services: HttpServices,
    connections: Connections,
    *,
    tls: ssl.SSLContext | None,
    upgrade: Upgrade | None,
) -> HttpListener:
    """Not started yet. ``upgrade`` is None if connections cannot become WebSocket connections."""
    assert settings.http is not None, "HTTP is enabled"
    application = HttpApplication(http_services, settings.http, settings.connections)
    return HttpListener(settings.http, settings.connections, application, connections, tls=tls, upgrade=upgrade)


def _trusted_check(
    settings: ServerSettings, broker: Broker, tokens: AccessTokens
) -> Callable[[str], Awaitable[Access | None]] | None:
    if not settings.access_tokens.trusted_issuers:
        return None
    # Import it only if there are any: the library takes a while to load.
    from courser.broker.access.trusted_issuers import TrustedIssuers  # noqa: PLC0415

    return TrustedIssuers(
        settings.access_tokens.trusted_issuers,
        tokens,
        broker.catalog.state,
        broker.clock,
        clock_skew=settings.access_tokens.clock_skew,
        fetch=fetch_document,
    ).check


async def fetch_document(url: str) -> bytes:
    """The document at a URL. Raises ``OSError``. Redirects are not followed, and no proxy is used."""
    async with asyncio.timeout(_FETCH_DEADLINE):
        return await asyncio.to_thread(_fetch, url)


def _fetch(url: str) -> bytes:
    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=_FETCH_DEADLINE)
    try:
        connection.request("GET", urlunsplit(("", "", parts.path or "/", parts.query, "")))
        reply = connection.getresponse()
        if reply.status != HTTPStatus.OK:
            raise OSError(f"{url} replied with status {reply.status}")
        data = reply.read(_DOCUMENT_SIZE_MAX + 1)
    except http.client.HTTPException as error:
        raise OSError(f"{url} did not reply in HTTP: {error!r}") from error
    finally:
        connection.close()
    if len(data) > _DOCUMENT_SIZE_MAX:
        raise OSError(f"{url} is larger than {_DOCUMENT_SIZE_MAX} bytes")
    return data
