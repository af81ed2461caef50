"""The settings of a server, grouped by component: frozen values made from the configuration.

Here are those of the server itself, each with its key. Those of the components are stated in the components.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from courser.archive.settings import archive_settings
from courser.broker.access.access_token_settings import AccessTokenSettings, access_token_settings
from courser.broker.settings import BrokerSettings, broker_settings
from courser.configuration.key import Key, key_of, setting, value_of
from courser.configuration.loading import Configuration
from courser.model import setting_kinds as kinds
from courser.model.quantities import SECOND
from courser.model.setting_kinds import SettingKind, quoted
from courser.records.encryption import KeyRing, parse_key
from courser.records.stored_body import Encryption
from courser.server.configuration.log_levels import LOG_LEVELS, LogLevels, parse_log_levels
from courser.transports.settings import (
    QUIC_ENABLED,
    ConnectionSettings,
    HttpSettings,
    QuicSettings,
    TcpSettings,
    http_settings,
    quic_settings,
    tcp_settings,
    websocket_settings,
)

_HOUR = 3600 * SECOND
_DAY = 24 * _HOUR

PROCESS_COUNT_MAX = 64
"""Each process has a channel to each other one."""

ALL_CORES = 0
"""The number of processes that stands for ``auto``."""


def processes(high: int) -> SettingKind[int]:
    """A number of processes, or ``auto``: one for each processor core that the server may use."""
    number = kinds.integer(1, high)

    def from_text(text: str) -> int:
        return ALL_CORES if text.strip().lower() == "auto" else number.from_text(text)

    def from_toml(value: object) -> int:
        return from_text(value) if isinstance(value, str) else number.from_toml(value)

    def to_toml(value: int) -> str:
        return quoted("auto") if value == ALL_CORES else str(value)

    return SettingKind("number", f'{number.expected}, or "auto"', from_toml, from_text, to_toml)


# --- directories and processes ------------------------------------------------------------------------

PATH = Key(
    "system.path",
    kinds.PATH,
    kinds.PATH.from_text("local_data"),
    "the data directory; relative to the working directory",
)
RUNTIME_PATH = Key(
    "system.runtime.path",
    kinds.PATH,
    kinds.PATH.from_text("runtime"),
    "the directory in which the server writes `current_config.toml` at start; relative to `system.path`",
)
PROCESS_COUNT = Key(
    "server.processes",
    processes(PROCESS_COUNT_MAX),
    1,
    "processes that share the work, each with some of the topics; `auto` for one per processor core",
)
# --- encryption ---------------------------------------------------------------------------------------

ENCRYPTION_ENABLED = Key(
    "system.encryption.enabled",
    kinds.BOOL,
    False,
    "whether to encrypt new messages on disk (AES-256-GCM)",
)
ENCRYPTION_KEY = Key(
    "system.encryption.key",
    kinds.OPTIONAL_TEXT,
    "",
    "the key that encrypts new messages: 32 random bytes in base64",
    is_secret=True,
)
OLD_ENCRYPTION_KEYS: Key[tuple[str, ...]] = Key(
    "system.encryption.old_keys",
    kinds.WORDS,
    (),
    "earlier keys, which still decrypt older messages",
    is_secret=True,
)

# --- TLS ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TlsKeys:
    """The keys of a table about TLS."""

    table: str
    enabled: Key[bool]
    is_self_signed: Key[bool]
    certificate_file: Key[Path | None]
    key_file: Key[Path | None]


def _tls_keys(table: str, transport: str, enabled: Key[bool] | None = None) -> TlsKeys:
    return TlsKeys(
        table,
        enabled or Key(f"{table}.enabled", kinds.BOOL, False, f"whether {transport} is encrypted"),
        Key(
            f"{table}.self_signed",
            kinds.BOOL,
            True,
            "whether to generate a certificate at start if `cert_file` does not exist",
        ),
        Key(f"{table}.cert_file", kinds.FILE, None, "the certificate, with its chain, as PEM"),
        Key(f"{table}.key_file", kinds.FILE, None, "its private key, as PEM"),
    )


TCP_TLS = _tls_keys("tcp.tls", "TCP")
WEBSOCKET_TLS = _tls_keys("websocket.tls", "WebSocket")
QUIC_CERTIFICATE = _tls_keys("quic.certificate", "QUIC", QUIC_ENABLED)
HTTP_TLS = _tls_keys("http.tls", "HTTP")


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsSettings:
    """The certificate to use."""

    certificate_file: Path | None
    key_file: Path | None
    is_self_signed: bool
    """Whether to generate one if the file does not exist."""
    table: str = TCP_TLS.table
    """The table of the configuration that these settings come from, for messages."""


# --- logging ------------------------------------------------------------------------------------------

LOG_PATH = Key(
    "system.logging.path",
    kinds.PATH,
    kinds.PATH.from_text("logs"),
    "the directory of log files; relative to `system.path`",
)
LOG_LEVEL = Key(
    "system.logging.level",
    LOG_LEVELS,
    parse_log_levels("info"),
    "log levels by module: `info,courser.broker=debug`; `COURSER_LOG` and `RUST_LOG` override it",
)
LOG_FILE_ENABLED = Key(
    "system.logging.file_enabled",
    kinds.BOOL,
    True,
    "whether to write the log to files in addition to stderr",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggingSettings:
    """What is logged, and where."""

    directory: Path | None
    """The directory of log files; None if the server writes none."""
    levels: LogLevels
    is_json: bool = setting(
        "system.logging.format",
        kinds.named({"text": False, "json": True}),
        False,
        "text lines, or one JSON object per line",
    )
    file_size_max: int = setting(
        "system.logging.max_file_size",
        kinds.size(),
        500_000_000,
        "bytes after which the server starts a new log file; 0 means never",
        aliases=("system.logging.max_size",),
    )
    total_size_max: int = setting(
        "system.logging.max_total_size",
        kinds.size(),
        4_000_000_000,
        "maximum bytes of all log files; beyond it the oldest are deleted; 0 means no limit",
    )
    check_interval: int = setting(
        "system.logging.rotation_check_interval",
        kinds.duration(SECOND),
        _HOUR,
        "time between two checks for log files to delete",
    )
    retention: int = setting(
        "system.logging.retention",
        kinds.duration(SECOND, or_zero=True),
        7 * _DAY,
        "age at which old log files are deleted; 0 means never",
    )
    sysinfo_interval: int = setting(
        "system.logging.sysinfo_print_interval",
        kinds.duration(SECOND, or_zero=True),
        60 * SECOND,
        "time between two log lines about memory, CPU and connections; 0 means never (Iggy: 10s)",
    )


# --- OpenTelemetry ------------------------------------------------------------------------------------

HTTP, GRPC = "http", "grpc"


def _url(value: object) -> str:
    if isinstance(value, str):
        parts = urlsplit(value)
        if not value or (parts.scheme in ("http", "https") and parts.hostname):
            return value
    raise ValueError(value)


_URL = SettingKind("URL", "an `http://` or `https://` URL, or an empty text", _url, _url, quoted)


def _transport(signal: str, note: str = "") -> str:
    description = f"the protocol of OTLP; `grpc` needs the extra `otel-grpc`{note}"
    return setting(f"telemetry.{signal}.transport", kinds.choice(HTTP, GRPC), HTTP, description)


def _endpoint(signal: str, what: str) -> str:
    default = f"http://localhost:7281/v1/{signal}"
    return setting(f"telemetry.{signal}.endpoint", _URL, default, f"where to send {what}; empty means nowhere")


TELEMETRY_ENABLED = Key(
    "telemetry.enabled",
    kinds.BOOL,
    False,
    "whether to export traces, metrics and logs with OpenTelemetry; needs the extra `otel`",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TelemetrySettings:
    """What to export with OpenTelemetry. An empty endpoint: nothing of this."""

    service_name: str = setting(
        "telemetry.service_name", kinds.TEXT, "courser", "the name of this server in what it exports (Iggy: iggy)"
    )
    traces_transport: str = _transport("traces", " (Iggy: grpc)")
    traces_endpoint: str = _endpoint("traces", "traces")
    one_in: int = setting(
        "telemetry.traces.one_in",
        kinds.integer(1, 1_000_000_000),
        100,
        "one request in this many is traced, chosen at random",
    )
    logs_transport: str = _transport("logs", " (Iggy: grpc)")
    logs_endpoint: str = _endpoint("logs", "the log")
    metrics_transport: str = _transport("metrics")
    metrics_endpoint: str = _endpoint("metrics", "metrics")
    metrics_interval: int = setting(
        "telemetry.metrics.interval", kinds.duration(SECOND), 60 * SECOND, "time between two exports of metrics"
    )


# --- the server ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """All settings of one server. Durations are in microseconds."""

    data_directory: Path = value_of(PATH)
    runtime_directory: Path
    shutdown_timeout: int = setting(
        "system.shutdown_timeout",
        kinds.duration(),
        10 * SECOND,
        "how long a stop waits for requests in progress before it closes their connections",
    )
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
    return configuration.fill(
        ServerSettings,
        runtime_directory=configuration[PATH] / configuration[RUNTIME_PATH],
        process_count=_process_count(configuration),
        logging=_logging(configuration, log_levels),
        broker=broker_settings(
            configuration,
            encryption=_encryption(configuration),
            keys=_key_ring(configuration),
            archive=archive_settings(configuration, configuration[key_of(ServerSettings, "shutdown_timeout")]),
        ),
        connections=configuration.fill(ConnectionSettings),
        tcp=tcp_settings(configuration),
        tls=_tls(configuration, TCP_TLS),
        websocket=websocket_settings(configuration),
        websocket_tls=_tls(configuration, WEBSOCKET_TLS),
        quic=quic_settings(configuration),
        quic_certificate=_certificate(configuration, QUIC_CERTIFICATE),
        http=http_settings(configuration),
        http_tls=_tls(configuration, HTTP_TLS),
        access_tokens=access_token_settings(configuration),
        telemetry=configuration.fill(TelemetrySettings) if configuration[TELEMETRY_ENABLED] else None,
    )


def _process_count(configuration: Configuration) -> int:
    count = configuration[PROCESS_COUNT]
    return min(len(os.sched_getaffinity(0)), PROCESS_COUNT_MAX) if count == ALL_CORES else count


def _logging(configuration: Configuration, log_levels: LogLevels | None) -> LoggingSettings:
    directory = configuration[PATH] / configuration[LOG_PATH] if configuration[LOG_FILE_ENABLED] else None
    return configuration.fill(LoggingSettings, directory=directory, levels=log_levels or configuration[LOG_LEVEL])


def _encryption(configuration: Configuration) -> Encryption | None:
    if not configuration[ENCRYPTION_ENABLED]:
        return None
    return Encryption(parse_key(configuration[ENCRYPTION_KEY]), os.urandom)


def _key_ring(configuration: Configuration) -> KeyRing:
    """The keys that decrypt stored messages. One that encrypts nothing any more may still be needed to read."""
    current, old = configuration[ENCRYPTION_KEY], configuration[OLD_ENCRYPTION_KEYS]
    return KeyRing(parse_key(text) for text in (current, *old) if text)


def _tls(configuration: Configuration, tls: TlsKeys) -> TlsSettings | None:
    return _certificate(configuration, tls) if configuration[tls.enabled] else None


def _certificate(configuration: Configuration, tls: TlsKeys) -> TlsSettings:
    return TlsSettings(
        certificate_file=configuration[tls.certificate_file],
        key_file=configuration[tls.key_file],
        is_self_signed=configuration[tls.is_self_signed],
        table=tls.table,
    )
