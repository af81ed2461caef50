"""Copies of local segments in the archive, for repairs."""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from courser.archive.manifests import pieces_of
from courser.archive.objects import Piece
from courser.archive.reader import PartitionArchive
from courser.archive.transfers import file_steps, object_parts
from courser.storage.durable_files import storage_failure
from courser.storage.files import FileSystem, write_all
from courser.storage.partition_log import PartitionLog
from courser.storage.paths import log_path
from courser.storage.segment import Segment


def find_copy(archive: PartitionArchive, log: PartitionLog, segment: Segment) -> "ArchivedCopy | None":
    """What the archive has of a sealed segment; None if that is no copy.

    A copy from before the segment was condensed is none: it would bring back messages whose tombstones may be gone.
    """
    facts = segment.facts()
    pieces = pieces_of(archive.manifest, facts.base_offset)
    if not pieces or (pieces[0].is_whole and not pieces[0].is_copy_of(facts)):
        return None
    return ArchivedCopy(archive, pieces, log_path(log.directory, facts.base_offset), facts.size)


@dataclass(frozen=True, slots=True)
class ArchivedCopy:
    """The archived bytes of a segment: all of it, or the parts that were archived before it was damaged."""

    archive: PartitionArchive
    pieces: Sequence[Piece]
    local_path: Path
    size: int
    """Of the segment. What the archive does not have is taken from the disk."""

    def write(self, file_system: FileSystem, target: Path, part_size: int) -> None:
        """Write the segment to a new file, in parts. Whoever uses it checks it. Blocks.

        Raises:
            ArchiveFailure: the store does not answer.
            StorageFailure: a file cannot be read or written.
        """
        try:
            with closing(file_system.open(target, writable=True, create=True)) as file:
                for piece in self.pieces:
                    position = piece.position
                    for part in object_parts(self.archive.store, self.archive.key_of(piece), piece.size, part_size):
                        position += write_all(file, position, [part])
                position = self.pieces[-1].position + self.pieces[-1].size
                with closing(file_system.open(self.local_path)) as local:
                    for step in file_steps(local, position, self.size - position):
                        position += write_all(file, position, [step])
        except OSError as error:
            raise storage_failure("write", target, error) from error
