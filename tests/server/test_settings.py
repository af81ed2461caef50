"""Every key that takes effect does: another value gives other settings."""

import base64
import os
from dataclasses import dataclass

import pytest

from courser.configuration import loading
from courser.configuration.key import key_of, keys_in, setting
from courser.configuration.key_index import KeyIndex
from courser.model import setting_kinds as kinds
from courser.server.configuration.loading import LIVE_KEYS, load
from courser.server.configuration.log_levels import parse_log_levels
from courser.server.configuration.settings import LOG_LEVEL, settings_of
from courser.transports.settings import SocketSettings

OTHER_VALUES = {
    "system.compression.default_algorithm": "gzip",
    "system.encryption.enabled": "true",
    "system.encryption.key": base64.b64encode(bytes(range(32))).decode(),
    "system.encryption.old_keys": base64.b64encode(bytes(range(1, 33))).decode(),
    "system.message_deduplication.enabled": "true",
    "system.message_deduplication.max_entries": "7",
    "system.message_deduplication.expiry": "7s",
    "system.producers.max_per_partition": "7",
    "system.producers.max_batches": "7",
    "system.producers.expiry": "7s",
    "data_maintenance.archiver.enabled": "true",
    "data_maintenance.archiver.kind": "gcs",
    "data_maintenance.archiver.archive_expired": "false",
    "data_maintenance.archiver.archive_at": "expiry",
    "data_maintenance.archiver.interval": "7s",
    "data_maintenance.archiver.active_interval": "0",
    "data_maintenance.archiver.bandwidth": "1 MB",
    "data_maintenance.archiver.cache_size": "77 MiB",
    "data_maintenance.archiver.part_size": "8 MiB",
    "data_maintenance.archiver.retention": "7 days",
    "data_maintenance.archiver.request_timeout": "7s",
    "data_maintenance.archiver.restore_on_start": "true",
    "data_maintenance.archiver.take_over": "true",
    "data_maintenance.archiver.cluster": "77",
    "data_maintenance.archiver.disk.path": "/elsewhere",
    "data_maintenance.archiver.s3.bucket": "b",
    "data_maintenance.archiver.s3.key_prefix": "p",
    "data_maintenance.archiver.s3.region": "r",
    "data_maintenance.archiver.s3.endpoint": "http://e",
    "data_maintenance.archiver.s3.access_key_id": "i",
    "data_maintenance.archiver.s3.secret_access_key": "s",
    "data_maintenance.archiver.s3.path_style": "false",
    "data_maintenance.archiver.gcs.bucket": "b",
    "data_maintenance.archiver.gcs.key_prefix": "p",
    "data_maintenance.archiver.gcs.credentials_file": "/f",
    "data_maintenance.archiver.gcs.endpoint": "e",
    "data_maintenance.archiver.azure.account": "a",
    "data_maintenance.archiver.azure.container": "c",
    "data_maintenance.archiver.azure.key_prefix": "p",
    "data_maintenance.archiver.azure.access_key": "k",
    "data_maintenance.archiver.azure.endpoint": "http://e",
    "http.enabled": "false",
    "http.cors.enabled": "false",
    "http.metrics.enabled": "false",
    "http.address": "127.0.0.2:3001",
    "http.max_request_size": "3 MB",
    "http.cors.allowed_methods": "GET",
    "http.cors.allowed_origins": "https://shop.example",
    "http.cors.allowed_headers": "x-one,x-two",
    "http.cors.exposed_headers": "x-three",
    "http.cors.allow_credentials": "true",
    "http.cors.allow_private_network": "true",
    "http.jwt.algorithm": "hs512",
    "http.jwt.issuer": "shop.example",
    "http.jwt.audience": "shop.example",
    "http.jwt.valid_issuers": "shop.example",
    "http.jwt.valid_audiences": "shop.example",
    "http.jwt.access_token_expiry": "2 h",
    "http.jwt.clock_skew": "3 s",
    "http.jwt.not_before": "4 s",
    "http.jwt.encoding_secret": "c2VjcmV0",
    "http.jwt.decoding_secret": "c2VjcmV0",
    "http.jwt.use_base64_secret": "true",
    "http.metrics.endpoint": "/figures",
    "http.metrics.max_series": "7",
    "http.jwt.trusted_issuers": "[{issuer = 'a', jwks_url = 'https://a/keys', audience = 'b', user_id = 2}]",
    "http.tls.enabled": "true",
    "http.tls.self_signed": "false",
    "http.tls.cert_file": "certificate.pem",
    "http.tls.key_file": "key.pem",
    "ui.enabled": "false",
    "ui.read_only": "true",
    "ui.base_path": "/courser",
    "system.path": "elsewhere",
    "system.runtime.path": "elsewhere",
    "system.recovery.recreate_missing_state": "true",
    "system.disk_thread_count": "7",
    "system.staging.size_max": "3 GiB",
    "system.staging.expiry": "3 h",
    "server.processes": "3",
    "system.shutdown_timeout": "7s",
    "system.partition.enforce_fsync": "true",
    "system.partition.messages_required_to_save": "7",
    "system.partition.size_of_messages_required_to_save": "7",
    "message_saver.enabled": "false",
    "message_saver.enforce_fsync": "true",
    "message_saver.interval": "7s",
    "system.segment.size": "512 KiB",
    "system.segment.cache_indexes": "all",
    "system.segment.cache_time_indexes": "true",
    "system.segment.index_interval": "8 KiB",
    "system.topic.message_expiry": "7 days",
    "system.topic.max_size": "7 GB",
    "system.topic.delete_oldest_segments": "false",
    "data_maintenance.messages.cleaner_enabled": "false",
    "data_maintenance.messages.interval": "7s",
    "data_maintenance.disk.min_free_space": "7 GiB",
    "data_maintenance.condensing.percent": "77",
    "data_maintenance.condensing.tombstone_delay": "7h",
    "data_maintenance.condensing.rate": "7 MiB",
    "data_maintenance.scrubber.enabled": "false",
    "data_maintenance.scrubber.rate": "7 MiB",
    "data_maintenance.scrubber.interval": "7 days 7 hours",
    "system.partition.validate_checksum": "true",
    "system.partition.verify_frames": "true",
    "system.partition.poll_size_max": "7 MiB",
    "consumer_group.max_groups_per_topic": "7",
    "personal_access_token.max_tokens_per_user": "7",
    "personal_access_token.cleaner.enabled": "false",
    "personal_access_token.cleaner.interval": "7s",
    "heartbeat.enabled": "false",
    "heartbeat.interval": "7s",
    "tcp.address": "127.0.0.1:7",
    "tcp.connection_count_max": "7",
    "tcp.login_deadline": "7s",
    "tcp.idle_deadline": "7s",
    "tcp.frame_deadline": "7s",
    "tcp.frame_rate_min": "7 KiB",
    "tcp.send_deadline": "7s",
    "tcp.login_frame_size_max": "7 KiB",
    "tcp.frame_size_max": "7 MiB",
    "tcp.request_memory": "7 MiB",
    "tcp.reply_memory": "7 MiB",
    "tcp.classic_dialect": "0.6",
    "tcp.classic_dialects": "alice=0.5",
    "tcp.tls.enabled": "true",
    "tcp.tls.self_signed": "false",
    "tcp.tls.cert_file": "cert.pem",
    "tcp.tls.key_file": "key.pem",
    "tcp.socket.override_defaults": "true",
    "tcp.socket.recv_buffer_size": "7 KiB",
    "tcp.socket.send_buffer_size": "7 KiB",
    "tcp.socket.keepalive": "true",
    "tcp.socket.nodelay": "true",
    "tcp.socket.linger": "7s",
    "websocket.enabled": "false",
    "websocket.address": "127.0.0.1:7",
    "websocket.tls.enabled": "true",
    "websocket.tls.self_signed": "false",
    "websocket.tls.cert_file": "cert.pem",
    "websocket.tls.key_file": "key.pem",
    "quic.enabled": "true",
    "quic.address": "127.0.0.1:7",
    "quic.max_idle_timeout": "7s",
    "quic.certificate.self_signed": "false",
    "quic.certificate.cert_file": "cert.pem",
    "quic.certificate.key_file": "key.pem",
    "system.logging.path": "elsewhere",
    "system.logging.level": "debug",
    "system.logging.format": "json",
    "system.logging.file_enabled": "false",
    "system.logging.max_file_size": "7 MB",
    "system.logging.max_total_size": "7 GB",
    "system.logging.rotation_check_interval": "7s",
    "system.logging.retention": "7s",
    "system.logging.sysinfo_print_interval": "7s",
    "telemetry.enabled": "true",
    "telemetry.service_name": "shop",
    "telemetry.traces.transport": "grpc",
    "telemetry.traces.endpoint": "http://collector:4318/v1/traces",
    "telemetry.traces.one_in": "7",
    "telemetry.logs.transport": "grpc",
    "telemetry.logs.endpoint": "http://[::1]:4318/v1/logs",
    "telemetry.metrics.transport": "grpc",
    "telemetry.metrics.endpoint": "https://collector/v1/metrics",
    "telemetry.metrics.interval": "7s",
}
ONLY_CHECKED = {
    "tcp.enabled": "false",
    "data_maintenance.messages.archiver_enabled": "true",
    "data_maintenance.state.archiver_enabled": "true",
}
"""Values that are refused if they would matter, and are no settings."""
SWITCHES = [
    f"system.encryption.key={base64.b64encode(bytes(32)).decode()}",
    "system.message_deduplication.enabled=true",
    "data_maintenance.archiver.enabled=true",
    "tcp.tls.enabled=true",
    "websocket.tls.enabled=true",
    "quic.enabled=true",
    "http.tls.enabled=true",
    "http.jwt.decoding_secret=YQ==",
    "tcp.socket.override_defaults=true",
    "telemetry.enabled=true",
]
"""Without them the keys of their tables are not looked at."""


@pytest.mark.parametrize("path", OTHER_VALUES)
def test_another_value_gives_other_settings(path: str) -> None:
    others = [switch for switch in SWITCHES if not switch.startswith(f"{path}=")]
    table = path.removeprefix("data_maintenance.archiver.").partition(".")[0]
    if table in ("s3", "gcs", "azure"):
        others.append(f"data_maintenance.archiver.kind={table}")
    before = settings_of(load(settings=others))
    after = settings_of(load(settings=[*others, f"{path}={OTHER_VALUES[path]}"]))
    assert after != before


def test_no_key_is_forgotten() -> None:
    assert {key.path for key in LIVE_KEYS} == OTHER_VALUES.keys() | ONLY_CHECKED.keys()


def test_defaults_are_those_of_the_parts() -> None:
    settings = settings_of(load())
    assert settings.broker == type(settings.broker)()
    assert settings.connections == type(settings.connections)()
    assert settings.tcp == type(settings.tcp)()


def test_levels_of_the_environment_come_first() -> None:
    configuration = load(settings=["system.logging.level=debug"])
    levels = parse_log_levels("error")
    assert settings_of(configuration, log_levels=levels).logging.levels == levels
    assert settings_of(configuration).logging.levels == configuration[LOG_LEVEL]


def test_sockets_are_as_usual_unless_the_switch_is_on() -> None:
    assert settings_of(load(settings=["tcp.socket.linger=1500ms"])).tcp.socket is None
    settings = settings_of(load(settings=["tcp.socket.override_defaults=true", "tcp.socket.linger=1500ms"]))
    assert settings.tcp.socket == SocketSettings(linger=1_500_000)


def test_as_many_processes_as_cores_can_be_asked_for() -> None:
    cores = len(os.sched_getaffinity(0))
    assert settings_of(load(settings=["server.processes=auto"])).process_count == min(cores, 64)
    assert settings_of(load(settings=["server.processes=3"])).process_count == 3
    assert settings_of(load()).process_count == 1


@dataclass(frozen=True)
class Pretended:
    """Settings of a part that there is not."""

    secret: str = setting("part.secret", kinds.OPTIONAL_TEXT, "", "a secret", is_secret=True)
    delay: int = setting("part.delay", kinds.duration(), 7, "a delay", aliases=("part.pause",))
    other: int = 0


def test_one_field_states_a_key() -> None:
    assert Pretended() == Pretended(secret="", delay=7, other=0)
    keys = list(keys_in({"Pretended": Pretended, "__name__": __name__}))
    assert [key.path for key in keys] == ["part.secret", "part.delay"]
    configuration = loading.load(KeyIndex(keys), settings=["part.secret=canary", "part.pause=3s"])
    filled = configuration.fill(Pretended, other=1)
    assert filled == Pretended(secret="canary", delay=3_000_000, other=1)
    assert "canary" not in repr(filled)
    assert key_of(Pretended, "delay").spellings == ("part.delay", "part.pause")
    assert list(keys_in({"Pretended": Pretended, "__name__": "imports.it"})) == []
