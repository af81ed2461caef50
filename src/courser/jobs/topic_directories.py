"""Finds the topics in a data directory: names from the metadata, directories from the ids. Needs no server."""

from dataclasses import dataclass
from pathlib import Path

from courser.catalog.state import CatalogState
from courser.errors import CourserError
from courser.inspect.metadata_check import examine_metadata, read_metadata_files
from courser.model.topic_options import TopicOptions
from courser.storage.files import FileSystem
from courser.storage.paths import LOG_SUFFIX, base_offset_of, log_path, partition_directory


class NotADataDirectory(CourserError):
    """The directory has no readable metadata."""

    def __init__(self, directory: Path, reason: str) -> None:
        super().__init__(directory, reason)
        self.directory = directory
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.directory} is not a readable data directory: {self.reason}"


class NoSuchTopic(CourserError):
    """The topic does not exist."""

    def __init__(self, directory: Path, stream: str | None, topic: str | None) -> None:
        super().__init__(directory, stream, topic)
        self.directory = directory
        self.stream = stream
        self.topic = topic

    def __str__(self) -> str:
        name = "/".join(name for name in (self.stream, self.topic) if name is not None)
        return f"{self.directory} has no topic {name}" if name else f"{self.directory} has no topics"


@dataclass(frozen=True, slots=True)
class SegmentFile:
    """One log file."""

    path: Path
    base_offset: int
    size: int
    """Bytes, including preallocated space."""


@dataclass(frozen=True, slots=True)
class PartitionDirectory:
    """One partition of a topic."""

    stream: str
    topic: str
    partition_id: int
    incarnation: int
    topic_uuid: bytes
    directory: Path
    options: TopicOptions
    segments: tuple[SegmentFile, ...]
    """Oldest first."""


def find_partitions(
    file_system: FileSystem, data_directory: Path, stream: str | None = None, topic: str | None = None
) -> list[PartitionDirectory]:
    """All partitions, or those of one stream or topic.

    Raises:
        NotADataDirectory: the metadata is missing or damaged.
        NoSuchTopic: no stream or topic has this name.
        OSError: the metadata cannot be read.
    """
    state = _read_state(file_system, data_directory)
    found = [
        PartitionDirectory(
            stream=owner.name,
            topic=entity.name,
            partition_id=partition.partition_id,
            incarnation=partition.incarnation,
            topic_uuid=entity.uuid,
            directory=(
                place := partition_directory(
                    data_directory, owner.stream_id, entity.topic_id, partition.partition_id, partition.incarnation
                )
            ),
            options=entity.options,
            segments=_segments(file_system, place),
        )
        for owner in state.streams.values()
        for entity in owner.topics.values()
        for partition in entity.partitions
        if stream in (None, owner.name) and topic in (None, entity.name)
    ]
    if not found:
        raise NoSuchTopic(data_directory, stream, topic)
    return sorted(found, key=lambda partition: (partition.stream, partition.topic, partition.partition_id))


def _read_state(file_system: FileSystem, data_directory: Path) -> CatalogState:
    metadata = examine_metadata(read_metadata_files(file_system, data_directory), data_directory)
    if metadata.state is None:
        reason = metadata.findings[0].reason if metadata.findings else "it contains no metadata"
        raise NotADataDirectory(data_directory, reason)
    return metadata.state


def _segments(file_system: FileSystem, directory: Path) -> tuple[SegmentFile, ...]:
    try:
        entries = file_system.list_directory(directory)
    except FileNotFoundError:
        # Just deleted, or not created yet.
        return ()
    found = [
        SegmentFile(log_path(directory, base), base, entry.size)
        for entry in entries
        if (base := base_offset_of(entry.name, LOG_SUFFIX)) is not None
    ]
    return tuple(sorted(found, key=lambda segment: segment.base_offset))
