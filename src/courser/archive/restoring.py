"""Makes a data directory from an archive.

The metadata comes last, and a marker file exists until then: an interrupted restore is continued, not started. Files
are checked while they are written, and files that are right already are not downloaded again.

A start restores into an empty directory, if that is wanted. There are two ways. ``restore_on_start`` reads the store of
the configuration. And somebody may have copied an archive into the directory with a tool such as ``aws s3 sync``: with
``recreate_missing_state``, it is restored from that copy, which stays as it is.
"""

import contextlib
import logging
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import xxhash

from courser.archive.claiming import ArchiveState, read_state, write_state
from courser.archive.disk_store import DiskStore
from courser.archive.errors import ArchiveDamaged, ArchiveFailure, ObjectMissing
from courser.archive.keys import VERSION, ArchiveKeys
from courser.archive.objects import Piece
from courser.archive.pacing import Pace
from courser.archive.reader import ArchiveReader, choose_cluster, find_clusters, open_store
from courser.archive.restore_need import is_empty, is_unfinished
from courser.archive.restore_plan import PlannedPartition, RestorePlan, RestoreSelection, plan_restore, plan_root
from courser.archive.settings import ArchiveSettings
from courser.archive.store import Store
from courser.archive.transfers import Range, hash_file, object_parts
from courser.catalog.directories import Directories
from courser.catalog.store import make_metadata_directory
from courser.errors import StartRefused
from courser.model.identifiers import ConsumerKind
from courser.storage.durable_files import (
    free_name,
    list_if_there,
    make_directories,
    remove_tree,
    replace_file,
    storage_failure,
    sync_directory,
    sync_file,
    unlink_if_there,
)
from courser.storage.files import File, FileSystem, write_all
from courser.storage.ledger import (
    DamagedRange,
    Event,
    Ledger,
    LedgerReading,
    LedgerState,
    OffsetGap,
    Sealed,
    SegmentFacts,
    TimeCorrection,
)
from courser.storage.offset_table import ConsumerKey, encode_header, encode_store
from courser.storage.paths import (
    ARCHIVE_STATE,
    INDEX_SUFFIX,
    JOURNAL,
    LEDGER,
    LOG_SUFFIX,
    METADATA,
    METADATA_SNAPSHOT,
    OFFSETS,
    PARTITIONS,
    RESTORE_MARKER,
    SESSION,
    STAGING,
    STREAMS,
    TOPICS,
    index_path,
    log_path,
)
from courser.storage.scan import GoodBatch, scan
from courser.storage.snapshot import write_snapshot

_log = logging.getLogger(__name__)

_REPLACED = "replaced"
"""Where a forced restore moves what was there."""
_MOVED = (METADATA, STREAMS, STAGING, SESSION, ARCHIVE_STATE)


@dataclass(frozen=True, slots=True)
class RestoreProgress:
    """How far a restore is."""

    done_size: int
    total_size: int
    downloaded_size: int
    """Of what is done; the rest was there already."""


@dataclass(slots=True)
class _Segment:
    """A restored segment, as it is recorded in the ledger."""

    facts: SegmentFacts
    is_cut: bool = False


@dataclass(slots=True)
class Restorer:
    """Restores into one directory, which the caller has locked. It may be used again for a later root."""

    store: Store
    file_system: FileSystem
    directory: Path
    part_size: int = 16 * 1024 * 1024
    report: Callable[[RestoreProgress], None] = lambda _: None
    _verified: dict[Path, set[bytes]] = field(default_factory=dict)
    """The hashes of the pieces of log files that this process has checked."""
    _done_size: int = 0
    _downloaded_size: int = 0

    def restore(self, plan: RestorePlan, *, is_forced: bool = False, is_update: bool = False) -> RestoreProgress:
        """Carry out a plan. ``is_forced`` moves other data aside; ``is_update`` continues an earlier restore.

        Raises:
            StartRefused: the directory has other data.
            ArchiveDamaged: an object is not what was archived. The restore can be continued with another root.
            ArchiveFailure: the store did not answer. The restore can be continued.
            StorageFailure: the disk refused.
        """
        self._take_directory(plan, is_forced=is_forced, is_update=is_update)
        self._done_size = self._downloaded_size = 0
        try:
            replace_file(self.file_system, self.directory / RESTORE_MARKER, plan.name.encode())
            self._remove_metadata()
            self._make_tree(plan)
            for partition in plan.partitions:
                self._restore_partition(plan, partition)
            self._write_metadata(plan)
        except OSError as error:
            path = Path(error.filename) if isinstance(error.filename, str) else self.directory
            raise storage_failure("restore", path, error) from error
        return RestoreProgress(self._done_size, plan.size, self._downloaded_size)

    # --- the directory ---

    def _take_directory(self, plan: RestorePlan, *, is_forced: bool, is_update: bool) -> None:
        is_own = is_update or is_unfinished(self.file_system, self.directory) or self._is_standby(plan)
        if is_own or is_empty(self.file_system, self.directory):
            return
        if not is_forced:
            raise StartRefused(
                self.directory, "it has data", "choose an empty directory, or move the data aside with --force"
            )
        aside = free_name(self.file_system, self.directory, _REPLACED)
        self.file_system.make_directory(aside)
        sync_directory(self.file_system, self.directory)
        for name in _MOVED:
            with contextlib.suppress(FileNotFoundError):
                self.file_system.rename(self.directory / name, aside / name)
        sync_directory(self.file_system, aside)
        sync_directory(self.file_system, self.directory)

    def _is_standby(self, plan: RestorePlan) -> bool:
        """Whether the directory was restored from the same archive, and no server has used it since."""
        if not plan.selection.is_everything:
            return False
        has_session = any(entry.name == SESSION for entry in list_if_there(self.file_system, self.directory))
        state = read_state(self.file_system, self.directory)
        return not has_session and state is not None and state.cluster == plan.cluster

    def _remove_metadata(self) -> None:
        """Remove what a later step writes: a directory without it cannot be mistaken for a complete one."""
        metadata = self.directory / METADATA
        for path in (metadata / JOURNAL, metadata / METADATA_SNAPSHOT, self.directory / SESSION):
            with contextlib.suppress(NotADirectoryError):
                unlink_if_there(self.file_system, path)
        unlink_if_there(self.file_system, self.directory / ARCHIVE_STATE)
        sync_directory(self.file_system, self.directory)

    def _make_tree(self, plan: RestorePlan) -> None:
        """Directories and descriptors; directories that an earlier root had are removed."""
        directories = Directories(self.file_system, self.directory)
        for stream in plan.state.streams.values():
            directories.make_stream(stream)
            for topic in stream.topics.values():
                directories.make_topic(stream, topic)
        expected = {directories.partition_path(found.stream, found.topic, found.partition) for found in plan.partitions}
        parents = {parent for path in expected for parent in path.parents}
        streams = self.directory / STREAMS
        for stream_name in directories.subdirectories(streams):
            topics = streams / stream_name / TOPICS
            for topic_name in directories.subdirectories(topics):
                partitions = topics / topic_name / PARTITIONS
                for name in directories.subdirectories(partitions):
                    if partitions / name not in expected:
                        remove_tree(self.file_system, partitions / name)
                topic_ids = {str(number) for stream in plan.state.streams.values() for number in stream.topics}
                if partitions not in parents and topic_name not in topic_ids:
                    remove_tree(self.file_system, topics / topic_name)
            if stream_name not in {str(number) for number in plan.state.streams}:
                remove_tree(self.file_system, streams / stream_name)

    def _write_metadata(self, plan: RestorePlan) -> None:
        if plan.selection.is_everything:
            write_state(self.file_system, self.directory, ArchiveState(plan.cluster, plan.epoch))
        metadata = self.directory / METADATA
        make_metadata_directory(self.file_system, metadata)
        write_snapshot(self.file_system, metadata / METADATA_SNAPSHOT, plan.snapshot)
        replace_file(self.file_system, metadata / JOURNAL, b"")
        unlink_if_there(self.file_system, self.directory / RESTORE_MARKER)
        sync_directory(self.file_system, self.directory)

    # --- a partition ---

    def _restore_partition(self, plan: RestorePlan, planned: PlannedPartition) -> None:
        directory = Directories(self.file_system, self.directory).partition_path(
            planned.stream, planned.topic, planned.partition
        )
        make_directories(self.file_system, directory, below=self.directory)
        keys = ArchiveKeys(plan.cluster)
        until = plan.selection.until
        segments: list[_Segment] = []
        written: dict[Path, set[bytes]] = {}
        for base, pieces in planned.segments():
            path = log_path(directory, base)
            self._restore_log(keys, path, pieces, plan.size)
            segment = _Segment(_facts_of(base, pieces))
            if until is not None and segment.facts.last_timestamp > until:
                self._cut(path, planned, segment, until)
            self._restore_index(keys, index_path(directory, base), pieces, is_wanted=not segment.is_cut)
            if segment.facts.size:
                segments.append(segment)
                written[path] = set() if segment.is_cut else {piece.digest for piece in pieces}
            else:
                unlink_if_there(self.file_system, path)
        self._remove_others(directory, segments)
        self._sync_segments(directory, segments)
        self._verified |= written
        self._write_offsets(directory, planned)
        self._write_ledger(directory, planned, [segment.facts for segment in segments])

    def _restore_log(self, keys: ArchiveKeys, path: Path, pieces: Sequence[Piece], total_size: int) -> None:
        verified = self._verified.pop(path, set())
        size = 0
        with closing(self._open(path)) as file:
            for piece in pieces:
                size += piece.size
                if piece.digest not in verified and not self._has(file, piece):
                    # Over what a root before had there, perhaps: then none of it counts any more.
                    verified.clear()
                    self._download(keys, file, piece)
                self._done_size += piece.size
                self.report(RestoreProgress(self._done_size, total_size, self._downloaded_size))
            file.truncate(size)
            # The disk writes it while the next one is downloaded.
            file.start_writeback(0, size)

    def _sync_segments(self, directory: Path, segments: Sequence[_Segment]) -> None:
        """Sync all files of a partition. If the power fails before that, the marker is there: the restore goes on."""
        for segment in segments:
            for path in (
                log_path(directory, segment.facts.base_offset),
                index_path(directory, segment.facts.base_offset),
            ):
                try:
                    file = self.file_system.open(path, writable=True)
                except FileNotFoundError:
                    # The server makes the index.
                    continue
                with closing(file):
                    sync_file(file)
        sync_directory(self.file_system, directory)

    def _open(self, path: Path) -> File:
        try:
            return self.file_system.open(path, writable=True)
        except FileNotFoundError:
            return self.file_system.open(path, writable=True, create=True)

    def _has(self, file: File, piece: Piece) -> bool:
        """Whether an interrupted restore has written a piece."""
        if file.size() < piece.position + piece.size:
            return False
        return hash_file(Range(file, piece.position, piece.size), Pace(0)) == piece.digest

    def _download(self, keys: ArchiveKeys, file: File, piece: Piece) -> None:
        whole = xxhash.xxh3_128()
        key, position = keys.base + piece.key, piece.position
        for part in object_parts(self.store, key, piece.size, self.part_size):
            whole.update(part)
            position += write_all(file, position, [part])
        if whole.digest() != piece.digest:
            raise ArchiveDamaged(key, "its bytes are not what was archived")
        self._downloaded_size += piece.size

    def _restore_index(self, keys: ArchiveKeys, path: Path, pieces: Sequence[Piece], *, is_wanted: bool) -> None:
        """Write the index of a segment. Without one, the server makes it from the log."""
        piece = pieces[0]
        data = self.store.read(keys.base + piece.index_key) if piece.index_key and is_wanted else None
        if data is not None and xxhash.xxh3_128_digest(data) == piece.index_digest:
            with closing(self._open(path)) as file:
                write_all(file, 0, [data])
                file.truncate(len(data))
        else:
            unlink_if_there(self.file_system, path)

    def _cut(self, path: Path, planned: PlannedPartition, segment: _Segment, until: int) -> None:
        """Remove the batches that were stored after a time."""
        facts = segment.facts
        end, size, last_timestamp, message_count, batch_count = facts.base_offset, 0, 0, 0, 0
        with closing(self.file_system.open(path, writable=True)) as file:
            for found in scan(file, planned.identity, start=0, end=facts.size, offset=facts.base_offset):
                if isinstance(found, GoodBatch):
                    if found.header.base_timestamp > until:
                        break
                    end, size = found.header.end_offset, found.end_position
                    last_timestamp = found.header.base_timestamp
                    message_count += found.header.message_count
                    batch_count += 1
            file.truncate(size)
        segment.facts = SegmentFacts(
            facts.base_offset, end, size, facts.first_timestamp, last_timestamp, message_count, batch_count
        )
        segment.is_cut = True

    def _remove_others(self, directory: Path, segments: Sequence[_Segment]) -> None:
        """Remove files of an earlier root."""
        bases = [segment.facts.base_offset for segment in segments]
        kept = {path(directory, base).name for base in bases for path in (log_path, index_path)}
        for entry in list_if_there(self.file_system, directory):
            if entry.name.endswith((LOG_SUFFIX, INDEX_SUFFIX)) and entry.name not in kept:
                unlink_if_there(self.file_system, directory / entry.name)
        sync_directory(self.file_system, directory)

    def _write_offsets(self, directory: Path, planned: PlannedPartition) -> None:
        numbers = planned.numbers
        stored = [(ConsumerKey(ConsumerKind(kind), identifier), offset) for kind, identifier, offset in numbers.offsets]
        records = [encode_store(key, offset) for key, offset in stored]
        header = encode_header(planned.identity, numbers.purge_count, 0)
        replace_file(self.file_system, directory / OFFSETS, b"".join([header, *records]))

    def _write_ledger(self, directory: Path, planned: PlannedPartition, segments: Sequence[SegmentFacts]) -> None:
        numbers, manifest = planned.numbers, planned.manifest
        bases = {facts.base_offset for facts in segments}
        first = segments[0].base_offset if segments else numbers.next_offset
        events: list[Event] = [Sealed(facts) for facts in segments]
        events += [OffsetGap(*gap) for gap in _gaps(planned, segments)]
        events += [DamagedRange(*damage) for damage in manifest.damages if damage[0] in bases]
        events += [TimeCorrection(*correction) for correction in manifest.corrections if correction[0] in bases]
        nothing = LedgerReading(LedgerState(), 0, 0, (), exists=False)
        ledger = Ledger(self.file_system, directory / LEDGER, planned.identity, nothing)
        ledger.file.rewrite(
            ledger.draft(
                *events,
                start_offset=first,
                reserved_end=planned.next_offset,
                last_timestamp=numbers.last_timestamp,
                epoch=numbers.purge_count,
            )
        )


def _facts_of(base: int, pieces: Sequence[Piece]) -> SegmentFacts:
    return SegmentFacts(
        base,
        pieces[-1].end_offset,
        sum(piece.size for piece in pieces),
        pieces[0].first_timestamp,
        pieces[-1].last_timestamp,
        sum(piece.message_count for piece in pieces),
        sum(piece.batch_count for piece in pieces),
    )


def _gaps(planned: PlannedPartition, segments: Sequence[SegmentFacts]) -> list[tuple[int, int, bool]]:
    """The gaps that the server knew, and what is missing between the segments and behind the last one."""
    if not segments:
        return []
    start = segments[0].base_offset
    known = [gap for gap in planned.manifest.gaps if gap[1] > start and gap[0] < planned.numbers.next_offset]
    found = list(known)
    bounds = [(before.end_offset, after.base_offset) for before, after in pairwise(segments)]
    for first, end in [*bounds, (segments[-1].end_offset, planned.numbers.next_offset)]:
        if first < end and not any(gap[0] <= first and end <= gap[1] for gap in known):
            found.append((first, end, True))
    return found


# --- at a start ---


def prepare_directory(
    file_system: FileSystem,
    directory: Path,
    settings: ArchiveSettings | None,
    nonce: bytes,
    *,
    recreate_missing_state: bool,
    store: Store | None = None,
) -> None:
    """Restore what is to be restored. ``store`` replaces the one of the settings.

    Raises:
        StartRefused: there is something to restore, but it cannot be, or nobody asked for it.
    """
    is_begun = is_unfinished(file_system, directory)
    if not is_begun and not is_empty(file_system, directory):
        return
    copy = DiskStore(file_system, directory, nonce)
    try:
        if find_clusters(copy):
            _restore_copy(copy, file_system, directory, is_wanted=recreate_missing_state)
        elif settings is not None and settings.restore_on_start:
            _restore_archive(store or open_store(settings.store, file_system, nonce), file_system, directory, settings)
        elif is_begun:
            raise StartRefused(
                directory,
                "a restore into it was interrupted",
                "run courser archive restore again, or set data_maintenance.archiver.restore_on_start = true",
            )
    except ArchiveDamaged as damage:
        remedy = (
            "nothing was started; bring the right object back and start again, or restore an older run: "
            "courser archive restore --accept-older"
        )
        raise StartRefused(directory, str(damage), remedy) from damage
    except ArchiveFailure as failure:
        raise StartRefused(directory, str(failure), "nothing was started; correct this and start again") from failure


def _restore_copy(copy: DiskStore, file_system: FileSystem, directory: Path, *, is_wanted: bool) -> None:
    place = directory / VERSION
    if not is_wanted:
        raise StartRefused(
            place,
            "it is the copy of an archive, and the directory has no data",
            "start once with --set system.recovery.recreate_missing_state=true to restore it; or move it elsewhere",
        )
    plan = _plan_copy(ArchiveReader(copy, choose_cluster(copy)))
    Restorer(copy, file_system, directory).restore(plan)
    _log.info(
        "restored from the copy of an archive, which is no longer needed copy=%s messages=%d", place, plan.message_count
    )


def _plan_copy(reader: ArchiveReader) -> RestorePlan:
    """Use the newest root that is complete: the copy may have been made while a server was writing."""
    found: ObjectMissing | None = None
    for root in reader.roots_backwards():
        try:
            return plan_root(reader, RestoreSelection(), root, root, is_newest=found is None)
        except ObjectMissing as missing:
            found = missing
            _log.warning("a run is not complete in the copy; using the one before it reason=%s", missing)
    raise found or ArchiveFailure("restore", reader.store.name, "no run has been completed yet")


def _restore_archive(store: Store, file_system: FileSystem, directory: Path, settings: ArchiveSettings) -> None:
    if not find_clusters(store):
        _log.info("there is no archive to restore; starting with an empty directory store=%s", store.name)
        return
    reader = ArchiveReader(store, choose_cluster(store, settings.cluster))
    if reader.newest_root() is None:
        _log.info("the archive is empty; starting with an empty directory store=%s", store.name)
        return
    plan = plan_restore(reader, RestoreSelection())
    Restorer(store, file_system, directory, settings.part_size).restore(plan)
    _log.info("restored from the archive store=%s messages=%d", store.name, plan.message_count)
