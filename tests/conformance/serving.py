"""A server inside the test that listens on every transport, assembled as ``courser serve`` does it."""

import ssl
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from courser.api.replies import Node
from courser.broker.broker import Broker
from courser.broker.settings import BrokerSettings
from courser.handlers.dispatcher import Dispatcher
from courser.handlers.subscriptions import Subscriptions
from courser.model.memory_ledger import MemoryLedger
from courser.model.messaging import Transport
from courser.model.setting_kinds import Address
from courser.server.codecs import CodecChooser
from courser.server.configuration.loading import load
from courser.server.configuration.settings import settings_of
from courser.server.listeners import Dependencies, Listeners, name_of
from courser.server.proven_dialects import ProvenDialects
from courser.storage.data_directory import DataDirectory
from courser.transports.connections import Connections
from courser.transports.services import Services
from courser.transports.settings import ConnectionSettings
from tests.http.serving import make_root

_MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
_HOST = "127.0.0.1"
_ANY_PORT = f"{_HOST}:0"
_ALL_TRANSPORTS = [f"{name}.address={_ANY_PORT}" for name in ("tcp", "websocket", "quic", "http")] + [
    f"{name}.enabled=true" for name in ("websocket", "quic", "http")
]
_TLS = [f"tcp.address={_ANY_PORT}", "tcp.tls.enabled=true"] + [
    f"{name}.enabled=false" for name in ("websocket", "quic", "http")
]


@dataclass(frozen=True)
class Served:
    """A server that accepts connections."""

    broker: Broker
    addresses: Mapping[Transport, Address]
    tls_address: Address
    """Of TCP with TLS."""
    certificates: Mapping[Transport, bytes]
    """PEM; the one of TCP is that of ``tls_address``."""

    def trusting(self, transport: Transport) -> ssl.SSLContext:
        """Verifies the certificate and the name in it."""
        return ssl.create_default_context(cadata=self.certificates[transport].decode())


@asynccontextmanager
async def served() -> AsyncIterator[Served]:
    """An empty server with the user iggy, on a disk in memory if there is one: these tests are not about syncs."""
    with (
        TemporaryDirectory(dir=_MEMORY) as directory,
        ThreadPoolExecutor(1) as slow_work,
    ):
        broker = await Broker.open(DataDirectory.open(Path(directory)), BrokerSettings(), make_root=make_root)
        dependencies = _dependencies(broker, slow_work)
        plain, encrypted = (Listeners(settings_of(load(settings=given))) for given in (_ALL_TRANSPORTS, _TLS))
        try:
            for listeners in (plain, encrypted):
                listeners.prepare(broker.clock)
            addresses = await plain.open(dependencies)
            tls_addresses = await encrypted.open(dependencies)
            broker.node = Node("node", _HOST, **{f"{name_of(kind)}_port": at.port for kind, at in addresses.items()})
            certificates = plain.certificates | encrypted.certificates
            yield Served(
                broker,
                addresses,
                tls_addresses[Transport.TCP],
                {transport: certificate.pem for transport, certificate in certificates.items()},
            )
        finally:
            for listeners in (plain, encrypted):
                listeners.close()
            await dependencies.connections.say_goodbye(0)
            for listeners in (plain, encrypted):
                listeners.release()
            await broker.close()


def _dependencies(broker: Broker, slow_work: ThreadPoolExecutor) -> Dependencies:
    limits = ConnectionSettings()

    proven = ProvenDialects(broker.data.file_system, broker.data.path, broker.pool)
    dispatcher = Dispatcher(broker)
    services = Services(
        begin=dispatcher.begin,
        choose_codec=CodecChooser(limits, verify_frames=True, users=broker.catalog.state.users, proven=proven).choose,
        buffers=broker.buffers,
        clock=broker.clock,
        settings=limits,
        memory=MemoryLedger(limits.request_memory),
        slow_work=slow_work,
    )
    connections = Connections(
        limits,
        broker.clock,
        count_max=limits.connection_count_max,
        request_memory=services.memory,
        reply_memory=broker.buffers,
    )
    return Dependencies(services, connections, dispatcher, Subscriptions(dispatcher))
