"""The server: creates all components, starts them in order, and stops them in reverse order."""

import asyncio
import contextlib
import logging
import os
import random
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from courser import __version__
from courser.api.replies import Node
from courser.broker.access.credentials import Passwords
from courser.broker.access.sessions import Session
from courser.broker.broker import ALONE, Broker, RootUser
from courser.catalog.rules import ROOT_USER_ID
from courser.configuration.loading import Configuration
from courser.errors import CourserError, DiskFull, StartRefused
from courser.handlers.dispatcher import Dispatcher
from courser.handlers.subscriptions import Subscriptions
from courser.model.messaging import Transport
from courser.model.setting_kinds import Address
from courser.records.encryption import key_name
from courser.server.assembly import calm_process, make_codec_chooser, make_connections, make_services
from courser.server.background import BackgroundTasks, keep_background_tasks
from courser.server.configuration.effective import list_settings, to_toml
from courser.server.configuration.settings import ServerSettings
from courser.server.listeners import Dependencies, Listeners, name_of
from courser.server.logs import Logs
from courser.server.root_user import RootCredentials
from courser.server.signals import Signals
from courser.server.system_limits import (
    explain_file_limit,
    raise_file_limit,
)
from courser.storage.data_directory import DataDirectory
from courser.storage.durable_files import storage_failure
from courser.storage.paths import SESSION

if TYPE_CHECKING:
    from courser.server.crew import Crew
    from courser.server.telemetry import Telemetry

_log = logging.getLogger(__name__)

_NODE_NAME = "iggy-node"
"""The same name that Iggy reports."""
CONFIGURATION_FILE = "current_config.toml"
_CONFIGURATION_HEAD = "# The effective configuration of the last started server, for information only.\n"


@dataclass(frozen=True, slots=True)
class Listening:
    """A server that accepts connections, as those who started it need to know it."""

    address: str
    """``host:port``."""
    url: str
    """The connection string, without a login."""
    is_first_start: bool
    username: str
    """The root user."""
    console_url: str | None = field(repr=False)
    """A link that opens the console and logs in the root user, once. None: there is no console."""
    password: str | None = field(repr=False)
    """None if the configured password is not that of the root user, who was created at an earlier start."""


@dataclass(frozen=True, slots=True)
class Orders:
    """Everything a server needs to know before it starts."""

    configuration: Configuration
    settings: ServerSettings
    root: RootCredentials
    announce: Callable[[str], None]
    """Shows text to the user who started the server. The text is never logged."""
    on_ready: Callable[[Listening], None] | None = None
    """Called once the server accepts connections; replaces the usual announcement."""


class Server:
    """One server over one data directory. ``run`` starts, serves and stops."""

    def __init__(self, orders: Orders, logs: Logs) -> None:
        self._orders = orders
        self._settings = orders.settings
        self._logs = logs
        self._listeners = Listeners(orders.settings)
        self._is_first_start = False
        self._telemetry: Telemetry | None = None
        self._crew: Crew | None = None
        """The other processes, if there are any."""

    async def run(self) -> bool:
        """Start, serve until a signal requests a stop, and stop. Return whether the stop was clean.

        Raises:
            StartRefused, StorageFailure: the data directory cannot be opened.
            AddressRefused: the server cannot listen on the address.
        """
        # First of all: the start itself needs descriptors.
        raise_file_limit()
        try:
            return await self._run()
        except (CourserError, OSError) as error:
            refusal = explain_file_limit(error, self._settings.data_directory)
            if refusal is None:
                raise
            raise refusal from error

    async def _run(self) -> bool:
        self._telemetry = _start_telemetry(self._settings)
        try:
            return await self._run_broker()
        finally:
            if self._telemetry is not None:
                await self._telemetry.close()

    async def _run_broker(self) -> bool:
        signals = Signals(on_hang_up=self._reload_certificates)
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
            await self._listeners.close_recovery_door()
            signals.close()
        return is_clean

    # --- start ---

    async def _open_broker(self) -> Broker:
        data = self._take_directory()
        try:
            # Check this early: a first start shows a password, and a server that cannot listen must not get that far.
            self._listeners.prepare(data.clock)
            await self._listeners.open_recovery_door(data.clock)
        except CourserError:
            data.close(is_clean=False)
            raise
        orders = self._orders

        def make_root() -> RootUser:
            self._is_first_start = True
            return orders.root.make(orders.announce)

        if self._settings.process_count > 1:
            # Import it only if it is needed: one process is the usual case.
            from courser.server.crew import Crew  # noqa: PLC0415

            self._crew = Crew(self._settings, data)
            # They get their share of the limits, and so does this process.
            self._settings = self._crew.settings
        try:
            place = ALONE if self._crew is None else self._crew.place
            broker = await Broker.open(data, self._settings.broker, make_root=make_root, place=place)
        except BaseException:
            if self._crew is not None:
                await self._crew.abandon()
            raise
        if not self._is_first_start and not orders.root.is_generated:
            # Explains to an operator why the credentials that were just configured do not work.
            _log.info("the root user already exists; ignoring the configured root credentials")
        broker.operating.diagnosis.read_configuration = partial(masked_configuration, orders.configuration)
        broker.operating.diagnosis.list_settings = partial(list_settings, orders.configuration)
        broker.operating.diagnosis.read_logs = self._logs.newest
        broker.operating.diagnosis.list_log_lines = self._logs.ring.after
        return broker

    def _take_directory(self) -> DataDirectory:
        directory = self._settings.data_directory
        if not directory.exists():
            # This is a first start, and it would fail later: then it creates nothing.
            self._orders.root.check()
        try:
            is_first_start = not (directory / SESSION).exists()
            data = DataDirectory.open(directory)
        except OSError as error:
            reason = f"cannot use it as the data directory: {error.strerror or error}"
            remedy = "choose a writable directory: system.path for courser serve, --data for courser dev"
            raise StartRefused(directory, reason, remedy) from error
        # Not earlier: without the lock, the log files might belong to another running server.
        self._logs.open_file()
        last_stop = "none" if is_first_start else data.stop.name.lower()
        _log.info("starting version=%s pid=%d data=%s last_stop=%s", __version__, os.getpid(), data.path, last_stop)
        encryption = self._settings.broker.encryption
        if encryption is not None:
            _log.info("new messages are encrypted on disk key=%s", key_name(encryption.key.key_id))
        return data

    # --- life ---

    async def _serve(self, broker: Broker, signals: Signals) -> None:
        """Accept connections until a signal requests a stop."""
        calm_process()
        slow_work = ThreadPoolExecutor(1, thread_name_prefix="codec")
        chooser = make_codec_chooser(self._settings, broker)
        dispatcher = Dispatcher(broker) if self._crew is None else self._crew.make_router(broker, chooser)
        begin = dispatcher.begin if self._telemetry is None else self._telemetry.traced(dispatcher.begin)
        services = make_services(self._settings, broker, chooser, begin, slow_work)
        slots = None if self._crew is None else self._crew.slots
        connections = make_connections(
            self._settings, broker, services, lambda: self._listeners.http_connection_count, slots
        )
        dependencies = Dependencies(services, connections, dispatcher, Subscriptions(dispatcher))
        background = BackgroundTasks(broker.clock)
        try:
            addresses = await self._listeners.open(dependencies)
            broker.node = _node(addresses)
            keep_background_tasks(background, broker, connections, self._settings, self._logs, self._is_member)
            if self._crew is not None:
                self._crew.begin(connections, self._listeners, broker.node)
            if self._telemetry is not None and self._settings.telemetry is not None:
                export = partial(_export_metrics, self._telemetry, broker)
                background.every(self._settings.telemetry.metrics_interval, "telemetry", export)
            self._write_runtime_files(addresses)
            self._say_where(addresses, broker)
            await signals.stop.wait()
            if self._crew is not None:
                # One that is started again could not listen any more.
                self._crew.end_restarts()
            self._listeners.close()
            grace = self._settings.shutdown_timeout / 1_000_000
            await asyncio.gather(connections.say_goodbye(grace), self._say_goodbye_in_peers(grace))
        finally:
            await background.stop()
            self._listeners.close()
            await connections.say_goodbye(0)
            self._listeners.release()
            slow_work.shutdown(wait=False, cancel_futures=True)

    @property
    def _is_member(self) -> Callable[[Session], bool] | None:
        return None if self._crew is None else self._crew.is_member

    async def _say_goodbye_in_peers(self, grace: float) -> None:
        if self._crew is not None:
            await self._crew.say_goodbye(grace)

    def _write_runtime_files(self, addresses: Mapping[Transport, Address]) -> None:
        directory = self._settings.runtime_directory
        try:
            # The configuration comes last: whoever waits for it finds the certificates too.
            self._write_certificates()
            write_configuration(directory, self._orders.configuration, addresses)
        except OSError as error:
            if isinstance(storage_failure("write", directory, error), DiskFull):
                # Messages can be read on a full disk, and it takes a server to make room.
                _log.error("could not write the runtime files, because the disk is full path=%s", directory)
                return
            reason = f"cannot write to it: {error.strerror or error}"
            raise StartRefused(directory, reason, "check system.runtime.path") from error

    def _write_certificates(self) -> None:
        for transport, certificate in self._listeners.certificates.items():
            write_certificate(self._settings.runtime_directory, certificate.pem, transport)

    def _say_where(self, addresses: Mapping[Transport, Address], broker: Broker) -> None:
        address, console = addresses[Transport.TCP], addresses.get(Transport.HTTP)
        tls = "on" if Transport.TCP in self._listeners.certificates else "off"
        # The output may already be closed; that is no reason to fail.
        with contextlib.suppress(OSError):
            if self._orders.on_ready is not None:
                self._orders.on_ready(self._describe(address, broker, console))
                return
            self._orders.announce(
                f"Courser {__version__} listens on {address} (TCP, TLS {tls}). "
                f"Connect with any Iggy SDK: iggy://USER:PASSWORD@{address}{self._url_options()}"
            )

    def _describe(self, address: Address, broker: Broker, http: Address | None) -> Listening:
        user, root = broker.catalog.state.users[ROOT_USER_ID], self._orders.root
        is_same = user.name == root.name and Passwords().is_right(root.password, user.password_hash)
        return Listening(
            str(address),
            f"iggy://{address}{self._url_options()}",
            self._is_first_start,
            user.name,
            None if http is None else self._console_link(http, broker),
            root.password if is_same else None,
        )

    def _console_link(self, address: Address, broker: Broker) -> str | None:
        """For whoever has started the server, and so may do everything with it anyway."""
        settings = self._settings.http
        if settings is None or settings.console is None:
            return None
        user = broker.catalog.state.users[ROOT_USER_ID]
        token, _ = broker.authentication.one_time_tokens.create(user, None)
        scheme = "http" if self._settings.http_tls is None else "https"
        return f"{scheme}://{address}{settings.console.base_path}/ui/#login={token}"

    def _url_options(self) -> str:
        """The options that a client needs in its connection string."""
        certificate = self._listeners.certificates.get(Transport.TCP)
        if certificate is None:
            return ""
        if certificate.is_from_files:
            return "?tls=true"
        # No authority vouches for a generated certificate: a client has to trust the certificate itself.
        path = (self._settings.runtime_directory / certificate_file(Transport.TCP)).absolute()
        return f"?tls=true&tls_ca_file={quote(str(path))}"

    def _reload_certificates(self) -> None:
        if not self._listeners.reload_certificates():
            _log.info("received SIGHUP, but no certificate files are configured; nothing to reload")
            return
        if self._crew is not None and (certificate := self._listeners.certificates.get(Transport.TCP)) is not None:
            self._crew.use_certificate(certificate.key_pem + certificate.pem)
        try:
            self._write_certificates()
        except OSError as error:
            _log.error("reloaded the certificate, but could not write the copy for clients: %s", error)


async def _export_metrics(telemetry: "Telemetry", broker: Broker) -> None:
    await telemetry.export_metrics(await broker.operating.scrapes.families())


def _node(addresses: Mapping[Transport, Address]) -> Node:
    """This server, as clients find it in the metadata of a cluster. A transport that is disabled has port 0."""
    ports = {transport: address.port for transport, address in addresses.items()}
    return Node(
        _NODE_NAME,
        addresses[Transport.TCP].host,
        tcp_port=ports[Transport.TCP],
        quic_port=ports.get(Transport.QUIC, 0),
        http_port=ports.get(Transport.HTTP, 0),
        websocket_port=ports.get(Transport.WEBSOCKET, 0),
    )


def _start_telemetry(settings: ServerSettings) -> "Telemetry | None":
    if settings.telemetry is None:
        return None
    # Import it only if it is enabled: the libraries are an extra.
    from courser.server.telemetry import Telemetry  # noqa: PLC0415

    return Telemetry(settings.telemetry, random.random)


# --- files for other programs ---


def write_configuration(directory: Path, configuration: Configuration, addresses: Mapping[Transport, Address]) -> None:
    """Publish the effective configuration, with the ports on which the server actually listens."""
    texts = {name_of(transport): str(address) for transport, address in addresses.items()}
    _replace(
        directory / CONFIGURATION_FILE, f"{_CONFIGURATION_HEAD}\n{to_toml(configuration, addresses=texts)}".encode()
    )


def certificate_file(transport: Transport) -> str:
    """The name of the file with the certificate of a transport."""
    return f"{name_of(transport)}_certificate.pem"


def write_certificate(directory: Path, pem: bytes, transport: Transport = Transport.TCP) -> None:
    """Publish the certificate, for clients that need to trust it."""
    _replace(directory / certificate_file(transport), pem)


def masked_configuration(configuration: Configuration) -> bytes:
    """The effective configuration with its sources, for a diagnosis."""
    return to_toml(configuration, with_sources=True).encode()


def _replace(path: Path, data: bytes) -> None:
    """Replace a file atomically. Not synced: after a crash the file is not needed."""
    path.parent.mkdir(0o700, parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.tmp")
    try:
        _write(temporary, data)
    except OSError:
        # The old one describes another server. On a full disk, its room may be all there is.
        path.unlink(missing_ok=True)
        _write(temporary, data)
    temporary.replace(path)


def _write(path: Path, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
    except OSError:
        path.unlink(missing_ok=True)
        raise
