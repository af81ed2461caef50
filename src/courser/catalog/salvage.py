"""Read damaged metadata as far as possible: the snapshot if it is intact, and the journal up to its first fault."""

from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from courser.catalog.state import CatalogState
from courser.catalog.store import load_state, replay
from courser.errors import MetadataDamaged
from courser.storage.files import FileSystem, read_exactly
from courser.storage.journal_entries import NO_PARENT, BadEntry, Entry, SnapshotMark, decode_entry
from courser.storage.paths import JOURNAL, METADATA_SNAPSHOT
from courser.storage.snapshot import read_snapshot


@dataclass(slots=True)
class Salvage:
    """The state that the metadata files still contain."""

    state: CatalogState = field(default_factory=CatalogState)
    mark: SnapshotMark | None = None
    """The last change that the state includes."""
    problems: list[str] = field(default_factory=list)
    damaged: list[Path] = field(default_factory=list)
    """Files to copy to quarantine."""


def salvage_metadata(file_system: FileSystem, directory: Path) -> Salvage:
    """Read snapshot and journal up to the first damage. Changes nothing."""
    salvage = Salvage()
    _take_snapshot(file_system, directory / METADATA_SNAPSHOT, salvage)
    _take_journal(file_system, directory / JOURNAL, salvage)
    return salvage


def _take_snapshot(file_system: FileSystem, path: Path, salvage: Salvage) -> None:
    try:
        snapshot = read_snapshot(file_system, path)
        if snapshot is None:
            return
        salvage.state = load_state(snapshot, path)
        salvage.mark = snapshot.mark
    except MetadataDamaged as damage:
        salvage.problems.append(str(damage))
        salvage.damaged.append(path)


def _take_journal(file_system: FileSystem, path: Path, salvage: Salvage) -> None:
    try:
        file = file_system.open(path)
    except FileNotFoundError:
        salvage.problems.append(f"{path}: the journal is missing")
        return
    with closing(file):
        data = read_exactly(file, 0, file.size()) or bytearray()
    position = 0
    while position < len(data):
        try:
            entry = decode_entry(data, position, len(data))
            _follow(entry, path, position, salvage)
        except (BadEntry, MetadataDamaged) as fault:
            salvage.problems.append(f"{path}, from byte {position} on: {fault}")
            salvage.damaged.append(path)
            return
        position += entry.size


def _follow(entry: Entry, path: Path, position: int, salvage: Salvage) -> None:
    """Apply an entry if it is the next one; skip entries that the snapshot covers."""
    mark = salvage.mark
    if mark is not None and entry.op <= mark.op:
        return
    expected, parent = (0, NO_PARENT) if mark is None else (mark.op + 1, mark.checksum)
    if entry.op != expected or entry.parent != parent:
        raise BadEntry(f"op {entry.op} does not follow the last known entry: op {expected} was expected")
    replay(salvage.state, entry, path, position)
    salvage.mark = SnapshotMark(entry.op, entry.checksum)
