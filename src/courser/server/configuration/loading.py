"""All keys of a server, and the configuration that they make."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import courser.broker.access.access_token_settings
import courser.broker.settings
import courser.server.configuration.settings
import courser.storage.message_window
import courser.storage.producer_table
import courser.transports.settings
from courser.archive.settings import ARCHIVE_KEYS
from courser.configuration import loading
from courser.configuration.key import AnyKey, KeyStatus, keys_in
from courser.configuration.key_index import KeyIndex
from courser.configuration.loading import Configuration
from courser.server.configuration.settings import HTTP_TLS, QUIC_CERTIFICATE, TCP_TLS, WEBSOCKET_TLS
from courser.server.configuration.stock_keys import STOCK_KEYS

_ORDER = (
    *("system.path", "system.runtime", "system.recovery", "system.disk_thread_count", "server", "system"),
    *("system.staging", "system.partition.enforce_fsync", "system.partition.messages_required_to_save"),
    *("system.partition.size_of_messages_required_to_save", "message_saver", "system.segment.size"),
    *("system.segment.cache_indexes", "system.segment", "system.topic.message_expiry", "system.topic"),
    *("data_maintenance.messages", "data_maintenance.condensing", "data_maintenance.disk"),
    *("data_maintenance.scrubber", "system.partition", "consumer_group", "personal_access_token", "heartbeat"),
    *("tcp", "tcp.tls", "tcp.socket", "websocket", "websocket.tls", "quic", "quic.certificate"),
    *("system.logging.path", "system.logging.level", "system.logging.format", "system.logging"),
    *("system.compression", "system.encryption", "system.message_deduplication", "system.producers"),
    *("http", "http.cors", "http.jwt", "http.jwt.trusted_issuers", "http.metrics.enabled", "http.metrics.endpoint"),
    *("http.metrics", "ui", "http.tls", "data_maintenance.archiver", "data_maintenance.archiver.request_timeout"),
    *("data_maintenance.archiver.restore_on_start", "data_maintenance.archiver.take_over"),
    *("data_maintenance.archiver.cluster", "data_maintenance.archiver.disk", "data_maintenance.archiver.s3"),
    *("data_maintenance.archiver.gcs", "data_maintenance.archiver.azure"),
    *("data_maintenance.messages.archiver_enabled", "data_maintenance.state", "telemetry"),
)
"""The tables, and keys apart from the others of their table, in the order of the printed configuration."""


def _place(key: AnyKey) -> int:
    tables = [name for name in _ORDER if f"{key.path}.".startswith(f"{name}.")]
    return _ORDER.index(max(tables, key=len)) if tables else len(_ORDER)


def _stated() -> Iterator[AnyKey]:
    for module in (
        courser.server.configuration.settings,
        courser.transports.settings,
        courser.broker.settings,
        courser.storage.message_window,
        courser.storage.producer_table,
        courser.broker.access.access_token_settings,
    ):
        yield from keys_in(vars(module))
    for tls in (TCP_TLS, WEBSOCKET_TLS, QUIC_CERTIFICATE, HTTP_TLS):
        yield from (tls.enabled, tls.is_self_signed, tls.certificate_file, tls.key_file)
    yield from ARCHIVE_KEYS


LIVE_KEYS: tuple[AnyKey, ...] = tuple(
    sorted((key for key in dict.fromkeys(_stated()) if key.status is KeyStatus.LIVE), key=_place)
)


def all_keys() -> KeyIndex:
    """Every key of Courser and of Iggy's stock files."""
    return KeyIndex(dict.fromkeys((*LIVE_KEYS, *ARCHIVE_KEYS, *STOCK_KEYS)))


def load(
    path: Path | None = None, environment: Mapping[str, str] | None = None, settings: Sequence[str] = ()
) -> Configuration:
    """Read all sources. ``settings`` are ``key=value`` texts of the command line.

    Raises:
        ConfigurationRefused: lists every problem.
    """
    return loading.load(all_keys(), path, environment, settings)
