"""Exactly-once writes to a topic, compared with the same job and an Arrow writer that discards its rows.

When an exactly-once write returns, the staged parts are durable; the logs are synced in the background. Both times are
shown. A continuous load gets the second one.
"""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.harness import Bench, Bound, Row, Target, touch_memory
from benchmarks.samples import Shape
from courser.bench.private_server import PrivateServer
from courser.client.sync import SyncClient, connect_sync

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

TASK_COUNT = 2
_WARM_UP_COUNT = 2
_STEP = 0.005
"""Seconds between two requests to the server."""


def write_rows(
    bench: Bench, server: PrivateServer, frame: "DataFrame", options: dict[str, str], size: int, shape: Shape
) -> Iterator[Row]:
    """``frame`` is read from Parquet; ``size`` is the bytes of its payloads."""
    rows = frame.select("payload")
    bare: list[float] = []
    ours: list[float] = []
    settled: list[float] = []
    direct: list[float] = []
    # The first rounds of each kind are left out: Java is slow then.
    for number in range(bench.scale.rounds + _WARM_UP_COUNT):
        _settle_memory(server.data.parent, size)
        seconds = [_seconds(lambda: rows.write.format("trivial").mode("append").save())]
        for delivery in ("exactly-once", "at-least-once"):
            name = f"written-{shape.name}-{delivery}-{number}"
            _settle_memory(server.data.parent, size)
            with connect_sync(server.target) as client:
                client.create_topic(options["stream"], name, TASK_COUNT)
                target = {name: options[name] for name in ("url", "stream")} | {"topic": name, "delivery": delivery}
                write = rows.write.format("courser").options(**target, jobId=name).mode("append")
                begin = time.perf_counter()
                seconds.append(_seconds(write.save))
                if delivery == "exactly-once":
                    _await_end(client, name)
                    seconds.append(time.perf_counter() - begin)
                # The written data must not slow down the next round.
                client.delete_topic(options["stream"], name)
        if number >= _WARM_UP_COUNT:
            for speeds, time_taken in zip((bare, ours, settled, direct), seconds, strict=True):
                speeds.append(size / 1e6 / time_taken)
    dropping = "an Arrow writer that drops its rows"
    yield Row(
        measure=f"write to a topic, exactly once, {shape.value}",
        unit="MB/s",
        engine=ours,
        bare=bare,
        bare_name=dropping,
        target=Target(Bound.RATIO_AT_LEAST, 0.5),
    )
    yield Row(
        measure=f"the same with the logs synced, {shape.value}",
        unit="MB/s",
        engine=settled,
        bare=bare,
        bare_name=dropping,
    )
    yield Row(
        measure=f"write to a topic, at least once, {shape.value}",
        unit="MB/s",
        engine=direct,
        bare=bare,
        bare_name=dropping,
    )


def _settle_memory(directory: Path, size: int) -> None:
    """Write back dirty pages, and touch free memory: data that is written twice needs most of it."""
    os.sync()
    touch_memory(directory / "touched", 3 * size)


def _await_end(client: SyncClient, job: str) -> None:
    """Wait until the server has completed the publish of a job."""
    while client.get_sink(job).is_open:
        time.sleep(_STEP)


def _seconds(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin
