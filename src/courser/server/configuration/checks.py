"""Checks across several values: contradictions and warnings. The grammars have already checked each single value."""

import base64
import binascii
import importlib.util
from collections.abc import Iterator
from urllib.parse import urlsplit

from courser.archive import configuration_keys as archive_keys
from courser.archive.configured import store_problems
from courser.archive.settings import StoreKind
from courser.broker.partition.topic_settings import codec_of
from courser.catalog.rules import ROOT_USER_ID
from courser.configuration.key import Key
from courser.configuration.loading import Configuration
from courser.errors import ConfigurationRefused
from courser.model.topic_options import COMPRESSIONS
from courser.records.compression import CodecMissing, check_available
from courser.records.encryption import KEY_EXPECTED, KeyRing, parse_key
from courser.server.configuration import at_rest_keys, http_keys, keys, telemetry_keys

_LOOPBACK = ("127.", "::1", "localhost")

_INTERVALS = (
    (keys.CLEANER_ENABLED, keys.CLEANER_INTERVAL),
    (keys.TOKEN_CLEANER_ENABLED, keys.TOKEN_CLEANER_INTERVAL),
    (keys.HEARTBEAT_ENABLED, keys.HEARTBEAT_INTERVAL),
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
    file_size, total_size = configuration[keys.LOG_FILE_SIZE_MAX], configuration[keys.LOG_TOTAL_SIZE_MAX]
    if total_size and not file_size <= total_size:
        yield (
            f"{configuration.where(keys.LOG_FILE_SIZE_MAX)} is larger than "
            f"{configuration.where(keys.LOG_TOTAL_SIZE_MAX)}: one log file must fit into the total size"
        )
    if not configuration[keys.TCP_ENABLED]:
        yield f"{configuration.where(keys.TCP_ENABLED)} is false, so the server has no listener: set it to true"
    for tls in (keys.TCP_TLS, keys.WEBSOCKET_TLS, keys.QUIC_CERTIFICATE, http_keys.HTTP_TLS):
        yield from _tls_contradictions(configuration, tls)
    yield from _http_contradictions(configuration)
    yield from _archive_contradictions(configuration)
    if configuration[telemetry_keys.TELEMETRY_ENABLED]:
        yield from _telemetry_contradictions(configuration)
    yield from _at_rest_contradictions(configuration)


def _at_rest_contradictions(configuration: Configuration) -> Iterator[str]:
    algorithm = at_rest_keys.COMPRESSION
    try:
        check_available(codec_of(COMPRESSIONS[configuration[algorithm]]))
    except CodecMissing as error:
        yield f"{configuration.where(algorithm)}: {error}"
    enabled, key, old_keys = (
        at_rest_keys.ENCRYPTION_ENABLED,
        at_rest_keys.ENCRYPTION_KEY,
        at_rest_keys.OLD_ENCRYPTION_KEYS,
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
    is_enabled = configuration[archive_keys.ARCHIVER_ENABLED]
    for key in (archive_keys.MESSAGES_ARCHIVED, archive_keys.STATE_ARCHIVED):
        wanted = configuration[key]
        if wanted is not None and wanted != is_enabled:
            enabled = archive_keys.ARCHIVER_ENABLED
            yield (
                f"{configuration.where(key)} is {str(wanted).lower()}, but {configuration.where(enabled)} is "
                f"{str(is_enabled).lower()}: the archive always includes messages and metadata, so set both alike"
            )
    if not is_enabled:
        return
    kind = StoreKind(configuration[archive_keys.ARCHIVE_KIND])
    if kind is not StoreKind.DISK and not _has_modules("obstore"):
        where = configuration.where(archive_keys.ARCHIVE_KIND)
        yield f"{where} needs an extra that is not installed: pip install 'courser[s3]', or set it to disk"
    yield from store_problems(configuration)


def _tls_contradictions(configuration: Configuration, tls: keys.TlsKeys) -> Iterator[str]:
    if not configuration[tls.enabled] or configuration[tls.is_self_signed]:
        return
    for key in (tls.certificate_file, tls.key_file):
        if configuration[key] is None:
            yield (
                f"{key.path} is required if TLS is enabled and {tls.is_self_signed.path} is false: {key.kind.expected}"
            )


def _telemetry_contradictions(configuration: Configuration) -> Iterator[str]:
    if not _has_modules("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http"):
        where = configuration.where(telemetry_keys.TELEMETRY_ENABLED)
        yield f"{where} needs an extra that is not installed: pip install 'courser[otel]', or set it to false"
    for key in (telemetry_keys.TRACES_TRANSPORT, telemetry_keys.LOGS_TRANSPORT, telemetry_keys.METRICS_TRANSPORT):
        if configuration[key] == telemetry_keys.GRPC and not _has_modules("opentelemetry.exporter.otlp.proto.grpc"):
            where = configuration.where(key)
            yield f"{where} needs an extra that is not installed: pip install 'courser[otel-grpc]', or set it to http"


def _has_modules(*names: str) -> bool:
    try:
        return all(importlib.util.find_spec(name) is not None for name in names)
    except ModuleNotFoundError:
        return False


def _http_contradictions(configuration: Configuration) -> Iterator[str]:
    if not configuration[http_keys.METRICS_ENDPOINT].startswith("/"):
        yield f"{configuration.where(http_keys.METRICS_ENDPOINT)} must start with a slash, such as /metrics"
    yield from _cors_contradictions(configuration)
    yield from _issuer_contradictions(configuration)
    encoding, decoding = (http_keys.JWT_ENCODING_SECRET, http_keys.JWT_DECODING_SECRET)
    secrets = {configuration[key] for key in (encoding, decoding)} - {""}
    if len(secrets) > 1:
        yield (
            f"{configuration.where(encoding)} and {configuration.where(decoding)} differ: one secret signs and checks "
            "access tokens"
        )
    if configuration[http_keys.JWT_BASE64_SECRET]:
        for secret in (encoding, decoding):
            try:
                base64.b64decode(configuration[secret], validate=True)
            except binascii.Error:
                where = configuration.where(secret)
                yield f"{where} is not base64: correct it, or set http.jwt.use_base64_secret = false"


def _cors_contradictions(configuration: Configuration) -> Iterator[str]:
    origins = configuration[http_keys.CORS_ORIGINS]
    if configuration[http_keys.CORS_ENABLED] and configuration[http_keys.CORS_CREDENTIALS] and origins[:1] == ("*",):
        where = configuration.where(http_keys.CORS_CREDENTIALS)
        yield f"{where} is true for pages of every origin: list the origins in {http_keys.CORS_ORIGINS.path}"


def _issuer_contradictions(configuration: Configuration) -> Iterator[str]:
    where, issuers = configuration.where(http_keys.JWT_TRUSTED_ISSUERS), configuration[http_keys.JWT_TRUSTED_ISSUERS]
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
    if not configuration[keys.CLEANER_ENABLED]:
        # Warn even if the server sets no limits: topics have their own, and Iggy's stock files disable the cleaner.
        yield (
            f"{configuration.where(keys.CLEANER_ENABLED)} is false: message_expiry and max_size are not enforced, "
            "neither the server's defaults nor the topics' own"
        )
    yield from _archive_warnings(configuration)
    if configuration[keys.SAVER_ENFORCE_FSYNC] and not configuration[keys.SAVER_ENABLED]:
        yield f"{configuration.where(keys.SAVER_ENFORCE_FSYNC)} has no effect because the message saver is disabled"
    if configuration[keys.LOG_FILE_ENABLED] and not configuration[keys.LOG_FILE_SIZE_MAX]:
        # The server deletes only closed files.
        yield f"{configuration.where(keys.LOG_FILE_SIZE_MAX)} is 0: one log file can exceed max_total_size"
    for issuer in configuration[http_keys.JWT_TRUSTED_ISSUERS]:
        if issuer.user_id == ROOT_USER_ID:
            where = configuration.where(http_keys.JWT_TRUSTED_ISSUERS)
            yield f"{where}: tokens of {issuer.issuer!r} are refused because user 0 is root: set another user_id"
    for enabled, address, tls in (
        (keys.TCP_ENABLED, keys.TCP_ADDRESS, keys.TCP_TLS),
        (keys.WEBSOCKET_ENABLED, keys.WEBSOCKET_ADDRESS, keys.WEBSOCKET_TLS),
        (http_keys.HTTP_ENABLED, http_keys.HTTP_ADDRESS, http_keys.HTTP_TLS),
    ):
        host = configuration[address].host
        if configuration[enabled] and not host.startswith(_LOOPBACK) and not configuration[tls.enabled]:
            yield (
                f"{address.path} {host} accepts remote connections, and passwords are not encrypted: enable {tls.table}"
            )


def _archive_warnings(configuration: Configuration) -> Iterator[str]:
    expired = archive_keys.ARCHIVE_EXPIRED
    if not configuration[archive_keys.ARCHIVER_ENABLED]:
        if configuration.is_set(expired) and configuration[expired]:
            yield (
                f"{configuration.where(expired)} has no effect because {archive_keys.ARCHIVER_ENABLED.path} is false: "
                "expired segments are deleted and not archived"
            )
        return
    if not configuration[expired]:
        yield f"{configuration.where(expired)} is false: expired segments are deleted even if they are not archived"
    if configuration[archive_keys.TAKE_OVER]:
        yield f"{configuration.where(archive_keys.TAKE_OVER)} is true: remove it after this start"
    path = configuration[archive_keys.ARCHIVE_PATH].absolute()
    is_disk = StoreKind(configuration[archive_keys.ARCHIVE_KIND]) is StoreKind.DISK
    if is_disk and path.is_relative_to(configuration[keys.PATH].absolute()):
        yield f"the archive {path} is inside the data directory: losing the disk loses both"
