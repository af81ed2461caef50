"""One disk, many power cuts: what a partition looks like after each of them."""

import random
from collections.abc import Iterator

from courser.storage.partition_log import PartitionLog
from courser.storage.recovery_cases import StopKind
from tests.storage.engine import Engine

CUTS = 60


def after_power_cuts(engine: Engine, *, count: int = CUTS) -> Iterator[PartitionLog]:
    """The log as it is recovered after a power cut at this moment, for many outcomes; the engine itself goes on."""
    for number in range(count):
        disk = engine.disk.clone(random.Random(0))
        disk.random = random.Random(number)
        disk.power_cut()
        yield PartitionLog.open(
            disk,
            engine.directory,
            engine.identity,
            settings=engine.settings,
            clock=engine.clock,
            stop=StopKind.CRASHED,
        )
