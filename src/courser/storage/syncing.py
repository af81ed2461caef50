"""Making a partition's data durable: one job for everything that was written before it.

*synced* is a prefix. Files are synced in the order of their offsets, and the directory before the newest file counts,
so nothing in a new segment is called synced before the old one is synced to its end and the new one's name is safe.
"""

from courser.storage.jobs import Job, PlannedSync
from courser.storage.partition_log import PartitionLog


def plan_sync(log: PartitionLog) -> Job | None:
    """A job after which all that is written now, stored offsets included, survives a power cut; None if it does.

    At most one such job runs at a time.
    """
    planned = log.begin_sync() if log.failure is None else None
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
