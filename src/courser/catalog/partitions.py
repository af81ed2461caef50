"""Opening the partitions of the catalog: each log, and the purge that it may have missed.

A purge is counted in the catalog first and then carried out partition by partition. If the power fails in between, the
partitions that missed it have a smaller number in their ledgers, and are purged when they are opened: a purge is all
or nothing.
"""

from courser.catalog.directories import Directories, identity_of
from courser.catalog.entities import Partition, Stream, Topic
from courser.errors import StorageFailure
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
) -> PartitionLog:
    """Open the log of a partition, whatever the last session left of it. Blocks.

    Raises:
        StorageFailure: the disk cannot be read, or the purge could not be carried out.
    """
    directory = directories.partition_path(stream, topic, partition)
    identity = identity_of(topic, partition)
    log = PartitionLog.open(file_system, directory, identity, settings=settings, clock=clock, stop=stop)
    if log.epoch < topic.purge_count and log.failure is None and not perform(plan_purge(log, topic.purge_count)):
        raise StorageFailure("purge", directory)
    return log
