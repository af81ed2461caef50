"""Delete the stored offsets of deleted consumer groups."""

import asyncio
import logging

from courser.broker.consuming import group_key
from courser.broker.groups import GroupKey
from courser.broker.partition import Partition
from courser.broker.partition_registry import OpenTopic, PartitionRegistry
from courser.catalog.state import CatalogState
from courser.errors import ConsumerOffsetNotFound, CourserError
from courser.model.consumers import ConsumerKind
from courser.storage.offset_table import ConsumerKey

_log = logging.getLogger(__name__)


async def forget_group(partitions: PartitionRegistry, key: GroupKey) -> None:
    """Delete the stored offsets of a group in every partition of its topic. Durable on return.

    Group ids are never reused, so an offset that the disk refuses to delete is never read.
    """
    stream_id, topic_id, group_id = key
    topic = partitions.topics.get((stream_id, topic_id))
    if topic is None:
        return
    consumer = group_key(group_id)
    holders = [partition for partition in topic.partitions if partition.log.offsets.get(consumer) is not None]
    await asyncio.gather(*(_forget(partition, consumer) for partition in holders))


async def forget_unknown_groups(partitions: PartitionRegistry, state: CatalogState) -> None:
    """At a start: delete the offsets of deleted groups, in case of a crash between the two deletions."""
    left = [
        (partition, consumer)
        for topic in partitions
        for partition in topic.partitions
        for consumer, _ in partition.log.offsets.items()
        if consumer.kind is ConsumerKind.GROUP and consumer not in _known_groups(state, topic)
    ]
    await asyncio.gather(*(_forget(partition, consumer) for partition, consumer in left))


def _known_groups(state: CatalogState, topic: OpenTopic) -> set[ConsumerKey]:
    found = state.streams[topic.stream_id].topics[topic.topic_id]
    return {group_key(group_id) for group_id in found.groups}


async def _forget(partition: Partition, consumer: ConsumerKey) -> None:
    try:
        await partition.delete_offset(consumer)
    except ConsumerOffsetNotFound:
        # A purge has already deleted it.
        return
    except CourserError as error:
        _log.warning(
            "could not delete the offset of a deleted group partition=%s reason=%s", partition.log.directory, error
        )
