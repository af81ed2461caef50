"""The server: everything put together, started in order, stopped in reverse."""

import contextlib
import gc
import logging
import os
import sys
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from courser import __version__
from courser.api.replies import Node
from courser.broker.broker import Broker, RootUser
from courser.errors import AddressRefused, CourserError, StartRefused
from courser.handlers.dispatcher import Dispatcher
from courser.model.clock import Clock
from courser.server.background import keep_background_tasks
from courser.server.codecs import CodecChooser
from courser.server.configuration.kinds import Address
from courser.server.configuration.loading import Configuration
from courser.server.configuration.settings import ServerSettings
from courser.server.limits import (
    check_address,
    connection_count_max,
    explain_file_limit,
    needs_more_files,
    raise_file_limit,
)
from courser.server.logs import Logs
from courser.server.root_user import RootCredentials
from courser.server.runtime_files import masked_configuration, write_certificate, write_configuration
from courser.server.signals import Signals
from courser.server.supervision import Supervisor
from courser.storage.data_directory import DataDirectory
from courser.storage.paths import SESSION
from courser.transports.connections import Connections
from courser.transports.request_memory import RequestMemory
from courser.transports.session_loop import Services
from courser.transports.tcp import TcpListener

if TYPE_CHECKING:
    from courser.server.certificates import Certificate

_log = logging.getLogger(__name__)

_ALLOCATIONS_BETWEEN_COLLECTIONS = 50_000
"""More containers made than freed before the young ones are looked at: 700, as usual, costs a send some percent."""
_SWITCH_INTERVAL = 0.000_03
"""Seconds that one thread keeps another waiting for the interpreter. A sync has to begin while the event loop answers
the sends of the one before; and a thread that converts messages must not hold the event loop up."""
_NODE_NAME = "iggy-node"
"""What clients see of the original too."""


@dataclass(frozen=True, slots=True)
class Orders:
    """What a server is told before it starts."""

    configuration: Configuration
    settings: ServerSettings
    root: RootCredentials
    announce: Callable[[str], None]
    """Shows something to whoever started the server, and to nobody else: it never gets into a log."""
    on_ready: Callable[[str], None] | None = None
    """Told the address, ``host:port``, once connections are taken; in place of the sentence that is shown then."""


class Server:
    """One server over one data directory. ``run`` is its whole life."""

    def __init__(self, orders: Orders, logs: Logs) -> None:
        self._orders = orders
        self._settings = orders.settings
        self._logs = logs
        self._certificate: Certificate | None = None

    async def run(self) -> bool:
        """Start, serve until a signal asks for an end, stop. Return whether the stop was clean.

        Raises:
            StartRefused, StorageFailure: the data directory cannot be opened.
            AddressRefused: the address cannot be listened on.
        """
        # Before anything is opened: a start needs descriptors too.
        raise_file_limit()
        try:
            return await self._run()
        except (CourserError, OSError) as error:
            refusal = explain_file_limit(error, self._settings.data_directory)
            if refusal is None:
                raise
            raise refusal from error

    async def _run(self) -> bool:
        signals = Signals(on_hang_up=self._reload_certificate)
        is_clean = False
        try:
            broker = await self._open_broker()
            try:
                if not signals.stop.is_set():
                    await self._serve(broker, signals)
            finally:
                is_clean = await broker.close()
                _log.info("stopped clean=%s", is_clean)
        finally:
            signals.close()
        return is_clean

    # --- start ---

    async def _open_broker(self) -> Broker:
        data = self._take_directory()
        try:
            # A first start shows a password: not for a server that then cannot listen.
            check_address(Address(self._settings.tcp.host, self._settings.tcp.port))
            self._load_certificate(data.clock)
        except CourserError:
            data.close(is_clean=False)
            raise
        orders = self._orders
        made: list[RootUser] = []

        def make_root() -> RootUser:
            made.append(orders.root.make(orders.announce))
            return made[0]

        broker = await Broker.open(data, self._settings.broker, make_root=make_root)
        if not made and not orders.root.is_generated:
            # Whoever cannot log in with what he has just set looks here.
            _log.info("there is a root user already, with the password it has: what this start says of it is not used")
        broker.diagnosis.read_configuration = partial(masked_configuration, orders.configuration)
        broker.diagnosis.read_logs = self._logs.newest
        return broker

    def _take_directory(self) -> DataDirectory:
        directory = self._settings.data_directory
        try:
            is_first_start = not (directory / SESSION).exists()
            data = DataDirectory.open(directory)
        except OSError as error:
            reason = f"it cannot be the data directory: {error.strerror or error}"
            remedy = "choose one that this user may write: system.path of courser serve, --data of courser dev"
            raise StartRefused(directory, reason, remedy) from error
        # Not before: without the lock the log files might be those of another server.
        self._logs.open_file()
        last_stop = "none" if is_first_start else data.stop.name.lower()
        _log.info("starting version=%s pid=%d data=%s last_stop=%s", __version__, os.getpid(), data.path, last_stop)
        return data

    def _load_certificate(self, clock: Clock) -> None:
        if self._settings.tls is not None:
            # What is switched off is not imported.
            from courser.server.certificates import Certificate  # noqa: PLC0415

            self._certificate = Certificate(self._settings.tls, self._settings.tcp.host, clock)

    def _make_services(self, broker: Broker, slow_work: Executor) -> Services:
        settings = self._settings
        chooser = CodecChooser(
            settings.connections,
            verify_frames=settings.broker.verify_frames,
            user_name=partial(_user_name, broker),
        )
        return Services(
            begin=Dispatcher(broker).begin,
            choose_codec=chooser.choose,
            reply_sent=broker.reply_sent,
            reply_unread=broker.reply_unread,
            clock=broker.clock,
            settings=settings.connections,
            memory=RequestMemory(settings.connections.request_memory),
            slow_work=slow_work,
        )

    def _make_connections(self, broker: Broker, services: Services) -> Connections:
        settings = self._settings.connections
        connections = Connections(
            settings,
            broker.clock,
            count_max=_connection_count_max(settings.connection_count_max, broker),
            request_memory=services.memory,
            reply_memory=broker.buffers,
        )
        broker.buffers.on_shortage = connections.free_reply_memory
        return connections

    def _make_listener(self, broker: Broker, services: Services, connections: Connections) -> TcpListener:
        return TcpListener(
            self._settings.tcp,
            services,
            connections,
            open_session=broker.sessions.open,
            close_session=broker.sessions.close,
            tls=None if self._certificate is None else self._certificate.context,
        )

    # --- life ---

    async def _serve(self, broker: Broker, signals: Signals) -> None:
        """From the first connection to the last."""
        _calm_garbage_collector()
        sys.setswitchinterval(_SWITCH_INTERVAL)
        slow_work = ThreadPoolExecutor(1, thread_name_prefix="codec")
        services = self._make_services(broker, slow_work)
        connections = self._make_connections(broker, services)
        listener = self._make_listener(broker, services, connections)
        supervisor = Supervisor(broker.clock)
        try:
            address = await self._listen(listener)
            broker.node = Node(_NODE_NAME, address.host, address.port, 0, 0, 0)
            keep_background_tasks(supervisor, broker, connections, self._settings, self._logs)
            self._write_runtime_files(address)
            self._say_where(address)
            await signals.stop.wait()
            listener.close()
            await connections.say_goodbye(self._settings.shutdown_timeout / 1_000_000)
        finally:
            await supervisor.stop()
            listener.close()
            await connections.say_goodbye(0)
            slow_work.shutdown(wait=False, cancel_futures=True)

    async def _listen(self, listener: TcpListener) -> Address:
        tcp = self._settings.tcp
        try:
            return Address(*await listener.start())
        except OSError as error:
            raise AddressRefused(str(Address(tcp.host, tcp.port)), error) from error

    def _write_runtime_files(self, address: Address) -> None:
        directory = self._settings.runtime_directory
        try:
            write_configuration(directory, self._orders.configuration, address)
            if self._certificate is not None:
                write_certificate(directory, self._certificate.pem)
        except OSError as error:
            reason = f"it cannot be written: {error.strerror or error}"
            raise StartRefused(directory, reason, "check system.runtime.path and the space on its disk") from error

    def _say_where(self, address: Address) -> None:
        tls = "off" if self._certificate is None else "on"
        _log.info("listening transport=tcp address=%s tls=%s", address, tls)
        # Whoever started the server may have closed its output, and does not want to know.
        with contextlib.suppress(OSError):
            if self._orders.on_ready is not None:
                self._orders.on_ready(str(address))
                return
            self._orders.announce(
                f"Courser {__version__} listens on {address} (TCP, TLS {tls}). "
                f"Connect with any Iggy SDK: iggy://USER:PASSWORD@{address}"
            )

    def _reload_certificate(self) -> None:
        """On SIGHUP."""
        if self._certificate is None or not self._certificate.is_from_files:
            _log.info("SIGHUP: there are no certificate files to read again")
            return
        try:
            self._certificate.reload()
            write_certificate(self._settings.runtime_directory, self._certificate.pem)
        except StartRefused as refusal:
            _log.error("the old certificate stays in use: %s", refusal)
        except OSError as error:
            _log.error("the new certificate is in use, and not handed out: %s", error)


def _connection_count_max(wanted: int, broker: Broker) -> int:
    file_limit = raise_file_limit()
    count = connection_count_max(wanted, file_limit)
    if count < wanted:
        _log.warning("connections limited to %d, half of the %d files that may be open (ulimit -n)", count, file_limit)
    partition_count = sum(len(topic.partitions) for topic in broker.partitions)
    if needs_more_files(partition_count + count, file_limit):
        _log.warning(
            "%d partitions and %d connections may need more than the %d files that may be open (ulimit -n)",
            partition_count,
            count,
            file_limit,
        )
    return count


def _calm_garbage_collector() -> None:
    """Look for cycles seldom: requests make none, and what the start has made stays for good."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_ALLOCATIONS_BETWEEN_COLLECTIONS, 20, 20)


def _user_name(broker: Broker, user_id: int) -> str | None:
    user = broker.catalog.state.users.get(user_id)
    return None if user is None else user.name
