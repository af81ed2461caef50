"""Partitions whose directory is gone: they are still in the catalog, empty, and take nothing until they are deleted."""

from pathlib import Path

from courser.model.clock import Clock
from courser.records.stored_header import PartitionIdentity
from courser.storage.files import FileSystem
from courser.storage.ledger import Ledger, LedgerReading, LedgerState
from courser.storage.offset_table import OffsetTable
from courser.storage.partition_log import PartitionLog
from courser.storage.paths import LEDGER, OFFSETS
from courser.storage.recovery import RecoveredPartition
from courser.storage.settings import LogSettings


def lost_partition_log(
    file_system: FileSystem, directory: Path, identity: PartitionIdentity, *, settings: LogSettings, clock: Clock
) -> PartitionLog:
    """A log without a file, which refuses every write and says why."""
    nothing = LedgerReading(LedgerState(), 0, 0, (), exists=False)
    recovered = RecoveredPartition(
        ledger=Ledger(file_system, directory / LEDGER, identity, nothing),
        segments=[],
        next_offset=0,
        last_timestamp=0,
        offsets=OffsetTable(file_system, directory / OFFSETS, identity, 0),
        findings=[],
        failure="its directory is gone, and its messages with it: restore the directory, or delete the partition",
    )
    return PartitionLog(
        file_system=file_system,
        directory=directory,
        identity=identity,
        settings=settings,
        clock=clock,
        recovered=recovered,
    )
