"""A server on a disk that fails when a test says so, with a real TCP port and a thread of its own."""

import asyncio
import threading
from concurrent.futures import Future
from types import TracebackType
from typing import Self

import msgspec

from courser.broker.access.credentials import Passwords
from courser.broker.broker import RootUser
from courser.broker.settings import USUAL_TOPIC_OPTIONS, BrokerSettings
from courser.errors import StorageFailure
from tests.broker.fake_disks import FakeServer
from tests.broker.listening import listener_of
from tests.fakes.files import FakeFileSystem, FaultPlan
from tests.servers import ROOT_NAME, ROOT_PASSWORD
from tests.torture.clients import WIRES, Client, VsrClient

PATIENCE = 60.0
SYNCED = BrokerSettings(
    topic_defaults=msgspec.structs.replace(USUAL_TOPIC_OPTIONS, enforce_fsync=True, messages_required_to_save=1)
)
"""Every send is synced before it is acknowledged."""


class ServerOnFakeDisk:
    """One disk, and the server on it while the block lasts. ``stop`` and ``start`` make another life of it."""

    def __init__(self, settings: BrokerSettings | None = None) -> None:
        root = RootUser(ROOT_NAME, Passwords().hash(ROOT_PASSWORD))
        self._fake = FakeServer(settings=settings, root=root)
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop
        self._end: asyncio.Event
        self._is_clean: Future[bool]
        self.port = 0

    @property
    def disk(self) -> FakeFileSystem:
        return self._fake.disk

    def fail(self, plan: FaultPlan | None = None) -> None:
        """Let the disk fail as the plan says; without one it works again."""
        self.disk.plan = plan or FaultPlan()

    def connect(self, wire: str) -> Client:
        """A connection on which root is logged in."""
        return WIRES[wire](self.port).login()

    # --- life ---

    def start(self) -> None:
        ready: Future[int] = Future()
        self._is_clean = Future()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._live(ready)), name="server")
        self._thread.start()
        self.port = ready.result(PATIENCE)

    def stop(self) -> bool:
        """Ask it to end; return whether it was a clean stop."""
        assert self._thread is not None
        self._loop.call_soon_threadsafe(self._end.set)
        try:
            return self._is_clean.result(PATIENCE)
        finally:
            self._thread.join(PATIENCE)
            self._thread = None

    def restart(self, *, with_power_cut: bool = False) -> bool:
        """Stop, let the process or the power go, start again on a disk that works. Say whether the stop was clean."""
        is_clean = self.stop()
        self.fail()
        if with_power_cut:
            self.disk.power_cut()
        else:
            self.disk.kill()
        self.start()
        return is_clean

    async def _live(self, ready: "Future[int]") -> None:
        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        try:
            broker = await self._fake.open()
        except StorageFailure as failure:
            ready.set_exception(failure)
            return
        listener = listener_of(broker)
        _, port = await listener.start()
        ready.set_result(port)
        await self._end.wait()
        await listener.stop(1.0)
        self._is_clean.set_result(await broker.close())

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._thread is not None:
            self.stop()


def vsr(server: ServerOnFakeDisk) -> VsrClient:
    """The same for SDK 0.9."""
    return VsrClient(server.port).login()
