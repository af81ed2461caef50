"""The settings of the archive, made from the configuration."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from courser.archive.settings import (
    ARCHIVE_KEYS,
    ARCHIVE_KIND,
    ARCHIVER_ENABLED,
    STORE_KEYS,
    TABLE,
    ArchiveSettings,
    StoreKind,
    StoreSettings,
)
from courser.configuration.key import AnyKey, fields_with_keys, key_of
from courser.configuration.key_index import KeyIndex
from courser.configuration.loading import Configuration, load
from courser.errors import ConfigurationRefused

_NEEDED = {
    StoreKind.DISK: (),
    StoreKind.S3: ("bucket",),
    StoreKind.GCS: ("bucket",),
    StoreKind.AZURE: ("account", "bucket"),
}
"""The settings that a kind needs."""


def place_keys() -> Iterator[AnyKey]:
    """The keys that say where the archive is: all that a reader needs."""
    yield from (key_of(ArchiveSettings, "cluster"), *fields_with_keys(StoreSettings).values())
    for keys in STORE_KEYS.values():
        yield from keys.values()


def load_archiver(path: Path | None, environment: Mapping[str, str], settings: Sequence[str]) -> Configuration:
    """The archiver's part of a server's configuration, for those who have no server.

    Raises:
        ConfigurationRefused: lists every problem.
    """
    return load(KeyIndex(ARCHIVE_KEYS), path, environment, settings, table=TABLE)


def store_settings(configuration: Configuration) -> StoreSettings:
    """The store, whether or not anything is missing."""
    keys = STORE_KEYS[configuration[ARCHIVE_KIND]]
    return configuration.fill(StoreSettings, **{name: configuration[key] for name, key in keys.items()})


def store_problems(configuration: Configuration) -> Iterator[str]:
    """What is missing to use the store."""
    kind = configuration[ARCHIVE_KIND]
    keys, store = STORE_KEYS[kind], store_settings(configuration)
    for name in _NEEDED[kind]:
        if not getattr(store, name):
            yield f"{keys[name].path} is required if {ARCHIVE_KIND.path} is {kind.value}"
    if kind is StoreKind.S3 and bool(store.access_key_id) != bool(store.secret_access_key):
        missing = keys["secret_access_key" if store.access_key_id else "access_key_id"]
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
    if not configuration[ARCHIVER_ENABLED]:
        return None
    store = store_settings(configuration)
    return configuration.fill(ArchiveSettings, store=store, last_run_timeout=last_run_timeout)
