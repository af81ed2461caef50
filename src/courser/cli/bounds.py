"""What the partitions of a topic hold, as far as the server can tell: one that is offline does not hide the others.

The server answers for all partitions of a topic or for none, so that no reader passes over one that is offline. Who
only looks wants to see the others: they are then asked for one by one.
"""

import asyncio

from courser.api.replies import PartitionBounds, PartitionInfo
from courser.cli.naming import TopicPath
from courser.client.client import Client
from courser.errors import ErrorCode, NotFound, ServerFailure

_NOBODY = "courser-cli"
"""A consumer that stores nothing: to ask for its offset tells whether a partition can be read."""


async def bounds_by_partition(client: Client, place: TopicPath) -> dict[int, PartitionBounds | None]:
    """The bounds of every partition, by number; None for one that is offline."""
    try:
        bounds = (await client.get_partition_bounds(*place.names)).partitions
    except ServerFailure as failure:
        if failure.code is not ErrorCode.PARTITION_OFFLINE:
            raise
    else:
        return {entry.partition_id: entry for entry in bounds}
    partitions = (await client.get_topic(*place.names)).partitions
    found = await asyncio.gather(*(_bounds(client, place, partition) for partition in partitions))
    return {partition.partition_id: entry for partition, entry in zip(partitions, found, strict=True)}


async def _bounds(client: Client, place: TopicPath, partition: PartitionInfo) -> PartitionBounds | None:
    try:
        await client.get_consumer_offset(*place.names, partition.partition_id, consumer=_NOBODY)
    except NotFound:
        pass
    except ServerFailure as failure:
        if failure.code is not ErrorCode.PARTITION_OFFLINE:
            raise
        return None
    segments = (await client.get_segments(*place.names, partition.partition_id)).segments
    if segments:
        first, end = segments[0].first_offset, segments[-1].next_offset
    else:
        # Offset 0 is also what the server tells of a partition that never had a message.
        first = end = partition.current_offset + 1 if partition.current_offset else 0
    return PartitionBounds(partition.partition_id, first, end, partition.size, partition.message_count)
