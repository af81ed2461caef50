"""Which source knows the topic, and which places have its messages: what the options ``source`` and ``path`` decide."""

from functools import cache
from pathlib import Path

from courser.records.stored_header import PartitionIdentity
from courser.spark.files_topic import FilesTopic
from courser.spark.places import MissingPlace, Place
from courser.spark.planning import PlacesOf, Range
from courser.spark.read_options import ReadOptions
from courser.spark.segment_place import SegmentPlace
from courser.spark.server_place import ServerPlace
from courser.spark.topics import Segment, ServerTopic, TopicFacts, TopicSource


def source_of(options: ReadOptions) -> TopicSource:
    """Who is asked about the topic."""
    if options.target is None:
        assert options.path is not None, "read_options has seen to it"
        return FilesTopic(options.path, options.stream, options.topic)
    return server_topic(options)


def server_topic(options: ReadOptions) -> ServerTopic:
    """The same for streams, which always ask the server."""
    assert options.target is not None, "read_options has seen to it"
    return ServerTopic(options.target, options.stream, options.topic, options.retries)


def places_in(options: ReadOptions, source: TopicSource, facts: TopicFacts) -> PlacesOf:
    """How ranges of this topic are cut by the places that have them."""
    server: tuple[Place, ...] = ()
    if options.target is not None:
        server = (
            ServerPlace(
                options.target, options.stream, options.topic, facts.uuid, 2 * options.batch_size, options.retries
            ),
        )
    if options.path is None or options.source == "server":
        return lambda part: [(part, server)]
    segments = cache(source.segments)

    def by_segments(part: Range) -> list[tuple[Range, tuple[Place, ...]]]:
        cuts: list[tuple[Range, tuple[Place, ...]]] = []
        position = part.start
        for segment in segments(part.partition):
            # The open segment has a file too, but the server knows better how much of it counts.
            if segment.next <= position or segment.first >= part.end or not (segment.is_sealed or not server):
                continue
            if segment.first > position and not source.is_reserved(part.partition, position, segment.first):
                missing = Range(part.partition, position, segment.first)
                cuts.append((missing, server or (MissingPlace(segment.directory),)))
            start, end = max(position, segment.first), min(part.end, segment.next)
            place = _place(options, facts.uuid, part.partition, segment)
            cuts.append((Range(part.partition, start, end), (place, *server)))
            position = end
        if position < part.end:
            cuts.append((Range(part.partition, position, part.end), server))
        return cuts

    return by_segments


def _place(options: ReadOptions, uuid: bytes, partition: int, segment: Segment) -> SegmentPlace:
    assert options.path is not None
    directory = Path(options.path) / segment.directory
    # The name of the directory says which of the partitions with this number it is.
    incarnation = int(directory.name.rpartition("-")[2])
    return SegmentPlace(
        directory=str(directory),
        identity=PartitionIdentity(uuid, partition, incarnation),
        base_offset=segment.first,
        size=segment.size,
        read_size=options.batch_size,
        verify=options.verify,
        skip_corrupt=options.skip_corrupt,
        quarantine=options.quarantine,
    )
