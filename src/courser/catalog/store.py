"""The catalog on disk: journal and snapshot around the state machine.

A change is checked, journaled and synced, then applied. ``submit`` does all of it at once. A server calls ``prepare``
and ``commit`` on its own thread and ``persist`` in a pool, one change at a time. After ``persist`` returns, the change
survives a kill and a power cut.
"""

import contextlib
from dataclasses import dataclass
from pathlib import Path

import xxhash

from courser.catalog.change_feed import ChangeFeed
from courser.catalog.changes import ROOM_MAKERS, AnyChange, change_number, decode_change, encode_change
from courser.catalog.rules import check
from courser.catalog.state import CatalogState
from courser.catalog.transitions import Created
from courser.errors import CommandRejected, ErrorCode, MetadataDamaged, StorageFailure
from courser.model.clock import CLOCK_LEAD_MAX, Clock
from courser.storage.durable_files import sync_directory, unlink_if_there
from courser.storage.files import FileSystem
from courser.storage.journal import SLOT_COUNT, Journal
from courser.storage.journal_entries import ENTRY_HEADER_SIZE, ENTRY_SIZE_MAX, Entry
from courser.storage.paths import JOURNAL, METADATA, METADATA_SNAPSHOT, TEMPORARY_SUFFIX
from courser.storage.recovery_cases import StopKind
from courser.storage.snapshot import Snapshot, read_snapshot, write_snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogSettings:
    """When to take a snapshot."""

    slot_count: int = SLOT_COUNT
    """Maximum number of entries in the journal: limits the duration of a start."""
    slot_margin: int = 64
    """Free entries at which a snapshot is forced, so that a few failed snapshots do not stop the server."""
    journal_size_max: int = 16 * 1024 * 1024
    """Size of the journal in bytes at which a snapshot is due."""
    snapshot_age_max: int = 3600 * 1_000_000
    """Age of the first entry that no snapshot covers, in microseconds, at which a snapshot is due."""

    def __post_init__(self) -> None:
        if not 0 <= self.slot_margin < self.slot_count:
            raise ValueError(f"a margin of {self.slot_margin} does not fit into {self.slot_count} slots")


@dataclass(frozen=True, slots=True)
class PreparedChange:
    """A change that passed the rules and is encoded for the journal."""

    change: AnyChange
    entry: Entry
    data: bytes


class CatalogStore:
    """The only place where metadata changes, one change at a time."""

    def __init__(
        self,
        file_system: FileSystem,
        directory: Path,
        clock: Clock,
        settings: CatalogSettings,
        *,
        state: CatalogState,
        journal: Journal,
        feed: ChangeFeed,
    ) -> None:
        self._file_system = file_system
        self._directory = directory
        self._clock = clock
        self._settings = settings
        self._slot_reserve = settings.slot_margin // 4
        """Entries reserved for changes that free disk space: on a full disk no snapshot can be taken before them."""
        self._journal = journal
        self.state = state
        self.feed = feed
        """The changes since the snapshot that the start has read."""
        entries = journal.entries()
        self._oldest_timestamp = entries[0].timestamp if entries else None
        self._last_timestamp = entries[-1].timestamp if entries else 0
        self.snapshot_failure: str | None = None
        """Why the last snapshot failed, or None: operators should know before the journal is full."""

    @classmethod
    def read(
        cls,
        file_system: FileSystem,
        data_directory: Path,
        *,
        clock: Clock,
        stop: StopKind,
        settings: CatalogSettings | None = None,
    ) -> "CatalogStore":
        """Load the snapshot and replay the journal after it. Call ``settle`` before the first change.

        Raises:
            MetadataDamaged: a file is damaged in a way that no crash explains; nothing was changed.
        """
        settings = settings or CatalogSettings()
        directory = data_directory / METADATA
        make_metadata_directory(file_system, directory)
        snapshot = read_snapshot(file_system, directory / METADATA_SNAPSHOT)
        state = CatalogState() if snapshot is None else load_state(snapshot, directory / METADATA_SNAPSHOT)
        journal = Journal.read(
            file_system,
            directory / JOURNAL,
            snapshot=None if snapshot is None else snapshot.mark,
            stop=stop,
            slot_count=settings.slot_count,
        )
        feed = ChangeFeed()
        if snapshot is not None:
            mark = snapshot.mark
            feed = ChangeFeed(op=mark.op + 1, checksum=mark.checksum, timestamp=snapshot.timestamp)
        for entry in journal.entries():
            replay(state, entry, directory / JOURNAL, journal.position(entry.op), feed)
        store = cls(file_system, directory, clock, settings, state=state, journal=journal, feed=feed)
        if snapshot is not None:
            store._last_timestamp = max(store._last_timestamp, snapshot.timestamp)
        return store

    def settle(self) -> None:
        """Remove what the last session left: temporary files, a torn end of the journal. May be repeated."""
        _remove_leftovers(self._file_system, self._directory)
        self._journal.settle()

    # --- facts ---

    @property
    def last_op(self) -> int | None:
        """The op of the newest change; None before the first."""
        return None if self._journal.last is None else self._journal.last.op

    @property
    def snapshot_op(self) -> int | None:
        """The op of the last change that the snapshot covers; None without a snapshot."""
        return None if self._journal.snapshot is None else self._journal.snapshot.op

    @property
    def remaining_count(self) -> int:
        """How many changes fit into the journal before a snapshot is needed."""
        return self._journal.remaining_count

    @property
    def failure(self) -> str | None:
        """Why the metadata is read-only, or None."""
        return self._journal.failure

    # --- changes ---

    def submit(self, change: AnyChange) -> Created:
        """Check, journal, sync and apply one change. Take a snapshot first if one is forced.

        Raises:
            CommandRejected: the rules forbid it; nothing was journaled.
            JournalFull, DiskFull: nothing was changed.
            StorageFailure: after a restart the change may be present or not.
        """
        self.make_room()
        return self.append(change)

    def append(self, change: AnyChange) -> Created:
        """Check, journal and apply a change, without a snapshot.

        For the change that undoes an unfinished creation. After a snapshot, the creation would no longer be in the
        journal. If the power failed before the change is journaled, the next start could not undo the creation.
        """
        prepared = self.prepare(change)
        self.persist(prepared)
        return self.commit(prepared)

    def prepare(self, change: AnyChange) -> PreparedChange:
        """Check a change and encode it for the journal."""
        check(self.state, change)
        entry, data = self._journal.make_next(
            timestamp=self._time(),
            kind=change_number(change),
            body=_encode(change),
            reserved_count=0 if isinstance(change, ROOM_MAKERS) else self._slot_reserve,
        )
        return PreparedChange(change, entry, data)

    @property
    def last_change(self) -> AnyChange | None:
        """The newest change; None if a snapshot has replaced its entry."""
        entries = self._journal.entries()
        return decode_change(entries[-1].body) if entries else None

    def _time(self) -> int:
        """The time of the next entry. It does not go back while a clock is a little behind."""
        now = self._clock.now()
        return self._last_timestamp if now < self._last_timestamp <= now + CLOCK_LEAD_MAX else now

    def persist(self, prepared: PreparedChange) -> None:
        """Write and sync a change. Blocks."""
        self._journal.append(prepared.entry, prepared.data, may_use_reserve=isinstance(prepared.change, ROOM_MAKERS))

    def commit(self, prepared: PreparedChange) -> Created:
        """Apply a change that is durable."""
        entry = prepared.entry
        self._last_timestamp = entry.timestamp
        if self._oldest_timestamp is None:
            self._oldest_timestamp = entry.timestamp
        # One change at a time: the state is the one that ``prepare`` has checked it against.
        return self.feed.follow(self.state, prepared.change, entry)

    # --- snapshots ---

    @property
    def is_snapshot_forced(self) -> bool:
        """Whether so few slots are left that a snapshot must be taken before the next change."""
        return self._journal.remaining_count <= self._settings.slot_margin

    def is_snapshot_due(self) -> bool:
        """Whether the journal is large or old enough for a snapshot."""
        if self.is_snapshot_forced or self._journal.size >= self._settings.journal_size_max:
            return True
        oldest = self._oldest_timestamp
        return oldest is not None and self._clock.now() - oldest >= self._settings.snapshot_age_max

    def make_room(self) -> None:
        """Take a snapshot if one is forced. If it fails, changes are accepted until the journal is full."""
        if not self.is_snapshot_forced:
            return
        try:
            self.take_snapshot()
        except StorageFailure as failure:
            self.snapshot_failure = str(failure)

    def make_snapshot(self) -> Snapshot | None:
        """The whole state, while no change is being made; None before the first change."""
        mark = self._journal.last
        if mark is None:
            return None
        body = self.state.encode()
        return Snapshot(mark, xxhash.xxh3_128_digest(body), self._time(), body)

    def take_snapshot(self) -> None:
        """Write the state to the snapshot, then drop the entries that it covers. Blocks.

        The order matters: if the power fails between the two, the next start skips the covered entries.
        """
        snapshot = self.make_snapshot()
        if snapshot is None or self._journal.failure is not None:
            return
        write_snapshot(self._file_system, self._directory / METADATA_SNAPSHOT, snapshot)
        self._journal.drain(snapshot.mark)
        self._oldest_timestamp = None
        self.snapshot_failure = None

    def close(self) -> None:
        """Close the files. Everything is already durable."""
        self._journal.close()


def _encode(change: AnyChange) -> bytes:
    """The body of its entry. An entry that cannot be decoded would refuse every later start, so decode it once."""
    try:
        body = encode_change(change)
        decode_change(body)
    except (ValueError, OverflowError) as error:
        raise CommandRejected(ErrorCode.INVALID_COMMAND, f"the change cannot be stored: {error}") from error
    if ENTRY_HEADER_SIZE + len(body) > ENTRY_SIZE_MAX:
        raise CommandRejected(ErrorCode.INVALID_COMMAND, f"a change of {len(body)} bytes is too large")
    return body


def load_state(snapshot: Snapshot, path: Path) -> CatalogState:
    """Decode the state of a snapshot and check its hash."""
    try:
        state = CatalogState.decode(snapshot.body)
    except ValueError as error:
        raise MetadataDamaged(path, 0, str(error)) from error
    # A version that adds a field to an entity can read older snapshots, but can check the hash of its own only.
    if state.hash() != snapshot.state_hash:
        raise MetadataDamaged(path, 0, "the hash of the state does not match")
    return state


def replay(state: CatalogState, entry: Entry, path: Path, position: int, feed: ChangeFeed) -> None:
    """Apply an entry of the journal again, if the rules allow it."""
    try:
        change = decode_change(entry.body)
    except ValueError as error:
        raise MetadataDamaged(path, position, f"op {entry.op} contains {error}") from error
    with contextlib.suppress(CommandRejected):
        check(state, change)
        feed.follow(state, change, entry)


def make_metadata_directory(file_system: FileSystem, directory: Path) -> None:
    """Create the directory of journal and snapshot if it does not exist. Durable on return."""
    with contextlib.suppress(FileExistsError):
        file_system.make_directory(directory)
    # Even if it exists: the process that created it may have died before the sync.
    sync_directory(file_system, directory.parent)


def _remove_leftovers(file_system: FileSystem, directory: Path) -> None:
    """Remove temporary files of an interrupted step: the files that they were to replace still exist."""
    names = (JOURNAL, METADATA_SNAPSHOT)
    removed = [unlink_if_there(file_system, directory / (name + TEMPORARY_SUFFIX)) for name in names]
    if any(removed):
        sync_directory(file_system, directory)
