"""At start: compare the catalog with the directories, finish what was interrupted, report what does not fit.

Only directories that the state calls deleted are removed. A missing one is made anew only if its creation is the last
entry of the journal: then the power failed before it was acknowledged. Otherwise its messages are lost, and it says so.
"""

from dataclasses import dataclass, field
from pathlib import Path

from courser.catalog.descriptors import describe_stream, describe_topic
from courser.catalog.directories import Directories
from courser.catalog.entities import Partition, Stream, Topic
from courser.catalog.state import CatalogState
from courser.storage.paths import PARTITIONS, STREAMS, TOPICS, stream_directory, topic_directory


@dataclass(frozen=True, slots=True)
class LostPartition:
    """A partition of the catalog whose directory is gone."""

    stream_id: int
    topic_id: int
    partition_id: int
    path: Path


@dataclass(slots=True)
class Reconciliation:
    """What was done and found."""

    removed: list[str] = field(default_factory=list)
    """Paths of deleted directories that are gone for good now: to be forgotten by the catalog."""
    remade: list[Path] = field(default_factory=list)
    """Directories of the last command, which was interrupted."""
    lost: list[LostPartition] = field(default_factory=list)
    unknown: list[Path] = field(default_factory=list)
    """Directories that the catalog does not know: left alone."""


def reconcile(
    directories: Directories, data_directory: Path, state: CatalogState, last_op: int | None
) -> Reconciliation:
    """Bring the tree in line with the state, as far as that is safe. May be repeated."""
    return _Reconciler(directories, data_directory, state, last_op).run()


class _Reconciler:
    def __init__(
        self, directories: Directories, data_directory: Path, state: CatalogState, last_op: int | None
    ) -> None:
        self._directories = directories
        self._path = data_directory
        self._state = state
        self._last_op = last_op
        self._result = Reconciliation()

    def run(self) -> Reconciliation:
        for deleted in self._state.deleted.values():
            if self._directories.remove(deleted):
                self._result.removed.append(deleted.path)
        known = {str(stream_id) for stream_id in self._state.streams}
        self._report_unknown(self._path / STREAMS, known)
        for stream in self._state.streams.values():
            self._check_stream(stream)
        return self._result

    def _check_stream(self, stream: Stream) -> None:
        directory = stream_directory(self._path, stream.stream_id)
        if self._directories.descriptor(directory) != describe_stream(stream):
            # Absent, damaged, or behind the last command. Derived from the state, so it costs nothing to have it again.
            self._directories.make_stream(stream)
            self._result.remade.append(directory)
        self._report_unknown(directory / TOPICS, {str(topic_id) for topic_id in stream.topics})
        for topic in stream.topics.values():
            self._check_topic(stream, topic)

    def _check_topic(self, stream: Stream, topic: Topic) -> None:
        directory = topic_directory(self._path, stream.stream_id, topic.topic_id)
        found = set(self._directories.subdirectories(directory / PARTITIONS))
        expected = {f"{partition.partition_id}-{partition.incarnation}": partition for partition in topic.partitions}
        self._report(directory / PARTITIONS, found - expected.keys())
        if self._directories.descriptor(directory) != describe_topic(stream, topic):
            self._directories.make_topic(stream, topic)
        unfinished = [
            partition
            for partition in topic.partitions
            if partition.incarnation == self._last_op and not self._directories.is_finished(stream, topic, partition)
        ]
        if unfinished:
            self._remake(stream, topic, unfinished)
        for name, partition in expected.items():
            if name not in found and partition not in unfinished:
                path = self._directories.partition_path(stream, topic, partition)
                ids = stream.stream_id, topic.topic_id, partition.partition_id
                self._result.lost.append(LostPartition(*ids, path))

    def _remake(self, stream: Stream, topic: Topic, partitions: list[Partition]) -> None:
        directory = topic_directory(self._path, stream.stream_id, topic.topic_id)
        self._directories.make_topic(stream, topic)
        self._directories.make_partitions(stream, topic, partitions)
        self._result.remade.append(directory)

    def _report_unknown(self, directory: Path, known: set[str]) -> None:
        self._report(directory, set(self._directories.subdirectories(directory)) - known)

    def _report(self, directory: Path, names: set[str]) -> None:
        deleted = self._state.deleted.keys()
        for name in sorted(names):
            path = directory / name
            if str(path.relative_to(self._path)) not in deleted:
                self._result.unknown.append(path)
