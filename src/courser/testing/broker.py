"""A broker inside the test: the real one, on a directory that goes away, reached through memory instead of sockets.

::

    async with TestBroker() as broker:
        client = await broker.connect()

Everything between the client's calls and the disk is what runs in production: codec, session loop, dispatcher, storage.
Only sockets, listeners and the background work of a server (retention, heartbeats) are left out.
"""

import asyncio
import os
import shutil
import tempfile
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

from courser.api import commands as c
from courser.api.replies import NewToken
from courser.archive.store import Store
from courser.broker.access.sessions import Session
from courser.broker.broker import Broker, RootUser
from courser.broker.settings import BrokerSettings
from courser.client.blocking import LoopThread
from courser.client.client import Client
from courser.client.connection import Connection
from courser.client.sync import SyncClient
from courser.client.targets import Target, with_options
from courser.errors import ConnectionFailed
from courser.handlers.dispatcher import Dispatcher
from courser.model.buffers import Buffer
from courser.model.clock import Clock
from courser.model.memory_ledger import MemoryLedger
from courser.model.messaging import Transport
from courser.storage.data_directory import DataDirectory
from courser.transports.services import Services
from courser.transports.session_loop import SessionLoop
from courser.transports.settings import ConnectionSettings
from courser.wire.vsr import VsrCodec

_NO_PASSWORD_HASH = "$argon2id$v=19$m=8,t=1,p=1$c29tZXNhbHQ$Jlt7EvnWHx4ygcKFdbkqpQ"
"""Of no password: clients of a test broker log in by token, which takes no time."""
_MEMORY_DIRECTORY = Path("/dev/shm")


class MemoryPipe(asyncio.Transport):
    """Both ends of a connection that exists in memory only. Bytes arrive in later turns of the event loop."""

    def __init__(self, connection: Connection, services: Services, session: Session) -> None:
        super().__init__()
        self._connection = connection
        self.session = session
        self._server = SessionLoop(services, session, _ServerEnd(self))
        self._to_server: deque[bytes] = deque()
        self._to_client: deque[bytes] = deque()
        self._is_paused = False
        self._is_closed = False
        self._loop = asyncio.get_running_loop()
        self.on_close: list[Any] = []
        """Called once, when the connection is gone."""

    # --- the client's end, as asyncio has it ----------------------------------------------------------

    def write(self, data: Any) -> None:
        """Send to the server."""
        if not self._is_closed:
            self._to_server.append(bytes(data))
            self._loop.call_soon(self._deliver_to_server)

    def writelines(self, list_of_data: Any) -> None:
        """Send to the server."""
        self.write(b"".join(list_of_data))

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """There is no limit."""

    def is_closing(self) -> bool:
        return self._is_closed

    def close(self) -> None:
        """End it, from either side."""
        if self._is_closed:
            return
        self._is_closed = True
        self._server.lost()
        for callback in self.on_close:
            callback(self)
        self._loop.call_soon(self._connection.connection_lost, None)

    abort = close

    def cut(self) -> None:
        """End it, and have the client know at once."""
        self.close()
        self._connection.connection_lost(None)

    # --- the bytes ------------------------------------------------------------------------------------

    def _deliver_to_server(self) -> None:
        while self._to_server and not self._is_paused and not self._is_closed:
            data = self._to_server.popleft()
            room = self._server.room()
            count = min(len(room), len(data))
            room[:count] = data[:count]
            if count < len(data):
                self._to_server.appendleft(data[count:])
            self._server.received(count)

    def pause(self, *, is_paused: bool) -> None:
        """Whether the server takes nothing for now."""
        self._is_paused = is_paused
        if not is_paused:
            self._loop.call_soon(self._deliver_to_server)

    def answer(self, buffers: Sequence[Buffer]) -> None:
        """Send to the client."""
        if not self._is_closed:
            self._to_client.append(b"".join(buffers))
            self._loop.call_soon(self._deliver_to_client)

    def _deliver_to_client(self) -> None:
        while self._to_client and not self._is_closed:
            data = self._to_client.popleft()
            room = self._connection.get_buffer(-1)
            count = min(len(room), len(data))
            room[:count] = data[:count]
            if count < len(data):
                self._to_client.appendleft(data[count:])
            self._connection.buffer_updated(count)

    def close_behind(self) -> None:
        """End it, once the client has what was sent."""
        self._loop.call_soon(self.close)


class _ServerEnd:
    """The server's end of a pipe."""

    def __init__(self, pipe: MemoryPipe) -> None:
        self._pipe = pipe

    def send(self, buffers: Sequence[Buffer]) -> bool:
        """The client takes everything at once."""
        self._pipe.answer(buffers)
        return True

    def acknowledge(self) -> None:
        """The client knows that what it has sent has come."""

    def pause(self) -> None:
        """Receive nothing more for now."""
        self._pipe.pause(is_paused=True)

    def resume(self) -> None:
        self._pipe.pause(is_paused=False)

    def finish(self, reason: str = "") -> None:
        """A pipe has no half that could be closed."""

    def close(self, reason: str = "") -> None:
        """Send what is left, then close. There is no way to give a reason."""
        del reason
        self._pipe.close_behind()


class TestBroker:
    """A broker for tests. Use it in ``async with``; it closes its clients and removes its data.

    Example:
        from courser.testing.broker import TestBroker

        async with TestBroker() as broker:
            client = await broker.connect()
            await client.create_stream("shop")
            broker.disconnect()
            await broker.restart()
            print(await client.get_streams(), broker.target().address)
    """

    __test__ = False
    """Not a test itself, whatever pytest thinks of its name."""

    def __init__(
        self,
        directory: Path | None = None,
        *,
        settings: BrokerSettings | None = None,
        clock: Clock | None = None,
        archive_store: Store | None = None,
    ) -> None:
        """``directory`` keeps the data, for a second broker to find it; by default it goes away.

        ``archive_store`` replaces the archive's store of the settings.
        """
        self._directory = directory
        self._settings = settings or BrokerSettings()
        self._clock = clock
        self._archive_store = archive_store
        self._temporary: Path | None = None
        self._broker: Broker | None = None
        self._services: Services | None = None
        self._slow_work: ThreadPoolExecutor | None = None
        self._token = ""
        self._pipes: set[MemoryPipe] = set()
        self._clients: list[Client] = []

    @property
    def broker(self) -> Broker:
        """The broker that runs inside."""
        assert self._broker is not None, "it is not open: use it in `async with`"
        return self._broker

    # --- life -----------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Open the broker, as a server does when it starts.

        Raises:
            StartRefused: another broker uses the directory, or its files cannot be read.
        """
        if self._directory is None and self._temporary is None:
            home = _MEMORY_DIRECTORY if os.access(_MEMORY_DIRECTORY, os.W_OK) else None
            self._temporary = Path(tempfile.mkdtemp(prefix="courser-test-", dir=home))
        data = DataDirectory.open((self._directory or self._temporary or Path()) / "data")
        if self._clock is not None:
            data.clock = self._clock
        root = RootUser("iggy", _NO_PASSWORD_HASH)
        self._broker = broker = await Broker.open(
            data, self._settings, make_root=lambda: root, archive_store=self._archive_store
        )
        self._slow_work = ThreadPoolExecutor(1, thread_name_prefix="codec")
        connections = ConnectionSettings()
        dispatcher = Dispatcher(broker)
        self._services = Services(
            begin=dispatcher.begin,
            choose_codec=lambda _head, _session: VsrCodec(),
            buffers=broker.buffers,
            clock=broker.clock,
            settings=connections,
            memory=MemoryLedger(connections.request_memory),
            slow_work=self._slow_work,
        )
        await self._make_token(broker, dispatcher)

    async def _make_token(self, broker: Broker, dispatcher: Dispatcher) -> None:
        session = broker.sessions.open(Transport.TCP, "127.0.0.1:0")
        session.user_id = 0
        name = f"test-{os.urandom(8).hex()}"
        reply = await dispatcher.dispatch(session, c.CreateToken(name, 0))
        assert isinstance(reply, NewToken)
        self._token = reply.token
        broker.sessions.close(session)

    async def close(self) -> None:
        """Close all clients and the broker, and remove the data. May be repeated."""
        for client in self._clients:
            await client.close()
        await self.stop()
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)
            self._temporary = None

    async def stop(self) -> None:
        """Stop the broker: connections break, and nobody can connect until ``open``. May be repeated.

        Example:
            from courser.testing.broker import TestBroker

            async with TestBroker() as broker:
                client = await broker.connect()
                await broker.stop()
                await broker.open()
                await client.ping()
        """
        if self._broker is None or self._slow_work is None:
            return
        self.disconnect()
        broker, self._broker = self._broker, None
        await broker.close()
        self._slow_work.shutdown()

    async def restart(self) -> None:
        """Stop and start again on the same data: connections break, and clients come back by themselves."""
        await self.stop()
        await self.open()

    def disconnect(self) -> None:
        """Break all connections, as a network does. Clients know it on return."""
        for pipe in tuple(self._pipes):
            pipe.cut()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # --- clients --------------------------------------------------------------------------------------

    async def connect(self, **options: object) -> Client:
        """A client that is logged in as root. Options are those of ``courser.connect``.

        Raises:
            TargetRefused: an option is invalid.
        """
        client = Client(self.target(**options), self.dial)
        await client.__aenter__()
        self._clients.append(client)
        return client

    def target(self, **options: object) -> Target:
        """What its clients connect to, by way of ``dial``."""
        login = {} if "username" in options or "token" in options else {"token": self._token}
        return with_options(Target(host="test-broker"), login | options)

    async def dial(self, target: Target) -> Connection:
        """Make a connection in memory: what a client has in place of sockets.

        Raises:
            ConnectionFailed: the broker is not open.

        Example:
            from courser.testing.broker import TestBroker

            async with TestBroker() as broker, courser.connect(broker.target(), dial=broker.dial) as client:
                await client.ping()
        """
        if self._broker is None or self._services is None:
            raise ConnectionFailed(target.address, "the test broker is not running")
        sessions = self._broker.sessions
        session = sessions.open(Transport.TCP, "127.0.0.1:0")
        connection = Connection(target.address, target.request_timeout)
        pipe = MemoryPipe(connection, self._services, session)
        pipe.on_close += [self._pipes.discard, lambda pipe: sessions.close(pipe.session)]
        self._pipes.add(pipe)
        connection.connection_made(pipe)
        return connection


class SyncTestBroker:
    """A ``TestBroker`` for sync tests: ``with SyncTestBroker() as broker: client = broker.connect()``.

    Example:
        from courser.testing.broker import SyncTestBroker

        with SyncTestBroker() as broker:
            client = broker.connect()
            client.create_stream("shop")
            broker.disconnect()
            broker.restart()
            print(client.get_streams())
    """

    __test__ = False

    def __init__(
        self, directory: Path | None = None, *, settings: BrokerSettings | None = None, clock: Clock | None = None
    ) -> None:
        self._thread = LoopThread()
        self.original = TestBroker(directory, settings=settings, clock=clock)

    def __enter__(self) -> Self:
        try:
            self._thread.call(self.original.open())
        except BaseException:
            self._thread.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._thread.call(self.original.close())
        finally:
            self._thread.stop()

    def connect(self, **options: object) -> SyncClient:
        """A client that is logged in as root. Options are those of ``courser.connect``."""
        return SyncClient(self._thread.call(self.original.connect(**options)), self._thread, owns_thread=False)

    def stop(self) -> None:
        """Stop the broker: connections break, and nobody can connect until ``open``. May be repeated."""
        self._thread.call(self.original.stop())

    def open(self) -> None:
        """Start again on the same data, after ``stop``."""
        self._thread.call(self.original.open())

    def restart(self) -> None:
        """Stop and start again on the same data: connections break, and clients come back by themselves."""
        self._thread.call(self.original.restart())

    def disconnect(self) -> None:
        """Break all connections, as a network does."""

        async def disconnect() -> None:
            self.original.disconnect()

        self._thread.call(disconnect())
