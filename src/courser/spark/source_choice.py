"""Chooses what is asked about a topic and where its messages are read from: the options ``source`` and ``path``."""

from functools import cache
from pathlib import Path

from courser.records.stored_header import PartitionIdentity
from courser.spark.files_topic import FilesTopic
from courser.spark.planning import SourcesOf
from courser.spark.read_options import ReadOptions
from courser.spark.segment_source import SegmentSource
from courser.spark.server_source import ServerSource
from courser.spark.sources import MissingSegment, Range, Source
from courser.spark.topic_metadata import ListedSegment, ServerTopic, TopicFacts, TopicMetadata


def metadata_of(options: ReadOptions) -> TopicMetadata:
    """The metadata of the topic: from the server, or from the files if there is no server."""
    if options.target is None:
        assert options.path is not None, "checked by read_options"
        return FilesTopic(options.path, options.stream, options.topic)
    return server_topic(options)


def server_topic(options: ReadOptions) -> ServerTopic:
    """The same for streams, which always ask the server."""
    assert options.target is not None, "checked by read_options"
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
    if options.path is None or options.source == "server":
        return lambda wanted: [Range(wanted.partition, wanted.start, wanted.end, server)]
    segments = cache(metadata.segments)

    def by_segments(wanted: Range) -> list[Range]:
        ranges: list[Range] = []
        partition, offset = wanted.partition, wanted.start
        for segment in segments(partition):
            # The open segment has a file too, but only the server knows how much of it is valid.
            if segment.next <= offset or segment.first >= wanted.end or not (segment.is_sealed or not server):
                continue
            if segment.first > offset and not metadata.is_reserved(partition, offset, segment.first):
                missing = server or (MissingSegment(segment.directory),)
                ranges.append(Range(partition, offset, segment.first, missing))
            start, end = max(offset, segment.first), min(wanted.end, segment.next)
            source = _segment_source(options, facts.uuid, partition, segment)
            ranges.append(Range(partition, start, end, (source, *server)))
            offset = end
        if offset < wanted.end:
            ranges.append(Range(partition, offset, wanted.end, server))
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
        read_size=options.batch_size,
        verify=options.verify,
        skip_corrupt=options.skip_corrupt,
        quarantine=options.quarantine,
        keys=options.keys,
    )
