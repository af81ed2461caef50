"""The metadata of a topic, from the files of a data directory: for reads without a server, such as from a backup.

Descriptors map names to directories. The size of a sealed segment comes from the ledger; other segments are scanned
header by header. The server may be running: its files are only read, and incomplete batches are ignored.
"""

from collections.abc import Iterator
from pathlib import Path

from courser.catalog.descriptors import StreamDescriptor, TopicDescriptor, read_descriptor
from courser.catalog.entities import Topic
from courser.errors import DamagedData
from courser.records import layout
from courser.records.stored_header import BadBatch, PartitionIdentity, StoredHeader, read_header
from courser.spark.errors import ReadFailed, SourceMissing
from courser.spark.topic_metadata import Bounds, ListedSegment, TopicFacts, gaps_between
from courser.storage.files import File, read_exactly
from courser.storage.ledger import LedgerState, read_ledger
from courser.storage.local_files import LocalFileSystem
from courser.storage.paths import (
    LEDGER,
    LOG_SUFFIX,
    STREAMS,
    TOPICS,
    base_offset_of,
    log_path,
    partition_directory,
    stream_directory,
    topic_directory,
)


class FilesTopic:
    """One topic of a data directory."""

    def __init__(self, path: str, stream: str, topic: str) -> None:
        self._path = Path(path)
        self._stream = stream
        self._topic = topic
        self._files = LocalFileSystem()

    def facts(self) -> TopicFacts:
        """Read descriptors, ledgers and the headers of open segments. Raises ``ReadFailed``."""
        stream_id, topic = self._find()
        partitions = {}
        for partition in topic.partitions:
            segments = self._segments(stream_id, topic, partition.partition_id)
            first = max(segments[0].first, self._ledger(stream_id, topic, partition.partition_id).numbers.start_offset)
            size = sum(segment.size for segment in segments)
            count = sum(segment.next - segment.first for segment in segments)
            gaps = gaps_between(first, segments[-1].next, ((segment.first, segment.next) for segment in segments))
            partitions[partition.partition_id] = Bounds(first, segments[-1].next, size, count, gaps)
        return TopicFacts(topic.uuid, partitions)

    def segments(self, partition: int) -> list[ListedSegment]:
        stream_id, topic = self._find()
        return self._segments(stream_id, topic, partition)

    def is_reserved(self, partition: int, first: int, end: int) -> bool:
        """Whether the ledger records these offsets as a gap."""
        gaps = self._ledger(*self._find(), partition).gaps
        return any(gap.first_offset <= first and end <= gap.end_offset and not gap.is_loss for gap in gaps)

    def offset_at_time(self, partition: int, moment: int) -> int | None:
        """Scans the headers of the segment that contains it. Raises ``ReadFailed``."""
        stream_id, topic = self._find()
        identity, directory = self._place(stream_id, topic, partition)
        ledger = self._ledger(stream_id, topic, partition)
        for segment in self._segments(stream_id, topic, partition):
            sealed = ledger.sealed.get(segment.first)
            # What the clock was wrong by, if that is known: as the server does.
            wanted = moment - ledger.corrections.get(segment.first, 0)
            if sealed is not None and sealed.last_timestamp < wanted:
                continue
            for _, header in self._headers(directory, identity, segment.first, segment.size):
                if header.base_timestamp >= wanted:
                    return header.base_offset
        return None

    # --- names ----------------------------------------------------------------------------------------

    def _find(self) -> tuple[int, Topic]:
        for stream_id in self._numbers(self._path / STREAMS):
            stream = self._descriptor(stream_directory(self._path, stream_id))
            if not isinstance(stream, StreamDescriptor) or stream.name != self._stream:
                continue
            for topic_id in self._numbers(stream_directory(self._path, stream_id) / TOPICS):
                topic = self._descriptor(topic_directory(self._path, stream_id, topic_id))
                if isinstance(topic, TopicDescriptor) and topic.topic.name == self._topic:
                    return stream_id, topic.topic
        raise SourceMissing(f"{self._path}: topic {self._stream}/{self._topic} does not exist in this data directory")

    def _numbers(self, path: Path) -> list[int]:
        try:
            return sorted(int(entry.name) for entry in self._files.list_directory(path) if entry.name.isdecimal())
        except OSError as error:
            raise ReadFailed(f"could not read {path}: {error.strerror or error}") from error

    def _descriptor(self, path: Path) -> StreamDescriptor | TopicDescriptor | None:
        try:
            return read_descriptor(self._files, path)
        except (DamagedData, OSError) as error:
            raise ReadFailed(f"could not read {path}: {error}") from error

    def _place(self, stream_id: int, topic: Topic, partition: int) -> tuple[PartitionIdentity, Path]:
        (found,) = (one for one in topic.partitions if one.partition_id == partition)
        directory = partition_directory(self._path, stream_id, topic.topic_id, partition, found.incarnation)
        return PartitionIdentity(topic.uuid, partition, found.incarnation), directory

    # --- segments -------------------------------------------------------------------------------------

    def _ledger(self, stream_id: int, topic: Topic, partition: int) -> LedgerState:
        identity, directory = self._place(stream_id, topic, partition)
        return read_ledger(self._files, directory / LEDGER, identity).state

    def _segments(self, stream_id: int, topic: Topic, partition: int) -> list[ListedSegment]:
        """The segments, oldest first. If there is no file yet, a single empty one."""
        identity, directory = self._place(stream_id, topic, partition)
        ledger = self._ledger(stream_id, topic, partition)
        relative = str(directory.relative_to(self._path))
        segments = []
        for base in self._base_offsets(directory):
            sealed = ledger.sealed.get(base)
            if sealed is not None:
                segments.append(ListedSegment(base, sealed.end_offset, sealed.size, relative, is_sealed=True))
            else:
                behind, size = base, 0
                for position, header in self._headers(directory, identity, base, None):
                    behind, size = header.end_offset, position + header.stored_length
                segments.append(ListedSegment(base, behind, size, relative, is_sealed=False))
        start = ledger.numbers.start_offset
        kept = [segment for segment in segments if segment.next > start]
        return kept or [ListedSegment(start, start, 0, relative, is_sealed=False)]

    def _base_offsets(self, directory: Path) -> list[int]:
        try:
            names = [entry.name for entry in self._files.list_directory(directory)]
        except OSError as error:
            raise ReadFailed(f"could not read {directory}: {error.strerror or error}") from error
        return sorted(base for name in names if (base := base_offset_of(name, LOG_SUFFIX)) is not None)

    def _headers(
        self, directory: Path, identity: PartitionIdentity, base: int, size: int | None
    ) -> Iterator[tuple[int, StoredHeader]]:
        """The batch headers of a segment with their positions. Skips the bodies; ends where no valid batch begins."""
        try:
            file = self._files.open(log_path(directory, base))
        except OSError as error:
            raise ReadFailed(f"could not read {log_path(directory, base)}: {error.strerror or error}") from error
        end = file.size() if size is None else size
        try:
            yield from _walk(file, identity, base, end)
        finally:
            file.close()


def _walk(file: File, identity: PartitionIdentity, base: int, end: int) -> Iterator[tuple[int, StoredHeader]]:
    position, offset = 0, base
    while position + layout.BATCH_HEADER_SIZE <= end:
        data = read_exactly(file, position, layout.BATCH_HEADER_SIZE)
        if data is None:
            return
        try:
            header = read_header(memoryview(data), 0, identity)
        except BadBatch:
            return
        if header.previous_end_offset != offset or position + header.stored_length > end:
            return
        yield position, header
        position += header.stored_length
        offset = header.end_offset
