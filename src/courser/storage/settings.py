"""The settings of a partition's storage, and the limits of the engine. Each has a unit and a reason."""

from dataclasses import dataclass, field

from courser.model.durability import DurabilityPolicy
from courser.records.encryption import NO_KEYS, KeyRing
from courser.records.layout import STORED_SIZE_MAX
from courser.records.stored_body import PLAIN, Encoding
from courser.storage.index_file import BLOCK_SIZE
from courser.storage.message_window import Deduplication
from courser.storage.producer_table import ProducerLimits
from courser.storage.segment_index import IndexCache

_KIB = 1024
_MIB = 1024 * _KIB

SEGMENT_SIZE_LIMIT = 2**32 - 1 - STORED_SIZE_MAX
"""Bytes: an index entry holds a position in 32 bits, and the last batch may pass the limit of its segment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLimits:
    """Sizes and counts at which the engine does something else. No operator sets them.

    The defaults are those of production. Tests use smaller ones: a few dozen operations then reach code that takes
    gigabytes in production.
    """

    index_block_size: int = BLOCK_SIZE
    """Bytes of a block in an index file. Part of the on-disk format: only a test may choose another size, and only for
    directories that no other program reads."""
    index_flush_block_count: int = 96
    """Full index blocks that are written at a time: 384 KiB, which is 63 MiB of log at the default interval."""
    ledger_garbage_count_max: int = 4096
    """Obsolete records (1 MiB) in a ledger before it is rewritten."""
    consumer_count_max: int = 10_000
    """Consumers and groups whose offsets a partition stores: bounds memory (about 2 MiB) and the size of the file."""
    offsets_rewrite_size: int = 256 * _KIB
    """Bytes of obsolete stored offsets before their file is rewritten: 8,000 stores."""
    offsets_mark_size: int = 16 * _KIB
    """Bytes of stored offsets that are synced before the ledger records it: 512 stores."""
    large_batch_size: int = 64 * _KIB
    """Bytes from which a batch is worth remembering as verified: below, hashing it again is cheaper than an index
    lookup. Also the size from which a read returns a batch whole rather than cut it."""
    verified_count_max: int = 256
    """Large batches that a partition remembers as verified: bounds memory."""
    cursor_count_max: int = 64
    """Ends of recent reads that a partition remembers, so that a sequential reader needs no index: bounds memory."""
    inline_coding_size: int = 4 * _KIB
    """Bytes of a batch up to which it is encoded and decoded on the caller's thread: handing it to another one would
    take longer."""
    decoded_size_max: int = 4 * _MIB
    """Bytes of a decoded batch that a partition keeps for the next read of a part of it: bounds memory."""
    inline_size: int = 2 * _MIB
    """Bytes that are read or written on the owner's thread: takes about 1 ms, and up to 10 ms if the kernel has to find
    memory for them. Nobody else is served meanwhile, so more than this is left to another thread."""
    read_buffer_size: int = 64 * _KIB
    """Bytes of a new read buffer. It grows with the reads."""
    scan_window_size: int = 4 * _MIB
    """Bytes that a scan reads at once: large enough to make the calls cheap, small enough for the processor's cache."""
    condensed_key_count_max: int = 256 * _KIB
    """Keys in memory while segments are condensed: about 40 MiB. If there are more, they are condensed in several
    passes."""
    header_piece_size: int = 4 * _MIB
    """Bytes of the log, about, whose headers are read together where the newest are wanted."""
    producer_header_count: int = 64 * 1024
    """Headers that are read to learn the idempotent producers of a partition: takes a quarter of a second."""
    producer_log_size: int = 4096 * _MIB
    """Bytes of the log in which they are. If batches are large, each header is a read of its own, of which a cold disk
    does thousands in a second."""
    copy_size: int = 1 * _MIB
    """Bytes read at a time when damaged data is copied to quarantine and the zeros behind it are left out."""
    staged_allocation_min: int = 1 * _MIB
    """Bytes of a staged part before space is allocated ahead: for a small part it costs more than it saves."""
    staged_allocation_max: int = 64 * _MIB
    """Bytes that are allocated at a time. A part allocates as much as it holds, up to this limit, so that many parts do
    not fill the disk."""
    staged_writeback_size: int = 8 * _MIB
    """Bytes of a staged part after which the kernel is asked to start writing: little is left for the final sync."""


DEFAULT_LIMITS = EngineLimits()
"""What production uses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """How one partition stores its messages."""

    segment_size: int = 1024 * _MIB
    """Bytes after which a new segment is started: `system.segment.size`."""
    segment_age_max: int = 7 * 24 * 3600 * 1_000_000
    """Microseconds after which a segment that has messages is closed, so that a slow topic's can expire too."""
    index_interval: int = 4 * _KIB
    """Bytes between index entries: `system.segment.index_interval`."""
    index_cache: IndexCache = IndexCache.OPEN_SEGMENT
    durability: DurabilityPolicy = field(default_factory=DurabilityPolicy)
    allocation_min: int = 1 * _MIB
    """Bytes of the first allocation ahead: a thousand small partitions must not fill a disk."""
    allocation_max: int = 256 * _MIB
    """Bytes of the largest one; each is twice what the segment holds."""
    writeback_size: int = 32 * _MIB
    """Bytes after which the kernel is asked to write back, so that it never has to stall a send to catch up."""
    recovery_point_size: int = 128 * _MIB
    """Bytes after which a recovery point is set at every level: the most that a start after a kill has to read."""
    reservation_min: int = 1024
    """Offsets reserved at first: the largest gap that a power cut leaves in a small partition."""
    reservation_max: int = 1024 * 1024
    """Offsets reserved at a time by a busy partition: one sync of the ledger a second at a million messages."""
    encoding: Encoding = PLAIN
    """How new batches are stored."""
    keys: KeyRing = NO_KEYS
    """The keys for reading batches that are encrypted."""
    deduplication: Deduplication | None = None
    """How long ids are remembered, so that a message that is sent again is not stored again. None: not at all."""
    producers: ProducerLimits = field(default_factory=ProducerLimits)
    """What is remembered of idempotent producers."""
    open_file_count_max: int = 8
    """Sealed segments that a partition keeps open for reading."""

    limits: EngineLimits = DEFAULT_LIMITS
    """Limits of the engine that no operator sets."""

    def __post_init__(self) -> None:
        if not 1 <= self.segment_size <= SEGMENT_SIZE_LIMIT:
            raise ValueError(f"the segment size must be 1 to {SEGMENT_SIZE_LIMIT} bytes, not {self.segment_size}")
        if self.index_interval < 1:
            raise ValueError(f"the index interval must be at least 1 byte, not {self.index_interval}")
