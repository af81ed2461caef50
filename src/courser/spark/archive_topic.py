"""The metadata of a topic, from the archive: for reads without a server.

It is as of the newest root: what the archiver uploaded after it is not known yet.
"""

import time

from courser.archive.archived_log import ArchivedLog, ArchivedSegments
from courser.archive.object_cache import ObjectCache
from courser.archive.reader import PartitionArchive
from courser.catalog.directories import identity_of
from courser.catalog.entities import Topic
from courser.records.stored_header import PartitionIdentity
from courser.spark.background_clients import archive_at, with_retries
from courser.spark.errors import SourceMissing
from courser.spark.open_archive import INDEX_CACHE_SIZE, ArchiveAccess, OpenArchive, partition_in
from courser.spark.option_kinds import OFFSET_MAX
from courser.spark.topic_metadata import Bounds, Following, ListedSegment, TopicFacts, gaps_between
from courser.storage.read_result import SkipReason
from courser.storage.settings import LogSettings

ROOT_AGE_MAX = 5.0
"""Seconds for which a stream uses the root that it knows: the archiver makes one a minute."""


class ArchiveTopic:
    """One topic of an archive."""

    def __init__(
        self, access: ArchiveAccess, stream: str, topic: str, retries: int, *, root_age_max: float = 0.0
    ) -> None:
        """``root_age_max``: for how many seconds to use the root that is known."""
        self._access = access
        self._stream = stream
        self._topic = topic
        self._retries = retries
        self._root_age_max = root_age_max

    def facts(self) -> TopicFacts:
        """Looks for a newer root. Raises ``SourceMissing`` if there is no such topic."""

        def newest() -> TopicFacts:
            archive = archive_at(self._access)
            archive.refresh(self._root_age_max)
            topic = self._find(archive)
            identities = [identity_of(topic, partition) for partition in topic.partitions]
            return TopicFacts(topic.uuid, {one.partition_id: _bounds(archive, one) for one in identities})

        return with_retries(newest, self._retries)

    def _find(self, archive: OpenArchive) -> Topic:
        topic = archive.find_topic(self._stream, self._topic)
        if topic is None:
            raise SourceMissing(
                f"topic {self._stream}/{self._topic} does not exist in the archive {archive.store.name}"
            )
        return topic

    def _partition(self, partition_id: int) -> PartitionArchive | None:
        archive = archive_at(self._access)
        topic = self._find(archive)
        partition = partition_in(topic, partition_id)
        return None if partition is None else archive.partition(identity_of(topic, partition))

    def segments(self, partition: int) -> list[ListedSegment]:  # noqa: ARG002
        """The archive has objects instead."""
        return []

    def is_reserved(self, partition: int, first: int, end: int) -> bool:
        """Whether the manifest records these offsets as a gap."""
        found = with_retries(lambda: self._partition(partition), self._retries)
        missing = () if found is None else found.missing_between(first, end)
        return all(reason is SkipReason.RESERVED for _, _, reason in missing)

    def offset_at_time(self, partition: int, moment: int) -> int | None:
        """Reads the index of one object, and a few headers."""
        return with_retries(lambda: self._offset_at_time(partition, moment), self._retries)

    def _offset_at_time(self, partition: int, moment: int) -> int | None:
        found = self._partition(partition)
        if found is None or not found.manifest.pieces:
            return None
        cache = ObjectCache(INDEX_CACHE_SIZE)
        try:
            log = ArchivedLog(ArchivedSegments(cache), found, LogSettings(), OFFSET_MAX)
            offset = log.offset_at_time(moment)
        finally:
            cache.close()
        return offset if offset < found.manifest.pieces[-1].end_offset else None

    def wait(self, following: Following, seconds: float) -> bool:  # noqa: ARG002
        """Wait. An archive does not tell when a run has ended."""
        time.sleep(seconds)
        return True


def _bounds(archive: OpenArchive, identity: PartitionIdentity) -> Bounds:
    found, numbers = archive.partition(identity), archive.numbers(identity)
    pieces = () if found is None else found.manifest.pieces
    if not pieces:
        # What the server has is not archived yet: a stream begins there once it is.
        start = 0 if numbers is None else numbers.start_offset
        return Bounds(start, start, 0, 0)
    size = sum(piece.size for piece in pieces)
    message_count = sum(piece.message_count for piece in pieces)
    first, end = pieces[0].first_offset, pieces[-1].end_offset
    gaps = gaps_between(first, end, ((piece.first_offset, piece.end_offset) for piece in pieces))
    return Bounds(first, end, size, message_count, gaps)
