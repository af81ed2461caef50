"""The cost of a start must not grow with sealed data: a directory of 1 GB, compared with one of 100 GB.

Sealed segments are sparse files with the size that the ledger records; the open segment is real. After a kill, a start
reads the open segment from the recovery point on, which is the same number of bytes in both directories.
"""

import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.engine import place
from benchmarks.harness import GIB, MIB, Bench, Bound, Row, Target
from benchmarks.samples import Shape, wire_batches
from courser.records.batch import parse_batch
from courser.storage import upkeep
from courser.storage.data_directory import DataDirectory
from courser.storage.jobs import perform
from courser.storage.ledger import Ledger, Sealed, SegmentFacts, read_ledger
from courser.storage.partition_log import PartitionLog
from courser.storage.paths import LEDGER, log_path
from courser.storage.settings import LogSettings

_MESSAGES_PER_SEGMENT = 1_000_000
_TIME = 1_700_000_000_000_000
_RATIO_MAX = 1.5
_UNSYNCED_SIZE = 64 * MIB


def claim_segments(path: Path, count: int, segment_size: int) -> None:
    """Create a partition with ``count`` sealed segments in its ledger, and sparse files of matching size."""
    data = DataDirectory.open(path)
    directory, identity = place(path)
    files = data.file_system
    PartitionLog.create(files, directory, identity, below=path)
    ledger = Ledger(files, directory / LEDGER, identity, read_ledger(files, directory / LEDGER, identity))
    sealed = []
    for number in range(count):
        base = number * _MESSAGES_PER_SEGMENT
        facts = SegmentFacts(
            base, base + _MESSAGES_PER_SEGMENT, segment_size, _TIME, _TIME, _MESSAGES_PER_SEGMENT, 1_000
        )
        sealed.append(Sealed(facts))
        with log_path(directory, base).open("xb") as file:
            file.truncate(segment_size)
    ledger.file.append(ledger.draft(*sealed, last_timestamp=_TIME), sync=True)
    data.close(is_clean=True)


def start_milliseconds(path: Path, unsynced_size: int, *, after_kill: bool) -> float:
    """Send for a while, stop or kill the engine, and measure the next start."""
    data, log = _start(path)
    (wire,) = wire_batches(Shape.SAME, 1_000, 1)
    batch = parse_batch(wire)
    for _ in range(max(unsynced_size // len(wire), 1)):
        if log.needs_reservation(batch.count) and (job := upkeep.plan_reservation(log, batch.count)) is not None:
            perform(job)
        log.append(batch)
    # After a kill, everything is written, but nothing is synced or closed.
    log.release_files() if after_kill else upkeep.close(log)
    data.close(is_clean=not after_kill)
    begin = time.perf_counter()
    data, log = _start(path)
    spent = time.perf_counter() - begin
    assert not [finding for finding in log.findings if finding.is_damage], log.findings
    upkeep.close(log)
    data.close(is_clean=True)
    return spent * 1e3


def _start(path: Path) -> tuple[DataDirectory, PartitionLog]:
    data = DataDirectory.open(path)
    log = data.open_partition(*place(path), LogSettings())
    data.begin()
    return data, log


def _measure(bench: Bench, small_count: int, large_count: int, segment_size: int) -> dict[bool, list[list[float]]]:
    """After a kill or not: milliseconds with few and with many segments."""
    found: dict[bool, list[list[float]]] = {False: [[], []], True: [[], []]}
    unsynced_size = min(_UNSYNCED_SIZE, bench.scale.append_size)
    with bench.fresh_directory() as path:
        paths = path / "small", path / "large"
        for directory, count in zip(paths, (small_count, large_count), strict=True):
            claim_segments(directory, count, segment_size)
        for _ in range(bench.scale.rounds):
            for after_kill, columns in found.items():
                for directory, column in zip(paths, columns, strict=True):
                    column.append(start_milliseconds(directory, unsynced_size, after_kill=after_kill))
    return found


def run(bench: Bench) -> Iterator[Row]:
    claimed = bench.scale.claimed_size
    for segment_size, target in ((GIB, Target(Bound.RATIO_AT_MOST, _RATIO_MAX)), (16 * MIB, None)):
        small_count, large_count = max(GIB // segment_size, 1), claimed // segment_size
        found = _measure(bench, small_count, large_count, segment_size)
        for after_kill, (small, large) in found.items():
            stop = "a kill" if after_kill else "a clean stop"
            yield Row(
                measure=f"start after {stop}, {large_count:,} segments of {segment_size // MIB:,} MiB",
                unit="ms",
                engine=large,
                bare=small,
                bare_name=f"{small_count} such segments",
                target=target,
                note=f"{claimed // GIB} GiB beside 1 GiB",
            )
