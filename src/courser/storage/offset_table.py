"""Stored consumer offsets of one partition: the file ``offsets``.

Every store appends a record of 32 bytes, or more for a long consumer name. The last record of a consumer counts. A
record is written before the store is acknowledged, so a kill loses nothing. A power cut can lose any unsynced records,
and the whole file if it was never synced. Consumers then move back, never forward, because deletes and stores that move
back are synced before they are acknowledged. The file is rewritten when most of it is obsolete
(``docs/formats/offsets.md``).

The header names the partition, and how often the file was rewritten. The ledger records how much of which file was
synced, so that a file that is shorter, older, empty, missing or another partition's is noticed.
"""

import contextlib
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from courser.errors import ConsumerOffsetNotFound, StorageFailure, TooManyConsumerOffsets
from courser.model.buffers import Buffer
from courser.model.identifiers import ConsumerKind
from courser.records.checksum import xxh3
from courser.records.stored_header import PartitionIdentity
from courser.storage.durable_files import replace_file, storage_failure, sync_file, unlink_if_there
from courser.storage.files import File, FileSystem, read_exactly, write_all
from courser.storage.ledger import OffsetsMark
from courser.storage.paths import temporary_path
from courser.storage.recovery_cases import StopKind
from courser.storage.settings import DEFAULT_LIMITS, EngineLimits

GRANULE = 32
"""Records start at multiples of this many bytes, so that a good record can be found after a damaged one."""
_HEADER = struct.Struct(
    "<"
    "Q"  # checksum: XXH3-64 of the rest of the header
    "4s"  # magic
    "H"  # format_version
    "2x"
    "Q"  # epoch: number of purges of the partition when the file was made
    "Q"  # generation: how often it was written in this epoch
    "16s"  # topic_uuid
    "Q"  # partition_id
    "Q"  # incarnation
)
HEADER_SIZE = _HEADER.size
assert HEADER_SIZE % GRANULE == 0
_OLD_HEADER = struct.Struct("<Q4sH2xQ8x")
"""The header of version 1, which ends after the epoch."""
_RECORD = struct.Struct(
    "<"
    "Q"  # checksum: XXH3-64 of the record behind it, key and padding included
    "B"  # kind
    "B"  # flags
    "H"  # key_length
    "4x"
    "Q"  # offset
)
_MAGIC = b"CRSO"
_VERSION = 2
_OLD_VERSION = 1
_CHECKSUM_SIZE = 8
_DELETED = 1
_KEY_SIZE_MAX = 256

TORN_END = "the file ends with a record that was not finished"
"""The only problem that a kill can cause."""


@dataclass(frozen=True, slots=True)
class ConsumerKey:
    """A consumer or group, with the identifier that the client sent. A number never matches a name."""

    kind: ConsumerKind
    identifier: bytes

    def __post_init__(self) -> None:
        if not 0 < len(self.identifier) <= _KEY_SIZE_MAX:
            raise ValueError(f"a consumer identifier must have 1 to {_KEY_SIZE_MAX} bytes, not {len(self.identifier)}")


@dataclass(frozen=True, slots=True)
class OffsetsReading:
    """The result of reading the file."""

    offsets: dict[ConsumerKey, int]
    size: int
    problems: tuple[tuple[int, str], ...]
    """Position and reason of each damaged range."""
    positions: dict[ConsumerKey, int] = field(default_factory=dict)
    """The position of each consumer's last record."""
    generation: int = 0
    epoch: int = 0
    is_foreign: bool = False
    """Whether it is an intact file of another partition."""

    def is_rot(self, position: int, reason: str, stop: StopKind, synced_size: int) -> bool:
        """Whether a problem is damage: no crash affects the first ``synced_size`` bytes, and no kill the header."""
        if stop is StopKind.CLEAN or position < synced_size or self.is_foreign:
            return True
        return stop is StopKind.KILLED and reason != TORN_END

    def forget_unsure(self, stop: StopKind, synced_size: int = 0) -> None:
        """Forget the consumers that a damaged record may have moved back or deleted, so that they never skip messages.

        A move back is synced before it is acknowledged, so a kill or a power cut cannot lose it.
        """
        rotten = [position for position, reason in self.problems if self.is_rot(position, reason, stop, synced_size)]
        for key, position in self.positions.items():
            if position < max(rotten, default=0):
                self.offsets.pop(key, None)

    def loss(self, size: int, mark: OffsetsMark | None) -> str | None:
        """What is missing of the data that was synced according to the ledger; None if nothing is."""
        if mark is None or mark.size <= HEADER_SIZE or self.is_foreign:
            return None
        if size and any(position == 0 for position, _ in self.problems):
            # A bad header is reported separately, and the rest of the file is not used.
            return None
        if self.generation < mark.generation:
            return "the file is missing, empty, or an older one: offsets that were stored are lost"
        if self.generation == mark.generation and size < mark.size:
            return f"the file has {size} bytes, but {mark.size} were synced; stored offsets are lost"
        return None


class OffsetsProblem(NamedTuple):
    """A problem with the file that a start has found."""

    position: int
    reason: str
    is_damage: bool
    """Whether it is damage, which no crash explains."""


@dataclass(frozen=True, slots=True)
class _Header:
    epoch: int
    size: int
    generation: int = 0
    identity: PartitionIdentity | None = None
    """None in a file of version 1."""


def encode_header(identity: PartitionIdentity, epoch: int, generation: int) -> bytes:
    """The header of the file."""
    whose = identity.topic_uuid, identity.partition_id, identity.incarnation
    rest = _HEADER.pack(0, _MAGIC, _VERSION, epoch, generation, *whose)[_CHECKSUM_SIZE:]
    return xxh3(rest).to_bytes(8, "little") + rest


def decode_header(data: Buffer) -> _Header | str:
    """Decode the header of a file; or return what is wrong with it."""
    if not len(data):
        return "the file is empty"
    if len(data) < _OLD_HEADER.size:
        return "the file is shorter than its header"
    checksum, magic, version, epoch = _OLD_HEADER.unpack_from(data)
    size = _OLD_HEADER.size if version == _OLD_VERSION else HEADER_SIZE
    is_known = magic == _MAGIC and version in (_OLD_VERSION, _VERSION) and len(data) >= size
    if not is_known or xxh3(memoryview(data)[_CHECKSUM_SIZE:size]) != checksum:
        return "the header is damaged: no stored offset can be trusted"
    if version == _OLD_VERSION:
        return _Header(epoch, size)
    generation, *whose = _HEADER.unpack_from(data)[4:]
    return _Header(epoch, size, generation, PartitionIdentity(*whose))


def encode_store(key: ConsumerKey, offset: int, *, deleted: bool = False) -> bytes:
    """Encode the record of a stored or deleted offset."""
    record = _RECORD.pack(0, key.kind, _DELETED if deleted else 0, len(key.identifier), offset) + key.identifier
    rest = record[_CHECKSUM_SIZE:] + bytes(-len(record) % GRANULE)
    return xxh3(rest).to_bytes(8, "little") + rest


def read_offsets(data: Buffer, epoch: int, identity: PartitionIdentity) -> OffsetsReading:
    """Decode a whole file. Damaged records are skipped and reported; good records after them count."""
    header = decode_header(data)
    if isinstance(header, str):
        return OffsetsReading({}, 0, ((0, header),))
    if header.identity is not None and header.identity != identity:
        reason = f"the file belongs to partition {header.identity}; moved it to quarantine"
        return OffsetsReading({}, 0, ((0, reason),), is_foreign=True)
    if header.epoch < epoch:
        # An older epoch: a purge made these offsets invalid, and the power failed before their file was replaced. A
        # later epoch: these are the offsets that a purge keeps, and the power failed before the ledger counted it.
        return OffsetsReading({}, 0, ())
    offsets: dict[ConsumerKey, int] = {}
    positions: dict[ConsumerKey, int] = {}
    problems: list[tuple[int, str]] = []
    good_end = header.size
    for position, record in iterate_records(memoryview(data), header.size):
        if record is None:
            problems.append((position, "the record is damaged"))
            continue
        key, offset, deleted, end = record
        good_end = end
        positions[key] = position
        if deleted:
            offsets.pop(key, None)
        else:
            offsets[key] = offset
    if problems and problems[-1][0] >= good_end:
        problems[-1] = (problems[-1][0], TORN_END)
    return OffsetsReading(offsets, good_end, tuple(problems), positions, header.generation, header.epoch)


def iterate_records(
    data: memoryview, header_size: int = HEADER_SIZE
) -> Iterator[tuple[int, tuple[ConsumerKey, int, bool, int] | None]]:
    """Iterate over the records and their positions; None for each range without a record."""
    position = header_size
    is_bad = False
    while position < len(data):
        record = _record_at(data, position)
        if record is None:
            if not is_bad:
                yield position, None
            is_bad = True
            position += GRANULE
            continue
        is_bad = False
        yield position, record
        position = record[3]


def _record_at(data: memoryview, position: int) -> tuple[ConsumerKey, int, bool, int] | None:
    if position + _RECORD.size > len(data):
        return None
    checksum, kind, flags, key_length, offset = _RECORD.unpack_from(data, position)
    size = _RECORD.size + key_length
    end = position + size + -size % GRANULE
    if not 0 < key_length <= _KEY_SIZE_MAX or kind not in (1, 2) or end > len(data):
        return None
    if xxh3(data[position + _CHECKSUM_SIZE : end]) != checksum:
        return None
    identifier = bytes(data[position + _RECORD.size : position + size])
    return ConsumerKey(ConsumerKind(kind), identifier), offset, bool(flags & _DELETED), end


class OffsetTable:
    """The stored offsets, in memory and on disk.

    For the owner's thread only, except ``write_replacement``, and ``clear`` of a new table. Nothing else here waits for
    the disk, once the file is loaded.

    After ``store`` returns the record is written; it is durable once the file of ``begin_sync`` is synced, and with a
    new file also its name.
    """

    def __init__(
        self,
        file_system: FileSystem,
        path: Path,
        identity: PartitionIdentity,
        epoch: int,
        limits: EngineLimits = DEFAULT_LIMITS,
    ) -> None:
        self._file_system = file_system
        self._path = path
        self._identity = identity
        self._epoch = epoch
        self._limits = limits
        self._generation = 0
        self._file: File | None = None
        self._size = 0
        self._offsets: dict[ConsumerKey, int] = {}
        self._live_size = HEADER_SIZE
        self.is_rewriting = False
        """Whether a job rewrites the file. Nothing can be stored or deleted meanwhile."""
        self._rewritten_size = 0
        """Size of the file that replaces this one."""
        self._size_kept = 0
        """Size of the file when a rewrite failed."""
        self.has_unsynced = False
        """Whether a record was written since the last sync started."""
        self._moved_back: set[ConsumerKey] = set()
        """Consumers that were moved back or deleted since the last sync started, or whose store failed. The disk may
        have larger offsets."""
        self._moving_back: set[ConsumerKey] = set()
        """The same for the sync under way."""

    @classmethod
    def load(
        cls,
        file_system: FileSystem,
        path: Path,
        identity: PartitionIdentity,
        epoch: int,
        stop: StopKind,
        *,
        mark: OffsetsMark | None,
        limits: EngineLimits = DEFAULT_LIMITS,
        keep_aside: Callable[[File, int, int], None],
        set_aside: Callable[[Path], None],
        if_there_is_room: Callable[[Path], AbstractContextManager[object]] = nullcontext,
    ) -> "tuple[OffsetTable, tuple[OffsetsProblem, ...]]":
        """Read the file, if it exists, and report its problems.

        ``mark`` is what the ledger knows about it. Before a damaged file is replaced, ``keep_aside`` is called with the
        file and the range of bytes to keep. A file of another partition is passed to ``set_aside`` unchanged. Whatever
        writes is inside ``if_there_is_room``, which may pass over a full disk: then nothing may be stored.
        """
        table = cls(file_system, path, identity, epoch, limits)
        if mark is not None and mark.epoch != epoch:
            mark = None
        table._generation = mark.generation if mark is not None else 0
        try:
            file = file_system.open(path, writable=True)
        except FileNotFoundError:
            lost = table._report_loss(OffsetsReading({}, 0, ()), 0, mark)
            if lost:
                with if_there_is_room(path):
                    table._replace()
            return table, lost
        with closing(file):
            return table._take(file, stop, mark, keep_aside, set_aside, if_there_is_room)

    def _take(
        self,
        file: File,
        stop: StopKind,
        mark: OffsetsMark | None,
        keep_aside: Callable[[File, int, int], None],
        set_aside: Callable[[Path], None],
        if_there_is_room: Callable[[Path], AbstractContextManager[object]],
    ) -> "tuple[OffsetTable, tuple[OffsetsProblem, ...]]":
        table, epoch, size = self, self._epoch, file.size()
        reading = read_offsets(read_exactly(file, 0, size) or b"", epoch, self._identity)
        if reading.epoch > epoch:
            # A purge wrote this file, and the power failed before the ledger counted it. The mark is of the old file.
            mark = None
        # Without a good header, the generation is unknown. Any mark proves that the header was synced.
        has_header = bool(reading.size) or not reading.problems
        synced_size = mark.size if mark is not None and (mark.generation == reading.generation or not has_header) else 0
        reading.forget_unsure(stop, synced_size)
        problems = tuple(
            OffsetsProblem(position, reason, reading.is_rot(position, reason, stop, synced_size))
            for position, reason in reading.problems
        )
        table._generation = max(table._generation, reading.generation)
        is_old = reading.generation == 0 or reading.epoch > epoch
        if reading.loss(size, mark) is not None:
            with if_there_is_room(self._path):
                keep_aside(file, 0, size)
                table._replace()
            return table, problems + table._report_loss(reading, size, mark)
        table._offsets = reading.offsets
        table._live_size += sum(len(encode_store(key, 0)) for key in reading.offsets)
        if 0 < reading.size == size and not reading.problems and not is_old:
            # The first store opens it again: a start must not hold a descriptor for every partition.
            table._size = size
            return table, problems
        # New records must not follow a torn or damaged record, or be added to a file of an old epoch or format.
        with if_there_is_room(self._path):
            if reading.problems and not reading.is_foreign:
                keep_aside(file, 0, size)
            if reading.is_foreign:
                set_aside(self._path)
            table._replace()
        return table, problems

    @staticmethod
    def _report_loss(reading: OffsetsReading, size: int, mark: OffsetsMark | None) -> "tuple[OffsetsProblem, ...]":
        """Report what is lost, if anything. The table starts with an empty file then.

        All consumers are forgotten: the lost record may have been a move back, and they would skip messages.
        """
        reason = reading.loss(size, mark)
        if reason is None or mark is None:
            return ()
        return (OffsetsProblem(0, reason, is_damage=True),)

    @property
    def mark(self) -> OffsetsMark | None:
        """The current file and its size, for the ledger once it is synced; None if there is no file."""
        return OffsetsMark(self._epoch, self._generation, self._size) if self._size else None

    @property
    def has_file(self) -> bool:
        """Whether the file exists. The first store creates it."""
        return self._size > 0

    def __len__(self) -> int:
        return len(self._offsets)

    def get(self, key: ConsumerKey) -> int | None:
        return self._offsets.get(key)

    def items(self) -> list[tuple[ConsumerKey, int]]:
        """List the stored offsets, by consumer."""
        return list(self._offsets.items())

    def smallest(self) -> int | None:
        """The offset of the slowest consumer."""
        return min(self._offsets.values(), default=None)

    def store(self, key: ConsumerKey, offset: int) -> bool:
        """Write an offset. Returns whether it must be synced before it is acknowledged.

        This is so if it moves back, or follows a move back that is not synced: a power cut could move it forward.
        """
        before = self._offsets.get(key)
        if before is None and len(self._offsets) >= self._limits.consumer_count_max:
            raise TooManyConsumerOffsets(count_max=self._limits.consumer_count_max)
        record = encode_store(key, offset)
        is_unsafe = key in self._moved_back or key in self._moving_back
        must_sync = is_unsafe or (before is not None and offset < before)
        self._append(key, record)
        self._offsets[key] = offset
        if before is None:
            self._live_size += len(record)
        if must_sync:
            self._moved_back.add(key)
        return must_sync

    def delete(self, key: ConsumerKey) -> None:
        """Delete a consumer's offset. It must be synced before it is acknowledged."""
        if key not in self._offsets:
            raise ConsumerOffsetNotFound
        record = encode_store(key, 0, deleted=True)
        self._append(key, record)
        del self._offsets[key]
        self._live_size -= len(record)
        self._moved_back.add(key)

    def _append(self, key: ConsumerKey, record: bytes) -> None:
        assert not self.is_rewriting, "wait for the rewrite"
        if not self.has_file:
            self._create(record)
        else:
            try:
                if self._file is None:
                    self._file = self._file_system.open(self._path, writable=True)
                write_all(self._file, self._size, [record])
            except OSError as error:
                if self._file is not None:
                    self._cut_back(key, self._file)
                raise storage_failure("write", self._path, error) from error
            self._size += len(record)
        self.has_unsynced = True

    def _create(self, record: bytes) -> None:
        """Create the file with its first record, without waiting for the disk, as for a segment.

        The rename makes it appear whole, so a kill leaves the record or nothing. Before the next sync, a power cut may
        leave no file, or one with a torn header: the consumer has then moved back to the beginning. A file that a purge
        made obsolete may have the name; it counts for nothing.
        """
        data = self._snapshot() + record
        file = self._open_temporary()
        try:
            write_all(file, 0, [data])
            self._file_system.rename(file.path, self._path)
        except OSError as error:
            file.close()
            raise storage_failure("write", self._path, error) from error
        self._use(file, len(data))

    def _cut_back(self, key: ConsumerKey, file: File) -> None:
        """Remove the written part of a failed record.

        Records end with zeros, and so does a file that grows again. So the failed record could be complete after a
        power cut before the next sync, and larger than what was stored since: the owner syncs before it reports the
        failure, and the consumer's next store is synced before its ack.
        """
        self.has_unsynced = True
        self._moved_back.add(key)
        # If that fails, it stays in the file. The next record overwrites it, or a restart skips it.
        with contextlib.suppress(OSError):
            if file.size() != self._size:
                file.truncate(self._size)

    def begin_sync(self) -> File | None:
        """The file to sync, if something was stored since the last call. Its sync makes all earlier stores durable."""
        if not self.has_unsynced:
            return None
        self.has_unsynced = False
        self._moving_back |= self._moved_back
        self._moved_back = set()
        return self._file

    def end_sync(self) -> None:
        """Note that the sync is complete."""
        self._moving_back = set()

    def fail_sync(self) -> None:
        """Note that the sync failed and can be repeated."""
        self.has_unsynced = True

    # --- rewriting the file ---

    @property
    def is_wasteful(self) -> bool:
        """Whether most of the file is obsolete."""
        return self._size > max(self._live_size, self._size_kept) + self._limits.offsets_rewrite_size

    def begin_rewrite(self) -> bytes:
        """The contents of the new file. Stores wait until it is used or abandoned."""
        self.is_rewriting = True
        data = self._snapshot()
        self._rewritten_size = len(data)
        return data

    def write_replacement(self, data: bytes) -> File:
        """Replace the file by one with ``data``. Waits for the disk, on another thread than the owner's.

        The directory must be synced next. Until then, a power cut restores the old file, which contains everything too.
        """
        file = self._open_temporary()
        try:
            write_all(file, 0, [data])
            # Synced stores may be in it.
            sync_file(file)
            self._file_system.rename(file.path, self._path)
        except OSError as error:
            file.close()
            raise storage_failure("write", file.path, error) from error
        except StorageFailure:
            file.close()
            raise
        return file

    def finish_rewrite(self, replacement: File) -> None:
        """Use the new file."""
        self.is_rewriting = False
        self._use(replacement, self._rewritten_size)

    def abandon_rewrite(self) -> None:
        """Keep the old file, and let it grow before the next attempt, which would fail again right now."""
        self.is_rewriting = False
        self._size_kept = self._size

    def _open_temporary(self) -> File:
        path = temporary_path(self._path)
        try:
            unlink_if_there(self._file_system, path)
            return self._file_system.open(path, writable=True, create=True)
        except OSError as error:
            raise storage_failure("create", path, error) from error

    def _snapshot(self) -> bytes:
        """The next generation of the file."""
        header = encode_header(self._identity, self._epoch, self._generation + 1)
        return header + b"".join(encode_store(key, offset) for key, offset in self._offsets.items())

    def _replace(self) -> None:
        """Replace the file durably. The next store opens it: a start must not hold a descriptor for each partition."""
        data = self._snapshot()
        replace_file(self._file_system, self._path, data)
        self._use(None, len(data))

    def _use(self, file: File | None, size: int) -> None:
        """Note that the next generation has the name."""
        before, self._file = self._file, file
        if before is not None:
            before.close()
        self._size = size
        self._generation += 1
        self._size_kept = 0

    def clear(self, epoch: int, kept: Mapping[ConsumerKey, int] | None = None) -> None:
        """Forget all consumers except those in ``kept``, because the partition is purged. Durable on return."""
        self._epoch, self._generation = epoch, 0
        self._offsets = dict(kept or {})
        self._live_size = HEADER_SIZE + sum(len(encode_store(key, 0)) for key in self._offsets)
        self._replace()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
