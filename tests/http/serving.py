"""A broker behind an HTTP port of loopback, and a client that shows every byte of an answer."""

import asyncio
import base64
import json
import os
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from courser.broker.access.access_token_settings import AccessTokenSettings
from courser.broker.access.access_tokens import AccessTokens
from courser.broker.access.credentials import Passwords
from courser.broker.access.sessions import Session
from courser.broker.access.trusted_issuers import TrustedIssuers
from courser.broker.broker import Broker, RootUser
from courser.broker.partition.disk_watch import DiskWatch
from courser.broker.settings import BrokerSettings
from courser.handlers.dispatcher import Dispatcher
from courser.handlers.searches import Searches
from courser.handlers.subscriptions import Subscriptions
from courser.model.clock import Clock
from courser.model.memory_ledger import MemoryLedger
from courser.storage.data_directory import DataDirectory
from courser.transports.connections import Connections
from courser.transports.http import HttpListener
from courser.transports.http_application import HttpApplication
from courser.transports.http_commands import HttpServices
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
    memory: MemoryLedger
    listener: HttpListener
    port: int

    @property
    def client(self) -> HttpClient:
        return HttpClient(self.port)

    @property
    def root(self) -> HttpClient:
        """As if logged in: checking a password takes long."""
        password_hash = self.broker.catalog.state.users[0].password_hash
        token, _ = self.application._services.tokens.issue(0, None, password_hash.encode())
        return HttpClient(self.port, token)

    @property
    def long_polls(self) -> set[Session]:
        """The sessions of polls that may wait."""
        return self.application._commands._waiting

    @property
    def parked_polls(self) -> set[asyncio.Future[Any]]:
        """The waits of polls that have not begun to read."""
        return self.application._commands._parked

    @property
    def subscriptions(self) -> Subscriptions:
        return self.application._services.subscriptions

    @property
    def searches(self) -> Searches:
        return self.application._services.searches

    @property
    def application(self) -> HttpApplication:
        application = self.listener._application
        assert isinstance(application, HttpApplication)
        return application


async def until(condition: Callable[[], bool]) -> None:
    """Until a condition holds that nobody announces."""
    while not condition():  # noqa: ASYNC110 - nobody tells
        await asyncio.sleep(0)


async def until_waiting(server: HttpServer) -> None:
    """Until a long poll waits: the partition has a waiter."""
    await until(lambda: any(session.waiting is not None for session in server.long_polls))


FIRST = {"kind": "partition_id", "value": "AAAAAA=="}
"""Partition 0."""


def message(payload: bytes = b"x", **fields: object) -> dict[str, object]:
    """A message in JSON."""
    return {"payload": base64.b64encode(payload).decode()} | fields


async def send(client: HttpClient, topic: str, *messages: dict[str, object], partition_id: int = 0) -> None:
    """Send messages to one partition."""
    place = {"kind": "partition_id", "value": base64.b64encode(partition_id.to_bytes(4, "little")).decode()}
    reply = await client.ask("POST", f"{topic}/messages", {"partitioning": place, "messages": messages})
    assert reply.status == 201, reply


async def make_topic(root: HttpClient, name: str = "t") -> str:
    """The path of a new topic with two partitions, in the stream s."""
    await root.ask("POST", "/streams", {"name": "s"})
    options = {"compression_algorithm": "none", "message_expiry": 0, "max_topic_size": 0}
    reply = await root.ask("POST", "/streams/s/topics", {"name": name, "partitions_count": 2} | options)
    assert reply.status == 200
    return f"/streams/s/topics/{name}"


@cache
def make_root() -> RootUser:
    """Hashing a password takes long."""
    return RootUser("iggy", Passwords().hash("iggy"))


async def http_listener(
    broker: Broker,
    connections: Connections,
    memory: MemoryLedger,
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
        kept=broker.authentication.kept_access,
    )
    dispatcher = Dispatcher(broker)
    subscriptions, searches = Subscriptions(dispatcher), Searches(dispatcher)
    access_tokens.on_revoke = subscriptions.review
    trusted = None
    if fetch is not None:
        issuers, skew = token_settings.trusted_issuers, token_settings.clock_skew
        trusted = TrustedIssuers(
            issuers, access_tokens, broker.catalog.state, broker.clock, clock_skew=skew, fetch=fetch
        )
    services = HttpServices(
        begin=dispatcher.begin,
        tokens=access_tokens,
        check_trusted=None if trusted is None else trusted.check,
        sessions=broker.sessions,
        subscriptions=subscriptions,
        searches=searches,
        members=broker.connectionless,
        buffers=broker.buffers,
        problems=DiskWatch(broker.partitions, broker.pool, lambda: (1, 0)).problems,
        notices=broker.notices,
        read_metrics=broker.operating.scrapes.text,
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
    broker_settings: BrokerSettings | None = None,
    clock: Clock | None = None,
) -> AsyncIterator[HttpServer]:
    """A server with the user iggy."""
    data = DataDirectory.open(directory)
    if clock is not None:
        data.clock = clock
    broker = await Broker.open(data, broker_settings or BrokerSettings(), make_root=make_root)
    limits = limits or ConnectionSettings()
    memory = MemoryLedger(limits.request_memory)
    connections = Connections(
        limits,
        broker.clock,
        count_max=limits.connection_count_max,
        request_memory=memory,
        reply_memory=broker.buffers,
    )
    listener: HttpListener | None = None
    try:
        listener = await http_listener(broker, connections, memory, settings, limits, tokens, tls, fetch)
        _, port = await listener.start()
        yield HttpServer(broker, connections, memory, listener, port)
    finally:
        if listener is not None:
            listener.close()
        await connections.say_goodbye(0)
        await broker.close()
