"""Settings of connections. Each has a unit and a reason."""

from dataclasses import dataclass, field

from courser.records.classic import Dialect

_SECOND = 1_000_000
_KIB = 1024
_MIB = 1024 * _KIB


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionSettings:
    """Limits for every connection of any transport."""

    connection_count_max: int = 10_000
    """Open connections; fewer if the process may not open that many files."""
    login_deadline: int = 30 * _SECOND
    """Microseconds without a request after which a connection without a login is closed."""
    idle_deadline: int = 0
    """Microseconds without a request after which any connection is closed; 0 is never. SDKs ping every 5 seconds."""
    frame_deadline: int = 30 * _SECOND
    """Microseconds that a frame may take, in addition to the time for its bytes at ``frame_rate_min``."""
    frame_rate_min: int = 64 * _KIB
    """Bytes per second: connections of slower senders and readers are closed."""
    send_deadline: int = 60 * _SECOND
    """Microseconds that a client may leave its reply unread, in addition to the time for the bytes that it reads."""
    login_frame_size_max: int = 16 * _KIB
    """Bytes of a frame before a login: unknown clients get little memory."""
    frame_size_max: int = 66 * _MIB
    """Bytes of any frame. Slightly above the limits of the protocols, so that these send their own error replies."""
    request_memory: int = 512 * _MIB
    """Bytes of all requests that are larger than a connection's own buffer; others have to wait."""
    reply_memory: int = 512 * _MIB
    """Bytes of all unread replies: above this, the connections that have not read for longest are closed."""
    classic_dialect: Dialect = Dialect.SDK_0_8
    """The assumed release of a classic client that does not reveal it."""
    classic_dialects: dict[str, Dialect] = field(default_factory=dict)
    """The same for clients that log in by token, by user name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SocketSettings:
    """Socket options; None keeps the system's default."""

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
class TcpSettings:
    """Where to listen."""

    host: str = "127.0.0.1"
    port: int = 8090
    """0 chooses a free port."""
    socket: SocketSettings = field(default_factory=SocketSettings)
