"""Sends across many rolls, compared with the same sends to one large segment: a roll must not stall a send.

The limit is 10 ms. At ``synced``, a send waits for the disk anyway, and a roll may add 10 ms. The sends run at half the
rate that the disk can sustain: at full speed, the disk is the limit with or without rolls (see ``sustained``). The
first sends to a new partition wait for its first offset reservations, and are not counted.
"""

import asyncio
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import cycle, islice
from pathlib import Path

from benchmarks.engine import SYNCED, new_engine
from benchmarks.harness import GIB, MIB, Bench, Bound, Row, Target, percentile
from benchmarks.pacing import Pace, disk_speed
from benchmarks.samples import Shape, wire_batches
from courser.model.durability import DurabilityPolicy
from courser.records.batch import parse_batch
from courser.storage.segment import SegmentState
from courser.storage.settings import LogSettings

BOUND = 10.0
"""Milliseconds."""
_WARM_UP_COUNT = 32
"""Number of sends that are not counted."""


@dataclass(frozen=True, slots=True)
class Sends:
    """How long sends took, in milliseconds."""

    all: Sequence[float]
    rolling: Sequence[float]
    """Sends that started a new segment."""
    closing_count_max: int
    """Maximum number of segments that waited to be sealed."""


async def sends(path: Path, wires: Sequence[bytes], size: int, settings: LogSettings, rate: float) -> Sends:
    """Append ``size`` bytes, one batch after another, and measure each send."""
    every, rolling = [], []
    closing_max = 0
    async with new_engine(path) as engine:
        partition = engine.create(settings)
        log = partition.log
        for wire in islice(cycle(wires), _WARM_UP_COUNT):
            await partition.append(parse_batch(wire))
            await asyncio.sleep(0)
        pace = Pace(rate)
        for wire in islice(cycle(wires), max(size // len(wires[0]), 1)):
            created = log.writes.segment_created_count
            start = time.perf_counter_ns()
            await partition.append(parse_batch(wire))
            spent = (time.perf_counter_ns() - start) / 1e6
            every.append(spent)
            if log.writes.segment_created_count > created:
                rolling.append(spent)
                closing = sum(segment.state is SegmentState.CLOSING for segment in log.segments)
                closing_max = max(closing_max, closing)
            await asyncio.sleep(pace.delay(len(wire)))
    return Sends(every, rolling, closing_max)


def run(bench: Bench) -> Iterator[Row]:
    scale = bench.scale
    wires = wire_batches(Shape.SAME, scale.message_count)
    with bench.fresh_directory() as path:
        rate = disk_speed(path, max(scale.rolling_size // 2, MIB)) / 2
    for policy in (DurabilityPolicy(), SYNCED):
        calm_settings = LogSettings(segment_size=2 * GIB, durability=policy)
        settings = replace(calm_settings, segment_size=scale.rolling_segment_size)
        calm, rolled = [], []
        for _ in range(scale.rounds):
            with bench.fresh_directory(scale.rolling_size) as path:
                calm.append(bench.run(sends(path, wires, scale.rolling_size, calm_settings, rate)))
            with bench.fresh_directory(scale.rolling_size) as path:
                rolled.append(bench.run(sends(path, wires, scale.rolling_size, settings, rate)))
        yield from _rows(calm, rolled, policy, f"{rate / 1e6:,.0f} MB/s")


def _rows(calm: list[Sends], rolled: list[Sends], policy: DurabilityPolicy, pace: str) -> Iterator[Row]:
    level = policy.level.value
    bound = Bound.EXCESS_AT_MOST if policy is SYNCED else Bound.AT_MOST
    roll_count, closing = len(rolled[0].rolling), max(one.closing_count_max for one in rolled)
    for name, share in (("p50", 0.5), ("p99", 0.99), ("max", 1.0)):
        yield Row(
            measure=f"send {name} at {level}, all sends",
            unit="ms",
            engine=[percentile(one.all, share) for one in rolled],
            bare=[percentile(one.all, share) for one in calm],
            bare_name="no rolls",
            target=Target(bound, BOUND) if name == "p99" else None,
            note=f"paced at {pace}",
        )
        yield Row(
            measure=f"send {name} at {level}, sends that roll",
            unit="ms",
            engine=[percentile(one.rolling, share) for one in rolled],
            bare=[percentile(one.all, share) for one in calm],
            bare_name="no rolls",
            target=Target(bound, BOUND) if name == "p99" else None,
            note=f"{roll_count} rolls a round; at most {closing} segments waited to be sealed",
        )
