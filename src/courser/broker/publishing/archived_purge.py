"""A purge with an archive: what it deletes is archived first, and what arrives meanwhile stays.

The archive may take long, so publishes go on. Each must be deleted from a topic as a whole, or stay as a whole:

* Where the partitions end is found out while no publish is being carried out. What came before, the purge deletes.
* A publish that began before that and cannot be completed is not continued until the purge is over: the purge deletes
  what is in the logs, and its entry in the journal gives up the rest.
* Publishes that began later have their end in the journal before the purge: it must give up nothing of them.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING

from courser.broker.catalog.catalog_service import CatalogService
from courser.broker.catalog.purging import AnyPurge, purged_topics
from courser.broker.publishing.publishing import Publishing
from courser.catalog import changes
from courser.catalog.directories import identity_of
from courser.catalog.entities import PurgedTopic
from courser.catalog.state import CatalogState
from courser.model.identifiers import TopicAddress
from courser.records.stored_header import PartitionIdentity

if TYPE_CHECKING:
    # Most servers have no archive: they do not import it.
    from courser.broker.archive.archive_share import AwaitedSegment
    from courser.broker.archive.archiving import Archiver


async def purge_archived(
    change: AnyPurge, catalog: CatalogService, publishing: Publishing, archiver: "Archiver"
) -> None:
    """Carry out a purge.

    Raises:
        CommandRejected: the rules forbid it. 20044: the store does not take what is to be purged.
        CourserError: the disk refuses.
    """
    topics = [TopicAddress(change.stream_id, topic.topic_id) for topic in purged_topics(catalog.state, change)]
    with ExitStack() as left:
        async with publishing.paused():
            earlier = publishing.open_ops(topics)
            left.enter_context(publishing.left_unfinished(await publishing.append_open(topics)))
            asked = await archiver.ask_for(topics)
        await archiver.archive_asked(asked)
        async with publishing.paused():
            await publishing.end_open(topics, besides=earlier)
            await catalog.submit(partial(_with_ends, change, catalog.state, _ends_of(asked)))


def _ends_of(asked: "Sequence[AwaitedSegment]") -> dict[PartitionIdentity, int]:
    """Where each partition ended: what comes last of it is in the last of these."""
    return {segment.identity: segment.end_offset for segment in asked}


def _with_ends(change: AnyPurge, state: CatalogState, ends: dict[PartitionIdentity, int]) -> AnyPurge:
    """The purge, up to these ends. Nothing is deleted from partitions that have been created since."""
    rows = tuple(
        PurgedTopic(
            topic.topic_id, 0, tuple(ends.get(identity_of(topic, partition), 0) for partition in topic.partitions)
        )
        for topic in purged_topics(state, change)
    )
    if isinstance(change, changes.StreamPurge):
        return changes.StreamPurge(change.stream_id, rows)
    return changes.TopicPurge(change.stream_id, change.topic_id, 0, rows[0].ends if rows else ())
