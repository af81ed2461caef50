"""A listener on a free port, and clients for it."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from courser.api.commands import Command
from courser.api.replies import Reply
from courser.broker.access.sessions import Session, Sessions
from courser.broker.partition.read_buffers import ReadBuffers
from courser.broker.partition.waiting import attempt
from courser.model.memory_ledger import MemoryLedger
from courser.model.messaging import Transport
from courser.transports.connections import Connections
from courser.transports.services import Services
from courser.transports.settings import ConnectionSettings, SocketSettings, TcpSettings
from courser.transports.tcp import TcpListener
from courser.transports.tcp_connection import Assemble, assemble_plain
from tests.fakes.clocks import ManualClock
from tests.transports.echo import EchoCodec, Said, Say, SlowWork, frame

SECOND = 1_000_000
MIB = 1024 * 1024
GRACE = 60.0
"""Seconds that something may take before a test gives up: a busy machine alone may take ten."""


class NumberedSessions(Sessions):
    """The sessions of a server, which remembers them."""

    def __init__(self, server: "Server") -> None:
        self._server = server

    def open(self, transport: Transport, address: str) -> Session:
        sessions = self._server.sessions
        sessions.append(Session(len(sessions) + 1, transport, address, now=self._server.clock.monotonic()))
        return sessions[-1]

    def close(self, session: Session) -> None:
        self._server.closed.append(session)
        self._server.changed.set()


class Server:
    """A listener whose clients get back what they say."""

    def __init__(
        self,
        settings: ConnectionSettings,
        connection_count_max: int = 100,
        tls: ssl.SSLContext | None = None,
        options: SocketSettings | None = None,
        *,
        transport: Transport = Transport.TCP,
        assemble: Assemble = assemble_plain,
    ) -> None:
        self.clock = ManualClock()
        self.sessions: list[Session] = []
        self.closed: list[Session] = []
        self.changed = asyncio.Event()
        self.gate = asyncio.Event()
        self.clients: list[Client] = []
        self.memory = ReadBuffers(MemoryLedger(settings.reply_memory))
        self.services = services = Services(
            begin=lambda session, command: attempt(self._dispatch(session, command)),
            choose_codec=lambda head, session: EchoCodec(),
            buffers=self.memory,
            clock=self.clock,
            settings=settings,
            memory=MemoryLedger(settings.request_memory),
            slow_work=SlowWork(),
        )
        self.connections = Connections(
            settings,
            self.clock,
            count_max=connection_count_max,
            request_memory=services.memory,
            reply_memory=self.memory,
        )
        self.memory.on_shortage = self.connections.free_reply_memory
        self.listener = TcpListener(
            TcpSettings(port=0, socket=options),
            services,
            self.connections,
            sessions=NumberedSessions(self),
            tls=tls,
            transport=transport,
            assemble=assemble,
        )
        self.port = 0

    async def _dispatch(self, session: Session, command: Command) -> Reply | None:
        assert isinstance(command, Say)
        if command.text == b"login":
            session.user_id = 0
        if command.text == b"wait":
            await self.gate.wait()
        if command.text.startswith(b"much"):
            return Said(bytes(int(command.text[4:])))
        return Said(command.text)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for connections to end, until the condition holds."""
        while not condition():
            self.changed.clear()
            await asyncio.wait_for(self.changed.wait(), GRACE)

    async def until_unread(self) -> None:
        """Wait until the kernel does not take all of somebody's reply."""
        async with asyncio.timeout(GRACE):
            while all(each.loop is None or each.loop.unsent_since is None for each in self.connections):  # noqa: ASYNC110
                await asyncio.sleep(0)

    async def connect(self, tls: ssl.SSLContext | None = None) -> "Client":
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=64 * MIB, ssl=tls)
        self.clients.append(Client(reader, writer))
        return self.clients[-1]

    async def leave(self) -> None:
        """Take all clients away, then stop."""
        self.gate.set()
        for client in self.clients:
            client.writer.transport.abort()
            await asyncio.gather(client.writer.wait_closed(), return_exceptions=True)
        await self.stop(GRACE)

    async def stop(self, grace: float) -> None:
        self.listener.close()
        await self.connections.say_goodbye(grace)


class Client:
    """A client that speaks whole frames."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def say(self, text: bytes) -> bytes:
        self.writer.write(frame(text))
        return (await asyncio.wait_for(self.reader.readuntil(b">"), GRACE))[1:-1]

    async def end(self) -> bytes:
        """All that comes until the server closes."""
        try:
            return await asyncio.wait_for(self.reader.read(), GRACE)
        except ConnectionResetError:
            return b""


@asynccontextmanager
async def serving(
    settings: ConnectionSettings | None = None,
    connection_count_max: int = 100,
    tls: ssl.SSLContext | None = None,
    options: SocketSettings | None = None,
    *,
    transport: Transport = Transport.TCP,
    assemble: Assemble = assemble_plain,
) -> AsyncIterator[Server]:
    server = Server(
        settings or ConnectionSettings(), connection_count_max, tls, options, transport=transport, assemble=assemble
    )
    _, server.port = await server.listener.start()
    try:
        yield server
    finally:
        await server.leave()
