"""The catalog on disk: journal and snapshot around the state machine.

A change is checked, journaled and synced, then applied. ``submit`` does it all on the spot; a server calls ``prepare``
and ``commit`` on its own thread and ``persist`` in a pool, one change at a time. After ``persist`` returns, neither a
kill nor a power cut takes the change.
"""

import contextlib
from dataclasses import dataclass
from pathlib import Path

import xxhash

from courser.catalog.changes import AnyChange, change_number, decode_change, encode_change, makes_room
from courser.catalog.rules import check
from courser.catalog.state import CatalogState
from courser.catalog.transitions import Created, apply
from courser.errors import CommandRejected, ErrorCode, JournalFull, MetadataDamaged, StorageFailure
from courser.model.clock import CLOCK_LEAD_MAX, Clock
from courser.storage.durable_files import sync_directory, unlink_if_there
from courser.storage.files import FileSystem
from courser.storage.journal import ENTRY_HEADER_SIZE, ENTRY_SIZE_MAX, SLOT_COUNT, Entry, Journal
from courser.storage.paths import JOURNAL, METADATA, METADATA_SNAPSHOT, TEMPORARY_SUFFIX
from courser.storage.recovery_cases import StopKind
from courser.storage.snapshot import Snapshot, read_snapshot, write_snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogSettings:
    """When a snapshot is taken."""

    slot_count: int = SLOT_COUNT
    """Entries that the journal holds: bounds the cost of a start."""
    slot_margin: int = 64
    """Entries left at which a snapshot is forced, so that a few failed ones do not stop the server."""
    journal_size_max: int = 16 * 1024 * 1024
    """Bytes of journal at which a snapshot is due."""
    snapshot_age_max: int = 3600 * 1_000_000
    """Microseconds after the first entry that no snapshot covers."""

    def __post_init__(self) -> None:
        if not 0 <= self.slot_margin < self.slot_count:
            raise ValueError(f"a margin of {self.slot_margin} does not fit into {self.slot_count} slots")

    @property
    def slot_reserve(self) -> int:
        """Entries kept for changes that make room: a full disk takes no snapshot before one of them is done."""
        return self.slot_margin // 4


@dataclass(frozen=True, slots=True)
class PreparedChange:
    """A change that was checked and is ready for the journal."""

    change: AnyChange
    entry: Entry
    data: bytes


class CatalogStore:
    """The one place where metadata changes. One change at a time."""

    def __init__(
        self,
        file_system: FileSystem,
        directory: Path,
        clock: Clock,
        settings: CatalogSettings,
        *,
        state: CatalogState,
        journal: Journal,
    ) -> None:
        self._file_system = file_system
        self._directory = directory
        self._clock = clock
        self._settings = settings
        self._journal = journal
        self.state = state
        entries = journal.entries()
        self._oldest_timestamp = entries[0].timestamp if entries else None
        self._last_timestamp = entries[-1].timestamp if entries else 0
        self.snapshot_failure: str | None = None
        """Why the last snapshot could not be made, if so: an operator should know before the journal is full."""

    @classmethod
    def open(
        cls,
        file_system: FileSystem,
        data_directory: Path,
        *,
        clock: Clock,
        stop: StopKind,
        settings: CatalogSettings | None = None,
    ) -> "CatalogStore":
        """Load the snapshot, replay the journal behind it, be ready for changes.

        Raises:
            MetadataDamaged: as ``read`` says; nothing was changed.
        """
        store = cls.read(file_system, data_directory, clock=clock, stop=stop, settings=settings)
        store.settle()
        return store

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
        """Load the snapshot, replay the journal behind it. ``settle`` comes before the first change.

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
        for entry in journal.entries():
            replay(state, entry, directory / JOURNAL, journal.position(entry.op))
        store = cls(file_system, directory, clock, settings, state=state, journal=journal)
        if snapshot is not None:
            store._last_timestamp = max(store._last_timestamp, snapshot.timestamp)
        return store

    def settle(self) -> None:
        """Put in order what the last session left: temporary files, a torn end of the journal. May be repeated."""
        _remove_leftovers(self._file_system, self._directory)
        self._journal.settle()

    # --- facts ---

    @property
    def last_op(self) -> int | None:
        """The newest change's number; None before the first."""
        return None if self._journal.last is None else self._journal.last.op

    @property
    def snapshot_op(self) -> int | None:
        """Up to which change the snapshot goes; None without a snapshot."""
        return None if self._journal.snapshot is None else self._journal.snapshot.op

    @property
    def remaining_count(self) -> int:
        """Commands that fit into the journal before a snapshot is needed."""
        return self._journal.remaining_count

    @property
    def failure(self) -> str | None:
        """Why no change is taken any more, or None."""
        return self._journal.failure

    # --- changes ---

    def submit(self, change: AnyChange) -> Created:
        """Check, journal, sync and apply one change, with a snapshot before it if one is due.

        Raises:
            CommandRejected: the rules forbid it; nothing was journaled.
            JournalFull, DiskFull: nothing was kept.
            StorageFailure: it may or may not be there after a restart.
        """
        self.make_room()
        prepared = self.prepare(change)
        self.persist(prepared)
        return self.commit(prepared)

    def prepare(self, change: AnyChange) -> PreparedChange:
        """Check a change and put it into journal form."""
        check(self.state, change)
        body = _encode(change)
        if not makes_room(change) and self._journal.remaining_count <= self._settings.slot_reserve:
            raise JournalFull(self._directory / JOURNAL, self._settings.slot_count)
        timestamp = self._time()
        entry, data = self._journal.make_next(timestamp=timestamp, kind=change_number(change), body=body)
        return PreparedChange(change, entry, data)

    @property
    def last_change(self) -> AnyChange | None:
        """The newest change, unless a snapshot has taken its place in the journal."""
        entries = self._journal.entries()
        return decode_change(entries[-1].body) if entries else None

    def _time(self) -> int:
        """The time of the next entry: it stands still while a clock catches up, but not for years."""
        now = self._clock.now()
        return self._last_timestamp if now < self._last_timestamp <= now + CLOCK_LEAD_MAX else now

    def persist(self, prepared: PreparedChange) -> None:
        """Write and sync it. Blocks."""
        self._journal.append(prepared.entry, prepared.data, may_use_reserve=makes_room(prepared.change))

    def commit(self, prepared: PreparedChange) -> Created:
        """Apply it; it is durable already."""
        entry = prepared.entry
        self._last_timestamp = entry.timestamp
        if self._oldest_timestamp is None:
            self._oldest_timestamp = entry.timestamp
        created = apply(self.state, prepared.change, entry.op, entry.timestamp)
        assert not isinstance(created, CommandRejected), "it was checked before it was journaled"
        return created

    # --- snapshots ---

    @property
    def is_snapshot_forced(self) -> bool:
        """Whether so few slots are left that a snapshot comes before the next change."""
        return self._journal.remaining_count <= self._settings.slot_margin

    def is_snapshot_due(self) -> bool:
        """Whether the journal is large or old enough for a snapshot."""
        if self.is_snapshot_forced or self._journal.size >= self._settings.journal_size_max:
            return True
        oldest = self._oldest_timestamp
        return oldest is not None and self._clock.now() - oldest >= self._settings.snapshot_age_max

    def make_room(self) -> None:
        """Take a snapshot if one is forced. If that fails, changes are taken until the journal is really full."""
        if not self.is_snapshot_forced:
            return
        try:
            self.take_snapshot()
        except StorageFailure as failure:
            self.snapshot_failure = str(failure)

    def take_snapshot(self) -> None:
        """Write the state to the snapshot, then drop the entries that it covers. Blocks.

        The order matters: if the power fails between the two, the covered entries are passed over by the next start.
        """
        mark = self._journal.last
        if mark is None or self._journal.failure is not None:
            return
        body = self.state.encode()
        timestamp = self._time()
        snapshot = Snapshot(mark, xxhash.xxh3_128_digest(body), timestamp, body)
        write_snapshot(self._file_system, self._directory / METADATA_SNAPSHOT, snapshot)
        self._journal.drain(mark)
        self._oldest_timestamp = None
        self.snapshot_failure = None

    def close(self) -> None:
        """Let go of the files. Everything is durable already."""
        self._journal.close()


def _encode(change: AnyChange) -> bytes:
    """The body of its entry. What cannot be read back must not get in: it would refuse every later start."""
    try:
        body = encode_change(change)
        decode_change(body)
    except (ValueError, OverflowError) as error:
        raise CommandRejected(ErrorCode.INVALID_COMMAND, f"it cannot be stored: {error}") from error
    if ENTRY_HEADER_SIZE + len(body) > ENTRY_SIZE_MAX:
        raise CommandRejected(ErrorCode.INVALID_COMMAND, f"{len(body)} bytes are too many for one change")
    return body


def load_state(snapshot: Snapshot, path: Path) -> CatalogState:
    """The state of a snapshot, its hash compared."""
    try:
        state = CatalogState.decode(snapshot.body)
    except ValueError as error:
        raise MetadataDamaged(path, 0, str(error)) from error
    # A version that adds a field to an entity reads older snapshots too, but hashes only those of its own format.
    if state.hash() != snapshot.state_hash:
        raise MetadataDamaged(path, 0, "the state does not have the hash that was stored with it")
    return state


def replay(state: CatalogState, entry: Entry, path: Path, position: int) -> None:
    """Apply an entry of the journal once more."""
    try:
        change = decode_change(entry.body)
    except ValueError as error:
        raise MetadataDamaged(path, position, f"op {entry.op} holds {error}") from error
    apply(state, change, entry.op, entry.timestamp)


def make_metadata_directory(file_system: FileSystem, directory: Path) -> None:
    """Make the directory of journal and snapshot if it is not there, durably."""
    with contextlib.suppress(FileExistsError):
        file_system.make_directory(directory)
    # Also if it was there: whoever made it may have died before the sync.
    sync_directory(file_system, directory.parent)


def _remove_leftovers(file_system: FileSystem, directory: Path) -> None:
    """Temporary files of a step that was interrupted: what they would have replaced is still there."""
    names = (JOURNAL, METADATA_SNAPSHOT)
    removed = [unlink_if_there(file_system, directory / (name + TEMPORARY_SUFFIX)) for name in names]
    if any(removed):
        sync_directory(file_system, directory)
