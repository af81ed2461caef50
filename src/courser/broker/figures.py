"""Sizes and counts in replies to clients: summed over the open partitions on demand."""

from courser.api import replies as r
from courser.broker.consuming import current_offset
from courser.broker.partition import Partition
from courser.broker.partition_registry import PartitionRegistry
from courser.broker.topic_settings import effective_options
from courser.catalog import entities
from courser.catalog.entities import Stream, Topic
from courser.model.topic_options import TopicOptions


def stream_info(stream: Stream, partitions: PartitionRegistry) -> r.StreamInfo:
    """A stream, with the sums over its topics."""
    opened = [partitions.topics.get((stream.stream_id, topic_id)) for topic_id in stream.topics]
    return r.StreamInfo(
        stream.stream_id,
        stream.created_at,
        len(stream.topics),
        sum(topic.size for topic in opened if topic is not None),
        sum(topic.message_count for topic in opened if topic is not None),
        stream.name,
    )


def topic_info(stream: Stream, topic: Topic, partitions: PartitionRegistry, defaults: TopicOptions) -> r.TopicInfo:
    """A topic, with the sums over its partitions."""
    opened = partitions.topics.get((stream.stream_id, topic.topic_id))
    return r.TopicInfo(
        topic.topic_id,
        topic.created_at,
        len(topic.partitions),
        opened.size if opened is not None else 0,
        opened.message_count if opened is not None else 0,
        topic.name,
        topic.options,
        effective_options(topic.options, defaults),
    )


def topic_details(
    stream: Stream, topic: Topic, partitions: PartitionRegistry, defaults: TopicOptions, *, is_new: bool = False
) -> r.TopicDetails:
    """A topic and its partitions. ``is_new``: it was just created, and Iggy reports no segments then."""
    opened = partitions.topics.get((stream.stream_id, topic.topic_id))
    at_work: list[Partition | None] = list(opened.partitions) if opened is not None and not is_new else []
    # Partitions that are being created are in the catalog first.
    at_work += [None] * (len(topic.partitions) - len(at_work))
    rows = [partition_info(partition, found) for partition, found in zip(topic.partitions, at_work, strict=True)]
    return r.TopicDetails(topic_info(stream, topic, partitions, defaults), rows)


def partition_info(partition: entities.Partition, found: Partition | None) -> r.PartitionInfo:
    """A partition; None if it is not open yet."""
    if found is None:
        return r.PartitionInfo(partition.partition_id, partition.created_at, 0, 0, 0, 0)
    log = found.log
    return r.PartitionInfo(
        partition.partition_id,
        partition.created_at,
        # The segment for the next message counts, even if it has no file yet.
        len(log.segments) + (log.open_segment is None),
        current_offset(found),
        log.size,
        log.message_count,
    )
