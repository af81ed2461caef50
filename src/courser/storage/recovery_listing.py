"""List the files of a partition's directory by their names. This is the first step of recovery and changes nothing."""

from dataclasses import dataclass, field
from pathlib import Path

from courser.errors import StartRefused
from courser.storage.files import EntryKind, FileSystem
from courser.storage.paths import (
    INDEX_SUFFIX,
    LEDGER,
    LOG_SUFFIX,
    OFFSETS,
    QUARANTINE,
    TEMPORARY_SUFFIX,
    base_offset_of,
)
from courser.storage.recovery_scan import offset_bound


@dataclass(slots=True)
class PartitionListing:
    """The files of the directory."""

    log_sizes: dict[int, int] = field(default_factory=dict)
    index_bases: set[int] = field(default_factory=set)
    leftovers: list[Path] = field(default_factory=list)
    strays: list[Path] = field(default_factory=list)

    def offset_bound(self, first_base_offset: int) -> int:
        """An upper bound of the offsets in segments that start at ``first_base_offset`` or later; 0 if none does."""
        sizes = self.log_sizes.items()
        return max((offset_bound(size, base) for base, size in sizes if base >= first_base_offset), default=0)


def list_partition(file_system: FileSystem, directory: Path) -> PartitionListing:
    """Sort the files by their names. Nothing is changed.

    Raises:
        StartRefused: something that is not a file has the name of one.
    """
    listing = PartitionListing()
    for entry in file_system.list_directory(directory):
        path = directory / entry.name
        log_base = base_offset_of(entry.name, LOG_SUFFIX)
        index_base = base_offset_of(entry.name, INDEX_SUFFIX)
        is_ours = log_base is not None or index_base is not None or entry.name in (LEDGER, OFFSETS)
        if is_ours and entry.kind is not EntryKind.FILE:
            what = "a directory" if entry.kind is EntryKind.DIRECTORY else "not a regular file"
            raise StartRefused(path, f"it is {what}, but the server needs a file with this name", "move it elsewhere")
        if log_base is not None:
            listing.log_sizes[log_base] = entry.size
        elif index_base is not None:
            listing.index_bases.add(index_base)
        elif entry.name.endswith(TEMPORARY_SUFFIX) and entry.kind is EntryKind.FILE:
            listing.leftovers.append(path)
        elif not is_ours and entry.name != QUARANTINE:
            listing.strays.append(path)
    return listing
