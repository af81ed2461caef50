"""Purging a topic: the catalog counts it first, then every partition follows; numbering goes on.

A partition that is behind the catalog is purged when it is opened the next time, with all that it holds then. So one
that cannot be purged now must not acknowledge anything more.
"""

import asyncio
import logging
from collections.abc import Iterable

from courser.broker.partition import Partition
from courser.broker.partition_registry import PartitionRegistry
from courser.catalog.entities import Stream, Topic
from courser.errors import CourserError, PartitionReadOnly

_log = logging.getLogger(__name__)

_TRY_COUNT = 3
_RETRY_DELAY = 0.1
"""Seconds between two tries: what heals at all, a full disk say, does not heal at once."""


async def purge_topics(registry: PartitionRegistry, stream: Stream, topics: Iterable[Topic]) -> None:
    """Purge every partition that has missed the last purge of its topic.

    Raises:
        PartitionReadOnly: one could not be purged, and takes no more writes until a restart. All others are purged.
    """
    purges = []
    for topic in topics:
        opened = registry.topics.get((stream.stream_id, topic.topic_id))
        if opened is not None:
            opened.room = 0
            behind = [partition for partition in opened.partitions if partition.log.epoch < topic.purge_count]
            purges += [_purge(partition, topic.purge_count) for partition in behind]
    results = await asyncio.gather(*purges, return_exceptions=True)
    errors = [result for result in results if result is not None]
    if errors:
        raise errors[0]


async def _purge(partition: Partition, epoch: int) -> None:
    log = partition.log
    for number in range(_TRY_COUNT):
        try:
            await partition.purge(epoch)
        except CourserError as error:
            if log.failure is None and number + 1 < _TRY_COUNT:
                await asyncio.sleep(_RETRY_DELAY)
                continue
            # Whatever was sent from here on would be gone after a restart.
            log.fail(f"a purge could not be carried out, and will be at the next start: {error}")
            _log.error("purge failed partition=%s reason=%s", log.directory, error)
            raise PartitionReadOnly(log.directory, str(log.failure)) from error
        else:
            return
