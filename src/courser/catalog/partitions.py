"""Open the partitions of the catalog, and carry out a purge that a partition missed.

A purge is journaled with the offset at which each partition ends, and then carried out partition by partition. If the
power fails in between, the partitions that missed it have a smaller purge count in their ledgers. They are purged up to
that offset when they are opened. So a purge is all or nothing, and never deletes messages that were sent after it,
however late it runs.
"""

from courser.catalog.directories import Directories, identity_of
from courser.catalog.entities import Partition, Stream, Topic
from courser.model.clock import Clock
from courser.storage.files import FileSystem
from courser.storage.jobs import perform
from courser.storage.partition_log import PartitionLog
from courser.storage.recovery_cases import StopKind
from courser.storage.settings import LogSettings
from courser.storage.upkeep import plan_purge


def open_partition_log(
    file_system: FileSystem,
    directories: Directories,
    stream: Stream,
    topic: Topic,
    partition: Partition,
    *,
    settings: LogSettings,
    clock: Clock,
    stop: StopKind,
    purge_end: int = 0,
) -> PartitionLog:
    """Open and recover the log of a partition. Blocks.

    ``purge_end`` is where the topic's last purge ends, from ``CatalogState.purge_end``. If the disk is too full for a
    missed purge, the log is opened anyway and ``is_behind`` is true.

    Raises:
        StorageFailure: the disk cannot be read.
    """
    directory = directories.partition_path(stream, topic, partition)
    identity = identity_of(topic, partition)
    log = PartitionLog.open(file_system, directory, identity, settings=settings, clock=clock, stop=stop)
    if log.failure is None and is_behind(log, topic) and not perform(plan_purge(log, topic.purge_count, purge_end)):
        leave_behind(log, purge_end)
    return log


def is_behind(log: PartitionLog, topic: Topic) -> bool:
    """Whether a partition missed a purge of its topic."""
    return log.epoch < topic.purge_count


def leave_behind(log: PartitionLog, purge_end: int) -> None:
    """Postpone a purge. New messages go to a new segment, which the purge does not touch.

    If the next offset is below the end of the purge, a power cut lost messages that the purge was to delete. New
    messages would get their offsets and be deleted by the purge, so the partition is read-only until the purge is done.
    """
    if log.next_offset < purge_end:
        log.fail(f"a purge up to offset {purge_end} is not complete, and the log ends at {log.next_offset}")
    segment = log.open_segment
    if segment is not None and segment.base_offset < purge_end:
        log.roll()
