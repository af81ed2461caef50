"""What recovery finds in a partition's directory: its files, and the good and bad batches of unsealed segments."""

from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from courser.errors import StartRefused
from courser.records.layout import BATCH_HEADER_SIZE, STORED_MESSAGE_SIZE_MIN
from courser.records.stored_header import BadBatch, PartitionIdentity, read_header
from courser.storage.durable_files import sync_file
from courser.storage.files import EntryKind, File, FileSystem, read_exactly
from courser.storage.ledger import SegmentFacts
from courser.storage.paths import (
    INDEX_SUFFIX,
    LEDGER,
    LOG_SUFFIX,
    OFFSETS,
    QUARANTINE,
    TEMPORARY_SUFFIX,
    base_offset_of,
)
from courser.storage.quarantine import end_of_data
from courser.storage.recovery_cases import StopKind
from courser.storage.scan import BadRange, GoodBatch, ZeroTail, facts_of_file, scan
from courser.storage.segment import Segment
from courser.storage.segment_index import SegmentIndex
from courser.storage.settings import DEFAULT_LIMITS, LogSettings


@dataclass(slots=True)
class PartitionListing:
    """The files of the directory."""

    log_sizes: dict[int, int] = field(default_factory=dict)
    index_bases: set[int] = field(default_factory=set)
    leftovers: list[Path] = field(default_factory=list)
    strays: list[Path] = field(default_factory=list)

    def offset_bound(self, first_base_offset: int) -> int:
        """An upper bound of the offsets in segments that start at ``first_base_offset`` or later; 0 if none does."""
        sizes = self.log_sizes.items()
        return max((offset_bound(size, base) for base, size in sizes if base >= first_base_offset), default=0)


def list_partition(file_system: FileSystem, directory: Path) -> PartitionListing:
    """Sort the files by their names. Nothing is changed.

    Raises:
        StartRefused: something that is not a file has the name of one.
    """
    listing = PartitionListing()
    for entry in file_system.list_directory(directory):
        path = directory / entry.name
        log_base = base_offset_of(entry.name, LOG_SUFFIX)
        index_base = base_offset_of(entry.name, INDEX_SUFFIX)
        is_ours = log_base is not None or index_base is not None or entry.name in (LEDGER, OFFSETS)
        if is_ours and entry.kind is not EntryKind.FILE:
            what = "a directory" if entry.kind is EntryKind.DIRECTORY else "not a regular file"
            raise StartRefused(path, f"it is {what}, but the server needs a file with this name", "move it elsewhere")
        if log_base is not None:
            listing.log_sizes[log_base] = entry.size
        elif index_base is not None:
            listing.index_bases.add(index_base)
        elif entry.name.endswith(TEMPORARY_SUFFIX) and entry.kind is EntryKind.FILE:
            listing.leftovers.append(path)
        elif not is_ours and entry.name != QUARANTINE:
            listing.strays.append(path)
    return listing


@dataclass(frozen=True, slots=True)
class SegmentEnd:
    """What decides how to repair the end of a segment, apart from its contents."""

    stop: StopKind
    next_base_offset: int | None
    """Where the next segment starts, so that the missing offsets are known. None if there is none, and after a power
    cut, when later segments may have to go too."""
    is_known_end: bool
    """Whether nothing after the good part can have been confirmed."""
    doubtful_end: int
    """If not: an upper bound of the offsets that are removed."""


@dataclass(frozen=True, slots=True)
class ScannedSegment:
    """What the scan of an open segment found."""

    segment: Segment
    """The good part. ``damages`` are the bad ranges with good batches after them."""
    file: File
    file_size: int
    bad_end: BadRange | None
    """The bad range at which the good part ends."""
    has_zeros: bool
    """Whether nothing but zeros follows the good part."""
    shown_end_offset: int
    """The end of the messages in the page cache, whether or not they are on disk. They may be confirmed."""
    is_torn: bool
    """Whether ``bad_end`` is the first part of a batch with nothing after it, as a kill during a write leaves it."""
    doubtful_end_offset: int
    """No message from ``bad_end`` on had this offset or a larger one."""


def scan_open_segment(
    file_system: FileSystem,
    file: File,
    identity: PartitionIdentity,
    *,
    base_offset: int,
    facts: SegmentFacts | None,
    settings: LogSettings,
    stop_at_first_bad: bool,
    from_disk: bool,
    look_first: bool,
) -> ScannedSegment:
    """Read a segment from the recovery point on, which ``facts`` describes; without it, from the start.

    With ``from_disk``, the page cache is dropped first: after a failed sync it differs from the disk. With
    ``look_first``, the page cache is scanned before that, to learn which offsets may have been confirmed.
    """
    shown_end_offset = base_offset
    limits = settings.limits
    window_size = limits.scan_window_size
    if look_first:
        start, offset = (0, base_offset) if facts is None else (facts.size, facts.end_offset)
        for found in scan(file, identity, start=start, end=file.size(), offset=offset, window_size=window_size):
            if isinstance(found, GoodBatch):
                shown_end_offset = found.header.end_offset
    if from_disk:
        sync_file(file)
        file.discard_cache()
    file_size = file.size()
    if facts is None:
        index = SegmentIndex(identity, base_offset, settings.index_interval, limits.index_block_size)
        segment = Segment(base_offset, index)
    else:
        segment = Segment.from_facts(facts, identity, settings)
        segment.is_index_ready = True
        _restore_index(file_system, file, segment, identity, window_size)
    bad_end: BadRange | None = None
    has_zeros = False
    for found in scan(
        file, identity, start=segment.size, end=file_size, offset=segment.end_offset, window_size=window_size
    ):
        match found:
            case GoodBatch():
                _add(segment, found)
            case ZeroTail():
                has_zeros = True
            case BadRange():
                if found.end_offset is None or stop_at_first_bad:
                    bad_end = found
                    break
                segment.damages = (*segment.damages, found.damage(segment.base_offset, segment.end_offset))
    segment.synced_size = segment.writeback_size = segment.size
    segment.allocated_size = segment.size if bad_end is not None or has_zeros else file_size
    is_torn, doubtful_end = False, segment.end_offset
    if bad_end is not None:
        is_torn, doubtful_end = judge_end(file, identity, segment.size, file_size, segment.end_offset, limits.copy_size)
    return ScannedSegment(segment, file, file_size, bad_end, has_zeros, shown_end_offset, is_torn, doubtful_end)


def condensed_facts(
    file_system: FileSystem, path: Path, identity: PartitionIdentity, facts: SegmentFacts
) -> SegmentFacts | None:
    """The facts about a file that is shorter than its seal says, if it is the whole segment, condensed.

    None if a part of it is missing. A condensed segment still has the last message, so a file that was truncated cannot
    be mistaken for one.
    """
    file = file_system.open(path)
    try:
        found = facts_of_file(file, identity, facts.base_offset)
    finally:
        file.close()
    return found if found is not None and found.end_offset == facts.end_offset else None


def offset_bound(size: int, offset: int) -> int:
    """An upper bound of the offsets of messages that start at ``offset`` and take ``size`` bytes."""
    return offset - -size // STORED_MESSAGE_SIZE_MIN


def judge_end(
    file: File,
    identity: PartitionIdentity,
    start: int,
    end: int,
    offset: int,
    step_size: int = DEFAULT_LIMITS.copy_size,
) -> tuple[bool, int]:
    """Whether the bytes are the first part of one batch and nothing else, and an upper bound of their offsets.

    A kill during a write leaves the first part of a batch. After it, the file ends or contains preallocated zeros. If
    all bytes of the batch exist, the write was completed and the batch may be confirmed.
    """
    size = end_of_data(file, start, end, step_size) - start
    head = read_exactly(file, start, BATCH_HEADER_SIZE) if start + BATCH_HEADER_SIZE <= end else None
    if head is None:
        return True, offset_bound(size, offset)
    try:
        header = read_header(memoryview(head), 0, identity)
    except BadBatch:
        return size < BATCH_HEADER_SIZE, offset_bound(size, offset)
    if header.previous_end_offset != offset:
        return False, offset_bound(size, offset)
    return size < header.stored_length, offset_bound(max(size - header.stored_length, 0), header.end_offset)


def _add(segment: Segment, batch: GoodBatch) -> None:
    header, position = batch.header, batch.position
    entries = segment.index.entries_of(header.base_offset, position, batch.frames)
    segment.note_batch(
        header.base_offset, position, header.stored_length, header.base_timestamp, header.message_count, entries
    )


def _restore_index(
    file_system: FileSystem, file: File, segment: Segment, identity: PartitionIdentity, window_size: int
) -> None:
    """Load the index up to the recovery point, and add missing entries from the log."""
    resume = 0
    try:
        with closing(file_system.open(file.path.with_suffix(INDEX_SUFFIX), writable=True)) as index_file:
            resume = segment.index.restore(index_file, segment.size)
            if resume < segment.size and index_file.size() > segment.index.flushed_size:
                # Blocks after the recovery point may describe batches that a power cut removed. New batches would take
                # their place, and the blocks would be wrong without anyone noticing. So they must go.
                index_file.truncate(segment.index.flushed_size)
                index_file.sync()
    except OSError:
        # Without a readable index, the log is scanned instead.
        pass
    head = read_exactly(file, resume, BATCH_HEADER_SIZE) if resume < segment.size else None
    if head is None:
        return
    try:
        offset = read_header(memoryview(head), 0, identity).base_offset
    except BadBatch:
        resume, offset = 0, segment.base_offset
        old = segment.index
        segment.index = SegmentIndex(identity, segment.base_offset, old.interval, old.block_size)
    for found in scan(file, identity, start=resume, end=segment.size, offset=offset, window_size=window_size):
        if isinstance(found, GoodBatch):
            header = found.header
            segment.index.add_batch(header.base_offset, found.position, header.base_timestamp, found.frames)
