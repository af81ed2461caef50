"""How the partitions on one file system share syncs."""

from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path

from courser.broker.partition.awaited_syncs import AwaitedSyncs
from courser.broker.partition.shared_syncs import SharedSyncs
from courser.broker.partition.whole_syncs import WholeSyncs
from courser.model.clock import Clock
from courser.storage.files import WholeSync
from courser.storage.limits import EngineLimits


@dataclass(frozen=True, slots=True)
class SyncWays:
    """Used by partitions whose directory it covers."""

    whole: WholeSyncs
    shared: SharedSyncs
    """For syncs that nobody waits for."""
    awaited: AwaitedSyncs
    """For syncs that clients wait for."""

    @classmethod
    def of(cls, whole: WholeSync, pool: Executor, clock: Clock, limits: EngineLimits) -> "SyncWays":
        """Both ways use the same descriptor: a failure is reported to it only once, and must count for both."""
        syncs = WholeSyncs(whole)
        return cls(
            syncs,
            SharedSyncs(syncs, limits.whole_sync_count),
            AwaitedSyncs(syncs, pool, clock, limits.awaited_sync_count),
        )

    def covers(self, directory: Path) -> bool:
        """Whether a partition's directory is on the file system."""
        return self.whole.covers(directory)

    def close(self) -> None:
        """No sync is left."""
        self.whole.close()
