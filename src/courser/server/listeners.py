"""The listeners of a server: one for each transport that is enabled, with its address and certificate."""

import importlib.util
import logging
import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Protocol

from courser.broker.broker import Broker
from courser.errors import AddressRefused, StartRefused
from courser.handlers.dispatcher import Dispatcher
from courser.handlers.subscriptions import Subscriptions
from courser.model.clock import Clock
from courser.model.messaging import Transport
from courser.model.setting_kinds import Address
from courser.server.configuration.settings import ServerSettings, TlsSettings
from courser.server.system_limits import check_address
from courser.transports.connections import Connections
from courser.transports.services import Services
from courser.transports.tcp import TcpListener

if TYPE_CHECKING:
    from courser.server.certificates import Certificate
    from courser.server.recovery_door import RecoveryDoor
    from courser.transports.http import HttpListener
    from courser.transports.http_commands import HttpServices
    from courser.transports.quic import QuicListener

_log = logging.getLogger(__name__)


class Listener(Protocol):
    """What is needed of a listener, whatever the transport."""

    async def start(self) -> tuple[str, int]:
        """Listen. Return the actual address."""

    def close(self) -> None:
        """Accept nobody any more. May be repeated."""

    def release(self) -> None:
        """Give back what the connections needed until they were gone. May be repeated."""


@dataclass(frozen=True, slots=True)
class Dependencies:
    """What every listener needs."""

    services: Services
    connections: Connections
    dispatcher: Dispatcher
    subscriptions: Subscriptions

    @property
    def broker(self) -> Broker:
        return self.dispatcher.broker


class Listeners:
    """All listeners. The same connection limits, session loop and commands are behind each of them."""

    def __init__(self, settings: ServerSettings) -> None:
        self._wanted: dict[Transport, Address] = {Transport.TCP: Address(settings.tcp.host, settings.tcp.port)}
        self._tls: dict[Transport, TlsSettings | None] = {Transport.TCP: settings.tls}
        if settings.websocket is not None:
            self._wanted[Transport.WEBSOCKET] = Address(settings.websocket.host, settings.websocket.port)
            self._tls[Transport.WEBSOCKET] = settings.websocket_tls
        if settings.quic is not None and _has_quic():
            self._wanted[Transport.QUIC] = Address(settings.quic.host, settings.quic.port)
            self._tls[Transport.QUIC] = settings.quic_certificate
        if settings.http is not None:
            self._wanted[Transport.HTTP] = Address(settings.http.host, settings.http.port)
            self._tls[Transport.HTTP] = settings.http_tls
        self._settings = settings
        self._listeners: list[Listener] = []
        self._quic: list[QuicListener] = []
        self.tcp: TcpListener | None = None
        """Once it is open."""
        self._websocket: TcpListener | None = None
        self._http_services: HttpServices | None = None
        self._http: HttpListener | None = None
        self._recovery_door: RecoveryDoor | None = None
        self.certificates: dict[Transport, Certificate] = {}
        """Of the transports that are encrypted."""

    def prepare(self, clock: Clock) -> None:
        """Check the addresses and load the certificates, without listening.

        Raises:
            AddressRefused: the server cannot listen on an address.
            StartRefused: a certificate cannot be used.
        """
        for transport, address in self._wanted.items():
            check_address(address, _key_of(transport), is_udp=transport is Transport.QUIC)
        if self._settings.quic is not None and Transport.QUIC not in self._wanted:
            _log.warning("not listening for QUIC: install the extra, pip install 'courser[quic]'")
        for transport, tls in self._tls.items():
            if tls is not None:
                # Import it only if TLS is enabled.
                from courser.server.certificates import Certificate  # noqa: PLC0415

                self.certificates[transport] = Certificate(tls, self._wanted[transport].host, clock)

    async def open_recovery_door(self, clock: Clock) -> None:
        """Answer health checks over HTTP until ``open``. Not if any free port will do: nobody knows it yet.

        Raises:
            AddressRefused: the server cannot listen on the address.
        """
        http = self._settings.http
        if http is None or not http.port:
            return
        # Import it only if HTTP is enabled: the library takes a while to load.
        from courser.server.recovery_door import RecoveryDoor  # noqa: PLC0415

        certificate = self.certificates.get(Transport.HTTP)
        tls = None if certificate is None else certificate.context
        self._recovery_door = RecoveryDoor(http, self._settings.connections, clock, tls)
        try:
            await self._recovery_door.open()
        except OSError as error:
            address = self._wanted[Transport.HTTP]
            raise AddressRefused(str(address), error, _key_of(Transport.HTTP)) from error

    async def close_recovery_door(self) -> None:
        """Answer no more health checks. May be repeated."""
        if self._recovery_door is not None:
            door, self._recovery_door = self._recovery_door, None
            await door.close()

    async def open(self, dependencies: Dependencies) -> Mapping[Transport, Address]:
        """Listen on all of them. Return the actual addresses.

        Raises:
            AddressRefused: the server cannot listen on an address.
            StorageFailure: the access tokens of HTTP cannot be read.
        """
        addresses = {}
        if self._settings.http is not None:
            # Import it only if HTTP is enabled: the library takes a while to load.
            from courser.server.http_assembly import make_http_services  # noqa: PLC0415

            self._http_services = await make_http_services(
                self._settings, dependencies.dispatcher, dependencies.subscriptions, dependencies.services
            )
        for transport, wanted in self._wanted.items():
            listener = self._make(transport, dependencies)
            self._listeners.append(listener)
            if transport is Transport.HTTP:
                await self.close_recovery_door()
            try:
                address = addresses[transport] = Address(*await listener.start())
            except OSError as error:
                raise AddressRefused(str(wanted), error, _key_of(transport)) from error
            self._log_address(transport, address)
        quic, http = addresses.get(Transport.QUIC), addresses.get(Transport.HTTP)
        if quic is not None and http is not None and quic != http:
            await self._open_quic_beside_http(dependencies, http)
        return addresses

    def _log_address(self, transport: Transport, address: Address) -> None:
        tls = "on" if transport in self.certificates else "off"
        _log.info("listening transport=%s address=%s tls=%s", name_of(transport), address, tls)

    async def _open_quic_beside_http(self, dependencies: Dependencies, address: Address) -> None:
        """Serve QUIC on the address of HTTP too: one is a UDP port, and the other a TCP port.

        A port that is taken is no reason not to start, because clients find QUIC at its own address.
        """
        listener = self._make_quic(dependencies, address)
        try:
            await listener.start()
        except OSError as error:
            _log.warning("not listening for QUIC on %s, the address of HTTP: %s", address, error)
            return
        self._listeners.append(listener)
        self._log_address(Transport.QUIC, address)

    def close(self) -> None:
        """Accept nobody any more. May be repeated."""
        for listener in self._listeners:
            listener.close()

    def release(self) -> None:
        """All connections are gone. May be repeated."""
        for listener in self._listeners:
            listener.release()

    @property
    def http_connection_count(self) -> int:
        """Open connections over HTTP."""
        return 0 if self._http is None else self._http.connection_count

    def reload_certificates(self) -> bool:
        """Load the certificates from their files again. Returns whether there are any files."""
        has_files = False
        for transport, certificate in self.certificates.items():
            if certificate.is_from_files:
                has_files = True
                try:
                    certificate.reload()
                    for listener in self._quic if transport is Transport.QUIC else ():
                        listener.use_certificate(certificate.pem, certificate.key_pem)
                except (StartRefused, ValueError) as refusal:
                    _log.error("could not reload the certificate; keeping the old one: %s", refusal)
        return has_files

    def _make(self, transport: Transport, dependencies: Dependencies) -> Listener:
        certificate = self.certificates.get(transport)
        tls = None if certificate is None else certificate.context
        services, connections = dependencies.services, dependencies.connections
        sessions = dependencies.broker.sessions
        if transport is Transport.TCP:
            self.tcp = TcpListener(
                self._settings.tcp,
                services,
                connections,
                sessions=sessions,
                tls=tls,
            )
            return self.tcp
        if transport is Transport.QUIC:
            return self._make_quic(dependencies, self._wanted[transport])
        if transport is Transport.HTTP:
            # Import it only if HTTP is enabled: the library takes a while to load.
            from courser.server.http_assembly import make_http_listener  # noqa: PLC0415

            assert self._http_services is not None, "made before"
            upgrade = None if self._websocket is None else self._websocket.adopt
            self._http = make_http_listener(self._settings, self._http_services, connections, tls=tls, upgrade=upgrade)
            return self._http
        self._websocket = self._make_websocket(dependencies, tls)
        return self._websocket

    def _make_websocket(self, dependencies: Dependencies, tls: ssl.SSLContext | None) -> TcpListener:
        # Import it only if WebSocket is enabled: the library takes a while to load.
        from courser.transports.subscription_loop import SubscriptionServices  # noqa: PLC0415
        from courser.transports.websocket import assemble_websocket  # noqa: PLC0415

        assert self._settings.websocket is not None
        services, broker, http = dependencies.services, dependencies.broker, self._http_services
        subscribing = SubscriptionServices(
            services,
            dependencies.subscriptions,
            None if http is None else http.tokens,
            None if http is None else http.check_token,
        )
        return TcpListener(
            self._settings.websocket,
            services,
            dependencies.connections,
            sessions=broker.sessions,
            tls=tls,
            transport=Transport.WEBSOCKET,
            assemble=partial(assemble_websocket, subscribing=subscribing),
        )

    def _make_quic(self, dependencies: Dependencies, address: Address) -> "QuicListener":
        # Import it only if QUIC is enabled: the library is an extra.
        from courser.server.certificates import is_p256  # noqa: PLC0415
        from courser.transports.quic import QuicListener, QuicServices  # noqa: PLC0415

        assert self._settings.quic is not None
        certificate = self.certificates[Transport.QUIC]
        if not self._quic and not is_p256(certificate.pem):
            _log.warning("Iggy's SDKs accept only P-256 certificates over QUIC unless they validate certificates")
        shared = QuicServices(
            dependencies.services,
            dependencies.connections,
            dependencies.broker.sessions,
            os.urandom,
        )
        settings = replace(self._settings.quic, host=address.host, port=address.port)
        listener = QuicListener(settings, shared, certificate.pem, certificate.key_pem)
        self._quic.append(listener)
        return listener


def _has_quic() -> bool:
    return importlib.util.find_spec("qh3") is not None


def name_of(transport: Transport) -> str:
    """The name of a transport, as in the configuration."""
    return transport.name.lower()


def _key_of(transport: Transport) -> str:
    return f"{name_of(transport)}.address"
