"""Stored offsets of consumer groups that are gone."""

import asyncio
import logging

from courser.broker.consuming import group_key
from courser.broker.groups import GroupKey
from courser.broker.partition import Partition
from courser.broker.partition_registry import PartitionRegistry
from courser.errors import ConsumerOffsetNotFound, CourserError
from courser.storage.offset_table import ConsumerKey

_log = logging.getLogger(__name__)


async def forget_group(partitions: PartitionRegistry, key: GroupKey) -> None:
    """Delete what a group stored, durably, in every partition of its topic.

    The id of a group is never used again: an offset that cannot be deleted, on a disk that refuses it, is never read.
    """
    stream_id, topic_id, group_id = key
    topic = partitions.topics.get((stream_id, topic_id))
    if topic is None:
        return
    consumer = group_key(group_id)
    holders = [partition for partition in topic.partitions if partition.log.offsets.get(consumer) is not None]
    await asyncio.gather(*(_forget(partition, consumer) for partition in holders))


async def _forget(partition: Partition, consumer: ConsumerKey) -> None:
    try:
        await partition.delete_offset(consumer)
    except ConsumerOffsetNotFound:
        # A purge came first.
        return
    except CourserError as error:
        _log.warning("offset of deleted group kept partition=%s reason=%s", partition.log.directory, error)
