"""Every key that takes effect, one constant each, in the order of the printed configuration.

Defaults are Iggy's unless the description says otherwise. ``stock_keys`` lists the keys without effect.
"""

from dataclasses import dataclass
from pathlib import Path

from courser.broker.settings import USUAL_TOPIC_OPTIONS, BrokerSettings
from courser.catalog.rules import TOKEN_COUNT_MAX as TOKENS_OF_A_USER_MAX
from courser.configuration.key import Key
from courser.model.quantities import NEVER, SECOND
from courser.server.configuration import kinds
from courser.server.configuration.kinds import Address
from courser.server.configuration.log_levels import parse_log_levels
from courser.storage.segment_index import IndexCache
from courser.transports.settings import ConnectionSettings, QuicSettings, TcpSettings

_MIB = 1024 * 1024
_GIB = 1024 * _MIB
_MINUTE = 60 * SECOND
_HOUR = 60 * _MINUTE
_DAY = 24 * _HOUR

TOPIC_SIZE_MIN = 16 * _MIB
"""Bytes: a smaller topic could not hold two segments of the smallest useful size."""

_BROKER = BrokerSettings()
_CONNECTIONS = ConnectionSettings()
_TCP = TcpSettings()
_QUIC = QuicSettings()


@dataclass(frozen=True, slots=True)
class TlsKeys:
    """The keys of a table about TLS."""

    table: str
    enabled: Key[bool]
    is_self_signed: Key[bool]
    certificate_file: Key[Path | None]
    key_file: Key[Path | None]


def tls_enabled(table: str, transport: str) -> Key[bool]:
    """Whether TLS is on."""
    return Key(path=f"{table}.enabled", kind=kinds.BOOL, default=False, description=f"whether {transport} is encrypted")


def self_signed(table: str) -> Key[bool]:
    """Whether a certificate is generated."""
    return Key(
        path=f"{table}.self_signed",
        kind=kinds.BOOL,
        default=True,
        description="whether to generate a certificate at start if `cert_file` does not exist",
    )


def certificate_file(table: str) -> Key[Path | None]:
    """Where the certificate is."""
    return Key(
        path=f"{table}.cert_file",
        kind=kinds.FILE,
        default=None,
        description="the certificate, with its chain, as PEM",
    )


def key_file(table: str) -> Key[Path | None]:
    """Where its key is."""
    return Key(path=f"{table}.key_file", kind=kinds.FILE, default=None, description="its private key, as PEM")


PROCESS_COUNT_MAX = 64
"""Each process has a channel to each other one."""

# --- the data directory -------------------------------------------------------------------------------

PATH = Key(
    path="system.path",
    kind=kinds.PATH,
    default=kinds.PATH.from_text("local_data"),
    description="the data directory; relative to the working directory",
)
RUNTIME_PATH = Key(
    path="system.runtime.path",
    kind=kinds.PATH,
    default=kinds.PATH.from_text("runtime"),
    description="the directory in which the server writes `current_config.toml` at start; relative to `system.path`",
)
RECREATE_MISSING_STATE = Key(
    path="system.recovery.recreate_missing_state",
    kind=kinds.BOOL,
    default=_BROKER.recreate_missing_state,
    description="whether to rebuild missing or damaged metadata at start, from the descriptors stored with the data",
)
DISK_THREAD_COUNT = Key(
    path="system.disk_thread_count",
    kind=kinds.integer(1, 64),
    default=_BROKER.disk_thread_count,
    description="threads for syncs, cold reads and other disk work",
)
PROCESS_COUNT = Key(
    path="server.processes",
    kind=kinds.processes(PROCESS_COUNT_MAX),
    default=1,
    description="processes that share the work, each with some of the topics; `auto` for one per processor core",
)
SHUTDOWN_TIMEOUT = Key(
    path="system.shutdown_timeout",
    kind=kinds.duration(),
    default=10 * SECOND,
    description="how long a stop waits for requests in progress before it closes their connections",
)

STAGING_SIZE_MAX = Key(
    path="system.staging.size_max",
    kind=kinds.size(_MIB, 2**62),
    default=_BROKER.staging_size_max,
    description="maximum bytes of staged, unpublished messages, over all jobs",
)
STAGING_EXPIRY = Key(
    path="system.staging.expiry",
    kind=kinds.duration(1),
    default=_BROKER.staging_expiry,
    description="how long to keep staged messages that are neither added to nor published",
)

# --- durability ---------------------------------------------------------------------------------------

ENFORCE_FSYNC = Key(
    path="system.partition.enforce_fsync",
    kind=kinds.BOOL,
    default=bool(USUAL_TOPIC_OPTIONS.enforce_fsync),
    description="whether messages are synced: see the levels above",
)
MESSAGES_REQUIRED_TO_SAVE = Key(
    path="system.partition.messages_required_to_save",
    kind=kinds.integer(1, 16_777_216),
    default=USUAL_TOPIC_OPTIONS.messages_required_to_save or 0,
    description="with fsync: how many messages a power cut may lose; 1 loses none",
)
SIZE_REQUIRED_TO_SAVE = Key(
    path="system.partition.size_of_messages_required_to_save",
    kind=kinds.size(1, _GIB),
    default=USUAL_TOPIC_OPTIONS.size_of_messages_required_to_save or 0,
    description="with fsync: how many bytes a power cut may lose",
)
SAVER_ENABLED = Key(
    path="message_saver.enabled",
    kind=kinds.BOOL,
    default=True,
    aliases=("system.partition.message_saver.enabled",),
    description="with fsync: whether unsynced messages are also synced after an interval",
)
SAVER_ENFORCE_FSYNC: Key[bool | None] = Key(
    path="message_saver.enforce_fsync",
    kind=kinds.OPTIONAL_BOOL,
    default=None,
    aliases=("system.partition.message_saver.enforce_fsync",),
    description="whether the saver syncs; if not set, it follows `system.partition.enforce_fsync`",
)
SAVER_INTERVAL = Key(
    path="message_saver.interval",
    kind=kinds.duration(1),
    default=_BROKER.saver_interval or 0,
    aliases=("system.partition.message_saver.interval",),
    description="how long messages may stay unsynced (Iggy: 30s)",
)

# --- segments and topics ------------------------------------------------------------------------------

SEGMENT_SIZE = Key(
    path="system.segment.size",
    kind=kinds.size(512, _GIB, multiple=512),
    default=USUAL_TOPIC_OPTIONS.segment_size or 0,
    description="bytes after which the server starts a new segment file",
)
CACHE_INDEXES = Key(
    path="system.segment.cache_indexes",
    kind=kinds.INDEX_CACHE,
    default=IndexCache.OPEN_SEGMENT,
    description="which indexes stay in memory",
)
CACHE_TIME_INDEXES: Key[bool | None] = Key(
    path="system.segment.cache_time_indexes",
    kind=kinds.OPTIONAL_BOOL,
    default=None,
    description="true is the same as `cache_indexes = true`: one index holds offsets and times",
)
INDEX_INTERVAL = Key(
    path="system.segment.index_interval",
    kind=kinds.size(64, 16 * _MIB),
    default=_BROKER.index_interval,
    description="bytes between index entries: smaller means faster lookups and larger indexes",
)
MESSAGE_EXPIRY = Key(
    path="system.topic.message_expiry",
    kind=kinds.EXPIRY,
    default=NEVER,
    aliases=("system.segment.message_expiry",),
    description="age at which messages are deleted, for topics without their own setting",
)
MAX_TOPIC_SIZE = Key(
    path="system.topic.max_size",
    kind=kinds.topic_size(TOPIC_SIZE_MIN),
    default=NEVER,
    aliases=("topic.max_topic_size", "system.topic.max_topic_size"),
    description="maximum bytes on disk of a topic, over all its partitions, for topics without their own setting",
)
DELETE_OLDEST_SEGMENTS = Key(
    path="system.topic.delete_oldest_segments",
    kind=kinds.BOOL,
    default=_BROKER.delete_oldest_segments,
    description="at the size limit: true deletes the oldest segments, false rejects sends (Iggy 0.6: false)",
)
CLEANER_ENABLED = Key(
    path="data_maintenance.messages.cleaner_enabled",
    kind=kinds.BOOL,
    default=_BROKER.cleaner_enabled,
    description="whether expiry and size limits are enforced at all (Iggy up to 0.8: false)",
)
CLEANER_INTERVAL = Key(
    path="data_maintenance.messages.interval",
    kind=kinds.duration(),
    default=_BROKER.cleaner_interval,
    description="time between two runs of the cleaner, and between two looks for topics to condense",
)
CONDENSING_PERCENT = Key(
    path="data_maintenance.condensing.percent",
    kind=kinds.integer(1, 100),
    default=_BROKER.condensing_percent,
    description="a partition that keeps the latest message by key is condensed when so many percent of its sealed "
    "segments are new since the last time",
)
TOMBSTONE_DELAY = Key(
    path="data_maintenance.condensing.tombstone_delay",
    kind=kinds.duration(),
    default=_BROKER.tombstone_delay,
    description="how long a message without a payload, which deletes its key, is kept for readers",
)
CONDENSING_RATE = Key(
    path="data_maintenance.condensing.rate",
    kind=kinds.size(64 * 1024, 2**40),
    default=_BROKER.condensing_rate,
    description="bytes that are read per second at most while segments are condensed",
)

FREE_SPACE_MIN = Key(
    path="data_maintenance.disk.min_free_space",
    kind=kinds.size(),
    default=_BROKER.free_space_min,
    description="bytes that stay free on the disk: below this, archived segments are deleted, oldest first, and "
    "if that is not enough, sends are refused; 0: no minimum",
)
SCRUBBER_ENABLED = Key(
    path="data_maintenance.scrubber.enabled",
    kind=kinds.BOOL,
    default=bool(_BROKER.scrub_rate),
    description="whether the server reads all sealed segments again from time to time, to find damage early",
)
SCRUBBER_RATE = Key(
    path="data_maintenance.scrubber.rate",
    kind=kinds.size(64 * 1024),
    default=_BROKER.scrub_rate,
    description="bytes a second that the scrubber reads at most",
)
SCRUBBER_INTERVAL = Key(
    path="data_maintenance.scrubber.interval",
    kind=kinds.duration(60 * SECOND),
    default=_BROKER.scrub_interval,
    description="time from the beginning of one round of the scrubber to the next; a round reads every segment once",
)

# --- checks and limits of messages --------------------------------------------------------------------

VALIDATE_CHECKSUM = Key(
    path="system.partition.validate_checksum",
    kind=kinds.BOOL,
    default=_BROKER.validate_checksum,
    aliases=("system.segment.validate_checksum",),
    description="whether to verify each sealed segment before its first read after a start; reads always check the "
    "batches that they return",
)
VERIFY_FRAMES = Key(
    path="system.partition.verify_frames",
    kind=kinds.BOOL,
    default=_BROKER.verify_frames,
    description="whether to verify the checksum of each sent message, in addition to that of its batch",
)
POLL_SIZE_MAX = Key(
    path="system.partition.poll_size_max",
    kind=kinds.size(64 * 1024, _GIB),
    default=_BROKER.poll_size_max,
    description="maximum bytes of a poll's reply, unless a single message is larger",
)

# --- users and groups ---------------------------------------------------------------------------------

GROUP_COUNT_MAX = Key(
    path="consumer_group.max_groups_per_topic",
    kind=kinds.integer(1, 10_000),
    default=_BROKER.group_count_max,
    description="maximum consumer groups of one topic; any user who may read the topic can create some",
)
TOKEN_COUNT_MAX = Key(
    path="personal_access_token.max_tokens_per_user",
    kind=kinds.integer(1, TOKENS_OF_A_USER_MAX),
    default=_BROKER.token_count_max,
    description="maximum personal access tokens of one user",
)
TOKEN_CLEANER_ENABLED = Key(
    path="personal_access_token.cleaner.enabled",
    kind=kinds.BOOL,
    default=_BROKER.token_cleaner_enabled,
    description="whether expired tokens are deleted; they are rejected in any case",
)
TOKEN_CLEANER_INTERVAL = Key(
    path="personal_access_token.cleaner.interval",
    kind=kinds.duration(),
    default=_BROKER.token_cleaner_interval,
    description="time between two checks for expired tokens",
)
HEARTBEAT_ENABLED = Key(
    path="heartbeat.enabled",
    kind=kinds.BOOL,
    default=_BROKER.heartbeat_enabled,
    description="whether silent members are removed from their consumer groups",
)
HEARTBEAT_INTERVAL = Key(
    path="heartbeat.interval",
    kind=kinds.duration(),
    default=_BROKER.heartbeat_interval,
    description="a member that sends no request for 1.2 times as long is removed",
)

# --- TCP ----------------------------------------------------------------------------------------------

TCP_ENABLED = Key(path="tcp.enabled", kind=kinds.BOOL, default=True, description="whether to listen on TCP")
TCP_ADDRESS = Key(
    path="tcp.address",
    kind=kinds.ADDRESS,
    default=Address(_TCP.host, _TCP.port),
    description="the address to listen on; port 0 picks a free port",
)
CONNECTION_COUNT_MAX = Key(
    path="tcp.connection_count_max",
    kind=kinds.integer(1, 1_000_000),
    default=_CONNECTIONS.connection_count_max,
    description="maximum concurrent connections; fewer if the process may not open that many files. At the limit, "
    "connections without a login make room for new ones",
)
LOGIN_DEADLINE = Key(
    path="tcp.login_deadline",
    kind=kinds.duration(SECOND),
    default=_CONNECTIONS.login_deadline,
    description="how long a connection may stay open without a login, whatever it sends",
)
IDLE_DEADLINE = Key(
    path="tcp.idle_deadline",
    kind=kinds.duration(SECOND, or_zero=True),
    default=_CONNECTIONS.idle_deadline,
    description="how long any connection may be idle; 0 means forever. SDKs ping every 5 seconds",
)
FRAME_DEADLINE = Key(
    path="tcp.frame_deadline",
    kind=kinds.duration(SECOND),
    default=_CONNECTIONS.frame_deadline,
    description="how far a request may fall behind `tcp.frame_rate_min` while it is being received",
)
FRAME_RATE_MIN = Key(
    path="tcp.frame_rate_min",
    kind=kinds.size(1),
    default=_CONNECTIONS.frame_rate_min,
    description="bytes per second: slower senders and readers are disconnected",
)
SEND_DEADLINE = Key(
    path="tcp.send_deadline",
    kind=kinds.duration(SECOND),
    default=_CONNECTIONS.send_deadline,
    description="how far a client may fall behind `tcp.frame_rate_min` in reading its reply",
)
LOGIN_FRAME_SIZE_MAX = Key(
    path="tcp.login_frame_size_max",
    kind=kinds.size(1024, 64 * _MIB),
    default=_CONNECTIONS.login_frame_size_max,
    description="maximum bytes of a request before a login",
)
FRAME_SIZE_MAX = Key(
    path="tcp.frame_size_max",
    kind=kinds.size(64 * 1024, 66 * _MIB),
    default=_CONNECTIONS.frame_size_max,
    description="maximum bytes of any request; the protocols themselves allow 64 MiB of messages",
)
REQUEST_MEMORY = Key(
    path="tcp.request_memory",
    kind=kinds.size(_MIB),
    default=_CONNECTIONS.request_memory,
    description="memory in bytes for large requests of all connections; when it is used up, requests wait and the "
    "slowest senders are disconnected",
)
REPLY_MEMORY = Key(
    path="tcp.reply_memory",
    kind=kinds.size(_MIB),
    default=_CONNECTIONS.reply_memory,
    description="memory in bytes for replies of all connections; when it is used up, polls return less and the slowest "
    "readers are disconnected",
)
CLASSIC_DIALECT = Key(
    path="tcp.classic_dialect",
    kind=kinds.DIALECT,
    default=_CONNECTIONS.classic_dialect,
    description="the SDK release to assume for a client of 0.5 to 0.8 until its requests show the actual one",
)
CLASSIC_DIALECTS = Key(
    path="tcp.classic_dialects",
    kind=kinds.DIALECTS,
    default={},
    description="the same by user name, or `*` for all others: for clients that do not report their release at login",
)

TLS_ENABLED = tls_enabled("tcp.tls", "TCP")
TLS_SELF_SIGNED = self_signed("tcp.tls")
TLS_CERT_FILE = certificate_file("tcp.tls")
TLS_KEY_FILE = key_file("tcp.tls")
TCP_TLS = TlsKeys("tcp.tls", TLS_ENABLED, TLS_SELF_SIGNED, TLS_CERT_FILE, TLS_KEY_FILE)

SOCKET_OVERRIDE = Key(
    path="tcp.socket.override_defaults",
    kind=kinds.BOOL,
    default=False,
    description="whether the other keys of this table are used",
)
SOCKET_RECEIVE_SIZE = Key(
    path="tcp.socket.recv_buffer_size",
    kind=kinds.size(1, 2**31 - 1),
    default=100_000,
    description="size of the kernel's receive buffer in bytes",
)
SOCKET_SEND_SIZE = Key(
    path="tcp.socket.send_buffer_size",
    kind=kinds.size(1, 2**31 - 1),
    default=100_000,
    description="size of the kernel's send buffer in bytes",
)
SOCKET_KEEPALIVE = Key(
    path="tcp.socket.keepalive",
    kind=kinds.BOOL,
    default=False,
    description="whether the kernel probes idle connections",
)
SOCKET_NODELAY = Key(
    path="tcp.socket.nodelay",
    kind=kinds.BOOL,
    default=False,
    description="whether to send small replies at once; always true unless `override_defaults` is on",
)
SOCKET_LINGER = Key(
    path="tcp.socket.linger",
    kind=kinds.duration(),
    default=0,
    description="how long the kernel keeps sending after a close, in whole seconds; 0 means the kernel's default",
)

# --- WebSocket ----------------------------------------------------------------------------------------

WEBSOCKET_ENABLED = Key(
    path="websocket.enabled",
    kind=kinds.BOOL,
    default=True,
    description="whether to serve the binary protocol and subscriptions over WebSocket, here and on `http.address`, "
    "with the limits of the table `tcp`",
)
WEBSOCKET_ADDRESS = Key(
    path="websocket.address",
    kind=kinds.ADDRESS,
    default=Address(_TCP.host, 8092),
    description="the address to listen on; port 0 picks a free port",
)
WEBSOCKET_TLS_ENABLED = tls_enabled("websocket.tls", "WebSocket")
WEBSOCKET_TLS_SELF_SIGNED = self_signed("websocket.tls")
WEBSOCKET_TLS_CERT_FILE = certificate_file("websocket.tls")
WEBSOCKET_TLS_KEY_FILE = key_file("websocket.tls")
WEBSOCKET_TLS = TlsKeys(
    "websocket.tls",
    WEBSOCKET_TLS_ENABLED,
    WEBSOCKET_TLS_SELF_SIGNED,
    WEBSOCKET_TLS_CERT_FILE,
    WEBSOCKET_TLS_KEY_FILE,
)

# --- QUIC ---------------------------------------------------------------------------------------------

QUIC_ENABLED = Key(
    path="quic.enabled",
    kind=kinds.BOOL,
    default=False,
    description="whether to serve the binary protocol over QUIC, here and on the UDP port of `http.address`, with the "
    "limits of the table `tcp`; requires the extra `quic` (Iggy: true)",
)
QUIC_ADDRESS = Key(
    path="quic.address",
    kind=kinds.ADDRESS,
    default=Address(_QUIC.host, _QUIC.port),
    description="the UDP address to listen on; port 0 picks a free port",
)
QUIC_IDLE_TIMEOUT = Key(
    path="quic.max_idle_timeout",
    kind=kinds.duration(SECOND),
    default=_QUIC.idle_timeout,
    description="how long a connection stays open without any datagram from the client (Iggy 0.8: 10s)",
)
QUIC_SELF_SIGNED = self_signed("quic.certificate")
QUIC_CERT_FILE = certificate_file("quic.certificate")
QUIC_KEY_FILE = key_file("quic.certificate")
QUIC_CERTIFICATE = TlsKeys("quic.certificate", QUIC_ENABLED, QUIC_SELF_SIGNED, QUIC_CERT_FILE, QUIC_KEY_FILE)

# --- logging ------------------------------------------------------------------------------------------

LOG_PATH = Key(
    path="system.logging.path",
    kind=kinds.PATH,
    default=kinds.PATH.from_text("logs"),
    description="the directory of log files; relative to `system.path`",
)
LOG_LEVEL = Key(
    path="system.logging.level",
    kind=kinds.LOG_LEVELS,
    default=parse_log_levels("info"),
    description="log levels by module: `info,courser.broker=debug`; `COURSER_LOG` and `RUST_LOG` override it",
)
LOG_FORMAT = Key(
    path="system.logging.format",
    kind=kinds.choice("text", "json"),
    default="text",
    description="text lines, or one JSON object per line",
)
LOG_FILE_ENABLED = Key(
    path="system.logging.file_enabled",
    kind=kinds.BOOL,
    default=True,
    description="whether to write the log to files in addition to stderr",
)
LOG_FILE_SIZE_MAX = Key(
    path="system.logging.max_file_size",
    kind=kinds.size(),
    default=500_000_000,
    aliases=("system.logging.max_size",),
    description="bytes after which the server starts a new log file; 0 means never",
)
LOG_TOTAL_SIZE_MAX = Key(
    path="system.logging.max_total_size",
    kind=kinds.size(),
    default=4_000_000_000,
    description="maximum bytes of all log files; beyond it the oldest are deleted; 0 means no limit",
)
LOG_CHECK_INTERVAL = Key(
    path="system.logging.rotation_check_interval",
    kind=kinds.duration(SECOND),
    default=_HOUR,
    description="time between two checks for log files to delete",
)
LOG_RETENTION = Key(
    path="system.logging.retention",
    kind=kinds.duration(SECOND, or_zero=True),
    default=7 * _DAY,
    description="age at which old log files are deleted; 0 means never",
)
SYSINFO_INTERVAL = Key(
    path="system.logging.sysinfo_print_interval",
    kind=kinds.duration(SECOND, or_zero=True),
    default=_MINUTE,
    description="time between two log lines about memory, CPU and connections; 0 means never (Iggy: 10s)",
)
