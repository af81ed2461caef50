"""The file of a staged part: messages and their target partitions, until a publish appends them to the logs.

The header identifies the part. Each batch has a record with its target partition and two checksums. A closing record
marks the part as complete. One attempt writes the file sequentially. See ``docs/formats/staging.md``.
"""

import contextlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from struct import Struct
from typing import NamedTuple

import xxhash

from courser.errors import DamagedData, StorageFailure
from courser.model.buffers import Buffer
from courser.records.batch import Batch, batch_of, parse_batch, wire_header
from courser.records.checksum import xxh3
from courser.records.encryption import KeyRing
from courser.records.layout import MAGIC, MAGIC_POSITION, STORED_SIZE_MAX
from courser.records.stored_body import EncodedBatch, decode, stamp_encoded
from courser.records.stored_header import BadBatch, PartitionIdentity, blank_header, read_header
from courser.storage.durable_files import storage_failure, sync_file
from courser.storage.files import File, FileSystem, read_exactly, read_into, write_all
from courser.storage.settings import DEFAULT_LIMITS, EngineLimits

_HEADER_MAGIC = b"CRSS"
_RECORD_MAGIC = b"CRSR"
_FORMAT_VERSION = 1
_HEADER = Struct("<4sHHIIQQQ")
"""magic, format_version, sink_size, user_id, part, batch, attempt, created_at; then the sink's name and a checksum"""
_RECORD = Struct("<4sB3xIIII16sQI4xQQ")
"""magic, kind, chunk, stream_id, topic_id, partition_id, topic_uuid, incarnation, message_count, size, body_hash"""
_END = Struct("<4sB3xI4xQQQ32x")
"""magic, kind, chunk_count, message_count, size, digest"""
_CHECKSUM = Struct("<Q")
assert _RECORD.size == _END.size
RECORD_SIZE = _RECORD.size + _CHECKSUM.size
"""Size of a record in bytes, without the batch that follows it."""
_BATCH_KIND, _END_KIND = 1, 2
_SINK_SIZE_MAX = 255
"""Maximum size of a sink's name in bytes."""
_HEADER_SIZE_MAX = _HEADER.size + _SINK_SIZE_MAX + _CHECKSUM.size
_DAMAGED_BYTES_MAX = 8
"""How many bytes of a closing record may be wrong before it is no longer recognized. The record of a batch differs from
it in twice as many."""
_STEP_SIZE = 1024 * 1024
"""Bytes to read at a time in the search for the end of the data."""


class StagingTarget(NamedTuple):
    """The target partition of messages, as it was when they were staged."""

    stream_id: int
    topic_id: int
    topic_uuid: bytes
    partition_id: int
    incarnation: int


@dataclass(frozen=True, slots=True)
class PartIdentity:
    """What identifies a part: its sink, batch, task and attempt."""

    user_id: int
    sink: str
    batch: int
    part: int
    attempt: int


class StagedBatch(NamedTuple):
    """One record: the position of its batch, and the target partition."""

    target: StagingTarget
    chunk: int
    message_count: int
    position: int
    """The position of the batch in the file."""
    size: int
    body_hash: int


class PartContents:
    """The contents of a part. Its writer or reader keeps it up to date."""

    __slots__ = (
        "batch_counts",
        "chunk_count",
        "digest",
        "file_size",
        "is_finished",
        "message_count",
        "size",
        "target_sizes",
    )

    def __init__(self, file_size: int) -> None:
        self.file_size = file_size
        self.chunk_count = 0
        self.message_count = 0
        self.size = 0
        """Size of all batches in bytes."""
        self.digest = 0
        """A hash of the checksums of all records, in order."""
        self.target_sizes: dict[StagingTarget, int] = {}
        """Bytes for each partition, in the order of first occurrence."""
        self.batch_counts: dict[StagingTarget, int] = {}
        """Number of batches for each partition."""
        self.is_finished = False

    def add(self, record: StagedBatch, checksum: int) -> None:
        """Count one more batch."""
        self.chunk_count += 1
        self.message_count += record.message_count
        self.size += record.size
        self.file_size = record.position + record.size
        self.digest = xxh3(_CHECKSUM.pack(self.digest) + _CHECKSUM.pack(checksum))
        self.target_sizes[record.target] = self.target_sizes.get(record.target, 0) + record.size
        self.batch_counts[record.target] = self.batch_counts.get(record.target, 0) + 1


class StagedFileWriter:
    """Writes the file of a part."""

    def __init__(self, file: File, contents: PartContents, limits: EngineLimits = DEFAULT_LIMITS) -> None:
        self._file = file
        self._limits = limits
        self.contents = contents
        self._writeback_size = contents.file_size
        self._allocated_size = contents.file_size
        self._has_allocated = False
        """Whether the file may be longer than what was written."""

    @classmethod
    def create(
        cls,
        file_system: FileSystem,
        path: Path,
        identity: PartIdentity,
        created_at: int,
        limits: EngineLimits = DEFAULT_LIMITS,
    ) -> "StagedFileWriter":
        """Create the file of a part. Its name is durable once its directory is synced.

        Raises:
            StorageFailure: nothing was written.
        """
        header = _pack_header(identity, created_at)
        try:
            file = file_system.open(path, writable=True, create=True)
        except OSError as error:
            raise storage_failure("create", path, error) from error
        writer = cls(file, PartContents(0), limits)
        try:
            writer._write([header])
        except StorageFailure:
            file.close()
            # If this fails, the next start removes the file, because it has no header.
            with contextlib.suppress(OSError):
                file_system.unlink(path)
            raise
        writer.contents.file_size = len(header)
        return writer

    @classmethod
    def reopen(
        cls, file_system: FileSystem, path: Path, contents: PartContents, limits: EngineLimits = DEFAULT_LIMITS
    ) -> "StagedFileWriter":
        """Continue a part of an earlier session. Anything after its last good record is removed."""
        try:
            file = file_system.open(path, writable=True)
        except OSError as error:
            raise storage_failure("open", path, error) from error
        try:
            file.truncate(contents.file_size)
        except OSError as error:
            file.close()
            raise storage_failure("truncate", path, error) from error
        return cls(file, contents, limits)

    def append(self, target: StagingTarget, batch: Batch) -> None:
        """Append a batch. On return it survives a kill.

        Raises:
            StorageFailure: nothing was written.
        """
        contents, size = self.contents, batch.size
        header = _header_of(target, batch)
        hasher = xxhash.xxh3_64(header)
        hasher.update(batch.body)
        body_hash = hasher.intdigest()
        fields = _RECORD.pack(
            _RECORD_MAGIC,
            _BATCH_KIND,
            contents.chunk_count,
            target.stream_id,
            target.topic_id,
            target.partition_id,
            target.topic_uuid,
            target.incarnation,
            batch.count,
            size,
            body_hash,
        )
        checksum = xxh3(fields)
        self._write([fields, _CHECKSUM.pack(checksum), header, batch.body])
        position = contents.file_size + RECORD_SIZE
        record = StagedBatch(target, contents.chunk_count, batch.count, position, size, body_hash)
        contents.add(record, checksum)

    def take_upkeep(self) -> Callable[[], None] | None:
        """Work that makes the next writes and the final sync faster, if any is due. The work may wait for the disk.

        A write to preallocated space costs a third less.
        """
        size, limits = self.contents.file_size, self._limits
        allocation = min(size, limits.staged_allocation_max)
        allocated_from = max(self._allocated_size, size)
        is_short = size >= limits.staged_allocation_min and allocated_from - size <= allocation // 2
        written_from, written_size = self._writeback_size, size - self._writeback_size
        if not is_short and written_size < limits.staged_writeback_size:
            return None
        self._writeback_size = size
        if is_short:
            self._allocated_size = allocated_from + allocation
            self._has_allocated = True

        def work() -> None:
            # Both are hints. If they fail, the writes and the sync take longer.
            with contextlib.suppress(OSError):
                if is_short:
                    self._file.allocate(allocated_from, allocation)
            with contextlib.suppress(OSError):
                self._file.start_writeback(written_from, written_size)

        return work

    def finish(self) -> None:
        """Write the closing record and sync. Waits for the disk.

        Raises:
            StorageFailure: the file could not be written or synced. After a failed sync, the part must be discarded.
        """
        contents = self.contents
        data = _pack_end(contents)
        self._write([data])
        contents.file_size += len(data)
        self._cut()
        sync_file(self._file)
        contents.is_finished = True

    def _cut(self) -> None:
        """Release unused preallocated space. A power cut can undo this, and then zeros follow the closing record."""
        if self._has_allocated:
            try:
                self._file.truncate(self.contents.file_size)
            except OSError as error:
                raise storage_failure("truncate", self._file.path, error) from error

    def close(self) -> None:
        self._file.close()

    def _write(self, buffers: list[Buffer]) -> None:
        try:
            write_all(self._file, self.contents.file_size, buffers)
        except OSError as error:
            failure = storage_failure("write", self._file.path, error)
            try:
                self._file.truncate(self.contents.file_size)
                self._allocated_size = self.contents.file_size
            except OSError as truncate_error:
                # The next write overwrites what is left, or the next start finds it torn.
                raise storage_failure("truncate", self._file.path, truncate_error) from error
            raise failure from error


def _header_of(target: StagingTarget, batch: Batch) -> bytearray:
    """The header of a staged batch: as clients send it, or as an encrypted batch is stored in a log, at offset 0."""
    if isinstance(batch, EncodedBatch):
        return stamp_encoded(batch, blank_header(_identity_of(target)), 0, 0)
    return wire_header(0, 0, 0, batch.origin_timestamp, batch.size, batch.count, batch.checksums)


def _identity_of(target: StagingTarget) -> PartitionIdentity:
    return PartitionIdentity(target.topic_uuid, target.partition_id, target.incarnation)


def _pack_end(contents: PartContents) -> bytes:
    fields = _END.pack(
        _RECORD_MAGIC, _END_KIND, contents.chunk_count, contents.message_count, contents.size, contents.digest
    )
    return fields + _CHECKSUM.pack(xxh3(fields))


def _pack_header(identity: PartIdentity, created_at: int) -> bytes:
    sink = identity.sink.encode()
    fields = _HEADER.pack(
        _HEADER_MAGIC,
        _FORMAT_VERSION,
        len(sink),
        identity.user_id,
        identity.part,
        identity.batch,
        identity.attempt,
        created_at,
    )
    return fields + sink + _CHECKSUM.pack(xxh3(fields + sink))


# --- reading --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StagedFile:
    """A part that was found on disk."""

    identity: PartIdentity
    created_at: int
    contents: PartContents


@dataclass(frozen=True, slots=True)
class DamagedPart:
    """A part that is damaged in a way that no interrupted write explains."""

    identity: PartIdentity | None
    """May be wrong if the header is damaged."""
    position: int
    reason: str


def read_staged_file(
    file_system: FileSystem,
    path: Path,
    *,
    is_in_question: Callable[[PartIdentity], bool] = lambda _: True,
    is_crashed: bool = False,
) -> StagedFile | DamagedPart | None:
    """Read the file of a part; None if its creation was interrupted and it contains no batch.

    Batches are hashed if ``is_in_question`` says so: a power cut before a sync can tear any of them, and can keep the
    closing record but not the batches. ``is_crashed`` means that unsynced data may be torn anywhere; a kill tears at
    most the last write. A torn part counts up to the tear. Any other error is damage.
    """
    file = file_system.open(path)
    try:
        found = _read_header(file)
        if found is None:
            return _judge_header(file, is_crashed=is_crashed)
        identity, created_at, position = found
        contents = PartContents(position)
        hashes = is_in_question(identity)
        _walk(file, contents, hashes=hashes)
        if hashes and not contents.is_finished:
            reason = _damage_behind(file, contents, is_crashed=is_crashed)
            if reason is not None:
                return DamagedPart(identity, contents.file_size, reason)
        return StagedFile(identity, created_at, contents)
    finally:
        file.close()


def _read_header(file: File) -> tuple[PartIdentity, int, int] | None:
    fields = read_exactly(file, 0, _HEADER.size)
    if fields is None:
        return None
    magic, version, sink_size, user_id, part, batch, attempt, created_at = _HEADER.unpack(fields)
    rest = read_exactly(file, _HEADER.size, sink_size + _CHECKSUM.size)
    if magic != _HEADER_MAGIC or version != _FORMAT_VERSION or rest is None:
        return None
    sink = bytes(rest[:sink_size])
    if _CHECKSUM.unpack_from(rest, sink_size)[0] != xxh3(bytes(fields) + sink):
        return None
    identity = PartIdentity(user_id, sink.decode(), batch, part, attempt)
    return identity, created_at, _HEADER.size + sink_size + _CHECKSUM.size


# --- torn or damaged ------------------------------------------------------------------------------------


def _judge_header(file: File, *, is_crashed: bool) -> DamagedPart | None:
    """Judge a file without a good header. Returns None if its creation was interrupted."""
    end = _end_of_data(file, 0)
    if end <= _HEADER_SIZE_MAX or (is_crashed and not _has_end(file, 0, end)):
        # It has no batch, or the power failed before the part was finished. No task relies on it.
        return None
    fields = read_exactly(file, 0, _HEADER.size)
    assert fields is not None
    _, _, sink_size, user_id, part, batch, attempt, _ = _HEADER.unpack(fields)
    name = read_exactly(file, _HEADER.size, min(sink_size, _SINK_SIZE_MAX)) or b""
    identity = PartIdentity(user_id, bytes(name).decode(errors="replace"), batch, part, attempt)
    return DamagedPart(identity, 0, "the header is damaged")


def _damage_behind(file: File, contents: PartContents, *, is_crashed: bool) -> str | None:
    """The damage after the last good record; None if the part ends there, or was torn there."""
    position = contents.file_size
    end = _end_of_data(file, position)
    if end <= position:
        return None
    if _has_end(file, position, end):
        doubt = " (unless the power failed before it was synced)" if is_crashed else ""
        return f"the part is complete{doubt}, but its chunk {contents.chunk_count} is damaged"
    data = bytes(read_exactly(file, position, RECORD_SIZE) or b"")
    if _is_damaged_end(data, contents):
        return "the part is complete, but its closing record is damaged"
    if is_crashed:
        return None
    record = _read_record(file, contents, file.size())
    if record is not None and record[0] is not None:
        is_torn = end < record[0].position + record[0].size
    else:
        is_torn = end < position + RECORD_SIZE or _is_cut_short(data, file.size() - position)
    return None if is_torn else f"chunk {contents.chunk_count} is damaged"


def _is_cut_short(data: bytes, size: int) -> bool:
    """Whether this is a good record of a batch, and the file ends inside the batch."""
    if len(data) < RECORD_SIZE or xxh3(data[: _RECORD.size]) != _CHECKSUM.unpack_from(data, _RECORD.size)[0]:
        return False
    return data[len(_RECORD_MAGIC)] == _BATCH_KIND and RECORD_SIZE + int(_RECORD.unpack_from(data)[9]) > size


def _has_end(file: File, start: int, end: int) -> bool:
    """Whether the data, which ends at ``end``, ends with a good closing record, so that the part is complete."""
    # The checksum may end with zeros, which do not count as data.
    for zeros in range(_CHECKSUM.size + 1):
        position = end + zeros - RECORD_SIZE
        if position < start:
            continue
        data = read_exactly(file, position, RECORD_SIZE)
        if data is not None and data[len(_RECORD_MAGIC)] == _END_KIND and bytes(data).startswith(_RECORD_MAGIC):
            fields = bytes(data[: _END.size])
            if xxh3(fields) == _CHECKSUM.unpack_from(data, _END.size)[0]:
                return True
    return False


def _is_damaged_end(data: bytes, contents: PartContents) -> bool:
    """Whether this is the expected closing record except for a few bytes, which no interrupted write explains."""
    expected = _pack_end(contents)
    if len(data) < len(expected):
        return False
    wrong = [number for number, (found, wanted) in enumerate(zip(data, expected, strict=False)) if found != wanted]
    if not 0 < len(wrong) <= _DAMAGED_BYTES_MAX:
        return False
    # If it were torn, its first or last part would be zeros.
    return any(data[wrong[0] :]) and any(data[: wrong[-1] + 1])


def _end_of_data(file: File, start: int) -> int:
    """The end of the data: the position after the last nonzero byte from ``start`` on; ``start`` if there is none."""
    end = file.size()
    while end > start:
        size = min(_STEP_SIZE, end - start)
        step = bytes(read_exactly(file, end - size, size) or b"").rstrip(b"\0")
        if step:
            return end - size + len(step)
        end -= size
    return start


def _walk(file: File, contents: PartContents, *, hashes: bool) -> None:
    """Count the records up to the last good one."""
    file_size = file.size()
    while (found := _read_record(file, contents, file_size)) is not None:
        record, checksum = found
        if record is None:
            contents.file_size += RECORD_SIZE
            contents.is_finished = True
            return
        if hashes and not _has_good_body(file, record):
            return
        contents.add(record, checksum)


def _read_record(file: File, contents: PartContents, file_size: int) -> tuple[StagedBatch | None, int] | None:
    """Read the next record: of a batch, or (None, checksum) for the closing one. None if it is missing or bad."""
    position = contents.file_size
    data = read_exactly(file, position, RECORD_SIZE)
    if data is None:
        return None
    fields, (checksum,) = bytes(data[: _RECORD.size]), _CHECKSUM.unpack_from(data, _RECORD.size)
    if not fields.startswith(_RECORD_MAGIC) or xxh3(fields) != checksum:
        return None
    if fields[len(_RECORD_MAGIC)] == _END_KIND:
        _, _, chunk_count, message_count, size, digest = _END.unpack(fields)
        expected = (contents.chunk_count, contents.message_count, contents.size, contents.digest)
        return (None, checksum) if (chunk_count, message_count, size, digest) == expected else None
    _, _, chunk, stream_id, topic_id, partition_id, topic_uuid, incarnation, count, size, body_hash = _RECORD.unpack(
        fields
    )
    start = position + RECORD_SIZE
    if chunk != contents.chunk_count or size > STORED_SIZE_MAX or start + size > file_size:
        return None
    target = StagingTarget(stream_id, topic_id, topic_uuid, partition_id, incarnation)
    return StagedBatch(target, chunk, count, start, size, body_hash), checksum


def _has_good_body(file: File, record: StagedBatch) -> bool:
    body = read_exactly(file, record.position, record.size)
    return body is not None and xxh3(body) == record.body_hash


class StagedFileReader:
    """Reads the batches of a complete part, for a publish."""

    def __init__(self, file_system: FileSystem, path: Path, *, file_size: int, digest: int) -> None:
        """``file_size`` and ``digest`` are those in the journal entry of the publish."""
        self._path = path
        self._file_size = file_size
        self._digest = digest
        with ExitStack() as stack:
            try:
                self._file = stack.enter_context(closing(file_system.open(path)))
                found = _read_header(self._file)
                is_whole = self._file.size() >= file_size
            except OSError as error:
                raise storage_failure("read", path, error) from error
            if found is None or not is_whole:
                raise DamagedData(path, 0, f"this is not the published part of {file_size} bytes")
            stack.pop_all()
        self._start = found[2]

    def records(self) -> Iterator[StagedBatch]:
        """Iterate over the records of all batches, without reading the batches.

        Raises:
            DamagedData: a record is damaged, or the file is another part.
        """
        contents = PartContents(self._start)
        while True:
            try:
                found = _read_record(self._file, contents, self._file_size)
            except OSError as error:
                raise storage_failure("read", self._path, error) from error
            if found is None:
                raise DamagedData(self._path, contents.file_size, "a record of a published part is damaged")
            record, checksum = found
            if record is None:
                break
            yield record
            contents.add(record, checksum)
        if contents.digest != self._digest:
            raise DamagedData(self._path, 0, "this is not the published part")

    def read(self, record: StagedBatch, memory: memoryview) -> None:
        """Read a batch into memory of its size. Raises ``DamagedData``."""
        try:
            size = read_into(self._file, record.position, memory)
        except OSError as error:
            raise storage_failure("read", self._path, error) from error
        if size < record.size or xxh3(memory) != record.body_hash:
            raise DamagedData(self._path, record.position, "the body hash of a staged batch does not match")

    def forget(self, record: StagedBatch) -> None:
        """Give back the memory in which the kernel holds the file up to the end of a batch. A hint.

        Only a publish that is repeated reads it again. The log needs as much memory next, and gets this: a copy into
        memory that was not in use takes several times as long.
        """
        with contextlib.suppress(OSError):
            self._file.discard_cache(record.position + record.size)

    def batch(self, record: StagedBatch, memory: memoryview, keys: KeyRing) -> Batch:
        """The messages of a batch that ``read`` has loaded.

        Raises:
            DamagedData: it was changed since it was encrypted.
            KeyMissing: its key is not in the ring.
        """
        if bytes(memory[MAGIC_POSITION : MAGIC_POSITION + len(MAGIC)]) != MAGIC:
            return parse_batch(memory)
        try:
            header = read_header(memory, 0, _identity_of(record.target))
            return batch_of(header.origin_timestamp, header.message_count, decode(header, memory, keys))
        except BadBatch as error:
            raise DamagedData(self._path, record.position, str(error)) from error

    def close(self) -> None:
        self._file.close()
