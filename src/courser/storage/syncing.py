"""Make a partition's data durable, with one job for everything written before it.

The synced data is always a prefix of the log. Files are synced in the order of their offsets, and the directory is
synced before the newest file. Nothing in a new segment counts as synced before the old segment and the new name are.
"""

from courser.storage.jobs import Job, PlannedSync
from courser.storage.partition_log import PartitionLog


def plan_sync(log: PartitionLog) -> Job | None:
    """Plan a sync of everything written so far, including stored offsets; None if it is already durable.

    At most one such job runs at a time.
    """
    planned = log.begin_sync() if log.failure is None and log.lack_of_room is None else None
    if planned is None:
        return None
    return Job(
        "sync",
        lambda: _sync_in_order(log, planned),
        lambda: log.complete_sync(planned),
        lambda failure: log.fail_sync(planned, failure),
    )


def _sync_in_order(log: PartitionLog, planned: PlannedSync) -> None:
    syncs, files = log.syncs, [unsynced.file for unsynced in planned.segments]
    for file in files[:-1]:
        syncs.sync_file(file)
    if planned.with_names:
        syncs.sync_names()
    for file in files[-1:]:
        syncs.sync_file(file)
    if planned.offsets_file is not None:
        syncs.sync_file(planned.offsets_file)
