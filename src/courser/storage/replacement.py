"""Replace the damaged file of a sealed segment by an intact copy. The damaged bytes are kept in quarantine."""

from contextlib import closing
from pathlib import Path

from courser.errors import StorageFailure
from courser.storage.durable_files import is_failed_sync, storage_failure, sync_file, unlink_if_there
from courser.storage.jobs import Job
from courser.storage.partition_log import PartitionLog
from courser.storage.paths import index_path, log_path
from courser.storage.quarantine import Quarantine
from courser.storage.segment import Segment


def plan_replacement(log: PartitionLog, segment: Segment, copy: Path) -> Job | None:
    """Put ``copy``, a verified file in the partition's directory, in the place of a segment's file.

    None if the segment is gone. A power cut leaves one of the two files under the segment's name, never none.
    """
    log.check_writable()
    if segment not in log.segments:
        return None
    base_offset, ledger = segment.base_offset, log.ledger
    is_recorded = any(damage.base_offset == base_offset for damage in ledger.state.damages)
    ledger.state.damages = [damage for damage in ledger.state.damages if damage.base_offset != base_offset]
    draft = ledger.draft_snapshot() if is_recorded else None
    path = log_path(log.directory, base_offset)

    def run() -> None:
        try:
            with closing(log.file_system.open(copy, writable=True)) as file:
                sync_file(file)
            with closing(log.file_system.open(path)) as damaged:
                Quarantine(log.file_system, log.directory).copy(damaged, 0, segment.size)
            if draft is not None:
                # Before the rename: damage that the ledger does not know is found by the next read.
                ledger.file.rewrite(draft)
            log.file_system.rename(copy, path)
            # It may lack what was damaged; the next reader makes it again.
            unlink_if_there(log.file_system, index_path(log.directory, base_offset))
        except OSError as error:
            raise storage_failure("replace", path, error) from error
        log.syncs.sync_names()

    def complete() -> None:
        log.files.forget(segment)
        segment.damages = ()
        segment.is_index_ready = False

    def fail(failure: StorageFailure) -> None:
        # Whatever else failed, the segment has one of its files, and all of the partition is as usable as before.
        if is_failed_sync(failure):
            log.fail(str(failure), is_sync=True)

    return Job("replacement", log.syncs.watch(run), complete, fail)
