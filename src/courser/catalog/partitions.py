"""Opening the partitions of the catalog: each log, and the purge that it may have missed.

A purge is journaled first, with the offset at which each partition ended, and then carried out partition by partition.
If the power fails in between, the partitions that missed it have a smaller number in their ledgers, and are purged when
they are opened, up to that offset. So a purge is all or nothing, and messages that were sent after it are never its
victims, however late it is carried out.
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
    """Open the log of a partition, whatever the last session left of it. Blocks.

    ``purge_end`` is the offset that the topic's last purge reaches up to: ``CatalogState.purge_end``. A disk that is
    too full to carry it out now is no reason not to open: the partition stays behind, as ``is_behind`` says.

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
    """Whether a partition has missed a purge of its topic."""
    return log.epoch < topic.purge_count


def leave_behind(log: PartitionLog, purge_end: int) -> None:
    """A purge has to wait. Make it safe to take messages meanwhile: they go to a segment that the purge does not touch.

    If numbering has not reached the end of the purge, a power cut took messages that it was to remove. Others would get
    their offsets, and be removed in their place: so nothing is taken before the purge is carried out.
    """
    if log.next_offset < purge_end:
        log.fail(f"a purge up to offset {purge_end} could not be carried out, and the log ends at {log.next_offset}")
    segment = log.open_segment
    if segment is not None and segment.base_offset < purge_end:
        log.roll()
