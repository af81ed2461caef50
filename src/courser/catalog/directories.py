"""The directories and descriptors of the catalog: created after a change is durable and before it is acknowledged.

Every function may be repeated: a start repeats the last one if the power failed while it ran. Concurrent syncs take
hardly longer than a single one, so the partitions of a large topic are created by several tasks.
"""

import contextlib
import errno
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TypeAlias

from courser.catalog import changes
from courser.catalog.descriptors import (
    StreamDescriptor,
    TopicDescriptor,
    descriptor_of,
    encode_descriptor,
    read_descriptor,
)
from courser.catalog.entities import DeletedDirectory, Partition, Stream, Topic
from courser.catalog.state import CatalogState
from courser.errors import DamagedData, StorageFailure
from courser.records.stored_header import PartitionIdentity
from courser.storage.durable_files import (
    list_if_there,
    make_directories,
    remove_tree,
    replace_file,
    storage_failure,
    sync_directory,
)
from courser.storage.files import EntryKind, FileSystem
from courser.storage.identity_search import find_identity
from courser.storage.partition_log import PartitionLog
from courser.storage.paths import (
    DESCRIPTOR,
    LEDGER,
    LOG_SUFFIX,
    PARTITIONS,
    TOPICS,
    partition_directory,
    stream_directory,
    topic_directory,
)
from courser.storage.quarantine import Quarantine

_UNREADABLE = (errno.EIO, errno.EISDIR, errno.EINVAL, errno.ELOOP)
"""A bad sector, or not a regular file: retrying does not help."""


_SHARE_SIZE = 8
"""How many partitions one task creates. Small, because other work in the pool waits until the task ends."""

_ROOM_OF_A_CHANGE = 64 * 1024
_ROOM_OF_A_PARTITION = 8 * 1024
"""In bytes: a directory and a ledger."""

_TOPIC_LEVEL, _PARTITION_LEVEL = 4, 6
"""Components of a path below the data directory: ``streams/1/topics/2`` and ``streams/1/topics/2/partitions/0-5``."""

Task: TypeAlias = Callable[[], None]
StreamOrTopic: TypeAlias = tuple[int, int | None]
"""Ids of a stream and a topic; without a topic: the stream itself."""

CREATIONS = (changes.StreamCreation, changes.TopicCreation, changes.PartitionCreation)
"""Changes that create directories."""
Creation: TypeAlias = changes.StreamCreation | changes.TopicCreation | changes.PartitionCreation
_WRITERS = (*CREATIONS, changes.StreamUpdate, changes.TopicUpdate, changes.GroupCreation)
"""Changes that need disk space."""


def outdated_by(state: CatalogState, change: changes.AnyChange) -> set[StreamOrTopic]:
    """The streams and topics whose descriptors a change, which was applied to the state, has made outdated.

    None for a creation, which writes its own, and for a deletion, which is complete when it is durable. Users, tokens
    and sinks have no directories.
    """
    match change:
        case changes.StreamUpdate():
            return {(change.stream_id, None)}
        case changes.StreamPurge():
            return {(change.stream_id, topic_id) for topic_id in state.streams[change.stream_id].topics}
        case (
            changes.TopicUpdate()
            | changes.TopicPurge()
            | changes.PartitionDeletion()
            | changes.GroupCreation()
            | changes.GroupDeletion()
        ):
            return {(change.stream_id, change.topic_id)}
        case _:
            return set()


class Directories:
    """The directory tree below ``streams``. All methods block: call them in a pool."""

    def __init__(self, file_system: FileSystem, data_directory: Path) -> None:
        self._file_system = file_system
        self._path = data_directory

    @property
    def path(self) -> Path:
        return self._path

    def carry_out(self, state: CatalogState, change: changes.AnyChange) -> None:
        """Apply a change to the tree, after it was applied to the state. ``remove`` does the removals.

        Raises:
            StorageFailure: the disk refused; the tree is behind the state.
        """
        if isinstance(change, CREATIONS):
            for task in self.create(state, change):
                task()
        for stream_id, topic_id in outdated_by(state, change):
            stream = state.streams[stream_id]
            self.describe(stream, None if topic_id is None else stream.topics[topic_id])

    def check_room(self, change: changes.AnyChange) -> None:
        """Check whether the disk has room for what a change will create. A hint that avoids most failed attempts.

        Raises:
            DiskFull: it has no room. Nothing was changed.
        """
        if not isinstance(change, _WRITERS):
            return
        needed = _ROOM_OF_A_CHANGE
        if isinstance(change, changes.TopicCreation):
            needed += change.partition_count * _ROOM_OF_A_PARTITION
        elif isinstance(change, changes.PartitionCreation):
            needed += change.count * _ROOM_OF_A_PARTITION
        try:
            free = self._file_system.free_space(self._path)
        except OSError as error:
            raise storage_failure("measure", self._path, error) from error
        if free < needed:
            full = OSError(errno.ENOSPC, "too little free space")
            raise storage_failure("write", self._path, full) from full

    # --- creating ---

    def create(self, state: CatalogState, creation: Creation, *, is_repeated: bool = False) -> list[Task]:
        """Create the directories of a creation, after it was applied to the state, and a few partitions in them.

        Args:
            state: What the creation was applied to.
            creation: What to create.
            is_repeated: An earlier try failed part-way, so parts may exist.

        Returns:
            Tasks that create the partitions, if there are many. They may run concurrently.

        Raises:
            StorageFailure: the disk refused; the tree is behind the state.
        """
        if isinstance(creation, changes.StreamCreation):
            self.make_stream(state.streams[state.stream_by_name[creation.name]])
            return []
        stream = state.streams[creation.stream_id]
        if isinstance(creation, changes.TopicCreation):
            topic = stream.topics[state.topic_by_name[creation.stream_id, creation.name]]
            partitions = topic.partitions
            self.make_topic(stream, topic)
            self._make_partition_directories(stream, topic, partitions)
        else:
            topic = stream.topics[creation.topic_id]
            partitions = topic.partitions[-creation.count :]
            self._make_partition_directories(stream, topic, partitions)
            self.describe(stream, topic)
        if is_repeated:
            partitions = [partition for partition in partitions if not self.is_finished(stream, topic, partition)]
        if len(partitions) > _SHARE_SIZE:
            return [
                partial(self._begin_partitions, stream, topic, partitions[first : first + _SHARE_SIZE])
                for first in range(0, len(partitions), _SHARE_SIZE)
            ]
        self._begin_partitions(stream, topic, partitions)
        return []

    def make_stream(self, stream: Stream) -> None:
        """Create the directory of a stream, without its topics."""
        directory = stream_directory(self._path, stream.stream_id)
        self._make(directory / TOPICS)
        self.describe(stream)

    def make_topic(self, stream: Stream, topic: Topic) -> None:
        """Create the directory of a topic, without its partitions."""
        directory = topic_directory(self._path, stream.stream_id, topic.topic_id)
        self._make(directory / PARTITIONS, below=directory.parent)
        # The stream's descriptor records that the id is used, even if the topic's directory is lost.
        self.describe(stream)
        self.describe(stream, topic)

    def make_partitions(self, stream: Stream, topic: Topic, partitions: Sequence[Partition]) -> None:
        """Create empty partitions that are ready to be opened."""
        self._make_partition_directories(stream, topic, partitions)
        self._begin_partitions(stream, topic, partitions)

    def _make_partition_directories(self, stream: Stream, topic: Topic, partitions: Sequence[Partition]) -> None:
        """Create all of them, with a single sync for their names."""
        parent = topic_directory(self._path, stream.stream_id, topic.topic_id) / PARTITIONS
        for partition in partitions:
            directory = self.partition_path(stream, topic, partition)
            try:
                self._file_system.make_directory(directory)
            except FileExistsError:
                continue
            except FileNotFoundError:
                # Somebody has removed the directory of the topic.
                self._make(directory)
            except OSError as error:
                raise storage_failure("create", directory, error) from error
        if partitions:
            sync_directory(self._file_system, parent)

    def _begin_partitions(self, stream: Stream, topic: Topic, partitions: Sequence[Partition]) -> None:
        for partition in partitions:
            directory = self.partition_path(stream, topic, partition)
            identity = identity_of(topic, partition)
            try:
                PartitionLog.begin(self._file_system, directory, identity, epoch=topic.purge_count)
            except OSError as error:
                raise storage_failure("create", directory, error) from error

    def describe(self, stream: Stream, topic: Topic | None = None) -> None:
        """Replace the descriptor of a topic, or of the stream itself. Durable on return."""
        if topic is None:
            directory = stream_directory(self._path, stream.stream_id)
        else:
            directory = topic_directory(self._path, stream.stream_id, topic.topic_id)
        replace_file(self._file_system, directory / DESCRIPTOR, encode_descriptor(descriptor_of(stream, topic)))

    def settle(self, stream: Stream, topic: Topic | None = None) -> None:
        """Write the descriptor of a topic, or of the stream itself; create its directory first if it is missing."""
        try:
            self.describe(stream, topic)
        except StorageFailure as failure:
            if not _is_missing(failure):
                raise
            if topic is None:
                self.make_stream(stream)
            else:
                self.make_topic(stream, topic)

    def _make(self, directory: Path, *, below: Path | None = None) -> None:
        """Create a directory and its parents below one that is durable, or below the data directory."""
        try:
            try:
                make_directories(self._file_system, directory, below=below or self._path)
            except FileNotFoundError:
                # Somebody has removed that one.
                make_directories(self._file_system, directory, below=self._path)
        except OSError as error:
            raise storage_failure("create", directory, error) from error

    # --- finding ---

    def partition_path(self, stream: Stream, topic: Topic, partition: Partition) -> Path:
        """The directory of a partition."""
        ids = (stream.stream_id, topic.topic_id, partition.partition_id, partition.incarnation)
        return partition_directory(self._path, *ids)

    def subdirectories(self, directory: Path) -> list[str]:
        """Names of the directories in a directory; none if there is no such directory. Raises ``StorageFailure``."""
        return sorted(
            entry.name for entry in list_if_there(self._file_system, directory) if entry.kind is EntryKind.DIRECTORY
        )

    def descriptor(self, directory: Path) -> StreamDescriptor | TopicDescriptor | None:
        """The descriptor of a directory, or None if it is absent or damaged.

        Raises:
            StorageFailure: it may be intact but cannot be read now: too few file descriptors, no permission.
        """
        try:
            return read_descriptor(self._file_system, directory)
        except DamagedData:
            return None
        except OSError as error:
            if error.errno in _UNREADABLE:
                return None
            raise storage_failure("read", directory / DESCRIPTOR, error) from error

    def descriptor_damage(self, directory: Path) -> str | None:
        """Why the descriptor of a directory cannot be used; None if it can, or if it does not exist."""
        try:
            read_descriptor(self._file_system, directory)
        except DamagedData as damage:
            return f"{damage.reason} (at byte {damage.position})"
        except OSError as error:
            return error.strerror or str(error)
        return None

    def keep_foreign(self, directory: Path, uuid: bytes) -> None:
        """Copy a descriptor to quarantine before it is replaced, if it is damaged or describes something else."""
        found = self.descriptor(directory)
        if found is not None and uuid_of(found) == uuid:
            return
        try:
            with closing(self._file_system.open(directory / DESCRIPTOR)) as file:
                Quarantine(self._file_system, directory).copy(file, 0, file.size())
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            if error.errno not in _UNREADABLE:
                raise storage_failure("copy", directory / DESCRIPTOR, error) from error

    def is_finished(self, stream: Stream, topic: Topic, partition: Partition) -> bool:
        """Whether the making of a partition came to its end: its ledger comes last. Raises ``StorageFailure``."""
        directory = self.partition_path(stream, topic, partition)
        return any(entry.name == LEDGER for entry in list_if_there(self._file_system, directory))

    def has_messages(self, stream: Stream, topic: Topic, partition: Partition) -> bool:
        """Whether there are segments in the directory of a partition. Raises ``StorageFailure``."""
        directory = self.partition_path(stream, topic, partition)
        return any(entry.name.endswith(LOG_SUFFIX) for entry in list_if_there(self._file_system, directory))

    # --- removing ---

    def remove(self, deleted: DeletedDirectory) -> bool:
        """Remove a directory that is deleted in the state. Durable on return.

        Return False and leave it if it is not the directory that was deleted, or if another partition's directory was
        moved into it.
        """
        directory = self._path / deleted.path
        found = self.descriptor(directory)
        if found is not None and uuid_of(found) != deleted.uuid:
            return False
        try:
            if self._has_strangers(directory, deleted):
                return False
            remove_tree(self._file_system, directory)
            with contextlib.suppress(FileNotFoundError):
                # Even if it did not exist: the process that removed it may have died before the sync.
                self._file_system.sync_directory(directory.parent)
        except OSError as error:
            raise storage_failure("remove", directory, error) from error
        return True

    def _has_strangers(self, directory: Path, deleted: DeletedDirectory) -> bool:
        """Whether this directory, or a partition's directory in it, contains the files of another partition."""
        level = len(Path(deleted.path).parts)
        if level == _PARTITION_LEVEL:
            return self._is_foreign(directory, deleted.uuid)
        if level == _TOPIC_LEVEL:
            return self._has_foreign_partitions(directory, deleted.uuid)
        topics = [directory / TOPICS / name for name in self.subdirectories(directory / TOPICS)]
        found = {topic: self.descriptor(topic) for topic in topics}
        return any(
            self._has_foreign_partitions(topic, uuid_of(descriptor) if descriptor is not None else None)
            for topic, descriptor in found.items()
        )

    def _has_foreign_partitions(self, topic: Path, topic_uuid: bytes | None) -> bool:
        names = self.subdirectories(topic / PARTITIONS)
        return any(self._is_foreign(topic / PARTITIONS / name, topic_uuid) for name in names)

    def _is_foreign(self, directory: Path, topic_uuid: bytes | None) -> bool:
        """Compare the files with the topic's UUID, if known, and with the directory's name (number and incarnation)."""
        found = find_identity(self._file_system, directory)
        if found is None:
            return False
        is_named = directory.name == f"{found.partition_id}-{found.incarnation}"
        return not is_named or topic_uuid not in (None, found.topic_uuid)


def _is_missing(failure: StorageFailure) -> bool:
    return failure.cause is not None and failure.cause.errno in (errno.ENOENT, errno.ENOTDIR)


def uuid_of(descriptor: StreamDescriptor | TopicDescriptor) -> bytes:
    """The UUID of the stream or topic that a descriptor describes."""
    return descriptor.uuid if isinstance(descriptor, StreamDescriptor) else descriptor.topic.uuid


def identity_of(topic: Topic, partition: Partition) -> PartitionIdentity:
    """The identity that is stored in every batch of a partition."""
    return PartitionIdentity(topic.uuid, partition.partition_id, partition.incarnation)
