"""How far a producer got in a log: asked by a start that finishes what the last session began."""

from courser.records.layout import BATCH_HEADER_SIZE
from courser.records.stored_header import BadBatch, StoredHeader, read_header
from courser.storage.durable_files import storage_failure
from courser.storage.files import File, read_exactly
from courser.storage.partition_log import PartitionLog
from courser.storage.scan import find_batch
from courser.storage.segment import Segment


def last_sequence(log: PartitionLog, producer: bytes, *, first_offset: int) -> int | None:
    """The highest sequence of a producer's batches at ``first_offset`` or behind; None if there are none.

    Headers only, from the batch that holds ``first_offset`` on. What is damaged is passed over: a producer's batches
    follow one another in order, so a later one tells of those before it. Blocks.

    Raises:
        StorageFailure: a file cannot be read.
    """
    found: int | None = None
    for segment in log.segments:
        if segment.end_offset <= first_offset:
            continue
        file = log.files.file_of(segment)
        try:
            position = log.position_of(segment, max(first_offset, segment.base_offset))
            while (header := _header_at(log, segment, file, position)) is not None:
                position, fields = header
                if fields.producer == producer:
                    found = fields.sequence
                position += fields.stored_length
        except OSError as error:
            raise storage_failure("reading", file.path, error) from error
    return found


def _header_at(log: PartitionLog, segment: Segment, file: File, position: int) -> tuple[int, StoredHeader] | None:
    """The first good header at ``position`` or behind."""
    if position + BATCH_HEADER_SIZE > segment.size:
        return None
    data = read_exactly(file, position, BATCH_HEADER_SIZE)
    if data is None:
        return None
    try:
        return position, read_header(memoryview(data), 0, log.identity)
    except BadBatch:
        return find_batch(
            file,
            log.identity,
            start=position,
            end=segment.size,
            offset=segment.base_offset,
            window_size=log.settings.limits.scan_window_size,
        )
