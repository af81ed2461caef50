"""Open files and indexes of segments that are read: opened when needed, a few kept, derived data made again."""

import contextlib
from pathlib import Path

from courser.errors import StorageFailure
from courser.model.buffers import Buffer
from courser.records.stored_header import PartitionIdentity
from courser.storage.durable_files import storage_failure
from courser.storage.files import File, FileSystem, write_all
from courser.storage.index_file import BadIndex
from courser.storage.paths import index_path, log_path, temporary_path
from courser.storage.scan import GoodBatch, scan
from courser.storage.segment import Segment, SegmentKey, SegmentState
from courser.storage.segment_index import IndexCache, SegmentIndex
from courser.storage.settings import LogSettings


class SealedFiles:
    """Calls may come from several threads. A file that is dropped here stays open while a reader holds it."""

    def __init__(
        self, file_system: FileSystem, directory: Path, identity: PartitionIdentity, settings: LogSettings
    ) -> None:
        self._file_system = file_system
        self._directory = directory
        self._identity = identity
        self._settings = settings
        self._open: dict[SegmentKey, File] = {}

    def file_of(self, segment: Segment) -> File:
        """The segment's log, for reading."""
        file = segment.file or self._open.get(segment.key)
        if file is not None:
            return file
        path = log_path(self._directory, segment.base_offset)
        try:
            file = self._file_system.open(path)
        except OSError as error:
            raise storage_failure("open", path, error) from error
        if segment.file is not None:
            # It was retired meanwhile, so this may be the file of its successor.
            return segment.file
        self.keep(segment, file)
        return file

    def keep(self, segment: Segment, file: File) -> None:
        """Have a file at hand for the next reader."""
        if len(self._open) >= self._settings.open_file_count_max:
            self._open = {}
        self._open[segment.key] = file

    def forget(self, segment: Segment) -> None:
        """The segment has a file of its own again: readers share it."""
        self._open.pop(segment.key, None)

    def retire(self, segment: Segment) -> None:
        """Prepare a sealed segment for the replacement of its file: its readers keep the file that is there now.

        From here on it has no index file either. If one of its readers needs the index, it is built in memory.
        """
        segment.file = self.file_of(segment)
        self.forget(segment)

    def prepare_index(self, segment: Segment) -> None:
        """Check the index file of a sealed segment for the first time; rebuild it if it is wrong."""
        path = index_path(self._directory, segment.base_offset)
        index = self._empty_index(segment)
        try:
            file = self._file_system.open(path)
            index.use_file(file, segment.size, into_memory=self._settings.index_cache is IndexCache.ALL)
        except (OSError, BadIndex):
            self.rebuild_index(segment)
            return
        segment.index = index
        segment.is_index_ready = True

    def rebuild_index(self, segment: Segment) -> None:
        """Make the index of a sealed segment from its log, in memory and on disk. An open one only drops its file."""
        if segment.state is not SegmentState.SEALED:
            # Its owner may be adding to it right now.
            segment.index.drop_file()
            return
        index = self._empty_index(segment)
        log = self.file_of(segment)
        for found in scan(
            log,
            self._identity,
            start=0,
            end=segment.size,
            offset=segment.base_offset,
            window_size=self._settings.limits.scan_window_size,
        ):
            if isinstance(found, GoodBatch):
                header = found.header
                index.add_batch(header.base_offset, found.position, header.base_timestamp, found.frames)
        file = self._write_index(segment, index)
        if file is not None and self._settings.index_cache is not IndexCache.ALL:
            # If it cannot be read back, it lives in memory.
            with contextlib.suppress(OSError, BadIndex):
                index.use_file(file, segment.size, into_memory=False)
        segment.index = index
        segment.is_index_ready = True

    def _empty_index(self, segment: Segment) -> SegmentIndex:
        settings = self._settings
        return SegmentIndex(
            self._identity, segment.base_offset, settings.index_interval, settings.limits.index_block_size
        )

    def _write_index(self, segment: Segment, index: SegmentIndex) -> File | None:
        _, data = index.unflushed(covered_size=segment.size)
        if segment.file is not None:
            # The name belongs to the index of its successor.
            return None
        path = index_path(self._directory, segment.base_offset)
        # A new file, which then gets the name: the segment may be retired at any moment, and its successor's index must
        # not change while it is in use. An index that gets the name too late covers another size, and is built again.
        temporary = temporary_path(path.with_suffix(f".{segment.key[1]}{path.suffix}"))
        try:
            file = write_index_file(self._file_system, temporary, 0, data)
            self._file_system.rename(temporary, path)
        except (StorageFailure, OSError):
            # A full or read-only disk, or another reader was faster: the index lives in memory then.
            return None
        return file

    def close(self) -> None:
        """Let go of all files."""
        self._open = {}


def write_index_file(file_system: FileSystem, path: Path, position: int, data: Buffer) -> File:
    """Put blocks at ``position`` and cut what an older index left behind them. Not synced: an index is derived."""
    try:
        try:
            file = file_system.open(path, writable=True)
        except FileNotFoundError:
            file = file_system.open(path, writable=True, create=True)
        write_all(file, position, [data])
        file.truncate(position + len(data))
    except OSError as error:
        raise storage_failure("write", path, error) from error
    return file
