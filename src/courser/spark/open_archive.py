"""The archive: where it is, and what one process knows of it.

The options ``archive.*`` and ``archiveConfig`` are the settings of the server's ``[data_maintenance.archiver]``, with
the same names, kinds and sources: the server's configuration file, the driver's environment, and options, in this
order. The driver resolves them once.

A process knows the newest root, and the catalog and the manifests that it names. Objects never change, so what was
read once is kept as long as the newest root names it.
"""

import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from threading import RLock

from courser.archive.errors import ArchiveMissing
from courser.archive.objects import PartitionRoot
from courser.archive.reader import ArchiveReader, FoundRoot, PartitionArchive, choose_cluster, open_archive_store
from courser.archive.restore_plan import catalog_of
from courser.archive.settings import TABLE, ArchiveSettings, StoreSettings, load_archiver, place_keys, usable_store
from courser.catalog.entities import Partition, Topic
from courser.catalog.state import CatalogState
from courser.configuration.environment import configuration_path, with_file
from courser.configuration.key import key_of
from courser.errors import ConfigurationRefused
from courser.records.stored_header import PartitionIdentity
from courser.spark.options import ARCHIVE_PREFIX, OptionRefused
from courser.storage.local_files import LocalFileSystem

INDEX_CACHE_SIZE = 2 * 1024 * 1024
"""Bytes of memory for searches in indexes. Blocks are an eighth of it: a search needs few bytes here and there."""


@dataclass(frozen=True, slots=True)
class ArchiveAccess:
    """An archive. Its secrets are not shown by ``repr``."""

    store: StoreSettings
    cluster: str = ""
    """The beginning of its id, if the store has several."""


def archive_access(
    given: Mapping[str, str], configuration_file: str | None, environment: Mapping[str, str]
) -> ArchiveAccess:
    """The archive that the options name. ``given`` are those that begin with ``archive.``, by the rest of their names.

    Raises:
        OptionRefused: one of them is unknown or invalid, or something is missing.
    """
    places = {path.removeprefix(TABLE) for key in place_keys() for path in key.spellings if path.startswith(TABLE)}
    if others := sorted(given.keys() - places):
        known = ", ".join(f"{ARCHIVE_PREFIX}{name}" for name in sorted(places))
        raise OptionRefused(f'unknown option "{ARCHIVE_PREFIX}{others[0]}"; the options of the archive are {known}')
    settings = [f"{TABLE}{name}={text}" for name, text in given.items()]
    path = None if configuration_file is None else Path(configuration_file)
    try:
        variables = with_file(environment)
        configuration = load_archiver(path or configuration_path(variables), variables, settings)
        store = usable_store(configuration)
    except ConfigurationRefused as refusal:
        raise OptionRefused("; ".join(map(_as_option, refusal.problems))) from None
    # Tasks may have another working directory.
    return ArchiveAccess(replace(store, path=store.path.absolute()), configuration[key_of(ArchiveSettings, "cluster")])


def _as_option(problem: str) -> str:
    """A problem with a setting, in the words of the options."""
    return problem.replace(TABLE, ARCHIVE_PREFIX).replace(" (--set)", "")


class OpenArchive:
    """An archive. Calls may come from several threads. Every method may raise ``ArchiveFailure``."""

    def __init__(self, access: ArchiveAccess) -> None:
        self.store = open_archive_store(access.store, LocalFileSystem(), os.urandom(16))
        self._reader = ArchiveReader(self.store, choose_cluster(self.store, access.cluster))
        self._lock = RLock()
        self._root: FoundRoot | None = None
        self._looked_at = 0.0
        """When the newest root was looked for, by the monotonic clock."""
        self._catalog: tuple[str, CatalogState] | None = None
        """With the key that it was read from."""
        self._partitions: dict[str, PartitionArchive] = {}
        """By the key of the manifest."""

    def refresh(self, age_max: float = 0.0) -> None:
        """Look for the newest root, unless that was done within the last ``age_max`` seconds."""
        with self._lock:
            now = time.monotonic()
            known = self._root
            if known is not None and now - self._looked_at < age_max:
                return
            found = self._reader.newest_root() if known is None else self._reader.root_after(known)
            if found is None:
                raise ArchiveMissing("read", self.store.name, "no run of the archiver has been completed yet")
            self._root, self._looked_at = found, now
            named = {partition.manifest_key for partition in found.root.partitions}
            self._partitions = {key: archive for key, archive in self._partitions.items() if key in named}

    def _newest(self) -> FoundRoot:
        if self._root is None:
            self.refresh()
        assert self._root is not None, "refresh finds one, or raises"
        return self._root

    def _state(self) -> CatalogState:
        with self._lock:
            root = self._newest().root
            if self._catalog is None or self._catalog[0] != root.metadata_key:
                self._catalog = root.metadata_key, catalog_of(self._reader, root)[1]
            return self._catalog[1]

    def find_topic(self, stream: str, topic: str) -> Topic | None:
        """A topic by its names."""
        state = self._state()
        stream_id = state.stream_by_name.get(stream)
        if stream_id is None:
            return None
        topic_id = state.topic_by_name.get((stream_id, topic))
        return None if topic_id is None else state.topic(stream_id, topic_id)

    def topic_of(self, uuid: bytes) -> Topic | None:
        """A topic by its id, whatever its name is now."""
        return next((topic for topic in self._topics() if topic.uuid == uuid), None)

    def _topics(self) -> Iterator[Topic]:
        for stream in self._state().streams.values():
            yield from stream.topics.values()

    def numbers(self, identity: PartitionIdentity) -> PartitionRoot | None:
        """What the root says about a partition; None if the partition was created after the run began."""
        return next((found for found in self._newest().root.partitions if found.identity == identity), None)

    def partition(self, identity: PartitionIdentity) -> PartitionArchive | None:
        """The archived log of a partition; None if nothing of it is archived."""
        with self._lock:
            numbers = self.numbers(identity)
            if numbers is None or not numbers.manifest_key:
                return None
            if numbers.manifest_key not in self._partitions:
                manifest = self._reader.manifest(numbers)
                self._partitions[numbers.manifest_key] = PartitionArchive(self.store, self._reader.keys, manifest)
            return self._partitions[numbers.manifest_key]


def partition_in(topic: Topic, partition_id: int) -> Partition | None:
    """A partition of a topic, by its number."""
    return next((found for found in topic.partitions if found.partition_id == partition_id), None)
