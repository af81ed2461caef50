"""The ledger: the facts about a partition's files that must not be lost.

It is an append-only file of 256-byte records (``docs/formats/ledger.md``). Every record repeats all numbers of the
partition, so losing a record loses only one step. Some records also report an event: a segment was sealed, offsets were
skipped, a range was found damaged. The numbers (start offset, reserved end, last timestamp, epoch) only grow.

A reservation, a new start offset and a seal take effect only once they are synced. A recovery point may be lost,
because the previous one is valid too.
"""

import struct
from collections.abc import Iterator
from contextlib import closing
from dataclasses import astuple, dataclass, field
from enum import IntEnum
from pathlib import Path

from courser.records.checksum import xxh3
from courser.records.stored_header import PartitionIdentity
from courser.storage.durable_files import replace_file, storage_failure, sync_file
from courser.storage.files import File, FileSystem, read_exactly, write_all
from courser.storage.settings import DEFAULT_LIMITS, EngineLimits

RECORD_SIZE = 256
_RECORD = struct.Struct(
    "<"
    "Q"  # checksum: XXH3-64 of the rest of the record
    "4s"  # magic
    "H"  # format_version
    "H"  # kind
    "Q"  # sequence
    "16s"  # topic_uuid
    "Q"  # partition_id
    "Q"  # incarnation
    "Q"  # start_offset
    "Q"  # reserved_end
    "Q"  # last_timestamp
    "Q"  # epoch: number of purges
    "7Q"  # the event's own numbers
    "112x"  # reserved, zero
)
assert _RECORD.size == RECORD_SIZE
_MAGIC = b"CRSL"
_VERSION = 1
_CHECKSUM_SIZE = 8
_NO_EVENT = (0, 0, 0, 0, 0, 0, 0)
_SIGNED = 1 << 64
"""A number that may be negative is stored as its two's complement."""


class RecordKind(IntEnum):
    """The event that a record reports in addition to the partition's numbers."""

    NUMBERS = 1
    SEALED = 2
    GAP = 3
    DAMAGE = 4
    PROGRESS = 5
    FAILURE = 6
    CORRECTION = 7
    OFFSETS = 8


@dataclass(frozen=True, slots=True)
class SegmentFacts:
    """What is known about the first ``size`` bytes of a segment without reading them."""

    base_offset: int
    end_offset: int
    size: int
    first_timestamp: int
    last_timestamp: int
    message_count: int
    batch_count: int


@dataclass(frozen=True, slots=True)
class Sealed:
    """A segment that no longer changes. It and everything before it is synced."""

    facts: SegmentFacts


@dataclass(frozen=True, slots=True)
class Progress:
    """The recovery point: everything up to this point of the open segment is synced. Damage before it is bit rot."""

    facts: SegmentFacts


@dataclass(frozen=True, slots=True)
class OffsetGap:
    """Offsets without messages: reserved before a power cut, or lost with a file."""

    first_offset: int
    end_offset: int
    is_loss: bool
    """Whether there were messages."""


@dataclass(frozen=True, slots=True)
class DamagedRange:
    """Bytes of a segment that are not a good batch, and the offsets that they contained."""

    base_offset: int
    position: int
    end_position: int
    first_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class SyncFailure:
    """A sync failed: the page cache of this partition may differ from the disk."""


@dataclass(frozen=True, slots=True)
class TimeCorrection:
    """The clock was wrong when the messages of a segment were stored. The last record of a segment counts."""

    base_offset: int
    correction: int
    """Microseconds to add to their times."""


@dataclass(frozen=True, slots=True, order=True)
class OffsetsMark:
    """How much of the file of stored consumer offsets was synced. Later marks compare as larger."""

    epoch: int
    generation: int
    """How often the file was rewritten in this epoch."""
    size: int


Event = Sealed | OffsetGap | DamagedRange | Progress | SyncFailure | TimeCorrection | OffsetsMark


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerNumbers:
    """The numbers that every record carries."""

    start_offset: int = 0
    """Messages below it were deleted."""
    reserved_end: int = 0
    """No offset from here on was confirmed before it was synced."""
    last_timestamp: int = 0
    epoch: int = 0
    """Grows with every purge. Consumer offsets of an older epoch are invalid."""

    def raised_to(self, other: "LedgerNumbers") -> "LedgerNumbers":
        """The larger of each number, because none ever decreases."""
        return LedgerNumbers(
            start_offset=max(self.start_offset, other.start_offset),
            reserved_end=max(self.reserved_end, other.reserved_end),
            last_timestamp=max(self.last_timestamp, other.last_timestamp),
            epoch=max(self.epoch, other.epoch),
        )


@dataclass(slots=True)
class LedgerState:
    """The contents of the ledger."""

    numbers: LedgerNumbers = field(default_factory=LedgerNumbers)
    sealed: dict[int, SegmentFacts] = field(default_factory=dict)
    progress: SegmentFacts | None = None
    gaps: list[OffsetGap] = field(default_factory=list)
    damages: list[DamagedRange] = field(default_factory=list)
    corrections: dict[int, int] = field(default_factory=dict)
    """Corrections of segment times, by base offset."""
    offsets_mark: OffsetsMark | None = None
    sync_failed: bool = False
    """Whether the last session ended with a failed sync."""

    def take(self, numbers: LedgerNumbers, event: Event | None) -> None:
        """Apply a record. Numbers never decrease, whatever the order of the records."""
        self.numbers = self.numbers.raised_to(numbers)
        match event:
            case Sealed():
                self.sealed[event.facts.base_offset] = event.facts
            case Progress():
                if self.progress is None or event.facts.end_offset >= self.progress.end_offset:
                    self.progress = event.facts
            case OffsetGap():
                self.gaps.append(event)
            case DamagedRange():
                self.damages.append(event)
            case SyncFailure():
                self.sync_failed = True
            case TimeCorrection():
                self.corrections[event.base_offset] = event.correction
            case OffsetsMark():
                self.offsets_mark = max(event, self.offsets_mark or event)

    @property
    def synced_base(self) -> int:
        """The first offset of the last segment that is known to be at least partly synced; -1 if there is none."""
        return max([-1, *self.sealed, *([self.progress.base_offset] if self.progress is not None else [])])

    def forget_the_past(self) -> None:
        """Remove everything below the start offset."""
        start = self.numbers.start_offset
        self.sealed = {base: segment for base, segment in self.sealed.items() if base >= start}
        self.corrections = {base: correction for base, correction in self.corrections.items() if base >= start}
        self.gaps = [gap for gap in self.gaps if gap.end_offset > start]
        self.damages = [damage for damage in self.damages if damage.end_offset > start]
        if self.progress is not None and self.progress.base_offset < start:
            self.progress = None


@dataclass(frozen=True, slots=True)
class LedgerReading:
    """The result of reading the file."""

    state: LedgerState
    sequence: int
    record_count: int
    problems: tuple[tuple[int, str], ...]
    """Position and reason of each bad record."""
    exists: bool
    synced_end: int = 0
    """The size up to which the file was synced: after a record that needs a sync, nothing is written until then."""
    foreign_owner: PartitionIdentity | None = None
    """The other partition that the ledger belongs to, if good records name it and none names ours.

    A foreign record among our own is a misdirected write, and is listed in ``problems``."""


def encode_record(
    identity: PartitionIdentity, sequence: int, numbers: LedgerNumbers, event: Event | None = None
) -> bytes:
    kind, event_numbers = _event_numbers(event)
    record = bytearray(
        _RECORD.pack(
            0,
            _MAGIC,
            _VERSION,
            kind,
            sequence,
            identity.topic_uuid,
            identity.partition_id,
            identity.incarnation,
            numbers.start_offset,
            numbers.reserved_end,
            numbers.last_timestamp,
            numbers.epoch,
            *event_numbers,
        )
    )
    record[:_CHECKSUM_SIZE] = xxh3(memoryview(record)[_CHECKSUM_SIZE:]).to_bytes(8, "little")
    return bytes(record)


def _event_numbers(event: Event | None) -> tuple[RecordKind, tuple[int, ...]]:
    match event:
        case None:
            return RecordKind.NUMBERS, _NO_EVENT
        case Sealed():
            return RecordKind.SEALED, astuple(event.facts)
        case Progress():
            return RecordKind.PROGRESS, astuple(event.facts)
        case SyncFailure():
            return RecordKind.FAILURE, _NO_EVENT
        case OffsetsMark():
            return RecordKind.OFFSETS, (*astuple(event), 0, 0, 0, 0)
        case TimeCorrection():
            return RecordKind.CORRECTION, (event.base_offset, event.correction % _SIGNED, 0, 0, 0, 0, 0)
        case OffsetGap():
            return RecordKind.GAP, (event.first_offset, event.end_offset, int(event.is_loss), 0, 0, 0, 0)
        case DamagedRange():
            numbers = (event.base_offset, event.position, event.end_position, event.first_offset, event.end_offset)
            return RecordKind.DAMAGE, (*numbers, 0, 0)


def decode_record(record: bytes, identity: PartitionIdentity) -> tuple[int, LedgerNumbers, Event | None] | str:
    """Decode a record into sequence, numbers and event; or return what is wrong with it."""
    checksum, magic, version, kind, sequence, topic_uuid, partition_id, incarnation, *rest = _RECORD.unpack(record)
    if magic != _MAGIC:
        return "no record begins here"
    if xxh3(memoryview(record)[_CHECKSUM_SIZE:]) != checksum:
        return "the checksum does not match"
    if version != _VERSION or kind not in RecordKind.__members__.values():
        return f"records of format {version} and kind {kind} are not supported"
    if (topic_uuid, partition_id, incarnation) != (identity.topic_uuid, identity.partition_id, identity.incarnation):
        return f"the record belongs to partition {PartitionIdentity(topic_uuid, partition_id, incarnation)}"
    start, reserved, timestamp, epoch, *event = rest
    numbers = LedgerNumbers(start_offset=start, reserved_end=reserved, last_timestamp=timestamp, epoch=epoch)
    return sequence, numbers, _decode_event(RecordKind(kind), event)


def identity_of_record(record: bytes) -> PartitionIdentity | None:
    """The partition named by the record at the start of these bytes; None if it is not a good record."""
    if len(record) < RECORD_SIZE:
        return None
    checksum, magic, _, _, _, *identity = _RECORD.unpack_from(record)[:8]
    if magic != _MAGIC or xxh3(memoryview(record)[_CHECKSUM_SIZE:RECORD_SIZE]) != checksum:
        return None
    return PartitionIdentity(*identity)


def ledger_owner(data: bytes) -> PartitionIdentity | None:
    """The partition that the first good record names; None if there is no good record."""
    owners = (identity_of_record(data[position:]) for position in range(0, len(data), RECORD_SIZE))
    return next((owner for owner in owners if owner is not None), None)


def scan_ledger(
    data: bytes, identity: PartitionIdentity
) -> Iterator[tuple[int, tuple[int, LedgerNumbers, Event | None] | str]]:
    """The position of each record, with its sequence, numbers and event; or with what is wrong with it."""
    for position in range(0, len(data), RECORD_SIZE):
        record = data[position : position + RECORD_SIZE]
        is_whole = len(record) == RECORD_SIZE
        yield position, decode_record(record, identity) if is_whole else "the file ends inside a record"


def _decode_event(kind: RecordKind, numbers: list[int]) -> Event | None:
    match kind:
        case RecordKind.NUMBERS:
            return None
        case RecordKind.SEALED:
            return Sealed(SegmentFacts(*numbers))
        case RecordKind.PROGRESS:
            return Progress(SegmentFacts(*numbers))
        case RecordKind.GAP:
            return OffsetGap(numbers[0], numbers[1], bool(numbers[2]))
        case RecordKind.DAMAGE:
            return DamagedRange(*numbers[:5])
        case RecordKind.FAILURE:
            return SyncFailure()
        case RecordKind.OFFSETS:
            return OffsetsMark(*numbers[:3])
        case RecordKind.CORRECTION:
            base_offset, correction = numbers[:2]
            return TimeCorrection(base_offset, correction - _SIGNED if correction >= _SIGNED // 2 else correction)


def read_ledger(file_system: FileSystem, path: Path, identity: PartitionIdentity) -> LedgerReading:
    """Read the whole ledger. Bad records are skipped and reported."""
    try:
        file = file_system.open(path)
    except FileNotFoundError:
        return LedgerReading(LedgerState(), 0, 0, (), exists=False)
    with closing(file):
        data = bytes(read_exactly(file, 0, file.size()) or b"")
    state = LedgerState()
    problems: list[tuple[int, str]] = []
    strangers: list[PartitionIdentity] = []
    last_sequence = waiting_end = synced_end = own_count = 0
    for position, decoded in scan_ledger(data, identity):
        if isinstance(decoded, str):
            problems.append((position, decoded))
            owner = identity_of_record(data[position : position + RECORD_SIZE])
            if owner is not None and owner != identity:
                strangers.append(owner)
            own_count += owner == identity
            continue
        own_count += 1
        sequence, numbers, event = decoded
        last_sequence = max(last_sequence, sequence)
        synced_end = waiting_end
        if event is None or isinstance(event, Sealed):
            waiting_end = position + RECORD_SIZE
        state.take(numbers, event)
    state.forget_the_past()
    record_count = len(data) // RECORD_SIZE
    foreign_owner = strangers[0] if strangers and not own_count else None
    return LedgerReading(state, last_sequence, record_count, tuple(problems), True, synced_end, foreign_owner)


@dataclass(frozen=True, slots=True)
class LedgerDraft:
    """Records to write, one per event. The owner drafts them; a job encodes and writes them."""

    identity: PartitionIdentity
    first_sequence: int
    numbers: LedgerNumbers
    events: tuple[Event | None, ...]

    def encode(self) -> bytes:
        return b"".join(
            encode_record(self.identity, sequence, self.numbers, event)
            for sequence, event in enumerate(self.events, self.first_sequence)
        )


class LedgerFile:
    """The ledger on disk. One job at a time uses it. Records are rare, so the file is not kept open."""

    def __init__(self, file_system: FileSystem, path: Path, record_count: int) -> None:
        self._file_system = file_system
        self.path = path
        self.record_count = record_count
        """The number of whole records in the file."""
        self._is_unsynced = False

    def append(self, draft: LedgerDraft, *, sync: bool) -> None:
        """Append records.

        Raises:
            DiskFull: nothing was written.
            StorageFailure: the records may or may not exist after a crash.
        """
        with closing(self._open()) as file:
            position = self.record_count * RECORD_SIZE
            self._is_unsynced = True
            try:
                write_all(file, position, [draft.encode()])
            except OSError as error:
                self._cut_back(file, position)
                raise storage_failure("write", self.path, error) from error
            if sync:
                sync_file(file)
                self._is_unsynced = False
        self.record_count += len(draft.events)

    @staticmethod
    def _cut_back(file: File, size: int) -> None:
        """Remove the written part of a failed record durably.

        Records end with zeros, and so does a file that grows again. Without a sync, the failed record could therefore
        be complete after a power cut.
        """
        try:
            if file.size() <= size:
                return
            file.truncate(size)
        except OSError:
            # A partial record at the end counts as torn. The next write overwrites it, or ``close`` removes it.
            return
        sync_file(file)

    def rewrite(self, draft: LedgerDraft) -> None:
        """Replace the file with these records, durably and atomically."""
        replace_file(self._file_system, self.path, draft.encode())
        self._is_unsynced = False
        self.record_count = len(draft.events)

    def close(self) -> None:
        """Make all records durable, and remove a partial one: after a clean stop it would count as damage."""
        if not self._is_unsynced:
            return
        with closing(self._open()) as file:
            try:
                file.truncate(self.record_count * RECORD_SIZE)
            except OSError as error:
                raise storage_failure("truncate", self.path, error) from error
            sync_file(file)
        self._is_unsynced = False

    def _open(self) -> File:
        try:
            return self._file_system.open(self.path, writable=True)
        except OSError as error:
            raise storage_failure("open", self.path, error) from error


class Ledger:
    """The contents of the ledger in memory, for the owner's thread, and its file.

    A job writes in three steps: its plan drafts the records, its ``run`` writes them with ``file``, and its completion
    applies them. The state is therefore never ahead of the file, and at most one job behind.
    """

    def __init__(
        self,
        file_system: FileSystem,
        path: Path,
        identity: PartitionIdentity,
        reading: LedgerReading,
        limits: EngineLimits = DEFAULT_LIMITS,
    ) -> None:
        self._identity = identity
        self._garbage_count_max = limits.ledger_garbage_count_max
        self._sequence = reading.sequence
        self.file = LedgerFile(file_system, path, reading.record_count)
        self.state = reading.state

    def draft(self, *events: Event, **numbers: int) -> LedgerDraft:
        """Draft records for these events, or one without an event. They contain the ``numbers`` that are larger."""
        return self._draft(events or (None,), self.state.numbers.raised_to(LedgerNumbers(**numbers)))

    def draft_snapshot(self) -> LedgerDraft:
        """Draft records for the whole state, for ``LedgerFile.rewrite``."""
        state = self.state
        events: list[Event | None] = [*state.gaps, *state.damages]
        events += [Sealed(facts) for facts in state.sealed.values()]
        events += [TimeCorrection(base, correction) for base, correction in state.corrections.items()]
        if state.offsets_mark is not None:
            events.append(state.offsets_mark)
        if state.sync_failed:
            events.append(SyncFailure())
        events.append(Progress(state.progress) if state.progress is not None else None)
        return self._draft(tuple(events), state.numbers)

    def _draft(self, events: tuple[Event | None, ...], numbers: LedgerNumbers) -> LedgerDraft:
        # A draft that is never written leaves a harmless gap in the sequence.
        first_sequence = self._sequence + 1
        self._sequence += len(events)
        return LedgerDraft(self._identity, first_sequence, numbers, events)

    def apply(self, draft: LedgerDraft) -> None:
        """Apply these records to the state."""
        is_trimmed = draft.numbers.start_offset > self.state.numbers.start_offset
        for event in draft.events:
            self.state.take(draft.numbers, event)
        if is_trimmed:
            self.state.forget_the_past()

    def note(self, *events: Event, **numbers: int) -> LedgerDraft:
        """Draft records and apply them at once: for starts and stops, when no job runs."""
        draft = self.draft(*events, **numbers)
        self.apply(draft)
        return draft

    @property
    def is_wasteful(self) -> bool:
        """Whether most of the file is obsolete. Called only while no job writes the file."""
        state = self.state
        live_count = len(state.sealed) + len(state.gaps) + len(state.damages) + len(state.corrections) + 1
        return self.file.record_count > 2 * live_count + self._garbage_count_max
