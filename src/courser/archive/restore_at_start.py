"""What a start does before it opens a data directory: fill it from an archive, if it is empty and that is wanted.

There are two ways. ``restore_on_start`` reads the store of the configuration. And somebody may have copied an archive
into the directory with a tool such as ``aws s3 sync``: with ``recreate_missing_state``, it is restored from that copy,
which stays as it is.
"""

import logging
from pathlib import Path

from courser.archive.disk_store import DiskStore
from courser.archive.errors import ArchiveDamaged, ArchiveFailure, ObjectMissing
from courser.archive.keys import VERSION
from courser.archive.reader import ArchiveReader, choose_cluster, find_clusters, open_store
from courser.archive.restore_need import is_empty, is_unfinished
from courser.archive.restore_plan import RestorePlan, RestoreSelection, plan_restore, plan_root
from courser.archive.restoring import Restorer
from courser.archive.settings import ArchiveSettings
from courser.archive.store import Store
from courser.errors import StartRefused
from courser.storage.files import FileSystem

_log = logging.getLogger(__name__)


def prepare_directory(
    file_system: FileSystem,
    directory: Path,
    settings: ArchiveSettings | None,
    nonce: bytes,
    *,
    recreate_missing_state: bool,
    store: Store | None = None,
) -> None:
    """Restore what is to be restored. ``store`` replaces the one of the settings.

    Raises:
        StartRefused: there is something to restore, but it cannot be, or nobody asked for it.
    """
    is_begun = is_unfinished(file_system, directory)
    if not is_begun and not is_empty(file_system, directory):
        return
    copy = DiskStore(file_system, directory, nonce)
    try:
        if find_clusters(copy):
            _restore_copy(copy, file_system, directory, is_wanted=recreate_missing_state)
        elif settings is not None and settings.restore_on_start:
            _restore_archive(store or open_store(settings.store, file_system, nonce), file_system, directory, settings)
        elif is_begun:
            raise StartRefused(
                directory,
                "a restore into it was interrupted",
                "run courser archive restore again, or set data_maintenance.archiver.restore_on_start = true",
            )
    except ArchiveDamaged as damage:
        remedy = (
            "nothing was started; bring the right object back and start again, or restore an older run: "
            "courser archive restore --accept-older"
        )
        raise StartRefused(directory, str(damage), remedy) from damage
    except ArchiveFailure as failure:
        raise StartRefused(directory, str(failure), "nothing was started; correct this and start again") from failure


def _restore_copy(copy: DiskStore, file_system: FileSystem, directory: Path, *, is_wanted: bool) -> None:
    place = directory / VERSION
    if not is_wanted:
        raise StartRefused(
            place,
            "it is the copy of an archive, and the directory has no data",
            "start once with --set system.recovery.recreate_missing_state=true to restore it; or move it elsewhere",
        )
    plan = _plan_copy(ArchiveReader(copy, choose_cluster(copy)))
    Restorer(copy, file_system, directory).restore(plan)
    _log.info(
        "restored from the copy of an archive, which is no longer needed copy=%s messages=%d", place, plan.message_count
    )


def _plan_copy(reader: ArchiveReader) -> RestorePlan:
    """Use the newest root that is complete: the copy may have been made while a server was writing."""
    found: ObjectMissing | None = None
    for root in reader.roots_backwards():
        try:
            return plan_root(reader, RestoreSelection(), root, root, is_newest=found is None)
        except ObjectMissing as missing:
            found = missing
            _log.warning("a run is not complete in the copy; using the one before it reason=%s", missing)
    raise found or ArchiveFailure("restore", reader.store.name, "no run has been completed yet")


def _restore_archive(store: Store, file_system: FileSystem, directory: Path, settings: ArchiveSettings) -> None:
    if not find_clusters(store):
        _log.info("there is no archive to restore; starting with an empty directory store=%s", store.name)
        return
    reader = ArchiveReader(store, choose_cluster(store, settings.cluster))
    if reader.newest_root() is None:
        _log.info("the archive is empty; starting with an empty directory store=%s", store.name)
        return
    plan = plan_restore(reader, RestoreSelection())
    Restorer(store, file_system, directory, settings.part_size).restore(plan)
    _log.info("restored from the archive store=%s messages=%d", store.name, plan.message_count)
