"""The settings of a server, grouped by component: frozen values made from the configuration."""

import base64
import os
from dataclasses import dataclass
from pathlib import Path

from courser.archive.configured import archive_settings
from courser.broker.access.access_tokens import AccessTokenSettings
from courser.broker.settings import USUAL_TOPIC_OPTIONS, BrokerSettings
from courser.configuration.loading import Configuration
from courser.model.quantities import SECOND
from courser.model.topic_options import COMPRESSIONS
from courser.records.encryption import KeyRing, parse_key
from courser.records.stored_body import Encryption
from courser.server.configuration import at_rest_keys, http_keys, keys, telemetry_keys
from courser.server.configuration.kinds import ALL_CORES
from courser.server.configuration.log_levels import LogLevels
from courser.storage.message_window import Deduplication
from courser.storage.segment_index import IndexCache
from courser.transports.settings import (
    ConnectionSettings,
    ConsoleSettings,
    CorsSettings,
    HttpSettings,
    QuicSettings,
    SocketSettings,
    TcpSettings,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggingSettings:
    """What is logged, and where."""

    directory: Path | None
    """The directory of log files; None if the server writes none."""
    levels: LogLevels
    is_json: bool
    file_size_max: int
    """Bytes; 0 means no limit, as for ``total_size_max``."""
    total_size_max: int
    retention: int
    """Microseconds; 0 means forever."""
    check_interval: int
    """Microseconds."""
    sysinfo_interval: int
    """Microseconds; 0 means never."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsSettings:
    """The certificate to use."""

    certificate_file: Path | None
    key_file: Path | None
    is_self_signed: bool
    """Whether to generate one if the file does not exist."""
    table: str = "tcp.tls"
    """The table of the configuration that these settings come from, for messages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TelemetrySettings:
    """What to export with OpenTelemetry. An empty endpoint: nothing of this."""

    service_name: str
    traces_transport: str = telemetry_keys.HTTP
    traces_endpoint: str
    one_in: int
    """One request in this many is traced."""
    logs_transport: str = telemetry_keys.HTTP
    logs_endpoint: str
    metrics_transport: str = telemetry_keys.HTTP
    metrics_endpoint: str
    metrics_interval: int
    """Microseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """All settings of one server."""

    data_directory: Path
    runtime_directory: Path
    shutdown_timeout: int
    """Microseconds."""
    process_count: int
    logging: LoggingSettings
    broker: BrokerSettings
    connections: ConnectionSettings
    tcp: TcpSettings
    tls: TlsSettings | None
    """For TCP. None: not encrypted."""
    websocket: TcpSettings | None
    """None: disabled."""
    websocket_tls: TlsSettings | None
    quic: QuicSettings | None
    """None: disabled."""
    quic_certificate: TlsSettings
    http: HttpSettings | None
    """None: disabled."""
    http_tls: TlsSettings | None
    access_tokens: AccessTokenSettings
    telemetry: TelemetrySettings | None
    """None: disabled."""


def settings_of(configuration: Configuration, *, log_levels: LogLevels | None = None) -> ServerSettings:
    """Make the settings from the configuration. ``log_levels``, from COURSER_LOG or RUST_LOG, take precedence."""
    data_directory = configuration[keys.PATH]
    return ServerSettings(
        data_directory=data_directory,
        runtime_directory=data_directory / configuration[keys.RUNTIME_PATH],
        shutdown_timeout=configuration[keys.SHUTDOWN_TIMEOUT],
        process_count=_process_count(configuration),
        logging=_logging(configuration, data_directory, log_levels),
        broker=_broker(configuration),
        connections=_connections(configuration),
        tcp=_tcp(configuration),
        tls=_tls(configuration, keys.TCP_TLS),
        websocket=_websocket(configuration),
        websocket_tls=_tls(configuration, keys.WEBSOCKET_TLS),
        quic=_quic(configuration),
        quic_certificate=_certificate(configuration, keys.QUIC_CERTIFICATE),
        http=_http(configuration),
        http_tls=_tls(configuration, http_keys.HTTP_TLS),
        access_tokens=_access_tokens(configuration),
        telemetry=_telemetry(configuration),
    )


def _process_count(configuration: Configuration) -> int:
    count = configuration[keys.PROCESS_COUNT]
    return min(len(os.sched_getaffinity(0)), keys.PROCESS_COUNT_MAX) if count == ALL_CORES else count


def _logging(configuration: Configuration, data_directory: Path, log_levels: LogLevels | None) -> LoggingSettings:
    has_files = configuration[keys.LOG_FILE_ENABLED]
    return LoggingSettings(
        directory=data_directory / configuration[keys.LOG_PATH] if has_files else None,
        levels=log_levels or configuration[keys.LOG_LEVEL],
        is_json=configuration[keys.LOG_FORMAT] == "json",
        file_size_max=configuration[keys.LOG_FILE_SIZE_MAX],
        total_size_max=configuration[keys.LOG_TOTAL_SIZE_MAX],
        retention=configuration[keys.LOG_RETENTION],
        check_interval=configuration[keys.LOG_CHECK_INTERVAL],
        sysinfo_interval=configuration[keys.SYSINFO_INTERVAL],
    )


def _broker(configuration: Configuration) -> BrokerSettings:
    usual = USUAL_TOPIC_OPTIONS
    topic_defaults = type(usual)(
        message_expiry=configuration[keys.MESSAGE_EXPIRY],
        max_topic_size=configuration[keys.MAX_TOPIC_SIZE],
        compression=COMPRESSIONS[configuration[at_rest_keys.COMPRESSION]],
        replication_factor=usual.replication_factor,
        segment_size=configuration[keys.SEGMENT_SIZE],
        enforce_fsync=configuration[keys.ENFORCE_FSYNC],
        messages_required_to_save=configuration[keys.MESSAGES_REQUIRED_TO_SAVE],
        size_of_messages_required_to_save=configuration[keys.SIZE_REQUIRED_TO_SAVE],
        preallocate_segments=usual.preallocate_segments,
        durability=usual.durability,
        consumer_offset_durability=usual.consumer_offset_durability,
        keep_latest_by_key=usual.keep_latest_by_key,
    )
    # One index holds offsets and times: it is cached if either is requested.
    caches_times = configuration[keys.CACHE_TIME_INDEXES]
    return BrokerSettings(
        topic_defaults=topic_defaults,
        saver_interval=configuration[keys.SAVER_INTERVAL] if configuration[keys.SAVER_ENABLED] else None,
        saver_enforce_fsync=configuration[keys.SAVER_ENFORCE_FSYNC],
        index_interval=configuration[keys.INDEX_INTERVAL],
        index_cache=IndexCache.ALL if caches_times else configuration[keys.CACHE_INDEXES],
        delete_oldest_segments=configuration[keys.DELETE_OLDEST_SEGMENTS],
        cleaner_enabled=configuration[keys.CLEANER_ENABLED],
        cleaner_interval=configuration[keys.CLEANER_INTERVAL],
        condensing_percent=configuration[keys.CONDENSING_PERCENT],
        tombstone_delay=configuration[keys.TOMBSTONE_DELAY],
        condensing_rate=configuration[keys.CONDENSING_RATE],
        free_space_min=configuration[keys.FREE_SPACE_MIN],
        scrub_rate=configuration[keys.SCRUBBER_RATE] if configuration[keys.SCRUBBER_ENABLED] else 0,
        scrub_interval=configuration[keys.SCRUBBER_INTERVAL],
        heartbeat_enabled=configuration[keys.HEARTBEAT_ENABLED],
        heartbeat_interval=configuration[keys.HEARTBEAT_INTERVAL],
        group_count_max=configuration[keys.GROUP_COUNT_MAX],
        token_count_max=configuration[keys.TOKEN_COUNT_MAX],
        token_cleaner_enabled=configuration[keys.TOKEN_CLEANER_ENABLED],
        token_cleaner_interval=configuration[keys.TOKEN_CLEANER_INTERVAL],
        poll_size_max=configuration[keys.POLL_SIZE_MAX],
        reply_memory=configuration[keys.REPLY_MEMORY],
        validate_checksum=configuration[keys.VALIDATE_CHECKSUM],
        verify_frames=configuration[keys.VERIFY_FRAMES],
        recreate_missing_state=configuration[keys.RECREATE_MISSING_STATE],
        staging_size_max=configuration[keys.STAGING_SIZE_MAX],
        staging_expiry=configuration[keys.STAGING_EXPIRY],
        series_count_max=configuration[http_keys.METRICS_SERIES_MAX],
        archive=archive_settings(configuration, configuration[keys.SHUTDOWN_TIMEOUT]),
        disk_thread_count=configuration[keys.DISK_THREAD_COUNT],
        encryption=_encryption(configuration),
        keys=key_ring(configuration),
        deduplication=_deduplication(configuration),
    )


def _deduplication(configuration: Configuration) -> Deduplication | None:
    if not configuration[at_rest_keys.DEDUPLICATION_ENABLED]:
        return None
    return Deduplication(
        count_max=configuration[at_rest_keys.DEDUPLICATION_COUNT],
        age_max=configuration[at_rest_keys.DEDUPLICATION_EXPIRY],
    )


def _encryption(configuration: Configuration) -> Encryption | None:
    if not configuration[at_rest_keys.ENCRYPTION_ENABLED]:
        return None
    return Encryption(parse_key(configuration[at_rest_keys.ENCRYPTION_KEY]), os.urandom)


def key_ring(configuration: Configuration) -> KeyRing:
    """The keys that decrypt stored messages. One that encrypts nothing any more may still be needed to read."""
    current, old = configuration[at_rest_keys.ENCRYPTION_KEY], configuration[at_rest_keys.OLD_ENCRYPTION_KEYS]
    return KeyRing(parse_key(text) for text in (current, *old) if text)


def _connections(configuration: Configuration) -> ConnectionSettings:
    dialects = configuration[keys.CLASSIC_DIALECTS]
    return ConnectionSettings(
        connection_count_max=configuration[keys.CONNECTION_COUNT_MAX],
        login_deadline=configuration[keys.LOGIN_DEADLINE],
        idle_deadline=configuration[keys.IDLE_DEADLINE],
        frame_deadline=configuration[keys.FRAME_DEADLINE],
        frame_rate_min=configuration[keys.FRAME_RATE_MIN],
        send_deadline=configuration[keys.SEND_DEADLINE],
        login_frame_size_max=configuration[keys.LOGIN_FRAME_SIZE_MAX],
        frame_size_max=configuration[keys.FRAME_SIZE_MAX],
        request_memory=configuration[keys.REQUEST_MEMORY],
        reply_memory=configuration[keys.REPLY_MEMORY],
        classic_dialect=configuration[keys.CLASSIC_DIALECT],
        classic_dialects=dict(dialects),
    )


def _tcp(configuration: Configuration) -> TcpSettings:
    address = configuration[keys.TCP_ADDRESS]
    return TcpSettings(host=address.host, port=address.port, socket=_socket(configuration))


def _socket(configuration: Configuration) -> SocketSettings:
    if not configuration[keys.SOCKET_OVERRIDE]:
        return SocketSettings()
    linger = configuration[keys.SOCKET_LINGER]
    return SocketSettings(
        receive_buffer_size=configuration[keys.SOCKET_RECEIVE_SIZE],
        send_buffer_size=configuration[keys.SOCKET_SEND_SIZE],
        keepalive=configuration[keys.SOCKET_KEEPALIVE],
        nodelay=configuration[keys.SOCKET_NODELAY],
        # A linger of zero would make the kernel drop replies in flight.
        linger=-(-linger // SECOND) if linger else None,
    )


def _websocket(configuration: Configuration) -> TcpSettings | None:
    if not configuration[keys.WEBSOCKET_ENABLED]:
        return None
    address = configuration[keys.WEBSOCKET_ADDRESS]
    return TcpSettings(host=address.host, port=address.port)


def _tls(configuration: Configuration, tls: keys.TlsKeys) -> TlsSettings | None:
    return _certificate(configuration, tls) if configuration[tls.enabled] else None


def _certificate(configuration: Configuration, tls: keys.TlsKeys) -> TlsSettings:
    return TlsSettings(
        certificate_file=configuration[tls.certificate_file],
        key_file=configuration[tls.key_file],
        is_self_signed=configuration[tls.is_self_signed],
        table=tls.table,
    )


def _quic(configuration: Configuration) -> QuicSettings | None:
    if not configuration[keys.QUIC_ENABLED]:
        return None
    address = configuration[keys.QUIC_ADDRESS]
    return QuicSettings(host=address.host, port=address.port, idle_timeout=configuration[keys.QUIC_IDLE_TIMEOUT])


# --- HTTP ---


def _http(configuration: Configuration) -> HttpSettings | None:
    if not configuration[http_keys.HTTP_ENABLED]:
        return None
    address = configuration[http_keys.HTTP_ADDRESS]
    return HttpSettings(
        host=address.host,
        port=address.port,
        request_size_max=configuration[http_keys.REQUEST_SIZE_MAX],
        metrics_path=configuration[http_keys.METRICS_ENDPOINT] if configuration[http_keys.METRICS_ENABLED] else None,
        cors=_cors(configuration) if configuration[http_keys.CORS_ENABLED] else None,
        console=_console(configuration) if configuration[http_keys.UI_ENABLED] else None,
    )


def _console(configuration: Configuration) -> ConsoleSettings:
    return ConsoleSettings(
        is_read_only=configuration[http_keys.UI_READ_ONLY], base_path=configuration[http_keys.UI_BASE_PATH]
    )


def _cors(configuration: Configuration) -> CorsSettings:
    return CorsSettings(
        origins=configuration[http_keys.CORS_ORIGINS],
        methods=configuration[http_keys.CORS_METHODS],
        headers=configuration[http_keys.CORS_HEADERS],
        exposed_headers=configuration[http_keys.CORS_EXPOSED],
        allows_credentials=configuration[http_keys.CORS_CREDENTIALS],
        allows_private_network=configuration[http_keys.CORS_PRIVATE_NETWORK],
    )


def _telemetry(configuration: Configuration) -> TelemetrySettings | None:
    if not configuration[telemetry_keys.TELEMETRY_ENABLED]:
        return None
    return TelemetrySettings(
        service_name=configuration[telemetry_keys.SERVICE_NAME],
        traces_transport=configuration[telemetry_keys.TRACES_TRANSPORT],
        traces_endpoint=configuration[telemetry_keys.TRACES_ENDPOINT],
        one_in=configuration[telemetry_keys.TRACES_SAMPLE],
        logs_transport=configuration[telemetry_keys.LOGS_TRANSPORT],
        logs_endpoint=configuration[telemetry_keys.LOGS_ENDPOINT],
        metrics_transport=configuration[telemetry_keys.METRICS_TRANSPORT],
        metrics_endpoint=configuration[telemetry_keys.METRICS_ENDPOINT],
        metrics_interval=configuration[telemetry_keys.METRICS_INTERVAL],
    )


def _access_tokens(configuration: Configuration) -> AccessTokenSettings:
    secret = configuration[http_keys.JWT_ENCODING_SECRET] or configuration[http_keys.JWT_DECODING_SECRET]
    is_base64 = configuration[http_keys.JWT_BASE64_SECRET]
    return AccessTokenSettings(
        algorithm=configuration[http_keys.JWT_ALGORITHM].upper(),
        issuer=configuration[http_keys.JWT_ISSUER],
        audience=configuration[http_keys.JWT_AUDIENCE],
        valid_issuers=configuration[http_keys.JWT_VALID_ISSUERS],
        valid_audiences=configuration[http_keys.JWT_VALID_AUDIENCES],
        expiry=configuration[http_keys.JWT_EXPIRY],
        clock_skew=configuration[http_keys.JWT_CLOCK_SKEW],
        not_before=configuration[http_keys.JWT_NOT_BEFORE],
        trusted_issuers=configuration[http_keys.JWT_TRUSTED_ISSUERS],
        secret=base64.b64decode(secret, validate=True) if is_base64 else secret.encode(),
    )
