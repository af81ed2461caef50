"""Whether a start has something to restore. Apart from the code that restores: most starts do not import that."""

from pathlib import Path

from courser.archive.keys import VERSION
from courser.archive.settings import ArchiveSettings
from courser.storage.durable_files import list_if_there
from courser.storage.files import FileSystem
from courser.storage.paths import METADATA, RESTORE_MARKER, STREAMS


def is_unfinished(file_system: FileSystem, directory: Path) -> bool:
    """Whether a restore into this directory was interrupted."""
    return any(entry.name == RESTORE_MARKER for entry in list_if_there(file_system, directory))


def is_empty(file_system: FileSystem, directory: Path) -> bool:
    """Whether a directory has no data of a server."""
    return not any(entry.name in (METADATA, STREAMS) for entry in list_if_there(file_system, directory))


def may_need_restore(file_system: FileSystem, directory: Path, settings: ArchiveSettings | None) -> bool:
    """Whether a start has to look closer: at a restore that was interrupted, a copied archive, or the store."""
    names = {entry.name for entry in list_if_there(file_system, directory)}
    if RESTORE_MARKER in names:
        return True
    is_wanted = settings is not None and settings.restore_on_start
    return names.isdisjoint((METADATA, STREAMS)) and (VERSION in names or is_wanted)
