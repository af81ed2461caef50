"""Chooses what is asked about a topic and where its messages are read from: ``source``, ``path``, ``archive.*``."""

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path

from courser.archive.archived_log import pieces_below
from courser.archive.objects import Piece
from courser.archive.reader import PartitionArchive
from courser.catalog.directories import identity_of
from courser.records.stored_header import PartitionIdentity
from courser.spark.archive_source import ArchiveSource
from courser.spark.archive_topic import ROOT_AGE_MAX, ArchiveTopic
from courser.spark.background_clients import archive_at, with_retries
from courser.spark.errors import ReadFailed
from courser.spark.files_topic import FilesTopic
from courser.spark.open_archive import partition_in
from courser.spark.option_kinds import OFFSET_MAX
from courser.spark.planning import SourcesOf
from courser.spark.read_options import ReadOptions
from courser.spark.segment_source import SegmentSource
from courser.spark.server_source import ServerSource
from courser.spark.sources import MissingSegment, OffsetRange, Source
from courser.spark.topic_metadata import ListedSegment, LiveTopic, ServerTopic, TopicFacts, TopicMetadata
from courser.storage.read_result import SkipReason


def metadata_of(options: ReadOptions) -> TopicMetadata:
    """The metadata of the topic: from the server, or from the files or the archive if there is no server."""
    if options.source == "segments":
        assert options.path is not None, "checked by read_options"
        return FilesTopic(options.path, options.stream, options.topic)
    return _topic(options, root_age_max=0.0)


def live_topic(options: ReadOptions) -> LiveTopic:
    """The topic of a stream, which does not read files alone."""
    return _topic(options, root_age_max=ROOT_AGE_MAX)


def _topic(options: ReadOptions, root_age_max: float) -> LiveTopic:
    if options.target is None:
        assert options.archive is not None, "checked by read_options"
        return ArchiveTopic(options.archive, options.stream, options.topic, options.retries, root_age_max=root_age_max)
    return ServerTopic(options.target, options.stream, options.topic, options.retries)


def sources_in(options: ReadOptions, metadata: TopicMetadata, facts: TopicFacts) -> SourcesOf:
    """A function that splits a range of this topic by the sources that hold it."""
    server: tuple[Source, ...] = ()
    if options.target is not None:
        server = (
            ServerSource(
                options.target, options.stream, options.topic, facts.uuid, 2 * options.batch_size, options.retries
            ),
        )
    if options.source == "archive":
        return ArchivedRanges(options, facts.uuid, server).split
    segments = cache(metadata.segments)
    local = _by_segments(options, metadata, facts, segments, server)
    if options.archive is None:
        return local
    archived = ArchivedRanges(options, facts.uuid, server)

    def by_age(wanted: OffsetRange) -> list[OffsetRange]:
        """What the server had no longer on its disk from the archive. What it deletes from now on, it reads there."""
        border = next((segment.first for segment in segments(wanted.partition)), OFFSET_MAX)
        border = min(max(border, wanted.start), wanted.end)
        old, recent = (OffsetRange(wanted.partition, *ends) for ends in ((wanted.start, border), (border, wanted.end)))
        return [*(archived.split(old) if old.count else ()), *(local(recent) if recent.count else ())]

    return by_age


def _by_segments(
    options: ReadOptions,
    metadata: TopicMetadata,
    facts: TopicFacts,
    segments: Callable[[int], list[ListedSegment]],
    server: tuple[Source, ...],
) -> SourcesOf:
    if options.path is None or options.source == "server":
        return lambda wanted: [OffsetRange(wanted.partition, wanted.start, wanted.end, server)]

    def by_segments(wanted: OffsetRange) -> list[OffsetRange]:
        ranges: list[OffsetRange] = []
        partition, offset = wanted.partition, wanted.start
        for segment in segments(partition):
            # The open segment has a file too, but only the server knows how much of it is valid.
            if segment.next <= offset or segment.first >= wanted.end or not (segment.is_sealed or not server):
                continue
            if segment.first > offset and not metadata.is_reserved(partition, offset, segment.first):
                missing = server or (MissingSegment(f"the files in {segment.directory}"),)
                ranges.append(OffsetRange(partition, offset, segment.first, missing))
            start, end = max(offset, segment.first), min(wanted.end, segment.next)
            source = _segment_source(options, facts.uuid, partition, segment)
            ranges.append(OffsetRange(partition, start, end, (source, *server)))
            offset = end
        if offset < wanted.end:
            ranges.append(OffsetRange(partition, offset, wanted.end, server))
        return ranges

    return by_segments


def _segment_source(options: ReadOptions, uuid: bytes, partition: int, segment: ListedSegment) -> SegmentSource:
    assert options.path is not None
    directory = Path(options.path) / segment.directory
    # The directory's name ends with the incarnation: partitions that are deleted and recreated reuse their number.
    incarnation = int(directory.name.rpartition("-")[2])
    return SegmentSource(
        directory=str(directory),
        identity=PartitionIdentity(uuid, partition, incarnation),
        base_offset=segment.first,
        size=segment.size,
        options=options.scan,
    )


# --- the archive --------------------------------------------------------------------------------------


class ArchivedRanges:
    """Splits ranges by the objects of the archive that hold their messages. Plans with manifests alone."""

    def __init__(self, options: ReadOptions, uuid: bytes, server: tuple[Source, ...]) -> None:
        """``server``: what to read from if the archive does not have a message."""
        self._options = options
        self._uuid = uuid
        self._server = server
        self._partition = cache(self._find_partition)

    def split(self, wanted: OffsetRange) -> Sequence[OffsetRange]:
        """The parts of a range: runs of objects, and what is missing between them. Raises ``ReadFailed``."""
        return list(self._parts(wanted))

    def _parts(self, wanted: OffsetRange) -> Iterator[OffsetRange]:
        found = self._partition(wanted.partition)
        run: list[Piece] = []
        offset = start = wanted.start
        for piece in () if found is None else pieces_below(found, wanted.end, wanted.start):
            if piece.first_offset > offset:
                yield from self._run(found, wanted.partition, run, start, offset)
                yield from self._missing(found, wanted.partition, offset, piece.first_offset)
                run, start = [], piece.first_offset
            run.append(piece)
            offset = min(piece.end_offset, wanted.end)
        yield from self._run(found, wanted.partition, run, start, offset)
        yield from self._missing(found, wanted.partition, offset, wanted.end)

    def _find_partition(self, partition_id: int) -> PartitionArchive | None:
        return with_retries(lambda: self._partition_now(partition_id), self._options.retries)

    def _partition_now(self, partition_id: int) -> PartitionArchive | None:
        assert self._options.archive is not None
        archive = archive_at(self._options.archive)
        if self._server:
            # The facts are those of the server; the archive must be at least as new.
            archive.refresh()
        topic = archive.topic_of(self._uuid)
        if topic is None:
            raise ReadFailed(
                f"{self._options.name}: the archive {archive.store.name} has no topic with the id {self._uuid.hex()}: "
                "it is the archive of another server; check the options archive.*"
            )
        partition = partition_in(topic, partition_id)
        return None if partition is None else archive.partition(identity_of(topic, partition))

    def _run(
        self, found: PartitionArchive | None, partition: int, run: list[Piece], start: int, end: int
    ) -> Iterator[OffsetRange]:
        if found is None or start >= end:
            return
        options = self._options
        assert options.archive is not None
        source = ArchiveSource(
            access=options.archive,
            cluster=found.cluster,
            identity=found.manifest.identity,
            pieces=tuple(run),
            options=options.scan,
            retries=options.retries,
            has_fallback=bool(self._server),
        )
        yield OffsetRange(partition, start, end, (source, *self._server))

    def _missing(self, found: PartitionArchive | None, partition: int, start: int, end: int) -> Iterator[OffsetRange]:
        """What is not archived: the server may have it. Offsets that no message ever had need no source."""
        if start >= end:
            return
        if self._server:
            yield OffsetRange(partition, start, end, self._server)
            return
        missing = [(start, end, SkipReason.TRIMMED)] if found is None else found.missing_between(start, end)
        for first, behind, reason in missing:
            if reason is not SkipReason.RESERVED:
                yield OffsetRange(partition, first, behind, (MissingSegment("the archive"),))
