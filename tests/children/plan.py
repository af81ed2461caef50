"""What a child shall do: handed over as JSON on its command line."""

import json
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path

from courser.model.durability import Durability, DurabilityPolicy
from courser.records.stored_header import PartitionIdentity
from courser.storage.paths import partition_directory
from courser.storage.settings import LogSettings


class Fault(Enum):
    """How a child is broken on purpose."""

    NONE = "none"
    NO_SYNC = "no sync"
    """No sync does anything: the power cuts must notice."""
    NO_DIRECTORY_SYNC = "no directory sync"
    IGNORED_SYNC_ERRORS = "ignored sync errors"
    BUFFERED_WRITES = "buffered writes"
    """Writes stay in the process until the next sync: the kills must notice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One life of a child. Without appenders it does what it is told on its standard input."""

    path: str
    run: int
    seed: int = 0
    level: str = Durability.SYNCED.value
    partition_count: int = 2
    appender_count: int = 6
    batch_count_max: int = 20
    """Messages in a batch."""
    payload_size_max: int = 600
    segment_size: int = 64 * 1024
    allocation_min: int = 32 * 1024
    message_count_max: int = 64
    """The bound of ``bounded``, and that in bytes and time."""
    size_max: int = 1 << 30
    interval: int = 1_000_000
    trims: bool = True
    stores: bool = True
    kept_message_count: int = 3_000
    """Messages that a trim leaves."""
    pool_size: int = 2
    """0: every call on the one thread that there is."""
    descriptor_limit: int = 0
    fault: str = Fault.NONE.value

    def to_json(self) -> str:
        """For the command line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Plan":
        """From the command line."""
        return cls(**json.loads(text))

    @property
    def settings(self) -> LogSettings:
        """For each partition."""
        policy = DurabilityPolicy(
            level=Durability(self.level),
            message_count_max=self.message_count_max,
            size_max=self.size_max,
            interval=self.interval,
        )
        return LogSettings(
            segment_size=self.segment_size,
            allocation_min=self.allocation_min,
            allocation_max=max(self.allocation_min, 256 * 1024),
            index_interval=1024,
            durability=policy,
            reservation_min=256,
            recovery_point_size=max(self.segment_size // 2, 1),
        )

    def directory_of(self, number: int) -> Path:
        """Where a partition lies."""
        return partition_directory(Path(self.path), 1, 1, number, 1)


def identity_of_partition(number: int) -> PartitionIdentity:
    """Whose batches these are."""
    return PartitionIdentity(bytes(range(16)), number, 1)
