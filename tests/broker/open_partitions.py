"""Partitions on a disk whose syncs a test holds up."""

import asyncio
import random
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Executor
from contextlib import asynccontextmanager
from pathlib import Path

from courser.broker.partition.partition import Partition
from courser.model.durability import Durability, DurabilityPolicy
from courser.model.identifiers import ConsumerKind
from courser.records.batch import NewMessage, build_batch
from courser.records.stored_header import PartitionIdentity
from courser.storage.offset_table import ConsumerKey
from courser.storage.partition_log import PartitionLog
from courser.storage.recovery_cases import StopKind
from courser.storage.settings import LogSettings
from tests.fakes.clocks import ManualClock
from tests.fakes.files import FakeFile, FakeFileSystem
from tests.records.reference import read_wire

IDENTITY = PartitionIdentity(bytes(range(16)), 0, 1)
MINUTE = 60_000_000
"""Microseconds: no timer fires by itself in a test."""
DIRECTORY = Path("/data/partition")
ONE = ConsumerKey(ConsumerKind.CONSUMER, b"\x01\x00\x00\x00")
ALL = 2**40


class GatedFileSystem(FakeFileSystem):
    """A disk whose syncs of logs wait until a gate is open, once the gate is closed."""

    def __init__(self) -> None:
        super().__init__(random.Random(1))
        self.gate = threading.Event()
        self.gate.set()
        self.waiting = threading.Event()

    def open(self, path: Path, *, writable: bool = False, create: bool = False) -> FakeFile:
        file = super().open(path, writable=writable, create=create)
        if path.suffix == ".log":
            self._put_gate_before(file)
        return file

    def _put_gate_before(self, file: FakeFile) -> None:
        sync = file.sync

        def gated_sync() -> None:
            if not self.gate.is_set():
                self.waiting.set()
            assert self.gate.wait(30)
            sync()

        file.sync = gated_sync  # type: ignore[method-assign]


def settings(level: Durability, **changes: int) -> LogSettings:
    return LogSettings(durability=DurabilityPolicy(level=level, **changes))


@asynccontextmanager
async def opened(
    disk: FakeFileSystem,
    pool: Executor,
    wanted: LogSettings,
    clock: ManualClock | None = None,
    directory: Path = DIRECTORY,
) -> AsyncIterator[Partition]:
    clock = clock or ManualClock()
    PartitionLog.create(disk, directory, IDENTITY, below=DIRECTORY.parent)
    log = PartitionLog.open(disk, directory, IDENTITY, settings=wanted, clock=clock, stop=StopKind.CLEAN)
    partition = Partition(log, pool, clock)
    yield partition
    await partition.close()


def let_timer_fire(partition: Partition) -> None:
    """As if the time of the test's clock had passed."""
    assert partition.commits._timer is not None
    partition.commits._timer.cancel()
    partition.commits._on_timer()


async def send(partition: Partition, text: str) -> int:
    return (await partition.append(build_batch([NewMessage(text.encode())]))).base_offset


async def texts(partition: Partition) -> list[str]:
    result = await partition.reader.read(0, count=ALL, size_max=ALL)
    return [message.payload.decode() for message in read_wire(b"".join(result.pieces))]


def has_unsynced_offsets(partition: Partition) -> bool:
    return partition.log.offsets.has_unsynced


async def until(condition: Callable[[], bool]) -> None:
    """Let the loop run until something has happened."""
    async with asyncio.timeout(30):
        # The condition lies in another thread or in the engine: there is no event to wait for.
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0)
