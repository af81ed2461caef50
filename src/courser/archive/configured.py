"""The settings of the archive, made from the configuration."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from courser.archive import configuration_keys as keys
from courser.archive.settings import ArchiveMoment, ArchiveSettings, StoreKind, StoreSettings
from courser.configuration.key import Key
from courser.configuration.key_index import KeyIndex
from courser.configuration.loading import Configuration, load
from courser.errors import ConfigurationRefused


def load_archiver(path: Path | None, environment: Mapping[str, str], settings: Sequence[str]) -> Configuration:
    """The archiver's part of a server's configuration, for those who have no server.

    Raises:
        ConfigurationRefused: lists every problem.
    """
    own = [value for value in vars(keys).values() if isinstance(value, Key)]
    return load(KeyIndex((*own, *keys.STOCK_KEYS)), path, environment, settings, table=keys.TABLE)


def store_settings(configuration: Configuration) -> StoreSettings:
    """The store, whether or not anything is missing."""
    kind = StoreKind(configuration[keys.ARCHIVE_KIND])
    timeout = configuration[keys.ARCHIVE_TIMEOUT]
    match kind:
        case StoreKind.DISK:
            return StoreSettings(path=configuration[keys.ARCHIVE_PATH], request_timeout=timeout)
        case StoreKind.S3:
            return StoreSettings(
                kind=kind,
                bucket=configuration[keys.S3_BUCKET],
                key_prefix=configuration[keys.S3_KEY_PREFIX],
                region=configuration[keys.S3_REGION],
                endpoint=configuration[keys.S3_ENDPOINT],
                access_key_id=configuration[keys.S3_ACCESS_KEY_ID],
                secret_access_key=configuration[keys.S3_SECRET_ACCESS_KEY],
                path_style=configuration[keys.S3_PATH_STYLE],
                request_timeout=timeout,
            )
        case StoreKind.GCS:
            return StoreSettings(
                kind=kind,
                bucket=configuration[keys.GCS_BUCKET],
                key_prefix=configuration[keys.GCS_KEY_PREFIX],
                credentials_file=configuration[keys.GCS_CREDENTIALS_FILE],
                endpoint=configuration[keys.GCS_ENDPOINT],
                request_timeout=timeout,
            )
        case StoreKind.AZURE:
            return StoreSettings(
                kind=kind,
                bucket=configuration[keys.AZURE_CONTAINER],
                key_prefix=configuration[keys.AZURE_KEY_PREFIX],
                account=configuration[keys.AZURE_ACCOUNT],
                secret_access_key=configuration[keys.AZURE_ACCESS_KEY],
                endpoint=configuration[keys.AZURE_ENDPOINT],
                request_timeout=timeout,
            )


def store_problems(configuration: Configuration) -> Iterator[str]:
    """What is missing to use the store."""
    kind = StoreKind(configuration[keys.ARCHIVE_KIND])
    for needed in keys.BUCKETS[kind]:
        if not configuration[needed]:
            yield f"{needed.path} is required if {keys.ARCHIVE_KIND.path} is {kind.value}"
    has_id = bool(configuration[keys.S3_ACCESS_KEY_ID])
    if kind is StoreKind.S3 and has_id != bool(configuration[keys.S3_SECRET_ACCESS_KEY]):
        missing = keys.S3_SECRET_ACCESS_KEY if has_id else keys.S3_ACCESS_KEY_ID
        yield f"{missing.path} is required: an access key has two parts"


def usable_store(configuration: Configuration) -> StoreSettings:
    """The store, for those who need it, whether or not the archiver is enabled.

    Raises:
        ConfigurationRefused: lists what is missing.
    """
    if problems := list(store_problems(configuration)):
        raise ConfigurationRefused(problems)
    return store_settings(configuration)


def archive_settings(configuration: Configuration, last_run_timeout: int) -> ArchiveSettings | None:
    """The archiver; None if it is disabled. ``last_run_timeout``: microseconds that a stop waits for its last run."""
    if not configuration[keys.ARCHIVER_ENABLED]:
        return None
    return ArchiveSettings(
        store=store_settings(configuration),
        moment=ArchiveMoment(configuration[keys.ARCHIVE_AT]),
        protects_expired=configuration[keys.ARCHIVE_EXPIRED],
        interval=configuration[keys.ARCHIVE_INTERVAL],
        active_interval=configuration[keys.ACTIVE_INTERVAL],
        bandwidth=configuration[keys.ARCHIVE_BANDWIDTH],
        part_size=configuration[keys.ARCHIVE_PART_SIZE],
        retention=configuration[keys.ARCHIVE_RETENTION],
        cache_size=configuration[keys.ARCHIVE_CACHE_SIZE],
        last_run_timeout=last_run_timeout,
        cluster=configuration[keys.ARCHIVE_CLUSTER],
        take_over=configuration[keys.TAKE_OVER],
        restore_on_start=configuration[keys.RESTORE_ON_START],
    )
