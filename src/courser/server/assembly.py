"""What every process of a server puts together in the same way, whichever part of the work it has."""

import logging
import sys
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any

from courser.api.commands import Command
from courser.broker.access.sessions import Session
from courser.broker.broker import Broker
from courser.model.memory_ledger import MemoryLedger
from courser.server.codecs import CodecChooser
from courser.server.configuration.settings import ServerSettings
from courser.server.garbage import calm_collections
from courser.server.metrics import register_connection_metrics
from courser.server.proven_dialects import ProvenDialects
from courser.server.system_limits import connection_count_max, needs_more_files, raise_file_limit
from courser.transports.connections import Connections, ConnectionSlots
from courser.transports.services import Services

_log = logging.getLogger(__name__)

SWITCH_INTERVAL = 0.000_03
"""Seconds after which a thread must release the interpreter lock. A sync has to start while the event loop still
answers the sends of the previous one, and a thread that converts messages must not delay the event loop."""


def calm_process() -> None:
    """Set the interpreter up for serving."""
    calm_collections()
    sys.setswitchinterval(SWITCH_INTERVAL)


def make_codec_chooser(settings: ServerSettings, broker: Broker, *, is_first: bool = True) -> CodecChooser:
    """Chooses the codecs of connections. The first process keeps what clients have proven."""
    return CodecChooser(
        settings.connections,
        verify_frames=settings.broker.verify_frames,
        users=broker.catalog.state.users,
        proven=ProvenDialects(broker.data.file_system, broker.data.path, broker.pool, is_saved=is_first),
    )


def make_services(
    settings: ServerSettings,
    broker: Broker,
    chooser: CodecChooser,
    begin: Callable[[Session, Command], Any],
    slow_work: Executor,
) -> Services:
    """What all connections share. ``begin`` is the dispatcher's."""
    return Services(
        begin=begin,
        choose_codec=chooser.choose,
        buffers=broker.buffers,
        clock=broker.clock,
        settings=settings.connections,
        memory=MemoryLedger(settings.connections.request_memory),
        slow_work=slow_work,
    )


def make_connections(
    settings: ServerSettings,
    broker: Broker,
    services: Services,
    http_connection_count: Callable[[], int],
    slots: ConnectionSlots | None = None,
) -> Connections:
    """The connections of all transports of this process. ``slots`` are those that it shares with other processes."""
    connections = Connections(
        settings.connections,
        broker.clock,
        count_max=_connection_count_max(settings.connections.connection_count_max, broker),
        request_memory=services.memory,
        reply_memory=broker.buffers,
        slots=slots,
    )
    register_connection_metrics(broker.metrics, connections, broker.sessions, http_connection_count)
    broker.buffers.on_shortage = connections.free_reply_memory
    return connections


def _connection_count_max(wanted: int, broker: Broker) -> int:
    file_limit = raise_file_limit()
    count = connection_count_max(wanted, file_limit)
    if count < wanted:
        _log.warning("limiting connections to %d, half of the limit of %d open files (ulimit -n)", count, file_limit)
    partition_count = sum(len(topic.partitions) for topic in broker.partitions)
    if needs_more_files(partition_count + count, file_limit):
        _log.warning(
            "%d partitions and %d connections may exceed the limit of %d open files (ulimit -n)",
            partition_count,
            count,
            file_limit,
        )
    return count
