"""Journals and stores that are ready for changes, in one step. A server looks at the directories in between."""

from pathlib import Path

from courser.catalog.store import CatalogSettings, CatalogStore
from courser.model.clock import Clock
from courser.storage.files import FileSystem
from courser.storage.journal import SLOT_COUNT, Journal
from courser.storage.journal_entries import SnapshotMark
from courser.storage.recovery_cases import StopKind


def open_journal(
    file_system: FileSystem,
    path: Path,
    *,
    snapshot: SnapshotMark | None,
    stop: StopKind,
    slot_count: int = SLOT_COUNT,
) -> Journal:
    journal = Journal.read(file_system, path, snapshot=snapshot, stop=stop, slot_count=slot_count)
    try:
        journal.settle()
    except BaseException:
        journal.close()
        raise
    return journal


def open_store(
    file_system: FileSystem,
    data_directory: Path,
    *,
    clock: Clock,
    stop: StopKind,
    settings: CatalogSettings | None = None,
) -> CatalogStore:
    store = CatalogStore.read(file_system, data_directory, clock=clock, stop=stop, settings=settings)
    store.settle()
    return store
