"""Checks across several values: contradictions and warnings. The grammars have already checked each single value."""

import base64
import binascii
import importlib.util
from collections.abc import Iterator
from urllib.parse import urlsplit

from courser.archive.settings import (
    ARCHIVE_KIND,
    ARCHIVE_PATH,
    ARCHIVER_ENABLED,
    MESSAGES_ARCHIVED,
    STATE_ARCHIVED,
    ArchiveSettings,
    StoreKind,
    store_problems,
)
from courser.broker.access.access_token_settings import (
    JWT_BASE64_SECRET,
    JWT_DECODING_SECRET,
    JWT_ENCODING_SECRET,
    AccessTokenSettings,
)
from courser.broker.partition.topic_settings import codec_of
from courser.broker.settings import (
    SAVER_ENABLED,
    BrokerSettings,
    TopicDefaults,
)
from courser.catalog.rules import ROOT_USER_ID
from courser.configuration.key import Key, key_of
from courser.configuration.loading import Configuration
from courser.errors import ConfigurationRefused
from courser.records.compression import CodecMissing, check_available
from courser.records.encryption import KEY_EXPECTED, KeyRing, parse_key
from courser.server.configuration.settings import (
    ENCRYPTION_ENABLED,
    ENCRYPTION_KEY,
    GRPC,
    HTTP_TLS,
    LOG_FILE_ENABLED,
    OLD_ENCRYPTION_KEYS,
    PATH,
    QUIC_CERTIFICATE,
    TCP_TLS,
    TELEMETRY_ENABLED,
    WEBSOCKET_TLS,
    LoggingSettings,
    TelemetrySettings,
    TlsKeys,
)
from courser.transports.settings import (
    CORS_ENABLED,
    HTTP_ADDRESS,
    HTTP_ENABLED,
    METRICS_ENDPOINT,
    TCP_ADDRESS,
    TCP_ENABLED,
    WEBSOCKET_ADDRESS,
    WEBSOCKET_ENABLED,
    CorsSettings,
)

_LOOPBACK = ("127.", "::1", "localhost")

_ARCHIVE_EXPIRED = key_of(ArchiveSettings, "protects_expired")
_TAKE_OVER = key_of(ArchiveSettings, "take_over")
_SAVER_ENFORCE_FSYNC = key_of(BrokerSettings, "saver_enforce_fsync")
_CORS_ORIGINS = key_of(CorsSettings, "origins")
_CORS_CREDENTIALS = key_of(CorsSettings, "allows_credentials")
_JWT_TRUSTED_ISSUERS = key_of(AccessTokenSettings, "trusted_issuers")
_LOG_FILE_SIZE_MAX = key_of(LoggingSettings, "file_size_max")
_LOG_TOTAL_SIZE_MAX = key_of(LoggingSettings, "total_size_max")
_COMPRESSION = key_of(TopicDefaults, "compression")
_CLEANER_ENABLED = key_of(BrokerSettings, "cleaner_enabled")
_INTERVALS = (
    (_CLEANER_ENABLED, key_of(BrokerSettings, "cleaner_interval")),
    (key_of(BrokerSettings, "token_cleaner_enabled"), key_of(BrokerSettings, "token_cleaner_interval")),
    (key_of(BrokerSettings, "heartbeat_enabled"), key_of(BrokerSettings, "heartbeat_interval")),
)


def check(configuration: Configuration) -> None:
    """Reject contradictory values.

    Raises:
        ConfigurationRefused: lists every problem.
    """
    problems = list(_contradictions(configuration))
    if problems:
        raise ConfigurationRefused(problems)


def _contradictions(configuration: Configuration) -> Iterator[str]:
    for enabled, interval in _INTERVALS:
        if configuration[enabled] and not configuration[interval]:
            yield (
                f"{configuration.where(interval)} must not be zero: set a duration such as "
                f"{_shown(interval)}, or set {enabled.path} = false"
            )
    file_size, total_size = configuration[_LOG_FILE_SIZE_MAX], configuration[_LOG_TOTAL_SIZE_MAX]
    if total_size and not file_size <= total_size:
        yield (
            f"{configuration.where(_LOG_FILE_SIZE_MAX)} is larger than "
            f"{configuration.where(_LOG_TOTAL_SIZE_MAX)}: one log file must fit into the total size"
        )
    if not configuration[TCP_ENABLED]:
        yield f"{configuration.where(TCP_ENABLED)} is false, so the server has no listener: set it to true"
    for tls in (TCP_TLS, WEBSOCKET_TLS, QUIC_CERTIFICATE, HTTP_TLS):
        yield from _tls_contradictions(configuration, tls)
    yield from _http_contradictions(configuration)
    yield from _archive_contradictions(configuration)
    if configuration[TELEMETRY_ENABLED]:
        yield from _telemetry_contradictions(configuration)
    yield from _at_rest_contradictions(configuration)


def _at_rest_contradictions(configuration: Configuration) -> Iterator[str]:
    algorithm = _COMPRESSION
    try:
        check_available(codec_of(configuration[algorithm]))
    except CodecMissing as error:
        yield f"{configuration.where(algorithm)}: {error}"
    enabled, key, old_keys = (
        ENCRYPTION_ENABLED,
        ENCRYPTION_KEY,
        OLD_ENCRYPTION_KEYS,
    )
    if configuration[enabled] and not configuration[key]:
        yield f"{configuration.where(enabled)} is true, but {key.path} is not set: set it to {KEY_EXPECTED}"
    texts = [(configuration.where(key), configuration[key])] if configuration[key] else []
    texts += [(configuration.where(old_keys), text) for text in configuration[old_keys]]
    parsed = []
    for where, text in texts:
        try:
            parsed.append(parse_key(text))
            KeyRing(parsed)
        except ValueError as error:
            yield f"{where}: {error}"


def _archive_contradictions(configuration: Configuration) -> Iterator[str]:
    is_enabled = configuration[ARCHIVER_ENABLED]
    for key in (MESSAGES_ARCHIVED, STATE_ARCHIVED):
        wanted = configuration[key]
        if wanted is not None and wanted != is_enabled:
            enabled = ARCHIVER_ENABLED
            yield (
                f"{configuration.where(key)} is {str(wanted).lower()}, but {configuration.where(enabled)} is "
                f"{str(is_enabled).lower()}: the archive always includes messages and metadata, so set both alike"
            )
    if not is_enabled:
        return
    kind = configuration[ARCHIVE_KIND]
    if kind is not StoreKind.DISK and not _has_modules("obstore"):
        where = configuration.where(ARCHIVE_KIND)
        yield f"{where} needs an extra that is not installed: pip install 'courser[s3]', or set it to disk"
    yield from store_problems(configuration)


def _tls_contradictions(configuration: Configuration, tls: TlsKeys) -> Iterator[str]:
    if not configuration[tls.enabled] or configuration[tls.is_self_signed]:
        return
    for key in (tls.certificate_file, tls.key_file):
        if configuration[key] is None:
            yield (
                f"{key.path} is required if TLS is enabled and {tls.is_self_signed.path} is false: {key.kind.expected}"
            )


def _telemetry_contradictions(configuration: Configuration) -> Iterator[str]:
    if not _has_modules("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http"):
        where = configuration.where(TELEMETRY_ENABLED)
        yield f"{where} needs an extra that is not installed: pip install 'courser[otel]', or set it to false"
    for key in (key_of(TelemetrySettings, f"{signal}_transport") for signal in ("traces", "logs", "metrics")):
        if configuration[key] == GRPC and not _has_modules("opentelemetry.exporter.otlp.proto.grpc"):
            where = configuration.where(key)
            yield f"{where} needs an extra that is not installed: pip install 'courser[otel-grpc]', or set it to http"


def _has_modules(*names: str) -> bool:
    try:
        return all(importlib.util.find_spec(name) is not None for name in names)
    except ModuleNotFoundError:
        return False


def _http_contradictions(configuration: Configuration) -> Iterator[str]:
    if not configuration[METRICS_ENDPOINT].startswith("/"):
        yield f"{configuration.where(METRICS_ENDPOINT)} must start with a slash, such as /metrics"
    yield from _cors_contradictions(configuration)
    yield from _issuer_contradictions(configuration)
    encoding, decoding = (JWT_ENCODING_SECRET, JWT_DECODING_SECRET)
    secrets = {configuration[key] for key in (encoding, decoding)} - {""}
    if len(secrets) > 1:
        yield (
            f"{configuration.where(encoding)} and {configuration.where(decoding)} differ: one secret signs and checks "
            "access tokens"
        )
    if configuration[JWT_BASE64_SECRET]:
        for secret in (encoding, decoding):
            try:
                base64.b64decode(configuration[secret], validate=True)
            except binascii.Error:
                where = configuration.where(secret)
                yield f"{where} is not base64: correct it, or set http.jwt.use_base64_secret = false"


def _cors_contradictions(configuration: Configuration) -> Iterator[str]:
    origins = configuration[_CORS_ORIGINS]
    if configuration[CORS_ENABLED] and configuration[_CORS_CREDENTIALS] and origins[:1] == ("*",):
        where = configuration.where(_CORS_CREDENTIALS)
        yield f"{where} is true for pages of every origin: list the origins in {_CORS_ORIGINS.path}"


def _issuer_contradictions(configuration: Configuration) -> Iterator[str]:
    where, issuers = configuration.where(_JWT_TRUSTED_ISSUERS), configuration[_JWT_TRUSTED_ISSUERS]
    if len({issuer.issuer for issuer in issuers}) < len(issuers):
        yield f"{where} names an issuer twice: remove one"
    for issuer in issuers:
        parts = urlsplit(issuer.jwks_url)
        if parts.scheme == "http" and not (parts.hostname or "").startswith(_LOOPBACK):
            yield f"{where} has keys at {issuer.jwks_url}, which anybody on the way could replace: use https"


def _shown(key: Key[int]) -> str:
    return key.show(key.default)


def warnings(configuration: Configuration) -> Iterator[str]:
    """Settings that are allowed but may not be intended."""
    if not configuration[_CLEANER_ENABLED]:
        # Warn even if the server sets no limits: topics have their own, and Iggy's stock files disable the cleaner.
        yield (
            f"{configuration.where(_CLEANER_ENABLED)} is false: message_expiry and max_size are not enforced, "
            "neither the server's defaults nor the topics' own"
        )
    yield from _archive_warnings(configuration)
    if configuration[_SAVER_ENFORCE_FSYNC] and not configuration[SAVER_ENABLED]:
        yield f"{configuration.where(_SAVER_ENFORCE_FSYNC)} has no effect because the message saver is disabled"
    if configuration[LOG_FILE_ENABLED] and not configuration[_LOG_FILE_SIZE_MAX]:
        # The server deletes only closed files.
        yield f"{configuration.where(_LOG_FILE_SIZE_MAX)} is 0: one log file can exceed max_total_size"
    for issuer in configuration[_JWT_TRUSTED_ISSUERS]:
        if issuer.user_id == ROOT_USER_ID:
            where = configuration.where(_JWT_TRUSTED_ISSUERS)
            yield f"{where}: tokens of {issuer.issuer!r} are refused because user 0 is root: set another user_id"
    for enabled, address, tls in (
        (TCP_ENABLED, TCP_ADDRESS, TCP_TLS),
        (WEBSOCKET_ENABLED, WEBSOCKET_ADDRESS, WEBSOCKET_TLS),
        (HTTP_ENABLED, HTTP_ADDRESS, HTTP_TLS),
    ):
        host = configuration[address].host
        if configuration[enabled] and not host.startswith(_LOOPBACK) and not configuration[tls.enabled]:
            yield (
                f"{address.path} {host} accepts remote connections, and passwords are not encrypted: enable {tls.table}"
            )


def _archive_warnings(configuration: Configuration) -> Iterator[str]:
    expired = _ARCHIVE_EXPIRED
    if not configuration[ARCHIVER_ENABLED]:
        if configuration.is_set(expired) and configuration[expired]:
            yield (
                f"{configuration.where(expired)} has no effect because {ARCHIVER_ENABLED.path} is false: "
                "expired segments are deleted and not archived"
            )
        return
    if not configuration[expired]:
        yield f"{configuration.where(expired)} is false: expired segments are deleted even if they are not archived"
    if configuration[_TAKE_OVER]:
        yield f"{configuration.where(_TAKE_OVER)} is true: remove it after this start"
    path = configuration[ARCHIVE_PATH].absolute()
    is_disk = configuration[ARCHIVE_KIND] is StoreKind.DISK
    if is_disk and path.is_relative_to(configuration[PATH].absolute()):
        yield f"the archive {path} is inside the data directory: losing the disk loses both"
