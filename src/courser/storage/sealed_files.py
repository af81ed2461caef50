"""Open files and indexes of segments that are read: opened when needed, a few kept, derived data made again."""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from threading import Lock

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


class SegmentGone(Exception):
    """A segment was removed or replaced while somebody was about to read it: the others say what is there now."""


class SealedFiles:
    """Calls may come from several threads. A file that is closed here stays open while a reader holds it."""

    def __init__(
        self, file_system: FileSystem, directory: Path, identity: PartitionIdentity, settings: LogSettings
    ) -> None:
        self._file_system = file_system
        self._directory = directory
        self._identity = identity
        self._settings = settings
        self._open: dict[SegmentKey, File] = {}
        self._lock = Lock()

    def take(self, segment: Segment) -> File:
        """The segment's log, for reading. The caller holds it, and releases it.

        Raises:
            SegmentGone: the segment was removed or replaced.
            StorageFailure: the file cannot be opened.
        """
        while True:
            file = segment.file or self._open.get(segment.key)
            if file is None:
                file = self._open_log(segment)
                if file is not None:
                    return file
            elif file.hold():
                return file

    def _open_log(self, segment: Segment) -> File | None:
        """Open the log and hold it; None if the segment has got a file meanwhile."""
        if segment.is_gone:
            raise SegmentGone
        path = log_path(self._directory, segment.base_offset)
        try:
            file = self._file_system.open(path)
        except OSError as error:
            if segment.is_gone:
                raise SegmentGone from error
            raise storage_failure("open", path, error) from error
        if segment.file is not None:
            # It was retired meanwhile, so this may be the file of its successor.
            file.close()
            return None
        file.hold()
        self.keep(segment, file)
        return file

    @contextmanager
    def reading(self, segment: Segment) -> Iterator[File]:
        """``take``, and release at the end."""
        file = self.take(segment)
        try:
            yield file
        finally:
            file.release()

    def keep(self, segment: Segment, file: File) -> None:
        """Have a file at hand for the next reader."""
        with self._lock:
            displaced = [self._open.pop(segment.key, None)]
            if len(self._open) >= self._settings.open_file_count_max:
                displaced += self._open.values()
                self._open = {}
            if segment.is_gone:
                displaced.append(file)
            else:
                self._open[segment.key] = file
        _close_all(displaced)

    def forget(self, segment: Segment) -> None:
        """The segment has a file of its own again: readers share it."""
        with self._lock:
            file = self._open.pop(segment.key, None)
        _close_all([file])

    def retire(self, segment: Segment) -> None:
        """Prepare a sealed segment for the replacement of its file: its readers keep the file that is there now.

        From here on it has no index file either. If one of its readers needs the index, it is built in memory.
        """
        while segment.file is None:
            with self.reading(segment) as file, self._lock:
                # Otherwise another reader has just displaced it.
                if self._open.get(segment.key) is file:
                    segment.file = file
                    del self._open[segment.key]

    def reinstate(self, segment: Segment) -> None:
        """The file was not replaced after all."""
        file, segment.file = segment.file, None
        if file is not None:
            self.keep(segment, file)

    def drop(self, segment: Segment) -> None:
        """Close the files of a segment that was removed or replaced. Its readers begin again with those that remain."""
        with self._lock:
            segment.is_gone = True
            files = [segment.file, self._open.pop(segment.key, None)]
            segment.file = None
        _close_all(files)
        segment.index.close()

    def prepare_index(self, segment: Segment) -> None:
        """Check the index file of a sealed segment for the first time; rebuild it if it is wrong."""
        path = index_path(self._directory, segment.base_offset)
        index, is_in_memory = self._empty_index(segment), self._settings.index_cache is IndexCache.ALL
        try:
            with ExitStack() as stack:
                file = stack.enter_context(closing(self._file_system.open(path)))
                index.use_file(file, segment.size, into_memory=is_in_memory)
                if not is_in_memory:
                    stack.pop_all()
        except (OSError, BadIndex):
            self.rebuild_index(segment)
            return
        self._use_index(segment, index)

    def _use_index(self, segment: Segment, index: SegmentIndex) -> None:
        """Let readers use this index. It and its file belong to the segment."""
        with self._lock:
            unused = index if segment.is_gone else segment.index
            if not segment.is_gone:
                segment.index = index
                segment.is_index_ready = True
        unused.close()

    def rebuild_index(self, segment: Segment) -> None:
        """Make the index of a sealed segment from its log, in memory and on disk. An open one only drops its file."""
        if segment.state is not SegmentState.SEALED:
            # Its owner may be adding to it right now.
            segment.index.drop_file()
            return
        index = self._empty_index(segment)
        with self.reading(segment) as log:
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
        if file is not None:
            self._use_written(file, index, segment)
        self._use_index(segment, index)

    def _use_written(self, file: File, index: SegmentIndex, segment: Segment) -> None:
        """Read from the file what was written to it. If it cannot be read back, the index lives in memory."""
        if self._settings.index_cache is not IndexCache.ALL:
            try:
                index.use_file(file, segment.size, into_memory=False)
            except (OSError, BadIndex):
                pass
            else:
                return
        file.close()

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
        # A full or read-only disk, or another reader was faster: the index lives in memory then.
        try:
            file = write_index_file(self._file_system, temporary, 0, data)
        except StorageFailure:
            return None
        try:
            self._file_system.rename(temporary, path)
        except OSError:
            file.close()
            return None
        return file

    def close(self) -> None:
        """Let go of all files."""
        with self._lock:
            files, self._open = self._open, {}
        _close_all(files.values())


def _close_all(files: Iterable[File | None]) -> None:
    for file in files:
        if file is not None:
            file.close()


def write_index_file(file_system: FileSystem, path: Path, position: int, data: Buffer) -> File:
    """Put blocks at ``position`` and cut what an older index left behind them. Not synced: an index is derived."""
    try:
        try:
            file = file_system.open(path, writable=True)
        except FileNotFoundError:
            file = file_system.open(path, writable=True, create=True)
    except OSError as error:
        raise storage_failure("write", path, error) from error
    try:
        write_all(file, position, [data])
        file.truncate(position + len(data))
    except OSError as error:
        file.close()
        raise storage_failure("write", path, error) from error
    return file
