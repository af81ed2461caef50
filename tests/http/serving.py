"""A broker behind an HTTP port of loopback, and a client that shows every byte of an answer."""

import asyncio
import json
import os
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from courser.broker.access_tokens import AccessTokens, AccessTokenSettings
from courser.broker.broker import Broker, RootUser
from courser.broker.credentials import Passwords
from courser.broker.disk_watch import DiskWatch
from courser.broker.settings import BrokerSettings
from courser.broker.trusted_issuers import TrustedIssuers
from courser.handlers.dispatcher import Dispatcher
from courser.storage.data_directory import DataDirectory
from courser.transports.connections import Connections
from courser.transports.http import HttpListener
from courser.transports.http_application import HttpApplication, HttpServices
from courser.transports.request_memory import RequestMemory
from courser.transports.settings import ConnectionSettings, HttpSettings

Fetch = Callable[[str], Awaitable[bytes]]
"""Gets the keys of a trusted issuer."""


@dataclass(frozen=True)
class HttpReply:
    """An answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class HttpClient:
    """Sends requests, each on a connection of its own unless ``connection`` is given."""

    port: int
    token: str | None = None
    tls: ssl.SSLContext | None = None
    headers: dict[str, str] = field(default_factory=dict)

    async def open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port, ssl=self.tls)

    async def ask(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        token: str | None = None,
        content_type: str | None = "application/json",
        headers: Mapping[str, str] | None = None,
    ) -> HttpReply:
        """One request. A body that is not bytes is sent as JSON."""
        data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        sent = {"host": "localhost", "connection": "close"} | self.headers | dict(headers or {})
        if (token or self.token) and "authorization" not in sent:
            sent["authorization"] = f"Bearer {token or self.token}"
        if body is not None:
            sent["content-length"] = str(len(data))
            if content_type is not None:
                sent["content-type"] = content_type
        head = f"{method} {path} HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in sent.items())
        reader, writer = await self.open()
        try:
            writer.write(head.encode() + b"\r\n" + data)
            return await read_reply(reader, has_body=method != "HEAD")
        finally:
            writer.close()

    async def login(self, username: str = "iggy", password: str = "iggy") -> "HttpClient":
        reply = await self.ask("POST", "/users/login", {"username": username, "password": password})
        assert reply.status == 200, reply
        return HttpClient(self.port, reply.json["access_token"]["token"], self.tls)


async def read_reply(reader: asyncio.StreamReader, *, has_body: bool = True) -> HttpReply:
    """The next answer of a connection."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    headers = dict(line.split(": ", 1) for line in head[1:] if line)
    size = int(headers.get("content-length", 0)) if has_body else 0
    return HttpReply(int(head[0].split()[1]), headers, await reader.readexactly(size))


@dataclass(frozen=True)
class HttpServer:
    """A server that takes requests."""

    broker: Broker
    connections: Connections
    memory: RequestMemory
    listener: HttpListener
    port: int

    @property
    def client(self) -> HttpClient:
        return HttpClient(self.port)


def make_root() -> RootUser:
    return RootUser("iggy", Passwords().hash("iggy"))


async def http_listener(
    broker: Broker,
    connections: Connections,
    memory: RequestMemory,
    settings: HttpSettings | None = None,
    limits: ConnectionSettings | None = None,
    tokens: AccessTokenSettings | None = None,
    tls: ssl.SSLContext | None = None,
    fetch: Fetch | None = None,
) -> HttpListener:
    """A listener of a broker; the caller starts and stops it."""
    limits = limits or ConnectionSettings()
    token_settings = tokens or AccessTokenSettings()
    access_tokens = await AccessTokens.open(
        token_settings,
        broker.catalog.state,
        broker.clock,
        file_system=broker.data.file_system,
        data_directory=broker.data.path,
        pool=broker.pool,
        draw=os.urandom,
    )
    trusted = None
    if fetch is not None:
        issuers, skew = token_settings.trusted_issuers, token_settings.clock_skew
        trusted = TrustedIssuers(
            issuers, access_tokens, broker.catalog.state, broker.clock, clock_skew=skew, fetch=fetch
        )
    services = HttpServices(
        begin=Dispatcher(broker).begin,
        tokens=access_tokens,
        check_trusted=None if trusted is None else trusted.check,
        reply_sent=broker.reply_sent,
        reply_unread=broker.reply_unread,
        problems=DiskWatch(broker.partitions, broker.pool, lambda: (1, 0)).problems,
        read_metrics=broker.scrapes.text,
        metrics=broker.metrics,
        memory=memory,
        clock=broker.clock,
        draw=os.urandom,
        slow_work=broker.pool,
    )
    settings = settings or HttpSettings(port=0)
    return HttpListener(settings, limits, HttpApplication(services, settings, limits), connections, tls=tls)


@asynccontextmanager
async def serving(
    directory: Path,
    settings: HttpSettings | None = None,
    limits: ConnectionSettings | None = None,
    tokens: AccessTokenSettings | None = None,
    tls: ssl.SSLContext | None = None,
    fetch: Fetch | None = None,
) -> AsyncIterator[HttpServer]:
    """An empty server with the user iggy."""
    broker = await Broker.open(DataDirectory.open(directory), BrokerSettings(), make_root=make_root)
    limits = limits or ConnectionSettings()
    memory = RequestMemory(limits.request_memory)
    connections = Connections(
        limits,
        broker.clock,
        count_max=limits.connection_count_max,
        request_memory=memory,
        reply_memory=broker.buffers,
    )
    listener = await http_listener(broker, connections, memory, settings, limits, tokens, tls, fetch)
    try:
        _, port = await listener.start()
        yield HttpServer(broker, connections, memory, listener, port)
    finally:
        listener.close()
        await connections.say_goodbye(0)
        await broker.close()
