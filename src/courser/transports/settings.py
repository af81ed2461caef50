"""What an operator can set about connections. Each has a unit and a reason."""

from dataclasses import dataclass, field

from courser.records.classic import Dialect

_SECOND = 1_000_000
_KIB = 1024
_MIB = 1024 * _KIB


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionSettings:
    """Limits that hold for every connection, whatever carries it."""

    connection_count_max: int = 10_000
    """Connections at a time; less if the process may not open so many files."""
    login_deadline: int = 30 * _SECOND
    """Microseconds after which a connection is closed on which nobody has logged in, whatever it has sent."""
    idle_deadline: int = 0
    """Microseconds without any request after which any connection is closed; 0 is never. SDKs ping every 5 seconds."""
    frame_deadline: int = 30 * _SECOND
    """Microseconds that a frame may fall behind while it is being received, at ..."""
    frame_rate_min: int = 64 * _KIB
    """... so many bytes a second: slower senders are cut off, and slower readers."""
    send_deadline: int = 60 * _SECOND
    """Microseconds that a client may fall behind that rate in reading its reply."""
    login_frame_size_max: int = 16 * _KIB
    """Bytes of a frame before a login: strangers get little memory."""
    frame_size_max: int = 66 * _MIB
    """Bytes of any frame. Just above what the protocols allow themselves, so that those give their own answers."""
    request_memory: int = 512 * _MIB
    """Bytes lent to all requests that are larger than the base buffer of a connection; one more may overdraw it."""
    reply_memory: int = 512 * _MIB
    """Bytes of all replies on their way: beyond it those who have not read for longest are cut off."""
    classic_dialect: Dialect = Dialect.SDK_0_8
    """What a classic client is taken for that gives no sign which release it is."""
    classic_dialects: dict[str, Dialect] = field(default_factory=dict)
    """The same for clients that log in by token, by user name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SocketSettings:
    """Options of sockets; None leaves the system's choice."""

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
    """0 takes any free one."""
    socket: SocketSettings = field(default_factory=SocketSettings)
