"""What all cases share: a fresh directory, an event loop, rows of results, and their targets.

Machines are noisy. The engine is therefore compared with a bare loop in the same run. Rounds alternate between the two,
and the median of their ratios counts; the spread is shown.
"""

import asyncio
import math
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

import uvloop

from courser.server.assembly import SWITCH_INTERVAL

MIB = 1024 * 1024
GIB = 1024 * MIB

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How much each case does."""

    rounds: int
    message_count: int
    """Messages in a large batch."""
    append_size: int
    """Bytes appended in one round."""
    single_count: int
    """Single messages appended in one round."""
    sync_seconds: float
    """How long concurrent appenders run in one round."""
    sync_round_factor: int = 3
    """Factor for the number of their rounds: the duration of syncs varies more than anything else here."""
    read_size: int
    """Bytes of the log that is read."""
    read_pass_count: int
    """Passes over the whole log in one round."""
    lookup_count: int
    """Random reads, and lookups, in one round."""
    sealed_segment_size: int
    """Bytes of the segments that lookups, rebuilds and scans work on."""
    rolling_size: int
    """Bytes appended across rolls."""
    rolling_segment_size: int
    sustained_size: int
    """Bytes of one long run."""
    sustained_rounds: int
    partition_count: int
    """Partitions that are open at once."""
    growth_count: int
    """Topics in the growth case; of other things a fraction or a multiple of it."""
    claimed_size: int
    """Size in bytes of the large directory in the start case, according to its ledger."""
    search_count: int
    """Messages of the topic that is searched."""
    transcoding_seconds: float
    generator_count: int = 8
    """Load generators with a process of their own, at once."""
    spark_size: int
    """Bytes of the topic that Spark reads and writes."""
    spark_backlog_size: int
    """Size in bytes of the backlog of a stream."""
    spark_batch_count: int
    """Number of nearly empty micro-batches."""


FULL = Scale(
    rounds=5,
    message_count=1_000,
    append_size=512 * MIB,
    single_count=20_000,
    sync_seconds=0.5,
    read_size=256 * MIB,
    read_pass_count=4,
    lookup_count=20_000,
    sealed_segment_size=256 * MIB,
    rolling_size=1 * GIB,
    rolling_segment_size=16 * MIB,
    sustained_size=6 * GIB,
    sustained_rounds=2,
    partition_count=1_000,
    growth_count=100_000,
    claimed_size=100 * GIB,
    search_count=10_000_000,
    transcoding_seconds=15,
    spark_size=1 * GIB,
    spark_backlog_size=4 * GIB,
    spark_batch_count=30,
)
QUICK = Scale(
    rounds=3,
    message_count=1_000,
    append_size=256 * MIB,
    single_count=10_000,
    sync_seconds=0.3,
    read_size=128 * MIB,
    read_pass_count=2,
    lookup_count=10_000,
    sealed_segment_size=64 * MIB,
    rolling_size=512 * MIB,
    rolling_segment_size=16 * MIB,
    sustained_size=1 * GIB,
    sustained_rounds=3,
    partition_count=1_000,
    growth_count=3_000,
    claimed_size=100 * GIB,
    search_count=2_000_000,
    transcoding_seconds=5,
    spark_size=512 * MIB,
    spark_backlog_size=2 * GIB,
    spark_batch_count=12,
)
TINY = Scale(
    rounds=1,
    message_count=50,
    append_size=1 * MIB,
    single_count=50,
    sync_seconds=0.02,
    sync_round_factor=1,
    read_size=1 * MIB,
    read_pass_count=1,
    lookup_count=50,
    sealed_segment_size=256 * 1024,
    rolling_size=1 * MIB,
    rolling_segment_size=256 * 1024,
    sustained_size=2 * MIB,
    sustained_rounds=1,
    partition_count=5,
    growth_count=30,
    claimed_size=4 * GIB,
    search_count=20_000,
    transcoding_seconds=0.01,
    generator_count=2,
    spark_size=256 * 1024,
    spark_backlog_size=512 * 1024,
    spark_batch_count=3,
)


class Bound(Enum):
    """How a row is compared with its target."""

    RATIO_AT_LEAST = "ratio ≥"
    RATIO_AT_MOST = "ratio ≤"
    AT_LEAST = "≥"
    AT_MOST = "≤"
    EXCESS_AT_MOST = "bare +"
    """Engine minus bare."""


class Weight(Enum):
    """How important a target is."""

    MUST = "must"
    AIM = "aim"
    CLAIM = "claim"
    """A figure that is claimed for another system, shown for comparison."""


@dataclass(frozen=True, slots=True)
class Target:
    """The target of a row."""

    bound: Bound
    number: float
    weight: Weight = Weight.MUST

    def is_met(self, row: "Row") -> bool:
        match self.bound:
            case Bound.RATIO_AT_LEAST:
                return median(row.ratios) >= self.number
            case Bound.RATIO_AT_MOST:
                return median(row.ratios) <= self.number
            case Bound.AT_LEAST:
                return median(row.engine) >= self.number
            case Bound.AT_MOST:
                return median(row.engine) <= self.number
            case Bound.EXCESS_AT_MOST:
                return median(row.engine) - median(row.bare) <= self.number

    def verdict(self, row: "Row") -> str:
        is_met = self.is_met(row)
        match self.weight:
            case Weight.MUST:
                return "met" if is_met else "MISSED"
            case Weight.AIM:
                return "aim reached" if is_met else "BELOW THE AIM"
            case Weight.CLAIM:
                return "as claimed" if is_met else "not as claimed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One measurement: for each round, a figure of the engine and one of the bare loop."""

    measure: str
    unit: str
    engine: Sequence[float]
    bare: Sequence[float] = ()
    bare_name: str = ""
    """What the engine is compared with."""
    target: Target | None = None
    note: str = ""

    @property
    def ratios(self) -> list[float]:
        """The ratio of engine to bare loop in each round; empty without a bare loop."""
        pairs = zip(self.engine, self.bare, strict=True) if self.bare else ()
        return [engine / bare if bare else math.inf for engine, bare in pairs]

    @property
    def verdict(self) -> str:
        return self.target.verdict(self) if self.target is not None else ""


class Bench:
    """Where the cases run, and their scale."""

    def __init__(self, directory: Path, scale: Scale) -> None:
        self.directory = directory
        self.scale = scale

    def fresh_directory(self, size: int = 0) -> AbstractContextManager[Path]:
        """An empty directory that is deleted afterwards; see ``fresh_directory``."""
        return fresh_directory(self.directory, size)

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run on a new event loop of the kind that a server uses."""
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(work)

    @property
    def memory_directory(self) -> Path:
        """A directory in memory, for cases that do not measure the disk; the usual one if there is none."""
        memory = Path("/dev/shm")
        return memory if memory.is_dir() else self.directory

    @property
    def free_size(self) -> int:
        return shutil.disk_usage(self.directory).free


def cpu_seconds(process_ids: Iterable[int]) -> float:
    """CPU time of all current threads of processes. The usual counters only have the resolution of ticks."""
    paths = [path for number in process_ids for path in Path(f"/proc/{number}/task").glob("*/schedstat")]
    return sum(int(path.read_text().split()[0]) for path in paths) / 1e9


def default_directory() -> Path:
    """A directory on a disk. The usual temporary directory is often in memory."""
    lasting = Path("/var/tmp")
    return lasting if lasting.is_dir() else Path(tempfile.gettempdir())


@contextmanager
def fresh_directory(parent: Path, size: int = 0) -> Iterator[Path]:
    """An empty directory that is deleted afterwards. Dirty pages of earlier cases are written back first.

    ``size`` is the number of bytes that will be written; that much memory is touched first.
    """
    os.sync()
    path = Path(tempfile.mkdtemp(prefix="courser-bench-", dir=parent))
    try:
        touch_memory(path / "touched", size)
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def touch_memory(path: Path, size: int) -> None:
    """Fill the page cache and release it, without writing to the disk.

    A virtual machine gets its memory pages from the host on first use, and often returns them after a second or two.
    That costs ten times as much as the write itself, and would distort the first measurement.
    """
    block = memoryview(bytes(4 * MIB))
    with path.open("xb", buffering=0) as file:
        for position in range(0, size, len(block)):
            file.write(block[: size - position])
    path.unlink()


@contextmanager
def switching_as_a_server() -> Iterator[None]:
    """Threads take turns as often as in a server, until the end of the block."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_INTERVAL)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


@dataclass(frozen=True, slots=True)
class Case:
    """One benchmark."""

    name: str
    text: str
    run: Callable[[Bench], Iterator[Row]]


def percentile(values: Sequence[float], share: float) -> float:
    """The value that ``share`` of all values do not exceed."""
    ordered = sorted(values)
    return ordered[min(math.ceil(share * len(ordered)), len(ordered)) - 1]
