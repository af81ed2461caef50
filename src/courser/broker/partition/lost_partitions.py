"""Partitions of the catalog that cannot be opened, because their directory is missing or is another partition's."""

from pathlib import Path

from courser.model.clock import Clock
from courser.records.stored_header import PartitionIdentity
from courser.storage.files import FileSystem
from courser.storage.identity_search import ForeignPartition
from courser.storage.ledger import Ledger, LedgerReading, LedgerState
from courser.storage.offset_table import OffsetTable
from courser.storage.partition_log import PartitionLog
from courser.storage.paths import LEDGER, OFFSETS
from courser.storage.recovery import RecoveredPartition
from courser.storage.recovery_cases import Oddity, RecoveryFinding
from courser.storage.settings import LogSettings


def lost_partition_log(
    file_system: FileSystem, directory: Path, identity: PartitionIdentity, *, settings: LogSettings, clock: Clock
) -> PartitionLog:
    """A log without files that refuses every write with a reason."""
    failure = "its directory and its messages are missing; restore the directory, or delete the partition"
    recovered = _nothing(file_system, directory, identity, failure)
    return PartitionLog(
        file_system=file_system,
        directory=directory,
        identity=identity,
        settings=settings,
        clock=clock,
        recovered=recovered,
    )


def offline_partition_log(
    file_system: FileSystem,
    directory: Path,
    found: ForeignPartition,
    *,
    home: Path | None,
    settings: LogSettings,
    clock: Clock,
) -> PartitionLog:
    """A log for a partition whose directory is another partition's.

    ``home`` is where that partition belongs, if the catalog knows it.
    """
    place = f"whose directory is {home}" if home is not None else "which is not a partition of this server"
    failure = (
        f"{found.what} {found.found}, {place}, instead of {found.expected}; nothing in it was changed; stop the server "
        "and restore the right directory (if two were swapped, swap them back), or delete the partition"
    )
    recovered = _nothing(file_system, directory, found.expected, failure, is_offline=True)
    recovered.findings.append(RecoveryFinding(Oddity.FOREIGN_DIRECTORY.value, directory, failure, is_damage=True))
    return PartitionLog(
        file_system=file_system,
        directory=directory,
        identity=found.expected,
        settings=settings,
        clock=clock,
        recovered=recovered,
    )


def _nothing(
    file_system: FileSystem, directory: Path, identity: PartitionIdentity, failure: str, *, is_offline: bool = False
) -> RecoveredPartition:
    """An empty log that refuses writes with this reason."""
    reading = LedgerReading(LedgerState(), 0, 0, (), exists=False)
    return RecoveredPartition(
        ledger=Ledger(file_system, directory / LEDGER, identity, reading),
        segments=[],
        next_offset=0,
        last_timestamp=0,
        offsets=OffsetTable(file_system, directory / OFFSETS, identity, 0),
        findings=[],
        failure=failure,
        is_incomplete=True,
        is_offline=is_offline,
    )
