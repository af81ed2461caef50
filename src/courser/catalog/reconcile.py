"""At start: compare the catalog with the directories, finish interrupted work, report differences.

Only directories that are deleted in the state are removed. A missing directory is recreated only if its creation is the
last entry of the journal: then the power failed before it was acknowledged. Otherwise its messages are lost, which is
reported.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from courser.catalog.descriptors import StreamDescriptor, TopicDescriptor, descriptor_of
from courser.catalog.directories import Directories, uuid_of
from courser.catalog.entities import Partition, Stream, Topic, UsedIds
from courser.catalog.state import CatalogState
from courser.errors import DiskFull, StartRefused, StorageFailure
from courser.storage.durable_files import heals
from courser.storage.paths import (
    DESCRIPTOR,
    PARTITIONS,
    QUARANTINE,
    STREAMS,
    TOPICS,
    stream_directory,
    topic_directory,
)


@dataclass(frozen=True, slots=True)
class LostPartition:
    """A partition of the catalog whose directory is missing."""

    stream_id: int
    topic_id: int
    partition_id: int
    path: Path


@dataclass(slots=True)
class Reconciliation:
    """What was found and done."""

    removed: list[str] = field(default_factory=list)
    """Paths of deleted directories whose removal is now durable: the catalog can forget them."""
    remade: list[Path] = field(default_factory=list)
    """Recreated directories of the last change, which was interrupted."""
    bad_descriptors: list[tuple[Path, str]] = field(default_factory=list)
    """Descriptors that were wrong for another reason than an interrupted change, and why they were rewritten."""
    lost: list[LostPartition] = field(default_factory=list)
    unknown: list[Path] = field(default_factory=list)
    """Directories that are not in the catalog: they are left as they are."""
    behind: list[tuple[int, int | None]] = field(default_factory=list)
    """Stream and topic ids (None: the stream itself) whose descriptors did not fit on the disk."""


class Reconciler:
    """``survey`` compares and changes nothing; then ``carry_out`` does the work. Both may be repeated."""

    def __init__(
        self,
        directories: Directories,
        data_directory: Path,
        state: CatalogState,
        last_op: int | None,
        *,
        is_interrupted: bool,
    ) -> None:
        """``is_interrupted``: the last session may have ended during its last change."""
        self._directories = directories
        self._path = data_directory
        self._state = state
        self._is_interrupted = is_interrupted
        self._last_op = -1 if last_op is None else last_op
        self._result = Reconciliation()
        self._steps: list[Callable[[], None]] = []
        self.can_be_undone = False
        """Whether ``carry_out`` failed because the disk has no room for what the last change creates."""
        self._strangers: list[Path] = []
        """Directories of streams with the descriptor of another stream."""

    def survey(self) -> None:
        """Check everything.

        Raises:
            StartRefused: there are directories of changes that are not in the journal, so its end is missing. The
                next changes would reuse their ids and write into them.
        """
        found = set(self._directories.subdirectories(self._path / STREAMS))
        unknown = self._unknown(self._path / STREAMS, found - {str(stream_id) for stream_id in self._state.streams})
        later = [path for path in unknown if _is_unused(path.name, self._state.stream_ids)]
        for stream in self._state.streams.values():
            later += self._survey_stream(stream)
        for stranger in self._strangers:
            if any(stranger in path.parents for path in later):
                raise StartRefused(
                    stranger,
                    "its descriptor says that it is the directory of another stream",
                    "put the right directory back (if two were swapped, swap them back); nothing was changed",
                )
        if later:
            raise StartRefused(
                later[0],
                "it was created by a change that the metadata does not have: the end of the journal is missing",
                "restore the metadata directory from a backup, or start once with "
                "--set system.recovery.recreate_missing_state=true to rebuild it from the descriptors beside the data, "
                "or move the directory out of the way",
            )

    def carry_out(self) -> Reconciliation:
        """Remove deleted directories, and complete an interrupted creation."""
        for deleted in self._state.deleted.values():
            if self._directories.remove(deleted):
                self._result.removed.append(deleted.path)
            else:
                self._result.unknown.append(self._path / deleted.path)
        for step in self._steps:
            step()
        return self._result

    # --- checking ---

    def _survey_stream(self, stream: Stream) -> list[Path]:
        directory = stream_directory(self._path, stream.stream_id)
        found = set(self._directories.subdirectories(directory / TOPICS))
        descriptor, expected = self._directories.descriptor(directory), descriptor_of(stream)
        if descriptor is not None and uuid_of(descriptor) != stream.uuid:
            self._strangers.append(directory)
        if descriptor != expected:
            # Missing, damaged or older than the last change. It is derived from the state, so it can be rewritten.
            reason = self._fault_in(directory, descriptor, expected, is_in_use=bool(found))
            self._steps.append(partial(self._remake_stream, stream, reason))
        unknown = self._unknown(directory / TOPICS, found - {str(topic_id) for topic_id in stream.topics})
        later = [path for path in unknown if _is_unused(path.name, stream.topic_ids)]
        for topic in stream.topics.values():
            later += self._survey_topic(stream, topic)
        return later

    def _survey_topic(self, stream: Stream, topic: Topic) -> list[Path]:
        directory = topic_directory(self._path, stream.stream_id, topic.topic_id)
        expected = {f"{partition.partition_id}-{partition.incarnation}": partition for partition in topic.partitions}
        found = set(self._directories.subdirectories(directory / PARTITIONS))
        unknown = self._unknown(directory / PARTITIONS, found - expected.keys())
        unfinished = [
            partition
            for partition in topic.partitions
            if self._is_interrupted
            and partition.incarnation == self._last_op
            and not self._directories.is_finished(stream, topic, partition)
        ]
        descriptor, expected_descriptor = self._directories.descriptor(directory), descriptor_of(stream, topic)
        if unfinished or descriptor != expected_descriptor:
            reason = self._fault_in(directory, descriptor, expected_descriptor, is_in_use=bool(found))
            self._steps.append(partial(self._remake_topic, stream, topic, unfinished, reason))
        for name, partition in expected.items():
            if name not in found and partition not in unfinished:
                path = self._directories.partition_path(stream, topic, partition)
                ids = stream.stream_id, topic.topic_id, partition.partition_id
                self._result.lost.append(LostPartition(*ids, path))
        return [path for path in unknown if _incarnation(path.name) > self._last_op]

    def _fault_in(
        self,
        directory: Path,
        found: StreamDescriptor | TopicDescriptor | None,
        expected: StreamDescriptor | TopicDescriptor,
        *,
        is_in_use: bool,
    ) -> str | None:
        """What is wrong with a descriptor; None if nothing is wrong, or if an interrupted change explains it.

        ``is_in_use``: the directory contains something that is created only after its descriptor.
        """
        if found is None:
            damage = self._directories.descriptor_damage(directory)
            if damage is None and self._is_interrupted and not is_in_use:
                return None
            return "it was missing" if damage is None else f"it was damaged: {damage}; a copy is in {QUARANTINE}"
        if uuid_of(found) != uuid_of(expected):
            return f"it described something else; a copy is in {QUARANTINE}"
        return None if found == expected or self._is_interrupted else "it was older than the metadata"

    def _unknown(self, directory: Path, names: Iterable[str]) -> list[Path]:
        """Directories that are not in the state, except those that are deleted in it."""
        paths = [directory / name for name in sorted(names)]
        unknown = [path for path in paths if str(path.relative_to(self._path)) not in self._state.deleted]
        self._result.unknown += unknown
        return unknown

    # --- doing ---

    def _remake_stream(self, stream: Stream, reason: str | None) -> None:
        directory = stream_directory(self._path, stream.stream_id)
        try:
            self._directories.keep_foreign(directory, stream.uuid)
            self._directories.make_stream(stream)
        except StorageFailure as failure:
            # A descriptor only repeats the state. If the start failed because of it, nobody could free disk space.
            if not heals(failure):
                raise
            self._result.behind.append((stream.stream_id, None))
            return
        self._note_remade(directory, reason)

    def _note_remade(self, directory: Path, reason: str | None) -> None:
        if reason is None:
            self._result.remade.append(directory)
        else:
            self._result.bad_descriptors.append((directory / DESCRIPTOR, reason))

    def _remake_topic(self, stream: Stream, topic: Topic, partitions: list[Partition], reason: str | None) -> None:
        directory = topic_directory(self._path, stream.stream_id, topic.topic_id)
        try:
            self._directories.keep_foreign(directory, topic.uuid)
            self._directories.make_topic(stream, topic)
            self._directories.make_partitions(stream, topic, partitions)
        except StorageFailure as failure:
            if partitions or not heals(failure):
                self.can_be_undone = isinstance(failure, DiskFull) and self._is_unused(stream, topic)
                raise
            self._result.behind.append((stream.stream_id, topic.topic_id))
            return
        self._note_remade(directory, reason)

    def _is_unused(self, stream: Stream, topic: Topic) -> bool:
        """Whether no partition created by the last change has messages: then it was never acknowledged."""
        made = (partition for partition in topic.partitions if partition.incarnation == self._last_op)
        return not any(self._directories.has_messages(stream, topic, partition) for partition in made)


def _is_unused(name: str, ids: UsedIds) -> bool:
    return name.isascii() and name.isdigit() and not ids.is_used(int(name))


def _incarnation(name: str) -> int:
    """The op in the name of a partition's directory; -1 if the name has another form."""
    partition_id, _, incarnation = name.partition("-")
    return int(incarnation) if all(part.isascii() and part.isdigit() for part in (partition_id, incarnation)) else -1
