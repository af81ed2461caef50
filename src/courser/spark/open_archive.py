"""An archive as one process sees it: the newest root, the catalog and the manifests that it names.

Objects never change, so what was read once is kept as long as the newest root names it. Every method may raise
``ArchiveFailure``.
"""

import os
import time
from collections.abc import Callable, Iterator
from threading import RLock

from courser.archive.errors import ArchiveMissing
from courser.archive.objects import PartitionRoot
from courser.archive.reader import ArchiveReader, FoundRoot, PartitionArchive, choose_cluster, open_archive_store
from courser.archive.restore_plan import catalog_of
from courser.catalog.entities import Partition, Topic
from courser.catalog.state import CatalogState
from courser.records.stored_header import PartitionIdentity
from courser.spark.archive_access import ArchiveAccess
from courser.storage.local_files import LocalFileSystem

INDEX_CACHE_SIZE = 2 * 1024 * 1024
"""Bytes of memory for searches in indexes. Blocks are an eighth of it: a search needs few bytes here and there."""


class OpenArchive:
    """An archive. Calls may come from several threads."""

    def __init__(self, access: ArchiveAccess, clock: Callable[[], float] = time.monotonic) -> None:
        self.store = open_archive_store(access.store, LocalFileSystem(), os.urandom(16))
        self._reader = ArchiveReader(self.store, choose_cluster(self.store, access.cluster))
        self._clock = clock
        self._lock = RLock()
        self._root: FoundRoot | None = None
        self._looked_at = 0.0
        """When the newest root was looked for, by the clock."""
        self._catalog: tuple[str, CatalogState] | None = None
        """With the key that it was read from."""
        self._partitions: dict[str, PartitionArchive] = {}
        """By the key of the manifest."""

    def refresh(self, age_max: float = 0.0) -> None:
        """Look for the newest root, unless that was done within the last ``age_max`` seconds."""
        with self._lock:
            now = self._clock()
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
