"""The batches and messages of one log file of any partition."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from courser.errors import InvalidBatch
from courser.inspect.small_files import NOBODY
from courser.records import layout
from courser.records.compression import CodecMissing
from courser.records.encryption import NO_KEYS, KeyMissing, KeyRing, key_name
from courser.records.frames import Frame, checksum_fields, iterate_frames, wrong_frame_checksums
from courser.records.stored_body import decode
from courser.records.stored_header import (
    NO_PRODUCER,
    BadBatch,
    PartitionIdentity,
    StoredHeader,
    frames_of,
    has_valid_batch_checksum,
)
from courser.records.user_headers import iterate_user_headers
from courser.storage.files import FileSystem
from courser.storage.identity_search import first_header, owner_of
from courser.storage.paths import LOG_SUFFIX, base_offset_of
from courser.storage.scan import BadRange, GoodBatch, ZeroTail, scan


@dataclass(frozen=True, slots=True)
class BatchCheck:
    """The result of checking one batch."""

    problems: tuple[str, ...]
    """Contradictions that the server never writes."""
    lying_frames: tuple[int, ...] = ()
    """Indexes of the frames whose own checksum is wrong: the client sent them that way."""
    frames: memoryview | None = None
    """The messages; None if they cannot be decoded."""
    unchecked: str = ""
    """Why the messages were not checked: they are encrypted with a key that is not here, for example."""


def check_batch(batch: GoodBatch, keys: KeyRing) -> BatchCheck:
    """Decode the batch, and check the wire checksum and the checksums of all frames. Hashes every message."""
    header = batch.header
    try:
        body = decode(header, batch.stored, keys) if header.flags else batch.body
        frames = frames_of(header, body)
    except BadBatch as error:
        return BatchCheck((str(error),))
    except (KeyMissing, CodecMissing) as error:
        return BatchCheck((), unchecked=str(error))
    problems = []
    wire = memoryview(layout.STORED_HEADER.pack(*header))
    # The header of an encrypted batch has no checksum of its messages.
    if not header.encryption_key_id and not has_valid_batch_checksum(wire, header, checksum_fields(body, frames)):
        problems.append("the batch checksum for clients does not match")
    return BatchCheck(tuple(problems), tuple(wrong_frame_checksums(body, frames)), body)


@dataclass(frozen=True, slots=True)
class LogHead:
    """Facts about the whole file."""

    path: Path
    size: int
    identity: PartitionIdentity | None
    """From the first intact header; None if there is none."""
    base_offset: int
    base_offset_source: str
    """``file name``, ``first batch`` or ``unknown``."""


@dataclass(frozen=True, slots=True)
class BatchRow:
    """A batch with correct header and body hashes."""

    position: int
    size: int
    base_offset: int
    end_offset: int
    message_count: int
    timestamp: int
    origin_timestamp: int
    codec: str
    encryption_key: str | None
    """The id of the key."""
    frame_size: int
    producer: str | None
    """A publish, or a client's idempotent producer."""
    sequence: int | None
    batch_checksum: str
    body_hash: str
    checksums: str
    """``ok``, or the problem."""


@dataclass(frozen=True, slots=True)
class MessageRow:
    """A message of a batch."""

    position: int | None
    """None inside a batch that is compressed or encrypted."""
    size: int
    offset: int
    id: str
    origin_timestamp: int
    timestamp: int
    payload_size: int
    payload: str
    payload_encoding: str
    """``text`` or ``hex``."""
    payload_is_cut: bool
    header_count: int | None
    """None if the format of the user headers is unknown (they may be encrypted)."""
    header_size: int
    checksum: str


@dataclass(frozen=True, slots=True)
class DamageRow:
    """Bytes that are not a good batch of this file."""

    position: int
    end_position: int
    first_offset: int
    end_offset: int | None
    """None if no good batch follows."""
    reason: str


@dataclass(frozen=True, slots=True)
class ZeroTailRow:
    """Zeros up to the end: preallocated, or never written."""

    position: int
    end_position: int


@dataclass(slots=True)
class LogSummary:
    """Counts up to the point where reading stopped, including rows that were not shown."""

    batch_count: int = 0
    message_count: int = 0
    damage_count: int = 0
    damaged_size: int = 0
    zero_size: int = 0
    next_offset: int = 0


LogRow = BatchRow | MessageRow | DamageRow | ZeroTailRow


class LogInspection:
    """Reads one log file. Call ``rows`` once, then ``summary``."""

    def __init__(self, file_system: FileSystem, path: Path, keys: KeyRing = NO_KEYS) -> None:
        self._keys = keys
        self._file = file_system.open(path)
        # A growing file is read up to its current size.
        size = self._file.size()
        first = first_header(self._file, size)
        base_offset = base_offset_of(path.name, LOG_SUFFIX)
        source = "file name"
        if base_offset is None:
            base_offset, source = (first[1].base_offset, "first batch") if first is not None else (0, "unknown")
        identity = owner_of(first[1]) if first is not None else None
        self.head = LogHead(path, size, identity, base_offset, source)
        self.summary = LogSummary(next_offset=base_offset)

    def rows(
        self, *, messages: bool = False, from_offset: int = 0, limit: int | None = None, payload_size: int = 48
    ) -> Iterator[LogRow]:
        """Every batch from ``from_offset`` on, and damage between batches. With ``messages``, also their messages.

        ``limit`` counts batches or, with ``messages``, messages.
        """
        left = limit
        for found in self._scan():
            match found:
                case DamageRow():
                    if found.end_offset is None or found.end_offset > from_offset:
                        yield found
                case ZeroTail():
                    yield ZeroTailRow(found.position, found.end_position)
                case GoodBatch():
                    if found.header.end_offset <= from_offset:
                        continue
                    if left is not None and left <= 0:
                        return
                    check = check_batch(found, self._keys)
                    yield _batch_row(found, check)
                    if not messages:
                        left = left - 1 if left is not None else None
                    else:
                        for row in _message_rows(found, check, from_offset, left, payload_size):
                            left = left - 1 if left is not None else None
                            yield row

    def _scan(self) -> Iterator[GoodBatch | DamageRow | ZeroTail]:
        """Scan the file, and count what it has."""
        head, summary = self.head, self.summary
        identity = head.identity or NOBODY
        for found in scan(self._file, identity, start=0, end=head.size, offset=head.base_offset):
            match found:
                case BadRange():
                    summary.damage_count += 1
                    summary.damaged_size += found.end_position - found.position
                    yield DamageRow(
                        found.position, found.end_position, found.first_offset, found.end_offset, found.reason
                    )
                case ZeroTail():
                    summary.zero_size = found.end_position - found.position
                    yield found
                case GoodBatch():
                    summary.batch_count += 1
                    summary.message_count += found.header.message_count
                    summary.next_offset = found.header.end_offset
                    yield found


def _batch_row(batch: GoodBatch, check: BatchCheck) -> BatchRow:
    header = batch.header
    producer, sequence = _producer_of(header)
    problems = list(check.problems)
    if check.lying_frames:
        problems.append(f"messages sent with a wrong checksum: {len(check.lying_frames)}")
    if check.unchecked:
        problems.append(f"messages not checked: {check.unchecked}")
    return BatchRow(
        position=batch.position,
        size=header.stored_length,
        base_offset=header.base_offset,
        end_offset=header.end_offset,
        message_count=header.message_count,
        timestamp=header.base_timestamp,
        origin_timestamp=header.origin_timestamp,
        codec=layout.Compression(header.codec).name.lower(),
        encryption_key=key_name(header.encryption_key_id) if header.encryption_key_id else None,
        frame_size=header.frame_size,
        producer=producer,
        sequence=sequence,
        batch_checksum=f"{header.batch_checksum:016x}",
        body_hash=f"{header.body_hash:016x}",
        checksums="; ".join(problems) or "ok",
    )


def _producer_of(header: StoredHeader) -> tuple[str | None, int | None]:
    """Who appended a batch, and its number: a publish in hexadecimal digits, or id and epoch of a client's producer."""
    sent_by = header.batch_producer
    if sent_by is not None:
        return f"{sent_by.producer_id} epoch {sent_by.epoch}", sent_by.sequence
    return (None, None) if header.producer == NO_PRODUCER else (header.producer.hex(), header.sequence)


def _message_rows(
    batch: GoodBatch, check: BatchCheck, from_offset: int, limit: int | None, payload_size: int
) -> Iterator[MessageRow]:
    header = batch.header
    if check.frames is None:
        return
    lying = set(check.lying_frames)
    position = batch.position + layout.BATCH_HEADER_SIZE
    for number, frame in enumerate(iterate_frames(check.frames, header.message_count)):
        size = layout.FRAME_HEADER_SIZE + len(frame.payload) + len(frame.user_headers)
        offset = header.base_offset + number
        if offset >= from_offset:
            if limit is not None and limit <= 0:
                return
            limit = limit - 1 if limit is not None else None
            is_cut = len(frame.payload) > payload_size
            payload, encoding = preview(bytes(frame.payload[:payload_size]), is_cut=is_cut)
            yield MessageRow(
                position=None if header.flags else position,
                size=size,
                offset=offset,
                id=str(UUID(int=frame.message_id)),
                origin_timestamp=header.origin_timestamp + frame.timestamp_delta,
                timestamp=header.base_timestamp,
                payload_size=len(frame.payload),
                payload=payload,
                payload_encoding=encoding,
                payload_is_cut=is_cut,
                header_count=_header_count(frame),
                header_size=len(frame.user_headers),
                checksum="wrong, as sent by the client" if number in lying else "ok",
            )
        position += size


def preview(data: bytes, *, is_cut: bool) -> tuple[str, str]:
    """Bytes as text if they are readable, else as hex; and which of the two."""
    # The cut may be inside a character of up to four bytes.
    for missing in range(4 if is_cut else 1):
        try:
            text = data[: max(len(data) - missing, 0)].decode()
        except UnicodeDecodeError:
            continue
        if all(letter.isprintable() or letter in "\t\r\n" for letter in text) and bool(text) == bool(data):
            return text, "text"
        break
    return data.hex(), "hex"


def _header_count(frame: Frame) -> int | None:
    try:
        return sum(1 for _ in iterate_user_headers(frame.user_headers))
    except InvalidBatch:
        return None
