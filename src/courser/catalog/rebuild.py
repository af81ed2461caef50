"""`recreate_missing_state`: rebuild the catalog from the rest of the metadata and from the descriptors.

Snapshot and journal are used up to the first damage, users and tokens included. The descriptors then add what is
missing: they are written after every change, so they are at least as new for their stream or topic. A directory without
a descriptor is adopted under an invented name. Nothing is deleted; damaged files are copied to quarantine first.
"""

from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeGuard

import xxhash

from courser.catalog.change_feed import ChangeFeed
from courser.catalog.descriptors import StreamDescriptor, TopicDescriptor
from courser.catalog.directories import Directories
from courser.catalog.entities import Partition, Stream, Topic, UsedIds
from courser.catalog.rules import NAME_SIZE_MAX
from courser.catalog.state import CatalogState
from courser.catalog.store import load_state, replay
from courser.errors import MetadataDamaged
from courser.model.clock import Clock
from courser.model.topic_options import TopicOptions
from courser.storage.durable_files import list_if_there, replace_file
from courser.storage.files import EntryKind, FileSystem, read_exactly
from courser.storage.identity_search import find_identity
from courser.storage.journal_entries import NO_PARENT, BadEntry, Entry, SnapshotMark, decode_entry
from courser.storage.paths import JOURNAL, METADATA_SNAPSHOT, PARTITIONS, STREAMS, TOPICS, stream_directory
from courser.storage.quarantine import Quarantine
from courser.storage.snapshot import Snapshot, read_snapshot, write_snapshot


@dataclass(slots=True)
class RebuildReport:
    """What was used, what was invented and what is lost."""

    problems: list[str] = field(default_factory=list)
    """Why a rebuild was needed."""
    adopted: list[Path] = field(default_factory=list)
    """Directories that were not in the metadata."""
    lost: list[str] = field(default_factory=list)
    """What cannot be recovered."""


# --- what the metadata files still contain ---


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
    replay(salvage.state, entry, path, position, ChangeFeed())
    salvage.mark = SnapshotMark(entry.op, entry.checksum)


# --- rebuilding ---


def rebuild_metadata(
    file_system: FileSystem, data_directory: Path, metadata_directory: Path, clock: Clock
) -> RebuildReport:
    """Write a new snapshot and an empty journal, which ``CatalogStore.read`` can load."""
    salvage = salvage_metadata(file_system, metadata_directory)
    report = RebuildReport(problems=salvage.problems)
    merge = _Merge(Directories(file_system, data_directory), file_system, data_directory, salvage.state, report)
    merge.run()
    if not salvage.state.users:
        report.lost.append("all users, passwords, permissions and tokens")
    elif salvage.damaged:
        after = "the beginning" if salvage.mark is None else f"op {salvage.mark.op}"
        report.lost.append(f"changes to users, permissions and tokens after {after}")
    _write(file_system, metadata_directory, salvage, merge.highest_op, clock)
    return report


def _write(file_system: FileSystem, directory: Path, salvage: Salvage, highest_op: int, clock: Clock) -> None:
    quarantine = Quarantine(file_system, directory)
    for path in salvage.damaged:
        with closing(file_system.open(path)) as file:
            quarantine.copy(file, 0, file.size())
    # Higher than every op that ever created a partition: directory names and batches contain these ops.
    op = max(highest_op, -1 if salvage.mark is None else salvage.mark.op) + 1
    body = salvage.state.encode()
    digest = xxhash.xxh3_128_digest(body)
    snapshot = Snapshot(SnapshotMark(op, digest), digest, clock.now(), body)
    # The snapshot first. If the power fails after it, either it covers all entries of the old journal, or the journal
    # is still damaged and the rebuild is repeated from this snapshot.
    write_snapshot(file_system, directory / METADATA_SNAPSHOT, snapshot)
    replace_file(file_system, directory / JOURNAL, b"")


class _Merge:
    """Adds the information in the directories to a state."""

    def __init__(
        self,
        directories: Directories,
        file_system: FileSystem,
        data_directory: Path,
        state: CatalogState,
        report: RebuildReport,
    ) -> None:
        self._directories = directories
        self._file_system = file_system
        self._path = data_directory
        self._state = state
        self._report = report
        self._described: set[tuple[int, ...]] = set()
        """Ids of streams, and of topics, whose names come from their descriptors."""
        self.highest_op = -1

    def run(self) -> None:
        for name in self._directories.subdirectories(self._path / STREAMS):
            stream_id = _number(name)
            directory = self._path / STREAMS / name
            if stream_id is None or self._is_deleted(directory):
                continue
            self._take_stream(stream_id, directory)
        self._name_what_is_gone()
        self._part_names()
        self._state.index_names()

    def _name_what_is_gone(self) -> None:
        """Report streams and topics without a directory. They are kept: they may have been deleted, or lost."""
        found = {_number(name) for name in self._directories.subdirectories(self._path / STREAMS)}
        for stream in self._state.streams.values():
            if stream.stream_id not in found:
                self._report.lost.append(f"the data of stream {stream.name!r}, unless it was deleted")
                continue
            topics = stream_directory(self._path, stream.stream_id) / TOPICS
            found_topics = {_number(name) for name in self._directories.subdirectories(topics)}
            self._report.lost.extend(
                f"the data of topic {topic.name!r} of stream {stream.name!r}, unless it was deleted"
                for topic in stream.topics.values()
                if topic.topic_id not in found_topics
            )

    def _part_names(self) -> None:
        """Make names unique: a name from a descriptor wins over one from old metadata."""
        streams = self._state.streams
        taken: set[str] = set()
        for stream_id in sorted(streams, key=lambda number: ((number,) not in self._described, number)):
            stream = streams[stream_id]
            stream.name = self._free_name(stream.name, stream_id, taken, f"stream {stream_id}")
            self._part_topic_names(stream)

    def _part_topic_names(self, stream: Stream) -> None:
        taken: set[str] = set()
        ids = sorted(stream.topics, key=lambda number: ((stream.stream_id, number) not in self._described, number))
        for topic_id in ids:
            topic = stream.topics[topic_id]
            topic.name = self._free_name(topic.name, topic_id, taken, f"topic {topic_id} of stream {stream.name}")

    def _free_name(self, name: str, number: int, taken: set[str], what: str) -> str:
        free = name
        for suffix in ("", f"-{number}", *(f"-{number}-{count}" for count in range(len(taken) + 1))):
            free = name.encode()[: NAME_SIZE_MAX - len(suffix)].decode(errors="ignore") + suffix
            if free not in taken:
                break
        if free != name:
            self._report.lost.append(
                f"the name {name!r} of {what}, which is also used by another one: it is now called {free!r}"
            )
        taken.add(free)
        return free

    def _is_deleted(self, directory: Path) -> bool:
        return str(directory.relative_to(self._path)) in self._state.deleted

    def _take_stream(self, stream_id: int, directory: Path) -> None:
        descriptor = self._directories.descriptor(directory)
        stream = self._state.streams.get(stream_id)
        if _is_of_stream(descriptor, stream_id, stream):
            if stream is None:
                stream = self._adopt_stream(stream_id, descriptor.uuid, descriptor.name, directory)
                stream.created_at = descriptor.created_at
            stream.name = descriptor.name
            self._described.add((stream_id,))
            stream.topic_ids.merge(descriptor.topic_ids)
        elif stream is None:
            uuid = xxhash.xxh3_128_digest(str(directory).encode())
            stream = self._adopt_stream(stream_id, uuid, f"recovered-{stream_id}", directory)
            self._report.lost.append(f"the name of stream {stream_id}: it is now called {stream.name}")
        for name in self._directories.subdirectories(directory / TOPICS):
            topic_id = _number(name)
            if topic_id is not None and not self._is_deleted(directory / TOPICS / name):
                self._take_topic(stream, topic_id, directory / TOPICS / name)

    def _adopt_stream(self, stream_id: int, uuid: bytes, name: str, directory: Path) -> Stream:
        stream = Stream(stream_id, uuid, name, 0, {}, UsedIds())
        self._state.streams[stream_id] = stream
        _use(self._state.stream_ids, stream_id)
        self._report.adopted.append(directory)
        return stream

    def _take_topic(self, stream: Stream, topic_id: int, directory: Path) -> None:
        descriptor = self._directories.descriptor(directory)
        known = stream.topics.get(topic_id)
        partitions = self._partitions_in(directory / PARTITIONS)
        if _is_of_topic(descriptor, stream.stream_id, topic_id, known):
            topic = descriptor.topic
            # The journal has its deletion, which was interrupted before the descriptor was replaced.
            paths = {found: directory / PARTITIONS / _directory_name(found) for found in topic.partitions}
            topic.partitions = [found for found, path in paths.items() if not self._is_deleted(path)]
            self._described.add((stream.stream_id, topic_id))
            if known is not None:
                topic.group_ids.merge(known.group_ids)
                topic.purge_count = max(topic.purge_count, known.purge_count)
        elif known is not None:
            topic = known
        else:
            topic = self._make_up_topic(stream, topic_id, directory, partitions)
        if known is None:
            self._report.adopted.append(directory)
        stream.topics[topic_id] = topic
        _use(stream.topic_ids, topic_id)
        self.highest_op = max([self.highest_op, *(partition.incarnation for partition in topic.partitions)])

    def _make_up_topic(self, stream: Stream, topic_id: int, directory: Path, partitions: list[Partition]) -> Topic:
        """Restore a topic without a descriptor: every ledger and batch has its UUID, but its name is lost."""
        paths = [directory / PARTITIONS / _directory_name(found) for found in partitions]
        found = {path: find_identity(self._file_system, path) for path in paths}
        # A directory that was moved here contains another number than its name says, or is outvoted.
        votes = Counter(
            identity.topic_uuid
            for path, identity in found.items()
            if identity is not None and path.name == f"{identity.partition_id}-{identity.incarnation}"
        )
        uuid = votes.most_common(1)[0][0] if votes else xxhash.xxh3_128_digest(str(directory).encode())
        name = f"recovered-{topic_id}"
        where = f"topic {topic_id} of stream {stream.name}"
        self._report.lost.append(f"name, options and groups of {where}: it is now called {name}")
        return Topic(topic_id, uuid, name, 0, TopicOptions(), partitions, {}, UsedIds(), 0)

    def _partitions_in(self, directory: Path) -> list[Partition]:
        """The newest incarnation of each partition id, up to the first missing id."""
        newest: dict[int, int] = {}
        for entry in list_if_there(self._file_system, directory):
            partition_id, _, incarnation = entry.name.partition("-")
            numbers = _number(partition_id), _number(incarnation)
            if entry.kind is not EntryKind.DIRECTORY or numbers[0] is None or numbers[1] is None:
                continue
            newest[numbers[0]] = max(newest.get(numbers[0], -1), numbers[1])
            self.highest_op = max(self.highest_op, numbers[1])
        ids = sorted(newest)
        return [Partition(number, newest[number], 0) for position, number in enumerate(ids) if position == number]


def _number(name: str) -> int | None:
    return int(name) if name.isascii() and name.isdigit() else None


def _directory_name(partition: Partition) -> str:
    return f"{partition.partition_id}-{partition.incarnation}"


def _use(ids: UsedIds, number: int) -> None:
    if not ids.is_used(number):
        ids.use(number)


def _is_of_stream(
    descriptor: StreamDescriptor | TopicDescriptor | None, stream_id: int, known: Stream | None
) -> TypeGuard[StreamDescriptor]:
    """Whether the descriptor belongs to this stream and was not moved here."""
    if not isinstance(descriptor, StreamDescriptor) or descriptor.stream_id != stream_id:
        return False
    return known is None or known.uuid == descriptor.uuid


def _is_of_topic(
    descriptor: StreamDescriptor | TopicDescriptor | None, stream_id: int, topic_id: int, known: Topic | None
) -> TypeGuard[TopicDescriptor]:
    if not isinstance(descriptor, TopicDescriptor):
        return False
    if descriptor.stream_id != stream_id or descriptor.topic.topic_id != topic_id:
        return False
    return known is None or known.uuid == descriptor.topic.uuid
