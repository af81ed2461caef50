"""Opening the catalog of a data directory: load or rebuild, compare with the tree, finish what was interrupted."""

import contextlib
from dataclasses import dataclass
from pathlib import Path

from courser.catalog.changes import DirectoryRemoval
from courser.catalog.directories import Directories
from courser.catalog.rebuild import RebuildReport, rebuild_metadata
from courser.catalog.reconcile import Reconciler, Reconciliation
from courser.catalog.store import CatalogSettings, CatalogStore, make_metadata_directory
from courser.catalog.transitions import undo_of
from courser.errors import DiskFull, JournalFull, MetadataDamaged, StartRefused, StorageFailure
from courser.model.clock import Clock
from courser.storage.durable_files import storage_failure
from courser.storage.files import FileSystem
from courser.storage.paths import JOURNAL, METADATA, METADATA_SNAPSHOT, STREAMS
from courser.storage.recovery_cases import StopKind


@dataclass(frozen=True, slots=True)
class OpenedCatalog:
    """A catalog that is ready for changes, and what the start found."""

    store: CatalogStore
    directories: Directories
    reconciliation: Reconciliation
    rebuild: RebuildReport | None


def open_catalog(
    file_system: FileSystem,
    data_directory: Path,
    *,
    clock: Clock,
    stop: StopKind,
    settings: CatalogSettings | None = None,
    recreate_missing_state: bool = False,
) -> OpenedCatalog:
    """Open the metadata.

    Raises:
        StartRefused: metadata is damaged or missing, and ``recreate_missing_state`` is not set. Nothing was changed.
        StorageFailure: the disk cannot be read or written. The next start tries again.
    """
    try:
        return _open(file_system, data_directory, clock, stop, settings, recreate_missing_state=recreate_missing_state)
    except OSError as error:
        path = Path(error.filename) if isinstance(error.filename, str) else data_directory
        raise storage_failure("open", path, error) from error


def _open(
    file_system: FileSystem,
    data_directory: Path,
    clock: Clock,
    stop: StopKind,
    settings: CatalogSettings | None,
    *,
    recreate_missing_state: bool,
) -> OpenedCatalog:
    directories = Directories(file_system, data_directory)
    report: RebuildReport | None = None

    def start() -> tuple[CatalogStore, Reconciliation]:
        store = CatalogStore.read(file_system, data_directory, clock=clock, stop=stop, settings=settings)
        reconciler = survey(store)
        # Nothing is missing or damaged. Nothing was changed up to here.
        store.settle()
        try:
            return store, reconciler.carry_out()
        except StorageFailure:
            undo = undo_of(store.state, store.last_change) if reconciler.can_be_undone else None
            if undo is None:
                raise
            # The creation at the end of the journal was never acknowledged, and the disk has no room for it. If the
            # start failed, nobody could make room. If the power fails before this entry, the next start tries again;
            # after it, the next start removes the rest.
            store.append(undo)
            return store, survey(store).carry_out()

    def survey(store: CatalogStore) -> Reconciler:
        is_interrupted = stop is not StopKind.CLEAN
        reconciler = Reconciler(directories, data_directory, store.state, store.last_op, is_interrupted=is_interrupted)
        reconciler.survey()
        return reconciler

    try:
        _check_presence(file_system, data_directory, directories)
        store, found = start()
        if found.unknown and recreate_missing_state:
            store.close()
            raise MetadataDamaged(data_directory / METADATA, 0, f"{len(found.unknown)} directories are not in it")
    except StartRefused as refusal:
        if not recreate_missing_state:
            raise
        make_metadata_directory(file_system, data_directory / METADATA)
        report = rebuild_metadata(file_system, data_directory, data_directory / METADATA, clock)
        report.problems = report.problems or [str(refusal)]
        store, found = start()
    if found.removed:
        # If the journal has no room for this entry, the next start removes them again: start anyway.
        with contextlib.suppress(DiskFull, JournalFull):
            store.submit(DirectoryRemoval(tuple(found.removed)))
    return OpenedCatalog(store, directories, found, report)


def _check_presence(file_system: FileSystem, data_directory: Path, directories: Directories) -> None:
    """Refuse the start if there is data without metadata."""
    directory = data_directory / METADATA
    try:
        names = {entry.name for entry in file_system.list_directory(directory)}
    except FileNotFoundError:
        names = set()
    if JOURNAL in names:
        return
    if METADATA_SNAPSHOT in names:
        raise MetadataDamaged(directory / JOURNAL, 0, "the journal is missing, although a snapshot exists")
    if directories.subdirectories(data_directory / STREAMS):
        raise StartRefused(
            directory,
            "the streams directory has data, but the metadata is missing",
            "restore the metadata directory from a backup, or start once with "
            "--set system.recovery.recreate_missing_state=true to rebuild it from the descriptors beside the data; "
            "if this is the directory of an Iggy server, choose another one: Courser does not read its files",
        )
