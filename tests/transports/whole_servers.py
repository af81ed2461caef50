"""A broker behind all transports of a real server, on free ports of loopback."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from courser.api import commands as c
from courser.api.replies import NewToken, Node
from courser.broker.access.credentials import Passwords
from courser.broker.access.sessions import Session
from courser.broker.broker import Broker, RootUser
from courser.handlers.dispatcher import Dispatcher
from courser.handlers.subscriptions import Subscriptions
from courser.model.clock import Clock
from courser.model.identifiers import Identifier
from courser.model.messaging import Balanced, Transport
from courser.model.setting_kinds import Address
from courser.model.topic_options import TopicOptions
from courser.records.batch import NewMessage, build_batch
from courser.server.configuration.loading import load
from courser.server.configuration.settings import ServerSettings, settings_of
from courser.server.listeners import Dependencies, Listeners
from courser.storage.data_directory import DataDirectory
from courser.storage.watched_clock import SystemClock
from courser.transports.connections import Connections
from courser.transports.services import Services
from courser.transports.settings import ConnectionSettings
from tests.broker.listening import parts_of

PATIENCE = 60.0
"""Seconds until a test gives up: only a defect takes so long, however busy the machine is."""
_FREE_PORTS = tuple(f"{name}.address=127.0.0.1:0" for name in ("tcp", "websocket", "quic", "http"))


@dataclass(frozen=True)
class WholeServer:
    """A server that takes connections."""

    broker: Broker
    services: Services
    connections: Connections
    listeners: Listeners
    addresses: Mapping[Transport, Address]
    root: Session
    """Of nobody who is connected: for what a test does on the server's side."""
    subscriptions: Subscriptions

    @property
    def http_port(self) -> int:
        return self.addresses[Transport.HTTP].port

    @property
    def websocket_port(self) -> int:
        return self.addresses[Transport.WEBSOCKET].port

    async def ask(self, command: c.Command) -> object:
        """Have a command carried out for root."""
        return await Dispatcher(self.broker).dispatch(self.root, command)

    async def add_topic(self, stream: str = "s", topic: str = "t", partition_count: int = 1) -> None:
        if stream not in self.broker.catalog.state.stream_by_name:
            await self.ask(c.CreateStream(stream))
        await self.ask(c.CreateTopic(stream, topic, partition_count, TopicOptions()))

    async def send(self, *payloads: bytes, stream: Identifier = "s", topic: Identifier = "t") -> None:
        await self.ask(c.SendMessages(stream, topic, Balanced(), [build_batch([NewMessage(one) for one in payloads])]))

    async def make_token(self, name: str = "for a test", session: Session | None = None) -> str:
        """A personal access token, of root unless another session is given."""
        command = c.CreateToken(name, 0)
        reply = await Dispatcher(self.broker).dispatch(session or self.root, command)
        assert isinstance(reply, NewToken)
        return reply.token


def whole_settings(directory: Path, *settings: str) -> ServerSettings:
    """As ``key=value``."""
    given = {setting.partition("=")[0] for setting in settings}
    free_ports = [setting for setting in _FREE_PORTS if setting.partition("=")[0] not in given]
    return settings_of(load(settings=(f"system.path={directory}", *free_ports, *settings)))


@asynccontextmanager
async def whole_server(
    directory: Path, *settings: str, limits: ConnectionSettings | None = None, clock: Clock | None = None
) -> AsyncIterator[WholeServer]:
    """An empty server with the user iggy, listening on all transports that the settings enable."""
    wanted = whole_settings(directory, *settings)
    wanted = replace(wanted, connections=limits or wanted.connections)
    data = DataDirectory.open(directory)
    data.clock = clock or SystemClock()
    root = RootUser("iggy", Passwords().hash("iggy"))
    broker = await Broker.open(data, wanted.broker, make_root=lambda: root)
    listeners = Listeners(wanted)
    services, connections = parts_of(broker, wanted.connections)
    session = Session(0, Transport.TCP, "127.0.0.1:1", now=0)
    session.user_id = 0
    try:
        listeners.prepare(broker.clock)
        dispatcher = Dispatcher(broker)
        subscriptions = Subscriptions(dispatcher)
        addresses = await listeners.open(Dependencies(services, connections, dispatcher, subscriptions))
        ports = {f"{kind.name.lower()}_port": addresses[kind].port if kind in addresses else 0 for kind in Transport}
        broker.node = Node("node", "127.0.0.1", **ports)
        yield WholeServer(broker, services, connections, listeners, addresses, session, subscriptions)
    finally:
        listeners.close()
        await connections.say_goodbye(0)
        listeners.release()
        await broker.close()
