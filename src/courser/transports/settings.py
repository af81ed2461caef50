"""The settings of connections and sockets."""

from dataclasses import dataclass, field

from courser.records.classic import Dialect

_SECOND = 1_000_000
_KIB = 1024
_MIB = 1024 * _KIB


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionSettings:
    """Limits for the connections of all transports."""

    connection_count_max: int = 10_000
    """Maximum number of connections; fewer if the process may not open that many files."""
    login_deadline: int = 30 * _SECOND
    """Microseconds after which a connection without a login is closed, whatever it has sent."""
    handshake_deadline: int = 10 * _SECOND
    """Microseconds that a TLS or QUIC handshake may take, however the client sends it."""
    idle_deadline: int = 0
    """Microseconds without a request after which a connection is closed; 0 means never. SDKs ping every 5 seconds."""
    frame_deadline: int = 30 * _SECOND
    """Microseconds that a request may fall behind ``frame_rate_min`` while it is received."""
    frame_rate_min: int = 64 * _KIB
    """Minimum rate in bytes per second. Clients that send or read more slowly are disconnected."""
    send_deadline: int = 60 * _SECOND
    """Microseconds that a client may fall behind ``frame_rate_min`` while it reads its reply."""
    login_frame_size_max: int = 16 * _KIB
    """Maximum size in bytes of a frame before a login, so that strangers get little memory."""
    frame_size_max: int = 66 * _MIB
    """Maximum size in bytes of any frame. Slightly above the protocols' own limits, so that their errors come first."""
    request_memory: int = 512 * _MIB
    """Bytes that all requests may reserve which are larger than the base buffer of a connection. One may overdraw."""
    reply_memory: int = 512 * _MIB
    """Bytes of all replies in flight. Beyond that, the clients that have not read for longest are disconnected."""
    classic_dialect: Dialect = Dialect.SDK_0_8
    """The release to assume for a classic client that does not reveal it."""
    classic_dialects: dict[str, Dialect] = field(default_factory=dict)
    """The release to assume for clients that log in by token, by user name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SocketSettings:
    """Socket options. None means the system's default."""

    receive_buffer_size: int | None = None
    """Bytes."""
    send_buffer_size: int | None = None
    """Bytes."""
    keepalive: bool = False
    nodelay: bool = True
    """Whether small replies are sent at once."""
    linger: int | None = None
    """Seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuicSettings:
    """Where to listen for QUIC."""

    host: str = "127.0.0.1"
    port: int = 8080
    """0 takes any free one."""
    idle_timeout: int = 30 * _SECOND
    """Microseconds without any datagram after which a connection is over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TcpSettings:
    """Where to listen."""

    host: str = "127.0.0.1"
    port: int = 8090
    """0 selects a free port."""
    socket: SocketSettings = field(default_factory=SocketSettings)


@dataclass(frozen=True, slots=True, kw_only=True)
class CorsSettings:
    """Which pages of other origins a browser lets use the server."""

    origins: tuple[str, ...] = ("*",)
    """``*`` first: all."""
    methods: tuple[str, ...] = ("GET", "POST", "PUT", "DELETE")
    headers: tuple[str, ...] = ("content-type", "authorization")
    exposed_headers: tuple[str, ...] = ()
    allows_credentials: bool = False
    allows_private_network: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleSettings:
    """The web console."""

    is_read_only: bool = False
    """Whether requests of the console may change nothing, whoever is logged in."""
    base_path: str = ""
    """What a proxy puts before every path, such as ``/courser``; empty: nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpSettings:
    """Where to listen for HTTP, and what to answer."""

    host: str = "127.0.0.1"
    port: int = 3000
    """0 takes any free one."""
    request_size_max: int = 2_000_000
    """Bytes of a body."""
    metrics_path: str | None = "/metrics"
    """None: metrics are not served."""
    cors: CorsSettings | None = field(default_factory=CorsSettings)
    """None: browsers let no page of another origin in."""
    console: ConsoleSettings | None = field(default_factory=ConsoleSettings)
    """None: the web console is not served."""
