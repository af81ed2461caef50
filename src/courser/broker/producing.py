"""Sending: which partition messages go to, and their way into it.

On the path of every send: dictionary look-ups, one append, nothing else.
"""

import xxhash

from courser.api.commands import SendMessages
from courser.api.replies import Sent
from courser.broker.partition import Partition
from courser.broker.partition_registry import OpenTopic
from courser.errors import CommandRejected, ErrorCode
from courser.model.messaging import ByKey, Partitioning, ToPartition


async def append_messages(topic: OpenTopic, command: SendMessages) -> Sent:
    """Append all batches of a command to one partition, in order. Returns when they may be acknowledged.

    If one of several batches fails, those before it are kept, and the client is told of the failure alone.
    """
    partition_id = choose_partition(topic, command.partitioning)
    partition: Partition = topic.partition(partition_id)
    batches = command.batches
    base_offset = (await partition.append(batches[0])).base_offset
    for batch in batches[1:]:
        await partition.append(batch)
    return Sent(topic.stream_id, topic.topic_id, partition_id, base_offset)


def choose_partition(topic: OpenTopic, partitioning: Partitioning) -> int:
    """The number of the partition. Raises 3008 if there is none to choose from."""
    if type(partitioning) is ToPartition:
        return partitioning.partition_id
    count = len(topic.partitions)
    if not count:
        raise CommandRejected(ErrorCode.NO_PARTITIONS, "the topic has no partitions")
    if type(partitioning) is ByKey:
        return xxhash.xxh32_intdigest(partitioning.key) % count
    turn = topic.turn
    topic.turn = turn + 1
    return turn % count
