"""The settings of a partition's storage. Each has a unit and a reason."""

from dataclasses import dataclass, field

from courser.model.durability import DurabilityPolicy
from courser.records.encryption import NO_KEYS, KeyRing
from courser.records.layout import STORED_SIZE_MAX
from courser.records.stored_body import PLAIN, Encoding
from courser.storage.engine_limits import DEFAULT_LIMITS, EngineLimits
from courser.storage.message_window import Deduplication
from courser.storage.segment_index import IndexCache

_KIB = 1024
_MIB = 1024 * _KIB

SEGMENT_SIZE_LIMIT = 2**32 - 1 - STORED_SIZE_MAX
"""Bytes: an index entry holds a position in 32 bits, and the last batch may pass the limit of its segment."""


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
    open_file_count_max: int = 8
    """Sealed segments that a partition keeps open for reading."""

    limits: EngineLimits = DEFAULT_LIMITS
    """Limits of the engine that no operator sets."""

    def __post_init__(self) -> None:
        if not 1 <= self.segment_size <= SEGMENT_SIZE_LIMIT:
            raise ValueError(f"the segment size must be 1 to {SEGMENT_SIZE_LIMIT} bytes, not {self.segment_size}")
        if self.index_interval < 1:
            raise ValueError(f"the index interval must be at least 1 byte, not {self.index_interval}")
