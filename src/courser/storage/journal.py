"""The metadata journal: a file of entries, each with a 256-byte header and a body, chained by checksums.

This module knows only bytes; the catalog interprets the bodies. An entry may be applied once it is synced. The file
contains the entries since the last snapshot and, after an interrupted drain, some older ones.

In memory, a ring has a slot for every entry that no snapshot covers: slot = op mod slot count. When the ring is full,
nothing can be appended until a snapshot is taken (``docs/formats/journal.md``).
"""

import contextlib
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from courser.errors import DiskFull, JournalFull, MetadataDamaged, MetadataReadOnly, StorageFailure
from courser.model.buffers import Buffer
from courser.storage.durable_files import storage_failure, sync_directory, sync_file, unlink_if_there
from courser.storage.files import File, FileSystem, read_exactly, write_all
from courser.storage.journal_entries import NO_PARENT, Entry, Fault, FaultKind, JournalScan, SnapshotMark, make_entry
from courser.storage.paths import TEMPORARY_SUFFIX
from courser.storage.quarantine import Quarantine
from courser.storage.recovery_cases import StopKind

SLOT_COUNT = 1024
"""Maximum number of entries between two snapshots. Bounds the cost of a start."""
RESERVE_SIZE = 64 * 1024
"""Bytes after the last entry that only changes that free space may use, so that they work on a full disk. Such a change
takes about 300 bytes; a purge takes 9 more per partition."""
_RESERVE_STEP = 64 * 1024
"""Additional bytes to reserve at a time, so that not every entry needs a system call."""


class Journal:
    """The open journal. For one caller at a time; ``append`` and ``drain`` wait for the disk."""

    def __init__(
        self, file_system: FileSystem, path: Path, file: File, *, snapshot: SnapshotMark | None, slot_count: int
    ) -> None:
        self._file_system = file_system
        self._path = path
        self._file = file
        self.snapshot = snapshot
        """The last entry that the snapshot covers; None if there is no snapshot."""
        self._slot_count = slot_count
        self._slots: list[tuple[Entry, int] | None] = [None] * slot_count
        self.size = 0
        """The size of the file in bytes."""
        self._reserved_end = 0
        """The position up to which disk space is reserved, if the file system supports that."""
        self.last = snapshot
        """The newest entry, in the file or in the snapshot; None if there is none."""
        self.next_op = snapshot.op + 1 if snapshot is not None else 0
        """The op of the next entry."""
        self._torn: Fault | None = None
        self.failure: str | None = None
        """Why no more entries are accepted, or None."""

    # --- opening ---

    @classmethod
    def read(
        cls,
        file_system: FileSystem,
        path: Path,
        *,
        snapshot: SnapshotMark | None,
        stop: StopKind,
        slot_count: int = SLOT_COUNT,
    ) -> "Journal":
        """Read the file, and check all entries and the chain. Call ``settle`` before the first append.

        Raises:
            MetadataDamaged: damage before the end, a gap, a broken chain, a conflicting duplicate, or bad bytes at the
                end after a clean stop. Nothing was changed.
        """
        try:
            file = file_system.open(path, writable=True)
        except FileNotFoundError:
            file = file_system.open(path, writable=True, create=True)
            stop = StopKind.CRASHED
        try:
            if stop is not StopKind.CLEAN:
                # After a kill, the page cache may contain what is not on disk: the last entry, whose sync failed or
                # never ran, or the name that a drain gave this file. A start must not rely on what a power cut can
                # undo.
                sync_file(file)
                file.discard_cache()
                sync_directory(file_system, path.parent)
            journal = cls(file_system, path, file, snapshot=snapshot, slot_count=slot_count)
            journal._load(stop)
        except BaseException:
            file.close()
            raise
        return journal

    def _load(self, stop: StopKind) -> None:
        size = self._file.size()
        data = read_exactly(self._file, 0, size)
        if data is None:
            raise MetadataDamaged(self._path, 0, f"could not read all of its {size} bytes")
        scan = JournalScan(data, self.snapshot, is_start_known=True)
        for found in scan.walk():
            if isinstance(found, Fault):
                self._judge(found, stop)
                continue
            if found.chain != "duplicate":
                self._admit(found.entry, found.position)
            self.size = found.position + found.entry.size
        if self.snapshot is not None and scan.last is not None and scan.last.op < self.snapshot.op:
            # An interrupted rebuild left these entries. The snapshot covers them all, and nothing can follow them.
            self.size = 0

    def _judge(self, fault: Fault, stop: StopKind) -> None:
        """Refuse the file, unless a crash explains the fault or it is harmless."""
        if fault.fault == FaultKind.REPETITION.value:
            return
        if fault.fault != FaultKind.TORN_TAIL.value:
            raise MetadataDamaged(self._path, fault.position, fault.reason)
        if stop is StopKind.CLEAN:
            reason = f"bad bytes at the end after a clean stop: {fault.reason}"
            raise MetadataDamaged(self._path, fault.position, reason)
        # The entry that was being written when the process or the power failed. It was never acknowledged.
        self._torn = fault

    def _admit(self, entry: Entry, position: int) -> None:
        """Add an entry that no snapshot covers to the ring."""
        if self.snapshot is not None and entry.op <= self.snapshot.op:
            return
        if self.remaining_count == 0:
            raise MetadataDamaged(self._path, position, f"more than {self._slot_count} entries since the snapshot")
        self._take(entry, position)

    def _take(self, entry: Entry, position: int) -> None:
        self._slots[entry.op % self._slot_count] = (entry, position)
        self.last, self.next_op = SnapshotMark(entry.op, entry.checksum), entry.op + 1

    def settle(self) -> None:
        """Remove a torn end, which is copied to quarantine, and entries that nothing can follow. Can be repeated."""
        if self._torn is not None:
            Quarantine(self._file_system, self._path.parent).copy(
                self._file, self._torn.position, self._torn.end_position
            )
            self._torn = None
        if self._file.size() > self.size:
            self._file.truncate(self.size)
            sync_file(self._file)
        # If this fails, the journal accepts only changes that free space.
        with contextlib.suppress(OSError):
            self._reserve(self.size)

    # --- facts ---

    @property
    def remaining_count(self) -> int:
        """How many entries can be appended before a snapshot is needed."""
        first = self.snapshot.op + 1 if self.snapshot is not None else 0
        return self._slot_count - (self.next_op - first)

    def entry(self, op: int) -> Entry | None:
        """An entry that no snapshot covers."""
        slot = self._slots[op % self._slot_count]
        return slot[0] if slot is not None and slot[0].op == op else None

    def position(self, op: int) -> int:
        """The position in the file of an entry that no snapshot covers."""
        slot = self._slots[op % self._slot_count]
        assert slot is not None, f"op {op} is not in the journal"
        return slot[1]

    def entries(self) -> list[Entry]:
        """All entries that no snapshot covers, in order: what a start replays."""
        first = self.snapshot.op + 1 if self.snapshot is not None else 0
        found = (self.entry(op) for op in range(first, self.next_op))
        return [entry for entry in found if entry is not None]

    # --- appending ---

    def make_next(self, *, timestamp: int, kind: int, body: bytes, reserved_count: int = 0) -> tuple[Entry, bytes]:
        """Create the next entry, for ``append``. ``reserved_count``: how many slots are kept for more urgent entries.

        Raises:
            JournalFull: a snapshot must be taken first.
        """
        if self.failure is not None:
            raise MetadataReadOnly(self._path, self.failure)
        if self.remaining_count <= reserved_count:
            raise JournalFull(self._path, self._slot_count)
        parent = self.last.checksum if self.last is not None else NO_PARENT
        return make_entry(op=self.next_op, timestamp=timestamp, kind=kind, parent=parent, body=body)

    def append(self, entry: Entry, data: bytes, *, may_use_reserve: bool = False) -> None:
        """Write and sync an entry. On return it survives a power cut and may be applied.

        ``may_use_reserve`` is for changes that free space: they may use the reserved bytes.

        Raises:
            DiskFull: nothing was written.
            StorageFailure: the entry may or may not exist after a restart. Until then, no more entries are accepted.
        """
        assert entry.op == self.next_op, "one entry at a time"
        try:
            self._reserve(self.size + len(data))
        except OSError as error:
            failure = storage_failure("write", self._path, error)
            if isinstance(failure, DiskFull) and not may_use_reserve:
                raise failure from error
        with self._failing_with_a_defect():
            try:
                write_all(self._file, self.size, [data])
            except OSError as error:
                raise self._undo(storage_failure("write", self._path, error)) from error
            try:
                sync_file(self._file)
            except StorageFailure as failure:
                # A second sync could succeed without writing anything.
                self.failure = str(failure)
                raise
        self._take(entry, self.size)
        self.size += len(data)

    @contextlib.contextmanager
    def _failing_with_a_defect(self) -> Iterator[None]:
        """After an exception that nobody expects, the journal is as uncertain as after a failed sync."""
        try:
            yield
        except StorageFailure:
            raise
        except BaseException as defect:
            self.failure = repr(defect)
            raise

    def _reserve(self, end: int) -> None:
        """Reserve disk space for entries up to ``end``, and after it for changes that free space."""
        needed = end + RESERVE_SIZE
        if self._reserved_end >= needed:
            return
        try:
            self._file.reserve(self.size, needed + _RESERVE_STEP - self.size)
            self._reserved_end = needed + _RESERVE_STEP
        except OSError:
            self._file.reserve(self.size, needed - self.size)
            self._reserved_end = needed

    def _undo(self, failure: StorageFailure) -> StorageFailure:
        """Remove a partly written entry. Without the sync, a power cut could restore it after a later entry."""
        # Truncating also releases the reserved space.
        self._reserved_end = 0
        try:
            self._file.truncate(self.size)
            sync_file(self._file)
        except (OSError, StorageFailure) as error:
            self.failure = f"could not remove a partly written entry: {error}"
            return failure
        if not isinstance(failure, DiskFull):
            self.failure = str(failure)
        return failure

    # --- making room ---

    def drain(self, snapshot: SnapshotMark) -> None:
        """Remove the entries that a snapshot covers. The snapshot must be durable.

        The other entries are written to a new file, which is synced and then replaces the old one. After a power cut in
        between, the old file remains, and the next start ignores the entries that the snapshot covers.
        """
        if self.snapshot is not None and snapshot.op < self.snapshot.op:
            raise ValueError(f"the snapshot at op {snapshot.op} is older than the one at op {self.snapshot.op}")
        live = [slot for slot in self._slots if slot is not None and slot[0].op > snapshot.op]
        live.sort(key=lambda slot: slot[0].op)
        temporary = self._path.with_name(self._path.name + TEMPORARY_SUFFIX)
        pieces: list[Buffer] = []
        for entry, position in live:
            try:
                piece = read_exactly(self._file, position, entry.size)
            except OSError as error:
                raise storage_failure("read", self._path, error) from error
            if piece is None:
                raise StorageFailure("read", self._path, OSError("the file is too short"))
            pieces.append(piece)
        file = self._write_new(temporary, pieces)
        with self._failing_with_a_defect(), ExitStack() as stack:
            stack.callback(file.close)
            try:
                self._file_system.rename(temporary, self._path)
            except OSError as error:
                raise storage_failure("rename", self._path, error) from error
            try:
                sync_directory(self._file_system, self._path.parent)
            except StorageFailure as failure:
                # New entries would go to a file that a power cut could replace with the old one.
                self.failure = str(failure)
                raise
            stack.pop_all()
        self._use(file, snapshot, live)

    def _write_new(self, path: Path, pieces: list[Buffer]) -> File:
        try:
            unlink_if_there(self._file_system, path)
            file = self._file_system.open(path, writable=True, create=True)
        except OSError as error:
            raise storage_failure("write", path, error) from error
        try:
            if pieces:
                write_all(file, 0, [b"".join(pieces)])
            sync_file(file)
        except OSError as error:
            file.close()
            raise storage_failure("write", path, error) from error
        except StorageFailure:
            file.close()
            raise
        return file

    def _use(self, file: File, snapshot: SnapshotMark, live: list[tuple[Entry, int]]) -> None:
        self._file.close()
        self._file = file
        self._reserved_end = 0
        self.snapshot = snapshot
        self._slots = [None] * self._slot_count
        position = 0
        for entry, _ in live:
            self._slots[entry.op % self._slot_count] = (entry, position)
            position += entry.size
        self.size = position
        # Closing the old file released its space.
        with contextlib.suppress(OSError):
            self._reserve(self.size)

    def close(self) -> None:
        """Close the file. Everything in it is synced."""
        self._file.close()
