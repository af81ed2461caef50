"""The HTTP listener of a server, put together from the broker and the settings."""

import asyncio
import os
import ssl
from functools import partial

from courser.broker.access_tokens import AccessTokens
from courser.broker.broker import Broker
from courser.broker.disk_watch import problems
from courser.server.configuration.settings import ServerSettings
from courser.transports.connections import Connections
from courser.transports.http import HttpListener
from courser.transports.http_application import HttpApplication, HttpServices
from courser.transports.session_loop import Services


async def make_http_listener(
    settings: ServerSettings,
    broker: Broker,
    services: Services,
    connections: Connections,
    *,
    tls: ssl.SSLContext | None,
) -> HttpListener:
    """Not started yet. Raises ``StorageFailure`` if the access tokens cannot be read."""
    assert settings.http is not None, "HTTP is enabled"
    tokens = await AccessTokens.open(
        settings.access_tokens,
        broker.catalog.state,
        broker.clock,
        file_system=broker.data.file_system,
        data_directory=broker.data.path,
        pool=broker.pool,
        draw=os.urandom,
    )
    http_services = HttpServices(
        begin=services.begin,
        tokens=tokens,
        reply_sent=broker.reply_sent,
        reply_unread=broker.reply_unread,
        problems=partial(_problems, broker),
        metrics=broker.metrics,
        clock=broker.clock,
        draw=os.urandom,
        slow_work=services.slow_work,
    )
    application = HttpApplication(http_services, settings.http, settings.connections)
    return HttpListener(settings.http, settings.connections, application, connections, tls=tls)


async def _problems(broker: Broker) -> list[str]:
    free, total = await asyncio.get_running_loop().run_in_executor(broker.pool, broker.machine.disk_space)
    return problems(broker.partitions, free, total)
