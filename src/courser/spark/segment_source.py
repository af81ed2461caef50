"""Reads messages from a segment file and checks the stored hashes on the way.

The server may delete an old segment at any time; the task then falls back to the next source. The file is never written
to. An open segment can be read too, up to the size that it had at planning.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from courser.records.compression import CodecMissing
from courser.records.encryption import KeyMissing
from courser.records.stored_header import PartitionIdentity
from courser.spark.segment_scan import FoundSegment, Scan, ScanOptions
from courser.spark.sources import FetchedBatches, SourceUnavailable
from courser.storage.files import File
from courser.storage.local_files import LocalFileSystem
from courser.storage.paths import index_path, log_path


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentSource:
    """One segment of one partition."""

    directory: str
    """The partition's directory."""
    identity: PartitionIdentity
    base_offset: int
    size: int
    """Bytes of batches at planning. By now more batches, or preallocated zeros, may follow."""
    options: ScanOptions

    @property
    def path(self) -> Path:
        return log_path(Path(self.directory), self.base_offset)

    def fetch(self, partition: int, start: int, end: int) -> Iterator[FetchedBatches]:
        """Raises ``ReadFailed`` if the file is damaged, unless damage is to be skipped."""
        assert partition == self.identity.partition_id, "a segment belongs to one partition"
        try:
            file = LocalFileSystem().open(self.path)
        except OSError as error:
            raise SourceUnavailable(f"{self.path}: {error.strerror or error}") from error
        try:
            yield from Scan(self._scanned, file, self._open_index, start, end).fetch()
        except OSError as error:
            raise SourceUnavailable(f"{self.path}: {error.strerror or error}") from error
        except (KeyMissing, CodecMissing) as error:
            raise SourceUnavailable(f"{self.path}: {error}") from error
        finally:
            file.close()

    @property
    def _scanned(self) -> FoundSegment:
        return FoundSegment(
            name=str(self.path),
            remedy="run `courser inspect verify` to find all damage",
            identity=self.identity,
            base_offset=self.base_offset,
            first_offset=self.base_offset,
            size=self.size,
            options=self.options,
        )

    def _open_index(self) -> File | None:
        try:
            return LocalFileSystem().open(index_path(Path(self.directory), self.base_offset))
        except OSError:
            return None
