"""The engine as a server runs it: a data directory, partitions on the running event loop, threads for the disk."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import cycle, islice
from pathlib import Path

from courser.broker.partition.disk_pool import DiskPool
from courser.broker.partition.partition import Partition
from courser.model.durability import Durability, DurabilityPolicy
from courser.records.batch import parse_batch
from courser.records.stored_header import PartitionIdentity
from courser.storage.data_directory import DataDirectory
from courser.storage.partition_log import PartitionLog
from courser.storage.paths import partition_directory
from courser.storage.segment import SegmentState
from courser.storage.settings import LogSettings

POOL_SIZE = 16
SYNCED = DurabilityPolicy(level=Durability.SYNCED)


def place(data_directory: Path, number: int = 0) -> tuple[Path, PartitionIdentity]:
    """Directory and identity of a partition."""
    return partition_directory(data_directory, 1, 1, number, 1), PartitionIdentity(bytes(range(16)), number, 1)


class Engine:
    """The partitions of one data directory. Use it from one event loop, and call ``close`` at the end."""

    def __init__(self, path: Path) -> None:
        self.data = DataDirectory.open(path)
        self.pool = DiskPool(POOL_SIZE)
        self.partitions: list[Partition] = []

    def create(self, settings: LogSettings, number: int = 0) -> Partition:
        path, identity = place(self.data.path, number)
        return self._add(self.data.create_partition(path, identity, settings))

    def open(self, settings: LogSettings, number: int = 0) -> Partition:
        path, identity = place(self.data.path, number)
        return self._add(self.data.open_partition(path, identity, settings))

    def _add(self, log: PartitionLog) -> Partition:
        partition = Partition(log, self.pool, self.data.clock)
        self.partitions.append(partition)
        return partition

    async def close(self) -> None:
        """A clean stop."""
        is_clean = all([await partition.close() for partition in self.partitions])
        self.pool.shutdown()
        self.data.close(is_clean=is_clean)


@asynccontextmanager
async def new_engine(path: Path) -> AsyncIterator[Engine]:
    """An engine in an empty directory that is stopped cleanly at the end."""
    engine = Engine(path)
    engine.data.begin()
    yield engine
    await engine.close()


async def fill(partition: Partition, wires: Sequence[bytes], size: int) -> int:
    """Append about ``size`` bytes, and wait until all full segments are sealed. Returns the number of batches."""
    batches = [parse_batch(wire) for wire in wires]
    count = max(size // (sum(map(len, wires)) // len(wires)), 1)
    for batch in islice(cycle(batches), count):
        await partition.append(batch)
        await asyncio.sleep(0)
    await partition.sync()
    # The engine does not report when a segment is sealed.
    while any(segment.state is SegmentState.CLOSING for segment in partition.log.segments):  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    return count
