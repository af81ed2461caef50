"""Compare the directories and descriptors below ``streams`` with the state in the metadata; check modes of files.

A running server changes both. A difference is reported only if the metadata did not change during the comparison, and
if the last change does not explain it.
"""

import stat
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import Path

from courser.catalog.descriptors import (
    StreamDescriptor,
    TopicDescriptor,
    decode_descriptor,
    descriptor_of,
)
from courser.catalog.directories import identity_of, uuid_of
from courser.catalog.entities import Partition, Stream, Topic, UsedIds
from courser.catalog.state import CatalogState
from courser.errors import DamagedData
from courser.inspect.findings import Finding, Severity, reading_failure
from courser.inspect.metadata_check import Metadata, MetadataCheck, examine_metadata
from courser.inspect.partition_check import is_partition
from courser.inspect.small_files import read_whole
from courser.records.stored_header import PartitionIdentity
from courser.storage.files import EntryKind, FileSystem
from courser.storage.identity_search import find_stranger
from courser.storage.paths import (
    DESCRIPTOR,
    METADATA,
    PARTITIONS,
    STREAMS,
    TOPICS,
    partition_directory,
    stream_directory,
    topic_directory,
)

_TRY_COUNT = 10
"""Attempts to compare things that a server keeps changing."""
_REMEDY = "the next start rewrites it from the metadata"

_Descriptor = StreamDescriptor | TopicDescriptor
_Unit = tuple[int, ...]
"""What is compared at once: everything (), a stream (id), a topic (stream id, topic id)."""


class TreeCheck:
    """Compares the tree with the state."""

    def __init__(self, file_system: FileSystem, data_directory: Path, check: MetadataCheck) -> None:
        self._file_system = file_system
        self._path = data_directory
        self._check = check

    def findings(self, metadata: Metadata) -> Iterator[Finding]:
        """All differences, given metadata that was just read."""
        units: Iterable[_Unit] | None = None
        for _ in range(_TRY_COUNT):
            if metadata.state is None:
                return
            look = _Look(self._file_system, self._path, metadata, self._check)
            found = look.at(units)
            if not found:
                return
            again = self._check.load()
            if again.files == metadata.files:
                for unit in sorted(found):
                    yield from found[unit]
                return
            metadata, units = again, found.keys()
        text = "changes too often to be compared with the metadata: check again under less load"
        yield Finding(Severity.NOTE, "tree", self._path / STREAMS, text)

    def findings_without_state(self) -> Iterator[Finding]:
        """Check only the descriptors, from which the metadata could be rebuilt."""
        for stream in _subdirectories(self._file_system, self._path / STREAMS):
            directories = _subdirectories(self._file_system, stream / TOPICS)
            for directory in (stream, *directories):
                path = directory / DESCRIPTOR
                text = "and the metadata to rewrite it is missing"
                try:
                    is_there = _read_descriptor(self._file_system, path) is not None
                except DamagedData as damage:
                    yield Finding(Severity.DAMAGE, "descriptors", path, f"damaged, {text}: {damage.reason}")
                except OSError as error:
                    yield reading_failure(path, error)
                else:
                    if not is_there and directory in _subdirectories(self._file_system, directory.parent):
                        yield Finding(Severity.WARNING, "descriptors", path, f"absent, {text}")


class _Look:
    """One comparison of the tree with one version of the metadata."""

    def __init__(self, file_system: FileSystem, data_directory: Path, metadata: Metadata, check: MetadataCheck) -> None:
        assert metadata.state is not None
        self._file_system = file_system
        self._path = data_directory
        self._metadata = metadata
        self._state: CatalogState = metadata.state
        self._check = check
        self._earlier: CatalogState | None = None

    def at(self, units: Iterable[_Unit] | None) -> dict[_Unit, list[Finding]]:
        """The differences, by unit. None means all units."""
        found = {}
        for unit in self._all_units() if units is None else units:
            if findings := list(self._look(unit)):
                found[unit] = findings
        return found

    def _all_units(self) -> Iterator[_Unit]:
        yield ()
        for stream in self._state.streams.values():
            yield (stream.stream_id,)
            yield from ((stream.stream_id, topic_id) for topic_id in stream.topics)

    def _look(self, unit: _Unit) -> Iterator[Finding]:
        match unit:
            case ():
                known = {str(stream_id) for stream_id in self._state.streams}
                yield from self._find_unknown(self._path / STREAMS, known, self._state.stream_ids)
            case (stream_id,):
                stream = self._state.streams.get(stream_id)
                if stream is not None:
                    yield from self._look_at_stream(stream)
            case (stream_id, topic_id):
                stream = self._state.streams.get(stream_id)
                topic = stream.topics.get(topic_id) if stream is not None else None
                if stream is not None and topic is not None:
                    yield from self._look_at_topic(stream, topic)

    def _look_at_stream(self, stream: Stream) -> Iterator[Finding]:
        directory = stream_directory(self._path, stream.stream_id)
        yield from self._check_descriptor(directory, descriptor_of(stream), self._earlier_stream)
        known = {str(topic_id) for topic_id in stream.topics}
        yield from self._find_unknown(directory / TOPICS, known, stream.topic_ids)

    def _look_at_topic(self, stream: Stream, topic: Topic) -> Iterator[Finding]:
        directory = topic_directory(self._path, stream.stream_id, topic.topic_id)
        yield from self._check_descriptor(directory, descriptor_of(stream, topic), self._earlier_topic)
        found = {path.name for path in _subdirectories(self._file_system, directory / PARTITIONS)}
        for partition in topic.partitions:
            ids = stream.stream_id, topic.topic_id, partition.partition_id, partition.incarnation
            path = partition_directory(self._path, *ids)
            if path.name in found:
                found.discard(path.name)
                yield from self._check_partition(path, topic, partition)
            else:
                yield self._missing(path, partition, "the partition is lost: its directory is missing")
        for name in sorted(found):
            path = directory / PARTITIONS / name
            if not self._is_deleted(path):
                yield _unknown(path, is_later=_incarnation(name) > self._metadata.last_op)

    # --- partitions ---

    def _check_partition(self, path: Path, topic: Topic, partition: Partition) -> Iterator[Finding]:
        try:
            names = [entry.name for entry in self._file_system.list_directory(path)]
            if not is_partition(names):
                yield self._missing(path, partition, "the partition is lost: ledger and segments are missing")
                return
            expected = identity_of(topic, partition)
            stranger = find_stranger(self._file_system, path, expected)
        except FileNotFoundError:
            # Deleted since it was listed.
            return
        except OSError as error:
            yield reading_failure(path, error)
            return
        if stranger is not None:
            owner, what = stranger
            home = self._home_of(owner)
            place = f"which belongs in {home}" if home is not None else "which is not in the metadata"
            text = (
                f"{what} {owner}, {place}; the metadata expects {expected}: the server "
                "leaves the directory unchanged, and the partition is offline until the right one is restored"
            )
            yield Finding(Severity.DAMAGE, "tree", path, text)

    def _home_of(self, owner: PartitionIdentity) -> Path | None:
        for stream in self._state.streams.values():
            for topic in stream.topics.values():
                for partition in topic.partitions:
                    if identity_of(topic, partition) == owner:
                        ids = stream.stream_id, topic.topic_id, partition.partition_id, partition.incarnation
                        return partition_directory(self._path, *ids)
        return None

    def _missing(self, path: Path, partition: Partition, reason: str) -> Finding:
        if partition.incarnation == self._metadata.last_op and not self._check.is_settled():
            text = "being created, or its creation was interrupted: the next start creates it"
            return Finding(Severity.NOTE, "tree", path, text)
        return Finding(Severity.DAMAGE, "tree", path, reason)

    # --- unknown directories ---

    def _find_unknown(self, directory: Path, known: set[str], ids: UsedIds) -> Iterator[Finding]:
        for path in _subdirectories(self._file_system, directory):
            if path.name not in known and not self._is_deleted(path):
                is_number = path.name.isascii() and path.name.isdigit()
                yield _unknown(path, is_later=is_number and not ids.is_used(int(path.name)))

    def _is_deleted(self, path: Path) -> bool:
        return str(path.relative_to(self._path)) in self._state.deleted

    # --- descriptors ---

    def _check_descriptor(
        self, directory: Path, expected: _Descriptor, earlier: Callable[[_Descriptor], _Descriptor | None]
    ) -> Iterator[Finding]:
        path = directory / DESCRIPTOR
        try:
            found = _read_descriptor(self._file_system, path)
        except DamagedData as damage:
            text = f"descriptor damage, {_REMEDY}: {damage.reason}"
            yield Finding(Severity.DAMAGE, "descriptors", path, text, damage.position)
            return
        except OSError as error:
            yield reading_failure(path, error)
            return
        if found == expected:
            return
        if found == earlier(expected) and not self._check.is_settled():
            text = f"older than the last change: being written, or else {_REMEDY}"
            yield Finding(Severity.NOTE, "descriptors", path, text)
        elif found is None:
            yield Finding(Severity.WARNING, "descriptors", path, f"the descriptor is missing: {_REMEDY}")
        elif type(found) is not type(expected) or uuid_of(found) != uuid_of(expected):
            text = f"the descriptor is that of another stream or topic ({uuid_of(found).hex()}): {_REMEDY}"
            yield Finding(Severity.DAMAGE, "descriptors", path, text)
        else:
            yield Finding(Severity.WARNING, "descriptors", path, f"the descriptor is stale: {_REMEDY}")

    def _earlier_state(self) -> CatalogState:
        """The state before the last change, whose directories may not have been created yet."""
        if self._earlier is None:
            earlier = examine_metadata(self._metadata.files, self._path, skip_last=True).state
            assert earlier is not None, "the same bytes yielded a state before"
            self._earlier = earlier
        return self._earlier

    def _earlier_stream(self, descriptor: _Descriptor) -> _Descriptor | None:
        assert isinstance(descriptor, StreamDescriptor)
        stream = self._earlier_state().streams.get(descriptor.stream_id)
        return descriptor_of(stream) if stream is not None else None

    def _earlier_topic(self, descriptor: _Descriptor) -> _Descriptor | None:
        assert isinstance(descriptor, TopicDescriptor)
        stream = self._earlier_state().streams.get(descriptor.stream_id)
        topic = stream.topics.get(descriptor.topic.topic_id) if stream is not None else None
        return descriptor_of(stream, topic) if stream is not None and topic is not None else None


def _unknown(path: Path, *, is_later: bool) -> Finding:
    if is_later:
        text = "created by a change that is not in the journal, whose end is lost: the server refuses to start"
        return Finding(Severity.DAMAGE, "tree", path, text)
    return Finding(Severity.NOTE, "tree", path, "not in the metadata: left unchanged")


def _incarnation(name: str) -> int:
    """The op in the name of a partition's directory; -1 for another name."""
    parts = name.split("-")
    is_partition_name = len(parts) == 2 and all(part.isascii() and part.isdigit() for part in parts)
    return int(parts[1]) if is_partition_name else -1


def _subdirectories(file_system: FileSystem, directory: Path) -> list[Path]:
    try:
        entries = file_system.list_directory(directory)
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(directory / entry.name for entry in entries if entry.kind is EntryKind.DIRECTORY)


def _read_descriptor(file_system: FileSystem, path: Path) -> _Descriptor | None:
    try:
        data = read_whole(file_system, path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return decode_descriptor(data, path)


# --- modes ---

_OTHERS = 0o077
"""Permissions of the group and of others: only the server's user may access its data."""


def check_modes(file_system: FileSystem, data_directory: Path) -> Iterator[Finding]:
    """Find files and directories that others may access. One finding for each kind, not one for each file."""
    wide: dict[tuple[bool, EntryKind], list[tuple[Path, int]]] = {}
    for path, kind in chain([(data_directory, EntryKind.DIRECTORY)], _walk(file_system, data_directory)):
        try:
            # The FileSystem protocol has no modes: this is the only direct access.
            mode = stat.S_IMODE(path.lstat().st_mode)
        except OSError:
            continue
        if kind is not EntryKind.OTHER and mode & _OTHERS:
            is_metadata = METADATA in path.relative_to(data_directory).parts[:1]
            wide.setdefault((is_metadata, kind), []).append((path, mode))
    for (_, kind), [(path, mode), *others] in wide.items():
        wanted = 0o600 if kind is EntryKind.FILE else 0o700
        more = f" (and {len(others)} more like it)" if others else ""
        text = f"mode {mode:04o} gives access to others; the server sets {wanted:04o}{more}"
        yield Finding(Severity.WARNING, "modes", path, text)


def _walk(file_system: FileSystem, directory: Path) -> Iterator[tuple[Path, EntryKind]]:
    try:
        entries = file_system.list_directory(directory)
    except OSError:
        # Deleted in the meantime, or not accessible: the check that reads the directory reports that.
        return
    for entry in sorted(entries, key=lambda entry: entry.name):
        path = directory / entry.name
        yield path, entry.kind
        if entry.kind is EntryKind.DIRECTORY:
            yield from _walk(file_system, path)
