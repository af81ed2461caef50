"""A broker behind a TCP port of loopback: the parts of a server, put together by a test."""

from dataclasses import dataclass

from courser.broker.broker import Broker
from courser.handlers.dispatcher import Dispatcher
from courser.model.memory_ledger import MemoryLedger
from courser.server.codecs import CodecChooser
from courser.server.proven_dialects import ProvenDialects
from courser.transports.connections import Connections
from courser.transports.services import Services
from courser.transports.settings import ConnectionSettings, TcpSettings
from courser.transports.tcp import TcpListener


@dataclass(frozen=True)
class Listening:
    """A listener and its connections."""

    listener: TcpListener
    connections: Connections

    async def start(self) -> tuple[str, int]:
        """Listen; return the address."""
        return await self.listener.start()

    async def stop(self, grace: float) -> None:
        """Let nobody in, and end all connections."""
        self.listener.close()
        await self.connections.say_goodbye(grace)


def parts_of(broker: Broker, settings: ConnectionSettings) -> tuple[Services, Connections]:
    """What the listeners of a broker need."""
    chooser = CodecChooser(
        settings,
        verify_frames=broker.settings.verify_frames,
        users={},
        proven=ProvenDialects(broker.data.file_system, broker.data.path, broker.pool),
    )
    services = Services(
        begin=Dispatcher(broker).begin,
        choose_codec=chooser.choose,
        buffers=broker.buffers,
        clock=broker.clock,
        settings=settings,
        memory=MemoryLedger(settings.request_memory),
        slow_work=broker.pool,
    )
    connections = Connections(
        settings,
        broker.clock,
        count_max=settings.connection_count_max,
        request_memory=services.memory,
        reply_memory=broker.buffers,
    )
    broker.buffers.on_shortage = connections.free_reply_memory
    return services, connections


def listener_of(broker: Broker) -> Listening:
    """On a free port, with the usual settings. It is the caller's to start and to stop."""
    services, connections = parts_of(broker, ConnectionSettings())
    listener = TcpListener(
        TcpSettings(port=0),
        services,
        connections,
        sessions=broker.sessions,
    )
    return Listening(listener, connections)
