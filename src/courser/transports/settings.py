"""Settings of connections and sockets, each with the key of the configuration that sets it.

Durations are in microseconds.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from courser.broker.settings import BrokerSettings
from courser.configuration.key import Key, key_of, setting, value_of
from courser.configuration.loading import Configuration
from courser.model import setting_kinds as kinds
from courser.model.quantities import SECOND
from courser.model.setting_kinds import Address, SettingKind, checked_text, quoted
from courser.records.classic import Dialect

_KIB = 1024
_MIB = 1024 * _KIB


# --- dialects of old clients --------------------------------------------------------------------------

_DIALECT_WORDS = ", ".join(quoted(dialect.value) for dialect in Dialect)


def _dialect(value: object) -> Dialect:
    return Dialect(checked_text(value).strip())


def _dialects_from_toml(value: object) -> Mapping[str, Dialect]:
    if not isinstance(value, dict):
        return _dialects_from_text(checked_text(value))
    return {str(user): _dialect(dialect) for user, dialect in value.items()}


def _dialects_from_text(text: str) -> Mapping[str, Dialect]:
    pairs = [pair.rpartition("=") for pair in text.split(",") if pair.strip()]
    if not all(user.strip() and equals for user, equals, _ in pairs):
        raise ValueError(text)
    return {user.strip(): _dialect(dialect) for user, _, dialect in pairs}


def _dialects_to_toml(value: Mapping[str, Dialect]) -> str:
    pairs = ", ".join(f"{quoted(user)} = {quoted(dialect.value)}" for user, dialect in value.items())
    return f"{{ {pairs} }}" if pairs else "{}"


DIALECT = SettingKind("word", f"one of {_DIALECT_WORDS}", _dialect, _dialect, lambda value: quoted(value.value))
DIALECTS = SettingKind(
    "table",
    f'a table of user names with one of {_DIALECT_WORDS} each, or a text such as "alice=0.6,bob=0.5"',
    _dialects_from_toml,
    _dialects_from_text,
    _dialects_to_toml,
)


# --- TCP, and the connections of all transports ------------------------------------------------------


TCP_ENABLED = Key("tcp.enabled", kinds.BOOL, True, "whether to listen on TCP")
TCP_ADDRESS = Key(
    "tcp.address",
    kinds.ADDRESS,
    Address("127.0.0.1", 8090),
    "the address to listen on; port 0 picks a free port",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionSettings:
    """Limits for the connections of all transports."""

    connection_count_max: int = setting(
        "tcp.connection_count_max",
        kinds.integer(1, 1_000_000),
        10_000,
        "maximum concurrent connections; fewer if the process may not open that many files. At the limit, "
        "connections without a login make room for new ones",
    )
    login_deadline: int = setting(
        "tcp.login_deadline",
        kinds.duration(SECOND),
        30 * SECOND,
        "how long a connection may stay open without a login, whatever it sends",
    )
    handshake_deadline: int = 10 * SECOND
    """How long a TLS or QUIC handshake may take, however the client sends it."""
    idle_deadline: int = setting(
        "tcp.idle_deadline",
        kinds.duration(SECOND, or_zero=True),
        0,
        "how long any connection may be idle; 0 means forever. SDKs ping every 5 seconds",
    )
    frame_deadline: int = setting(
        "tcp.frame_deadline",
        kinds.duration(SECOND),
        30 * SECOND,
        "how far a request may fall behind `tcp.frame_rate_min` while it is being received",
    )
    frame_rate_min: int = setting(
        "tcp.frame_rate_min",
        kinds.size(1),
        64 * _KIB,
        "bytes per second: slower senders and readers are disconnected",
    )
    send_deadline: int = setting(
        "tcp.send_deadline",
        kinds.duration(SECOND),
        60 * SECOND,
        "how far a client may fall behind `tcp.frame_rate_min` in reading its reply",
    )
    login_frame_size_max: int = setting(
        "tcp.login_frame_size_max",
        kinds.size(1024, 64 * _MIB),
        16 * _KIB,
        "maximum bytes of a request before a login",
    )
    frame_size_max: int = setting(
        "tcp.frame_size_max",
        kinds.size(64 * 1024, 66 * _MIB),
        66 * _MIB,
        "maximum bytes of any request; the protocols themselves allow 64 MiB of messages",
    )
    """Slightly above the protocols' own limits, so that their errors come first."""
    request_memory: int = setting(
        "tcp.request_memory",
        kinds.size(_MIB),
        512 * _MIB,
        "memory in bytes for large requests of all connections; when it is used up, requests wait and the "
        "slowest senders are disconnected",
    )
    """Reserved by requests that are larger than the base buffer of a connection. One may overdraw."""
    reply_memory: int = value_of(key_of(BrokerSettings, "reply_memory"))
    classic_dialect: Dialect = setting(
        "tcp.classic_dialect",
        DIALECT,
        Dialect.SDK_0_8,
        "the SDK release to assume for a client of 0.5 to 0.8 until its requests show the actual one",
    )
    classic_dialects: Mapping[str, Dialect] = setting(
        "tcp.classic_dialects",
        DIALECTS,
        {},
        "the same by user name, or `*` for all others: for clients that do not report their release at login",
    )


# --- sockets -----------------------------------------------------------------------------------------

SOCKET_OVERRIDE = Key(
    "tcp.socket.override_defaults",
    kinds.BOOL,
    False,
    "whether the other keys of this table are used",
)
WEBSOCKET_ENABLED = Key(
    "websocket.enabled",
    kinds.BOOL,
    True,
    "whether to serve the binary protocol and subscriptions over WebSocket, here and on `http.address`, "
    "with the limits of the table `tcp`",
)
WEBSOCKET_ADDRESS = Key(
    "websocket.address",
    kinds.ADDRESS,
    Address("127.0.0.1", 8092),
    "the address to listen on; port 0 picks a free port",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SocketSettings:
    """Socket options that replace the usual ones."""

    receive_buffer_size: int = setting(
        "tcp.socket.recv_buffer_size",
        kinds.size(1, 2**31 - 1),
        100_000,
        "size of the kernel's receive buffer in bytes",
    )
    send_buffer_size: int = setting(
        "tcp.socket.send_buffer_size",
        kinds.size(1, 2**31 - 1),
        100_000,
        "size of the kernel's send buffer in bytes",
    )
    keepalive: bool = setting("tcp.socket.keepalive", kinds.BOOL, False, "whether the kernel probes idle connections")
    nodelay: bool = setting(
        "tcp.socket.nodelay",
        kinds.BOOL,
        False,
        "whether to send small replies at once; always true unless `override_defaults` is on",
    )
    linger: int = setting(
        "tcp.socket.linger",
        kinds.duration(),
        0,
        "how long the kernel keeps sending after a close, in whole seconds; 0 means the kernel's default",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TcpSettings:
    """Where the TCP transport listens, and how."""

    host: str = TCP_ADDRESS.default.host
    port: int = TCP_ADDRESS.default.port
    """0 selects a free port."""
    socket: SocketSettings | None = None
    """None: the kernel's buffers, no probes, and small replies are sent at once."""


def tcp_settings(configuration: Configuration) -> TcpSettings:
    """Where to listen on TCP."""
    address = configuration[TCP_ADDRESS]
    socket = configuration.fill(SocketSettings) if configuration[SOCKET_OVERRIDE] else None
    return TcpSettings(host=address.host, port=address.port, socket=socket)


def websocket_settings(configuration: Configuration) -> TcpSettings | None:
    """Where to listen for WebSocket. None: nowhere."""
    if not configuration[WEBSOCKET_ENABLED]:
        return None
    address = configuration[WEBSOCKET_ADDRESS]
    return TcpSettings(host=address.host, port=address.port)


# --- QUIC ---------------------------------------------------------------------------------------------

QUIC_ENABLED = Key(
    "quic.enabled",
    kinds.BOOL,
    False,
    "whether to serve the binary protocol over QUIC, here and on the UDP port of `http.address`, with the "
    "limits of the table `tcp`; requires the extra `quic` (Iggy: true)",
)
QUIC_ADDRESS = Key(
    "quic.address",
    kinds.ADDRESS,
    Address("127.0.0.1", 8080),
    "the UDP address to listen on; port 0 picks a free port",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class QuicSettings:
    """Where to listen for QUIC."""

    host: str = QUIC_ADDRESS.default.host
    port: int = QUIC_ADDRESS.default.port
    """0 takes any free one."""
    idle_timeout: int = setting(
        "quic.max_idle_timeout",
        kinds.duration(SECOND),
        30 * SECOND,
        "how long a connection stays open without any datagram from the client (Iggy 0.8: 10s)",
    )


def quic_settings(configuration: Configuration) -> QuicSettings | None:
    """Where to listen for QUIC. None: nowhere."""
    if not configuration[QUIC_ENABLED]:
        return None
    address = configuration[QUIC_ADDRESS]
    return configuration.fill(QuicSettings, host=address.host, port=address.port)


# --- HTTP ---------------------------------------------------------------------------------------------

HTTP_ENABLED = Key("http.enabled", kinds.BOOL, True, "whether to listen for HTTP")
HTTP_ADDRESS = Key(
    "http.address",
    kinds.ADDRESS,
    Address("127.0.0.1", 3000),
    "the address to listen on; port 0 picks a free port",
)
CORS_ENABLED = Key(
    "http.cors.enabled",
    kinds.BOOL,
    True,
    "whether pages of other origins may use the server from a browser",
)
METRICS_ENABLED = Key("http.metrics.enabled", kinds.BOOL, True, "whether metrics for Prometheus are served")
METRICS_ENDPOINT = Key(
    "http.metrics.endpoint",
    kinds.TEXT,
    "/metrics",
    "the path of the metrics, which needs no login",
)
UI_ENABLED = Key("ui.enabled", kinds.BOOL, True, "whether the web console is served at `/ui`")


@dataclass(frozen=True, slots=True, kw_only=True)
class CorsSettings:
    """Which pages of other origins a browser lets use the server."""

    methods: tuple[str, ...] = setting(
        "http.cors.allowed_methods", kinds.WORDS, ("GET", "POST", "PUT", "DELETE"), "the methods that they may use"
    )
    origins: tuple[str, ...] = setting(
        "http.cors.allowed_origins",
        kinds.WORDS,
        ("*",),
        "the origins that are allowed; `*` means all",
    )
    """``*`` first: all."""
    headers: tuple[str, ...] = setting(
        "http.cors.allowed_headers",
        kinds.WORDS,
        ("content-type", "authorization"),
        "the headers that they may send",
    )
    exposed_headers: tuple[str, ...] = setting(
        "http.cors.exposed_headers", kinds.WORDS, (), "the headers of replies that they may read"
    )
    allows_credentials: bool = setting(
        "http.cors.allow_credentials",
        kinds.BOOL,
        False,
        "whether browsers may send credentials of their own",
    )
    allows_private_network: bool = setting(
        "http.cors.allow_private_network",
        kinds.BOOL,
        False,
        "whether pages of public origins may use a server in a private network",
    )


def _base_path(value: object) -> str:
    # It becomes part of a cookie, where a semicolon or a space would end it.
    if isinstance(value, str) and re.fullmatch(r"(/[A-Za-z0-9._~-]+)*", value):
        return value
    raise ValueError(value)


_BASE_PATH = SettingKind(
    "path",
    'a path such as "/courser", of letters, digits and `._~-`, without a slash at its end; or an empty text',
    _base_path,
    _base_path,
    quoted,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleSettings:
    """How the web console is served."""

    is_read_only: bool = setting(
        "ui.read_only", kinds.BOOL, False, "whether the web console may change nothing, whoever is logged in"
    )
    base_path: str = setting(
        "ui.base_path",
        _BASE_PATH,
        "",
        "the path under which a proxy shows the server, such as `/courser`; empty means none",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpSettings:
    """Where to listen for HTTP, and what to answer."""

    host: str = HTTP_ADDRESS.default.host
    port: int = HTTP_ADDRESS.default.port
    """0 takes any free one."""
    request_size_max: int = setting(
        "http.max_request_size",
        kinds.size(1024, 64 * 1024 * 1024),
        2_000_000,
        "maximum bytes of the body of a request",
    )
    metrics_path: str | None = value_of(METRICS_ENDPOINT)
    """None: metrics are not served."""
    cors: CorsSettings | None = field(default_factory=CorsSettings)
    """None: browsers let no page of another origin in."""
    console: ConsoleSettings | None = field(default_factory=ConsoleSettings)
    """None: the web console is not served."""


def http_settings(configuration: Configuration) -> HttpSettings | None:
    """Where to listen for HTTP. None: nowhere."""
    if not configuration[HTTP_ENABLED]:
        return None
    address = configuration[HTTP_ADDRESS]
    return configuration.fill(
        HttpSettings,
        host=address.host,
        port=address.port,
        metrics_path=configuration[METRICS_ENDPOINT] if configuration[METRICS_ENABLED] else None,
        cors=configuration.fill(CorsSettings) if configuration[CORS_ENABLED] else None,
        console=configuration.fill(ConsoleSettings) if configuration[UI_ENABLED] else None,
    )
