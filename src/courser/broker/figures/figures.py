"""Sizes, counts and bounds as clients are told them: sums over the open partitions; nothing is kept for them."""

from pathlib import Path

from courser.api import replies as r
from courser.api import storage_replies as sr
from courser.broker.messages.consuming import current_offset
from courser.broker.partition.elsewhere import Sums, TopicSums
from courser.broker.partition.partition import Partition
from courser.broker.partition.partition_registry import OpenTopic, PartitionRegistry
from courser.broker.partition.topic_settings import effective_options, explicit_options
from courser.broker.upkeep.retention import Retention, SegmentLife
from courser.catalog import entities
from courser.catalog.entities import Stream, Topic
from courser.errors import CommandRejected, ErrorCode
from courser.model.identifiers import TopicAddress
from courser.model.topic_options import TopicOptions
from courser.storage.ledger import DamagedRange, SegmentFacts
from courser.storage.segment import Segment, SegmentState


class Figures:
    """Streams, topics, partitions and segments, described."""

    def __init__(
        self, partitions: PartitionRegistry, retention: Retention, topic_defaults: TopicOptions, data_directory: Path
    ) -> None:
        self._partitions = partitions
        self._retention = retention
        self._topic_defaults = topic_defaults
        self._data_directory = data_directory
        self.elsewhere: Sums = {}
        """The figures of topics that other processes own, as of the last time that they were collected."""

    def stream(self, stream: Stream) -> r.StreamInfo:
        """A stream, with the sums over its topics."""
        found = [self._sums(TopicAddress(stream.stream_id, topic_id)) for topic_id in stream.topics]
        return r.StreamInfo(
            stream.stream_id,
            stream.created_at,
            len(stream.topics),
            sum(topic.size for topic in found if topic is not None),
            sum(topic.message_count for topic in found if topic is not None),
            stream.name,
        )

    def _sums(self, address: TopicAddress) -> OpenTopic | TopicSums | None:
        return self._partitions.topics.get(address) or self.elsewhere.get(address)

    def sums(self) -> Sums:
        """The figures of all topics that are open here."""
        return {
            TopicAddress(*key): TopicSums(topic.size, topic.message_count, topic.segment_count)
            for key, topic in self._partitions.topics.items()
        }

    def topics(self, stream: Stream) -> list[r.TopicInfo]:
        """The topics of a stream, by id."""
        return [self.topic(stream, stream.topics[topic_id]) for topic_id in sorted(stream.topics)]

    def topic(self, stream: Stream, topic: Topic) -> r.TopicInfo:
        """A topic, with the sums over its partitions."""
        found = self._sums(TopicAddress(stream.stream_id, topic.topic_id))
        effective = effective_options(topic.options, self._topic_defaults)
        return r.TopicInfo(
            topic.topic_id,
            topic.created_at,
            len(topic.partitions),
            found.size if found is not None else 0,
            found.message_count if found is not None else 0,
            topic.name,
            explicit_options(topic.options, effective),
            effective,
        )

    def topic_details(self, stream: Stream, topic: Topic, *, is_new: bool = False) -> r.TopicDetails:
        """A topic and its partitions. ``is_new``: it was just created, and Iggy counts no segments then."""
        opened = self._partitions.topics.get(TopicAddress(stream.stream_id, topic.topic_id))
        at_work: list[Partition | None] = list(opened.partitions) if opened is not None and not is_new else []
        # Partitions that are being created are in the catalog first.
        at_work += [None] * (len(topic.partitions) - len(at_work))
        rows = [_partition(partition, found) for partition, found in zip(topic.partitions, at_work, strict=True)]
        return r.TopicDetails(self.topic(stream, topic), rows)

    def bounds(self, address: TopicAddress, topic_uuid: bytes) -> r.TopicBounds:
        """What can be read of each partition now. Raises ``PartitionOffline`` if one of them cannot be read."""
        partitions = self._partitions.at(address).partitions
        return r.TopicBounds(*address, topic_uuid, [_bounds(partition) for partition in partitions])

    def segments(self, address: TopicAddress, partition_id: int) -> r.SegmentList:
        """The segments of a partition, oldest first. Raises 3007."""
        topic = self._partitions.at(address)
        log = topic.partition(partition_id).log
        directory = log.directory.relative_to(self._data_directory)
        archive = self._retention.guard
        rows = [] if archive is None else [_remote_segment(facts) for facts in archive.remote_segments(log)]
        rows += [_segment(segment, self._retention.life_of(topic, log, segment)) for segment in log.segments]
        return r.SegmentList(partition_id, str(directory), rows)

    def sealed_segment(self, address: TopicAddress, partition_id: int, first_offset: int) -> tuple[Partition, Segment]:
        """A segment that is not written any more. Raises 3007, or 20 if there is no such segment."""
        partition = self._partitions.at(address).partition(partition_id)
        for segment in partition.log.segments:
            if segment.base_offset == first_offset and segment.state is SegmentState.SEALED:
                return partition, segment
        reason = f"partition {partition_id} has no sealed segment {first_offset} on its disk"
        raise CommandRejected(ErrorCode.RESOURCE_NOT_FOUND, reason)

    def verified(self, partition: Partition, segment: Segment, *, is_repaired: bool) -> sr.VerifiedSegment:
        """What a check of a segment found."""
        damages = [_damage(partition.log.identity.partition_id, damage) for damage in segment.damages]
        bounds = segment.base_offset, segment.end_offset, segment.size
        return sr.VerifiedSegment(*bounds, is_repaired, damages)

    def maintenance(self, address: TopicAddress) -> r.TopicMaintenance:
        """What was deleted from a topic since the start, and what is damaged in it."""
        topic = self._partitions.at(address)
        damages = [
            _damage(partition.log.identity.partition_id, damage)
            for partition in topic.partitions
            for segment in partition.log.segments
            for damage in segment.damages
        ]
        return r.TopicMaintenance(list(topic.deletions), damages)


def _partition(partition: entities.Partition, found: Partition | None) -> r.PartitionInfo:
    """A partition; None if it is not open yet."""
    if found is None:
        return r.PartitionInfo(partition.partition_id, partition.created_at, 0, 0, 0, 0)
    log = found.log
    return r.PartitionInfo(
        partition.partition_id,
        partition.created_at,
        # The one that takes the next message counts, even if it has no file yet.
        len(log.segments) + (log.open_segment is None),
        current_offset(found),
        log.size,
        log.message_count,
    )


def _bounds(partition: Partition) -> r.PartitionBounds:
    log = partition.log
    # The bounds of an empty partition would make a reader of the whole topic skip it silently.
    log.check_readable()
    pieces = () if partition.past is None else partition.past.pieces(log)
    return r.PartitionBounds(
        log.identity.partition_id,
        partition.start_offset,
        max(log.visible_end, log.start_offset),
        log.size + sum(piece.size for piece in pieces),
        log.message_count + sum(piece.message_count for piece in pieces),
    )


def _damage(partition_id: int, damage: DamagedRange) -> r.Damage:
    return r.Damage(
        partition_id,
        damage.base_offset,
        damage.first_offset,
        damage.end_offset,
        damage.position,
        damage.end_position - damage.position,
    )


def _segment(segment: Segment, life: SegmentLife) -> r.SegmentInfo:
    return r.SegmentInfo(
        segment.base_offset,
        segment.end_offset,
        segment.size,
        segment.message_count,
        segment.first_timestamp,
        segment.last_timestamp,
        segment.state is SegmentState.SEALED,
        life.value,
        r.LOCAL,
    )


def _remote_segment(facts: SegmentFacts) -> r.SegmentInfo:
    return r.SegmentInfo(
        facts.base_offset,
        facts.end_offset,
        facts.size,
        facts.message_count,
        facts.first_timestamp,
        facts.last_timestamp,
        True,
        SegmentLife.ARCHIVED.value,
        r.REMOTE,
    )
