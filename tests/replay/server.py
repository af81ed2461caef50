"""A server for one section: the parts of a real one on a free port of loopback, and a clock that can be put forward."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from courser.api.replies import Node
from courser.broker.access.credentials import Passwords
from courser.broker.broker import Broker, RootUser
from courser.broker.settings import BrokerSettings
from courser.storage.data_directory import DataDirectory
from courser.storage.watched_clock import SystemClock
from tests.broker.listening import listener_of


class ForwardClock:
    """The real time, and what was added to it."""

    def __init__(self) -> None:
        self._clock = SystemClock()
        self.step = 0
        self._ahead = 0

    def now(self) -> int:
        """Wall clock in microseconds since 1970."""
        return self._clock.now() + self._ahead

    def monotonic(self) -> int:
        """Microseconds from an arbitrary start."""
        return self._clock.monotonic() + self._ahead

    def advance(self, microseconds: int) -> None:
        """Let so much time pass at once."""
        self._ahead += microseconds


@dataclass(frozen=True)
class ReplayServer:
    """A server that takes connections."""

    port: int
    clock: ForwardClock
    broker: Broker


def _make_root() -> RootUser:
    return RootUser("iggy", Passwords().hash("iggy"))


@asynccontextmanager
async def running_server(directory: Path, settings: BrokerSettings | None = None) -> AsyncIterator[ReplayServer]:
    """An empty server with the user iggy, and with default settings unless others are given."""
    data = DataDirectory.open(directory)
    clock = ForwardClock()
    data.clock = clock
    broker = await Broker.open(data, settings or BrokerSettings(), make_root=_make_root)
    listener = listener_of(broker)
    try:
        host, port = await listener.start()
        broker.node = Node("iggy-node", host, port, 0, 0, 0)
        yield ReplayServer(port, clock, broker)
    finally:
        await listener.stop(0)
        await broker.close()
