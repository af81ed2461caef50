"""Every TOML block and every environment variable of the durable storage guide loads, and takes effect or is refused.

The blocks are written as the guide gives them: same keys, same values.
"""

from pathlib import Path

import pytest

from courser.archive.settings import StoreKind, StoreSettings
from courser.broker.partition.topic_settings import durability_of as durability_policy
from courser.broker.settings import BrokerSettings
from courser.configuration.loading import Configuration
from courser.errors import ConfigurationRefused
from courser.model.durability import Durability
from courser.model.quantities import NEVER, SECOND
from courser.model.topic_options import TopicOptions
from courser.server.configuration.checks import check
from courser.server.configuration.loading import load
from courser.server.configuration.settings import ServerSettings, settings_of
from courser.storage.segment_index import IndexCache

DAY = 86_400 * SECOND


def load_block(tmp_path: Path, text: str, name: str = "server.toml") -> Configuration:
    path = tmp_path / name
    path.write_text(text)
    return load(path)


def start_with(tmp_path: Path, text: str) -> ServerSettings:
    configuration = load_block(tmp_path, text)
    check(configuration)
    assert configuration.warnings == ()
    return settings_of(configuration)


def test_the_data_directory(tmp_path: Path) -> None:
    assert start_with(tmp_path, '[system]\npath = "local_data"\n').data_directory == Path("local_data")
    settings = settings_of(load(None, {"IGGY_SYSTEM_PATH": "/var/lib/iggy/data"}))
    assert settings.data_directory == Path("/var/lib/iggy/data")


MESSAGE_SAVER = """
[system.partition.message_saver]
enabled = true
enforce_fsync = true
interval = "1s"
"""


def test_the_message_saver(tmp_path: Path) -> None:
    broker = start_with(tmp_path, MESSAGE_SAVER).broker
    assert (broker.saver_enforce_fsync, broker.saver_interval) == (True, SECOND)


def test_the_message_saver_where_iggy_really_has_it(tmp_path: Path) -> None:
    text = MESSAGE_SAVER.replace("system.partition.", "").replace('"1s"', '"30 s"')
    assert start_with(tmp_path, text).broker.saver_interval == 30 * SECOND


MAXIMUM = """
[system.partition]
enforce_fsync = true
messages_required_to_save = 1
"""


def durability_of(broker: BrokerSettings) -> tuple[bool | None, int | None]:
    return broker.topic_defaults.enforce_fsync, broker.topic_defaults.messages_required_to_save


def test_a_sync_per_message(tmp_path: Path) -> None:
    assert durability_of(start_with(tmp_path, MAXIMUM).broker) == (True, 1)
    variables = {
        "IGGY_SYSTEM_PARTITION_ENFORCE_FSYNC": "true",
        "IGGY_SYSTEM_PARTITION_MESSAGES_REQUIRED_TO_SAVE": "1",
    }
    assert durability_of(settings_of(load(None, variables)).broker) == (True, 1)


SEGMENT = """
[system.segment]
size = "1 GB"
cache_indexes = true
cache_time_indexes = true
validate_checksum = true
"""


def test_segments(tmp_path: Path) -> None:
    broker = start_with(tmp_path, SEGMENT).broker
    assert broker.topic_defaults.segment_size == 10**9
    assert broker.index_cache is IndexCache.ALL
    assert broker.validate_checksum is True


def test_one_index_holds_offsets_and_times(tmp_path: Path) -> None:
    text = "[system.segment]\ncache_time_indexes = {}\n"
    assert start_with(tmp_path, text.format("true")).broker.index_cache is IndexCache.ALL
    assert start_with(tmp_path, text.format("false")).broker.index_cache is IndexCache.OPEN_SEGMENT


def test_checksums(tmp_path: Path) -> None:
    assert start_with(tmp_path, "[system.segment]\nvalidate_checksum = true\n").broker.validate_checksum is True


@pytest.mark.parametrize(
    ("text", "expiry"), [("7 days", 7 * DAY), ("2 days 4 hours", 2 * DAY + 4 * 3600 * SECOND), ("none", NEVER)]
)
def test_expiry_in_each_of_its_forms(tmp_path: Path, text: str, expiry: int) -> None:
    settings = start_with(tmp_path, f'[system.segment]\nmessage_expiry = "{text}"\n')
    assert settings.broker.topic_defaults.message_expiry == expiry


def test_the_three_forms_in_one_block_are_no_toml(tmp_path: Path) -> None:
    text = '[system.segment]\nmessage_expiry = "7 days"\nmessage_expiry = "2 days 4 hours"\nmessage_expiry = "none"\n'
    with pytest.raises(ConfigurationRefused, match="not valid TOML"):
        load_block(tmp_path, text)


TOPIC = """
[topic]
max_topic_size = "10 GB"
delete_oldest_segments = true
"""


def test_the_size_of_topics(tmp_path: Path) -> None:
    broker = start_with(tmp_path, TOPIC).broker
    assert broker.topic_defaults.max_topic_size == 10**10
    assert broker.delete_oldest_segments is True
    assert start_with(tmp_path, TOPIC.replace("true", "false")).broker.delete_oldest_segments is False


DISK_ARCHIVE = """
[data_maintenance.archiver]
enabled = true
kind = "disk"
archive_expired = true
path = "/var/lib/iggy/archive"
"""

S3_ARCHIVE = """
[data_maintenance.archiver]
enabled = true
kind = "s3"
archive_expired = true

[data_maintenance.archiver.s3]
access_key_id = "your-access-key"
secret_access_key = "your-secret-key"
bucket = "iggy-backups"
key_prefix = "production/iggy/"
region = "us-east-1"
endpoint = "https://minio.example.com"
tmp_upload_dir = "/tmp/iggy-upload"
"""

MINIO_ARCHIVE = """
[data_maintenance.archiver]
enabled = true
kind = "s3"
archive_expired = true

[data_maintenance.archiver.s3]
access_key_id = "minioadmin"
secret_access_key = "minioadmin"
bucket = "iggy-archive"
endpoint = "http://minio:9000"
region = "us-east-1"
tmp_upload_dir = "/tmp/iggy-s3-staging"
"""


def test_the_archive_on_disk(tmp_path: Path) -> None:
    archive = start_with(tmp_path, DISK_ARCHIVE).broker.archive
    assert archive is not None
    assert archive.store == StoreSettings(path=Path("/var/lib/iggy/archive"), request_timeout=60 * SECOND)
    assert archive.protects_expired is True


@pytest.mark.parametrize("text", [S3_ARCHIVE, MINIO_ARCHIVE])
def test_the_archive_in_s3(tmp_path: Path, text: str) -> None:
    configuration = load_block(tmp_path, text)
    check(configuration)
    (warning,) = configuration.warnings
    assert warning.endswith("ignored: data_maintenance.archiver.s3.tmp_upload_dir"), "nothing is staged"
    archive = settings_of(configuration).broker.archive
    assert archive is not None
    store = archive.store
    assert store.kind is StoreKind.S3
    assert store.region == "us-east-1"
    assert store.endpoint in ("https://minio.example.com", "http://minio:9000")
    assert store.secret_access_key not in repr(store)
    check(load_block(tmp_path, text.replace("enabled = true", "enabled = false")))


def test_recovery(tmp_path: Path) -> None:
    settings = start_with(tmp_path, "[system.recovery]\nrecreate_missing_state = true\n")
    assert settings.broker.recreate_missing_state is True
    variables = {"IGGY_SYSTEM_RECOVERY_RECREATE_MISSING_STATE": "true"}
    assert settings_of(load(None, variables)).broker.recreate_missing_state is True


HIGH_THROUGHPUT = """
[system.partition]
enforce_fsync = false

[system.partition.message_saver]
enabled = true
enforce_fsync = false
interval = "5s"
"""

BALANCED = """
[system.partition]
enforce_fsync = true
messages_required_to_save = 100

[system.partition.message_saver]
enabled = true
enforce_fsync = true
interval = "1s"
"""

CRITICAL = """
[system.partition]
enforce_fsync = true
messages_required_to_save = 1

[system.partition.message_saver]
enabled = true
enforce_fsync = true
"""


@pytest.mark.parametrize(
    ("text", "durability", "saver"),
    [
        (HIGH_THROUGHPUT, (False, 1024), (False, 5 * SECOND)),
        (BALANCED, (True, 100), (True, SECOND)),
        (CRITICAL, (True, 1), (True, SECOND)),
    ],
)
def test_the_three_profiles(tmp_path: Path, text: str, durability: tuple[bool, int], saver: tuple[bool, int]) -> None:
    broker = start_with(tmp_path, text).broker
    assert durability_of(broker) == durability
    assert (broker.saver_enforce_fsync, broker.saver_interval) == saver


@pytest.mark.parametrize(
    ("text", "level", "message_count", "interval"),
    [
        (MAXIMUM, Durability.SYNCED, None, None),
        (CRITICAL, Durability.SYNCED, None, None),
        (BALANCED, Durability.BOUNDED, 100, SECOND),
        # The saver's flag alone bounds the time, and any number of messages may come in it.
        (MESSAGE_SAVER, Durability.BOUNDED, None, SECOND),
        (HIGH_THROUGHPUT, Durability.WRITTEN, None, None),
    ],
)
def test_what_an_acknowledgement_promises(
    tmp_path: Path, text: str, level: Durability, message_count: int | None, interval: int | None
) -> None:
    policy = durability_policy(TopicOptions(), start_with(tmp_path, text).broker)
    assert policy.level is level
    if message_count is not None:
        assert policy.message_count_max == message_count
    if interval is not None:
        assert policy.interval == interval


PRODUCTION = """
# server.toml - Production Configuration

[system]
path = "/var/lib/iggy/data"

[system.partition]
enforce_fsync = true
messages_required_to_save = 100

[system.partition.message_saver]
enabled = true
enforce_fsync = true
interval = "1s"

[system.segment]
size = "1 GB"
cache_indexes = true
cache_time_indexes = true
validate_checksum = true
message_expiry = "7 days"

[system.recovery]
recreate_missing_state = true

[data_maintenance.archiver]
enabled = true
kind = "s3"
archive_expired = true

[data_maintenance.archiver.s3]
bucket = "your-iggy-backups"
region = "us-east-1"
key_prefix = "production/"
tmp_upload_dir = "/tmp/iggy-upload"
"""

TEMPLATE = """
[system]
path = "local_data"

[system.partition]
enforce_fsync = true
messages_required_to_save = 100

[system.partition.message_saver]
enabled = true
enforce_fsync = true
interval = "1s"

[system.segment]
size = "1 GB"
cache_indexes = true
cache_time_indexes = true
validate_checksum = true
message_expiry = "7 days"

[system.recovery]
recreate_missing_state = true

[data_maintenance.archiver]
enabled = true
kind = "s3"
archive_expired = true

[data_maintenance.archiver.disk]
path = "/var/lib/iggy/archive"

[data_maintenance.archiver.s3]
access_key_id = ""
secret_access_key = ""
bucket = "iggy-backups"
key_prefix = "production/"
region = "us-east-1"
endpoint = ""
tmp_upload_dir = "/tmp/iggy-upload"
"""


@pytest.mark.parametrize(("text", "path"), [(PRODUCTION, "/var/lib/iggy/data"), (TEMPLATE, "local_data")])
def test_whole_files_work(tmp_path: Path, text: str, path: str) -> None:
    configuration = load_block(tmp_path, text, "config.toml")
    check(configuration)
    (warning,) = configuration.warnings
    assert warning.endswith("ignored: data_maintenance.archiver.s3.tmp_upload_dir")
    archive = settings_of(configuration).broker.archive
    assert archive is not None
    assert (archive.store.kind, archive.store.key_prefix) == (StoreKind.S3, "production/")
    settings = settings_of(configuration)
    assert settings.data_directory == Path(path)
    assert settings.broker.topic_defaults.message_expiry == 7 * DAY
    assert durability_of(settings.broker) == (True, 100)
    assert settings.broker.recreate_missing_state is True


def test_the_table_of_variables(tmp_path: Path) -> None:
    defaults = {
        "IGGY_SYSTEM_PATH": "local_data",
        "IGGY_SYSTEM_PARTITION_ENFORCE_FSYNC": "false",
        "IGGY_SYSTEM_PARTITION_MESSAGES_REQUIRED_TO_SAVE": "10000",
        "IGGY_SYSTEM_SEGMENT_SIZE": "1073741824",
        "IGGY_SYSTEM_SEGMENT_CACHE_INDEXES": "true",
        "IGGY_SYSTEM_SEGMENT_VALIDATE_CHECKSUM": "false",
        "IGGY_SYSTEM_SEGMENT_MESSAGE_EXPIRY": "none",
        "IGGY_SYSTEM_RECOVERY_RECREATE_MISSING_STATE": "false",
        "IGGY_DATA_MAINTENANCE_ARCHIVER_ENABLED": "false",
        "IGGY_DATA_MAINTENANCE_ARCHIVER_KIND": "disk",
    }
    configuration = load(None, defaults)
    check(configuration)
    assert configuration.warnings == ()
    broker = settings_of(configuration).broker
    assert durability_of(broker) == (False, 10_000)
    assert broker.topic_defaults.segment_size == 1024**3
    assert broker.index_cache is IndexCache.ALL
    assert broker.archive is None
    enabled = load(None, defaults | {"IGGY_DATA_MAINTENANCE_ARCHIVER_ENABLED": "true"})
    check(enabled)
    assert settings_of(enabled).broker.archive is not None
